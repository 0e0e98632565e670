//! `pmvet race --confirm --durable`: a race that makes recovery lose what was acknowledged, without a word, is proven.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;

use pmvet_findings::{Evidence, Finding, Outcome, Severity, Violation, jsonl};
use pmvet_fixtures::zoo::marked_in;
use pmvet_fixtures::{CLEAN, FOUND, TestPlace, USAGE, is_soak, make, repository, turn};

/// Runs of the clean variant, in `make soak` and otherwise: each is interleaved in its own way.
const CLEAN_RUNS: [usize; 2] = [20, 2];

/// What bounds a run is the number of forced runs, not time: a busy machine gives the same result.
const ROUNDS: &[&str] = &["--budget", "5m", "--rounds", "12"];

/// The operations of the program, which its manifest has.
fn operations() -> String {
    let manifest = fs::read_to_string(repository().join("zoo/durable/annex/manifest.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    manifest["program"]["ops"].as_str().unwrap().trim_start().to_owned()
}

fn command(place: &TestPlace, variant: &Path, durable: bool) -> (Option<i32>, Vec<Finding>, String) {
    let pool = place.pool();
    let operations_file = place.work().join("operations");
    fs::write(&operations_file, operations()).unwrap();
    let mut command = place.pmvet(&["race", "--confirm", "--quiet"]);
    command.args(ROUNDS).args(place.pm());
    let dump = format!("{} {} dump", variant.display(), pool.display());
    match durable {
        true => command.args(["--durable", "--dump", &dump]),
        false => command.args(["--recover", &dump]),
    };
    command.arg("--").arg(variant).arg(&pool);
    let output = command.stdin(File::open(&operations_file).unwrap()).output().unwrap();
    fs::remove_file(&operations_file).unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let findings = match File::open(place.run().join("findings.jsonl")) {
        Ok(file) => jsonl::read(BufReader::new(file)).map(Result::unwrap).collect(),
        Err(_) => Vec::new(),
    };
    let errors = findings.into_iter().filter(|finding: &Finding| finding.severity == Severity::Error).collect();
    (output.status.code(), errors, printed)
}

#[test]
fn a_key_that_a_race_loses_is_proven_and_replays() {
    let _turn = turn();
    let variant = make("zoo", "zoo").join("durable/annex/bug-1");
    let place = TestPlace::new();
    let (code, errors, printed) = command(&place, &variant, true);
    assert_eq!((code, errors.len()), (Some(FOUND), 1), "{printed}");
    let error = &errors[0];
    let Evidence::Crash { recovery, .. } = &error.evidence else { panic!("{printed}") };
    let Outcome::Content { violation, acknowledged, operation, .. } = &recovery.outcome else { panic!("{printed}") };
    assert_eq!((*violation, *acknowledged), (Violation::Lost, true), "{printed}");
    assert_eq!(error.rule.0, "durable-lost");
    assert!(operation.contains(" put "), "{operation}");
    let marked = marked_in(&repository().join("zoo/durable/annex/annex.c"), 1);
    let frame = error.places[0].frame().unwrap();
    let line = format!("{}:{}", frame.file.as_ref().unwrap().file_name().unwrap().display(), frame.line.unwrap());
    assert!(marked.contains(&line), "{line} is not among {marked:?}");
    assert!(printed.contains("acknowledged by PMVET_OP_END"), "{printed}");
    place.replays(error).unwrap();
}

#[test]
fn recovery_alone_does_not_see_it() {
    let _turn = turn();
    let variant = make("zoo", "zoo").join("durable/annex/bug-1");
    let place = TestPlace::new();
    let (code, errors, printed) = command(&place, &variant, false);
    assert!(code != Some(FOUND) || errors.is_empty(), "{printed}");
}

#[test]
fn the_clean_variant_keeps_what_it_acknowledges() {
    let _turn = turn();
    let variant = make("zoo", "zoo").join("durable/annex/clean");
    for _ in 0..CLEAN_RUNS[usize::from(!is_soak())] {
        let place = TestPlace::new();
        let (code, errors, printed) = command(&place, &variant, true);
        assert!(code == Some(CLEAN) && errors.is_empty(), "{code:?}\n{printed}");
    }
}

#[test]
fn contents_are_compared_after_crashes_only() {
    let place = TestPlace::new();
    for (options, message) in [
        (&["--durable", "--dump", "true"][..], "with --confirm only"),
        (&["--confirm", "--durable", "--dump", "true", "--client", "true", "--ready-when", "port:1"], "of servers"),
    ] {
        let output = place.pmvet(&["race"]).args(options).args(["--", "true"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(USAGE) && text.contains(message), "{text}");
    }
}
