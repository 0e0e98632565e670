//! Recoveries that misbehave do no harm and are reported rightly; and the ways to say what recovery is.
//!
//! The program is `programs/pair.c`: a crash between its two stores leaves two numbers unequal.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use pmvet_findings::{Evidence, Recovery, Severity};
use pmvet_fixtures::{
    CLEAN, CheckedRun, FAILS_BY_ITSELF, FOUND, Linked, TestPlace, USAGE, Untouched, both_cores, compile, pair, turn,
};

/// Makes a pool with both numbers at `n`.
fn make_pool(place: &TestPlace, n: u64) -> Untouched {
    let made = Command::new(pair(Linked::Dynamic)).arg("run").arg(place.pool()).arg(n.to_string()).status().unwrap();
    assert!(made.success());
    Untouched::new(&place.pool())
}

/// `pair WAY POOL REST`, as a line for the shell.
fn line(place: &TestPlace, way: &str, rest: &str) -> String {
    format!("{} {way} {} {rest}", pair(Linked::Dynamic).display(), place.pool().display())
}

/// Checks two rounds of the workload.
fn check(place: &TestPlace, options: &[&str]) -> CheckedRun {
    let pool = place.pool();
    place.check(options, &[pair(Linked::Dynamic).to_str().unwrap(), "run", pool.to_str().unwrap(), "2"]).run()
}

/// What recovery did, of the only error.
#[track_caller]
fn recovery(checked: &CheckedRun) -> &Recovery {
    let errors: Vec<_> = checked.errors().collect();
    assert_eq!(errors.len(), 1, "{}", checked.text());
    match &errors[0].evidence {
        Evidence::Crash { recovery, .. } => recovery,
        other => panic!("{other:?}"),
    }
}

/// The numbers in a pool or an image of one.
fn numbers(image: &Path) -> [u64; 2] {
    let bytes = fs::read(image).unwrap();
    [0, 64].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()))
}

// ---- What a recovery may do

/// A bad manner, and what has to be said about it.
struct Manner {
    way: &'static str,
    rest: &'static str,
    timeout: &'static str,
    /// Nothing: no crash harms it.
    says: Option<&'static str>,
    /// A function that its stack has to name.
    inside: Option<&'static str>,
}

const fn manner(way: &'static str, says: Option<&'static str>, inside: Option<&'static str>) -> Manner {
    Manner { way, rest: "", timeout: "2s", says, inside }
}

fn behaves(manner: &Manner) -> Result<(), String> {
    let place = TestPlace::new();
    let pool = make_pool(&place, 5);
    let recover = line(&place, manner.way, manner.rest);
    let checked = check(&place, &["-j1", "--recover-timeout", manner.timeout, "--recover", &recover]);
    pool.assert();
    place.assert_clean(&["pool"]);
    let wrong = |what: &str| Err(format!("--- {}: {what}\n{}", manner.way, checked.text()));
    let Some(says) = manner.says else {
        return if checked.code == Some(CLEAN) && checked.findings.is_empty() { Ok(()) } else { wrong("not clean") };
    };
    if checked.code != Some(FOUND) || checked.errors().count() != 1 {
        return wrong("not one error");
    }
    let found = recovery(&checked);
    if found.outcome.to_string() != says {
        return wrong(&format!("recovery {}, not: {says}", found.outcome));
    }
    let names: Vec<_> = found.stack.iter().filter_map(|frame| frame.function.as_deref()).collect();
    if manner.inside.is_some_and(|inside| !names.contains(&inside)) {
        return wrong(&format!("it was in {names:?}"));
    }
    place.replays(checked.errors().next().unwrap()).map_err(|e| format!("--- {}: {e}", manner.way))?;
    pool.assert();
    place.assert_clean(&["pool"]);
    Ok(())
}

#[test]
fn bad_manners_do_no_harm() {
    let _turn = turn();
    const FAILS: Option<&str> = Some("exits with status 1");
    let manners = [
        manner("strict", FAILS, Some("_start")),
        manner("lenient", None, None),
        manner("fork", FAILS, None),
        manner("threads", FAILS, None),
        manner("pwrite", None, None),
        manner("unlink", FAILS, None),
        manner("rename", FAILS, None),
        manner("truncate", FAILS, None),
        manner("litter", FAILS, None),
        manner("segv", Some("dies of signal 11 (SIGSEGV)"), Some("main")),
        manner("kill-group", Some("dies of signal 9 (SIGKILL)"), None),
        manner("hang", Some("still runs after 2 s"), Some("spin_forever")),
        manner("sleep", Some("still runs after 2 s"), Some("main")),
    ];
    both_cores(&manners, behaves);
}

/// One at a time: each takes a gigabyte of memory until it is stopped.
#[test]
fn a_full_disk_does_no_harm() {
    let _turn = turn();
    for way in ["fill-pool", "fill-disk"] {
        let full = manner(way, Some("dies of signal 25 (SIGXFSZ)"), None);
        behaves(&Manner { timeout: "60s", ..full }).unwrap();
    }
}

#[test]
fn only_the_end_of_a_long_output_is_kept() {
    let _turn = turn();
    prints("48");
}

#[test]
#[ignore = "prints a gigabyte per recovery"]
fn only_the_end_of_a_gigabyte_is_kept() {
    let _turn = turn();
    prints("1024");
}

/// A recovery that prints so many MiB.
fn prints(mib: &str) {
    let place = TestPlace::new();
    let pool = make_pool(&place, 5);
    let checked = check(&place, &["-j2", "--recover-timeout", "300s", "--recover", &line(&place, "print", mib)]);
    checked.expect(FOUND, &[]);
    let found = recovery(&checked);
    assert!(found.output.ends_with("the end of the output\n"), "{:?}", found.output);
    assert!(found.output.len() < 1 << 16, "{} bytes", found.output.len());
    assert!(checked.stdout.len() < 1 << 16, "{} bytes", checked.stdout.len());
    let kept: u64 = fs::read_dir(place.run()).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!(kept < 4 << 20, "{kept} bytes are kept");
    pool.assert();
    place.assert_clean(&["pool"]);
}

// ---- What recovery is

#[test]
fn the_story_of_a_crash() {
    let place = TestPlace::new();
    let pool = make_pool(&place, 5);
    let checked = check(&place, &["-j1", "--recover", &line(&place, "strict", "")]);
    pool.assert();
    let error = checked.errors().next().unwrap();
    let Evidence::Crash { image, timeline, .. } = &error.evidence else { panic!("{error:?}") };
    let diffs: Vec<_> = image.diff.iter().map(|d| (d.offset, d.before[0], d.after[0])).collect();
    assert_eq!(diffs, [(0, 5, 6)], "{image:?}");
    let steps: Vec<_> =
        timeline.iter().map(|step| (step.what.as_str(), step.pm.as_ref().map(|pm| pm.offset))).collect();
    assert_eq!(steps, [("stored", Some(0)), ("crash", None)], "{timeline:?}");
}

/// What is left in the cache at the end is lost in the ways that a crash can, and an error only if recovery needs it.
#[test]
fn data_that_is_never_flushed() {
    let _turn = turn();
    let program = compile("tests/programs/unflushed.c", "unflushed", &[]);
    let cases = [
        ("one-line", "unpersisted-store", Severity::Warning),
        ("log", "unpersisted-store", Severity::Error),
        ("scratch", "unpersisted-store", Severity::Warning),
    ];
    both_cores(&cases, |(way, rule, severity)| {
        let place = TestPlace::new();
        let checked = place.check(&[], &[program.to_str().unwrap(), way, place.pool().to_str().unwrap()]).run();
        let found: Vec<_> = checked.findings.iter().map(|f| (f.rule.0.as_str(), f.severity)).collect();
        if found != [(*rule, *severity)] {
            return Err(format!("--- {way}: {}", checked.text()));
        }
        checked.errors().try_for_each(|error| place.replays(error))
    });
}

#[test]
fn the_same_command_line_again() {
    let place = TestPlace::new();
    let pool = place.pool();
    let command = [pair(Linked::Dynamic).to_str().unwrap().to_owned(), "input".into(), pool.to_str().unwrap().into()];
    // Without its input the recovery would fail with no fault injected.
    let checked = place.check(&["-j2"], &command).input(b"2\n").run();
    checked.expect(FOUND, &[]);
    assert_eq!(recovery(&checked).outcome.to_string(), "exits with status 1");
    place.replays(checked.errors().next().unwrap()).unwrap();
    place.assert_clean(&[]);
    place.check(&["-j2"], &command).input(b"").run().expect(FAILS_BY_ITSELF, &["target itself fails", "7"]);
}

#[test]
fn static_programs() {
    let place = TestPlace::new();
    let (program, pool) = (pair(Linked::Static), place.pool());
    let kept = make_pool(&place, 5);
    let recover = format!("{} strict {}", program.display(), pool.display());
    let command = [program.to_str().unwrap(), "run", pool.to_str().unwrap(), "2"];
    let checked = place.check(&["-j2", "--recover", &recover], &command).run();
    checked.expect(FOUND, &[]);
    let found = recovery(&checked);
    assert_eq!(found.outcome.to_string(), "exits with status 1");
    assert!(found.stack.iter().any(|frame| frame.function.as_deref() == Some("_start")), "{:?}", found.stack);
    place.replays(checked.errors().next().unwrap()).unwrap();
    kept.assert();
    place.assert_clean(&["pool"]);
}

#[test]
fn lines_for_the_shell() {
    let place = TestPlace::new();
    let pool = make_pool(&place, 5);
    let strict = line(&place, "strict", "");
    for recover in [
        format!("true && {strict}"),
        format!("X=1 {strict} > /dev/null 2>&1"),
        format!("{strict} '' \"$UNSET\" > /dev/null"),
        format!("if {strict}; then exit 0; else exit 1; fi"),
        format!("(cd / && {strict})"),
    ] {
        let checked = check(&place, &["-j2", "--recover", &recover]);
        checked.expect(FOUND, &[]);
        assert_eq!(recovery(&checked).outcome.to_string(), "exits with status 1", "{recover}");
    }
    pool.assert();
    place.assert_clean(&["pool"]);
}

#[test]
fn an_oracle() {
    let place = TestPlace::new();
    let pool = make_pool(&place, 5);
    let oracle = format!("{} strict", pair(Linked::Dynamic).display());
    let (nothing, repairs) = (line(&place, "volatile", ""), line(&place, "lenient", ""));
    let checked = check(&place, &["-j2", "--recover", &nothing, "--oracle", &oracle]);
    checked.expect(FOUND, &[]);
    assert_eq!(recovery(&checked).outcome.to_string(), "is contradicted by the oracle (status 1)");
    place.replays(checked.errors().next().unwrap()).unwrap();
    // What the recovery repaired is what the oracle sees.
    check(&place, &["-j2", "--recover", &repairs, "--oracle", &oracle]).expect(CLEAN, &[]);
    let never = format!("{} never", pair(Linked::Dynamic).display());
    let checked = check(&place, &["-j2", "--recover", &repairs, "--oracle", &never]);
    checked.expect(FAILS_BY_ITSELF, &["the oracle rejects", "nothing was injected"]);
    pool.assert();
    place.assert_clean(&["pool"]);
}

#[test]
fn a_recovery_that_never_works() {
    let place = TestPlace::new();
    let pool = make_pool(&place, 5);
    let checked = check(&place, &["-j2", "--recover", &line(&place, "never", "")]);
    checked.expect(FAILS_BY_ITSELF, &["recovery fails", "nothing was injected", "status 1", "--recover"]);
    assert!(checked.findings.is_empty());
    let checked = check(&place, &["-j2", "--recover", "/no/such/program"]);
    checked.expect(FAILS_BY_ITSELF, &["recovery fails", "/no/such/program"]);
    pool.assert();
    place.assert_clean(&["pool"]);
}

#[test]
fn files_made_beforehand() {
    let place = TestPlace::new();
    let setup = line(&place, "run", "7");
    let checked = check(&place, &["-j2", "--recover", &line(&place, "strict", ""), "--setup", &setup]);
    checked.expect(FOUND, &[]);
    place.assert_clean(&[]);
    // The workload went on with what was set up, and the image shows it.
    let image = place.work().join("image");
    let words = ["replay", "1", "--keep-image", image.to_str().unwrap()];
    let output = place.pmvet(&words).stdout(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(FOUND), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(numbers(&image), [8, 7]);
    place.replays(checked.errors().next().unwrap()).unwrap();
    place.assert_clean(&["image"]);

    check(&place, &["--setup", "echo in vain; exit 9"]).expect(USAGE, &["--setup", "9", "in vain"]);
}

#[test]
fn the_files_themselves() {
    let place = TestPlace::new();
    make_pool(&place, 5);
    let checked = check(&place, &["-j2", "--in-place", "--recover", &line(&place, "pwrite", "")]);
    checked.expect(CLEAN, &[]);
    // The workload has worked on the file, the recoveries have not.
    assert_eq!(numbers(&place.pool()), [7, 7]);
    assert_eq!(place.pool().metadata().unwrap().len(), 1 << 16);
    let checked = check(&place, &["-j2", "--in-place", "--recover", &line(&place, "unlink", "")]);
    checked.expect(FOUND, &[]);
    assert_eq!(numbers(&place.pool()), [9, 9]);
    place.replays(checked.errors().next().unwrap()).unwrap();
    assert_eq!(numbers(&place.pool()), [9, 9]);
    place.assert_clean(&["pool"]);
}
