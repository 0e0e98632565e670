//! Bugs of the zoo that need more than its workloads, from one trivial seed: the counterparts of PMFuzz's twelve, and all of which the
//! manifest says that they need a deep input or a crash image. Takes minutes: `make soak`.
#![allow(clippy::unwrap_used, reason = "a test")]

mod check_support;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use check_support::repository;
use check_support::zoo::manifests;

/// Fuzzes a variant of a program until there is a finding. Returns pmvet's exit code and what it says.
fn fuzz(program: &str, variant: &str, budget: Duration) -> (Option<i32>, String) {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let executable = repository().join("target/zoo").join(program).join(variant);
    assert!(executable.exists(), "make zoo");
    std::fs::write(place.path().join("seed"), "a").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_pmvet"))
        .current_dir(place.path())
        .args(["fuzz", "--quiet", "--corpus", "corpus", "--seeds", "seed", "--then", "check", "--until-finding"])
        .args(["--fail-on", "performance", "--budget", &format!("{}s", budget.as_secs()), "--"])
        .arg(executable)
        .arg(place.path().join("pool"))
        .arg("-i")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let shown = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code(), shown)
}

/// Finds each of these bugs within a time for all of them, and nothing in the programs without them.
fn find_all(bugs: &[(String, u32)], time: Duration) {
    let mut programs: Vec<&str> = bugs.iter().map(|(program, _)| program.as_str()).collect();
    programs.dedup();
    for program in programs {
        let (code, shown) = fuzz(program, "clean", Duration::from_secs(30));
        assert_eq!(code, Some(0), "{program}: {shown}");
    }
    let started = Instant::now();
    let mut missed = Vec::new();
    for (program, bug) in bugs {
        let left = time.saturating_sub(started.elapsed()).min(Duration::from_secs(300));
        let began = Instant::now();
        let (code, _) = fuzz(program, &format!("bug-{bug}"), left);
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
    let bugs: Vec<_> = (1..=12).map(|bug| ("tx_maps".to_owned(), bug)).collect();
    find_all(&bugs, Duration::from_secs(15 * 60));
}

#[test]
#[ignore = "up to half an hour"]
fn bugs_that_need_a_deep_input_or_a_crash_image_are_found() {
    let mut bugs = Vec::new();
    for manifest in manifests() {
        let deep = |needs: &str| ["deep input", "crash image"].contains(&needs);
        let of_it = manifest.bug.iter().filter(|bug| bug.needs.as_deref().is_some_and(deep));
        bugs.extend(of_it.map(|bug| (manifest.program.name.clone(), bug.id)));
    }
    assert!(bugs.len() >= 10);
    find_all(&bugs, Duration::from_secs(30 * 60));
}
