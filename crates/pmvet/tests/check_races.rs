//! `pmvet race --confirm` on the zoo: races of buggy variants are proven and replay, clean variants have none.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Command;

use pmvet_findings::{Finding, Role, Severity, jsonl};
use pmvet_fixtures::zoo::{Manifest, manifests};
use pmvet_fixtures::{CLEAN, FOUND, TestPlace, USAGE, both_cores, finish, make, program, repository, turn};

/// Program, variant, arguments.
type Case = (String, String, Vec<String>);

/// How long confirming may take is bounded by the number of runs, not by time: a busy machine gives the same result.
const ROUNDS: &[&str] = &["--budget", "5m", "--rounds", "6"];
/// For those that are hard to find.
const MORE_ROUNDS: &[&str] = &["--budget", "90s"];

/// Runs it; returns the exit code, the errors among the findings, and what was printed.
fn confirm(
    place: &TestPlace,
    (program, variant, arguments): &Case,
    options: &[&str],
) -> (Option<i32>, Vec<Finding>, String) {
    let config = repository().join("zoo").join(program).join("pmvet.toml");
    let config =
        if config.exists() && !options.contains(&"--config") { vec!["--config".into(), config] } else { vec![] };
    let program = make("zoo", "zoo").join(program).join(variant);
    confirm_program(place, &program, arguments, options, &config)
}

fn confirm_program(
    place: &TestPlace,
    program: &Path,
    arguments: &[String],
    options: &[&str],
    config: &[PathBuf],
) -> (Option<i32>, Vec<Finding>, String) {
    let mut command = place.pmvet(&["race", "--confirm", "--quiet"]);
    command.args(options).args(config);
    command.args(place.pm());
    command.arg("--").arg(program).arg(place.pool()).args(arguments);
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let lines = BufReader::new(File::open(place.run().join("findings.jsonl")).unwrap());
    let findings: Vec<Finding> = jsonl::read(lines).map(Result::unwrap).collect();
    let errors = findings.into_iter().filter(|finding| finding.severity == Severity::Error).collect();
    (output.status.code(), errors, printed)
}

fn proven(case: &Case, options: &[&str]) -> Result<(), String> {
    let place = TestPlace::new();
    let (code, errors, printed) = confirm(&place, case, options);
    if code != Some(FOUND) || errors.is_empty() {
        return Err(format!("{case:?}: {code:?}, nothing proven\n{printed}"));
    }
    errors.iter().try_for_each(|finding| place.replays(finding)).map_err(|e| format!("{case:?}: {e}"))?;
    place.assert_clean(&[]);
    Ok(())
}

fn harmless(case: &Case, options: &[&str]) -> Result<(), String> {
    let place = TestPlace::new();
    match confirm(&place, case, options) {
        (Some(CLEAN), errors, _) if errors.is_empty() => Ok(()),
        (code, errors, printed) => Err(format!("{case:?}: {code:?}, {} errors\n{printed}", errors.len())),
    }
}

fn case(program: &str, variant: &str, arguments: &str) -> Case {
    (program.into(), variant.into(), arguments.split_whitespace().map(Into::into).collect())
}

#[test]
fn a_race_is_proven_and_replays() {
    let _turn = turn();
    let place = TestPlace::new();
    let (code, errors, printed) = confirm(&place, &case("bptree", "bug-1", "-n 600 -t 4"), ROUNDS);
    assert_eq!(code, Some(FOUND), "{printed}");
    errors.iter().try_for_each(|finding| place.replays(finding)).unwrap();
    place.assert_clean(&[]);
}

/// What a reader has stored depends on what it had read too early, and the report says where.
#[test]
fn a_durable_side_effect_is_shown() {
    let _turn = turn();
    let place = TestPlace::new();
    let (code, errors, printed) = confirm_program(&place, &program("copies"), &[], ROUNDS, &[]);
    assert_eq!((code, errors.len()), (Some(FOUND), 1), "{printed}");
    place.replays(&errors[0]).unwrap();
    let effect = errors[0].places.iter().find(|place| place.role == Role::SideEffect).unwrap();
    assert_eq!(effect.pm.as_ref().map(|pm| (pm.offset, pm.len)), Some((64, 8)), "{printed}");
    assert_eq!(effect.stack[0].function.as_deref(), Some("copy_all"), "{printed}");
    assert!(errors[0].happened.contains("A durable side effect: `copy_all` stores 8 bytes at 0x40"), "{printed}");
}

/// No thread reads what another has stored to PM, yet one acts on it before it is persistent.
#[test]
fn what_is_handed_over_in_ordinary_memory_is_proven_too() {
    let _turn = turn();
    let program = program("handoff");
    let source = include_str!("programs/handoff.c").lines();
    let store = (1..).zip(source).find(|(_, line)| line.contains("pm->number = number;")).map(|(line, _)| line);
    for (when, expected) in [("early", FOUND), ("late", CLEAN)] {
        let place = TestPlace::new();
        let recovery = format!("{} {}", program.display(), place.pool().display());
        let options = [ROUNDS, &["--recover", &recovery]].concat();
        let (code, errors, printed) = confirm_program(&place, &program, &[when.into()], &options, &[]);
        assert_eq!(code, Some(expected), "{when}: {printed}");
        for error in &errors {
            assert_eq!(error.places[0].stack[0].line, store, "{printed}");
            place.replays(error).unwrap();
        }
    }
}

/// Lock words of the buckets are freed by recovery; that of the resize is not in one of the variants.
#[test]
fn a_declared_variable_must_be_as_at_the_start_after_recovery() {
    let _turn = turn();
    let place = TestPlace::new();
    let config = place.pools().join("variables.toml");
    let variable = |name: &str| format!("[[sync]]\nvariable = \"{name}\"\n");
    std::fs::write(&config, variable("bucket.lock") + &variable("pm->resize_lock")).unwrap();
    let options = ["--budget", "5m", "--rounds", "0", "--config", config.to_str().unwrap()];
    let (code, errors, printed) = confirm(&place, &case("cl_hash", "bug-7", "-n 200 -t 4"), &options);
    assert_eq!(code, Some(FOUND), "{printed}");
    assert!(printed.contains("`pm->resize_lock` keeps its value over a crash"), "{printed}");
    assert!(!printed.contains("`bucket.lock` keeps"), "{printed}");
    errors.iter().try_for_each(|finding| place.replays(finding)).unwrap();
    let (code, errors, printed) = confirm(&place, &case("cl_hash", "clean", "-n 200 -t 4"), &options);
    assert_eq!((code, errors.len()), (Some(CLEAN), 0), "{printed}");
}

/// Also by the place of its struct: the pool is at the start of the file. Names that mean nothing are refused.
#[test]
fn variables_are_known_by_what_the_program_calls_them() {
    let _turn = turn();
    let place = TestPlace::new();
    let config = place.pools().join("variables.toml");
    let options = ["--budget", "5m", "--rounds", "0", "--config", config.to_str().unwrap()];
    std::fs::write(&config, "[[sync]]\nvariable = \"struct pool.resize_lock\"\noffset = 0\n").unwrap();
    let (code, _, printed) = confirm(&place, &case("cl_hash", "bug-7", "-n 200 -t 4"), &options);
    assert_eq!(code, Some(FOUND), "{printed}");
    assert!(printed.contains("`struct pool.resize_lock` at 0x48 keeps its value over a crash"), "{printed}");
    for (text, said) in [
        ("variable = \"buckets.lock\"", "there is no struct and no global variable `buckets`; is it `bucket`?"),
        ("variable = \"bucket.lokc\"", "`bucket` has no member `lokc`; is it `lock`?"),
        ("variable = \"resize_lok\"", "there is no member and no global variable `resize_lok`; is it `resize_lock`?"),
        ("variable = \"bucket.lock\"\nsize = 4", "size is 4, but the debug information says 8"),
        ("variable = \"pm->ledger\"", "only words of 1, 2, 4 or 8 can be tried"),
        ("variable = \"pm\"", "name the member"),
    ] {
        std::fs::write(&config, format!("[[sync]]\n{text}\n")).unwrap();
        let zoo = make("zoo", "zoo");
        let mut command = place.pmvet(&["race", "--confirm", "--quiet"]);
        command.args(options).arg("--").arg(zoo.join("cl_hash/clean")).arg(place.pool()).args(["-n", "20", "-t", "2"]);
        let output = finish(command, None).expect("pmvet hangs");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(USAGE) && printed.contains(said), "{text}: {printed}");
    }
}

/// The next enqueuer goes by the tail, which is not in PM, and never reads the link that is not persistent.
#[test]
fn a_race_through_ordinary_memory_is_proven() {
    let _turn = turn();
    proven(&case("lf_queue", "bug-2", "-n 600 -t 4"), &["--budget", "5m", "--rounds", "24"]).unwrap();
}

/// Recovery fails whether the store is lost or not: it takes it back.
#[test]
fn who_acts_on_what_a_transaction_may_take_back_is_caught() {
    let _turn = turn();
    let source = repository().join("crates/pmvet/tests/races/dirty.c");
    for (flag, expected) in [("-DBUG", FOUND), ("-DCLEAN", CLEAN)] {
        let place = TestPlace::new();
        let program = place.pools().join("dirty");
        let gcc = Command::new("gcc").args(["-O1", "-g", "-pthread", flag, "-o"]).arg(&program).arg(&source).status();
        assert!(gcc.unwrap().success());
        let (code, errors, printed) = confirm_program(&place, &program, &["work".into()], ROUNDS, &[]);
        assert_eq!(code, Some(expected), "{printed}");
        let taken_back = errors.iter().any(|finding| finding.happened.contains("even if nothing is lost"));
        assert_eq!(taken_back, expected == FOUND, "{printed}");
        errors.iter().try_for_each(|finding| place.replays(finding)).unwrap();
    }
}

/// Recovery fails wherever the lock is held in a crash image, in many races too: that is one bug.
#[test]
fn a_lock_left_held_is_proven() {
    let _turn = turn();
    let place = TestPlace::new();
    let (code, errors, printed) = confirm(&place, &case("cl_hash", "bug-7", "-n 200 -t 4"), ROUNDS);
    let rules: Vec<&str> = errors.iter().map(|error| error.rule.0.as_str()).collect();
    assert_eq!((code, &rules[..]), (Some(FOUND), &["lock-in-pm"][..]), "{printed}");
    place.replays(&errors[0]).unwrap();
    place.assert_clean(&[]);
}

#[test]
fn a_clean_program_has_no_proven_race() {
    let _turn = turn();
    harmless(&case("ext_hash", "clean", "-n 200 -t 4"), ROUNDS).unwrap();
}

#[test]
fn a_race_that_recovery_copes_with_is_benign() {
    let _turn = turn();
    let place = TestPlace::new();
    let (code, errors, printed) = confirm(&place, &case("atomic_hash", "bug-19", "-n 400 -t 4"), ROUNDS);
    assert_eq!((code, errors.len()), (Some(CLEAN), 0), "{printed}");
    assert!(printed.contains("Benign (recovered)"), "{printed}");
}

/// Its threads spin and yield, which on a busy machine looks like waiting for a processor; the budget counts all the same.
#[test]
fn a_program_that_hangs_is_given_up_when_the_budget_ends() {
    let _turn = turn();
    let place = TestPlace::new();
    let zoo = make("zoo", "zoo");
    let mut command = place.pmvet(&["race", "--confirm", "--quiet", "--budget", "2s"]);
    command.args(place.pm());
    command.arg("--").arg(zoo.join("cl_hash/bug-15")).arg(place.pool()).args(["-n", "200", "-t", "4"]);
    let output = finish(command, None).expect("pmvet hangs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("did not end within the budget of 2s"), "{said}");
    place.assert_clean(&[]);
}

#[test]
fn confirming_needs_private_files() {
    let place = TestPlace::new();
    let output = place.pmvet(&["race", "--confirm", "--in-place", "--", "/bin/true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(USAGE));
}

#[test]
#[ignore = "minutes: every catalogued race"]
fn every_race_of_the_zoo_is_proven() {
    let mut cases = Vec::new();
    for manifest in manifests() {
        for bug in manifest.bug.iter().filter(|bug| bug.is_race()) {
            let arguments = bug.workload.clone().unwrap_or_default();
            cases.push((manifest.program.name.clone(), format!("bug-{}", bug.id), arguments));
        }
    }
    assert!(cases.len() > 30, "{} races", cases.len());
    both_cores(&cases, |case| proven(case, MORE_ROUNDS));
}

#[test]
#[ignore = "minutes: every clean program with threads"]
fn no_race_of_a_clean_program_is_proven() {
    let clean = |manifest: &Manifest| case(&manifest.program.name, "clean", "-n 400 -t 4");
    let mut cases: Vec<Case> = manifests().iter().map(clean).collect();
    for manifest in manifests() {
        for bug in manifest.bug.iter().filter(|bug| bug.is_benign()) {
            let arguments = bug.workload.clone().unwrap_or_default();
            cases.push((manifest.program.name.clone(), format!("bug-{}", bug.id), arguments));
        }
    }
    both_cores(&cases, |case| harmless(case, MORE_ROUNDS));
}
