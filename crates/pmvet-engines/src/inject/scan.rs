//! One pass over a recorded run: failure points, and the content of PM at each.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use pmvet_events::event::Event;
use pmvet_events::{ContextId, Places, SiteId, ThreadId};
use pmvet_model::states::{COMBINED_LINES, Reordering, StateLimits};
use pmvet_model::{Line, LineId, Model, Store, WriteKind};
use pmvet_target::crash::{Patch, PmReplay, VersionId, Versions};
use pmvet_target::mapped::MappedFile;
use pmvet_target::recording::Recording;

use super::InjectionPlan;
use super::points::{FailurePoint, FailurePoints};
use crate::causes::wrappers::StoreTargets;
use crate::lab::{Newest, ScanError, TrialImage, lost_stores};
use crate::promises::{PromiseId, Promises};

/// A store that a crash may lose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PendingStore {
    pub(crate) line: LineId,
    pub(crate) seq: u64,
    pub(crate) thread: ThreadId,
    pub(crate) site: SiteId,
    pub(crate) context: ContextId,
    /// Offset in the file.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// It was flushed; only the fence is missing.
    pub(crate) flushing: bool,
    /// It bypasses the cache, so no flush was needed.
    pub(crate) is_non_temporal: bool,
}

impl PendingStore {
    pub(super) fn new(line: &Line, store: &Store) -> Self {
        Self {
            line: line.id(),
            seq: store.seq,
            thread: store.thread,
            site: store.site,
            context: store.context,
            offset: line.id().offset() + store.offset() as u64,
            len: store.len() as u64,
            flushing: line.is_flushing(store),
            is_non_temporal: store.kind == WriteKind::NonTemporal,
        }
    }
}

/// A state that differs from the newest one, at a failure point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReorderedState {
    /// Index of the failure point.
    pub(crate) point: usize,
    pub(crate) choice: Reordering,
    pub(crate) patches: Vec<Patch>,
    pub(crate) lost: Vec<PendingStore>,
    /// How many earlier states were about the same store and failure point.
    visits: u32,
    /// An operation has just been acknowledged.
    follows_answer: bool,
}

impl ReorderedState {
    /// The store that this state tears.
    pub(crate) fn torn(&self) -> Option<&PendingStore> {
        let is_torn = matches!(self.choice, Reordering::Torn(..));
        self.lost.iter().min_by_key(|lost| lost.seq).filter(|_| is_torn)
    }

    /// The lost store that recovery needs, if known, or else the last one.
    pub(crate) fn last_needed(&self, needed: Option<u64>) -> Option<&PendingStore> {
        let known = self.lost.iter().find(|lost| Some(lost.seq) == needed);
        known.or_else(|| self.lost.iter().max_by_key(|lost| lost.seq))
    }

    /// Sort key; the smallest is most likely to show something new. First comes one state for each store and failure point, and of
    /// these a line that is late, as after a forgotten flush or fence. A line that is late when an operation has just been
    /// acknowledged is lost data.
    fn rank(&self) -> (bool, bool, u32, u8, bool) {
        let several = matches!(self.choice, Reordering::Several(..));
        let promised = self.follows_answer && matches!(self.choice, Reordering::Behind(_));
        (!promised, several, self.visits, kind(self.choice), !self.lost.iter().any(|lost| lost.flushing))
    }
}

/// The crashes that a run offers.
#[derive(Debug)]
pub(crate) struct FailurePointScan {
    pub(crate) versions: Versions,
    /// In the order of the run.
    pub(crate) points: Vec<FailurePoint>,
    pub(crate) states: Vec<ReorderedState>,
    /// How many more states the plan left out as less likely to fail.
    pub(crate) unlikely: usize,
    /// The content at the end of the run.
    pub(crate) last: VersionId,
    /// What had been promised by then, if contents are compared.
    last_promise: PromiseId,
    /// Failure points passed, with all visits.
    pub(crate) passed: u64,
    /// Failure points with different call paths.
    pub(crate) unique: usize,
    /// Points at which the limit cut off states.
    pub(crate) cut_short: usize,
    /// Points with so many pending lines that only one of them at a time is early or late.
    pub(crate) not_combined: usize,
    /// Points at which a store can be torn while other lines are pending: only one or the other is tried.
    pub(crate) torn_alone: usize,
    /// The call paths of all failure points passed.
    pub(crate) paths: HashSet<u64>,
    /// Which instructions store to PM, and where to.
    pub(crate) targets: StoreTargets,
}

impl FailurePointScan {
    /// Sets what each crash must keep: what was promised by then.
    pub(crate) fn set_promises(&mut self, promises: &Promises) {
        self.points.iter_mut().for_each(|point| point.promise = promises.at(point.seq));
        self.last_promise = promises.at(u64::MAX);
    }

    /// The end of the run, with some bytes changed.
    pub(crate) fn end_with<'a>(&self, patches: &'a [Patch]) -> TrialImage<'a> {
        TrialImage { version: self.last, patches, promise: self.last_promise }
    }
}

/// How often to lose the same store at the same failure point.
const MOST_PAIRS: u32 = 4;
/// Lower bound of the states with lines in another order that are tried, even in a run with fewer images in program order.
const LEAST_STATES: usize = 32;

/// A store, a failure point, and the kind of reordering.
type Pair = (SiteId, ContextId, SiteId, ContextId, u8);

fn kind(choice: Reordering) -> u8 {
    match choice {
        Reordering::Behind(_) => 0,
        Reordering::Ahead(_) => 1,
        Reordering::Partial(..) => 2,
        Reordering::Torn(..) => 3,
        // Each set of lines is a kind of its own.
        Reordering::Several(_, lines) => 4 + lines,
    }
}

/// Makes a [`FailurePointScan`] out of events.
#[derive(Debug)]
pub(crate) struct FailurePointScanner {
    plan: InjectionPlan,
    replay: PmReplay,
    points: FailurePoints,
    versions: Versions,
    found: Vec<FailurePoint>,
    states: Vec<ReorderedState>,
    /// Known states, with the number of answers: after an answer, the same state must show more.
    seen: HashSet<(u64, VersionId, Vec<Patch>)>,
    /// How often a store of this place was lost, or ahead, at a failure point of that place.
    pairs: HashMap<Pair, u32>,
    cut_short: usize,
    not_combined: usize,
    torn_alone: usize,
    targets: StoreTargets,
}

impl FailurePointScanner {
    /// `store` is an empty file for the pages of all versions; `known` are call paths to leave out.
    pub(crate) fn new(recording: &Recording, plan: InjectionPlan, store: MappedFile, known: Arc<HashSet<u64>>) -> Self {
        Self {
            plan,
            replay: PmReplay::new(recording),
            points: FailurePoints::new(plan.at, plan.visits, known),
            versions: Versions::new(store),
            found: Vec::new(),
            states: Vec::new(),
            seen: HashSet::new(),
            pairs: HashMap::new(),
            cut_short: 0,
            not_combined: 0,
            torn_alone: 0,
            targets: StoreTargets::default(),
        }
    }

    /// Handles an event before it is applied. `model` knows which stores are pending.
    pub(crate) fn before(&mut self, event: &Event<'_>, model: &Model, places: &dyn Places) -> Result<(), ScanError> {
        // Read before `is_point`: the event may be another answer.
        let (follows_answer, answers) = (self.points.follows_answer(), self.points.answers);
        if self.points.is_point(event, places) {
            let (version, _) = self.versions.snapshot(&mut self.replay)?;
            let Event { seq, thread, site, context, .. } = *event;
            self.found.push(FailurePoint { seq, thread, site, context, version, promise: PromiseId::NONE });
            if let Some(reorder) = self.plan.reorder {
                self.reorder(model, version, reorder.states, (follows_answer, answers));
            }
        }
        Ok(())
    }

    /// The newest content of PM.
    pub(crate) fn newest(&self) -> Newest<'_> {
        Newest(&self.replay)
    }

    /// Applies an event.
    pub(crate) fn apply(&mut self, event: &Event<'_>) -> Result<(), ScanError> {
        self.targets.note(event);
        Ok(self.replay.apply(event)?)
    }

    fn reorder(&mut self, model: &Model, version: VersionId, most: usize, (follows_answer, answers): (bool, u64)) {
        let limits = StateLimits { states: most, ..StateLimits::default() };
        let states = model.adversarial(limits);
        self.cut_short += usize::from(states.len() >= most);
        self.not_combined += usize::from(model.pending_lines() > COMBINED_LINES);
        let tears = states.iter().any(|state| matches!(state.choice, Reordering::Torn(..)));
        self.torn_alone += usize::from(tears && model.pending_lines() > 1);
        let point = self.found.len() - 1;
        let at = self.found[point];
        for state in states {
            // Limits states per store instruction and failure point: a hundred similar lines would show no more than one.
            let (Reordering::Behind(line)
            | Reordering::Ahead(line)
            | Reordering::Partial(line, _)
            | Reordering::Torn(line, ..)
            | Reordering::Several(line, _)) = state.choice;
            let Some(line) = model.line(line) else { continue };
            let store = match state.choice {
                Reordering::Torn(_, kept, _) => line.stores().get(kept),
                _ => line.stores().last(),
            };
            let Some(store) = store else { continue };
            let visits =
                self.pairs.entry((store.site, store.context, at.site, at.context, kind(state.choice))).or_default();
            let before = *visits;
            *visits += 1;
            if before >= self.plan.visits.min(MOST_PAIRS) {
                continue;
            }
            let patches = lost_stores::of_cuts(model, &state.cuts);
            if patches.is_empty() || !self.seen.insert((answers, version, patches.clone())) {
                continue;
            }
            let lost = model.lost(&state.cuts);
            let lost = lost.filter_map(|(id, store)| Some(PendingStore::new(model.line(id)?, store))).collect();
            let (choice, visits) = (state.choice, before);
            self.states.push(ReorderedState { point, choice, patches, lost, visits, follows_answer });
        }
    }

    /// Keeps the states that are most likely to fail, in the order of the run. Returns how many others there were.
    fn keep_likely_states(&mut self) -> usize {
        let images = self.found.iter().map(|point| point.version).collect::<HashSet<_>>().len();
        let most = images.max(LEAST_STATES);
        let all = self.states.len();
        self.states.sort_by_key(ReorderedState::rank);
        self.states.truncate(most);
        self.states.sort_by_key(|state| state.point);
        all - self.states.len()
    }

    pub(crate) fn finish(mut self) -> Result<FailurePointScan, ScanError> {
        let (last, _) = self.versions.snapshot(&mut self.replay)?;
        let all = self.plan.reorder.is_none_or(|reorder| reorder.all);
        let unlikely = if all { 0 } else { self.keep_likely_states() };
        Ok(FailurePointScan {
            versions: self.versions,
            points: self.found,
            states: self.states,
            unlikely,
            last,
            last_promise: PromiseId::NONE,
            passed: self.points.passed,
            unique: self.points.unique(),
            cut_short: self.cut_short,
            not_combined: self.not_combined,
            torn_alone: self.torn_alone,
            paths: self.points.paths,
            targets: self.targets,
        })
    }
}
