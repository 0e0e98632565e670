//! `--then check,race,verify`: other engines on new test cases, one at a time, in the background.

mod case_run;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use pmvet_engines::fuzz::case::Case;
use pmvet_engines::fuzz::paths::Favour;
use pmvet_findings::{Finding, Severity};

use self::case_run::{CaseRun, CaseRuns};
use super::kept_runs::KeptRuns;
use super::shortfalls::{Shortfalls, took_too_long};
use super::start::FuzzStart;
use crate::cli;
use crate::config::Config;
use crate::driver::inner::{InnerEnd, InnerReport};
use crate::run_folder::RunFolder;
use crate::workers::{JobEnd, Workers};

/// A test case that waits for an engine. Cases that add most come first, and among these the newest, which reach furthest: soon more wait
/// than can be run.
#[derive(Debug, PartialEq, Eq)]
struct Waiting {
    favour: Favour,
    /// The engine, the first of the user's list first.
    engine: Reverse<usize>,
    order: u64,
    case: Case,
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.favour, self.engine, self.order).cmp(&(other.favour, other.engine, other.order))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The process that runs engines for a campaign.
pub(super) struct CaseWorker(Workers<CaseRun, InnerReport>);

impl CaseWorker {
    /// Starts the worker; this process must have one thread. `pm`: which files are PM, as globs.
    pub(super) fn start(arguments: &cli::Fuzz, config: &Config, pm: &[String]) -> io::Result<Self> {
        let workers = Workers::start(1, || {
            let mut runs = CaseRuns::new(arguments, config, pm);
            move |run| runs.make(run)
        });
        workers.map(Self)
    }
}

pub(super) struct Checks {
    /// The folder of this campaign's run; those of the checks lie in it.
    folder: PathBuf,
    /// Where runs with findings are kept.
    keep: KeptRuns,
    corpus: PathBuf,
    files: Vec<PathBuf>,
    input_path: Option<PathBuf>,
    engines: Vec<cli::Then>,
    worker: CaseWorker,
    /// The engine that is at work.
    under_way: Option<cli::Then>,
    /// The worker is gone for good.
    is_broken: bool,
    waiting: BinaryHeap<Waiting>,
    /// Cases on crash images in order of arrival, whether they add coverage or not. The newest is taken first.
    crashes: VecDeque<Waiting>,
    done: u64,
    /// What runs did not do, and why.
    left: Shortfalls,
    /// What there was no room for, or not enough time.
    dropped: u64,
    findings: Vec<Finding>,
    known: HashSet<String>,
}

impl std::fmt::Display for Checks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} checked: {} findings, {} wait", self.done, self.findings.len(), self.waiting())
    }
}

/// Bound on the waiting cases, since the campaign is faster than the checks.
const MOST_WAITING: usize = 4096;
/// One in this many checks takes a crash image while other cases wait.
const CRASH_EVERY: u64 = 4;

impl Checks {
    pub(super) fn new(engines: &[cli::Then], worker: CaseWorker, folder: &RunFolder, start: &FuzzStart) -> Self {
        let target = &start.target;
        Self {
            folder: folder.path.join("then"),
            keep: KeptRuns::beside(folder),
            corpus: start.corpus.clone(),
            files: target.files.clone(),
            input_path: target.input.clone(),
            engines: engines.to_vec(),
            worker,
            under_way: None,
            is_broken: false,
            waiting: BinaryHeap::new(),
            crashes: VecDeque::new(),
            done: 0,
            left: Shortfalls::default(),
            dropped: 0,
            findings: Vec::new(),
            known: HashSet::new(),
        }
    }

    /// Queues a case that adds coverage.
    pub(super) fn add(&mut self, case: &Case, favour: Favour) {
        if self.waiting.len() >= MOST_WAITING {
            self.dropped += self.engines.len() as u64;
            return;
        }
        let order = self.done + self.waiting.len() as u64;
        let engines = 0..self.engines.len();
        self.waiting.extend(engines.map(|engine| Waiting {
            favour,
            engine: Reverse(engine),
            order,
            case: case.clone(),
        }));
    }

    /// Queues a case on a new crash image. Recovery depends on the content of the image, so the case is checked even if it takes only known
    /// paths.
    pub(super) fn add_crash(&mut self, case: &Case) {
        let engines = (0..self.engines.len()).map(Reverse).rev();
        let crash = |engine| Waiting { favour: Favour::None, engine, order: 0, case: case.clone() };
        self.crashes.extend(engines.map(crash));
        while self.crashes.len() > MOST_WAITING {
            self.crashes.pop_front();
            self.dropped += 1;
        }
    }

    fn waiting(&self) -> u64 {
        (self.waiting.len() + self.crashes.len()) as u64
    }

    fn next(&mut self) -> Option<Waiting> {
        let crash = self.waiting.is_empty() || self.done % CRASH_EVERY == CRASH_EVERY - 1;
        let crash = if crash { self.crashes.pop_back() } else { None };
        crash.or_else(|| self.waiting.pop())
    }

    /// Takes results that have arrived, and gives the worker the next case.
    pub(super) fn look(&mut self) {
        if !self.is_broken
            && let Err(error) = self.go_on()
        {
            self.is_broken = true;
            self.left.take_failure("--then", &error.to_string());
        }
    }

    fn go_on(&mut self) -> io::Result<()> {
        if let Some((_, end, said)) = self.worker.0.next(Duration::ZERO)? {
            self.done += 1;
            let name = self.under_way.take().map_or("--then", name);
            match end {
                JobEnd::Done(mut run) => {
                    if run.end == (InnerEnd::Analysed { complete: true }) {
                        // It lists only what it was not asked to try, such as what other runs have tried.
                        run.not_covered.clear();
                    }
                    self.left.note_run(name, &run, &said);
                    self.keep_findings(run);
                }
                JobEnd::Died(how) => {
                    self.dropped += u64::from(took_too_long(how));
                    self.left.take_death(name, how, &said);
                }
            }
        }
        if let Some(worker) = self.worker.0.idle()
            && let Some(next) = self.next()
        {
            let engine = self.engines[next.engine.0];
            self.worker.0.give(worker, &self.run_of(next, engine))?;
            self.under_way = Some(engine);
        }
        Ok(())
    }

    fn run_of(&self, next: Waiting, engine: cli::Then) -> CaseRun {
        // On a crash image, crashes on known paths may do harm that they did not do on other images.
        let known_points = (next.favour > Favour::None).then(|| self.folder.join("known-points"));
        CaseRun {
            engine,
            case: next.case,
            folder: self.folder.join("runs"),
            corpus: self.corpus.clone(),
            files: self.files.clone(),
            input: self.input_path.clone(),
            known_points,
        }
    }

    /// Keeps the findings of a run, and its folder if any are new, so that tokens lead there.
    fn keep_findings(&mut self, run: InnerReport) {
        let mut fresh = run.findings;
        fresh.retain(|finding| self.known.insert(finding.fingerprint.clone()));
        let folder = run.folder.as_deref();
        if !self.keep.keep(folder.filter(|_| !fresh.is_empty()), &mut fresh)
            && let Some(folder) = folder
        {
            let _ = std::fs::remove_dir_all(folder);
        }
        self.findings.extend(fresh);
    }

    /// Whether there is a finding of at least this severity.
    pub(super) fn found(&self, least: Severity) -> bool {
        self.findings.iter().any(|finding| finding.severity >= least)
    }

    /// Ends the run under way. Returns the findings, how many runs were not made in time, and what the others left undone.
    pub(super) fn finish(self) -> (Vec<Finding>, u64, Shortfalls) {
        let left = self.waiting() + self.dropped + u64::from(self.under_way.is_some());
        let Self { worker, folder, findings, left: shortfalls, .. } = self;
        // Once the worker is gone, nothing writes to the folder.
        drop(worker);
        let _ = std::fs::remove_dir_all(folder);
        (findings, left, shortfalls)
    }
}

/// The name of an engine's run in reports.
fn name(engine: cli::Then) -> &'static str {
    match engine {
        cli::Then::Check => "--then check",
        cli::Then::Race => "--then race",
        cli::Then::Verify => "--then verify",
    }
}
