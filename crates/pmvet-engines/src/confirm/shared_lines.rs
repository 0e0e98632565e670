//! Stores of one thread to one cache line: a later one may be to blame for a failure after the loss of an earlier one.
//!
//! A line keeps the order of its stores: a crash that loses one loses the later ones, too. So recovery also runs with only the later ones
//! lost. If it fails then, and the later one is proven by itself, the earlier one gets no error of its own.

use std::collections::{BTreeMap, BTreeSet};

use super::instruction::Instruction;
use super::judge::Judge;
use super::judged_run::JudgedRun;
use super::race_case::RaceCase;
use super::search::Confirmed;
use super::verdict::RecoveryOutcome;
use crate::lab::{LabError, TrialImage};

impl Judge<'_> {
    /// The later stores of the line whose loss alone makes recovery fail, too.
    pub(super) fn later_culprits(
        &mut self,
        case: &RaceCase<'_>,
        run: &mut JudgedRun,
        confirmed: &mut Confirmed,
    ) -> Result<BTreeSet<Instruction>, LabError> {
        let image = |patches| TrialImage { version: case.crash.version, patches, promise: case.promise };
        let jobs: Vec<TrialImage<'_>> = case.crash.later.iter().map(|later| image(&later.patches[..])).collect();
        if jobs.is_empty() {
            return Ok(BTreeSet::new());
        }
        let grace = self.grace();
        confirmed.images += self.recover(&run.meetings.versions, &jobs, grace)?;
        let failed = |job: &TrialImage<'_>| self.went(&run.meetings.versions, job) == RecoveryOutcome::Badly;
        let sites: Vec<_> =
            case.crash.later.iter().zip(&jobs).filter(|(_, job)| failed(job)).map(|(later, _)| later.site).collect();
        let mut stacks = run.symbols.with(&run.places);
        Ok(sites.into_iter().filter_map(|site| Instruction::at(site, &mut stacks)).collect())
    }
}

/// Removes findings that those of later stores cover, and returns their stores. Of two that cover each other, one stays.
pub(super) fn leave_to_later<T>(
    findings: &mut BTreeMap<Instruction, T>,
    later: &BTreeMap<Instruction, BTreeSet<Instruction>>,
) -> BTreeSet<Instruction> {
    let mut left = BTreeSet::new();
    for (store, others) in later {
        let is_proven = |other: &Instruction| other != store && findings.contains_key(other);
        if others.iter().any(is_proven) && findings.remove(store).is_some() {
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
        for (proven, later, expected) in [
            (&[1, 2][..], &[(1, 2)][..], &[1][..]),
            (&[1], &[(1, 2)], &[]),
            // All of them are as bad: the last one stays.
            (&[1, 2, 3], &[(1, 2), (1, 3), (2, 3)], &[1, 2]),
            (&[1, 2], &[(1, 2), (2, 1)], &[1]),
            (&[2], &[(1, 2), (2, 2)], &[]),
        ] {
            let mut findings: BTreeMap<Instruction, ()> = proven.iter().map(|&at| (store(at), ())).collect();
            let mut known: BTreeMap<Instruction, BTreeSet<Instruction>> = BTreeMap::new();
            for &(early, late) in later {
                known.entry(store(early)).or_default().insert(store(late));
            }
            let left: Vec<u64> = leave_to_later(&mut findings, &known).iter().map(|store| store.offset).collect();
            assert_eq!(left, expected, "{proven:?} {later:?}");
            assert_eq!(findings.len() + left.len(), proven.len());
        }
    }
}
