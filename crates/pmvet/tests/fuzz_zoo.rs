//! Bugs of the zoo that need more than its workloads, from one trivial seed: the counterparts of PMFuzz's twelve, and all of which the
//! manifest says that they need a deep input or a crash image. Takes minutes: `make soak`.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pmvet_fixtures::repository;
use pmvet_fixtures::zoo::{Bug, Manifest, manifests};

/// Fuzzes a variant of a program until there is a finding. Returns pmvet's exit code and what it says.
fn fuzz(program: &str, variant: &str, fail_on: &str, budget: Duration) -> (Option<i32>, String) {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let executable = repository().join("target/zoo").join(program).join(variant);
    assert!(executable.exists(), "make zoo");
    std::fs::write(place.path().join("seed"), "a").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_pmvet"))
        .current_dir(place.path())
        .args(["fuzz", "--quiet", "--corpus", "corpus", "--seeds", "seed", "--then", "check", "--until-finding"])
        .args(["--fail-on", fail_on, "--budget", &format!("{}s", budget.as_secs()), "--"])
        .arg(executable)
        .arg(place.path().join("pool"))
        .arg("-i")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let shown = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code(), shown)
}

/// Finds each of these bugs within a time for all of them, and nothing like them in the programs without.
fn find_all(wanted: impl Fn(&Manifest, &Bug) -> bool, time: Duration) {
    let mut bugs = Vec::new();
    let mut programs = BTreeSet::new();
    for manifest in manifests() {
        for bug in manifest.bug.iter().filter(|bug| wanted(&manifest, bug)) {
            // What only rules tell is no error.
            let fail_on = if bug.engines == ["rules"] { "performance" } else { "error" };
            programs.insert((manifest.program.name.clone(), fail_on));
            bugs.push((manifest.program.name.clone(), bug.id, fail_on));
        }
    }
    assert!(bugs.len() >= 10);
    for (program, fail_on) in &programs {
        let (code, shown) = fuzz(program, "clean", fail_on, Duration::from_secs(30));
        assert_eq!(code, Some(0), "{program}: {shown}");
    }
    let started = Instant::now();
    let mut missed = Vec::new();
    for (program, bug, fail_on) in &bugs {
        let left = time.saturating_sub(started.elapsed()).min(Duration::from_secs(300));
        let began = Instant::now();
        let (code, _) = fuzz(program, &format!("bug-{bug}"), fail_on, left);
        eprintln!("{program} bug {bug}: exit code {code:?} after {:.0} s", began.elapsed().as_secs_f64());
        if code != Some(1) {
            missed.push(format!("{program} bug {bug}"));
        }
    }
    eprintln!("{} bugs in {:.0} s", bugs.len() - missed.len(), started.elapsed().as_secs_f64());
    assert!(missed.is_empty(), "missed: {}", missed.join(", "));
}

#[test]
#[ignore = "up to a quarter of an hour"]
fn the_bugs_that_pmfuzz_found_are_found() {
    find_all(|manifest, _| manifest.program.name == "tx_maps", Duration::from_secs(15 * 60));
}

#[test]
#[ignore = "up to half an hour"]
fn bugs_that_need_a_deep_input_or_a_crash_image_are_found() {
    let deep = |needs: &str| ["deep input", "crash image"].contains(&needs);
    find_all(|_, bug| bug.needs.as_deref().is_some_and(deep), Duration::from_secs(30 * 60));
}
