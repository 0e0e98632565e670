//! Files that are not PM: what the runs of one check see of each other's, and what is left of them for the user.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use pmvet_findings::Evidence;
use pmvet_fixtures::{CLEAN, CheckedRun, FAILS_BY_ITSELF, FOUND, Linked, TestPlace, finish, pair, program};

const PMVET: &str = env!("CARGO_BIN_EXE_pmvet");

/// Every other file that a recovery may depend on: made, changed, moved, removed, linked.
const CHANGES: &str = "mkdir -p state/deep && echo made > state/deep/mark && echo changed >> known && mv old new && \
                       mv folder moved && rm gone && ln -s deep/mark state/link && ln known twin && mkfifo state/pipe";
const SEES: &str = "grep -q made state/deep/mark && grep -q changed known && test -e new && test ! -e old && \
                    test -e moved/inside && test ! -e folder && test ! -e gone && grep -q made state/link && \
                    grep -q changed twin && test -p state/pipe";

/// Whether runs have a view of the file system of their own here. Says so if not.
fn has_views() -> bool {
    let output = Command::new(PMVET).arg("doctor").output().unwrap();
    let found = String::from_utf8_lossy(&output.stdout).contains("a view of the file system of its own");
    if !found {
        eprintln!("not tested: this machine allows no private views of the file system");
    }
    found
}

fn prepare(place: &TestPlace) {
    for name in ["known", "old", "gone"] {
        fs::write(place.work().join(name), "real\n").unwrap();
    }
    fs::create_dir(place.work().join("folder")).unwrap();
    fs::write(place.work().join("folder/inside"), "real\n").unwrap();
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = entries.filter(|name| name != ".pmvet").collect();
    names.sort();
    names
}

/// The statuses that recoveries ended with, of all errors.
fn outcomes(checked: &CheckedRun) -> Vec<String> {
    let outcome = |evidence: &Evidence| match evidence {
        Evidence::Crash { recovery, .. } => recovery.outcome.to_string(),
        other => format!("{other:?}"),
    };
    checked.errors().map(|finding| outcome(&finding.evidence)).collect()
}

#[test]
fn a_recovery_finds_what_the_run_left() {
    if !has_views() {
        return;
    }
    let place = TestPlace::new();
    prepare(&place);
    let (pair, pool) = (pair(Linked::Dynamic), place.pool());
    let (pair, pool) = (pair.display(), pool.display());
    let script = format!("{CHANGES} && exec {pair} run {pool} 2");
    let command = ["/bin/sh", "-c", &script];
    // What one recovery does to these files, the next one does not see.
    let recover = format!("{SEES} || exit 3; rm -r state; echo again >> new; exec {pair} strict {pool}");
    let check = place.check(&["-j2", "--recover", &recover], &command);
    let found = check.run();
    found.expect(FOUND, &[]);
    assert_eq!(outcomes(&found), ["exits with status 1"], "{}", found.text());
    place.replays(found.errors().next().unwrap()).unwrap();
    assert_eq!(names(place.work()), ["folder", "gone", "known", "old"]);
    // A run that goes on finds the same.
    place.check(&["-j2", "--recover", &recover, "--sample", "1"], &command).run().expect(FOUND, &[]);
    let resumed = check.resume();
    resumed.expect(FOUND, &[]);
    assert_eq!(outcomes(&resumed), ["exits with status 1"], "{}", resumed.text());
    assert_eq!(names(place.work()), ["folder", "gone", "known", "old"]);
}

#[test]
fn outputs_that_are_wanted() {
    let place = TestPlace::new();
    fs::write(place.work().join("known.txt"), "real\n").unwrap();
    let (pair, pool) = (pair(Linked::Dynamic), place.pool());
    let (pair, pool) = (pair.display(), pool.display());
    let setup = "mkdir out; echo set up > out/first.txt; echo private > other";
    let script = format!("echo run > out/second.txt; echo run >> known.txt; exec {pair} run {pool} 2");
    let recover = format!("echo recovery >> out/second.txt; exec {pair} strict {pool}");
    let options = ["-j2", "--setup", setup, "--keep", "out/*", "--keep", "known.txt", "--recover", &recover];
    place.check(&options, &["/bin/sh", "-c", &script]).run().expect(FOUND, &[]);
    assert_eq!(names(place.work()), ["known.txt", "out"]);
    let read = |name: &str| fs::read_to_string(place.work().join(name)).unwrap();
    assert_eq!(read("out/first.txt"), "set up\n");
    assert_eq!(read("out/second.txt"), "run\n");
    assert_eq!(read("known.txt"), "real\nrun\n");
}

/// With a debugger that does as it is told: it runs the recovery, which writes to a file beside the pool.
#[test]
fn a_debugger_gets_the_image_and_private_files() {
    if !has_views() {
        return;
    }
    let place = TestPlace::new();
    prepare(&place);
    let (pair, pool) = (pair(Linked::Dynamic), place.pool());
    let (pair, pool) = (pair.display(), pool.display());
    let script = format!("{CHANGES} && exec {pair} run {pool} 2");
    let recover = format!("{SEES} || exit 3; echo note > note; exec {pair} strict {pool}");
    let found = place.check(&["-j2", "--recover", &recover], &["/bin/sh", "-c", &script]).run();
    let token = found.errors().next().unwrap().replay.clone().unwrap();
    let tools = place.pools().join("tools");
    fs::create_dir(&tools).unwrap();
    let gdb = "#!/bin/sh\ntest \"$1 $2\" = '-q --args' && shift 2 && \"$@\"\necho recovery ended with $?; test -e note && echo noted\n";
    fs::write(tools.join("gdb"), gdb).unwrap();
    fs::set_permissions(tools.join("gdb"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let output = finish_with(&place, &["replay", "--gdb", &token], &path);
    assert_eq!(output, "recovery ended with 1\nnoted\n");
    assert_eq!(names(place.work()), ["folder", "gone", "known", "old"]);
}

fn finish_with(place: &TestPlace, words: &[&str], path: &str) -> String {
    let mut command = place.pmvet(words);
    command.env("PATH", path);
    let output = finish(command, None).expect("pmvet hangs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_server_and_its_client_share_private_files() {
    if !has_views() {
        return;
    }
    let place = TestPlace::new();
    let (counter, pool) = (program("counter"), place.pool());
    let client = format!("{} ask socket 2", counter.display());
    let command = [counter.to_str().unwrap(), "serve", pool.to_str().unwrap(), "socket"];
    for stop in [None, Some("kill $(tail -n 1 socket.pid)")] {
        let mut options = vec!["--client", &client, "--ready-when", "file:socket"];
        options.extend(stop.iter().flat_map(|stop| ["--stop", stop]));
        let found = place.check(&options, &command).run();
        found.expect(FOUND, &[]);
        assert_eq!(outcomes(&found), ["exits with status 1"], "{}", found.text());
        assert!(names(place.work()).is_empty(), "{:?}", names(place.work()));
    }
}

#[test]
fn who_of_server_and_client_fails_is_said() {
    if !has_views() {
        return;
    }
    let place = TestPlace::new();
    let (counter, pool) = (program("counter"), place.pool());
    let command = [counter.to_str().unwrap(), "serve", pool.to_str().unwrap(), "socket"];
    for (client, said) in [
        ("echo lost my way; exit 3", &["the client of the server fails: exit status 3", "  | lost my way"][..]),
        // It may end before anybody has noticed the server's death.
        ("kill -SEGV $(tail -n 1 socket.pid); false", &["the target itself fails: killed by signal 11 (SIGSEGV)"]),
    ] {
        let options = ["--client", client, "--ready-when", "file:socket"];
        place.check(&options, &command).run().expect(FAILS_BY_ITSELF, said);
    }
}

#[test]
fn a_user_namespace_is_refused_and_said() {
    let place = TestPlace::new();
    let pool = place.pool();
    let line = format!("unshare -r true || exec {} {}", program("unfenced").display(), pool.display());
    let checked = place.check(&[], &["sh", "-c", &line]).run();
    checked.expect(checked.code.unwrap(), &["called `unshare`", "refused"]);
    assert!(matches!(checked.code, Some(CLEAN | FOUND)), "{}", checked.text());
}
