//! Ground truth of `pmvet race`: every concurrency bug of the zoo is found in one run, whatever its interleaving, and the
//! clean variants are silent. One of the findings is at the bug's line, which the source marks, or the table below says where the first
//! one is instead.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;

use pmvet_fixtures::zoo::{Bug, Elsewhere, Manifest, is_at_its_line, manifests};
use pmvet_fixtures::{CLEAN, CheckedRun, TestPlace, both_cores, each_kind, finish, make, turn};

fn rule(bug: &Bug) -> &'static str {
    if bug.class == "lock-left-held" { "lock-in-pm" } else { "persistency-race" }
}

const READER: &str = "the reader is wrong; a store that it should not have seen yet is named first";

/// Bugs that are reported somewhere else. Nothing is added here.
const BLAMED_ELSEWHERE: &[Elsewhere] = &[
    Elsewhere { program: "cl_hash", bug: 3, at: "cl_hash.c:187", why: READER },
    Elsewhere { program: "cl_hash", bug: 5, at: "cl_hash.c:215", why: READER },
    Elsewhere { program: "ext_hash", bug: 5, at: "ext_hash.c:267", why: READER },
    Elsewhere { program: "slab_kv", bug: 5, at: "slab_kv.c:171", why: READER },
];

/// The programs that have concurrency bugs, and those bugs.
fn racy() -> Vec<Manifest> {
    let mut all = manifests();
    all.iter_mut().for_each(|manifest| manifest.bug.retain(|bug| bug.engine("lockset")));
    all.retain(|manifest| !manifest.bug.is_empty());
    all
}

/// The arguments of a bug's run: its own workload, or none.
fn workload(bug: &Bug) -> &[String] {
    bug.workload.as_deref().unwrap_or_default()
}

/// One run of a variant, on a new pool.
fn race(manifest: &Manifest, variant: &str, workload: &[String]) -> CheckedRun {
    let (place, zoo) = (TestPlace::new(), make("zoo", "zoo"));
    let mut command = place.pmvet(&["race", "--quiet"]);
    command.args(place.pm());
    let config = manifest.folder.join("pmvet.toml");
    if config.exists() {
        command.arg("--config").arg(config);
    }
    command.arg("--").arg(zoo.join(&manifest.program.name).join(variant)).arg(place.pool()).args(workload);
    let output = finish(command, None).expect("pmvet hangs");
    CheckedRun::new(&place, &output)
}

fn is_found(manifest: &Manifest, bug: &Bug) -> Result<(), String> {
    let checked = race(manifest, &format!("bug-{}", bug.id), workload(bug));
    let name = format!("--- {} bug {}", manifest.program.name, bug.id);
    let found: Vec<_> = checked.warnings().filter(|finding| finding.rule.0 == rule(bug)).collect();
    if checked.code != Some(CLEAN) || found.is_empty() {
        return Err(format!("{name} is not found: {}", checked.text()));
    }
    is_at_its_line(manifest, bug.id, found.into_iter(), BLAMED_ELSEWHERE)
        .map_err(|what| format!("{name}: {what}\n{}", checked.text()))
}

/// With the workloads of the program's bugs, each once.
fn is_silent(manifest: &Manifest) -> Result<(), String> {
    let workloads: BTreeSet<&[String]> = manifest.bug.iter().map(workload).collect();
    for workload in workloads {
        let checked = race(manifest, "clean", workload);
        if checked.code != Some(CLEAN) || !checked.findings.is_empty() {
            return Err(format!("--- {} {workload:?}: {}", manifest.program.name, checked.text()));
        }
    }
    Ok(())
}

fn all_bugs(manifests: &[Manifest]) -> Vec<(&Manifest, &Bug)> {
    manifests.iter().flat_map(|manifest| manifest.bug.iter().map(move |bug| (manifest, bug))).collect()
}

#[test]
fn every_concurrency_bug_is_found_in_one_run() {
    let _turn = turn();
    let manifests = racy();
    let bugs = all_bugs(&manifests);
    assert!(bugs.len() >= 30 && manifests.len() >= 6, "{} bugs in {} programs", bugs.len(), manifests.len());
    let bugs = each_kind(bugs, |(manifest, bug)| {
        // A workload of its own may be what shows it.
        let shown_by = bug.workload.as_ref().map_or(String::new(), |workload| workload.join(" "));
        [format!("{} {shown_by}", manifest.program.name), bug.class.clone()]
    });
    both_cores(&bugs, |(manifest, bug)| is_found(manifest, bug));
}

#[test]
fn clean_variants_are_silent() {
    let _turn = turn();
    both_cores(&racy(), is_silent);
}

#[test]
#[ignore = "20 runs of everything take many minutes; part of make soak"]
fn every_bug_is_found_in_twenty_of_twenty_runs_and_the_clean_variants_are_silent() {
    let _turn = turn();
    let manifests = racy();
    let bugs = all_bugs(&manifests);
    for _ in 0..20 {
        both_cores(&bugs, |(manifest, bug)| is_found(manifest, bug));
        both_cores(&manifests, is_silent);
    }
}
