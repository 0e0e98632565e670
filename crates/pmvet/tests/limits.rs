//! Long plans, many threads, and a machine that does not let pmvet do what it needs: it works, or says why not.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fmt::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use pmvet_fixtures::tracing::{compile, pm_dir};

fn zoo(program: &str) -> PathBuf {
    let executable = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/zoo").join(program);
    assert!(executable.exists(), "make zoo");
    executable
}

fn pmvet(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pmvet"));
    command.current_dir(folder).args(words).stdin(Stdio::null());
    command
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_long_configuration_works() {
    let place = pm_dir();
    let mut config = String::from("[target]\npm = [\n");
    for i in 0..3000 {
        writeln!(config, "  \"/no/such/folder/{i}/*.pool\",").unwrap();
    }
    config.push_str("]\n");
    for i in 0..3000 {
        writeln!(config, "[[sync]]\nfunction = \"my_lock_function_{i}\"\nkind = \"acquire\"").unwrap();
    }
    assert!(config.len() > 3 * (64 << 10));
    std::fs::write(place.path().join("pmvet.toml"), config).unwrap();
    for (words, bug, code) in [("trace --check-image", "clean", 0), ("check --quiet", "bug-3", 1)] {
        let words: Vec<&str> = words.split(' ').chain(["--"]).collect();
        let mut command = pmvet(place.path(), &words);
        let pool = place.path().join(bug);
        let output = command.arg(zoo("undo_btree").join(bug)).arg(pool).args(["-n", "20"]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", text(&output));
    }
}

const THREADS: &str = r#"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static pthread_barrier_t *all;
static char *pm;
static void *work(void *n) {
    if (n) pthread_barrier_wait(all);
    __atomic_fetch_add((long *)pm, 1, __ATOMIC_SEQ_CST);
    return NULL;
}
/* POOL THREADS AFTER: so many threads at a time, in processes of a thousand, since a process may have only so many mappings;
   then so many one after the other */
int main(int argc, char **argv) {
    int together = atoi(argv[2]), after = atoi(argv[3]), mine = together, status = 0;
    int fd = open(argv[1], O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, 4096)) return 2;
    pm = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (pm == MAP_FAILED) return 2;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    pthread_t *threads = calloc(together + 1, sizeof *threads);
    all = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(all, &shared, together);
    pid_t first = getpid(), child = 0;
    while (mine > 1000 && !child) {
        child = fork();
        if (child) mine = 1000; else mine -= 1000;
    }
    for (int i = 0; i < mine; i++)
        if (pthread_create(&threads[i], &small, work, all)) { fprintf(stderr, "thread %d\n", i); return 3; }
    for (int i = 0; i < mine; i++) pthread_join(threads[i], NULL);
    if (child && (waitpid(child, &status, 0) != child || status)) return 4;
    if (getpid() != first) return 0;
    for (int i = 0; i < after; i++) {
        if (pthread_create(&threads[0], &small, work, NULL)) return 3;
        pthread_join(threads[0], NULL);
    }
    return *(long *)pm != together + after;
}
"#;

fn threads(together: u32, after: u32) -> Output {
    let place = pm_dir();
    let source = place.path().join("threads.c");
    std::fs::write(&source, THREADS).unwrap();
    let program = place.path().join("threads");
    compile(&source, &[], &program);
    let mut command = pmvet(place.path(), &["trace", "--check-image", "--"]);
    command.arg(program).arg(place.path().join("pool")).args([together.to_string(), after.to_string()]);
    command.output().unwrap()
}

#[test]
fn threads_that_come_one_after_the_other_share_rings() {
    let output = threads(4, 9000);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
}

/// Takes some gigabytes of memory.
#[test]
#[ignore = "for soak: 8,200 threads at a time"]
fn more_threads_than_rings_are_refused() {
    let output = threads(8200, 0);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(70), "{said}");
    assert!(said.contains("more than 8192 threads at a time") && said.contains("run it with fewer"), "{said}");
}

/// Makes a system call fail in this process and all that it starts.
fn deny(call: libc::c_long, errno: i32) -> std::io::Result<()> {
    let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program is valid and the kernel copies it.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn what_the_machine_denies_is_named() {
    let place = pm_dir();
    let pool = place.path().join("pool");
    for (call, name, advice) in [
        (libc::SYS_ptrace, "(ptrace): Operation not permitted", "SYS_PTRACE"),
        (libc::SYS_seccomp, "(seccomp): Operation not permitted", "seccomp=unconfined"),
    ] {
        for engine in ["check", "race", "fuzz"] {
            let mut command = pmvet(place.path(), &[engine, "--quiet", "--"]);
            command.arg(zoo("undo_btree/bug-3")).arg(&pool).args(["-n", "20"]);
            // SAFETY: system calls only.
            unsafe { command.pre_exec(move || deny(call, libc::EPERM)) };
            let output = command.output().unwrap();
            let said = text(&output);
            assert_eq!(output.status.code(), Some(2), "{engine}: {said}");
            assert!(said.contains(name) && said.contains(advice), "{engine}: {said}");
            assert!(!said.contains("cannot start DynamoRIO"), "{engine}: {said}");
        }
    }
}
