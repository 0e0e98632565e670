//! `pmvet verify`: one recorded run, and its recovery on everything that a crash can leave and the recovery can tell apart.

mod search;
mod settings;
mod stats;

use std::time::Instant;

use pmvet_findings::suppress::Suppress;
use pmvet_target::install::Install;
use pmvet_target::{launch, over};

use self::search::{Analysis, Search};
use self::settings::Settings;
use self::stats::Stats;
use crate::budget;
use crate::cli;
use crate::exit::{Error, Exit};
use crate::isolation;
use crate::recovery::{Proven, failed};
use crate::reporting::{self, Results};
use crate::run_folder::{RunFolder, RunInfo, texts};
use crate::workload::Workload;

pub(crate) fn run(arguments: cli::Verify) -> Result<Exit, Error> {
    let folder = std::env::current_dir().map_err(|e| failed("find", "the current folder", e))?;
    let settings = Settings::new(&arguments)?;
    let config = crate::config::Config::load(arguments.workload.config.as_deref())?;
    let workload = Workload::new(&arguments.workload, &config, &folder)?;
    let install = Install::find()?;
    isolation::start(workload.pm.iter().map(Into::into).collect())?;
    let started = budget::begin(settings.recovering.budget);
    let mut verify = match arguments.recovering.resume {
        true => Verify::resume(&arguments, settings, workload)?,
        false => Verify::start(&arguments, settings, workload)?,
    };
    verify.suppress = config.suppress;
    let exit = verify.run(&arguments, &install, started)?;
    if let Some(signal) = launch::stopped_by() {
        let name = launch::signal_name(signal);
        eprintln!("pmvet: interrupted by {name}; `--resume` goes on where this run ended");
        return Ok(Exit::Interrupted);
    }
    Ok(exit)
}

/// A verification under way.
struct Verify {
    settings: Settings,
    workload: Workload,
    folder: RunFolder,
    info: RunInfo,
    stats: Stats,
    suppress: Vec<Suppress>,
}

impl Verify {
    fn start(arguments: &cli::Verify, settings: Settings, workload: Workload) -> Result<Self, Error> {
        // A recovery that cannot be traced is found out before anything runs.
        settings.recovering.program(&workload)?;
        let folder = RunFolder::create(&arguments.workload.runs)?;
        let info = RunInfo {
            oracle: settings.recovering.oracle.as_deref().map(texts),
            settings: settings.identity(),
            ..RunInfo::new(&workload.command, &settings.recovering.command(&workload))
        };
        folder.write_info(&info)?;
        Ok(Self { settings, workload, folder, info, stats: Stats::default(), suppress: Vec::new() })
    }

    fn resume(arguments: &cli::Verify, settings: Settings, workload: Workload) -> Result<Self, Error> {
        let (folder, info) = RunFolder::resume(&arguments.workload.runs, &workload.command, &settings.identity())?;
        Ok(Self { settings, workload, folder, info, stats: Stats::default(), suppress: Vec::new() })
    }

    fn run(&mut self, arguments: &cli::Verify, install: &Install, started: Instant) -> Result<Exit, Error> {
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
            if let Some(exit) = self.workload.record(&self.folder, &mut self.info, false, install, None)? {
                return Ok(exit);
            }
        }
        let analysed = Instant::now();
        let mut analysis = Analysis::run(&self.folder.recording(), &self.settings, &self.folder)?;
        if !analysis.is_whole {
            return Ok(budget::not_analysed().unwrap_or(Exit::Interrupted));
        }
        self.stats.analysis_seconds = analysed.elapsed().as_secs_f64();
        if !analysis.scan.saw_pm {
            return Ok(self.workload.no_pm());
        }
        let search = Search::new(&self.settings, &self.workload, install, &self.folder, &analysis.scan);
        let (usual, timeout) = match (&self.info.usual, self.info.timeout) {
            (Some(usual), Some(timeout)) => (usual.clone(), timeout),
            _ => match search.prove(&analysis.scan)? {
                Ok(Proven { usual, timeout }) => (usual, timeout),
                Err(exit) => return Ok(exit),
            },
        };
        (self.info.usual, self.info.timeout) = (Some(usual.clone()), Some(timeout));
        self.folder.keep_info(&self.info);
        let searched = search.run(&mut analysis, &usual, timeout, arguments.reporting.quiet)?;
        self.stats.take(&self.info, &analysis.scan, &searched.done, searched.seconds, self.settings.recovering.jobs);
        self.stats.wall_seconds = started.elapsed().as_secs_f64();
        let complete = searched.done.is_complete() && analysis.scan.merged == 0 && analysis.scan.unsupported == 0;
        self.info.complete = complete && !over::is_over();
        self.folder.keep_info(&self.info);
        self.folder.keep_json("stats.json", &self.stats);
        let mut coverage = self.stats.coverage(&self.settings);
        budget::note(&mut coverage);
        let results = Results {
            folder: &self.folder,
            info: &self.info,
            findings: searched.findings,
            witnesses: searched.witnesses,
            coverage,
            tree: None,
            engines: vec!["verify".into()],
            seconds: started.elapsed().as_secs_f64(),
            phases: self.stats.phases(),
            suppress: std::mem::take(&mut self.suppress),
        };
        let exit = reporting::report(results, &arguments.reporting)?;
        // Only a complete search that found nothing says that there is nothing.
        Ok(if self.info.complete { exit } else { exit.max(Exit::Incomplete) })
    }
}
