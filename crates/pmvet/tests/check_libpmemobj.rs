//! Ground truth for programs that use libpmemobj: each bug of the zoo is one finding, of the right rule, at its line, with the fix that its
//! manifest wants. The clean variants give nothing to complain about.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

use pmvet_findings::{Finding, Severity};
use pmvet_fixtures::zoo::{Bug, Manifest, blamed, manifests, marked};
use pmvet_fixtures::{CLEAN, CheckedRun, FOUND, TestPlace, both_cores, each_kind, finish, make, one_of_each, turn};

fn libpmemobj() -> Vec<Manifest> {
    manifests().into_iter().filter(Manifest::uses_libpmemobj).collect()
}

/// Checks a variant on a new pool.
fn check(place: &TestPlace, program: &Path, workload: &[String]) -> CheckedRun {
    let pool = place.pool();
    // That a pool can be made anew is not what these tests are about.
    let setup = format!("{} {} -n 0", program.display(), pool.display());
    let mut command = vec![program.to_str().unwrap(), pool.to_str().unwrap()];
    command.extend(workload.iter().map(String::as_str));
    // The other core has a check of its own.
    place.check(&["-j1", "--crash-recoveries", "0", "--setup", &setup], &command).run()
}

/// The rules that tell about a bug.
fn rules(bug: &Bug) -> &'static [&'static str] {
    match bug.class.as_str() {
        "tx-not-added" => &["tx-store-not-added"],
        "tx-add-twice" => &["tx-add-twice"],
        "tx-persist" => &["tx-persist"],
        "missing-flush" => &["unpersisted-store", "reordered-crash", "transient-data"],
        _ => &["recovery-failure"],
    }
}

/// What is wrong with what was found, if anything.
fn judge(manifest: &Manifest, bug: &Bug, checked: &CheckedRun) -> Result<(), String> {
    let [finding] = &checked.findings[..] else {
        return Err(format!("{} findings, not one", checked.findings.len()));
    };
    if !rules(bug).contains(&finding.rule.0.as_str()) {
        return Err(format!("found as {}", finding.rule));
    }
    let with_witness = bug.engine("inject") || bug.engine("reorder");
    if (finding.severity == Severity::Error) != with_witness || (checked.code == Some(FOUND)) != with_witness {
        return Err(format!("severity {}, exit code {:?}", finding.severity.name(), checked.code));
    }
    let marked = marked(manifest, bug.id);
    if !marked.contains(&blamed(finding)) {
        return Err(format!("named at {}, not at {marked:?}", blamed(finding)));
    }
    let wanted = bug.fix.as_deref().unwrap_or_default();
    if !finding.fix.contains(wanted) {
        return Err(format!("the fix is not `{wanted}` but: {}", finding.fix));
    }
    advises_well(finding)
}

/// Flushes and fences are the library's business.
fn advises_well(finding: &Finding) -> Result<(), String> {
    let says = |words: &[&str]| words.iter().any(|word| finding.fix.contains(word));
    let names_insides = finding.title.contains("_mm") || finding.title.contains("mm512");
    match says(&["a flush and a fence", "sfence", "and fence"]) || names_insides {
        true => Err(format!("bad advice: {}: {}", finding.title, finding.fix)),
        false => Ok(()),
    }
}

#[test]
fn every_bug_is_one_finding_with_its_fix() {
    let _turn = turn();
    let zoo = make("zoo", "zoo");
    let manifests = libpmemobj();
    let all: Vec<(&Manifest, &Bug)> = manifests.iter().flat_map(|m| m.bug.iter().map(move |bug| (m, bug))).collect();
    assert!(all.len() >= 20, "only {} bugs", all.len());
    let trials = each_kind(all, |(manifest, bug)| [&manifest.program.name, &bug.class]);
    both_cores(&trials, |(manifest, bug)| {
        let place = TestPlace::new();
        let program = &manifest.program;
        let variant = zoo.join(&program.name).join(format!("bug-{}", bug.id));
        let workload = bug.workload.as_ref().unwrap_or(&program.workload);
        let checked = check(&place, &variant, workload);
        let name = format!("{} bug {} ({})", program.name, bug.id, bug.class);
        judge(manifest, bug, &checked).map_err(|what| format!("--- {name}: {what}\n{}", checked.text()))?;
        for error in checked.errors() {
            place.replays(error).map_err(|what| format!("--- {name}: {what}"))?;
        }
        Ok(())
    });
}

#[test]
fn clean_variants_are_clean() {
    let _turn = turn();
    let zoo = make("zoo", "zoo");
    let manifests = libpmemobj();
    both_cores(&manifests, |manifest| {
        let place = TestPlace::new();
        let program = &manifest.program;
        let checked = check(&place, &zoo.join(&program.name).join("clean"), &program.workload);
        match checked.code == Some(CLEAN) && checked.findings.is_empty() {
            true => Ok(()),
            false => Err(format!("--- {}: {}", program.name, checked.text())),
        }
    });
}

/// Several engines see a forgotten `TX_ADD`, each in its own way: before the commit, after it, and in other orders of write-back.
#[test]
fn to_all_engines_together_it_is_one_error() {
    let _turn = turn();
    let zoo = make("zoo", "zoo");
    let manifests = libpmemobj();
    let cases = one_of_each(vec![("obj_ledger", 1), ("obj_queue", 1)], |_| ());
    both_cores(&cases, |(name, bug)| {
        let manifest = manifests.iter().find(|manifest| manifest.program.name == *name).unwrap();
        let bug = manifest.bug.iter().find(|known| known.id == *bug).unwrap();
        let place = TestPlace::new();
        let variant = zoo.join(name).join(format!("bug-{}", bug.id));
        let setup = format!("{} {} -n 0", variant.display(), place.pool().display());
        let mut command = place.pmvet(&["vet", "--quiet", "--budget", "40s", "--setup", &setup]);
        command.args(place.pm()).arg("--").arg(&variant).arg(place.pool()).args(bug.workload.iter().flatten());
        let vetted = CheckedRun::new(&place, &finish(command, None).expect("pmvet hangs"));
        let errors: Vec<&Finding> = vetted.errors().collect();
        match errors[..] {
            [error] if marked(manifest, bug.id).contains(&blamed(error)) && error.rule.0 == "tx-store-not-added" => {
                Ok(())
            }
            _ => Err(format!("--- {name} bug {}: {}", bug.id, vetted.text())),
        }
    });
}
