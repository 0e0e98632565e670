//! One driver for all engines: it records the workload once, gives each engine its share of the budget, and reports what they found.
//!
//! Commands describe what they want as a [`Job`] and a list of [`Engine`]s. `check`, `verify` and `race` have one engine each, `vet` has
//! all of them. Only the driver handles the clock, resumed runs and interrupts. [`inner`] runs are parts of a campaign, which reports for
//! them.

mod engine;
pub(crate) mod inner;
mod record_only;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use glob::Pattern;
use pmvet_engines::causes::JoinedFindings;
use pmvet_findings::{Coverage, Phase};
use pmvet_target::Workload;
use pmvet_target::install::Install;
use pmvet_target::live_events::{Feed, live};
use pmvet_target::sandbox::Overlay;
use pmvet_target::{launch, shutdown};

pub(crate) use self::engine::{Engine, EngineReport, Needs, NoReport};
pub(crate) use self::record_only::RecordOnly;
use crate::budget;
use crate::cli;
use crate::config::{Config, RunsLimit};
use crate::exit::{Error, Exit};
use crate::isolation;
use crate::recovery::{Identity, failed};
use crate::reporting::{self, Results};
use crate::retention;
use crate::run_folder::{RunFolder, RunInfo};
use crate::workload;

/// What a command asks for.
pub(crate) struct Job<'a> {
    pub(crate) workload: &'a cli::Workload,
    pub(crate) reporting: &'a cli::Reporting,
    pub(crate) config: Config,
    pub(crate) budget: Option<Duration>,
    /// Exit with [`Exit::Incomplete`] if an engine did not try everything.
    pub(crate) require_complete: bool,
    /// For commands with `--resume`.
    pub(crate) resumable: Option<Resumable>,
    /// Engines that do not run, and what that leaves uncovered.
    pub(crate) left_out: Vec<(&'static str, &'static str)>,
    /// What the workload starts with, if a campaign has prepared it. Nothing: the files that `--setup` makes, and standard input.
    pub(crate) given: Option<PreparedStart>,
}

/// What a campaign gives a workload to start with.
pub(crate) struct PreparedStart {
    /// Private files.
    pub(crate) files: Overlay,
    /// Standard input.
    pub(crate) input: Vec<u8>,
}

/// What a run starts with, and the settings that a resumed run must share.
pub(crate) struct Resumable {
    pub(crate) start: RunStart,
    pub(crate) identity: Identity,
}

/// What a run starts with.
#[derive(Debug, Clone)]
pub(crate) enum RunStart {
    /// Nothing: the workload is recorded.
    New,
    /// The state in which the last run was interrupted.
    Last,
    /// The recording of the run in this folder. Shards work on a recording that they share.
    RecordedIn(PathBuf),
}

/// What engines work on: a workload that was recorded, and the folder of the run.
pub(crate) struct Session {
    pub(crate) workload: Workload,
    /// Files to copy to their real places, as globs.
    keep: Vec<Pattern>,
    pub(crate) folder: RunFolder,
    pub(crate) info: RunInfo,
    pub(crate) install: Install,
    pub(crate) config: Config,
    pub(crate) started: Instant,
    /// How often the workload was recorded; the last recording counts.
    pub(crate) recordings: u32,
    pub(crate) quiet: bool,
    several: bool,
}

/// Records the workload, runs the engines on it one after the other, and reports. Returns the exit code.
pub(crate) fn run(job: Job<'_>, engines: &mut [&mut dyn Engine]) -> Result<Exit, Error> {
    let resumable = job.resumable.is_some();
    let exit = drive(job, engines)?;
    // Findings so far are reported, but after an interrupt the exit code must not say that there are no more.
    let Some(signal) = shutdown::stopped_by() else { return Ok(exit) };
    let advice = if resumable { "; `--resume` goes on where this run ended" } else { "" };
    eprintln!("pmvet: interrupted by {}{advice}", launch::signal_name(signal));
    Ok(Exit::Interrupted)
}

fn drive(mut job: Job<'_>, engines: &mut [&mut dyn Engine]) -> Result<Exit, Error> {
    let prepared = Prepared::new(&job, engines)?;
    isolation::start(prepared.workload.pm.iter().map(Into::into).collect())?;
    let started = budget::begin(job.budget);
    let RunsLimit(limit) = job.config.runs_limit;
    let (mut session, reports) = match work(&mut job, prepared, started, engines)? {
        Ok(done) => done,
        Err(exit) => return Ok(exit),
    };
    let (mut results, least) = results(&mut session, reports);
    for (engine, why) in &job.left_out {
        let not_covered = vec![(*why).to_owned()];
        results.coverage.add(engine, Coverage { not_covered, ..Coverage::default() });
    }
    let complete = results.info.complete;
    let exit = reporting::report(results, job.reporting)?.max(least);
    retention::make_room(&job.workload.runs, limit, job.reporting.quiet);
    Ok(if !complete && job.require_complete { exit.max(Exit::Incomplete) } else { exit })
}

/// What is known before anything runs.
struct Prepared {
    workload: Workload,
    keep: Vec<Pattern>,
    needs: Needs,
    install: Install,
}

impl Prepared {
    fn new(job: &Job<'_>, engines: &[&mut dyn Engine]) -> Result<Self, Error> {
        let folder = std::env::current_dir().map_err(|e| failed("find", "the current folder", e))?;
        let mut workload = workload::describe(job.workload, &job.config, &folder)?;
        let keep = workload::wanted_outputs(job.workload, &folder)?;
        let needs = engines.iter().fold(Needs::default(), |needs, engine| needs.and(engine.needs()));
        (workload.races, workload.in_step, workload.branches) = (needs.races, needs.in_step, needs.branches);
        Ok(Self { workload, keep, needs, install: Install::find()? })
    }
}

/// The reports of engines, each with the names that it goes by.
type Reports = Vec<(Vec<String>, EngineReport)>;

/// Records the workload and runs the engines on it. If there is nothing to report on, returns the exit code.
fn work(
    job: &mut Job<'_>,
    prepared: Prepared,
    started: Instant,
    engines: &mut [&mut dyn Engine],
) -> Result<Result<(Session, Reports), Exit>, Error> {
    let Prepared { workload, keep, needs, install } = prepared;
    for engine in engines.iter() {
        engine.prepare(&workload)?;
    }
    let (folder, info) = open(job, &workload, engines)?;
    let mut session = Session {
        workload,
        keep,
        folder,
        info,
        install,
        config: std::mem::take(&mut job.config),
        started,
        recordings: 0,
        quiet: job.reporting.quiet,
        several: engines.len() > 1,
    };
    if let Some(exit) = session.record(job, &needs, engines)? {
        return Ok(Err(exit));
    }
    let mut reports = Vec::new();
    for i in 0..engines.len() {
        if shutdown::is_over() && i > 0 {
            reports.push((engines[i].names(), EngineReport::nothing()));
            continue;
        }
        let weights: u32 = engines[i..].iter().map(|engine| engine.weight()).sum();
        let engine = &mut engines[i];
        shutdown::set_share(share(engine.weight(), weights));
        let report = engine.run(&mut session);
        shutdown::set_share(None);
        match report {
            Ok(report) => reports.push((engine.names(), report)),
            Err(NoReport::Error(error)) => return Err(error),
            Err(NoReport::Exit(exit)) if i == 0 || shutdown::stopped_by().is_some() => return Ok(Err(exit)),
            // Findings of the engines before it still count.
            Err(NoReport::Exit(_)) => reports.push((engine.names(), EngineReport::nothing())),
        }
    }
    Ok(Ok((session, reports)))
}

/// The share of the remaining time for an engine with this weight. Nothing: all of it. An engine with weight 0 needs hardly any time.
fn share(weight: u32, weights: u32) -> Option<Duration> {
    let left = shutdown::deadline()?.saturating_duration_since(Instant::now());
    (weight > 0 && weight < weights).then(|| left * weight / weights)
}

/// The folder of the run: a new one, or the last if it is to be resumed.
fn open(job: &Job<'_>, workload: &Workload, engines: &[&mut dyn Engine]) -> Result<(RunFolder, RunInfo), Error> {
    let runs = &job.workload.runs;
    match &job.resumable {
        Some(Resumable { start: RunStart::Last, identity }) => {
            return RunFolder::resume(runs, &workload.command, identity);
        }
        Some(Resumable { start: RunStart::RecordedIn(recorded), identity }) => {
            return RunFolder::on_recording(runs, recorded, &workload.command, identity);
        }
        _ => {}
    }
    let folder = RunFolder::create(runs)?;
    let mut info = RunInfo::new(&workload.command, &workload.program.arguments);
    info.setup = job.workload.setup.clone();
    info.settings = job.resumable.as_ref().map(|resumable| resumable.identity.clone()).unwrap_or_default();
    engines.iter().for_each(|engine| engine.describe(workload, &mut info));
    folder.write_info(&info)?;
    Ok((folder, info))
}

impl Session {
    /// Sets the workload up and records it, unless an earlier run has done so. Returns the exit code if there is nothing to analyse.
    fn record(&mut self, job: &Job<'_>, needs: &Needs, engines: &mut [&mut dyn Engine]) -> Result<Option<Exit>, Error> {
        let input = self.folder.file("input");
        if let Some(PreparedStart { files, input: bytes }) = &job.given {
            workload::start_with(&mut self.workload, files, bytes, &input)?;
        } else if let Some(line) = &job.workload.setup
            && let Some(exit) = workload::set_up(&mut self.workload, line)?
        {
            return Ok(Some(exit));
        }
        if self.info.recorded {
            workload::known_input(&mut self.workload, &input);
            if needs.operations {
                workload::follow_operations(&mut self.workload, &input)?;
            }
            self.workload.left = self.folder.left()?;
            return self.watch_recorded(engines);
        }
        if job.given.is_none()
            && let Some(exit) = workload::keep_input(&mut self.workload, &input)?
        {
            return Ok(Some(exit));
        }
        if needs.operations {
            workload::follow_operations(&mut self.workload, &input)?;
        }
        loop {
            if let Some(exit) = self.record_once(needs.loads, engines)? {
                return Ok(Some(exit));
            }
            self.recordings += 1;
            if shutdown::is_over() || !engines.iter().any(|engine| engine.wants_another_recording(self)) {
                break;
            }
        }
        if needs.native_time && !self.workload.in_place {
            self.time_natively();
        }
        Ok(None)
    }

    /// Feeds the existing recording of a resumed run to an engine that follows runs.
    fn watch_recorded(&mut self, engines: &mut [&mut dyn Engine]) -> Result<Option<Exit>, Error> {
        self.recordings = 1;
        let Some(watcher) = engines.iter_mut().find(|engine| engine.needs().live) else { return Ok(None) };
        let recording = self.folder.recording();
        let read = watched(*watcher, |feed| feed.replay(&recording));
        read.map_err(|source| Error::Trace { path: recording.trace(), source })?;
        Ok(budget::exit_before_analysis())
    }

    fn record_once(&mut self, loads: bool, engines: &mut [&mut dyn Engine]) -> Result<Option<Exit>, Error> {
        let Self { workload, keep, folder, info, install, .. } = self;
        let Some(watcher) = engines.iter_mut().find(|engine| engine.needs().live) else {
            return workload::record(workload, keep, folder, info, loads, install, None);
        };
        let ended =
            watched(*watcher, |feed| workload::record(workload, keep, folder, info, loads, install, Some(feed)))?;
        Ok(ended.or_else(budget::exit_before_analysis))
    }

    /// The file with the statistics of an engine. With several engines, each has its own.
    pub(crate) fn stats_file(&self, engine: &str) -> String {
        if self.several { format!("stats-{engine}.json") } else { "stats.json".into() }
    }

    /// Runs the workload once more, without pmvet, to measure its native time.
    fn time_natively(&mut self) {
        if let Ok(run) = self.workload.run_natively()
            && run.end != pmvet_target::sandbox::SandboxedEnd::Interrupted
        {
            self.info.native_seconds = Some(run.time.as_secs_f64());
            self.folder.keep_info(&self.info);
        }
    }

    /// The phase that all engines share.
    fn recording_phase(&self) -> Option<Phase> {
        self.info.traced_seconds.map(|seconds| Phase { name: "recording".into(), seconds })
    }
}

/// Lets an engine follow the events that `send` feeds it.
fn watched<T>(engine: &mut dyn Engine, send: impl FnOnce(Feed) -> T) -> T {
    let (feed, live) = live();
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| engine.watch(live));
        let sent = send(feed);
        watching.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        sent
    })
}

/// Joins the engines' reports. Also returns the least grave exit code with which pmvet may end.
fn results(session: &mut Session, reports: Reports) -> (Results<'_>, Exit) {
    session.info.complete = reports.iter().all(|(_, report)| report.complete) && !shutdown::is_over();
    session.folder.keep_info(&session.info);
    let phases = session.recording_phase();
    let suppress = std::mem::take(&mut session.config.suppress);
    let mut least = Exit::Ok;
    let mut results = Results {
        folder: &session.folder,
        info: &session.info,
        findings: Vec::new(),
        suppress,
        witnesses: Default::default(),
        coverage: Coverage::default(),
        tree: None,
        recovery_tree: None,
        engines: Vec::new(),
        seconds: session.started.elapsed().as_secs_f64(),
        phases: phases.into_iter().collect(),
    };
    let mut findings = JoinedFindings::default();
    for (names, report) in reports {
        least = least.max(report.least);
        if session.several {
            results.coverage.add(&names.join(", "), report.coverage);
        } else {
            results.coverage = report.coverage;
        }
        findings.add(report.findings);
        results.witnesses.extend(report.witnesses);
        results.tree = results.tree.or(report.tree);
        results.recovery_tree = results.recovery_tree.or(report.recovery_tree);
        results.engines.extend(names);
        results.phases.extend(report.phases);
    }
    results.findings = findings.finish();
    (results, least)
}
