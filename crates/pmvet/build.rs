//! What `pmvet --version` says besides the version: the commit it was built from and the DynamoRIO it was built with.
//!
//! Runs again only if sources changed, since a new commit alone must not rebuild every test. A package sets `PMVET_COMMIT`, which is
//! exact.

use std::path::Path;
use std::process::Command;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    println!("cargo::rerun-if-env-changed=PMVET_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../../Cargo.lock");
    for name in ["events", "target", "model", "findings", "engines", "report"] {
        println!("cargo::rerun-if-changed=../pmvet-{name}/src");
    }
    println!("cargo::rerun-if-changed=src");
    let commit = match std::env::var("PMVET_COMMIT") {
        Ok(commit) if !commit.trim().is_empty() => commit.trim().to_owned(),
        _ => commit(&root).unwrap_or_else(|| "unknown".into()),
    };
    println!("cargo::rustc-env=PMVET_BUILT_FROM={commit}");
    println!("cargo::rustc-env=PMVET_DYNAMORIO={}", dynamorio(&root));
}

/// What is checked out, if this is a checkout of pmvet and not a folder that somebody unpacked inside another one.
fn commit(root: &Path) -> Option<String> {
    if !root.join(".git").exists() {
        return None;
    }
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(["describe", "--always", "--abbrev=12", "--exclude=*", "--dirty= with changes"]);
    let output = git.output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The version of the crate that builds DynamoRIO, which is DynamoRIO's own.
fn dynamorio(root: &Path) -> String {
    let lock = std::fs::read_to_string(root.join("Cargo.lock")).unwrap_or_default();
    let mut lines = lock.lines().skip_while(|line| *line != "name = \"dynamorio-sys\"").skip(1);
    let version = lines.next().and_then(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
    version.unwrap_or("unknown").into()
}
