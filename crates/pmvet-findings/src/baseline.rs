//! Baselines: findings that are known already, and how two sets of findings differ.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::{finding::Finding, jsonl};

const VERSION: u32 = 1;

/// A file that users keep beside their code. Its titles are for people who read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    version: u32,
    /// Fingerprints, with rule and title.
    baseline: BTreeMap<String, String>,
}

/// Why a text is not accepted as a baseline.
#[derive(Debug, thiserror::Error)]
pub enum BaselineError {
    /// It is of a version that this pmvet does not read.
    #[error("the baseline is of version {0}, this pmvet reads version {VERSION}")]
    Version(u32),
    /// It has no known format; with the error from reading it as a `findings.jsonl`.
    #[error("the baseline is neither a baseline, nor an exported run, nor a findings.jsonl: {0}")]
    NotABaseline(jsonl::JsonlError),
}

impl Baseline {
    /// A baseline of these findings. Those without a fingerprint are left out.
    pub fn from_findings<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> Self {
        let entry = |f: &Finding| (f.fingerprint.clone(), format!("{}: {}", f.rule, f.title));
        let baseline = findings.into_iter().filter(|f| !f.fingerprint.is_empty()).map(entry).collect();
        Baseline { version: VERSION, baseline }
    }

    /// Reads a baseline, an exported run or a `findings.jsonl`.
    pub fn parse(text: &str) -> Result<Self, BaselineError> {
        #[derive(Deserialize)]
        struct Exported {
            findings: Vec<Finding>,
        }
        if let Ok(baseline) = serde_json::from_str::<Baseline>(text) {
            return if baseline.version == VERSION {
                Ok(baseline)
            } else {
                Err(BaselineError::Version(baseline.version))
            };
        }
        if let Ok(run) = serde_json::from_str::<Exported>(text) {
            return Ok(Baseline::from_findings(&run.findings));
        }
        let findings: Result<Vec<_>, _> = jsonl::read(text.as_bytes()).collect();
        Ok(Baseline::from_findings(&findings.map_err(BaselineError::NotABaseline)?))
    }

    /// The content of the file, readable for people.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// Whether a finding with the same fingerprint is known.
    pub fn contains(&self, finding: &Finding) -> bool {
        self.baseline.contains_key(&finding.fingerprint)
    }

    /// Its entries: the fingerprint, then rule and title.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &str)> {
        self.baseline.iter().map(|(fingerprint, title)| (fingerprint.as_str(), title.as_str()))
    }

    /// Keeps only entries whose fingerprint is `wanted`.
    pub fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        self.baseline.retain(|fingerprint, _| wanted(fingerprint));
    }

    /// Adds the entries of another baseline, whose titles take precedence.
    pub fn extend(&mut self, later: Baseline) {
        self.baseline.extend(later.baseline);
    }

    /// The fingerprints of those that are known, for [`Run::known`](crate::Run::known).
    pub fn known<'a>(&self, findings: impl IntoIterator<Item = &'a Finding>) -> BTreeSet<String> {
        findings.into_iter().filter(|f| self.contains(f)).map(|f| f.fingerprint.clone()).collect()
    }
}

/// What became of findings from one run to another.
#[derive(Debug, Default, PartialEq)]
pub struct BaselineDiff<'a> {
    /// In the later run only.
    pub new: Vec<&'a Finding>,
    /// In the earlier run only.
    pub fixed: Vec<&'a Finding>,
    /// As in the later run.
    pub same: Vec<&'a Finding>,
}

/// Compares by fingerprints; order is that of the runs.
pub fn diff<'a>(before: &'a [Finding], after: &'a [Finding]) -> BaselineDiff<'a> {
    let old: HashMap<&str, &Finding> = before.iter().map(|f| (f.fingerprint.as_str(), f)).collect();
    let current: HashSet<&str> = after.iter().map(|f| f.fingerprint.as_str()).collect();
    let (same, new) = after.iter().partition(|f| old.contains_key(f.fingerprint.as_str()));
    let fixed = before.iter().filter(|f| !current.contains(f.fingerprint.as_str())).collect();
    BaselineDiff { new, fixed, same }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn baseline(entries: &[(&str, &str)]) -> Baseline {
        let baseline = entries.iter().map(|(print, title)| ((*print).into(), (*title).into())).collect();
        Baseline { version: VERSION, baseline }
    }

    #[test]
    fn entries_come_and_go() {
        let mut known = baseline(&[("a", "old"), ("b", "kept"), ("c", "gone")]);
        known.retain(|fingerprint| fingerprint != "c");
        known.extend(baseline(&[("a", "new"), ("d", "added")]));
        assert_eq!(known.entries().collect::<Vec<_>>(), [("a", "new"), ("b", "kept"), ("d", "added")]);
        assert_eq!(Baseline::parse(&known.to_json().unwrap()).unwrap(), known);
    }
}
