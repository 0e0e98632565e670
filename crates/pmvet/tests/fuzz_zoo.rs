//! The counterparts of PMFuzz's twelve bugs, from one trivial seed. Takes minutes: `make soak`.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a campaign on a variant says.
fn fuzz(variant: &str, seconds: u32) -> (Option<i32>, String) {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let program: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/zoo/tx_maps").join(variant);
    assert!(program.exists(), "make zoo");
    std::fs::write(place.path().join("seed"), "a").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_pmvet"))
        .current_dir(place.path())
        .args(["fuzz", "--quiet", "--corpus", "corpus", "--seeds", "seed", "--then", "check"])
        .args(["--fail-on", "performance", "--budget", &format!("{seconds}s"), "--"])
        .arg(program)
        .arg(place.path().join("pool"))
        .arg("-i")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let shown = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code(), shown)
}

#[test]
#[ignore = "a quarter of an hour"]
fn the_bugs_that_pmfuzz_found_are_found() {
    let (code, shown) = fuzz("clean", 60);
    assert_eq!(code, Some(0), "{shown}");
    let missed: Vec<String> = (1..=12)
        .filter(|bug| {
            let (code, shown) = fuzz(&format!("bug-{bug}"), 70);
            let wanted = if *bug <= 6 { "error[recovery-failure]" } else { "performance[flush-clean]" };
            eprintln!("bug {bug}: {}", if shown.contains(wanted) { "found" } else { "missed" });
            code != Some(1) || !shown.contains(wanted)
        })
        .map(|bug| bug.to_string())
        .collect();
    assert!(missed.is_empty(), "missed: {}", missed.join(", "));
}
