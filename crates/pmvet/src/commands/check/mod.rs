//! `pmvet check`: one recorded run, rules on its events, and recovery from a crash at every failure point.

mod analysis;
mod injection;
mod known;
mod recoveries;
mod settings;
mod stats;

use std::sync::Arc;
use std::time::Instant;

use pmvet_engines::inject::findings;
use pmvet_findings::suppress::Suppress;
use pmvet_target::install::Install;
use pmvet_target::launch;

use self::analysis::Analysis;
use self::injection::Injection;
use self::recoveries::{Recoveries, Twice};
use self::settings::Settings;
use self::stats::Stats;
use crate::cli;
use crate::exit::{Error, Exit};
use crate::recovery::Proven;
use crate::reporting::{self, Results};
use crate::run_folder::{RunFolder, RunInfo, texts};
use crate::system;
use crate::workload::Workload;

pub(crate) fn run(arguments: cli::Check) -> Result<Exit, Error> {
    let folder = std::env::current_dir().map_err(|source| Error::Output {
        action: "find",
        what: "the current folder".into(),
        source,
    })?;
    let settings = Settings::new(&arguments)?;
    let config = crate::config::Config::load(arguments.workload.config.as_deref())?;
    let workload = Workload::new(&arguments.workload, &config, &folder)?;
    let install = Install::find()?;
    system::handle_signals();
    let started = Instant::now();
    let mut check = if arguments.recovering.resume {
        Check::resume(&arguments, settings, workload)?
    } else {
        Check::start(&arguments, settings, workload)?
    };
    check.suppress = config.suppress;
    let exit = check.run(&arguments, &install, started)?;
    if let Some(signal) = launch::stopped_by() {
        eprintln!("pmvet: interrupted by {}; `--resume` goes on where this run ended", launch::signal_name(signal));
        return Ok(Exit::Interrupted);
    }
    Ok(exit)
}

/// The name of the setting that tells shards of one run apart.
pub(super) const SHARD: &str = "shard";
/// How a shard begins to say what it did not do.
pub(super) const OTHER_SHARDS: &str = "the other shards of";

/// A check under way.
struct Check {
    settings: Settings,
    workload: Workload,
    folder: RunFolder,
    info: RunInfo,
    stats: Stats,
    suppress: Vec<Suppress>,
}

impl Check {
    fn start(arguments: &cli::Check, settings: Settings, workload: Workload) -> Result<Self, Error> {
        let folder = RunFolder::create(&arguments.workload.runs)?;
        let info = RunInfo {
            oracle: settings.recovering.oracle.as_deref().map(texts),
            server: settings.driver.as_deref().or(workload.driver.as_deref()).map(Into::into),
            settings: settings.identity(),
            ..RunInfo::new(&workload.command, &settings.recovering.command(&workload))
        };
        folder.write_info(&info)?;
        Ok(Self { settings, workload, folder, info, stats: Stats::default(), suppress: Vec::new() })
    }

    fn resume(arguments: &cli::Check, settings: Settings, workload: Workload) -> Result<Self, Error> {
        let (folder, info) = RunFolder::resume(&arguments.workload.runs, &workload.command, &settings.identity())?;
        Ok(Self { settings, workload, folder, info, stats: Stats::default(), suppress: Vec::new() })
    }

    fn run(&mut self, arguments: &cli::Check, install: &Install, started: Instant) -> Result<Exit, Error> {
        let input = self.folder.file("input");
        if let Some(line) = &arguments.workload.setup {
            self.workload.set_up(line)?;
        }
        if self.info.recorded {
            self.workload.known_input(&input);
        } else {
            self.workload.keep_input(&input)?;
            if let Some(exit) = self.record(install)? {
                return Ok(exit);
            }
        }
        let recording = self.folder.recording();
        let analysed = Instant::now();
        let tried = self.settings.known_points.as_deref().map(known::read).unwrap_or_default();
        let analysis = Analysis::run(&recording, &self.settings, &self.folder, Arc::new(tried.clone()))?;
        self.stats.analysis_seconds = analysed.elapsed().as_secs_f64();
        if let Some(exit) = self.nothing(&analysis) {
            return Ok(exit);
        }
        let deadline = self.settings.recovering.budget.map(|budget| started + budget);
        let injection = Injection::new(&self.settings, &self.workload, &analysis, &self.folder, deadline)?;
        let (usual, timeout) = match (&self.info.usual, self.info.timeout) {
            (Some(usual), Some(timeout)) => (usual.clone(), timeout),
            _ => match injection.prove()? {
                Ok(Proven { usual, timeout }) => (usual, timeout),
                Err(exit) => return Ok(exit),
            },
        };
        (self.info.usual, self.info.timeout) = (Some(usual.clone()), Some(timeout));
        self.info.oracle = injection.oracle().map(texts);
        self.folder.write_info(&self.info)?;
        let mut results = injection.run(usual.clone(), timeout, arguments.reporting.quiet)?;
        if let Some(file) = &self.settings.known_points {
            known::add(file, analysis.scan.paths.difference(&tried))?;
        }
        let recoveries = Recoveries {
            settings: &self.settings,
            workload: &self.workload,
            folder: &self.folder,
            install,
            usual: &usual,
            timeout,
            deadline,
            quiet: arguments.reporting.quiet,
        };
        let twice = match self.settings.recoveries {
            0 => Twice::default(),
            _ => recoveries.run(&analysis, &results)?,
        };
        self.stats.take(&self.info, &analysis, &results, &twice, self.settings.recovering.jobs, started);
        let more = findings::without_known(&results.findings, twice.findings);
        results.findings.extend(more);
        results.witnesses.extend(twice.witnesses);
        self.info.complete = self.stats.recoveries_left == 0 && launch::stopped_by().is_none();
        self.folder.write_info(&self.info)?;
        self.folder.write_json("stats.json", &self.stats)?;
        let tree = analysis.tree(&results.verdicts);
        let results = Results {
            folder: &self.folder,
            info: &self.info,
            findings: results.findings,
            suppress: std::mem::take(&mut self.suppress),
            witnesses: results.witnesses,
            coverage: self.stats.coverage(&self.settings),
            tree: Some(tree),
            engines: self.settings.engines(),
            seconds: started.elapsed().as_secs_f64(),
            phases: self.stats.phases(),
        };
        let exit = reporting::report(results, &arguments.reporting)?;
        let incomplete = !self.info.complete && self.settings.require_complete;
        Ok(if incomplete { exit.max(Exit::Incomplete) } else { exit })
    }

    /// Runs the workload once, and once more without pmvet. Returns how pmvet ends if there is nothing to analyse.
    fn record(&mut self, install: &Install) -> Result<Option<Exit>, Error> {
        let end = self.workload.record(&self.folder, &mut self.info, false, install, None)?;
        if end.is_none()
            && !self.workload.in_place
            && let Ok(run) = self.workload.run_natively()
        {
            self.info.native_seconds = Some(run.time.as_secs_f64());
            self.folder.write_info(&self.info)?;
        }
        Ok(end)
    }

    fn nothing(&self, analysis: &Analysis) -> Option<Exit> {
        if !analysis.saw_pm {
            return Some(self.workload.no_pm());
        }
        if analysis.scan.passed == 0 {
            eprintln!(
                "pmvet: nothing was analysed: the target never flushed or fenced after a store to PM, so there is no \
                 failure point"
            );
            return Some(Exit::NothingAnalysed);
        }
        None
    }
}
