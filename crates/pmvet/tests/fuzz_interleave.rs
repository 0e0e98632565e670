//! `pmvet fuzz --interleave`: a race that only another distribution of operations over threads can show is found, proven and replayed.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use pmvet_fixtures::{CLEAN, CheckedRun, FOUND, TestPlace, finish, on_awkward_programs, program, turn, wait_until};

/// All by one thread, which does no harm.
const SEED: &str = "0 1\n0 2\n0 1\n0 2\n";
const OPERATIONS: &str = "operations = ['{thread} {errand}']\n[parameters]\n\
                          thread = { min = 0, max = 1 }\nerrand = { min = 1, max = 2 }\n";

/// Bounded by turns, not by time: a busy machine gives the same result.
fn explore(place: &TestPlace, options: &[&str], arguments: &[&str]) -> CheckedRun {
    CheckedRun::new(place, &finish(campaign(place, options, arguments), None).expect("pmvet hangs"))
}

fn campaign(place: &TestPlace, options: &[&str], arguments: &[&str]) -> Command {
    let program = program("errands");
    let (seed, operations) = (place.work().join("seed"), place.work().join("ops.toml"));
    std::fs::write(&seed, SEED).unwrap();
    std::fs::write(&operations, OPERATIONS).unwrap();
    let mut command = place.pmvet(&["fuzz", "--interleave", "--budget", "5m"]);
    command.args(options).arg("--seeds").arg(seed).arg("--ops").arg(operations);
    command.args(place.pm());
    command.arg("--").arg(program).arg(place.pool()).args(arguments);
    command
}

#[test]
fn operations_are_given_to_other_threads_until_a_race_is_proven() {
    let _turn = turn();
    let place = TestPlace::new();
    let found = explore(&place, &["--executions", "40", "--until-finding"], &[]);
    assert_eq!(found.code, Some(FOUND), "{}", found.text());
    let errors: Vec<_> = found.errors().collect();
    assert!(!errors.is_empty() && errors.iter().all(|e| e.rule.0 == "persistency-race"), "{}", found.text());
    errors.iter().try_for_each(|finding| place.replays(finding)).unwrap();
    place.assert_clean(&["ops.toml", "seed"]);
}

#[test]
fn a_campaign_that_is_killed_loses_nothing_that_it_had_kept() {
    let _turn = turn();
    let place = TestPlace::new();
    let mut command = campaign(&place, &["--executions", "40"], &["locked"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let corpus = place.work().join(".pmvet/fuzz/errands/interleave");
    let lines = || std::fs::read_to_string(corpus.join("covered.jsonl")).unwrap_or_default().lines().count();
    wait_until("two turns have covered something", || lines() >= 2 || child.try_wait().unwrap().is_some());
    child.kill().unwrap();
    child.wait().unwrap();
    place.assert_clean(&["ops.toml", "seed"]);
    let kept = || -> BTreeSet<_> {
        let files = std::fs::read_dir(corpus.join("queue")).unwrap().map(|file| file.unwrap().path());
        files.map(|path| (path.file_name().unwrap().to_owned(), std::fs::read(&path).unwrap())).collect()
    };
    let before = kept();
    assert!(!before.is_empty() && before.iter().any(|(_, input)| input == SEED.as_bytes()));
    let found = explore(&place, &["--executions", "1"], &["locked"]);
    assert_eq!(found.code, Some(CLEAN), "{}", found.text());
    assert!(found.stderr.contains("pmvet: goes on with "), "{}", found.text());
    assert!(kept().is_superset(&before));
    // Branches are counted beside alias pairs.
    let branches = |line: &str| line.split("\"branches\":[").nth(1).is_some_and(|rest| !rest.starts_with(']'));
    assert!(std::fs::read_to_string(corpus.join("covered.jsonl")).unwrap().lines().any(branches));
}

#[test]
fn nothing_is_proven_of_a_program_with_a_lock() {
    let _turn = turn();
    let place = TestPlace::new();
    let found = explore(&place, &["--executions", "4"], &["locked"]);
    assert_eq!((found.code, found.errors().count()), (Some(CLEAN), 0), "{}", found.text());
    assert!(found.stdout.contains("4 turns") || found.stderr.contains("4 turns"), "{}", found.text());
}

/// Programs that lock themselves up if they are stopped, that retry for ever, that are interrupted: the campaign ends in time, and says what it did.
#[test]
fn a_campaign_ends_whatever_the_program_does() {
    let _turn = turn();
    on_awkward_programs(&["fuzz", "--interleave", "--quiet", "--budget", "5s"], |found| {
        found.code == Some(CLEAN) && found.stdout.contains(" turns, ")
    });
}

/// The paper's baseline finds what it finds; it ends, and says what it has done.
#[test]
fn delays_can_take_the_place_of_schedules() {
    let _turn = turn();
    let place = TestPlace::new();
    let found = explore(&place, &["--executions", "1", "--delay-injection"], &["locked"]);
    assert_eq!(found.code, Some(CLEAN), "{}", found.text());
    let runs = "1 turns, 8 forced runs";
    assert!(found.stdout.contains(runs) || found.stderr.contains(runs), "{}", found.text());
}

#[test]
fn a_program_that_cannot_be_run_or_has_no_pm_is_said() {
    let place = TestPlace::new();
    let run = |program: &str| {
        let mut command =
            place.pmvet(&["fuzz", "--interleave", "--quiet", "--budget", "1m", "--executions", "2", "--"]);
        command.arg(program).stdin(Stdio::null());
        finish(command, None).expect("pmvet hangs").status.code()
    };
    assert_eq!(run("/bin/true"), Some(4));
    assert_eq!(run("/bin/false"), Some(3));
    assert_eq!(run("./no-such-program"), Some(2));
}
