//! Crashes of one recorded run: which images are tried, and the findings from them.
//!
//! What the rules suspect is tried, too: the final content of PM without a store that is never made persistent is one more image, and
//! if recovery fails on it, the rule's finding is proven.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use pmvet_findings::{Evidence, Finding, Outcome, Sources, rules};
use pmvet_model::LineId;
use pmvet_target::crash::Patch;

use super::CheckPlan;
use super::recorded_run::RecordedRun;
use crate::causes::early_stores::{self, Decisive, EventSite, FatalLoss};
use crate::causes::needed_store::{self, LostLines, LostStore};
use crate::causes::windows::{FailureMode, PointVerdict, Window};
use crate::causes::{self, Failures};
use crate::inject::findings;
use crate::inject::part::{Part, ToCrash};
use crate::inject::refine::{self, TurningPoint};
use crate::inject::{FailurePointScan, PendingStore, ReorderedState};
use crate::lab::{
    Bench, Lab, LabError, RecoveryCommand, TrialCounts, TrialImage, TrialJournal, TrialPool, TrialProgress, Tried,
    UsualRecovery, Witness,
};
use crate::timeline;
use crate::transactions::{self, EscapingLines};

/// How many failures are traced back to the store that caused them.
const MOST_NARROWED_FAILURES: usize = 64;
/// How many recoveries are timed alone, for the statistics.
const TIMED_RECOVERIES: usize = 5;
/// In the folder of a recording: the recoveries that were tried.
pub(super) const JOURNAL: &str = "tried.jsonl";

/// The crashes of one recorded run.
#[derive(Debug)]
pub(super) struct Injection<'a> {
    plan: &'a CheckPlan,
    run: &'a RecordedRun,
    lab: Lab<'a>,
    recovery: RecoveryCommand,
    /// How recovery ends when nothing was injected.
    usual: &'a Outcome,
    part: Part,
}

/// The results of fault injection.
#[derive(Debug)]
pub(super) struct Injected {
    /// First one for each cause of `failures`, then the others.
    pub(super) findings: Vec<Finding>,
    /// Findings that were counted into one of these, for other shards to count.
    pub(super) counted: Vec<Finding>,
    /// Failures in a row; the first of each kind has the position of its finding.
    pub(super) failures: Vec<(Failures, Option<usize>)>,
    /// Positions of the failure points whose recoveries are to be crashed, too.
    pub(super) to_crash: Vec<usize>,
    /// What is needed to rebuild each failing image, by the hash of the image.
    pub(super) witnesses: HashMap<String, Witness>,
    pub(super) verdicts: Vec<PointVerdict>,
    pub(super) done: TrialCounts,
    pub(super) recovery_seconds: f64,
    pub(super) mean_recovery_seconds: Option<f64>,
    pub(super) images: usize,
    pub(super) states: usize,
    /// Why trials are missing in the journal, if any are.
    pub(super) unsaved: Option<LabError>,
}

/// Images that were tried.
struct TriedImages {
    done: TrialCounts,
    /// How many there are in program order.
    images: usize,
    /// Points to crash recoveries from.
    to_crash: ToCrash,
}

/// A store that a rule suspects, lost when the run has ended.
#[derive(Debug)]
struct SuspectedLoss {
    /// Position of the rule's finding.
    finding: usize,
    seq: u64,
    line: LineId,
    /// What makes the final content one without it, and without what its line got later.
    patches: Vec<Patch>,
}

/// A reordered crash, and what recovery did.
struct FatalState<'a> {
    state: &'a ReorderedState,
    tried: Tried,
    /// The lost store that recovery needs, by number.
    needed: Option<u64>,
    /// The store that decides, if known.
    decisive: Option<Decisive>,
}

/// Findings, and the failures that they are about.
type Worded = (Vec<Finding>, Vec<(Failures, Option<usize>)>);

impl<'a> Injection<'a> {
    /// `recovery` is that of this run; its timeout is not set yet.
    pub(super) fn new(
        plan: &'a CheckPlan,
        run: &'a RecordedRun,
        lab: Lab<'a>,
        recovery: RecoveryCommand,
        (usual, timeout): (&'a Outcome, Duration),
    ) -> Self {
        let part = Part::new(&run.scan, plan.sample, plan.shard);
        Self { plan, run, lab, recovery: RecoveryCommand { timeout, ..recovery }, usual, part }
    }

    /// Tries the crashes, and finds the points from which `recoveries` recoveries can be crashed.
    pub(super) fn run(
        self,
        mut journal: TrialJournal,
        recoveries: usize,
        progress: Box<dyn TrialProgress + '_>,
        sources: &Sources,
    ) -> Result<Injected, LabError> {
        let pool = TrialPool {
            recovery: &self.recovery,
            versions: &self.run.scan.versions,
            usual: self.usual,
            workers: self.plan.workers,
            deadline: None,
        };
        let lost = self.lost_stores();
        let started = Instant::now();
        let TriedImages { done, images, to_crash } =
            self.try_images(&pool, &mut journal, &lost, recoveries, &*progress)?;
        let recovery_seconds = started.elapsed().as_secs_f64();
        drop(progress);

        let verdicts = findings::verdicts(&self.run.scan, &journal, self.usual);
        let to_crash = to_crash.finish(&verdicts);
        let setting = UsualRecovery {
            recovery: self.recovery.command.iter().map(|w| w.to_string_lossy().into_owned()).collect(),
            usual: self.usual.clone(),
        };
        let mut witnesses = HashMap::new();
        let (mut all, failures) = self.windows(&pool, &mut journal, &setting, &mut witnesses)?;
        let states = self.fatal_states(&verdicts, &pool, &mut journal, &mut witnesses)?;
        let (by_rules, proven) = self.suspicions(&lost, &journal, &setting, &mut witnesses);
        // One shard alone cannot decide this: joining the shards does.
        let by_rules = match self.plan.shard {
            None => causes::count_suspicions(&mut all, by_rules),
            Some(_) => by_rules,
        };
        all.extend(by_rules);
        // If a rule and a crash blame the same store, the rule says more.
        let known: Vec<Finding> = all.iter().filter(|f| proven.contains(&f.places[0].seq)).cloned().collect();
        let states: Vec<_> =
            states.iter().map(|fatal| (fatal.state, &fatal.tried, fatal.needed, fatal.decisive)).collect();
        let found = self.run.with_names(|names| findings::of_states(&self.run.scan, &states, &known, &setting, names));
        let (found, counted) = causes::count_early(&mut all, found);
        // One shard alone cannot tell what several stores lost together prove.
        let found = match self.plan.shard {
            None => causes::prove_suspicions(&mut all, found),
            Some(_) => found,
        };
        all.extend(found);
        if self.plan.shard.is_none() {
            causes::drop_explained(&mut all);
        }
        let escaping = self.run.with_names(|names| EscapingLines::new(&self.run.raw.transactions, names.stacks));
        transactions::blame_transactions(&mut all, &escaping);
        self.run.name_fields(&mut all, sources);
        self.run.with_names(|names| timeline::tell(&self.lab.recording(), &mut all, names.stacks))?;
        Ok(Injected {
            findings: all,
            counted,
            failures,
            to_crash,
            witnesses,
            verdicts,
            done,
            recovery_seconds,
            unsaved: journal.take_failure().map(|e| LabError::output("write", JOURNAL, e)),
            mean_recovery_seconds: self.time_alone(),
            images,
            states: self.chosen_states().count(),
        })
    }

    /// Tries this shard's part of the images, and those needed to interpret them.
    fn try_images(
        &self,
        pool: &TrialPool<'_>,
        journal: &mut TrialJournal,
        lost: &[SuspectedLoss],
        recoveries: usize,
        progress: &dyn TrialProgress,
    ) -> Result<TriedImages, LabError> {
        let scan = &self.run.scan;
        let mut jobs: Vec<TrialImage<'_>> = self.part.own().map(|i| scan.points[i].image()).collect();
        let images = jobs.iter().map(|job| job.version).collect::<HashSet<_>>().len();
        jobs.extend(self.chosen_states().map(|s| scan.points[s.point].image_with(&s.patches)));
        let (mine, others): (Vec<_>, Vec<_>) = lost.iter().enumerate().partition(|(i, _)| self.part.owns_job(*i));
        jobs.extend(mine.into_iter().map(|(_, loss)| scan.end_with(&loss.patches)));
        let done = pool.run(&jobs, journal, progress).map_err(not_run)?;
        // Images that other shards count: what is said about a store depends on all of them.
        let others: Vec<TrialImage<'_>> = others.into_iter().map(|(_, loss)| scan.end_with(&loss.patches)).collect();
        pool.run(&others, journal, &()).map_err(not_run)?;
        try_more(scan, pool, journal, |verdicts| self.part.neighbours(verdicts))?;
        let failing = self.chosen_states().filter(|state| self.failure(&self.image_of(state), journal).is_some());
        let before: Vec<usize> = failing.filter_map(|state| state.point.checked_sub(1)).collect();
        let not_tried = |verdicts: &[PointVerdict], i: usize| verdicts[i] == PointVerdict::NotTried;
        try_more(scan, pool, journal, |verdicts| before.iter().copied().filter(|&i| not_tried(verdicts, i)).collect())?;
        let mut to_crash = self.part.to_crash(&scan.points, recoveries);
        try_more(scan, pool, journal, |verdicts| to_crash.step(verdicts))?;
        Ok(TriedImages { done, images, to_crash })
    }

    /// Findings for failures in program order, traced back to stores.
    fn windows(
        &self,
        pool: &TrialPool<'_>,
        journal: &mut TrialJournal,
        setting: &UsualRecovery,
        witnesses: &mut HashMap<String, Witness>,
    ) -> Result<Worded, LabError> {
        let scan = &self.run.scan;
        let windows: Vec<(Window, Tried)> = findings::failures(scan, journal, self.usual)
            .into_iter()
            .filter(|(window, _)| self.part.owns(window.opened))
            .map(|(window, tried)| (window, tried.clone()))
            .collect();
        if windows.is_empty() {
            return Ok(Worded::default());
        }
        let recording = self.lab.recording();
        let mut spans: Vec<TurningPoint> = windows
            .iter()
            .map(|(window, tried)| TurningPoint {
                good: window.before.map_or(1, |before| scan.points[before].seq),
                bad: scan.points[window.first].seq,
                mode: FailureMode::from(&tried.outcome),
            })
            .collect();
        let most = spans.len().min(MOST_NARROWED_FAILURES);
        refine::narrow(&recording, &mut spans[..most], pool, journal, || self.lab.temporary_file())?;
        let closings: Vec<Option<u64>> =
            windows.iter().map(|(window, _)| Some(scan.points[window.after?].seq)).collect();
        let culprits = refine::blame(&recording, &spans, &closings, self.plan.mode)?;
        let found: Vec<_> =
            windows.iter().zip(culprits).map(|((window, tried), culprit)| (*window, tried, culprit)).collect();
        let worded = self.run.with_names(|names| findings::of_windows(scan, &found, setting, names));
        for (window, tried) in &windows {
            let point = &scan.points[window.first];
            witnesses.insert(tried.image.clone(), self.witness(Some(point.seq), &point.image()));
        }
        Ok(worded)
    }

    /// Reordered crashes that are fatal for a reason of their own, at points where the crash in program order is not, each with the
    /// store that decides it, if experiments find one.
    fn fatal_states(
        &self,
        verdicts: &[PointVerdict],
        pool: &TrialPool<'_>,
        journal: &mut TrialJournal,
        witnesses: &mut HashMap<String, Witness>,
    ) -> Result<Vec<FatalState<'a>>, LabError> {
        let scan = &self.run.scan;
        let is_new = |state: &&ReorderedState| {
            let tried = self.failure(&self.image_of(state), journal);
            tried.is_some_and(|t| !findings::prolongs_a_window(scan, journal, self.usual, state, &t.outcome))
        };
        let good = |state: &&ReorderedState| verdicts[state.point] == PointVerdict::Good && !state.lost.is_empty();
        let failing: Vec<&'a ReorderedState> = self.chosen_states().filter(good).filter(is_new).collect();
        let lines: Vec<LostLines> = failing.iter().map(|state| lost_lines(scan, state)).collect();
        let needed = needed_store::find(&self.lab.recording(), &lines, pool, journal)?;
        let both = failing.iter().zip(&needed);
        let losses: Vec<FatalLoss<'_>> = both.filter_map(|(state, needed)| fatal_loss(scan, state, *needed)).collect();
        let early = early_stores::find(&self.lab.recording(), &losses, pool, journal)?;
        let mut states = Vec::new();
        for ((state, needed), decisive) in failing.into_iter().zip(needed).zip(early) {
            let Some(tried) = self.failure(&self.image_of(state), journal) else { continue };
            let point = &scan.points[state.point];
            let witness = self.witness(Some(point.seq), &point.image_with(&state.patches));
            witnesses.insert(tried.image.clone(), witness);
            states.push(FatalState { state, tried: tried.clone(), needed, decisive });
        }
        Ok(states)
    }

    /// The findings of the rules, some of them proven by recovery. Also returns the stores of the proven ones.
    fn suspicions(
        &self,
        lost: &[SuspectedLoss],
        journal: &TrialJournal,
        setting: &UsualRecovery,
        witnesses: &mut HashMap<String, Witness>,
    ) -> (Vec<Finding>, HashSet<Option<u64>>) {
        let scan = &self.run.scan;
        let fatal_losses =
            needed_stores(lost, |loss| self.failure(&scan.end_with(&loss.patches).name(&scan.versions), journal));
        // By the number of the first store of the place whose loss is fatal.
        let mut fatal: HashMap<u64, &Tried> = HashMap::new();
        let mut raw = self.run.raw.findings.clone();
        for (loss, tried) in fatal_losses {
            raw[loss.finding].needed = true;
            fatal.entry(raw[loss.finding].place.seq).or_insert(tried);
            witnesses.insert(tried.image.clone(), self.witness(None, &scan.end_with(&loss.patches)));
        }
        // Data that recovery needs is not meant to be volatile.
        let volatile = raw.iter_mut().filter(|f| f.rule == rules::TRANSIENT_DATA);
        let needed = volatile.filter(|f| fatal.contains_key(&f.place.seq));
        needed.for_each(|f| f.rule = rules::UNPERSISTED_STORE);
        let about_loss = [rules::UNPERSISTED_STORE.id(), rules::TX_STORE_NOT_ADDED.id()];
        let (mut all, mut proven) = (Vec::new(), HashSet::new());
        for mut finding in self.run.worded(raw) {
            let is_about_loss = about_loss.contains(&finding.rule);
            let seqs = finding.places.iter().filter(|_| is_about_loss).filter_map(|place| place.seq);
            if let Some(tried) = seqs.filter_map(|seq| fatal.get(&seq)).next()
                && let Evidence::Trace { timeline } = &mut finding.evidence
            {
                let timeline = std::mem::take(timeline);
                proven.insert(finding.places[0].seq);
                let crash = self.run.with_names(|names| findings::witnessed(tried, setting, scan, timeline, names));
                causes::prove(&mut finding, crash);
            }
            all.push(finding);
        }
        (all, proven)
    }

    /// What is needed to rebuild an image: a crash before the event with this number, or at the end.
    fn witness(&self, seq: Option<u64>, image: &TrialImage<'_>) -> Witness {
        let promised = self.recovery.promised.as_ref();
        Witness {
            recording: None,
            seq,
            patches: image.patches.to_vec(),
            promise: promised.and_then(|promised| promised.promises.get(image.promise).cloned()),
        }
    }

    /// The name of the image of a reordered crash.
    fn image_of(&self, state: &ReorderedState) -> String {
        let scan = &self.run.scan;
        scan.points[state.point].image_with(&state.patches).name(&scan.versions)
    }

    /// The recovery from the image with this name, if it was tried and failed.
    fn failure<'j>(&self, image: &str, journal: &'j TrialJournal) -> Option<&'j Tried> {
        journal.get(image).filter(|tried| tried.outcome != *self.usual)
    }

    /// Reordered crashes of this shard.
    fn chosen_states(&self) -> impl Iterator<Item = &'a ReorderedState> + '_ {
        self.run.scan.states.iter().filter(|state| self.part.owns(state.point))
    }

    /// For some stores of each place that never makes them persistent: the final content of PM without that store.
    fn lost_stores(&self) -> Vec<SuspectedLoss> {
        let mut lost = Vec::new();
        for (i, finding) in self.run.raw.findings.iter().enumerate() {
            let transient = finding.rule == rules::TRANSIENT_DATA;
            // Most data that is never flushed is meant to be volatile: a sample will do.
            let step = if transient { finding.lost.len().saturating_sub(1).max(1) } else { 1 };
            for store in finding.lost.iter().step_by(step) {
                if let Some(patches) = store.without.clone() {
                    lost.push(SuspectedLoss { finding: i, seq: store.seq, line: store.line, patches });
                }
            }
        }
        lost
    }

    /// Mean time of a recovery that has the machine to itself.
    fn time_alone(&self) -> Option<f64> {
        let scan = &self.run.scan;
        let mut bench = Bench::default();
        let step = scan.points.len().div_ceil(TIMED_RECOVERIES).max(1);
        let mut times = Vec::new();
        for point in scan.points.iter().step_by(step) {
            let trial = self.recovery.run(&mut bench, &scan.versions, point.image(), Some(self.usual)).ok()??;
            times.push(trial.time.as_secs_f64());
        }
        (!times.is_empty()).then(|| times.iter().sum::<f64>() / times.len() as f64)
    }
}

fn not_run(error: std::io::Error) -> LabError {
    LabError::output("run", "a recovery", error)
}

/// The losses that are fatal by themselves. A lost store takes later stores to its line with it: of several stores to one line whose
/// losses are fatal, recovery needs the last one, and a flush after it covers the others.
fn needed_stores<T>(lost: &[SuspectedLoss], failure: impl Fn(&SuspectedLoss) -> Option<T>) -> Vec<(&SuspectedLoss, T)> {
    let mut fatal: Vec<_> = lost.iter().filter_map(|loss| Some((loss, failure(loss)?))).collect();
    let mut last: HashMap<LineId, u64> = HashMap::new();
    for (loss, _) in &fatal {
        let seq = last.entry(loss.line).or_default();
        *seq = loss.seq.max(*seq);
    }
    fatal.retain(|(loss, _)| last[&loss.line] == loss.seq);
    fatal
}

/// What a state loses, for the search for the store that recovery needs. Empty if a store is torn.
fn lost_lines(scan: &FailurePointScan, state: &ReorderedState) -> LostLines {
    let point = &scan.points[state.point];
    let lost = |lost: &PendingStore| LostStore { seq: lost.seq, site: lost.site, line: lost.line };
    let stores = state.lost.iter().filter(|_| state.torn().is_none()).map(lost).collect();
    LostLines { version: point.version, promise: point.promise, crash: point.site, stores }
}

/// What a state loses, for the search for the store that decides. Nothing if it loses nothing.
/// `needed` is the number of the last lost store that recovery needs; those after it do not matter.
fn fatal_loss<'a>(scan: &FailurePointScan, state: &'a ReorderedState, needed: Option<u64>) -> Option<FatalLoss<'a>> {
    let point = &scan.points[state.point];
    let first = state.lost.iter().min_by_key(|lost| lost.seq)?;
    let last = state.last_needed(needed)?;
    let lost = |store: &PendingStore| EventSite { seq: store.seq, site: store.site };
    Some(FatalLoss {
        crash: EventSite { seq: point.seq, site: point.site },
        version: point.version,
        promise: point.promise,
        patches: &state.patches,
        thread: last.thread,
        lost: Some((lost(first), lost(last))),
        is_flushed: state.lost.iter().all(|lost| lost.flushing),
    })
}

/// Tries crashes at failure points, by position, as long as `wanted` names untried ones.
fn try_more(
    scan: &FailurePointScan,
    pool: &TrialPool<'_>,
    journal: &mut TrialJournal,
    mut wanted: impl FnMut(&[PointVerdict]) -> Vec<usize>,
) -> Result<(), LabError> {
    loop {
        let points = wanted(&findings::verdicts(scan, journal, pool.usual));
        let jobs: Vec<TrialImage<'_>> = points.iter().map(|&i| scan.points[i].image()).collect();
        let done = pool.run(&jobs, journal, &()).map_err(not_run)?;
        // Nothing is left to try, or there is no time left.
        if done.tried == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use pmvet_events::FileId;

    use super::*;

    #[test]
    fn of_stores_to_one_line_the_last_fatal_one_is_needed() {
        // In the same line: a counter, what recovery needs, and another counter. The first two losses are fatal, for the second store.
        let loss = |seq: u64, index: u64| {
            let line = LineId { file: FileId(1), index };
            SuspectedLoss { finding: seq as usize, seq, line, patches: Vec::new() }
        };
        let lost = [loss(10, 0), loss(20, 0), loss(30, 0), loss(15, 1)];
        let is_fatal = |loss: &SuspectedLoss| (loss.seq != 30).then_some(());
        let needed: Vec<u64> = needed_stores(&lost, is_fatal).into_iter().map(|(loss, ())| loss.seq).collect();
        assert_eq!(needed, [20, 15]);
    }
}
