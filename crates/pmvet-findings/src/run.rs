//! A run as all reports see it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    finding::{Finding, Severity},
    rules,
    suppress::{Suppressed, Unused},
    tree::FailurePointTree,
};

/// All data of a report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Name of the run's folder.
    pub id: String,
    /// The target's command line.
    pub command: Vec<String>,
    /// What prepared its files, for a shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<String>,
    /// What was run on the crash images; nothing if none was tried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recover: Vec<String>,
    /// What judged the recovered images, if something did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub oracle: Vec<String>,
    /// pmvet's own version.
    pub version: String,
    /// Everything else that determines the result, by name: the target's build id, the kernel, the libraries.
    #[serde(default)]
    pub versions: BTreeMap<String, String>,
    /// The seed of random choices; nothing if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The engines that ran, as in [`Rule::engine`](rules::Rule::engine). A rule of any other engine was not checked.
    #[serde(default)]
    pub engines: Vec<String>,
    /// When it began, UTC, as in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<String>,
    /// How long the run took, in seconds.
    #[serde(serialize_with = "crate::lossy::finite")]
    pub seconds: f64,
    /// Where the time went, in order.
    #[serde(default)]
    pub phases: Vec<Phase>,
    /// What was looked at, and what was not.
    pub coverage: Coverage,
    /// Without those that are suppressed.
    pub findings: Vec<Finding>,
    /// Fingerprints of findings that were in the baseline: shown, but not counted.
    #[serde(default)]
    pub known: BTreeSet<String>,
    /// Suppressions that were used, with how often.
    #[serde(default)]
    pub suppressed: Vec<Suppressed>,
    /// Suppressions that no finding of this run matched.
    #[serde(default)]
    pub unused_suppressions: Vec<Unused>,
    /// The failure points and their outcomes; nothing if no crash was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<FailurePointTree>,
    /// The same for crashes of recoveries; nothing if none was crashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery_tree: Option<FailurePointTree>,
}

/// A part of a run's time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// What was done, such as `recording`.
    pub name: String,
    /// How long it took, in seconds.
    #[serde(serialize_with = "crate::lossy::finite")]
    pub seconds: f64,
}

/// What the run looked at, and what it did not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// What was looked at; with several engines, the name says whose it is.
    #[serde(default)]
    pub counters: Vec<Counter>,
    /// Half sentences, such as `loads by the kernel (io_uring)`.
    #[serde(default)]
    pub not_covered: Vec<String>,
    /// The same by engine, if there were several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub engines: Vec<EngineCoverage>,
}

/// What one of several engines looked at, and what it did not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineCoverage {
    /// As in [`Rule::engine`](rules::Rule::engine).
    pub engine: String,
    /// What it looked at.
    pub counters: Vec<Counter>,
    /// Half sentences, as in [`Coverage::not_covered`].
    pub not_covered: Vec<String>,
}

/// How many of something were looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// In the plural: `failure points`.
    pub name: String,
    /// How many were looked at.
    pub done: u64,
    /// How many there are, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<u64>,
}

impl Coverage {
    /// Adds a counter. `of` is how many there are, if that is known.
    pub fn count(&mut self, name: impl Into<String>, done: u64, of: Option<u64>) {
        self.counters.push(Counter { name: name.into(), done, of });
    }

    /// Adds what one of several engines covered.
    pub fn add(&mut self, engine: &str, coverage: Coverage) {
        let Coverage { counters, not_covered, .. } = coverage;
        self.counters.extend(
            counters.iter().map(|counter| Counter { name: format!("{} ({engine})", counter.name), ..counter.clone() }),
        );
        self.not_covered.extend(not_covered.iter().map(|remark| format!("{engine}: {remark}")));
        self.engines.push(EngineCoverage { engine: engine.into(), counters, not_covered });
    }
}

impl std::fmt::Display for Counter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.of {
            Some(of) if of != self.done => write!(f, "{} of {} {}", self.done, of, self.name),
            _ => write!(f, "{} {}", self.done, self.name),
        }
    }
}

impl Run {
    /// Whether the finding is in the baseline.
    pub fn is_known(&self, finding: &Finding) -> bool {
        self.known.contains(&finding.fingerprint)
    }

    /// Findings that count: new, and not of a pedantic rule unless `pedantic`.
    pub fn counted(&self, pedantic: bool) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |f| !self.is_known(f) && (pedantic || !is_pedantic(f)))
    }

    /// Whether a finding that counts is at least as grave as this.
    pub fn fails(&self, on: Severity, pedantic: bool) -> bool {
        self.counted(pedantic).any(|f| f.severity >= on)
    }
}

/// Whether the finding's rule holds for correct programs too.
pub fn is_pedantic(finding: &Finding) -> bool {
    rules::find(&finding.rule.0).is_some_and(|rule| rule.pedantic)
}
