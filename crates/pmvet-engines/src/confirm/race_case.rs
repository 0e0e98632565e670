//! The crashes of a run that may prove races, and their order.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use pmvet_events::ContextId;
use pmvet_target::crash::Patch;

use super::instruction::Instruction;
use super::policy::POLICY;
use super::search::Confirmed;
use super::verdict::RaceVerdict;
use super::{Meeting, MeetingCrash};
use crate::lab::TrialImage;
use crate::promises::PromiseId;

/// A crash that may prove a race.
pub(super) struct RaceCase<'a> {
    pub(super) meeting: &'a Meeting,
    pub(super) crash: &'a MeetingCrash,
    pub(super) pair: &'a (Instruction, Instruction),
    /// What must be there.
    pub(super) promise: PromiseId,
    /// The same without what the writer has acknowledged since the load.
    pub(super) excused: PromiseId,
    /// Patches that free locks known to stay held, for all images of the case.
    pub(super) free: &'a [Patch],
}

impl<'a> RaceCase<'a> {
    pub(super) fn job(&self) -> TrialImage<'a> {
        TrialImage { version: self.crash.version, patches: &self.crash.patches, promise: self.promise }
    }

    /// With nothing lost.
    pub(super) fn whole(&self) -> TrialImage<'a> {
        TrialImage { patches: self.free, ..self.job() }
    }

    /// With only the later stores of other threads to the same lines lost. Nothing: there are none.
    pub(super) fn others(&self) -> Option<TrialImage<'a>> {
        let others = &self.crash.others;
        (!others.is_empty()).then_some(TrialImage { patches: others, ..self.job() })
    }

    /// With the same loss, but what the writer itself has acknowledged may be missing. Nothing: it has acknowledged nothing.
    pub(super) fn excused(&self) -> Option<TrialImage<'a>> {
        (self.excused != self.promise).then_some(TrialImage { promise: self.excused, ..self.job() })
    }

    /// With only the writer's earlier stores lost. Nothing: there are none.
    pub(super) fn beside(&self) -> Option<TrialImage<'a>> {
        let beside = &self.crash.beside;
        (!beside.is_empty()).then_some(TrialImage { patches: beside, ..self.job() })
    }

    /// The image that shows what is wrong.
    pub(super) fn proof(&self, verdict: RaceVerdict) -> TrialImage<'a> {
        if verdict == RaceVerdict::TakenBack { self.whole() } else { self.job() }
    }

    /// The reader has just acted, and the act is known to be related to the store.
    pub(super) fn is_of_reader(&self, confirmed: &Confirmed) -> bool {
        let Meeting { load, read, .. } = self.meeting;
        let predicted = confirmed.predicted.is_empty() || confirmed.predicted.contains(self.pair);
        *read && !self.meeting.is_intra() && self.crash.act.thread == load.thread && predicted
    }

    pub(super) fn id(&self) -> usize {
        std::ptr::from_ref(self.crash).addr()
    }
}

/// The crashes of a run.
pub(super) struct RunCases<'a> {
    /// In the order in which they are tried.
    pub(super) worth_trying: Vec<RaceCase<'a>>,
    /// More of pairs that many images of other runs say nothing about.
    pub(super) spare: Vec<RaceCase<'a>>,
}

/// All crashes in the order in which they are tried: predicted pairs first, and of those the stores that the run is
/// `about`; then meetings before anyone acts on the store, which can tell the side to blame; readers that see a change first, fences
/// before single stores, and all pairs in turn, with all call paths to the load.
pub(super) fn in_order<'a>(
    meetings: &'a [(Meeting, (Instruction, Instruction))],
    free: &'a [Patch],
    about: &BTreeSet<Instruction>,
    confirmed: &Confirmed,
) -> RunCases<'a> {
    let tries = |pair| confirmed.tallies.get(pair).map_or(0, |tally| tally.tries);
    let mut order: Vec<usize> = (0..meetings.len()).collect();
    order.sort_by_key(|&i| (!meetings[i].0.sees_change, Reverse(meetings[i].0.acts)));
    let mut seen: HashMap<(&(Instruction, Instruction), ContextId), usize> = HashMap::new();
    let mut cases = Vec::new();
    for (meeting, pair) in order.into_iter().map(|i| &meetings[i]) {
        // Pairs that were tried in other runs without success make room for others.
        let nth = seen.entry((pair, meeting.load.context)).or_insert_with(|| tries(pair));
        let mut crashes: Vec<&MeetingCrash> = meeting.crashes.iter().collect();
        crashes.sort_by_key(|crash| (!crash.answered, !crash.fenced));
        for (later, crash) in crashes.into_iter().enumerate() {
            let turn = *nth + POLICY.meetings_before_second_crash * later;
            let predicted = match meeting.read {
                true if meeting.is_intra() => false,
                true => confirmed.predicted.contains(pair),
                false => confirmed.predicted.iter().any(|(store, _)| *store == pair.0),
            };
            let (promise, excused) = (PromiseId::NONE, PromiseId::NONE);
            let turn = (!about.contains(&pair.0), meeting.acted_before, turn);
            cases.push(((!predicted, turn), RaceCase { meeting, crash, pair, promise, excused, free }));
        }
        *nth += 1;
    }
    cases.sort_by_key(|(turn, _)| *turn);
    let predicted = cases.iter().take_while(|((other, _), _)| !other).count();
    let others = if confirmed.predicted.is_empty() { POLICY.images_per_run } else { POLICY.unpredicted_images_per_run };
    let mut of_pair: HashMap<&(Instruction, Instruction), usize> = HashMap::new();
    let is_worth_trying = |case: &RaceCase<'a>| {
        let before = of_pair.entry(case.pair).or_default();
        *before += 1;
        about.contains(&case.pair.0)
            || tries(case.pair) < POLICY.images_of_pair
            || *before <= POLICY.images_of_tried_pair
    };
    let cases = cases.into_iter().take(predicted + others).map(|(_, case)| case);
    let (worth_trying, spare) = cases.partition(is_worth_trying);
    RunCases { worth_trying, spare }
}
