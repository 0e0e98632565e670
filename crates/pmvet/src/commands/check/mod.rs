//! `pmvet check`: one recorded run, rules on its events, and recovery from a crash at every failure point.

mod analysis;
pub(crate) mod durable;
mod injection;
mod known;
mod parts;
mod recoveries;
mod settings;
mod share;
mod stats;

use std::sync::Arc;
use std::time::Instant;

use pmvet_engines::causes;
use pmvet_engines::promises::judge::DrivenCommand;
use pmvet_engines::transactions;
use pmvet_target::shutdown;

use self::analysis::CheckAnalysis;
use self::durable::OperationsSeen;
use self::injection::Injection;
use self::recoveries::{Recoveries, Twice};
pub(super) use self::settings::CheckSettings;
pub(super) use self::share::{Share, Shares};
use self::stats::CheckStats;
use crate::budget;
use crate::cli;
use crate::config::Config;
use crate::driver::{self, Engine, EngineReport, Job, Needs, NoReport, RecordOnly, Resumable, Session};
use crate::exit::{Error, Exit};
use crate::recovery::Proven;
use crate::reporting;
use crate::run_folder::{RunInfo, texts};
use crate::workload;
use pmvet_target::Workload;

pub(crate) fn run(arguments: &cli::Check) -> Result<Exit, Error> {
    let settings = CheckSettings::new(arguments)?;
    driver::run(job(arguments, &settings)?, &mut [&mut CheckEngine { settings }])
}

/// Records the workload for shards to check it.
pub(super) fn record(arguments: &cli::Check) -> Result<Exit, Error> {
    let settings = CheckSettings::new(arguments)?;
    driver::run(job(arguments, &settings)?, &mut [&mut RecordOnly(CheckEngine { settings })])
}

fn job<'a>(arguments: &'a cli::Check, settings: &CheckSettings) -> Result<Job<'a>, Error> {
    Ok(Job {
        workload: &arguments.workload,
        reporting: &arguments.reporting,
        config: Config::load(arguments.workload.config.as_deref())?,
        budget: settings.recovering.budget,
        require_complete: arguments.require_complete,
        resumable: Some(Resumable { start: arguments.recovering.start(), identity: settings.identity() }),
        left_out: Vec::new(),
        given: None,
    })
}

/// How a shard begins to say what it did not do.
pub(super) const OTHER_SHARDS: &str = "the other shards of";

/// The rules, and fault injection with recovery as the oracle.
pub(super) struct CheckEngine {
    pub(super) settings: CheckSettings,
}

impl Engine for CheckEngine {
    fn names(&self) -> Vec<String> {
        self.settings.engines()
    }

    fn needs(&self) -> Needs {
        Needs { native_time: true, operations: self.settings.durable.is_some(), ..Needs::default() }
    }

    fn weight(&self) -> u32 {
        2
    }

    fn describe(&self, workload: &Workload, info: &mut RunInfo) {
        let CheckSettings { recovering, driver, .. } = &self.settings;
        info.recover = texts(&recovering.command(workload));
        info.oracle = recovering.oracle.as_deref().map(texts);
        info.server = driver.as_deref().or(workload.driver.as_deref()).map(Into::into);
    }

    fn run(&mut self, session: &mut Session) -> Result<EngineReport, NoReport> {
        let (settings, quiet, stats_file) = (&self.settings, session.quiet, session.stats_file("check"));
        let Session { workload, folder, info, install, config, started, .. } = session;
        let began = Instant::now();
        let tried = settings.known_points.as_deref().map(known::read).unwrap_or_default();
        let mut analysis = CheckAnalysis::run(&folder.recording(), settings, folder, Arc::new(tried.clone()))?;
        if !analysis.is_whole {
            return Err(NoReport::Exit(budget::not_analysed().unwrap_or(Exit::Interrupted)));
        }
        let analysis_seconds = began.elapsed().as_secs_f64();
        if let Some(exit) = nothing(&analysis, workload) {
            return Err(NoReport::Exit(exit));
        }
        let mut operations = None;
        let promised = match &settings.durable {
            None => None,
            Some(durable) => {
                let recovery = settings.recovering.command(workload);
                let recovery = DrivenCommand { command: recovery, driver: settings.driver.clone() };
                match durable::promised(durable, recovery, workload, &analysis, folder, info.client_done)? {
                    Ok((promised, seen)) => {
                        analysis.scan.set_promises(&promised.promises);
                        operations = Some(seen);
                        Some(promised)
                    }
                    Err(exit) => return Err(NoReport::Exit(exit)),
                }
            }
        };
        let injection = Injection::new(settings, workload, &analysis, folder, promised.clone())?;
        let (usual, timeout, shown) = match (&info.usual, info.timeout) {
            (Some(usual), Some(timeout)) => (usual.clone(), timeout, None),
            _ => match injection.prove()? {
                Ok(Proven { usual, timeout, output }) => {
                    (usual, timeout, Some(String::from_utf8_lossy(&output).into_owned()))
                }
                Err(exit) => return Err(NoReport::Exit(exit)),
            },
        };
        if let Some(promised) = &promised
            && let Some(exit) = durable::calibrate(&promised.judge, shown.as_deref())?
        {
            return Err(NoReport::Exit(exit));
        }
        (info.usual, info.timeout) = (Some(usual.clone()), Some(timeout));
        info.oracle = injection.oracle().map(texts);
        info.durable = promised.as_ref().map(|promised| durable::describe(&promised.judge));
        folder.keep_info(info);
        let mut results = injection.run(usual.clone(), timeout, settings.recoveries, quiet)?;
        if let Some(file) = &settings.known_points {
            folder.kept(known::add(file, analysis.scan.paths.difference(&tried)));
        }
        let promised = promised.as_ref();
        let recoveries = Recoveries { settings, workload, folder, install, usual: &usual, timeout, quiet, promised };
        let mut twice = match settings.recoveries {
            0 => Twice::default(),
            _ => recoveries.run(&analysis, &results),
        };
        let mut stats = CheckStats::default();
        stats.analysis_seconds = analysis_seconds;
        stats.take(info, &analysis, &results, &twice, settings.recovering.jobs, *started);
        stats.operations = operations.zip(promised).map(|(seen, promised)| OperationsSeen {
            contents: promised.judge.contents(),
            not_judged: promised.judge.not_judged(),
            masked: promised.judge.mask().masked(),
            ..seen
        });
        let shares = settings.shard.map(|_| {
            let mut shares = vec![Share::new(None, &results)];
            shares.append(&mut twice.shares);
            shares
        });
        let more = causes::without_known(&results.findings, twice.findings);
        results.findings.extend(more);
        results.witnesses.extend(twice.witnesses);
        if let Some(mut shares) = shares {
            shares.iter_mut().for_each(|share| share.complete(folder));
            let witnesses = reporting::needed(shares.iter().flat_map(Share::findings), &results.witnesses);
            folder.keep_json(Shares::FILE, &Shares { shares, witnesses, suppress: config.suppress.clone() });
        }
        folder.keep_json(&stats_file, &stats);
        Ok(EngineReport {
            coverage: stats.coverage(settings),
            tree: Some(analysis.tree(&results.verdicts)),
            phases: stats.phases(),
            complete: stats.recoveries_left == 0 && !shutdown::is_over(),
            least: if stats.no_recovery_ended() { Exit::NothingAnalysed } else { Exit::Ok },
            findings: transactions::one_per_function(results.findings),
            witnesses: results.witnesses,
        })
    }
}

/// How pmvet ends if there is nothing to try.
fn nothing(analysis: &CheckAnalysis, workload: &Workload) -> Option<Exit> {
    if !analysis.saw_pm {
        return Some(workload::no_pm(workload));
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
