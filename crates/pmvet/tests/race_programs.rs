//! `pmvet race` on real threads: many, short, detached, with locks within locks, locks handed over and spin locks in
//! volatile memory. Each is silent as long as values are persistent before their lock is given back, and not otherwise.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

use pmvet_findings::{Evidence, Finding};

use pmvet_fixtures::{CLEAN, CheckedRun, TestPlace, both_cores, finish, on_awkward_programs, program, turn};

fn race(program: &Path, arguments: &[&str]) -> CheckedRun {
    let place = TestPlace::new();
    let mut command = place.pmvet(&["race", "--quiet"]);
    command.args(place.pm());
    command.arg("--").arg(program).arg(place.pool()).args(arguments);
    let output = finish(command, None).expect("pmvet hangs");
    CheckedRun::new(&place, &output)
}

#[test]
fn locks_are_followed_however_threads_come_and_go() {
    let _turn = turn();
    let crowd = program("crowd");
    both_cores(&["crowd", "short", "nested", "spin", "handover", "detached", "hot"], |mode| {
        let clean = race(&crowd, &[mode]);
        if clean.code != Some(CLEAN) || !clean.findings.is_empty() {
            return Err(format!("--- {mode}: {}", clean.text()));
        }
        let late = race(&crowd, &[mode, "late"]);
        if late.code != Some(CLEAN) || !late.warnings().any(|finding| finding.rule.0 == "persistency-race") {
            return Err(format!("--- {mode}, late: {}", late.text()));
        }
        // Locks are called what the program calls them.
        let lock = match *mode {
            "nested" => "`inner`",
            "spin" => "`flag`",
            _ => "`outer`",
        };
        let held = |finding: &Finding| match &finding.evidence {
            Evidence::Race { store_locks, load_locks, .. } => [store_locks.clone(), load_locks.clone()].concat(),
            _ => Vec::new(),
        };
        let locks: Vec<String> = late.warnings().flat_map(held).collect();
        let known = |name: &String| ["`outer`", "`inner`", "`flag`"].contains(&name.as_str());
        if !locks.iter().any(|name| name == lock) || !locks.iter().all(known) {
            return Err(format!("--- {mode}: {locks:?}"));
        }
        Ok(())
    });
}

/// What an atomic operation is shows in how the program uses it: see `atomics.c`.
#[test]
fn atomic_operations_are_what_they_are_used_for() {
    let _turn = turn();
    let atomics = program("atomics");
    let correct = ["replaces", "claims", "bits", "neighbours", "versions"].map(|mode| (mode, false));
    let modes = [&correct[..], &[("stores", true), ("claims-late", true)]].concat();
    both_cores(&modes, |&(mode, racy)| {
        let found = race(&atomics, &[mode]);
        let only_races = found.findings.iter().all(|finding| finding.rule.0 == "persistency-race");
        // Whether a lock in PM is freed is another question.
        let held = mode == "versions" && found.findings.iter().all(|finding| finding.rule.0 == "lock-in-pm");
        let as_expected =
            if racy { only_races && !found.findings.is_empty() } else { found.findings.is_empty() || held };
        if found.code == Some(CLEAN) && as_expected { Ok(()) } else { Err(format!("--- {mode}: {}", found.text())) }
    });
}

#[test]
fn each_caller_of_a_setter_has_its_own_races() {
    let _turn = turn();
    let found = race(&program("atomics"), &["setter"]);
    let writer = |finding: &Finding| finding.places.first().and_then(|place| place.stack.get(1)?.function.clone());
    let mut writers: Vec<Option<String>> = found.warnings().map(writer).collect();
    writers.sort();
    assert_eq!(writers, [Some("put_name".into()), Some("put_size".into())], "{}", found.text());
}

/// Stopping threads may upset a program: it may lock itself up, or be interrupted by signals while it is stopped. Whatever happens, pmvet
/// ends, and the last lines say how far it came.
#[test]
fn confirming_ends_whatever_the_program_does() {
    let _turn = turn();
    // The programs are as they should be: nothing that they leave in PM is wrong.
    on_awkward_programs(&["race", "--confirm", "--quiet", "--budget", "4s"], |found| {
        found.code == Some(CLEAN) && [&found.stdout, &found.stderr].iter().any(|text| text.contains("forced runs"))
    });
}

#[test]
#[ignore = "DynamoRIO: of a program that gets a signal every 500 us while its threads start, one run in twenty dies of SIGSEGV"]
fn signals_do_no_harm_while_threads_start() {
    let _turn = turn();
    both_cores(&[(); 100], |()| {
        let place = TestPlace::new();
        let mut command = place.pmvet(&["race", "--quiet"]);
        command.args(place.pm());
        command.arg("--").arg(program("awkward")).arg(place.pool()).arg("signals");
        let found = CheckedRun::new(&place, &finish(command, None).expect("pmvet hangs"));
        if found.code == Some(CLEAN) { Ok(()) } else { Err(found.text()) }
    });
}

#[test]
fn what_is_no_lock_can_be_said() {
    let _turn = turn();
    let place = TestPlace::new();
    let crowd = program("crowd");
    std::fs::write(place.work().join("deny.toml"), "[race]\ndeny-lock = [\"with_spin_lock\", \"with_spin_lok\"]\n")
        .unwrap();
    let config = place.work().join("deny.toml");
    let mut command = place.pmvet(&["race", "--config", config.to_str().unwrap()]);
    command.args(place.pm());
    command.arg("--").arg(&crowd).arg(place.pool()).arg("spin");
    let denied = CheckedRun::new(&place, &finish(command, None).expect("pmvet hangs"));
    assert!(denied.warnings().next().is_some(), "{}", denied.text());
    assert!(denied.stderr.contains("deny-lock `with_spin_lok` changed nothing"), "{}", denied.stderr);
    assert!(!denied.stderr.contains("`with_spin_lock` changed nothing"), "{}", denied.stderr);
}
