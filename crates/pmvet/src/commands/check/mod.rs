//! `pmvet check`: one recorded run, rules on its events, and recovery from a crash at every failure point.

mod settings;
mod shares;
mod stats;

use std::path::Path;

use pmvet_engines::check::{CheckObserver, Checked, CrashCheck};
use pmvet_engines::lab::{Lab, TrialProgress};
use pmvet_target::shutdown;

pub(super) use self::settings::CheckSettings;
pub(super) use self::shares::Shares;
use self::stats::CheckStats;
use crate::budget;
use crate::cli;
use crate::config::Config;
use crate::driver::{self, Engine, EngineReport, Job, Needs, NoReport, RecordOnly, Resumable, Session};
use crate::durable;
use crate::exit::{Error, Exit};
use crate::progress::ProgressReport;
use crate::recovery;
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

/// Prefix of the line in which a shard says what it left to others.
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
        let (quiet, stats_file) = (session.quiet, session.stats_file("check"));
        let Session { workload, folder, info, install, config, started, .. } = session;
        let lab = Lab { workload, install, folder: &folder.path };
        if let Err(exit) = self.settings.settle(lab, folder)? {
            return Err(NoReport::Exit(exit));
        }
        self.describe(workload, info);
        let settings = &self.settings;
        let plan = settings.plan();
        let recovery_plan = settings.recovery_plan(workload);
        let mut check = CrashCheck::read(lab, &plan, &recovery_plan)?;
        if !check.is_whole() {
            return Err(NoReport::Exit(budget::exit_before_analysis().unwrap_or(Exit::Interrupted)));
        }
        if let Some(exit) = nothing(&check, workload) {
            return Err(NoReport::Exit(exit));
        }
        if let Some(durable) = &settings.durable
            && let Some(exit) = durable::expect(durable, &mut check, workload, folder, info.client_done)?
        {
            return Err(NoReport::Exit(exit));
        }
        let known = (info.usual.as_ref(), info.timeout);
        let (has_oracle, has_dump) = (recovery_plan.oracle.is_some(), settings.durable.is_some());
        let (usual, timeout, shown) = recovery::usual(known, has_oracle, has_dump, || check.prove())?;
        if let Err(why) = check.calibrate(shown.as_deref())? {
            return Err(NoReport::Exit(durable::incomparable(why)));
        }
        (info.usual, info.timeout) = (Some(usual.clone()), Some(timeout));
        info.oracle = check.oracle().map(texts);
        info.durable = check.content_judge().map(durable::describe);
        folder.keep_info(info);
        let sources = reporting::sources();
        let checked = check.run(&usual, timeout, &Shown { quiet }, &sources)?;
        let stats = CheckStats::new(info, &checked, settings.recovering.jobs, *started);
        let Checked { findings, witnesses, tree, recovery_tree, shares, unsaved, .. } = checked;
        for error in unsaved {
            folder.kept(Err(error.into()));
        }
        if let Some(mut shares) = shares {
            shares.iter_mut().for_each(|share| share.complete(&folder.id, &sources));
            let witnesses = reporting::needed(shares.iter().flat_map(|share| share.findings()), &witnesses);
            folder.keep_json(Shares::FILE, &Shares { shares, witnesses, suppress: config.suppress.clone() });
        }
        folder.keep_json(&stats_file, &stats);
        Ok(EngineReport {
            coverage: stats.coverage(settings),
            tree: Some(tree),
            recovery_tree: Some(recovery_tree).filter(|tree| !tree.nodes.is_empty()),
            phases: stats.phases(),
            complete: stats.recoveries_left == 0 && !shutdown::is_over(),
            least: if stats.no_recovery_ended() { Exit::NothingAnalysed } else { Exit::Ok },
            findings,
            witnesses,
        })
    }
}

/// Shows the user the progress of a check.
struct Shown {
    quiet: bool,
}

impl CheckObserver for Shown {
    fn trials(&self) -> Box<dyn TrialProgress + '_> {
        Box::new(ProgressReport::of_crash_images(self.quiet))
    }

    fn journal_was_torn(&self, path: &Path) {
        recovery::say_torn(path);
    }
}

/// The exit code if there is nothing to try.
fn nothing(check: &CrashCheck<'_>, workload: &Workload) -> Option<Exit> {
    if !check.saw_pm() {
        return Some(workload::no_pm(workload));
    }
    if !check.has_failure_points() {
        eprintln!(
            "pmvet: nothing was analysed: the target never flushed or fenced after a store to PM, so there is no \
             failure point"
        );
        return Some(Exit::NothingAnalysed);
    }
    None
}
