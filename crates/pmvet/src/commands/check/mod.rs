//! `pmvet check`: one recorded run, rules on its events, and recovery from a crash at every failure point.

mod analysis;
mod injection;
mod known;
mod parts;
mod recoveries;
mod settings;
mod share;
mod stats;

use std::sync::Arc;
use std::time::Instant;

use pmvet_engines::inject::causes;
use pmvet_findings::suppress::Suppress;
use pmvet_target::install::Install;
use pmvet_target::launch;
use pmvet_target::over;
use pmvet_target::sandbox::End;

use self::analysis::Analysis;
use self::injection::Injection;
use self::recoveries::{Recoveries, Twice};
use self::settings::Settings;
pub(super) use self::share::{Share, Shares};
use self::stats::Stats;
use crate::budget;
use crate::cli;
use crate::exit::{Error, Exit};
use crate::isolation;
use crate::recovery::Proven;
use crate::reporting::{self, Results};
use crate::run_folder::{RunFolder, RunInfo, texts};
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
    isolation::start(workload.pm.iter().map(Into::into).collect())?;
    let started = budget::begin(settings.recovering.budget);
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
        if let Some(line) = &arguments.workload.setup
            && let Some(exit) = self.workload.set_up(line)?
        {
            return Ok(exit);
        }
        if self.info.recorded {
            self.workload.known_input(&input);
            self.workload.left = self.folder.left()?;
        } else {
            if let Some(exit) = self.workload.keep_input(&input)? {
                return Ok(exit);
            }
            if let Some(exit) = self.record(install)? {
                return Ok(exit);
            }
        }
        let recording = self.folder.recording();
        let analysed = Instant::now();
        let tried = self.settings.known_points.as_deref().map(known::read).unwrap_or_default();
        let analysis = Analysis::run(&recording, &self.settings, &self.folder, Arc::new(tried.clone()))?;
        if !analysis.is_whole {
            return Ok(budget::not_analysed().unwrap_or(Exit::Interrupted));
        }
        self.stats.analysis_seconds = analysed.elapsed().as_secs_f64();
        if let Some(exit) = self.nothing(&analysis) {
            return Ok(exit);
        }
        let injection = Injection::new(&self.settings, &self.workload, &analysis, &self.folder)?;
        let (usual, timeout) = match (&self.info.usual, self.info.timeout) {
            (Some(usual), Some(timeout)) => (usual.clone(), timeout),
            _ => match injection.prove()? {
                Ok(Proven { usual, timeout }) => (usual, timeout),
                Err(exit) => return Ok(exit),
            },
        };
        (self.info.usual, self.info.timeout) = (Some(usual.clone()), Some(timeout));
        self.info.oracle = injection.oracle().map(texts);
        self.folder.keep_info(&self.info);
        let mut results = injection.run(usual.clone(), timeout, self.settings.recoveries, arguments.reporting.quiet)?;
        if let Some(file) = &self.settings.known_points {
            self.folder.kept(known::add(file, analysis.scan.paths.difference(&tried)));
        }
        let recoveries = Recoveries {
            settings: &self.settings,
            workload: &self.workload,
            folder: &self.folder,
            install,
            usual: &usual,
            timeout,
            quiet: arguments.reporting.quiet,
        };
        let mut twice = match self.settings.recoveries {
            0 => Twice::default(),
            _ => recoveries.run(&analysis, &results),
        };
        self.stats.take(&self.info, &analysis, &results, &twice, self.settings.recovering.jobs, started);
        let shares = self.settings.shard.map(|_| {
            let mut shares = vec![Share::new(None, &results)];
            shares.append(&mut twice.shares);
            shares
        });
        let more = causes::without_known(&results.findings, twice.findings);
        results.findings.extend(more);
        results.witnesses.extend(twice.witnesses);
        if let Some(mut shares) = shares {
            shares.iter_mut().for_each(|share| share.complete(&self.folder));
            let witnesses = reporting::needed(shares.iter().flat_map(Share::findings), &results.witnesses);
            self.folder.keep_json(Shares::FILE, &Shares { shares, witnesses, suppress: self.suppress.clone() });
        }
        self.info.complete = self.stats.recoveries_left == 0 && !over::is_over();
        self.folder.keep_info(&self.info);
        self.folder.keep_json("stats.json", &self.stats);
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
        let mut exit = reporting::report(results, &arguments.reporting)?;
        let judged = self.stats.recoveries + self.stats.recoveries_known;
        if judged == 0 && self.stats.recoveries_left > 0 && over::stopped_by().is_none() {
            eprintln!(
                "pmvet: no recovery ended within the budget, so nothing is known of crashes; give it more time (--budget)"
            );
            exit = exit.max(Exit::NothingAnalysed);
        }
        let incomplete = !self.info.complete && self.settings.require_complete;
        Ok(if incomplete { exit.max(Exit::Incomplete) } else { exit })
    }

    /// Runs the workload once, and once more without pmvet. Returns how pmvet ends if there is nothing to analyse.
    fn record(&mut self, install: &Install) -> Result<Option<Exit>, Error> {
        let end = self.workload.record(&self.folder, &mut self.info, false, install, None)?;
        if end.is_none()
            && !self.workload.in_place
            && let Ok(run) = self.workload.run_natively()
            && run.end != End::Interrupted
        {
            self.info.native_seconds = Some(run.time.as_secs_f64());
            self.folder.keep_info(&self.info);
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
