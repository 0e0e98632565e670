//! What `pmvet check` blames: each way of failing has its finding, and orders of write-back are tried together.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;

use pmvet_fixtures::{CLEAN, CheckedRun, FOUND, TestPlace, compile, turn};

fn check(place: &TestPlace, workload: &str, options: &[&str]) -> CheckedRun {
    let program = compile("tests/programs/stages.c", "check-stages", &["-pthread"]);
    let (program, pool) = (program.to_str().unwrap(), place.pool());
    let command = [program, workload, pool.to_str().unwrap()];
    let recover = format!("{} recover", command.join(" "));
    let options: Vec<&str> = ["--recover", &recover].into_iter().chain(options.iter().copied()).collect();
    place.check(&options, &command).run()
}

/// The titles of all errors.
fn titles(checked: &CheckedRun) -> Vec<&str> {
    let mut titles: Vec<&str> = checked.errors().map(|error| error.title.as_str()).collect();
    titles.sort_unstable();
    titles
}

const HALF_MADE: &str = "recovery fails after a crash in `begin`";
const NO_ROOT: &str = "recovery fails after a crash before `make_root` is done";

#[test]
fn one_way_of_failing_does_not_hide_the_next() {
    let _turn = turn();
    let place = TestPlace::new();
    let checked = check(&place, "made", &[]);
    assert_eq!(titles(&checked), [NO_ROOT, HALF_MADE], "{}", checked.text());
    for error in checked.errors() {
        place.replays(error).unwrap();
    }
    // Not even if it is suppressed.
    let place = TestPlace::new();
    let config = place.work().join("known.toml");
    fs::write(&config, "[[suppress]]\nfunction = \"begin\"\nreason = \"known\"\n").unwrap();
    let checked = check(&place, "made", &["--config", config.to_str().unwrap()]);
    assert_eq!(checked.code, Some(FOUND), "{}", checked.text());
    assert_eq!(titles(&checked), [NO_ROOT], "{}", checked.text());
}

#[test]
fn several_lines_may_be_late_together() {
    let _turn = turn();
    let place = TestPlace::new();
    let checked = check(&place, "quad", &[]);
    assert_eq!(checked.errors().count(), 1, "{}", checked.text());
    place.replays(checked.errors().next().unwrap()).unwrap();
    // In program order nothing is wrong.
    let place = TestPlace::new();
    check(&place, "quad", &["--reorder-states", "0"]).expect(CLEAN, &[]);
}

#[test]
fn a_recovery_that_looks_at_no_pm_is_doubted() {
    let _turn = turn();
    let place = TestPlace::new();
    let program = compile("tests/programs/stages.c", "check-stages", &["-pthread"]);
    let pool = place.pool();
    let command = [program.to_str().unwrap(), "made", pool.to_str().unwrap()];
    // A slip of the pen: it finds no file, and is content.
    let recover = format!("test ! -e {}x", pool.display());
    let checked = place.check(&["--recover", &recover], &command).run();
    let words = checked.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("the recovery mapped none; is --recover right?"), "{}", checked.stdout);
}

#[test]
fn threads_that_nobody_looked_at_are_named() {
    let _turn = turn();
    let words = |checked: &CheckedRun| checked.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let place = TestPlace::new();
    let checked = check(&place, "both", &[]);
    assert!(
        words(&checked).contains("races between the 2 threads that store to PM (pmvet race)"),
        "{}",
        checked.stdout
    );
    let place = TestPlace::new();
    let checked = check(&place, "made", &[]);
    assert!(!words(&checked).contains("races between"), "{}", checked.stdout);
}
