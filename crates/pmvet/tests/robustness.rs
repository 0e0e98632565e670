//! Bad input and bad ends: a clear message, the documented exit code, no process and no file left behind, no panic.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use pmvet_fixtures::native::{build, command, ended, traced};
use pmvet_fixtures::{DEADLINE, finish};

const PMVET: &str = env!("CARGO_BIN_EXE_pmvet");

/// A folder for each test: pmvet runs in it and has its temporary files in it, PM files lie beside it.
struct Place {
    _folder: tempfile::TempDir,
    work: PathBuf,
    pool: PathBuf,
    ready: PathBuf,
    target: PathBuf,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_owned();
        std::fs::create_dir(root.join("work")).unwrap();
        let target = build(&root, "pmtarget.c", "pmtarget", &[]);
        Self { _folder: folder, work: root.join("work"), pool: root.join("pool"), ready: root.join("ready"), target }
    }

    /// The target's command line. Its PM file has a name that no other process has in its own.
    fn target(&self, how: &str) -> Vec<OsString> {
        vec![self.target.clone().into(), how.into(), self.pool.clone().into(), self.ready.clone().into()]
    }

    fn trace(&self, options: &[&str], how: &str) -> Command {
        let mut all = vec![OsStr::new("--pm"), self.pool.as_os_str()];
        all.extend(options.iter().map(OsStr::new));
        command(&self.work, &traced(&all, &self.target(how)))
    }

    /// Processes that have our PM file in their command line, pmvet among them.
    fn processes(&self) -> Vec<String> {
        let token = self.pool.as_os_str().as_encoded_bytes();
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let lines = all.filter_map(|p| std::fs::read(p.path().join("cmdline")).ok());
        let ours = lines.filter(|line| line.windows(token.len()).any(|w| w == token));
        ours.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).collect()
    }

    fn assert_clean(&self, output: &Output) {
        wait_until("all processes are gone", || self.processes().is_empty());
        let left: Vec<_> = std::fs::read_dir(&self.work).unwrap().flatten().map(|f| f.path()).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!text.contains("panicked") && !text.contains("RUST_BACKTRACE"), "{text}");
    }

    /// Runs to the end, then checks code, words of the message and what is left.
    fn expect(&self, command: Command, code: i32, words: &[&str]) -> Output {
        let output = finish(command, None).expect("pmvet hangs");
        check(&output, code, words);
        self.assert_clean(&output);
        output
    }

    /// Starts a target that does not end by itself, and waits until it works.
    fn started(&self, options: &[&str], how: &str) -> std::process::Child {
        let mut command = self.trace(options, how);
        let child = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_until("the target works", || self.ready.exists());
        child
    }
}

fn check(output: &Output, code: i32, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{}: {text}", ended(output));
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "not within {DEADLINE:?}: {what}");
        // Looks again, not too often: the processes it waits for need the processor.
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

fn signal(pid: u32, number: i32) {
    // SAFETY: a process that a test of this file started and that nobody has waited for.
    assert_eq!(unsafe { libc::kill(pid as i32, number) }, 0);
}

/// The process that runs the target itself: not pmvet, not its guard.
fn target_process(place: &Place) -> u32 {
    let start = place.target.as_os_str().as_encoded_bytes();
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let mut ours = all.filter(|p| std::fs::read(p.path().join("cmdline")).is_ok_and(|line| line.starts_with(start)));
    ours.find_map(|p| p.file_name().to_str()?.parse().ok()).unwrap()
}

#[test]
fn programs_that_cannot_run() {
    let place = Place::new();
    let beside = place.work.parent().unwrap().to_owned();
    let file = |name: &str, content: &[u8], mode: u32| {
        let path = beside.join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let mut bits32 = b"\x7fELF\x01\x01\x01".to_vec();
    bits32.resize(16, 0);
    bits32.extend([2, 0, 3, 0]);
    bits32.resize(64, 0);
    let cases: [(PathBuf, &[&str]); 7] = [
        (beside.join("missing"), &["missing", "no such program"]),
        ("surely-not-in-path".into(), &["surely-not-in-path", "PATH"]),
        (file("plain", b"#!/bin/sh\n", 0o644), &["plain", "not executable"]),
        (file("old", &bits32, 0o755), &["old", "32-bit"]),
        (beside.clone(), &["directory"]),
        (file("text", b"hello", 0o755), &["text", "neither an ELF program nor a script"]),
        (file("script", b"#!/no/such/interpreter\n", 0o755), &["script", "interpreter"]),
    ];
    for (program, words) in cases {
        place.expect(command(&place.work, &traced(&[], &[program.into()])), 2, words);
    }
    place.expect(command(&place.work, &[PMVET.into(), "trace".into()]), 2, &["Usage"]);
}

#[test]
fn no_pm_is_not_clean() {
    let place = Place::new();
    place.expect(command(&place.work, &traced(&[], &["true".into()])), 4, &["nothing was analysed", "--pm"]);
}

#[test]
fn a_failing_target() {
    let place = Place::new();
    let words = ["sh", "-c", "kill -SEGV $$"].map(OsString::from);
    place.expect(command(&place.work, &traced(&[], &words)), 3, &["SIGSEGV"]);
    let words = ["sh", "-c", "exit 77"].map(OsString::from);
    place.expect(command(&place.work, &traced(&[], &words)), 3, &["77"]);
}

#[test]
fn a_pm_file_that_vanishes_or_shrinks() {
    let place = Place::new();
    let output = finish(place.trace(&["--check-image"], "unlink"), None).unwrap();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(["deleted", "gone", "unlinked", "vanished", "removed"].iter().any(|w| text.contains(w)), "{text}");
    place.assert_clean(&output);
    std::fs::remove_file(&place.ready).unwrap();
    place.expect(place.trace(&["--check-image"], "shrink"), 0, &[]);
}

#[test]
fn a_full_disk_while_saving() {
    let place = Place::new();
    place.expect(place.trace(&["--save-trace", "/dev/full"], "many"), 70, &["/dev/full", "space"]);
    assert!(Path::new("/dev/full").exists(), "pmvet must not remove a device");

    let mut command = place.trace(&["--save-trace", "saved"], "many");
    // SAFETY: a system call between fork and exec. A limit takes the place of a small disk.
    unsafe {
        command.pre_exec(|| {
            let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            match libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    place.expect(command, 70, &["limit of file sizes", "ulimit"]);
    place.expect(place.trace(&["--save-trace", "none/saved"], "plain"), 2, &["none/saved"]);
}

#[test]
fn damaged_trace_files() {
    let place = Place::new();
    let beside = place.work.parent().unwrap();
    let saved = beside.join("saved");
    let output = finish(place.trace(&["--save-trace", saved.to_str().unwrap()], "plain"), None).unwrap();
    check(&output, 0, &[]);
    let events = |file: &Path| command(&place.work, &[PMVET.into(), "events".into(), file.into()]);
    let whole = place.expect(events(&saved), 0, &[]);
    assert!(!whole.stdout.is_empty());

    let bytes = std::fs::read(&saved).unwrap();
    let cut = beside.join("cut");
    for length in [bytes.len() - 1, bytes.len() / 2] {
        std::fs::write(&cut, &bytes[..length]).unwrap();
        place.expect(events(&cut), 70, &["cut", "cut short"]);
    }
    let foreign = beside.join("foreign");
    for content in [&b"\x7fELF and more, not a trace"[..], b"", b"x"] {
        std::fs::write(&foreign, content).unwrap();
        place.expect(events(&foreign), 2, &["foreign", "not a"]);
    }
    place.expect(events(&beside.join("missing")), 2, &["missing"]);
    place.expect(events(&place.work), 2, &["work"]);
}

#[test]
fn interrupted() {
    let (int, term, hup) = (libc::SIGINT, libc::SIGTERM, libc::SIGHUP);
    for (number, how) in [(int, "endless"), (int, "asleep"), (int, "family"), (term, "endless"), (hup, "asleep")] {
        let place = Place::new();
        let child = place.started(&["--save-trace", "saved"], how);
        signal(child.id(), number);
        let output = child.wait_with_output().unwrap();
        check(&output, 130, &["interrupted"]);
        // What was recorded until then is a whole trace.
        let events = ["events", "--kind", "process-start", "saved"].map(OsString::from);
        let events = [&[PMVET.into()], &events[..]].concat();
        let events = finish(command(&place.work, &events), None).expect("reading the trace hangs");
        check(&events, 0, &[]);
        assert!(!events.stdout.is_empty());
        std::fs::remove_file(place.work.join("saved")).unwrap();
        place.assert_clean(&output);
    }
}

#[test]
fn the_target_is_killed() {
    let place = Place::new();
    let child = place.started(&[], "endless");
    signal(target_process(&place), libc::SIGKILL);
    let output = child.wait_with_output().unwrap();
    assert!(matches!(output.status.code(), Some(3 | 70)), "{}", ended(&output));
    check(&output, output.status.code().unwrap(), &["SIGKILL"]);
    place.assert_clean(&output);
}

#[test]
fn pmvet_is_killed() {
    for how in ["endless", "asleep", "family"] {
        let place = Place::new();
        let child = place.started(&[], how);
        signal(child.id(), libc::SIGKILL);
        let output = child.wait_with_output().unwrap();
        assert_eq!(ended(&output), "signal 9");
        place.assert_clean(&output);
    }
}
