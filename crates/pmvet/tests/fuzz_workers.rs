//! Engines within campaigns, `fuzz --then` and `fuzz --interleave`: they get the settings of the user's command, and whatever they could
//! not do is in the campaign's report.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use pmvet_findings::{Evidence, Finding};

use pmvet_fixtures::{CheckedRun, FOUND, INCOMPLETE, TestPlace, compile, finish, program, turn, wait_until};

fn shelf() -> PathBuf {
    compile("tests/fuzz/shelf.c", "shelf", &[])
}

fn moody() -> PathBuf {
    compile("tests/fuzz/moody.c", "moody", &[])
}

/// A campaign that starts from one input.
fn fuzz(place: &TestPlace, seed: &str, options: &[&str], target: &[&OsStr]) -> CheckedRun {
    fs::write(place.work().join("seed"), seed).unwrap();
    let mut command = place.pmvet(&["fuzz", "--quiet", "--seeds", "seed", "--corpus", "corpus", "--timeout", "30s"]);
    command.args(options).arg("--").args(target).stdin(Stdio::null());
    CheckedRun::new(place, &finish(command, None).expect("pmvet hangs"))
}

/// What the report of the newest run says that it did not cover.
fn not_covered(place: &TestPlace) -> String {
    let report: serde_json::Value =
        serde_json::from_slice(&fs::read(place.run().join("report.json")).unwrap()).unwrap();
    report["coverage"]["not_covered"].as_array().unwrap().iter().map(|line| format!("{line}\n")).collect()
}

/// The engine gets the configuration of the command: nothing else says that this file is PM.
#[test]
fn what_a_check_finds_on_a_test_case_is_reported_and_replays() {
    let _turn = turn();
    let place = TestPlace::new();
    let pool = place.work().canonicalize().unwrap().join("my.pool");
    fs::write(place.work().join("my.toml"), format!("[target]\npm = [{:?}]\n", pool.display().to_string())).unwrap();
    let options = ["--then", "check", "--config", "my.toml", "--budget", "20s"];
    let found = fuzz(&place, "add 1\ndel 1\n", &options, &[shelf().as_os_str(), pool.as_os_str(), "@@".as_ref()]);
    assert_eq!(found.code, Some(FOUND), "{}", found.text());
    // Test cases that fail have no moment in a recording.
    let is_of_check = |finding: &&Finding| matches!(&finding.evidence, Evidence::Crash { image, .. } if image.seq > 0);
    let of_check = found.errors().find(is_of_check);
    let of_check = of_check.unwrap_or_else(|| panic!("nothing of the check: {}{}", not_covered(&place), found.text()));
    place.replays(of_check).unwrap();
    assert!(!place.work().join("corpus/.input").exists(), "the input is a private file");
    assert!(!pool.exists(), "the user's files are left alone");
}

/// What happens within a check is told as part of it.
#[test]
fn a_check_that_cannot_be_made_and_a_call_that_was_refused_are_said() {
    let _turn = turn();
    let place = TestPlace::new();
    let options = ["--then", "check", "--budget", "20s"];
    let found = fuzz(&place, "add\nask\nfail\n", &options, &[moody().as_os_str(), place.pool().as_os_str()]);
    let shown = not_covered(&place) + &found.text();
    assert!(shown.contains("--then check: the target itself fails: exit status 7"), "{shown}");
    assert!(shown.contains("--then check: the program called `umount2`"), "{shown}");
}

/// The worker of a campaign: the only child of the only child that has none of the target's programs in it.
fn worker_of(campaign: u32) -> Option<u32> {
    let children = |pid: u32| -> Vec<u32> {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    };
    children(campaign).into_iter().find_map(|keeper| children(keeper).first().copied())
}

#[test]
fn a_campaign_outlives_its_worker_and_says_so() {
    let _turn = turn();
    let place = TestPlace::new();
    fs::write(place.work().join("seed"), "0 1\n0 2\n").unwrap();
    let mut command = place.pmvet(&["fuzz", "--interleave", "--executions", "8", "--budget", "5m", "--seeds", "seed"]);
    command.args(place.pm()).arg("--").arg(program("errands")).arg(place.pool()).arg("locked");
    let errors = place.work().join("errors");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(fs::File::create(&errors).unwrap());
    let campaign = command.spawn().unwrap();
    // Not in the first turn, which ends a campaign if it fails.
    let told = || fs::read_to_string(&errors).unwrap().contains("pmvet: turn 1:");
    wait_until("the first turn is over", told);
    wait_until("there is a worker", || worker_of(campaign.id()).is_some());
    let worker = worker_of(campaign.id()).unwrap();
    let killed = Command::new("kill").args(["-KILL", &worker.to_string()]).status().unwrap();
    assert!(killed.success());
    let output = campaign.wait_with_output().unwrap();
    let shown = not_covered(&place) + &fs::read_to_string(&errors).unwrap();
    assert_eq!(output.status.code(), Some(INCOMPLETE), "{shown}");
    assert!(shown.contains("a turn: the process that made it has died: it was killed by SIGKILL"), "{shown}");
    assert!(shown.contains("pmvet: turn 8:"), "another worker goes on: {shown}");
}

/// Nothing can be set up: that is the user's mistake, and is told once.
#[test]
fn a_set_up_that_fails_ends_the_campaign() {
    let place = TestPlace::new();
    let mut command = place.pmvet(&["fuzz", "--interleave", "--executions", "3", "--setup", "echo no luck; exit 9"]);
    command.args(place.pm()).arg("--").arg(program("errands")).arg(place.pool()).arg("locked");
    let found = CheckedRun::new(&place, &finish(command, None).expect("pmvet hangs"));
    assert_eq!(found.code, Some(pmvet_fixtures::USAGE), "{}", found.text());
    assert!(found.stderr.contains("--setup: the command ended with exit status 9\nno luck"), "{}", found.text());
}
