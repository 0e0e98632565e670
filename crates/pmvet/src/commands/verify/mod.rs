//! `pmvet verify`: one recorded run, and its recovery on everything that a crash can leave and the recovery can tell apart.

mod search;
mod settings;
mod stats;

use std::time::Instant;

use pmvet_target::shutdown;

pub(super) use self::search::JOURNAL;
use self::search::{Search, VerifyAnalysis};
pub(super) use self::settings::VerifySettings;
use self::stats::VerifyStats;
use crate::budget;
use crate::cli;
use crate::config::Config;
use crate::driver::{self, Engine, EngineReport, Job, Needs, NoReport, RecordOnly, Resumable, Session};
use crate::exit::{Error, Exit};
use crate::recovery::Proven;
use crate::run_folder::{RunInfo, texts};
use crate::workload;
use pmvet_target::Workload;

pub(crate) fn run(arguments: &cli::Verify) -> Result<Exit, Error> {
    let settings = VerifySettings::new(arguments)?;
    driver::run(job(arguments, &settings)?, &mut [&mut VerifyEngine { settings }])
}

/// Records the workload for shards to verify it.
pub(super) fn record(arguments: &cli::Verify) -> Result<Exit, Error> {
    let settings = VerifySettings::new(arguments)?;
    driver::run(job(arguments, &settings)?, &mut [&mut RecordOnly(VerifyEngine { settings })])
}

fn job<'a>(arguments: &'a cli::Verify, settings: &VerifySettings) -> Result<Job<'a>, Error> {
    Ok(Job {
        workload: &arguments.workload,
        reporting: &arguments.reporting,
        config: Config::load(arguments.workload.config.as_deref())?,
        budget: settings.recovering.budget,
        // Only a complete search that found nothing says that there is nothing.
        require_complete: true,
        resumable: Some(Resumable { start: arguments.recovering.start(), identity: settings.identity() }),
        left_out: Vec::new(),
        given: None,
    })
}

/// The recovery on everything that a crash can leave and it can tell apart.
pub(super) struct VerifyEngine {
    pub(super) settings: VerifySettings,
}

impl Engine for VerifyEngine {
    fn names(&self) -> Vec<String> {
        vec!["verify".into()]
    }

    fn needs(&self) -> Needs {
        Needs::default()
    }

    fn prepare(&self, workload: &Workload) -> Result<(), Error> {
        // A recovery that cannot be traced is found out before anything runs.
        self.settings.recovering.program(workload).map(drop)
    }

    fn describe(&self, workload: &Workload, info: &mut RunInfo) {
        info.recover = texts(&self.settings.recovering.command(workload));
        info.oracle = self.settings.recovering.oracle.as_deref().map(texts);
    }

    fn run(&mut self, session: &mut Session) -> Result<EngineReport, NoReport> {
        let (settings, quiet, stats_file) = (&self.settings, session.quiet, session.stats_file("verify"));
        let Session { workload, folder, info, install, started, .. } = session;
        let began = Instant::now();
        let mut analysis = VerifyAnalysis::run(&folder.recording(), settings, folder)?;
        if !analysis.is_whole {
            return Err(NoReport::Exit(budget::not_analysed().unwrap_or(Exit::Interrupted)));
        }
        let analysis_seconds = began.elapsed().as_secs_f64();
        if !analysis.scan.saw_pm {
            return Err(NoReport::Exit(workload::no_pm(workload)));
        }
        let search = Search::new(settings, workload, install, folder, &analysis.scan);
        let (usual, timeout) = match (&info.usual, info.timeout) {
            (Some(usual), Some(timeout)) => (usual.clone(), timeout),
            _ => match search.prove(&analysis.scan)? {
                Ok(Proven { usual, timeout, .. }) => (usual, timeout),
                Err(exit) => return Err(NoReport::Exit(exit)),
            },
        };
        (info.usual, info.timeout) = (Some(usual.clone()), Some(timeout));
        folder.keep_info(info);
        let searched = search.run(&mut analysis, &usual, timeout, quiet)?;
        let mut stats = VerifyStats::default();
        stats.analysis_seconds = analysis_seconds;
        stats.take(info, &analysis.scan, &searched.done, searched.seconds, settings.recovering.jobs);
        stats.wall_seconds = started.elapsed().as_secs_f64();
        folder.keep_json(&stats_file, &stats);
        let mut coverage = stats.coverage(settings);
        budget::note(&mut coverage);
        let done = &searched.done;
        let blind = done.looked == 0 && done.watched > 0;
        if blind {
            eprintln!(
                "pmvet: nothing was analysed: in {} executions the recovery neither mapped nor read a PM file of the run; is \
                 --recover right?",
                done.watched
            );
            coverage.not_covered.push("everything: the recovery looks at no PM".into());
        }
        let complete = searched.done.is_complete() && analysis.scan.merged == 0 && analysis.scan.unsupported == 0;
        Ok(EngineReport {
            findings: searched.findings,
            witnesses: searched.witnesses,
            coverage,
            tree: None,
            phases: stats.phases(),
            complete: complete && !shutdown::is_over(),
            least: if blind { Exit::NothingAnalysed } else { Exit::Ok },
        })
    }
}
