//! Crash images and recoveries: which are tried, and what comes of them.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::time::{Duration, Instant};

use pmvet_engines::causes::early_stores::{self, Decisive, EventSite, FatalLoss};
use pmvet_engines::causes::{self, Failures};
use pmvet_engines::inject::findings;
use pmvet_engines::inject::refine::{self, TurningPoint};
use pmvet_engines::inject::windows::{FailureMode, PointVerdict, Window};
use pmvet_engines::inject::{FailurePointScan, PendingStore, ReorderedState};
use pmvet_engines::lab::Bench;
use pmvet_engines::lab::TrialCounts;
use pmvet_engines::lab::UsualRecovery;
use pmvet_engines::lab::{Promised, RecoveryCommand, TrialImage, TrialJournal, TrialPool, Tried};
use pmvet_engines::timeline;
use pmvet_engines::transactions::{self, EscapingLines};
use pmvet_findings::{Evidence, Finding, Outcome, Severity, rules};
use pmvet_target::crash::Patch;
use pmvet_target::mapped::MappedFile;

use super::analysis::CheckAnalysis;
use super::parts::Part;
use super::settings::CheckSettings;
use crate::exit::{Error, Exit};
use crate::progress::ProgressReport;
use crate::recovery::{self, Proven, failed};
use crate::run_folder::RunFolder;
use pmvet_engines::lab::Witness;
use pmvet_target::Workload;

/// How many failures are traced back to the store that caused them.
const MOST_NARROWED: usize = 64;
/// How many recoveries are timed alone, for the statistics.
const TIMED: usize = 5;
/// In the folder of a recording: the recoveries that were tried.
const JOURNAL: &str = "tried.jsonl";

pub(super) struct Injection<'a> {
    settings: &'a CheckSettings,
    analysis: &'a CheckAnalysis,
    folder: &'a RunFolder,
    recovery: RecoveryCommand,
    journal: TrialJournal,
    part: Part,
}

/// What fault injection gave.
pub(super) struct Injected {
    /// First one for each of the causes of `failures`, then the others.
    pub(super) findings: Vec<Finding>,
    /// Findings that are counted with one of these, for other shards to count.
    pub(super) counted: Vec<Finding>,
    /// Failures in a row, with the position of the finding that the first of each kind has.
    pub(super) failures: Vec<(Failures, Option<usize>)>,
    /// Failure points, by position, from which the recoveries are to be crashed, too.
    pub(super) to_crash: Vec<usize>,
    /// What it takes to see each failing image again, by the hash of the image.
    pub(super) witnesses: HashMap<String, Witness>,
    pub(super) verdicts: Vec<PointVerdict>,
    pub(super) done: TrialCounts,
    pub(super) recovery_seconds: f64,
    pub(super) mean_recovery_seconds: Option<f64>,
    pub(super) images: usize,
    pub(super) states: usize,
}

impl<'a> Injection<'a> {
    pub(super) fn new(
        settings: &'a CheckSettings,
        workload: &Workload,
        analysis: &'a CheckAnalysis,
        folder: &'a RunFolder,
        promised: Option<Promised>,
    ) -> Result<Self, Error> {
        let driver = settings.driver.clone().or_else(|| workload.driver.clone());
        let mut recovery = settings.recovering.natively(workload, driver, &analysis.scan.versions, analysis.scan.last);
        recovery.promised = promised;
        let path = folder.file(JOURNAL);
        let journal = TrialJournal::open(&path).map_err(|e| recovery::journal_damaged(&path, e))?;
        if journal.was_torn() {
            recovery::say_torn(&path);
        }
        let part = Part::new(&analysis.scan, settings);
        Ok(Self { settings, analysis, folder, recovery, journal, part })
    }

    /// The oracle's command line, with the files it is to look at.
    pub(super) fn oracle(&self) -> Option<&[OsString]> {
        self.recovery.oracle.as_deref()
    }

    /// Whether the oracle can be trusted; if not, how pmvet ends.
    pub(super) fn prove(&self) -> Result<Result<Proven, Exit>, Error> {
        let scan = &self.analysis.scan;
        self.settings.recovering.prove(&self.recovery, &scan.versions, scan.last)
    }

    /// Tries the crashes, and finds out from where `recoveries` recoveries may be crashed.
    pub(super) fn run(
        mut self,
        usual: Outcome,
        timeout: Duration,
        recoveries: usize,
        quiet: bool,
    ) -> Result<Injected, Error> {
        self.recovery.timeout = timeout;
        let scan = &self.analysis.scan;
        let campaign = TrialPool {
            recovery: &self.recovery,
            versions: &scan.versions,
            usual: &usual,
            workers: self.settings.recovering.jobs,
            deadline: None,
        };
        let progress = ProgressReport::of_crash_images(quiet);
        let mut jobs: Vec<TrialImage<'_>> = self.part.own().map(|i| scan.points[i].image()).collect();
        let images = jobs.iter().map(|job| job.version).collect::<HashSet<_>>().len();
        jobs.extend(self.chosen_states().map(|s| scan.points[s.point].image_with(&s.patches)));
        let lost = self.lost_stores();
        let (mine, others): (Vec<_>, Vec<_>) = lost.iter().enumerate().partition(|(i, _)| self.part.owns_job(*i));
        jobs.extend(mine.into_iter().map(|(_, (_, patches))| scan.end_with(patches)));
        let started = Instant::now();
        let done = campaign.run(&jobs, &mut self.journal, &progress).map_err(|e| failed("run", "a recovery", e))?;
        // What other shards count. What is said about a store depends on all of these.
        let others: Vec<TrialImage<'_>> = others.into_iter().map(|(_, (_, patches))| scan.end_with(patches)).collect();
        campaign.run(&others, &mut self.journal, &()).map_err(|e| failed("run", "a recovery", e))?;
        let part = &self.part;
        try_more(scan, &campaign, &mut self.journal, |verdicts| part.neighbours(verdicts))?;
        let failing = self.chosen_states().filter(|state| self.is_fatal(state, &usual));
        let before: Vec<usize> = failing.filter_map(|state| state.point.checked_sub(1)).collect();
        let not_tried = |verdicts: &[PointVerdict], i: usize| verdicts[i] == PointVerdict::NotTried;
        try_more(scan, &campaign, &mut self.journal, |verdicts| {
            before.iter().copied().filter(|&i| not_tried(verdicts, i)).collect()
        })?;
        let mut to_crash = part.to_crash(&scan.points, recoveries);
        try_more(scan, &campaign, &mut self.journal, |verdicts| to_crash.step(verdicts))?;
        let recovery_seconds = started.elapsed().as_secs_f64();
        progress.finish();

        let mut witnesses = HashMap::new();
        let verdicts = findings::verdicts(scan, &self.journal, &usual);
        let to_crash = to_crash.finish(&verdicts);
        let setting = UsualRecovery {
            recovery: self.recovery.command.iter().map(|w| w.to_string_lossy().into_owned()).collect(),
            usual: usual.clone(),
        };
        let windows: Vec<(Window, Tried)> = findings::failures(scan, &self.journal, &usual)
            .into_iter()
            .filter(|(window, _)| self.part.owns(window.opened))
            .map(|(window, tried)| (window, tried.clone()))
            .collect();
        let (mut all, failures) =
            narrowed(self.folder, scan, &windows, &campaign, &mut self.journal, self.settings, |found| {
                self.analysis.with_names(|names| findings::of_windows(scan, found, &setting, names))
            })?;
        for (window, tried) in &windows {
            let seq = scan.points[window.first].seq;
            witnesses.insert(tried.image.clone(), self.witness(Some(seq), &scan.points[window.first].image()));
        }
        let failing = self.fatal_states(&verdicts, &usual);
        let losses: Vec<FatalLoss<'_>> = failing.iter().filter_map(|state| fatal_loss(scan, state)).collect();
        let early = early_stores::find(&self.folder.recording(), &losses, &campaign, &mut self.journal)?;
        let bad = |image: &str| self.journal.get(image).filter(|tried| tried.outcome != usual);
        let states: Vec<(&ReorderedState, &Tried, Option<Decisive>)> = failing
            .into_iter()
            .zip(early)
            .filter_map(|(state, early)| {
                let tried = bad(&self.image_of(state))?;
                let seq = Some(scan.points[state.point].seq);
                let image = scan.points[state.point].image_with(&state.patches);
                witnesses.insert(tried.image.clone(), self.witness(seq, &image));
                Some((state, tried, early))
            })
            .collect();
        // By the number of the store whose loss is fatal.
        let mut fatal: HashMap<u64, &Tried> = HashMap::new();
        for (i, patches) in &lost {
            if let Some(tried) = bad(&scan.end_with(patches).image(&scan.versions)) {
                fatal.entry(self.analysis.raw.findings[*i].place.seq).or_insert(tried);
                let witness = self.witness(None, &scan.end_with(patches));
                witnesses.insert(tried.image.clone(), witness);
            }
        }
        let mut raw = self.analysis.raw.findings.clone();
        // What recovery needs was not meant to be volatile.
        let volatile = raw.iter_mut().filter(|f| f.rule == rules::TRANSIENT_DATA);
        let needed = volatile.filter(|f| fatal.contains_key(&f.place.seq));
        needed.for_each(|f| f.rule = rules::UNPERSISTED_STORE);
        let about_loss = [rules::UNPERSISTED_STORE.id(), rules::TX_STORE_NOT_ADDED.id()];
        let mut proven = HashSet::new();
        for mut finding in self.analysis.worded(raw) {
            let is_about_loss = about_loss.contains(&finding.rule);
            let seqs = finding.places.iter().filter(|_| is_about_loss).filter_map(|place| place.seq);
            if let Some(tried) = seqs.filter_map(|seq| fatal.get(&seq)).next()
                && let Evidence::Trace { timeline } = &mut finding.evidence
            {
                let timeline = std::mem::take(timeline);
                finding.severity = Severity::Error;
                finding.caveat = None;
                proven.insert(finding.places[0].seq);
                if let Outcome::Content { violation, .. } = &tried.outcome {
                    finding.rule = violation.rule().id();
                }
                finding.happened.push_str(&format!(" If a crash loses it, recovery {}.", tried.outcome));
                finding.evidence =
                    self.analysis.with_names(|names| findings::witnessed(tried, &setting, scan, timeline, names));
            }
            all.push(finding);
        }
        // The same store, found twice: the rule says more.
        let known: Vec<Finding> = all.iter().filter(|f| proven.contains(&f.places[0].seq)).cloned().collect();
        let lost = self.analysis.with_names(|names| findings::of_states(scan, &states, &known, &setting, names));
        let (lost, counted) = causes::count_early(&mut all, lost);
        all.extend(lost);
        let escaping =
            self.analysis.with_names(|names| EscapingLines::new(&self.analysis.raw.transactions, names.stacks));
        transactions::blame_transactions(&mut all, &escaping);
        self.analysis.name_fields(&mut all);
        self.analysis.with_names(|names| timeline::tell(&self.folder.recording(), &mut all, names.stacks))?;
        self.folder.kept(self.journal.take_failure().map_or(Ok(()), |e| Err(failed("write", JOURNAL, e))));
        let mean_recovery_seconds = self.time_alone(&usual);
        let states = self.chosen_states().count();
        Ok(Injected {
            findings: all,
            counted,
            failures,
            to_crash,
            witnesses,
            verdicts,
            done,
            recovery_seconds,
            mean_recovery_seconds,
            images,
            states,
        })
    }

    /// What it takes to make an image again: a crash before the event with this number, or at the end.
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
        let scan = &self.analysis.scan;
        scan.points[state.point].image_with(&state.patches).image(&scan.versions)
    }

    fn is_fatal(&self, state: &ReorderedState, usual: &Outcome) -> bool {
        self.journal.get(&self.image_of(state)).is_some_and(|tried| tried.outcome != *usual)
    }

    /// Reordered crashes that are fatal at points where one in program order is not, for a reason of their own.
    fn fatal_states(&self, verdicts: &[PointVerdict], usual: &Outcome) -> Vec<&'a ReorderedState> {
        let scan = &self.analysis.scan;
        let is_new = |state: &&ReorderedState| {
            let tried = self.journal.get(&self.image_of(state)).filter(|tried| tried.outcome != *usual);
            tried.is_some_and(|t| !findings::prolongs_a_window(scan, &self.journal, usual, state, &t.outcome))
        };
        let good = |state: &&ReorderedState| verdicts[state.point] == PointVerdict::Good && !state.lost.is_empty();
        self.chosen_states().filter(good).filter(is_new).collect()
    }

    fn chosen_states(&self) -> impl Iterator<Item = &'a ReorderedState> + '_ {
        self.analysis.scan.states.iter().filter(|state| self.part.owns(state.point))
    }

    /// For some stores of each place that never makes them persistent: the final content of PM without one.
    fn lost_stores(&self) -> Vec<(usize, Vec<Patch>)> {
        let mut lost = Vec::new();
        for (i, finding) in self.analysis.raw.findings.iter().enumerate() {
            let transient = finding.rule == rules::TRANSIENT_DATA;
            // Most data that is never flushed is meant to be volatile: a sample will do.
            let step = if transient { finding.lost.len().saturating_sub(1).max(1) } else { 1 };
            for patches in finding.lost.iter().step_by(step).filter_map(|store| store.without.as_ref()) {
                lost.push((i, patches.clone()));
            }
        }
        lost
    }

    /// How long a recovery takes that has the machine for itself, on the mean.
    fn time_alone(&self, usual: &Outcome) -> Option<f64> {
        let scan = &self.analysis.scan;
        let mut bench = Bench::default();
        let step = scan.points.len().div_ceil(TIMED).max(1);
        let mut times = Vec::new();
        for point in scan.points.iter().step_by(step) {
            let trial = self.recovery.run(&mut bench, &scan.versions, point.image(), Some(usual)).ok()??;
            times.push(trial.time.as_secs_f64());
        }
        (!times.is_empty()).then(|| times.iter().sum::<f64>() / times.len() as f64)
    }
}

/// What a state has lost, for the search for the store that decides. Nothing if it has lost nothing.
fn fatal_loss<'a>(scan: &FailurePointScan, state: &'a ReorderedState) -> Option<FatalLoss<'a>> {
    let point = &scan.points[state.point];
    let first = state.lost.iter().min_by_key(|lost| lost.seq)?;
    let last = state.lost.iter().max_by_key(|lost| lost.seq)?;
    let lost = |store: &PendingStore| EventSite { seq: store.seq, site: store.site };
    Some(FatalLoss {
        crash: EventSite { seq: point.seq, site: point.site },
        version: point.version,
        promise: point.promise,
        patches: &state.patches,
        thread: last.thread,
        lost: Some((lost(first), lost(last))),
    })
}

/// Findings, and the failures that they are about.
type Worded = (Vec<Finding>, Vec<(Failures, Option<usize>)>);

/// Tries crashes at failure points, by position, as long as `wanted` names such as nobody has tried.
fn try_more(
    scan: &FailurePointScan,
    campaign: &TrialPool<'_>,
    journal: &mut TrialJournal,
    mut wanted: impl FnMut(&[PointVerdict]) -> Vec<usize>,
) -> Result<(), Error> {
    loop {
        let points = wanted(&findings::verdicts(scan, journal, campaign.usual));
        let jobs: Vec<TrialImage<'_>> = points.iter().map(|&i| scan.points[i].image()).collect();
        let done = campaign.run(&jobs, journal, &()).map_err(|e| failed("run", "a recovery", e))?;
        // Nothing is left to try, or there is no time for it.
        if done.tried == 0 {
            return Ok(());
        }
    }
}

/// Traces failures back to stores, and words them.
fn narrowed(
    folder: &RunFolder,
    scan: &FailurePointScan,
    windows: &[(Window, Tried)],
    campaign: &TrialPool<'_>,
    journal: &mut TrialJournal,
    settings: &CheckSettings,
    word: impl FnOnce(&[(Window, &Tried, refine::Culprit)]) -> Worded,
) -> Result<Worded, Error> {
    if windows.is_empty() {
        return Ok(Worded::default());
    }
    let recording = folder.recording();
    let mut spans: Vec<TurningPoint> = windows
        .iter()
        .map(|(window, tried)| TurningPoint {
            good: window.before.map_or(1, |before| scan.points[before].seq),
            bad: scan.points[window.first].seq,
            mode: FailureMode::from(&tried.outcome),
        })
        .collect();
    let most = spans.len().min(MOST_NARROWED);
    let store = || folder.temporary().map(MappedFile::new);
    refine::narrow(&recording, &mut spans[..most], campaign, journal, store)?;
    let closings: Vec<Option<u64>> = windows.iter().map(|(window, _)| Some(scan.points[window.after?].seq)).collect();
    let culprits = refine::blame(&recording, &spans, &closings, settings.recovering.mode)?;
    let found: Vec<_> =
        windows.iter().zip(culprits).map(|((window, tried), culprit)| (*window, tried, culprit)).collect();
    Ok(word(&found))
}
