//! Faithfulness: what a file held before a run, plus a replay of the recorded stores, is what it holds afterwards, byte
//! for byte. Checked by `pmvet trace --check-image` itself, here on every program that this repository can build: the
//! zoo with 1 to 8 threads (1 and 4 in `make test`), and PMDK's examples as `targets/pmdk/workloads.toml` drives them (one large
//! workload of each program and map in `make test`).
//!
//! `PMVET_SOAK=N` runs each workload N times.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tempfile::TempDir;

const PMVET: &str = env!("CARGO_BIN_EXE_pmvet");
const MAP_OPERATIONS: usize = 10_000;
/// Room on tmpfs that a workload needs if it does not say otherwise.
const DEFAULT_MIB: u64 = 200;
/// Only ends a test that hangs; the longest workload takes a few seconds.
const DEADLINE: Duration = Duration::from_secs(300);

// ---- The tests

#[test]
fn every_zoo_program_with_1_to_8_threads() {
    let zoo = build("zoo", "zoo", &["clean-variants"]);
    let mut programs: Vec<String> = fs::read_dir(&zoo)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| zoo.join(name).join("clean").exists())
        .collect();
    programs.sort();
    let sources = fs::read_dir(repository().join("zoo")).unwrap().flatten();
    let in_c = sources.filter(|entry| entry.path().join("manifest.toml").exists()).count();
    assert!(programs.len() >= in_c + 2, "programs of the zoo are missing: {programs:?}");

    let zoo_folder = &zoo;
    let threads: &[u32] = if pmvet_fixtures::is_soak() { &[1, 2, 4, 8] } else { &[1, 4] };
    let jobs = programs.iter().flat_map(|name| {
        threads.iter().map(move |threads| {
            let program = zoo_folder.join(name).join("clean");
            let arguments = ["{pool}".into(), "-n".into(), "2000".into(), "-t".into(), threads.to_string()];
            Workload {
                name: format!("{name} with {threads} threads"),
                program: program.to_str().unwrap().into(),
                args: arguments.into(),
                ..Workload::default()
            }
        })
    });
    run_all(jobs.collect(), &zoo);
}

#[test]
fn every_pmdk_example() {
    let bin = build("targets/pmdk", "pmdk", &[]);
    let mut workloads = pmdk_workloads();
    let not_built: Vec<&str> =
        workloads.iter().filter(|w| !bin.join(&w.program).exists()).map(|w| w.program.as_str()).collect();
    assert!(not_built.is_empty(), "not built: {not_built:?}; `scripts/setup.sh test` installs what they need");
    // `make soak` runs all; here it is a large one of each program and map.
    workloads.sort_by_key(|workload| workload.name.ends_with("-small"));
    let kind = |workload: &Workload| (workload.program.clone(), workload.args.first().cloned());
    run_all(pmvet_fixtures::one_of_each(workloads, kind), &bin);
}

/// The seven other maps have a workload of this size in the table. This one cannot take two keys there: `mapcli`
/// stores null values, which `ctree` trips over, so that the program crashes by itself.
#[test]
fn mapcli_on_ctree_one_key_at_a_time_and_up_to_its_crash() {
    let bin = build("targets/pmdk", "pmdk", &[]);
    let workload = |name: &str, stdin: String, exit| Workload {
        name: name.into(),
        program: "mapcli".into(),
        args: vec!["ctree".into(), "{pool}".into(), "42".into()],
        stdin: Some(stdin),
        recover: Some(Vec::new()),
        exit,
        ..Workload::default()
    };
    let steps = ["i 5", "c 5", "r 5"].into_iter().cycle().take(MAP_OPERATIONS);
    let one_key = steps.map(|step| format!("{step}\n")).collect();
    run_all(vec![workload("one key", one_key, 0), workload("two keys", "i 5\ni 9\n".into(), CRASH)], &bin);
}

#[test]
fn the_table_has_every_other_map_at_full_size() {
    for map in ["btree", "rtree", "rbtree", "skiplist", "hashmap_tx", "hashmap_atomic", "hashmap_rp"] {
        let size = format!("mapcli-mixed {MAP_OPERATIONS}");
        let found = pmdk_workloads()
            .into_iter()
            .any(|w| w.program == "mapcli" && w.args[0] == map && w.stdin_gen.as_deref() == Some(&size));
        assert!(found, "no workload for {map}");
    }
}

/// The parts of an installed pmvet find each other wherever the whole is put.
#[test]
fn an_installed_copy_works_after_a_move() {
    let _turn = turn();
    let zoo = build("zoo", "zoo", &["clean-variants"]);
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("moved here"));
    let output = Command::new(repository().join("scripts/install.sh"))
        .env("BUILD", Path::new(PMVET).parent().unwrap())
        .env("PREFIX", "/usr")
        .env("DESTDIR", &first)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::rename(first.join("usr"), &second).unwrap();
    for file in ["lib/pmvet/libdynamorio.so", "share/doc/pmvet/LICENSE-MIT", "share/doc/pmvet/LICENSE-DynamoRIO"] {
        assert!(second.join(file).exists(), "{file} is not installed");
    }
    let pool = folder.path().join("pool");
    let output = Command::new(second.join("bin/pmvet"))
        .args(["trace", "--quiet", "--check-image", "--"])
        .args([&zoo.join("plist/clean"), &pool])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // What is traced must be the installed parts, not those of the build.
    fs::remove_file(second.join("lib/pmvet/libdynamorio.so")).unwrap();
    let output = Command::new(second.join("bin/pmvet")).args(["trace", "--", "/bin/true"]).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && message.contains("libdynamorio.so"), "{message}");
}

// ---- Workloads

/// A program that ends by a signal has no exit code.
const CRASH: i32 = -1;

/// pmvet's exit codes.
const OK: i32 = 0;
const TARGET_FAILED: i32 = 3;
const NO_PM: i32 = 4;

/// Workloads whose recovery maps the pool privately, which is no PM: there is nothing to check, and pmvet says so.
const LOOKS_ONLY: [&str; 1] = ["redo"];

/// One run on a fresh pool; the keys are explained in `targets/pmdk/workloads.toml`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Workload {
    name: String,
    program: String,
    args: Vec<String>,
    stdin: Option<String>,
    stdin_gen: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    setup: Vec<Vec<String>>,
    make_input: Option<String>,
    client: Option<Vec<String>>,
    client_stdin_gen: Option<String>,
    ready_when: Option<String>,
    recover: Option<Vec<String>>,
    #[expect(dead_code, reason = "for engines that need more than one")]
    threads: Option<u32>,
    exit: i32,
    tmpfs_mib: Option<u64>,
    #[expect(dead_code, reason = "for engines that find it")]
    known: Option<String>,
}

fn pmdk_workloads() -> Vec<Workload> {
    #[derive(Deserialize)]
    struct Table {
        workload: Vec<Workload>,
    }
    let text = fs::read_to_string(repository().join("targets/pmdk/workloads.toml")).unwrap();
    toml::from_str::<Table>(&text).unwrap().workload
}

/// Runs workloads two at a time, then names those that failed.
fn run_all(workloads: Vec<Workload>, bin: &Path) {
    let _turn = turn();
    let rounds = std::env::var("PMVET_SOAK").map_or(1, |n| n.parse().expect("PMVET_SOAK is a number"));
    let jobs: Vec<&Workload> = (0..rounds).flat_map(|_| &workloads).collect();
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(workload) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(message) = workload.run(bin) {
                failures.lock().unwrap().push(format!("--- {}: {message}", workload.name));
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {} runs failed\n{}", failures.len(), jobs.len(), failures.join("\n"));
}

/// Two runs at once are enough for two cores, whichever tests they belong to.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Workload {
    fn run(&self, bin: &Path) -> Result<(), String> {
        let place = Place::new(self, bin)?;
        for command in &self.setup {
            let command = place.fill(command);
            let output = Command::new(&command[0])
                .args(&command[1..])
                .env("PMEM_IS_PMEM_FORCE", "1")
                .stdin(Stdio::null())
                .output()
                .map_err(|e| format!("setup {command:?}: {e}"))?;
            if !output.status.success() {
                return Err(format!("setup {command:?}: {}", String::from_utf8_lossy(&output.stderr)));
            }
        }
        let mut command = vec![self.program.clone()];
        command.extend(self.args.iter().cloned());
        // A target that fails by itself is told apart from an image that differs.
        let expected = if self.exit == 0 { OK } else { TARGET_FAILED };
        self.trace(&place, &command, expected).map_err(|e| format!("first run: {e}"))?;
        match &self.recover {
            // The same again recovers; so its own recovery code is traced as well.
            None => self.trace(&place, &command, expected),
            Some(none) if none.is_empty() => Ok(()),
            Some(recover) if LOOKS_ONLY.contains(&self.name.as_str()) => self.trace(&place, recover, NO_PM),
            Some(recover) => self.trace(&place, recover, OK),
        }
        .map_err(|e| format!("recovery: {e}"))
    }

    /// One traced run; a recovery is a run like any other.
    fn trace(&self, place: &Place<'_>, command: &[String], expected: i32) -> Result<(), String> {
        let (out, err) = (place.path("stdout"), place.path("stderr"));
        let command = place.fill(command);
        let stdin = match (&self.stdin, &self.stdin_gen) {
            (Some(text), _) => place.file("stdin", text.as_bytes()),
            (None, Some(generator)) => place.file("stdin", &generate(generator)?),
            (None, None) => File::open("/dev/null").unwrap(),
        };
        let mut pmvet = Command::new(PMVET);
        pmvet.args(["trace", "--quiet", "--check-image"]);
        if !place.pools.path().starts_with("/dev/shm") {
            pmvet.arg("--pm").arg(place.pools.path());
        }
        pmvet.arg("--").arg(place.bin.join(&command[0])).args(&command[1..]);
        pmvet.envs(&self.env).env("PMEM_IS_PMEM_FORCE", "1").current_dir(place.rest.path());
        pmvet.stdin(stdin).stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
        let mut running = Running(pmvet.spawn().unwrap());
        if let Some(client) = &self.client {
            self.serve(place, &mut running, client)?;
        }
        let code = running.end()?;
        if code == Some(expected) {
            return Ok(());
        }
        let code = code.map_or("a signal".into(), |code| format!("exit code {code}"));
        Err(format!("{command:?}: {code}\n{}", tail(&fs::read(&err).unwrap())))
    }

    /// Waits for a server and runs its client, which also tells the server to stop.
    fn serve(&self, place: &Place<'_>, server: &mut Running, client: &[String]) -> Result<(), String> {
        let ready = self.ready_when.as_deref().ok_or("a client needs ready_when")?;
        let port = place.fill_one(ready.strip_prefix("port:").ok_or("only port:N is known")?);
        server.wait_until(|| TcpStream::connect(format!("127.0.0.1:{port}")).is_ok())?;
        let requests = generate(self.client_stdin_gen.as_deref().unwrap_or("text 0"))?;
        let client = place.fill(client);
        let mut command = Command::new(&client[0]);
        command.args(&client[1..]).stdin(place.file("requests", &requests)).stdout(Stdio::null()).stderr(Stdio::null());
        Running(command.spawn().unwrap()).end().map(drop).map_err(|e| format!("client: {e}"))
    }
}

/// What `gen.sh` prints for "NAME N".
fn generate(generator: &str) -> Result<Vec<u8>, String> {
    let output = Command::new(repository().join("targets/pmdk/gen.sh")).args(generator.split(' ')).output().unwrap();
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(format!("gen.sh {generator}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

// ---- Where a workload runs

/// The folders and the port of one workload.
struct Place<'a> {
    bin: &'a Path,
    pools: TempDir,
    /// Input and output, which are not PM.
    rest: TempDir,
    port: u16,
}

impl<'a> Place<'a> {
    fn new(workload: &Workload, bin: &'a Path) -> Result<Self, String> {
        let need = workload.tmpfs_mib.unwrap_or(DEFAULT_MIB);
        // Containers often have a tiny /dev/shm. Any file will do as PM.
        let rest = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let pools = if free_mib(Path::new("/dev/shm")) >= 2 * need { Path::new("/dev/shm") } else { &rest };
        let folder = |parent: &Path| tempfile::Builder::new().prefix("pmvet-images-").tempdir_in(parent).unwrap();
        let place = Place { bin, pools: folder(pools), rest: folder(&rest), port: free_port() };
        if let Some(generator) = &workload.make_input {
            place.file("input", &generate(generator)?);
        }
        Ok(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.rest.path().join(name)
    }

    fn file(&self, name: &str, content: &[u8]) -> File {
        fs::write(self.path(name), content).unwrap();
        File::open(self.path(name)).unwrap()
    }

    fn fill(&self, command: &[String]) -> Vec<String> {
        command.iter().map(|argument| self.fill_one(argument)).collect()
    }

    fn fill_one(&self, text: &str) -> String {
        let path = |path: PathBuf| path.to_str().unwrap().to_owned();
        text.replace("{pool}", &path(self.pools.path().join("pool")))
            .replace("{pool2}", &path(self.pools.path().join("pool2")))
            .replace("{input}", &path(self.path("input")))
            .replace("{bin}", &path(self.bin.to_owned()))
            .replace("{port}", &self.port.to_string())
    }
}

fn free_mib(folder: &Path) -> u64 {
    let output = Command::new("df").args(["--output=avail", "--block-size=1M"]).arg(folder).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().nth(1).and_then(|line| line.trim().parse().ok()).unwrap_or(0)
}

/// A port below those that the kernel gives away by itself, so that no connection takes it in the meantime.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + (std::process::id() % 10_000) as u16;
    loop {
        let port = first + NEXT.fetch_add(1, Ordering::Relaxed) % 10_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

// ---- Processes

/// A process that does not outlive the test.
struct Running(Child);

impl Running {
    /// Its exit code, or nothing if a signal ended it.
    fn end(mut self) -> Result<Option<i32>, String> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return Ok(status.code());
            }
            if start.elapsed() > DEADLINE {
                return Err("hangs".into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn wait_until(&mut self, mut condition: impl FnMut() -> bool) -> Result<(), String> {
        let start = Instant::now();
        while !condition() {
            if let Some(status) = self.0.try_wait().unwrap() {
                return Err(format!("the server ended before it was ready: {status}"));
            }
            if start.elapsed() > DEADLINE {
                return Err("the server does not get ready".into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Asked to stop, pmvet ends its target too; a process that has ended already cannot be reached.
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = Command::new("kill").arg(self.0.id().to_string()).status();
            let _ = self.0.wait();
        }
    }
}

/// The last lines of what a program printed.
fn tail(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Builds programs under `target/`, where `make test` puts them as well, and says where that is.
fn build(makefile: &str, name: &str, goals: &[&str]) -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _lock = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let out = repository().join("target").join(name);
    let output = Command::new("make")
        .args(["-s", "-C"])
        .arg(repository().join(makefile))
        .arg(format!("OUT={}", out.display()))
        .args(goals)
        .env_remove("MAKEFLAGS")
        .output()
        .unwrap();
    assert!(output.status.success(), "{makefile}: {}", String::from_utf8_lossy(&output.stderr));
    out
}
