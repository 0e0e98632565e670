//! `pmvet vet`: one command finds every kind of bug with its defaults, at the bug's line, and clean variants are clean.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};

use pmvet_findings::{Finding, Severity};
use pmvet_fixtures::zoo::{Manifest, is_at_its_line, manifests};
use pmvet_fixtures::{CLEAN, CheckedRun, FOUND, TestPlace, both_cores, compile, finish, make, turn};

/// Long enough for the engine that finds a bug to have its turn, however busy the machine is.
const BUDGET: &str = "60s";

fn vet(place: &TestPlace, options: &[&str], program: &Path, arguments: &[&str]) -> CheckedRun {
    let mut command = place.pmvet(&["vet", "--quiet"]);
    command.args(place.pm()).args(options).arg("--").arg(program).arg(place.pool()).args(arguments);
    CheckedRun::new(place, &finish(command, None).expect("pmvet hangs"))
}

/// Whether a place of the finding is on a line of the source that has this text.
fn is_on_line(finding: &Finding, source: &Path, text: &str) -> bool {
    let source_text = std::fs::read_to_string(source).unwrap();
    let lines: Vec<u32> = (1..).zip(source_text.lines()).filter(|(_, line)| line.contains(text)).map(|l| l.0).collect();
    let frames = finding.places.iter().filter_map(|place| place.frame());
    frames.into_iter().any(|frame| {
        frame.file.as_deref().and_then(Path::file_name) == source.file_name()
            && frame.line.is_some_and(|line| lines.contains(&line))
    })
}

/// Whether the finding names the line of a bug of the zoo.
fn is_at(finding: &Finding, program: &str, bug: u32) -> bool {
    let manifest = manifests().into_iter().find(|manifest: &Manifest| manifest.program.name == program).unwrap();
    is_at_its_line(&manifest, bug, std::iter::once(finding), &[]).is_ok()
}

/// An error that leads to the bug, and replays.
fn finds(place: &TestPlace, checked: &CheckedRun, is_it: impl Fn(&Finding) -> bool) -> Result<(), String> {
    let error = checked.errors().find(|finding| is_it(finding));
    let Some(error) = error.filter(|_| checked.code == Some(FOUND)) else {
        return Err(format!("not found: {}{}", checked.text(), checked.stdout));
    };
    place.replays(error)?;
    place.assert_clean(&[]);
    Ok(())
}

fn is_clean(place: &TestPlace, checked: &CheckedRun) -> Result<(), String> {
    place.assert_clean(&[]);
    match checked.code {
        Some(CLEAN) if checked.errors().next().is_none() => Ok(()),
        _ => Err(format!("not clean: {}{}", checked.text(), checked.stdout)),
    }
}

#[test]
fn bugs_of_each_kind_are_found() {
    let _turn = turn();
    let zoo = make("zoo", "zoo");
    // Missing flush, missing fence, misordered; and a clean variant.
    both_cores(&[Some(1), Some(2), Some(3), None], |bug| {
        let place = TestPlace::new();
        let variant = bug.map_or("clean".into(), |bug| format!("bug-{bug}"));
        let checked = vet(&place, &["--budget", BUDGET], &zoo.join("undo_btree").join(variant), &["-n", "20"]);
        match *bug {
            Some(bug) => finds(&place, &checked, |finding| is_at(finding, "undo_btree", bug)).and_then(|()| {
                // Several engines see it, and it is one bug.
                match checked.errors().count() {
                    1 => Ok(()),
                    n => Err(format!("{n} errors of undo_btree {bug}: {}", checked.stdout)),
                }
            }),
            None => is_clean(&place, &checked),
        }
    });
}

#[test]
fn a_race_is_proven() {
    let _turn = turn();
    let (zoo, place) = (make("zoo", "zoo"), TestPlace::new());
    // Every engine uses up its share of the budget here. On a slow machine a forced run may take seconds.
    let checked = vet(&place, &["--budget", "30s"], &zoo.join("bptree/bug-1"), &["-n", "100", "-t", "4"]);
    let is_it = |finding: &Finding| finding.rule.0 == "persistency-race" && is_at(finding, "bptree", 1);
    finds(&place, &checked, is_it).unwrap();
}

#[test]
fn a_missing_fence_is_found() {
    let _turn = turn();
    let source = programs().join("unfenced.c");
    let place = TestPlace::new();
    let checked = vet(&place, &[], &compile("tests/programs/unfenced.c", "unfenced", &[]), &[]);
    finds(&place, &checked, |finding| is_on_line(finding, &source, "pm->value = 42;")).unwrap();
    let place = TestPlace::new();
    let clean = compile("tests/programs/unfenced.c", "fenced", &["-DFENCE"]);
    is_clean(&place, &vet(&place, &[], &clean, &[])).unwrap();
}

/// The pool is there before: whether its creation survives a crash is another question.
#[test]
fn a_forgotten_add_is_found() {
    let _turn = turn();
    let source = programs().join("account.c");
    let build = |name: &str, flags: &[&str]| compile("tests/programs/account.c", name, flags);
    let (buggy, clean) = (
        build("account", &["-Wl,--no-as-needed", "-lpmemobj"]),
        build("account-adds", &["-DADD", "-Wl,--no-as-needed", "-lpmemobj"]),
    );
    let place = TestPlace::new();
    let setup = |program: &Path| format!("{} {} create", program.display(), place.pool().display());
    // Exploring the library's recovery would take all time that there is.
    let run =
        |program: &PathBuf, budget: &str| vet(&place, &["--budget", budget, "--setup", &setup(program)], program, &[]);
    finds(&place, &run(&buggy, "12s"), |finding| is_on_line(finding, &source, "->second += amount;")).unwrap();
    is_clean(&place, &run(&clean, "6s")).unwrap();
}

/// Each engine says what it covered and what it left, on a line of its own and in the exported report.
#[test]
fn each_engine_says_what_it_covered() {
    let _turn = turn();
    let place = TestPlace::new();
    let program = compile("tests/programs/unfenced.c", "fenced", &["-DFENCE"]);
    let report = place.work().join("report.json");
    let checked = vet(&place, &["--export-json", report.to_str().unwrap()], &program, &[]);
    for line in ["inject, rules, reorder: 2 failure points", "race: ", "verify: 4 failure points"] {
        assert!(checked.stdout.lines().any(|text| text.starts_with(line)), "{line}: {}", checked.stdout);
    }
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    let engines = report["coverage"]["engines"].as_array().unwrap();
    let names: Vec<&str> = engines.iter().map(|engine| engine["engine"].as_str().unwrap()).collect();
    assert_eq!(names, ["inject, rules, reorder", "race", "verify"]);
    assert!(checked.findings.iter().all(|finding| finding.severity != Severity::Error));
}

/// What was recorded and tried before an interruption is not done again.
#[test]
fn an_interrupted_run_is_resumed() {
    let _turn = turn();
    let place = TestPlace::new();
    let program = compile("tests/programs/unfenced.c", "unfenced", &[]);
    let first = vet(&place, &[], &program, &[]);
    let again = vet(&place, &["--resume"], &program, &[]);
    assert_eq!((first.code, again.code), (Some(FOUND), Some(FOUND)), "{}", again.stdout);
    assert_eq!(first.fingerprints(), again.fingerprints());
}

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs")
}
