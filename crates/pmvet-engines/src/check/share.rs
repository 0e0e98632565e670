//! What a shard keeps of its findings, so that all shards together give what one run would have found.

use std::collections::BTreeMap;

use pmvet_findings::dedup::Dedup;
use pmvet_findings::{Finding, Sources, rules};
use serde::{Deserialize, Serialize};

use super::injection::Injected;
use crate::causes::{self, Failures};
use crate::transactions;

/// What was found in one recording.
#[derive(Debug, Serialize, Deserialize)]
pub struct Share {
    /// The recording of a recovery; nothing for that of the workload.
    recording: Option<String>,
    failures: Vec<Failures>,
    /// Findings that do not come from these failures.
    others: Vec<Finding>,
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

    /// All findings of the recording.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.failures.iter().filter_map(|failures| failures.finding.as_ref()).chain(&self.others)
    }

    /// Gives findings names and fingerprints, since the sources may be missing where the shards are joined.
    pub fn complete(&mut self, run_id: &str, sources: &Sources) {
        let mut dedup = Dedup::new(sources);
        self.failures.iter_mut().filter_map(|failures| failures.finding.as_mut()).for_each(|f| dedup.complete(f));
        for mut finding in std::mem::take(&mut self.others) {
            dedup.complete(&mut finding);
            dedup.add(finding);
        }
        self.others = dedup.finish(run_id);
    }
}

/// The findings of all shards, as one run would have found them.
pub fn join_shares(shares: Vec<Share>) -> Vec<Finding> {
    let mut recordings: BTreeMap<Option<String>, Vec<Share>> = BTreeMap::new();
    shares.into_iter().for_each(|share| recordings.entry(share.recording.clone()).or_default().push(share));
    let (mut main, mut in_recovery) = (Vec::new(), Vec::new());
    for (recording, shares) in recordings {
        let to = if recording.is_none() { &mut main } else { &mut in_recovery };
        to.extend(join_recording(shares));
    }
    let more = causes::without_known(&main, in_recovery);
    main.extend(more);
    main
}

/// What all shards have found in one recording.
fn join_recording(shares: Vec<Share>) -> Vec<Finding> {
    let (mut failures, mut lost): (Vec<Failures>, Vec<Finding>) = (Vec::new(), Vec::new());
    // Findings of the rules are the same in each shard.
    let mut by_rules: Vec<Finding> = Vec::new();
    for share in shares {
        failures.extend(share.failures);
        for finding in share.others {
            if finding.rule == rules::REORDERED_CRASH.id() {
                lost.push(finding);
                continue;
            }
            match by_rules.iter_mut().find(|known| known.fingerprint == finding.fingerprint) {
                Some(known) if finding.severity > known.severity => *known = finding,
                Some(known) => known.count = known.count.max(finding.count),
                None => by_rules.push(finding),
            }
        }
    }
    let mut all = causes::join_failures(failures);
    let by_rules = causes::count_suspicions(&mut all, by_rules);
    all.extend(by_rules);
    let (lost, _) = causes::count_early(&mut all, causes::join_lost_stores(lost));
    let lost = causes::prove_suspicions(&mut all, lost);
    all.extend(lost);
    causes::drop_explained(&mut all);
    transactions::one_per_function(all)
}
