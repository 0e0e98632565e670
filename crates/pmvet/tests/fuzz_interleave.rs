//! `pmvet fuzz --interleave`: a race that only another distribution of operations over threads can show is found, proven and replayed.

#![allow(clippy::unwrap_used, reason = "a test")]

mod check_support;

use std::path::{Path, PathBuf};
use std::process::Command;

use check_support::{CLEAN, Checked, FOUND, Place, finish, turn};

/// All by one thread, which does no harm.
const SEED: &str = "0 1\n0 2\n0 1\n0 2\n";
const OPERATIONS: &str = "operations = ['{thread} {errand}']\n[parameters]\n\
                          thread = { min = 0, max = 1 }\nerrand = { min = 1, max = 2 }\n";

/// Builds the program of these tests.
fn build(place: &Place) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/errands.c");
    let program = place.work().join("errands");
    let output = Command::new("gcc").args(["-O1", "-g", "-Wall", "-pthread", "-o"]).args([&program, &source]).output();
    let output = output.expect("gcc must start");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Bounded by turns, not by time: a busy machine gives the same result.
fn explore(place: &Place, options: &[&str], arguments: &[&str]) -> Checked {
    let program = build(place);
    let (seed, operations) = (place.work().join("seed"), place.work().join("ops.toml"));
    std::fs::write(&seed, SEED).unwrap();
    std::fs::write(&operations, OPERATIONS).unwrap();
    let mut command = place.pmvet(&["fuzz", "--interleave", "--budget", "5m"]);
    command.args(options).arg("--seeds").arg(seed).arg("--ops").arg(operations);
    if !place.pools().starts_with("/dev/shm") {
        command.arg("--pm").arg(place.pools());
    }
    command.arg("--").arg(program).arg(place.pool()).args(arguments);
    Checked::new(place, &finish(command, None).expect("pmvet hangs"))
}

#[test]
fn operations_are_given_to_other_threads_until_a_race_is_proven() {
    let _turn = turn();
    let place = Place::new();
    let found = explore(&place, &["--executions", "40", "--until-finding"], &[]);
    assert_eq!(found.code, Some(FOUND), "{}", found.text());
    let errors: Vec<_> = found.errors().collect();
    assert!(!errors.is_empty() && errors.iter().all(|e| e.rule.0 == "persistency-race"), "{}", found.text());
    errors.iter().try_for_each(|finding| place.replays_twice(finding)).unwrap();
    place.assert_clean(&["errands", "ops.toml", "seed"]);
}

#[test]
fn nothing_is_proven_of_a_program_with_a_lock() {
    let _turn = turn();
    let place = Place::new();
    let found = explore(&place, &["--executions", "4"], &["locked"]);
    assert_eq!((found.code, found.errors().count()), (Some(CLEAN), 0), "{}", found.text());
    assert!(found.stdout.contains("4 turns") || found.stderr.contains("4 turns"), "{}", found.text());
}

/// The paper's baseline finds what it finds; it ends, and says what it has done.
#[test]
fn delays_can_take_the_place_of_schedules() {
    let _turn = turn();
    let place = Place::new();
    let found = explore(&place, &["--executions", "1", "--delay-injection"], &["locked"]);
    assert_eq!(found.code, Some(CLEAN), "{}", found.text());
    let runs = "1 turns, 8 forced runs";
    assert!(found.stdout.contains(runs) || found.stderr.contains(runs), "{}", found.text());
}

#[test]
fn a_program_that_cannot_be_run_or_has_no_pm_is_said() {
    let place = Place::new();
    let run = |program: &str| {
        let mut command =
            place.pmvet(&["fuzz", "--interleave", "--quiet", "--budget", "1m", "--executions", "2", "--"]);
        command.arg(program).stdin(std::process::Stdio::null());
        finish(command, None).expect("pmvet hangs").status.code()
    };
    assert_eq!(run("/bin/true"), Some(4));
    assert_eq!(run("/bin/false"), Some(3));
    assert_eq!(run("./no-such-program"), Some(2));
}
