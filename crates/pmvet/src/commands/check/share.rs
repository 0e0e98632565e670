//! What a shard keeps of its findings, so that `pmvet merge` can join them to those of one run: see [`Shares`].

use pmvet_engines::causes::Failures;
use pmvet_findings::Finding;
use pmvet_findings::dedup::Dedup;
use pmvet_findings::suppress::Suppress;
use serde::{Deserialize, Serialize};

use super::injection::Injected;
use crate::reporting;
use crate::run_folder::RunFolder;

/// `shard.json`: all that was found, without what only the report decides.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Shares {
    pub(crate) shares: Vec<Share>,
    pub(crate) witnesses: reporting::Witnesses,
    /// What the configuration hides.
    pub(crate) suppress: Vec<Suppress>,
}

impl Shares {
    pub(crate) const FILE: &str = "shard.json";
}

/// What was found in one recording.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Share {
    /// Of a recovery; nothing for that of the workload.
    pub(crate) recording: Option<String>,
    pub(crate) failures: Vec<Failures>,
    /// What does not come from these failures.
    pub(crate) others: Vec<Finding>,
}

impl Share {
    pub(super) fn new(recording: Option<&str>, injected: &Injected) -> Self {
        let of_failures = injected.failures.iter().filter_map(|(_, at)| *at).max().map_or(0, |last| last + 1);
        let (first, others) = injected.findings.split_at(of_failures);
        let failure = |(failures, at): &(Failures, Option<usize>)| Failures {
            finding: at.map(|at| first[at].clone()),
            ..failures.clone()
        };
        let failures = injected.failures.iter().map(failure).collect();
        let others = others.iter().chain(&injected.counted).cloned().collect();
        Self { recording: recording.map(Into::into), failures, others }
    }

    pub(super) fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.failures.iter().filter_map(|failures| failures.finding.as_ref()).chain(&self.others)
    }

    /// Gives findings names and fingerprints, for which whoever joins them may lack the sources.
    pub(super) fn complete(&mut self, folder: &RunFolder) {
        let sources = reporting::sources();
        let mut dedup = Dedup::new(&sources);
        self.failures.iter_mut().filter_map(|failures| failures.finding.as_mut()).for_each(|f| dedup.complete(f));
        for mut finding in std::mem::take(&mut self.others) {
            dedup.complete(&mut finding);
            dedup.add(finding);
        }
        self.others = dedup.finish(&folder.id);
    }
}
