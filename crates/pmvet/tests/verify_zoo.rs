//! Ground truth for `pmvet verify`: bugs of the zoo that a crash can show are found with a witness, and clean variants are verified
//! to the end. `make test` does a part of the table, `make soak` all of it.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;

use pmvet_fixtures::zoo::{Bug, Manifest, is_at_its_line, manifests};
use pmvet_fixtures::{CLEAN, CheckedRun, FOUND, TestPlace, both_cores, make, turn};

/// What the search exists to find.
const CLASSES: [&str; 4] = ["missing-flush", "missing-fence", "misordered", "atomicity"];

/// Verifies a variant of a program on a new pool. The recovery only recovers and checks.
fn verify(place: &TestPlace, program: &str, variant: &str, workload: &[String], options: &[&str]) -> CheckedRun {
    let program = make("zoo", "zoo").join(program).join(variant);
    let (program, pool) = (program.to_str().unwrap(), place.pool());
    let recover = format!("{program} {} -n 0", pool.display());
    let mut command = vec![program, pool.to_str().unwrap()];
    command.extend(workload.iter().map(String::as_str));
    let mut all = vec!["-j1", "--recover", &recover];
    all.extend(options);
    place.verify(&all, &command).run()
}

/// A row of the table: what came of a variant.
struct Row<'a> {
    manifest: &'a Manifest,
    bug: Option<&'a Bug>,
    /// A report of the bug has to name one of its lines.
    at_its_line: bool,
}

impl Row<'_> {
    fn run(&self, workload: Option<&[String]>) -> Result<(), String> {
        let place = TestPlace::new();
        let program = &self.manifest.program;
        let (variant, class) = match self.bug {
            Some(bug) => (format!("bug-{}", bug.id), bug.class.as_str()),
            None => ("clean".into(), "clean"),
        };
        let own = self.bug.and_then(|bug| bug.workload.as_deref()).unwrap_or(&program.workload);
        let options: &[&str] = if program.checksums { &["--checksums"] } else { &[] };
        let found = verify(&place, &program.name, &variant, workload.unwrap_or(own), options);
        let stats = fs::read_to_string(place.run().join("stats.json")).unwrap_or_default();
        let number = |name: &str| {
            let value = stats.lines().find_map(|line| line.trim().strip_prefix(&format!("\"{name}\": ")));
            value.unwrap_or("?").trim_end_matches(',').to_owned()
        };
        println!(
            "{:16} {variant:7} {class:14} {:>4} failure points {:>6} executions, eager {}",
            program.name,
            number("failure_points"),
            number("executions"),
            number("eager_executions"),
        );
        let wanted = if self.bug.is_some() { FOUND } else { CLEAN };
        if found.code != Some(wanted) {
            return Err(format!("--- {} {variant} ({class}): {}", program.name, found.text()));
        }
        let wrong = |what| format!("--- {} {variant}: {what}\n{}", program.name, found.text());
        if let Some(bug) = self.bug.filter(|_| self.at_its_line) {
            is_at_its_line(self.manifest, bug.id, found.errors(), &[]).map_err(wrong)?;
        }
        found.errors().next().map_or(Ok(()), |error| place.replays(error)).map_err(wrong)
    }
}

/// A bug that one thread can show. Some are hidden on x86: their manifest names no engine.
fn is_ours(bug: &Bug) -> bool {
    CLASSES.contains(&bug.class.as_str()) && bug.engine("verify") && bug.needs.as_deref() != Some("threads")
}

#[test]
fn one_bug_of_each_class_is_found_and_clean_variants_are_verified() {
    let _turn = turn();
    let manifests = manifests();
    let mut rows = Vec::new();
    for manifest in &manifests {
        if ["plist", "redo_array", "pm_counter_map", "sum_log"].contains(&manifest.program.name.as_str()) {
            rows.push(Row { manifest, bug: None, at_its_line: true });
        }
        if manifest.program.name == "plist" {
            let of = |class: &str| manifest.bug.iter().find(|bug| bug.class == class);
            rows.extend(CLASSES.into_iter().filter_map(of).map(|bug| Row {
                manifest,
                bug: Some(bug),
                at_its_line: true,
            }));
        }
    }
    assert_eq!(rows.len(), 8);
    let few = ["-n".to_owned(), "12".to_owned()];
    both_cores(&rows, |row| row.run(Some(&few)));
}

#[test]
#[ignore = "takes minutes"]
fn every_bug_is_found_and_every_clean_variant_is_verified() {
    let _turn = turn();
    let manifests = manifests();
    let mut rows = Vec::new();
    for manifest in manifests.iter().filter(|manifest| !manifest.uses_libpmemobj()) {
        rows.push(Row { manifest, bug: None, at_its_line: false });
        let ours = manifest.bug.iter().filter(|bug| is_ours(bug));
        rows.extend(ours.map(|bug| Row { manifest, bug: Some(bug), at_its_line: false }));
    }
    let bugs = rows.iter().filter(|row| row.bug.is_some()).count();
    assert!(bugs >= 60, "only {bugs} bugs");
    both_cores(&rows, |row| row.run(None));
}

#[test]
fn a_bug_of_the_recovery_itself_takes_two_crashes() {
    let _turn = turn();
    let few = ["-n".to_owned(), "3".to_owned()];
    // The pool exists before the workload starts, so that no recovery has to make it: crashes while it does are not told.
    let cases = [("clean", "2", CLEAN), ("bug-10", "1", CLEAN), ("bug-10", "2", FOUND)];
    both_cores(&cases, |(variant, failures, wanted)| {
        let place = TestPlace::new();
        let program = make("zoo", "zoo").join("redo_array").join(variant);
        let setup = format!("{} {} -n 0", program.display(), place.pool().display());
        let options = ["--failures", failures, "--setup", &setup];
        let found = verify(&place, "redo_array", variant, &few, &options);
        match found.code == Some(*wanted) {
            true => Ok(()),
            false => Err(format!("--- {variant}, --failures {failures}: {}", found.text())),
        }
    });
}
