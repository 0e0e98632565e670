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

/// A test case that waits for an engine: what adds most comes first, and among those the newest, since it reaches
/// furthest, and there are soon more than can be looked at.
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
    /// Starts it, before this process has any thread. `pm`: which files are PM, as globs.
    pub(super) fn start(arguments: &cli::Fuzz, config: &Config, pm: &[String]) -> io::Result<Self> {
        let workers = Workers::start(1, || {
            let mut runs = CaseRuns::new(arguments, config, pm);
            move |run| runs.make(run)
        });
        workers.map(Self)
    }
}

pub(super) struct Checks {
    /// Of this campaign's run; checks have their folders within.
    folder: PathBuf,
    /// Where runs are kept that found something.
    keep: KeptRuns,
    corpus: PathBuf,
    files: Vec<PathBuf>,
    input_path: Option<PathBuf>,
    engines: Vec<cli::Then>,
    worker: CaseWorker,
    /// The engine that is at work.
    under_way: Option<cli::Then>,
    /// There is no worker any more.
    is_broken: bool,
    waiting: BinaryHeap<Waiting>,
    /// Cases on crash images, the oldest first, whether they add anything or not.
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

/// More than this do not wait: the campaign is faster than the checks.
const MOST_WAITING: usize = 4096;
/// One in so many checks is of a crash image, while other cases wait.
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

    /// A case adds something.
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

    /// A case runs on a new crash image. What recovery does there depends on what is in the image, so it is looked at even
    /// if it takes the way that it always takes.
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

    /// Takes what has come, and gives the worker the next case.
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
                        // What it was not asked to try, such as what other runs have tried.
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
        // Paths on which crashes have been tried may do harm on a crash image that they did not do on others.
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

    /// Keeps the findings of a run. Its folder is kept if there is anything new, so that tokens lead there.
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

    /// Whether anything was found that is as bad as this.
    pub(super) fn found(&self, least: Severity) -> bool {
        self.findings.iter().any(|finding| finding.severity >= least)
    }

    /// Ends the run under way. Returns what was found, how many runs were not made in time, and what the others left.
    pub(super) fn finish(self) -> (Vec<Finding>, u64, Shortfalls) {
        let left = self.waiting() + self.dropped + u64::from(self.under_way.is_some());
        let Self { worker, folder, findings, left: shortfalls, .. } = self;
        // Nobody writes to the folder any more then.
        drop(worker);
        let _ = std::fs::remove_dir_all(folder);
        (findings, left, shortfalls)
    }
}

/// What reports call a run of an engine.
fn name(engine: cli::Then) -> &'static str {
    match engine {
        cli::Then::Check => "--then check",
        cli::Then::Race => "--then race",
        cli::Then::Verify => "--then verify",
    }
}
