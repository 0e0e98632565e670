//! Ground truth: every sequential bug of the zoo is found by the engine that its manifest names, and the clean variants
//! give nothing to complain about. A bug is reported at its line, which the source marks, or the table below says where instead.
//! Errors replay to the same failure, from fresh processes. `make test` tries a bug of each class and a bug of each program, and replays
//! its first error; `make soak` tries all of them, and replays every error twice.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::path::Path;

use pmvet_findings::{Finding, Severity};
use pmvet_fixtures::zoo::{Bug, Elsewhere, Manifest, ZooProgram, is_at_its_line, manifests};
use pmvet_fixtures::{CLEAN, CheckedRun, FOUND, TestPlace, both_cores, each_kind, is_soak, make, turn};

/// Checks a variant of a program on a new pool, with that many recoveries crashed; or as many as are by default.
fn check(
    place: &TestPlace,
    program: &Path,
    workload: &[String],
    reorder: bool,
    recoveries: Option<&str>,
) -> CheckedRun {
    let pool = place.pool();
    let mut command = vec![program.to_str().unwrap(), pool.to_str().unwrap()];
    command.extend(workload.iter().map(String::as_str));
    // The other core has a check of its own.
    let mut options = vec!["-j1"];
    if reorder {
        options.push("--reorder");
    }
    if let Some(recoveries) = recoveries {
        options.extend(["--crash-recoveries", recoveries]);
    }
    place.check(&options, &command).run()
}

// ---- The tests

const fn row(program: &'static str, bug: u32, at: &'static str, why: &'static str) -> Elsewhere {
    Elsewhere { program, bug, at, why }
}

const IN_DRAM: &str = "the object that is not saved is edited in DRAM; its copy into the pool is named";
const COMMIT: &str = "the commit flushes the line; who has asked it to is not known";

/// Bugs that are reported somewhere else, and why no experiment shows their own line. Nothing is added here.
const BLAMED_ELSEWHERE: &[Elsewhere] = &[
    row("pm_journal", 8, "main.rs:0", "the debug information has no line for the call, only for its function"),
    row("redo_array", 18, "redo_array.c:92", "the commit itself is named; that it comes too early shows in its caller"),
    row("tx_maps", 8, "tx_maps.c:99", COMMIT),
    row("tx_maps", 9, "tx_maps.c:99", COMMIT),
    row("tx_maps", 10, "tx_maps.c:99", COMMIT),
    row("tx_maps", 11, "tx_maps.c:99", COMMIT),
    row("tx_maps", 12, "tx_maps.c:99", COMMIT),
    row("undo_btree", 4, "undo_btree.c:219", IN_DRAM),
    row("undo_btree", 5, "undo_btree.c:219", IN_DRAM),
    row(
        "undo_btree",
        12,
        "undo_btree.c:193",
        "the last store before the gap is named, not the one that comes too late",
    ),
    row("undo_btree", 13, "undo_btree.c:219", IN_DRAM),
];

/// The programs without libpmemobj, which has tests of its own.
fn plain() -> Vec<Manifest> {
    manifests().into_iter().filter(|manifest| !manifest.uses_libpmemobj()).collect()
}

/// A run of one variant, and the engines that it has to prove.
struct Trial<'a> {
    manifest: &'a Manifest,
    bug: &'a Bug,
    reorder: bool,
}

#[test]
fn every_sequential_bug_is_found_by_its_engines() {
    let _turn = turn();
    let zoo = make("zoo", "zoo");
    let manifests = plain();
    let mut trials = Vec::new();
    for manifest in &manifests {
        for bug in manifest.bug.iter().filter(|bug| bug.is_sequential()) {
            let (inject, reorder) = (bug.engine("inject"), bug.engine("reorder"));
            if inject || bug.engine("rules") && !reorder {
                trials.push(Trial { manifest, bug, reorder: false });
            } else if reorder {
                trials.push(Trial { manifest, bug, reorder: true });
            }
        }
    }
    let is_tried =
        |row: &Elsewhere| trials.iter().any(|t| t.manifest.program.name == row.program && t.bug.id == row.bug);
    assert!(BLAMED_ELSEWHERE.iter().all(is_tried), "a row of a bug that is not tried");
    let programs: BTreeSet<&str> = trials.iter().map(|trial| trial.manifest.program.name.as_str()).collect();
    assert!(trials.len() >= 60, "only {} sequential bugs", trials.len());
    assert!(programs.len() >= 8, "only {programs:?}");
    let engines = |bug: &Bug| (bug.engine("inject"), bug.engine("reorder"), bug.engine("rules"));
    let trials = each_kind(trials, |trial| {
        let class = format!("{} {:?}", trial.bug.class, engines(trial.bug));
        [class, trial.manifest.program.name.clone()]
    });

    both_cores(&trials, |trial| {
        let place = TestPlace::new();
        let program = &trial.manifest.program;
        let variant = zoo.join(&program.name).join(format!("bug-{}", trial.bug.id));
        let workload = trial.bug.workload.as_ref().unwrap_or(&program.workload);
        // Most bugs have to show without a second crash; for the others, more chances than usual.
        let recoveries = if trial.bug.needs.as_deref() == Some("crash image") { "24" } else { "0" };
        let checked = check(&place, &variant, workload, false, Some(recoveries));
        let name = format!("{} bug {} ({})", program.name, trial.bug.id, trial.bug.class);
        found(trial, &checked).map_err(|what| format!("--- {name}: {what}\n{}", checked.text()))?;
        for error in checked.errors().take(if is_soak() { usize::MAX } else { 1 }) {
            place.replays(error).map_err(|what| format!("--- {name}: {what}"))?;
        }
        let findings = checked.findings.iter().filter(|finding| tells(trial, finding));
        is_at_its_line(trial.manifest, trial.bug.id, findings, BLAMED_ELSEWHERE)
            .map_err(|what| format!("--- {name}: {what}\n{}", checked.text()))
    });
}

/// Whether the finding is of a kind that the bug has to be told by.
fn tells(trial: &Trial<'_>, finding: &Finding) -> bool {
    let rule = finding.rule.0.as_ref();
    let by_crash = trial.bug.engine("inject") || trial.reorder;
    finding.severity == Severity::Error && by_crash && kinds(trial).contains(&rule)
        || trial.bug.engine("rules") && trial.bug.rules().contains(&rule)
}

fn kinds(trial: &Trial<'_>) -> &'static [&'static str] {
    match trial.reorder {
        true => &["recovery-failure", "unpersisted-store", "reordered-crash"],
        false => &["recovery-failure", "unpersisted-store"],
    }
}

/// What is missing for every engine to have found the bug, if anything.
fn found(trial: &Trial<'_>, checked: &CheckedRun) -> Result<(), String> {
    let bug = trial.bug;
    if bug.engine("inject") || trial.reorder {
        if checked.code != Some(FOUND) {
            return Err("not found by a crash".into());
        }
        let kinds = kinds(trial);
        if !checked.errors().any(|error| kinds.contains(&error.rule.0.as_ref())) {
            return Err(format!("no error of {kinds:?}"));
        }
    }
    if bug.engine("rules") && !checked.findings.iter().any(|f| bug.rules().contains(&f.rule.0.as_ref())) {
        return Err(format!("no finding of {:?}", bug.rules()));
    }
    Ok(())
}

#[test]
fn clean_variants_are_clean() {
    let _turn = turn();
    let zoo = make("zoo", "zoo");
    let manifests = plain();
    // With `--reorder`, all that is tried without it is tried, too.
    let orders: &[bool] = if is_soak() { &[false, true] } else { &[true] };
    let trials: Vec<(&Manifest, bool)> = manifests.iter().flat_map(|m| orders.iter().map(move |o| (m, *o))).collect();
    both_cores(&trials, |(manifest, reorder)| {
        let place = TestPlace::new();
        let ZooProgram { name, workload, .. } = &manifest.program;
        let checked = check(&place, &zoo.join(name).join("clean"), workload, *reorder, None);
        if checked.code != Some(CLEAN) || checked.errors().chain(checked.warnings()).next().is_some() {
            return Err(format!("--- {name}, reordered: {reorder}: {}", checked.text()));
        }
        // Their needless flushes would hide those of the variants.
        if !checked.findings.is_empty() {
            return Err(format!("--- {name}, reordered: {reorder}: {}", checked.text()));
        }
        Ok(())
    });
}

/// A store that comes too early is fatal in program order, and with each of the stores lost that should have come first. A missing
/// fence leaves several lines behind. What is never flushed is suspected by a rule, too. Each is one bug.
#[test]
fn one_bug_is_one_error_whatever_the_order_of_write_back() {
    let _turn = turn();
    let zoo = make("zoo", "zoo");
    let bugs = [("undo_btree", 1), ("undo_btree", 2), ("undo_btree", 3), ("plist", 3), ("cl_hash", 10)];
    both_cores(&bugs, |(program, bug)| {
        let place = TestPlace::new();
        let variant = zoo.join(program).join(format!("bug-{bug}"));
        let checked = check(&place, &variant, &["-n".into(), "50".into()], true, Some("0"));
        // Whatever calls `main` is of no use to anyone.
        let outermost = |finding: &Finding| finding.places[0].stack.last().and_then(|frame| frame.function.clone());
        match (checked.errors().count(), checked.warnings().count()) {
            (1, 0) if checked.errors().all(|error| outermost(error).as_deref() == Some("main")) => Ok(()),
            (errors, warnings) => {
                Err(format!("--- {program} bug {bug}: {errors} errors, {warnings} warnings\n{}", checked.text()))
            }
        }
    });
}
