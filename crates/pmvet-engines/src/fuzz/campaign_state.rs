//! The state of a campaign that executor, feedback and stages share: what has run, what it did, and what to keep.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libafl::Error as AflError;
use libafl::executors::ExitKind;
use pmvet_events::stage::Maps;
use pmvet_target::forkserver::{ForkError, ForkedEnd, InputEndJudge};
use pmvet_target::launch::TargetExit;
use xxhash_rust::xxh3::xxh3_64;

use super::campaign::{CampaignStats, CampaignWatcher, FailedCase, FuzzError, FuzzSettings};
use super::case::Case;
use super::content::{ImageId, PmContent};
use super::early_stops::{EarlyStops, Rest};
use super::paths::{Favour, SeenPaths, path};
use super::runner::{CaseOrder, CaseOutcome, RunError, Runner};
use super::store::{ImageStore, Origin};
use crate::operations::Chance;

/// A case that has just been kept.
#[derive(Debug, Clone)]
pub(super) struct Fresh {
    case: Case,
    last: LastRun,
}

/// What the last run did, if it did not fail.
#[derive(Debug, Clone, Copy, Default)]
struct LastRun {
    favour: Favour,
    /// It was cut short where its input ended.
    cut: bool,
    /// Its PM path, if it was not cut.
    path: Option<u64>,
    /// A hash of all that it counted.
    counts: Option<u64>,
    /// How many operations on PM it did.
    operations: u64,
}

/// What a run is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// To see whether its case is worth keeping.
    Coverage,
    /// To have the content of PM that it leaves.
    Image,
}

/// Runs over which the average is taken.
const OF_LATE: u64 = 1024;

pub(super) struct CampaignState<'a> {
    runner: Runner,
    store: &'a mut ImageStore,
    watcher: &'a mut dyn CampaignWatcher,
    settings: FuzzSettings,
    seen: SeenPaths,
    cuts: EarlyStops,
    /// The PM paths of cases that were kept.
    paths: HashSet<u64>,
    last: Option<LastRun>,
    /// How many operations on PM a run does, on average.
    usual: f64,
    fresh: Vec<Fresh>,
    /// Images of this campaign, the oldest first.
    images: Vec<ImageId>,
    /// Runs that made images from cases or tried cases on new images; `growing`: how long they took.
    grown: u64,
    growing: Duration,
    started: Instant,
    /// Those of them that went on from image to image; `at`: the image where that is now.
    wandered: u64,
    at: Option<ImageId>,
    /// The image that mutants of the next case are tried on instead of its own.
    pub(super) elsewhere: Option<ImageId>,
    /// Failures, by what they did, and whether they hung.
    failures: HashMap<u64, bool>,
    stats: CampaignStats,
    /// The next run is on an image that may not be used again.
    pub(super) once: bool,
    /// The watcher has ended the campaign.
    over: bool,
    /// What ended the campaign.
    error: Option<FuzzError>,
}

impl<'a> CampaignState<'a> {
    pub(super) fn new(
        runner: Runner,
        store: &'a mut ImageStore,
        watcher: &'a mut dyn CampaignWatcher,
        settings: FuzzSettings,
    ) -> Self {
        Self {
            runner,
            store,
            watcher,
            settings,
            seen: SeenPaths::default(),
            cuts: EarlyStops::default(),
            paths: HashSet::new(),
            last: None,
            usual: 0.0,
            fresh: Vec::new(),
            images: Vec::new(),
            grown: 0,
            growing: Duration::ZERO,
            started: Instant::now(),
            wandered: 0,
            at: None,
            elsewhere: None,
            failures: HashMap::new(),
            stats: CampaignStats::default(),
            once: false,
            over: false,
            error: None,
        }
    }

    pub(super) fn error(&mut self) -> Option<FuzzError> {
        self.error.take()
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn has_failed(&self) -> bool {
        !self.failures.is_empty()
    }

    pub(super) fn stats(&self) -> CampaignStats {
        CampaignStats {
            images: self.store.len(),
            paths: self.paths.len(),
            transitions: self.seen.transitions(),
            branches: self.seen.branches(),
            failures: self.failures.len(),
            bytes: self.store.bytes(),
            short: self.runner.is_short(),
            ..self.stats
        }
    }

    fn content(&mut self, image: ImageId) -> Result<Arc<PmContent>, FuzzError> {
        self.store.get(image).map_err(FuzzError::Corpus)
    }

    fn run_case(
        &mut self,
        case: &Case,
        stop: (u64, u64),
        purpose: Purpose,
        judge: Option<InputEndJudge<'_>>,
    ) -> Result<CaseOutcome, FuzzError> {
        let content = self.content(case.image)?;
        let order = CaseOrder {
            image: case.image,
            content: &content,
            input: &case.input,
            stop,
            keep: purpose == Purpose::Image,
            once: std::mem::take(&mut self.once),
            hurried: purpose == Purpose::Coverage,
        };
        let outcome = self.runner.run(&order, judge)?;
        self.stats.runs += 1;
        self.stats.cut += u64::from(outcome.cut);
        self.stats.strays += outcome.strays as u64;
        Ok(outcome)
    }

    /// Runs a case and notes what it did.
    pub(super) fn evaluate(&mut self, case: &Case) -> Result<ExitKind, FuzzError> {
        let mut cuts = std::mem::take(&mut self.cuts);
        let mut rest = Rest::Wanted;
        let mut at_end = Vec::new();
        let outcome = if cuts.asks() {
            let mut judge = |maps: &Maps| {
                at_end = maps.copy();
                rest = cuts.at_end(&at_end);
                !matches!(rest, Rest::Cut(_))
            };
            self.run_case(case, (0, 0), Purpose::Coverage, Some(&mut judge))
        } else {
            self.run_case(case, (0, 0), Purpose::Coverage, None)
        };
        self.cuts = cuts;
        let outcome = outcome?;
        let operations = outcome.operations.0;
        self.usual += (operations as f64 - self.usual) / self.stats.runs.clamp(1, OF_LATE) as f64;
        if let (Rest::Cut(favour), true) = (rest, outcome.cut) {
            self.last = Some(LastRun { favour, cut: true, operations, ..LastRun::default() });
            // Most are of no further use.
            if let (Some(last), true) = (&mut self.last, favour > Favour::None) {
                self.seen.add(&at_end);
                last.counts = Some(xxh3_64(&at_end));
            }
            return Ok(ExitKind::Ok);
        }
        if matches!(outcome.end, ForkedEnd::Exit(TargetExit::Status(_))) {
            let favour = self.seen.add(&outcome.counts);
            if rest == Rest::Sampled {
                self.cuts.learn(&outcome.counts);
            }
            let (path, counts) = (Some(path(&outcome.counts)), Some(xxh3_64(&outcome.counts)));
            self.last = Some(LastRun { favour, cut: false, path, counts, operations });
            return Ok(ExitKind::Ok);
        }
        self.last = None;
        // The same end on the same PM path counts as the same failure here. Most runs that take too long only do more
        // than others.
        let (hang, most) = match outcome.end {
            ForkedEnd::Exit(_) => (false, 256),
            ForkedEnd::Timeout | ForkedEnd::Runaway => (true, 16),
        };
        let paths: Vec<u8> = outcome.counts[..pmvet_events::stage::MAP].iter().map(|&c| u8::from(c != 0)).collect();
        let key = xxh3_64(&paths) ^ xxh3_64(format!("{:?}", outcome.end).as_bytes());
        if self.failures.values().filter(|&&h| h == hang).count() < most && self.failures.insert(key, hang).is_none() {
            let failure = FailedCase { case: case.clone(), end: outcome.end };
            self.watcher.failed(&failure, self.store).map_err(FuzzError::Corpus)?;
        }
        Ok(ExitKind::Crash)
    }

    /// Keeps the case that ran last. Returns how often it is to be mutated, compared with others.
    pub(super) fn keep(&mut self, case: &Case) -> Result<f64, FuzzError> {
        let last = self.last.unwrap_or_default();
        self.stats.cases += 1;
        self.paths.extend(last.path);
        self.watcher.kept(case, last.favour).map_err(FuzzError::Corpus)?;
        self.fresh.push(Fresh { case: case.clone(), last });
        let worth = match last.favour {
            Favour::Path => 16.0,
            Favour::Count => 4.0,
            Favour::Branch | Favour::None => 1.0,
        };
        // Mutants of a long case cost the time of several others. This counts operations rather than time, which
        // differs between campaigns.
        Ok(worth * (self.usual / last.operations.max(1) as f64).clamp(0.25, 2.0))
    }

    /// The case to make images from next: the oldest of those that add most.
    pub(super) fn next_fresh(&mut self) -> Option<Fresh> {
        let best = self.fresh.iter().map(|fresh| fresh.last.favour).max()?;
        let at = self.fresh.iter().position(|fresh| fresh.last.favour == best)?;
        Some(self.fresh.remove(at))
    }

    /// Makes images from a case that has just been kept: the one it leaves, and those of crashes during its run. Returns
    /// cases to try on them.
    pub(super) fn grow(&mut self, fresh: &Fresh, below: Chance<'_>) -> Result<Vec<Case>, FuzzError> {
        let case = &fresh.case;
        let mut at_end = None;
        let mut go_on = |maps: &Maps| {
            at_end = Some(xxh3_64(&maps.copy()));
            true
        };
        let outcome = self.run_case(case, (0, 0), Purpose::Image, Some(&mut go_on))?;
        let again = if fresh.last.cut { at_end } else { Some(xxh3_64(&outcome.counts)) };
        if let (Some(counts), Some(again)) = (fresh.last.counts, again) {
            self.stats.repeated += 1;
            self.stats.stable += u64::from(counts == again);
        }
        self.seen.add(&outcome.counts);
        self.paths.insert(path(&outcome.counts));
        let mut cases = Vec::new();
        let (operations, fences) = outcome.operations;
        self.at = self.add_image(outcome, case, (0, 0), &mut cases, below)?;
        let many = match fresh.last.favour {
            Favour::Path => self.settings.crashes,
            Favour::Count => self.settings.crashes.div_ceil(4),
            Favour::Branch | Favour::None => 1,
        };
        for stop in self.crash_points(many, operations, fences, below) {
            let outcome = self.run_case(case, stop, Purpose::Image, None)?;
            if outcome.stopped {
                self.add_image(outcome, case, stop, &mut cases, below)?;
            }
        }
        Ok(cases)
    }

    /// Whether it is time to go on from image to image. Not often: each step leaves an image forever.
    pub(super) fn may_wander(&self) -> bool {
        !self.images.is_empty() && self.wandered * 32 <= self.stats.runs && self.has_time_to_grow()
    }

    /// Goes a step further from image to image, even if that does nothing new: some states need much of the same, such as
    /// a table that has to be full. Returns cases to try on the result.
    pub(super) fn wander(&mut self, input: Vec<u8>, below: Chance<'_>) -> Result<Vec<Case>, FuzzError> {
        const STEPS: usize = 16;
        let Some(image) = self.at.filter(|_| below(STEPS) != 0).or_else(|| self.recent_image(below)) else {
            return Ok(Vec::new());
        };
        self.grow(&Fresh { case: Case { image, input }, last: LastRun::default() }, below)
    }

    /// Where to crash a run with this many operations and fences: at most `many` different points.
    fn crash_points(&self, many: u64, operations: u64, fences: u64, below: Chance<'_>) -> BTreeSet<(u64, u64)> {
        let mut points = BTreeSet::new();
        if operations == 0 {
            return points;
        }
        // More draws than points, as a point may be drawn twice.
        for _ in 0..4 * many {
            if points.len() as u64 == many {
                break;
            }
            points.insert(if below(100) < self.settings.anywhere || fences == 0 {
                (1 + below(operations as usize) as u64, 0)
            } else {
                (0, 1 + below(fences as usize) as u64)
            });
        }
        points
    }

    fn add_image(
        &mut self,
        outcome: CaseOutcome,
        case: &Case,
        stop: (u64, u64),
        cases: &mut Vec<Case>,
        below: Chance<'_>,
    ) -> Result<Option<ImageId>, FuzzError> {
        let Some(content) = outcome.content else { return Ok(None) };
        let origin = Origin { parent: Some(case.image), input: case.input.clone(), stop };
        let crash = origin.is_crash();
        let (image, new) = self.store.add(content, origin).map_err(FuzzError::Corpus)?;
        if new {
            self.stats.crash_images += usize::from(crash);
            self.images.push(image);
            // On a crash image, the interrupted input is tried again, or a seed.
            let seeds = &self.settings.seeds;
            let seed = seeds.get(below(seeds.len().max(1))).filter(|_| below(2) == 0);
            let next = Case { image, input: seed.unwrap_or(&case.input).clone() };
            if crash {
                self.watcher.crashed(&next);
            }
            cases.push(next);
        }
        Ok(Some(image))
    }

    /// Whether the last run is worth keeping.
    pub(super) fn is_new(&self) -> bool {
        self.last.is_some_and(|last| last.favour > Favour::None)
    }

    pub(super) fn arrived(&mut self) -> Result<Vec<Case>, FuzzError> {
        self.watcher.arrived(self.store).map_err(FuzzError::Corpus)
    }

    /// Whether to make images from new cases before mutating others. The first runs do so; later this gets an eighth of the
    /// runs, which are long ones.
    pub(super) fn may_grow(&self) -> bool {
        const AT_FIRST: u64 = 16;
        self.grown < AT_FIRST || self.grown * 8 <= self.stats.runs && self.has_time_to_grow()
    }

    /// If pools take long to open, those runs get a sixth of the time; not at first, so that short campaigns do not
    /// depend on the machine's speed.
    fn has_time_to_grow(&self) -> bool {
        const AT_FIRST: Duration = Duration::from_secs(2);
        self.growing.saturating_sub(AT_FIRST) * 6 <= self.started.elapsed()
    }

    /// Accounts for the runs, beyond the first `before`, that made and used images.
    pub(super) fn has_grown(&mut self, before: u64, since: Instant, wandering: bool) {
        let runs = self.stats.runs - before;
        self.grown += runs;
        self.wandered += if wandering { runs } else { 0 };
        self.growing += since.elapsed();
    }

    pub(super) fn runs(&self) -> u64 {
        self.stats.runs
    }

    /// Sometimes tries a case on another image than its own, preferably a newer one.
    pub(super) fn choose_image(&mut self, below: Chance<'_>) {
        self.elsewhere = if below(3) == 0 { self.recent_image(below) } else { None };
    }

    fn recent_image(&self, below: Chance<'_>) -> Option<ImageId> {
        let many = self.images.len();
        (many > 0).then(|| {
            let range = below(many) + 1;
            let back = below(range);
            self.images[many - 1 - back]
        })
    }

    /// Between runs: asks whether to go on.
    pub(super) fn look(&mut self) -> Result<(), AflError> {
        let stats = self.stats();
        self.over = self.over || !self.watcher.goes_on(&stats, self.store);
        if self.over { Err(AflError::shutting_down()) } else { Ok(()) }
    }

    /// Remembers the error. LibAFL only has to stop.
    pub(super) fn give_up(&mut self, error: FuzzError) -> AflError {
        let interrupted = matches!(error, FuzzError::Run(RunError::Fork(ForkError::Interrupted)));
        if !interrupted && self.error.is_none() {
            self.error = Some(error);
        }
        AflError::shutting_down()
    }
}
