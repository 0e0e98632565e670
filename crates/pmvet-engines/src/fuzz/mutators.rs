//! How inputs are changed: as operations, as bytes, or as records of bytes.

use std::borrow::Cow;
use std::rc::Rc;

use libafl::Error as AflError;
use libafl::corpus::CorpusId;
use libafl::mutators::{MutationResult, Mutator};
use libafl::state::{HasCorpus, HasMaxSize, HasRand};
use libafl_bolts::Named;

use super::campaign::SharedState;
use super::case::Case;
use super::stages::{any_input, below};
use crate::operations::{Chance, Operations};

/// Mutates operations or bytes; if the operations are a guess, preferably the kind that has led to more.
pub(super) struct CaseMutator<'a, M> {
    world: SharedState<'a>,
    operations: Option<Operations>,
    bytes: M,
    longest: usize,
    shares: Shares,
}

impl<'a, M> CaseMutator<'a, M> {
    pub(super) fn new(world: &SharedState<'a>, operations: Option<Operations>, bytes: M, longest: usize) -> Self {
        Self { world: Rc::clone(world), operations, bytes, longest, shares: Shares::default() }
    }

    fn kind(&self, below: Chance<'_>) -> MutationKind {
        match &self.operations {
            None => MutationKind::Bytes,
            Some(operations) if operations.are_guessed() => self.shares.choose(below),
            Some(_) if below(8) == 0 => MutationKind::Bytes,
            Some(_) => MutationKind::Operations,
        }
    }
}

impl<M> Named for CaseMutator<'_, M> {
    fn name(&self) -> &Cow<'static, str> {
        static NAME: Cow<'static, str> = Cow::Borrowed("operations-or-bytes");
        &NAME
    }
}

impl<M, S> Mutator<Case, S> for CaseMutator<'_, M>
where
    M: Mutator<Case, S>,
    S: HasRand + HasCorpus<Case>,
{
    fn mutate(&mut self, state: &mut S, case: &mut Case) -> Result<MutationResult, AflError> {
        case.image = self.world.borrow().elsewhere.unwrap_or(case.image);
        let kind = self.kind(&mut |n| below(state, n));
        self.shares.last = kind;
        let Some(operations) = self.operations.as_ref().filter(|_| kind == MutationKind::Operations) else {
            return self.bytes.mutate(state, case);
        };
        let other = any_input(state);
        let changed = operations.mutate(&mut case.input, &other, &mut |n| below(state, n));
        case.input.truncate(self.longest);
        Ok(if changed { MutationResult::Mutated } else { MutationResult::Skipped })
    }

    fn post_exec(&mut self, state: &mut S, id: Option<CorpusId>) -> Result<(), AflError> {
        self.shares.learn(id.is_some());
        self.bytes.post_exec(state, id)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum MutationKind {
    Operations,
    #[default]
    Bytes,
}

/// How often each kind of mutation was tried, and how often it made a case that was kept.
#[derive(Debug, Default)]
struct Shares {
    tried: [u32; 2],
    kept: [u32; 2],
    last: MutationKind,
}

impl Shares {
    /// Older runs count less.
    const RECENT_RUNS: u32 = 4096;
    /// Neither kind gets less than an eighth of the runs.
    const PARTS: usize = 8;

    fn choose(&self, below: Chance<'_>) -> MutationKind {
        let rate =
            |kind: MutationKind| f64::from(self.kept[kind as usize] + 1) / f64::from(self.tried[kind as usize] + 64);
        let share = rate(MutationKind::Operations) / (rate(MutationKind::Operations) + rate(MutationKind::Bytes));
        const FINE: usize = 1 << 16;
        let chosen = match below(Self::PARTS) {
            0 => return MutationKind::Operations,
            1 => return MutationKind::Bytes,
            _ => below(FINE),
        };
        if (chosen as f64) < share * FINE as f64 { MutationKind::Operations } else { MutationKind::Bytes }
    }

    fn learn(&mut self, kept: bool) {
        self.tried[self.last as usize] += 1;
        self.kept[self.last as usize] += u32::from(kept);
        if self.tried[self.last as usize] > Self::RECENT_RUNS {
            self.tried.iter_mut().chain(&mut self.kept).for_each(|count| *count /= 2);
        }
    }
}

/// Adds many records that resemble one in the input, but differ from it and from each other. That fills structures that have
/// to be full before something happens.
#[derive(Debug)]
pub(super) struct Records;

impl Named for Records {
    fn name(&self) -> &Cow<'static, str> {
        static NAME: Cow<'static, str> = Cow::Borrowed("records");
        &NAME
    }
}

impl<S: HasRand + HasMaxSize> Mutator<Case, S> for Records {
    fn mutate(&mut self, state: &mut S, case: &mut Case) -> Result<MutationResult, AflError> {
        let most = state.max_size();
        let changed = populate(&mut case.input, most, &mut |n| below(state, n));
        Ok(if changed { MutationResult::Mutated } else { MutationResult::Skipped })
    }

    fn post_exec(&mut self, _: &mut S, _: Option<CorpusId>) -> Result<(), AflError> {
        Ok(())
    }
}

/// Adds records; the input does not get longer than `most`.
fn populate(input: &mut Vec<u8>, most: usize, below: Chance<'_>) -> bool {
    let size = (1usize << below(5)).min(input.len().max(1));
    let count = (2usize << below(7)).min(most.saturating_sub(input.len()) / size);
    if count == 0 {
        return false;
    }
    let from = below(input.len().saturating_sub(size) + 1);
    let mut record: Vec<u8> = input.get(from..from + size).map_or_else(|| vec![0; size], <[u8]>::to_vec);
    // Either one byte is a key and the others say what to do with it, or each may be anything.
    let varied = if below(2) == 0 {
        0..size
    } else {
        let at = below(size);
        at..at + 1
    };
    let mut records = Vec::with_capacity(count * size);
    for _ in 0..count {
        record[varied.clone()].iter_mut().for_each(|byte| *byte = below(256) as u8);
        records.extend_from_slice(&record);
    }
    let at = below(input.len() / size + 1) * size;
    input.splice(at..at, records);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::tests::chance;

    #[test]
    fn the_kind_that_leads_to_more_is_tried_more_often() {
        let mut shares = Shares::default();
        let mut chance = chance(1);
        let mut tried = [0; 2];
        for round in 0..20_000 {
            let kind = shares.choose(&mut chance);
            tried[kind as usize] += usize::from(round >= 10_000);
            shares.last = kind;
            // Operations lead nowhere at first, and later bytes do.
            shares.learn((round < 5_000) == (kind == MutationKind::Bytes) && chance(20) == 0);
        }
        assert!(tried[MutationKind::Operations as usize] > 6_000, "{tried:?}");
        assert!(tried[MutationKind::Bytes as usize] > 1_000, "{tried:?}");
    }

    #[test]
    fn records_are_like_one_that_is_there() {
        let mut chance = chance(7);
        let (mut like, mut longest) = (0, 0);
        for _ in 0..1000 {
            let mut input = b"p1p2".to_vec();
            assert!(populate(&mut input, 100, &mut chance));
            assert!(input.len() <= 100);
            longest = longest.max(input.len());
            like += usize::from(input.len() >= 20 && input.chunks(2).all(|record| record[0] == b'p'));
        }
        assert!(like > 10 && longest > 90, "{like} {longest}");
        assert!(!populate(&mut vec![0; 100], 100, &mut chance));
        let mut nothing = Vec::new();
        assert!(populate(&mut nothing, 100, &mut chance) && !nothing.is_empty());
    }
}
