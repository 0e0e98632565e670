//! How the findings of one command have changed from run to run.

use std::collections::BTreeMap;

use pmvet_findings::{Run, Severity, run::is_pedantic};
use serde_json::{Value, json};

use crate::text::clean;

/// What the page shows of an earlier run of the same command.
#[derive(Debug, Clone, PartialEq)]
pub struct EarlierRun {
    id: String,
    started: Option<String>,
    seconds: f64,
    /// The findings that count, by fingerprint: without those of pedantic rules and of the baseline.
    counted: BTreeMap<String, Severity>,
}

impl From<&Run> for EarlierRun {
    fn from(run: &Run) -> Self {
        let counted = run.findings.iter().filter(|finding| !is_pedantic(finding) && !run.is_known(finding));
        EarlierRun {
            id: run.id.clone(),
            started: run.started.clone(),
            seconds: run.seconds,
            counted: counted.map(|finding| (finding.fingerprint.clone(), finding.severity)).collect(),
        }
    }
}

/// A row for each run, this one last: how many findings of each severity, and which are new or gone since the row before. Nothing if this
/// is the first.
pub(super) fn rows(earlier: &[EarlierRun], run: &Run) -> Vec<Value> {
    if earlier.is_empty() {
        return Vec::new();
    }
    let this = EarlierRun::from(run);
    let mut rows = Vec::new();
    let mut before: Option<&EarlierRun> = None;
    for run in earlier.iter().chain([&this]) {
        let count = |severity| run.counted.values().filter(|of| **of == severity).count();
        let missing_in = |one: &EarlierRun, other: &EarlierRun| {
            one.counted.keys().filter(|fingerprint| !other.counted.contains_key(*fingerprint)).count()
        };
        rows.push(json!({
            "id": clean(&run.id),
            "started": run.started.as_deref().map(clean),
            "seconds": run.seconds,
            "error": count(Severity::Error),
            "warning": count(Severity::Warning),
            "performance": count(Severity::Performance),
            "new": before.map(|before| missing_in(run, before)),
            "gone": before.map(|before| missing_in(before, run)),
        }));
        before = Some(run);
    }
    rows
}

#[cfg(test)]
mod tests {
    use pmvet_findings::{Evidence, Finding, rules};

    use super::*;

    fn run(id: &str, fingerprints: &[&str], known: &[&str]) -> Run {
        let finding = |fingerprint: &&str| Finding {
            rule: rules::UNPERSISTED_STORE.id(),
            severity: Severity::Error,
            title: "a store is lost".into(),
            places: Vec::new(),
            expected: String::new(),
            happened: String::new(),
            fix: String::new(),
            caveat: None,
            evidence: Evidence::Trace { timeline: Vec::new() },
            count: 1,
            fingerprint: (*fingerprint).into(),
            replay: None,
        };
        Run {
            id: id.into(),
            findings: fingerprints.iter().map(finding).collect(),
            known: known.iter().map(|&fingerprint| fingerprint.into()).collect(),
            ..Run::default()
        }
    }

    #[test]
    fn what_came_and_went_is_counted_from_run_to_run() {
        let earlier =
            [run("1", &["a", "b"], &[]), run("2", &["b", "c", "d"], &["d"])].map(|run| EarlierRun::from(&run));
        let rows = rows(&earlier, &run("3", &["b", "c"], &[]));
        let shown = |row: &Value| (row["error"].as_u64(), row["new"].as_u64(), row["gone"].as_u64());
        let expected = [(Some(2), None, None), (Some(2), Some(1), Some(1)), (Some(2), Some(0), Some(0))];
        assert_eq!(rows.iter().map(shown).collect::<Vec<_>>(), expected, "a finding of the baseline does not count");
    }

    #[test]
    fn the_first_run_has_no_trend() {
        assert!(rows(&[], &run("1", &["a"], &[])).is_empty());
    }
}
