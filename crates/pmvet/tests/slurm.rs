//! Scattered work on a real Slurm: a controller and four nodes on this host, in a folder of their own, which the test starts and stops.
//! `make test-slurm` installs the packages and runs it.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pmvet_fixtures::scatter::{SharedWork, counters, counts, gather, lost_cases};
use pmvet_fixtures::{CLEAN, CheckedRun, FOUND, TestPlace, compile, finish, wait_until};
use tempfile::TempDir;

const NODES: usize = 4;

/// The daemons. They go when the value does.
struct Slurm {
    folder: TempDir,
    daemons: Vec<Child>,
}

impl Slurm {
    fn start() -> Self {
        // A short path: it has a socket.
        let folder = tempfile::Builder::new().prefix("pmvet-slurm-").tempdir().unwrap();
        let mut slurm = Self { folder, daemons: Vec::new() };
        let path = slurm.folder.path().to_owned();
        fs::create_dir(path.join("state")).unwrap();
        fs::write(path.join("munge.key"), [0x5a; 64]).unwrap();
        run(Command::new("chmod").arg("600").arg(path.join("munge.key")));
        let mut munged = Command::new("munged");
        munged.args(["--foreground", "--force", "--num-threads=2"]);
        for (option, file) in [("key-file", "munge.key"), ("socket", "munge.sock"), ("seed-file", "seed")] {
            munged.arg(format!("--{option}={}", path.join(file).display()));
        }
        munged.arg(format!("--pid-file={}", path.join("munged.pid").display()));
        slurm.daemon(munged, "munged");
        wait_until("munged listens", || path.join("munge.sock").exists());
        fs::write(slurm.configuration(), configuration(&path)).unwrap();
        let mut controller = slurm.command("slurmctld");
        controller.arg("-D");
        slurm.daemon(controller, "slurmctld");
        for node in 1..=NODES {
            let mut slurmd = slurm.command("slurmd");
            slurmd.args(["-D", "-N", &format!("n{node}")]);
            slurm.daemon(slurmd, &format!("slurmd-{node}"));
        }
        let idle = |nodes: &str| nodes.lines().filter(|line| line.trim() == "idle").count();
        wait_until("all nodes are idle", || idle(&slurm.ask("sinfo", &["-h", "-N", "-o", "%T"])) == NODES);
        slurm
    }

    fn configuration(&self) -> std::path::PathBuf {
        self.folder.path().join("slurm.conf")
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.env("SLURM_CONF", self.configuration()).stdin(Stdio::null());
        command
    }

    fn daemon(&mut self, mut command: Command, name: &str) {
        let log = fs::File::create(self.folder.path().join(format!("{name}.out"))).unwrap();
        let child = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn();
        self.daemons.push(child.unwrap_or_else(|e| panic!("{name}: {e}; `make test-slurm` installs it")));
    }

    fn ask(&self, name: &str, words: &[&str]) -> String {
        String::from_utf8_lossy(&self.command(name).args(words).output().unwrap().stdout).into_owned()
    }

    /// The node that has a task, while it runs.
    fn node_of(&self, task: u32) -> Option<String> {
        let running = self.ask("squeue", &["-h", "-r", "-t", "R", "-o", "%K %N"]);
        running.lines().find_map(|line| line.strip_prefix(&format!("{task} ")).map(|node| node.trim().to_owned()))
    }

    /// `pmvet scatter`, which submits the job.
    fn scatter(&self, place: &TestPlace, share: &SharedWork) {
        let mut command = share.scattering(place, &[]);
        command.env("SLURM_CONF", self.configuration());
        let submitted = CheckedRun::new(place, &finish(command, None).unwrap());
        submitted.expect(CLEAN, &["waits for the tasks"]);
        assert!(submitted.stdout.starts_with("Submitted batch job"), "{}", submitted.stdout);
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        let left = || self.ask("squeue", &["-h", "-o", "%i"]);
        let _ = self.command("scancel").args(["-u", "root"]).status();
        while !std::thread::panicking() && !left().is_empty() {
            std::thread::yield_now();
        }
        // Nodes first, and what they trust last.
        for daemon in self.daemons.iter_mut().rev() {
            // SAFETY: a child of ours that has not been waited for.
            unsafe { libc::kill(daemon.id() as i32, libc::SIGTERM) };
            let _ = daemon.wait();
        }
    }
}

fn run(command: &mut Command) {
    assert!(command.status().unwrap().success(), "{command:?}");
}

/// A task that is put back into the queue waits until the credentials of its first start have expired: hence `cred_expire`, which is two
/// minutes by default.
fn configuration(folder: &Path) -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned();
    // All at once, so that they differ.
    let listeners: Vec<TcpListener> = (0..=NODES).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let ports: Vec<u16> = listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
    let (folder, controller) = (folder.display(), ports[NODES]);
    let mut text = format!(
        "ClusterName=pmvet
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,requeue_delay=1
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
KillWait=2
"
    );
    for (node, port) in (1..=NODES).zip(&ports) {
        text += &format!("NodeName=n{node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1\n");
    }
    text + "PartitionName=pm Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
}

/// The process that does a task, whichever node it is on.
fn process_of(shared: &Path, task: u32) -> Option<i32> {
    let words = format!("--shared\0{}\0--task\0{task}\0", shared.display());
    let processes =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let does_it = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).ends_with(&words)
    };
    processes.filter(does_it).min()
}

/// How a task is lost.
#[derive(Debug, Clone, Copy)]
enum Loss {
    Killed,
    Node,
}

/// Loses task 2 when it has done something. Says whether that was before its end.
fn lose(slurm: &Slurm, place: &TestPlace, share: &SharedWork, loss: Loss) -> bool {
    let shared = place.work().join(share.shared).canonicalize().unwrap();
    let task = shared.join("tasks/2");
    let noted = || fs::read(task.join("latest").join(share.journal())).is_ok_and(|lines| lines.contains(&b'\n'));
    let is_over = || task.join("task.json").exists();
    wait_until("the task has done something", || noted() || is_over());
    match loss {
        Loss::Killed => {
            if let Some(process) = process_of(&shared, 2) {
                // SAFETY: sends a signal; at worst the process has ended meanwhile.
                unsafe { libc::kill(process, libc::SIGKILL) };
            }
        }
        Loss::Node => {
            let Some(node) = slurm.node_of(2) else { return false };
            let down = format!("nodename={node}");
            slurm.ask("scontrol", &["update", &down, "state=down", "reason=test"]);
            let was_early = !is_over();
            wait_until("another node has it, or it is over", || {
                slurm.node_of(2).is_some_and(|n| n != node) || is_over()
            });
            slurm.ask("scontrol", &["update", &down, "state=resume"]);
            return was_early;
        }
    }
    !is_over()
}

#[test]
#[ignore = "starts daemons of Slurm; `make test-slurm` installs and runs them"]
fn array_jobs_find_what_one_process_finds() {
    let slurm = Slurm::start();
    let mut early = 0;
    for (engine, program, loss) in [
        ("check", "undo_btree/bug-3", Loss::Killed),
        ("verify", "undo_btree/bug-3", Loss::Killed),
        ("check", "slab_kv/bug-3", Loss::Node),
        ("verify", "slab_kv/bug-3", Loss::Node),
    ] {
        let (place, share) = (TestPlace::new(), SharedWork::new(engine, program, NODES as u32));
        let whole = share.on_one_machine(&place);
        let expected = counters(&place.run());
        slurm.scatter(&place, &share);
        let was_early = lose(&slurm, &place, &share, loss);
        early += u32::from(was_early);
        let joined = gather(&place, &["shared"]);
        let text = format!("{share:?} {loss:?}: {}{}", joined.text(), joined.stdout);
        assert_eq!((joined.code, counts(&joined)), (whole.code, counts(&whole)), "{text}");
        assert_eq!(counters(&place.run()), expected, "{text}");
        eprintln!("{engine} {program}: {} findings, {loss:?} before its end: {was_early}", joined.findings.len());
    }
    assert!(early > 0, "no task was lost before its end");
}

#[test]
#[ignore = "starts daemons of Slurm; `make test-slurm` installs and runs them"]
fn corpora_of_four_tasks_are_joined() {
    let slurm = Slurm::start();
    let place = TestPlace::new();
    let shelf = compile("tests/fuzz/shelf.c", "shelf", &[]);
    let mut command = place.pmvet(&["scatter", "--engine", "fuzz", "-n", "4", "--shared", "shared", "--"]);
    command.args(["--executions", "2000", "--timeout", "30s"]).args(place.pm());
    command.arg("--").arg(shelf).arg(place.pool()).arg("@@").env("SLURM_CONF", slurm.configuration());
    CheckedRun::new(&place, &finish(command, Some(b"add 1\ndel 1\n")).unwrap()).expect(CLEAN, &[]);
    gather(&place, &["shared"]).expect(FOUND, &["4 of 4 tasks done"]);
    assert_eq!(lost_cases(&place.work().join("shared")), Vec::<String>::new());
    eprintln!("{} test cases of 4 tasks", counters(&place.run())["test cases"]);
}
