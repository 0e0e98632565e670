//! Where a system call is forbidden, as in many containers, pmvet works without it or says which one it needs. It never passes a
//! program that it could not check, and never works on the user's pool instead.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::ffi::OsStr;
use std::fmt;
use std::process::{Command, Output, Stdio};

use pmvet_fixtures::files::snapshot::Snapshot;
use pmvet_fixtures::{CLEAN, FOUND, TestPlace, both_cores, finish, make, program, turn};

const PMVET: &str = env!("CARGO_BIN_EXE_pmvet");

const CALLS: [&str; 25] = [
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "seccomp",
    "no_new_privs",
    "unshare",
    "newuser",
    "setns",
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "mount_setattr",
    "open_tree",
    "move_mount",
    "fsopen",
    "fsconfig",
    "fsmount",
    "clone3",
    "memfd_create",
    "pidfd_open",
    "pidfd_send_signal",
    "openat2",
    "capset",
    "userfaultfd",
];

/// What a message has to contain to name the call. Some are known to users by another name.
fn names(call: &str) -> &[&str] {
    match call {
        "no_new_privs" => &["PR_SET_NO_NEW_PRIVS", "no_new_privs", "prctl"],
        "newuser" => &["CLONE_NEWUSER", "unshare", "clone", "user namespace"],
        "clone3" => &["clone"],
        _ => &[],
    }
}

fn is_named(call: &str, text: &str) -> bool {
    text.contains(call) || names(call).iter().any(|name| text.contains(name))
}

/// What is denied, to which kind of sandbox.
#[derive(Clone, Copy)]
struct Denial {
    call: &'static str,
    error: &'static str,
    /// The one that pmvet is told to use, if it is not to choose.
    backend: Option<&'static str>,
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.call, self.error)?;
        self.backend.map_or(Ok(()), |backend| write!(f, " ({backend})"))
    }
}

impl Denial {
    /// `pmvet WORDS`, in which the call fails with this error.
    fn run<S: AsRef<OsStr>>(self, place: &TestPlace, words: &[S]) -> Output {
        let mut command = Command::new(program("denied"));
        command.args([self.call, self.error, PMVET]).args(words).current_dir(place.work()).stdin(Stdio::null());
        command.env("TMPDIR", place.work()).env_remove("PMVET_SANDBOX");
        command.envs(self.backend.map(|backend| ("PMVET_SANDBOX", backend)));
        finish(command, None).unwrap_or_else(|| panic!("{self}: pmvet hangs"))
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Says what is wrong with a check that has to do without the call.
fn check(denial: Denial) -> Result<bool, String> {
    let place = TestPlace::new();
    let target = make("zoo", "zoo").join("undo_btree/bug-3");
    let arguments = [place.pool().into_os_string(), "-n".into(), "50".into()];
    let made = Command::new(&target).args(&arguments).stdin(Stdio::null()).output().unwrap();
    assert!(made.status.success(), "{}", text(&made));
    let snapshot = Snapshot::new(place.pools());
    let mut words = ["check", "--quiet", "--color", "never", "--jobs", "1", "--sample", "12"].map(Into::into).to_vec();
    words.extend(["--crash-recoveries".into(), "0".into()]);
    words.extend(place.pm());
    words.extend(["--".into(), target.into_os_string()]);
    words.extend(arguments);
    let output = denial.run(&place, &words);
    let changes: Vec<String> = snapshot.changes().into_values().flatten().collect();
    if !changes.is_empty() {
        return Err(format!("{denial}: check touches the pool: {}", changes.join(", ")));
    }
    match output.status.code() {
        Some(FOUND) if text(&output).contains("undo_btree.c:108") => Ok(true),
        Some(FOUND) => Err(format!("{denial}: check finds something else:\n{}", text(&output))),
        Some(CLEAN) => Err(format!("{denial}: check passes a program with a bug:\n{}", text(&output))),
        None => Err(format!("{denial}: check dies of a signal: {}\n{}", output.status, text(&output))),
        Some(_) if is_named(denial.call, &String::from_utf8_lossy(&output.stderr)) => Ok(false),
        Some(code) => Err(format!("{denial}: check ends with {code} and does not say why:\n{}", text(&output))),
    }
}

/// Says what is wrong with `pmvet doctor`, given whether a check works.
fn doctor(denial: Denial, works: bool) -> Result<(), String> {
    let place = TestPlace::new();
    let output = denial.run(&place, &["doctor", "--color", "never"]);
    let shown = String::from_utf8_lossy(&output.stdout);
    let failures: Vec<&str> = shown.lines().filter(|line| line.starts_with("FAIL")).collect();
    let passes = output.status.code() == Some(CLEAN) && failures.is_empty();
    match (works, passes) {
        (true, true) => Ok(()),
        (true, false) => Err(format!("{denial}: check works, but doctor says no:\n{}", text(&output))),
        (false, true) => Err(format!("{denial}: check does not work, but doctor says yes:\n{shown}")),
        (false, false) if failures.iter().any(|line| is_named(denial.call, line)) => Ok(()),
        (false, false) => Err(format!("{denial}: no FAIL line of doctor names the call:\n{}", text(&output))),
    }
}

fn each_call(error: &'static str, backend: Option<&'static str>) {
    // Compiled before two of them want it.
    program("denied");
    make("zoo", "zoo");
    let _turn = turn();
    both_cores(&CALLS, |call| {
        let denial = Denial { call, error, backend };
        let works = check(denial)?;
        doctor(denial, works)
    });
}

#[test]
fn calls_that_are_not_permitted() {
    each_call("EPERM", None);
}

#[test]
fn calls_that_do_not_exist() {
    each_call("ENOSYS", None);
}

#[test]
fn calls_that_a_supervisor_may_not_make() {
    each_call("EPERM", Some("supervisor"));
}

/// The tests above prove nothing unless the bug is found where nothing that matters is denied.
#[test]
fn a_call_that_nobody_needs() {
    let denial = Denial { call: "personality", error: "EPERM", backend: None };
    assert_eq!(check(denial), Ok(true));
    assert_eq!(doctor(denial, true), Ok(()));
}
