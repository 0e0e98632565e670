//! `pmvet race` on real threads: many, short, detached, with locks within locks, locks handed over and spin locks in
//! volatile memory. Each is silent as long as values are persistent before their lock is given back, and not otherwise.

#![allow(clippy::unwrap_used, reason = "a test")]

mod check_support;

use std::path::Path;

use pmvet_findings::{Evidence, Finding};

use check_support::{CLEAN, Checked, Place, both_cores, finish, on_awkward_programs, program, turn};

fn race(program: &Path, arguments: &[&str]) -> Checked {
    let place = Place::new();
    let mut command = place.pmvet(&["race", "--quiet"]);
    command.args(place.pm());
    command.arg("--").arg(program).arg(place.pool()).args(arguments);
    let output = finish(command, None).expect("pmvet hangs");
    Checked::new(&place, &output)
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
fn what_is_no_lock_can_be_said() {
    let _turn = turn();
    let place = Place::new();
    let crowd = program("crowd");
    std::fs::write(place.work().join("deny.toml"), "[race]\ndeny-lock = [\"with_spin_lock\", \"with_spin_lok\"]\n")
        .unwrap();
    let config = place.work().join("deny.toml");
    let mut command = place.pmvet(&["race", "--config", config.to_str().unwrap()]);
    command.args(place.pm());
    command.arg("--").arg(&crowd).arg(place.pool()).arg("spin");
    let denied = Checked::new(&place, &finish(command, None).expect("pmvet hangs"));
    assert!(denied.warnings().next().is_some(), "{}", denied.text());
    assert!(denied.stderr.contains("deny-lock `with_spin_lok` changed nothing"), "{}", denied.stderr);
    assert!(!denied.stderr.contains("`with_spin_lock` changed nothing"), "{}", denied.stderr);
}
