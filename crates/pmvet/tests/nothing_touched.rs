//! pmvet touches no file of the user's, whatever the programs that it runs do to files, in whichever role of whichever engine; and
//! these programs see what they have done.
//!
//! `make test` runs all operations of a role at once, each in a folder of its own. To run some alone:
//!
//!     PMVET_TEST_ONLY=namespace,check,recovery,rename_dir cargo test --release -p pmvet --test nothing_touched one_by_one -- --ignored
//!
//! Any part may be left empty, and stands for all then.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use pmvet_fixtures::files::{Backend, ENGINES, Engine, FileCase, Ground, Grounds, ROLES, operations, user_words};
use pmvet_fixtures::{both_cores, program, turn};

const PMVET: &str = env!("CARGO_BIN_EXE_pmvet");

/// A disk, and a file system in memory where every mapped file is PM by its path.
const DISK: &str = env!("CARGO_TARGET_TMPDIR");
const MEMORY: &str = "/dev/shm";

/// A user that owns nothing on this machine.
const NOBODY: u32 = 65_534;

fn cases(backend: Backend, engines: &[Engine], operation: &str) -> Vec<FileCase> {
    let case = |engine, role| FileCase { backend, engine, role, operation: operation.into() };
    engines.iter().flat_map(|engine| ROLES.map(|role| case(*engine, role))).collect()
}

/// Whether this machine has what the backend needs. Says so if not.
fn is_possible(backend: Backend) -> bool {
    if backend != Backend::Namespace || namespaces(None) {
        return true;
    }
    assert!(
        std::env::var_os("PMVET_REQUIRE_NAMESPACES").is_none(),
        "this machine has no user namespaces with overlays"
    );
    eprintln!("not tested: this machine has no user namespaces with overlays");
    false
}

fn namespaces(user: Option<u32>) -> bool {
    pmvet_fixtures::files::as_user(user, &program("denied")).arg("--probe").status().unwrap().success()
}

fn is_root() -> bool {
    // SAFETY: has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// Whether a user can run what was built here. Says so if not.
fn is_reachable(user: u32) -> bool {
    let pmvet = pmvet_fixtures::files::as_user(Some(user), Path::new(PMVET)).arg("--version").output();
    let reachable = pmvet.is_ok_and(|output| output.status.success());
    if !reachable {
        eprintln!("not tested: other users have no access to {PMVET}");
    }
    reachable
}

/// Runs the cases, each on its own files below this folder, and names all that went wrong.
fn all_pass(below: &str, user: Option<u32>, before: &[OsString], cases: &[FileCase]) {
    let _turn = turn();
    let grounds = Grounds::new(Path::new(below), user);
    let run = |case: &FileCase, ground: &Ground| {
        if ground.leaves_out(case) {
            return Ok(());
        }
        let start = Instant::now();
        let outcome = ground.run(case, before)?;
        println!("{:>7.2} s: {case}", start.elapsed().as_secs_f64());
        if case.backend == Backend::Supervisor {
            let calls = outcome.refused.keys().flat_map(|name| &operations()[name].calls);
            let repeated = calls.filter(|call| outcome.lines_with(call) > 1).cloned().collect::<Vec<_>>();
            if !repeated.is_empty() {
                return Err(format!("{case}: pmvet names {} more than once\n{}", repeated.join(", "), outcome.stderr));
            }
        }
        Ok(())
    };
    both_cores(cases, |case| grounds.with(|ground| run(case, ground)));
}

fn all_at_once(backend: Backend, engine: Engine) {
    if is_possible(backend) {
        all_pass(DISK, None, &[], &cases(backend, &[engine], "all"));
    }
}

#[test]
fn check_in_namespaces() {
    all_at_once(Backend::Namespace, Engine::Check);
}

#[test]
fn race_in_namespaces() {
    all_at_once(Backend::Namespace, Engine::Race);
}

#[test]
fn verify_in_namespaces() {
    all_at_once(Backend::Namespace, Engine::Verify);
}

#[test]
fn fuzz_in_namespaces() {
    all_at_once(Backend::Namespace, Engine::Fuzz);
}

#[test]
fn check_under_a_supervisor() {
    all_at_once(Backend::Supervisor, Engine::Check);
}

#[test]
fn race_under_a_supervisor() {
    all_at_once(Backend::Supervisor, Engine::Race);
}

#[test]
fn verify_under_a_supervisor() {
    all_at_once(Backend::Supervisor, Engine::Verify);
}

#[test]
fn fuzz_under_a_supervisor() {
    all_at_once(Backend::Supervisor, Engine::Fuzz);
}

#[test]
fn files_in_memory() {
    all_pass(MEMORY, None, &[], &cases(Backend::Any, &[Engine::Check], "all"));
}

/// The tests above would notice an operation without effect, in each role of each engine.
#[test]
fn a_missing_effect_is_noticed() {
    let _turn = turn();
    let grounds = Grounds::new(Path::new(DISK), None);
    both_cores(&cases(Backend::Any, &ENGINES, "missing"), |case| match grounds.with(|ground| ground.run(case, &[])) {
        Err(message) if message == format!("{case}: had no effect: as it was told") => Ok(()),
        other => Err(format!("{case}: not noticed: {other:?}")),
    });
}

/// They would notice a change of the user's files, too: without pmvet everything changes.
#[test]
fn a_change_is_noticed() {
    let ground = Ground::new(Path::new(DISK), None);
    let snapshot = pmvet_fixtures::files::snapshot::Snapshot::new(ground.files());
    let status = Command::new(pmvet_fixtures::files::fileops())
        .args([ground.pool(), ground.folder()])
        .arg("all")
        .env("FILEOPS_SKIP", "by_mount")
        .env("FILEOPS_REFUSALS", "1")
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .status();
    assert!(status.unwrap().success());
    let case = &cases(Backend::Any, &[Engine::Check], "all")[0];
    let changes = pmvet_fixtures::files::changes(case, &snapshot);
    for operation in operations().keys().filter(|name| *name != "by_mount") {
        let start = format!("{}: ", FileCase { operation: operation.clone(), ..case.clone() });
        let noticed = changes.iter().any(|line| line.starts_with(&start));
        assert!(noticed || operations()[operation].optional, "nobody notices {operation}:\n{}", changes.join("\n"));
    }
}

// ---- Users

#[test]
fn an_ordinary_user() {
    if !is_root() {
        // All other tests run as one.
        return;
    }
    if !is_reachable(NOBODY) {
        return;
    }
    let before = user_words(Some(NOBODY));
    let default = if namespaces(Some(NOBODY)) { Backend::Namespace } else { Backend::Any };
    for backend in [default, Backend::Supervisor] {
        all_pass("/tmp", Some(NOBODY), &before, &cases(backend, &[Engine::Check], "all"));
    }
}

#[test]
fn without_user_namespaces() {
    let denied = [program("denied").into(), "newuser".into(), "EPERM".into()];
    all_pass(DISK, None, &denied, &cases(Backend::Any, &[Engine::Check], "all"));
    if is_root() && is_reachable(NOBODY) {
        let mut before = user_words(Some(NOBODY));
        before.extend(denied);
        all_pass("/tmp", Some(NOBODY), &before, &cases(Backend::Any, &[Engine::Check], "all"));
    }
}

// ---- One by one

#[test]
#[ignore = "a run of pmvet for each operation in each role; for `make soak`, and to look at one of them"]
fn one_by_one() {
    let only = std::env::var("PMVET_TEST_ONLY").unwrap_or_default();
    let mut only = only.split(',').map(String::from).chain(std::iter::repeat(String::new()));
    let mut wanted = || only.next().filter(|part| !part.is_empty());
    let (backend, engine, role, operation) = (wanted(), wanted(), wanted(), wanted());
    let is = |part: &Option<String>, name: &str| part.as_deref().is_none_or(|part| part == name);
    let mut chosen = Vec::new();
    for (name, kind) in [("namespace", Backend::Namespace), ("supervisor", Backend::Supervisor)] {
        if !is(&backend, name) || !is_possible(kind) {
            continue;
        }
        for one in operations().keys().filter(|name| is(&operation, name)) {
            let cases = cases(kind, &ENGINES, one);
            chosen.extend(cases.into_iter().filter(|c| is(&engine, c.engine.name()) && is(&role, c.role.name())));
        }
    }
    assert!(!chosen.is_empty(), "nothing is like PMVET_TEST_ONLY");
    all_pass(DISK, None, &[], &chosen);
}
