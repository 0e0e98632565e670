//! `pmvet verify`: one recorded run, and its recovery on everything that a crash can leave and the recovery can tell apart.

mod search;
mod settings;
mod stats;

use std::time::{Instant, SystemTime};

use pmvet_events::file::TraceHeader;
use pmvet_findings::Outcome;
use pmvet_target::install::Install;
use pmvet_target::launch::{self, Exit as TargetExit};
use pmvet_target::recording::Recording;

use self::search::{Analysis, Proof, Search};
use self::settings::Settings;
use self::stats::Stats;
use crate::cli;
use crate::exit::{Error, Exit};
use crate::reporting::{self, Results};
use crate::run_folder::{RunFolder, RunInfo, Text, texts};
use crate::system;
use crate::workload::{self, Workload};

pub(crate) fn run(arguments: cli::Verify) -> Result<Exit, Error> {
    let folder = std::env::current_dir().map_err(|e| search::output("find", "the current folder", e))?;
    let settings = Settings::new(&arguments)?;
    let config = crate::config::Config::load(arguments.workload.config.as_deref())?;
    let workload = Workload::new(&arguments.workload, &config, &folder)?;
    let install = Install::find()?;
    system::handle_signals();
    let started = Instant::now();
    let mut verify = match arguments.resume {
        true => Verify::resume(&arguments, settings, workload)?,
        false => Verify::start(&arguments, settings, workload)?,
    };
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
}

impl Verify {
    fn start(arguments: &cli::Verify, settings: Settings, workload: Workload) -> Result<Self, Error> {
        // A recovery that cannot be traced is found out before anything runs.
        settings.recovery_program(&workload)?;
        let folder = RunFolder::create(&arguments.workload.runs)?;
        let info = RunInfo {
            version: env!("CARGO_PKG_VERSION").into(),
            started: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            command: texts(&workload.command),
            folder: Text(std::env::current_dir().unwrap_or_default().into()),
            environment: std::env::vars_os().map(|(name, value)| (Text(name), Text(value))).collect(),
            recover: texts(&settings.recovery_command(&workload)),
            oracle: settings.oracle.as_deref().map(texts),
            server: None,
            settings: settings.identity(),
            usual: None,
            timeout: None,
            native_seconds: None,
            traced_seconds: None,
            recorded: false,
            complete: false,
        };
        folder.write_info(&info)?;
        Ok(Self { settings, workload, folder, info, stats: Stats::default() })
    }

    fn resume(arguments: &cli::Verify, settings: Settings, workload: Workload) -> Result<Self, Error> {
        let folder = RunFolder::open(&arguments.workload.runs, None)?;
        let info = folder.read_info()?;
        let same = info.command == texts(&workload.command)
            && info.settings == settings.identity()
            && info.version == env!("CARGO_PKG_VERSION");
        if !same {
            return Err(Error::Run(format!(
                "--resume: the last run ({}) had another command line, other options or another version of pmvet; start a \
                 new run without --resume",
                folder.id
            )));
        }
        Ok(Self { settings, workload, folder, info, stats: Stats::default() })
    }

    fn run(&mut self, arguments: &cli::Verify, install: &Install, started: Instant) -> Result<Exit, Error> {
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
        let analysed = Instant::now();
        let mut analysis = Analysis::run(&self.folder.recording(), &self.settings, &self.folder)?;
        self.stats.analysis_seconds = analysed.elapsed().as_secs_f64();
        if !analysis.scan.saw_pm {
            eprintln!(
                "pmvet: nothing was analysed: the target mapped no PM file. PM is any file that matches {}, or that is \
                 mapped with MAP_SYNC; name other files with --pm GLOB",
                self.workload.pm.join(", ")
            );
            return Ok(Exit::NothingAnalysed);
        }
        let deadline = self.settings.budget.map(|budget| started + budget);
        let search = Search::new(&self.settings, &self.workload, install, &self.folder, &analysis.scan, deadline);
        let (usual, timeout) = match (&self.info.usual, self.info.timeout) {
            (Some(usual), Some(timeout)) => (usual.clone(), timeout),
            _ => match search.prove(&analysis.scan)? {
                Proof::Works { usual, timeout } => (usual, timeout),
                Proof::Stopped => return Ok(Exit::Interrupted),
                Proof::Fails { outcome, output } => {
                    let what = match &outcome {
                        Outcome::Oracle { .. } => "the oracle rejects the files although nothing was injected",
                        _ => "the recovery fails although nothing was injected; --recover names another command",
                    };
                    return Ok(workload::failed(what, &outcome, &output));
                }
            },
        };
        (self.info.usual, self.info.timeout) = (Some(usual.clone()), Some(timeout));
        self.folder.write_info(&self.info)?;
        let searched = search.run(&mut analysis, &usual, timeout, arguments.reporting.quiet)?;
        self.stats.take(&self.info, &analysis.scan, &searched.done, searched.seconds, self.settings.jobs);
        self.stats.wall_seconds = started.elapsed().as_secs_f64();
        let complete = searched.done.is_complete() && analysis.scan.merged == 0 && analysis.scan.unsupported == 0;
        self.info.complete = complete && launch::stopped_by().is_none();
        self.folder.write_info(&self.info)?;
        self.folder.write_json("stats.json", &self.stats)?;
        let results = Results {
            folder: &self.folder,
            info: &self.info,
            findings: searched.findings,
            witnesses: searched.witnesses,
            coverage: self.stats.coverage(&self.settings),
            tree: None,
            engines: vec!["verify".into()],
            seconds: started.elapsed().as_secs_f64(),
            phases: self.stats.phases(),
            suppress: Vec::new(),
        };
        let exit = reporting::report(results, &arguments.reporting)?;
        // Only a complete search that found nothing says that there is nothing.
        Ok(if self.info.complete { exit } else { exit.max(Exit::Incomplete) })
    }

    /// Runs the workload once. Returns how pmvet ends if there is nothing to analyse.
    fn record(&mut self, install: &Install) -> Result<Option<Exit>, Error> {
        let header = TraceHeader {
            command: self.workload.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            pmvet_version: env!("CARGO_PKG_VERSION").into(),
            loads: false,
        };
        let (_, ending) = Recording::make(&self.folder.path, &self.workload.launch(false), &header, install)?;
        if launch::stopped_by().is_some() {
            return Ok(Some(Exit::Interrupted));
        }
        self.info.traced_seconds = Some(ending.time.as_secs_f64());
        if ending.exit != TargetExit::Status(0) {
            return Ok(Some(workload::failed("the target itself fails", &ending.exit, &ending.output)));
        }
        if !ending.loss.is_none() {
            eprintln!("pmvet: {} events were lost, so nothing can be said about this run", ending.loss.events);
            return Ok(Some(Exit::Internal));
        }
        self.info.recorded = true;
        self.folder.write_info(&self.info)?;
        Ok(None)
    }
}
