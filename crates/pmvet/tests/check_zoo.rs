//! Ground truth: every sequential bug of the zoo is found by the engine that its manifest names, and the clean variants
//! give nothing to complain about. Every error replays to the same failure, from fresh processes, twice.

#![allow(clippy::unwrap_used, reason = "a test")]

mod check_support;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use check_support::zoo::{Bug, Manifest, Program, is_at_marker, manifests};
use check_support::{CLEAN, Checked, FOUND, Place, both_cores, line, make, turn};

/// Checks a variant of a program on a new pool, with that many recoveries crashed; or as many as are by default.
fn check(place: &Place, program: &Path, workload: &[String], reorder: bool, recoveries: Option<&str>) -> Checked {
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
    let manifests = manifests();
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
    let programs: BTreeSet<&str> = trials.iter().map(|trial| trial.manifest.program.name.as_str()).collect();
    assert!(trials.len() >= 60, "only {} sequential bugs", trials.len());
    assert!(programs.len() >= 8, "only {programs:?}");

    let (placed, exact) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let elsewhere = Mutex::new(Vec::new());
    both_cores(&trials, |trial| {
        let place = Place::new();
        let Manifest { program, source, .. } = trial.manifest;
        let variant = zoo.join(&program.name).join(format!("bug-{}", trial.bug.id));
        let workload = trial.bug.workload.as_ref().unwrap_or(&program.workload);
        // Most bugs have to show without a second crash; for the others, more chances than usual.
        let recoveries = if trial.bug.needs.as_deref() == Some("crash image") { "24" } else { "0" };
        let checked = check(&place, &variant, workload, trial.reorder, Some(recoveries));
        let name = format!("{} bug {} ({})", program.name, trial.bug.id, trial.bug.class);
        found(trial, &checked).map_err(|what| format!("--- {name}: {what}\n{}", checked.text()))?;
        for error in checked.errors() {
            place.replays_twice(error).map_err(|what| format!("--- {name}: {what}"))?;
        }
        // Recovery code is wrong where nothing crashes: no trace leads there.
        if trial.bug.class != "recovery" {
            placed.fetch_add(1, Ordering::Relaxed);
            if checked.findings.iter().any(|finding| is_at_marker(finding, source, trial.bug.id)) {
                exact.fetch_add(1, Ordering::Relaxed);
            } else {
                elsewhere
                    .lock()
                    .unwrap()
                    .push(format!("{name}: {}", checked.findings.first().map_or(String::new(), line)));
            }
        }
        Ok(())
    });
    let (placed, exact) = (placed.into_inner(), exact.into_inner());
    let elsewhere = elsewhere.into_inner().unwrap().join("\n");
    println!("{exact} of {placed} bugs are reported at their marker; elsewhere:\n{elsewhere}");
    assert!(exact * 100 >= placed * 80, "only {exact} of {placed} are reported where they are:\n{elsewhere}");
}

/// What is missing for every engine to have found the bug, if anything.
fn found(trial: &Trial<'_>, checked: &Checked) -> Result<(), String> {
    let bug = trial.bug;
    if bug.engine("inject") || trial.reorder {
        if checked.code != Some(FOUND) {
            return Err("not found by a crash".into());
        }
        let mut kinds = vec!["recovery-failure", "unpersisted-store"];
        if trial.reorder {
            kinds.push("reordered-crash");
        }
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
    let manifests = manifests();
    let trials: Vec<(&Manifest, bool)> = manifests.iter().flat_map(|m| [(m, false), (m, true)]).collect();
    both_cores(&trials, |(manifest, reorder)| {
        let place = Place::new();
        let Program { name, workload, .. } = &manifest.program;
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
