//! Whether another store that is lost with one is to blame for the failure.
//!
//! A line keeps the order of its stores: a crash that loses one loses the later ones, too. A crash may also lose what its thread had stored
//! before. So recovery also runs with only one of the others lost. If it fails then, an earlier store gets the error instead, and a later
//! one if it is proven by itself.

use std::collections::{BTreeMap, BTreeSet};

use pmvet_target::crash::Patch;

use super::instruction::Instruction;
use super::judge::Judge;
use super::judged_run::JudgedRun;
use super::meeting::{PmAccess, SuspectLoss};
use super::race_case::RaceCase;
use super::search::Confirmed;
use super::verdict::RecoveryOutcome;
use crate::lab::{LabError, TrialImage};

/// Another store that is lost with one. Its loss alone is fatal.
pub(super) struct Culprit<'a> {
    pub(super) at: Instruction,
    /// Writes over the image to lose it.
    pub(super) patches: &'a [Patch],
    /// The store, if it came before.
    pub(super) before: Option<PmAccess>,
}

impl Judge<'_> {
    /// The other stores whose loss alone makes recovery fail, too.
    pub(super) fn culprits<'c>(
        &mut self,
        case: &RaceCase<'c>,
        run: &mut JudgedRun,
        confirmed: &mut Confirmed,
    ) -> Result<Vec<Culprit<'c>>, LabError> {
        let crash = case.crash;
        let image = |patches| TrialImage { version: crash.version, patches, promise: case.promise };
        let jobs: Vec<TrialImage<'_>> = crash.suspects.iter().map(|suspect| image(&suspect.patches[..])).collect();
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let grace = self.grace();
        confirmed.images += self.recover(&run.meetings.versions, &jobs, grace)?;
        let failed = |job: &TrialImage<'_>| self.went(&run.meetings.versions, job) == RecoveryOutcome::Badly;
        let mut stacks = run.symbols.with(&run.places);
        let fatal = crash.suspects.iter().zip(&jobs).filter(|(_, job)| failed(job)).map(|(suspect, _)| suspect);
        let culprit = |suspect: &'c SuspectLoss| {
            let before = crash.lost.iter().find(|lost| lost.site == suspect.site).copied();
            Some(Culprit { at: Instruction::at(suspect.site, &mut stacks)?, patches: &suspect.patches, before })
        };
        Ok(fatal.filter_map(culprit).collect())
    }
}

/// Removes findings that those of culprits cover, and returns the stores that are covered. Of two that cover each other, one stays.
pub(super) fn leave_to_culprits<T>(
    findings: &mut BTreeMap<Instruction, T>,
    culprits: &BTreeMap<Instruction, BTreeSet<Instruction>>,
) -> BTreeSet<Instruction> {
    let mut left = BTreeSet::new();
    for (store, others) in culprits {
        let is_proven = |other: &Instruction| other != store && findings.contains_key(other);
        if others.iter().any(is_proven) {
            findings.remove(store);
            left.insert(store.clone());
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(offset: u64) -> Instruction {
        Instruction { module: "program".into(), offset }
    }

    #[test]
    fn a_store_is_left_only_to_one_that_is_proven() {
        for (proven, culprits, expected) in [
            (&[1, 2][..], &[(1, 2)][..], &[1][..]),
            (&[1], &[(1, 2)], &[]),
            // All of them are as bad: the last one stays.
            (&[1, 2, 3], &[(1, 2), (1, 3), (2, 3)], &[1, 2]),
            (&[1, 2], &[(1, 2), (2, 1)], &[1]),
            (&[2], &[(1, 2), (2, 2)], &[1]),
        ] {
            let mut findings: BTreeMap<Instruction, ()> = proven.iter().map(|&at| (store(at), ())).collect();
            let mut known: BTreeMap<Instruction, BTreeSet<Instruction>> = BTreeMap::new();
            for &(lost, culprit) in culprits {
                known.entry(store(lost)).or_default().insert(store(culprit));
            }
            let left: Vec<u64> = leave_to_culprits(&mut findings, &known).iter().map(|store| store.offset).collect();
            assert_eq!(left, expected, "{proven:?} {culprits:?}");
            assert!(findings.keys().all(|store| proven.contains(&store.offset) && !left.contains(&store.offset)));
        }
    }
}
