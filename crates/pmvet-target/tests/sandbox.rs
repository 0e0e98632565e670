//! Sandboxed runs: the user's files stay as they were, whatever a recovery does.

#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pmvet_target::sandbox::{self, Capture, Output, Overlay, SandboxedEnd, SandboxedProgram, SandboxedRun, Unwinder};
use pmvet_target::sparse;

fn job(command: &[OsString]) -> SandboxedProgram<'_> {
    SandboxedProgram {
        output: Output::Tail(4096),
        timeout: Some(Duration::from_secs(20)),
        most_bytes: 1 << 30,
        usual_status: Some(0),
        ..SandboxedProgram::new(command)
    }
}

fn run(job: &SandboxedProgram<'_>, overlay: &Mutex<Overlay>) -> SandboxedRun {
    sandbox::run(job, overlay, &mut Unwinder::default()).unwrap()
}

fn sh(line: &str, overlay: &Mutex<Overlay>) -> (SandboxedEnd, String) {
    let run = run(&job(&sandbox::shell(line)), overlay);
    (run.end, String::from_utf8_lossy(&run.output).into_owned())
}

/// A folder with a file `pool` that says `real`, and an overlay in which it says `image`.
struct Scene {
    folder: tempfile::TempDir,
    overlay: Mutex<Overlay>,
}

impl Scene {
    fn new(capture: Capture) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("pool");
        std::fs::write(&path, "real").unwrap();
        let image = sparse::unnamed(&path).unwrap();
        image.write_all_at(b"image", 0).unwrap();
        let mut overlay = Overlay::new(capture);
        overlay.put(path, Arc::new(image));
        Self { folder, overlay: Mutex::new(overlay) }
    }

    fn sh(&self, line: &str) -> (SandboxedEnd, String) {
        sh(&format!("cd {} && {line}", self.folder.path().display()), &self.overlay)
    }

    fn real(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("pool")).unwrap()
    }

    fn names(&self) -> Vec<PathBuf> {
        let mut names: Vec<_> =
            std::fs::read_dir(self.folder.path()).unwrap().map(|e| e.unwrap().file_name().into()).collect();
        names.sort();
        names
    }

    /// Compiles a C program into the folder.
    fn program(&self, source: &str) -> PathBuf {
        let (c, program) = (self.folder.path().join("p.c"), self.folder.path().join("p"));
        std::fs::write(&c, source).unwrap();
        let built = Command::new("cc").args(["-g", "-O1", "-pthread", "-o"]).arg(&program).arg(&c).status().unwrap();
        assert!(built.success());
        program
    }
}

#[test]
fn the_path_leads_to_the_image() {
    let scene = Scene::new(Capture::Writable);
    assert_eq!(scene.sh("cat pool"), (SandboxedEnd::Exit(0), "image".into()));
    assert_eq!(
        scene.sh("cat ../$(basename $PWD)/./pool; stat -c %s pool; test -e pool && echo yes").1,
        "image5\nyes\n"
    );
    assert_eq!(scene.real(), "real");
}

#[test]
fn writes_stay_in_the_image() {
    let scene = Scene::new(Capture::Writable);
    assert_eq!(scene.sh("printf more >> pool; cat pool; printf x > new; cat new").1, "imagemorex");
    assert_eq!(scene.real(), "real");
    assert_eq!(scene.names(), [PathBuf::from("pool")]);
    // A second run in the same sandbox sees what the first one left.
    assert_eq!(scene.sh("cat pool new").1, "imagemorex");
}

#[test]
fn other_files_are_copied_before_they_are_written() {
    let scene = Scene::new(Capture::Writable);
    std::fs::write(scene.folder.path().join("log"), "old ").unwrap();
    assert_eq!(scene.sh("echo new >> log; cat log").1, "old new\n");
    assert_eq!(std::fs::read_to_string(scene.folder.path().join("log")).unwrap(), "old ");
}

#[test]
fn whatever_a_workload_writes_is_private_without_a_view_too() {
    let scene = Scene::new(Capture::Named);
    assert_eq!(scene.sh("echo new > log; exec 3<>fresh; echo x >&3; cat log fresh").1, "new\nx\n");
    assert_eq!(scene.names(), [PathBuf::from("pool")]);
}

#[test]
fn what_cannot_be_made_private_is_refused() {
    let scene = Scene::new(Capture::Named);
    let (_, output) = scene.sh("mkdir d 2>&1; ln -s pool link 2>&1; mkfifo pipe 2>&1; chmod 700 . 2>&1; ls");
    assert_eq!(output.matches("Operation not permitted").count(), 4, "{output}");
    assert_eq!(scene.names(), [PathBuf::from("pool")]);
}

#[test]
fn nothing_of_a_process_that_dies_is_written_out() {
    let scene = Scene::new(Capture::Named);
    // With 0, a handler of the machine's would still get it; more would go into a file.
    let (_, output) = scene.sh("grep 'core file' /proc/self/limits; ulimit -c unlimited 2>/dev/null || echo kept");
    let limits: Vec<&str> = output.split_whitespace().skip_while(|word| *word != "size").collect();
    assert!(matches!(limits[..], ["size", "0" | "1", "0" | "1", "bytes", "kept"]), "{output}");
}

/// Each line of the program tries another way to reach something outside, and prints what the kernel says.
#[test]
fn what_lies_outside_of_the_run_cannot_be_reached_by_detours() {
    let scene = Scene::new(Capture::Named);
    let program = scene.program(
        r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#define TRY(call) printf("%d %s\n", (call) == -1 ? errno : 0, #call)
int main(int argc, char **argv) {
    int victim = atoi(argv[1]), ends[2];
    struct f_owner_ex owner = {F_OWNER_PID, victim};
    long attributes[3] = {0x80};
    socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    TRY(fcntl(ends[0], F_SETOWN, victim));
    TRY(fcntl(ends[0], F_SETOWN_EX, &owner));
    TRY(ioctl(ends[0], 0x8901, &victim));
    TRY(ioctl(ends[0], 0x8902, &victim));
    TRY(fcntl(ends[0], F_SETOWN, getpid()));
    TRY(syscall(469, AT_FDCWD, "pool", attributes, 24, 0));
    TRY(shmget(IPC_PRIVATE, 4096, 0600));
    TRY(syscall(SYS_mq_open, "pmvet-test", O_CREAT | O_RDWR, 0600, 0));
    TRY(syscall(SYS_add_key, "user", "pmvet-test", "x", 1, -4));
    return 0;
}
"#,
    );
    let mut victim = Command::new("sleep").arg("1000").spawn().unwrap();
    let (end, output) = scene.sh(&format!("{} {}", program.display(), victim.id()));
    let codes: Vec<&str> = output.lines().filter_map(|line| line.split(' ').next()).collect();
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert_eq!(end, SandboxedEnd::Exit(0), "{output}");
    let (refused, unknown) = ("1", "38");
    assert_eq!(codes, [refused, refused, refused, refused, "0", unknown, refused, refused, refused], "{output}");
}

#[test]
fn deleting_and_renaming_happen_in_the_sandbox() {
    let scene = Scene::new(Capture::Writable);
    std::fs::write(scene.folder.path().join("other"), "other").unwrap();
    let (end, output) = scene.sh("mv pool moved && cat moved && ! test -e pool && mv other pool && cat pool && rm pool && ! cat pool 2>/dev/null && echo made > pool && cat pool");
    assert_eq!((end, output.as_str()), (SandboxedEnd::Exit(0), "imageothermade\n"));
    assert_eq!(scene.names(), [PathBuf::from("other"), PathBuf::from("pool")]);
    assert_eq!(scene.real(), "real");
}

#[test]
fn locks_are_seen_in_the_sandbox_alone() {
    let lock = |capture| {
        let scene = Scene::new(capture);
        let path = scene.folder.path().join("set");
        std::fs::write(&path, "").unwrap();
        let held = std::fs::File::open(&path).unwrap();
        held.lock().unwrap();
        let output = scene
            .sh("exec 7<set; flock -n 7 && echo free; exec 8<>pool 9<>pool; flock -n 8 && ! flock -n 9 && echo taken")
            .1;
        drop(held);
        output
    };
    assert_eq!(lock(Capture::Writable), "free\ntaken\n");
    assert_eq!(lock(Capture::Named), "free\ntaken\n");
}

#[test]
fn symbolic_links_and_relative_folders_lead_there_too() {
    let scene = Scene::new(Capture::Writable);
    std::os::unix::fs::symlink("pool", scene.folder.path().join("alias")).unwrap();
    assert_eq!(scene.sh("cat alias; here=$(basename $PWD); cd .. && cat $here/alias").1, "imageimage");
}

#[test]
fn the_exit_status_and_signals_are_told() {
    let scene = Scene::new(Capture::Writable);
    assert_eq!(scene.sh("exit 7").0, SandboxedEnd::Exit(7));
    assert_eq!(scene.sh("kill -SEGV $$").0, SandboxedEnd::Signal(libc::SIGSEGV));
    let missing = [OsString::from("/nonexistent/program")];
    assert!(sandbox::run(&job(&missing), &scene.overlay, &mut Unwinder::default()).is_err());
}

#[test]
fn a_program_starts_as_from_a_shell() {
    let scene = Scene::new(Capture::Writable);
    let script = scene.folder.path().join("script");
    std::fs::write(&script, "echo $HOME; ps -o pgid= $$ | grep -q $$ && cat").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    // A program that only a shell can read, and one that is searched in `PATH`.
    for command in [vec![script.clone().into()], vec![OsString::from("sh"), script.into()]] {
        let variables = [("HOME".into(), "/of/mine".into())];
        let input = sparse::input().unwrap();
        input.write_all_at(b"input", 0).unwrap();
        let run =
            run(&SandboxedProgram { variables: &variables, input: Some(&input), ..job(&command) }, &scene.overlay);
        assert_eq!((run.end, run.output), (SandboxedEnd::Exit(0), b"/of/mine\ninput".to_vec()), "{command:?}");
    }
}

#[test]
fn other_children_of_the_caller_are_left_to_it() {
    let scene = Scene::new(Capture::Writable);
    let mut other = Command::new("true").spawn().unwrap();
    let ended = || std::fs::read_to_string(format!("/proc/{}/stat", other.id())).unwrap().contains(") Z ");
    while !ended() {
        std::thread::yield_now();
    }
    assert_eq!(scene.sh("true").0, SandboxedEnd::Exit(0));
    assert!(other.wait().unwrap().success());
}

#[test]
fn a_hang_ends_in_time_and_leaves_nobody() {
    let scene = Scene::new(Capture::Writable);
    let command = sandbox::shell("sleep 1000 & echo $!; sleep 1000");
    let job = SandboxedProgram { timeout: Some(Duration::from_millis(300)), ..job(&command) };
    let run = run(&job, &scene.overlay);
    assert_eq!(run.end, SandboxedEnd::Timeout);
    let left: i32 = String::from_utf8(run.output).unwrap().trim().parse().unwrap();
    // Its new parent may not have noticed yet.
    let stat = std::fs::read_to_string(format!("/proc/{left}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
}

#[test]
fn output_without_end_is_cut() {
    let scene = Scene::new(Capture::Writable);
    let (end, output) = scene.sh("yes 0123456789 | head -c 200000000; echo end");
    assert_eq!(end, SandboxedEnd::Exit(0));
    assert!(output.len() <= 4096 && output.ends_with("end\n"));
}

#[test]
fn a_process_that_fills_the_disk_is_stopped() {
    let scene = Scene::new(Capture::Writable);
    let command = sandbox::shell(&format!("cat /dev/zero > {}/big", scene.folder.path().display()));
    let job = SandboxedProgram { most_bytes: 64 << 20, ..job(&command) };
    assert_eq!(run(&job, &scene.overlay).end, SandboxedEnd::Runaway);
    assert_eq!(scene.names(), [PathBuf::from("pool")]);
}

#[test]
fn a_run_that_forks_without_end_is_stopped() {
    let scene = Scene::new(Capture::Writable);
    let (end, _) = scene.sh("bomb() { bomb & bomb & wait; }; bomb");
    assert_eq!(end, SandboxedEnd::Signal(libc::SIGKILL));
}

#[test]
fn threads_forks_and_two_mappings_see_one_image() {
    let scene = Scene::new(Capture::Writable);
    let program = scene.program(
        r#"
        #define _GNU_SOURCE
        #include <fcntl.h>
        #include <pthread.h>
        #include <stdio.h>
        #include <sys/mman.h>
        #include <sys/wait.h>
        #include <unistd.h>
        static volatile char *a, *b;
        static void *thread(void *x) { a[1] = 'T'; return x; }
        int main(int argc, char **argv) {
            int fd = open(argv[1], O_RDWR);
            if (fd < 0) return 1;
            a = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0);
            b = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (a == MAP_FAILED || b == MAP_FAILED) return 2;
            for (int i = 0; i < 20; i++) {
                pthread_t t;
                pthread_create(&t, 0, thread, 0);
                pthread_join(t, 0);
                pid_t child = fork();
                if (child == 0) { int d = open(argv[1], O_RDWR); pwrite(d, "F", 1, 2); _exit(b[1] != 'T'); }
                int status; waitpid(child, &status, 0);
                if (status) return 3;
            }
            char text[6] = { 0 };
            if (pread(fd, text, 5, 0) != 5) return 4;
            printf("%s %c%c\n", text, b[1], a[2]);
            return 0;
        }"#,
    );
    let pool = scene.folder.path().join("pool");
    let command = [program.into_os_string(), pool.into_os_string()];
    let run = run(&job(&command), &scene.overlay);
    assert_eq!((run.end, String::from_utf8_lossy(&run.output).as_ref()), (SandboxedEnd::Exit(0), "iTFge TF\n"));
    assert_eq!(scene.real(), "real");
}

#[test]
fn the_stack_of_a_failure_is_recorded() {
    let scene = Scene::new(Capture::Writable);
    let program = scene.program(
        r#"
        #include <stdlib.h>
        #include <string.h>
        __attribute__((noinline)) void broken(int how) { if (how) *(volatile int *)8 = 1; else exit(5); }
        __attribute__((noinline)) void caller(int how) { broken(how); __asm__ volatile(""); }
        int main(int argc, char **argv) { caller(argc > 1); return 0; }"#,
    );
    for (extra, end) in [(None, SandboxedEnd::Exit(5)), (Some("x"), SandboxedEnd::Signal(libc::SIGSEGV))] {
        let command: Vec<OsString> =
            std::iter::once(program.clone().into_os_string()).chain(extra.map(OsString::from)).collect();
        let run = run(&job(&command), &scene.overlay);
        assert_eq!(run.end, end);
        let ours = run.stack.iter().filter(|f| f.module.as_ref().is_some_and(|(path, _)| path.ends_with("p")));
        assert!(ours.count() >= 3, "{:?}", run.stack);
    }
}
