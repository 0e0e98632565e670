//! `pmvet verify`: one recorded run, and its recovery on every state that a crash can leave and the recovery can tell apart.

mod settings;
mod stats;

use std::io;
use std::path::Path;

use pmvet_engines::lab::Lab;
use pmvet_engines::promises::durable::OperationLog;
use pmvet_engines::verify::verification::{EXPERIMENTS, JOURNAL};
use pmvet_engines::verify::{SearchProgress, Verification, VerifyObserver};
use pmvet_target::shutdown;

pub(super) use self::settings::VerifySettings;
use self::stats::VerifyStats;
use crate::budget;
use crate::cli;
use crate::config::Config;
use crate::driver::{self, Engine, EngineReport, Job, Needs, NoReport, RecordOnly, Resumable, Session};
use crate::durable;
use crate::exit::{Error, Exit};
use crate::progress::ProgressReport;
use crate::recovery::{self, failed};
use crate::run_folder::{RunFolder, RunInfo, texts};
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
        // Only a complete search without findings shows that there are no bugs.
        require_complete: true,
        resumable: Some(Resumable { start: arguments.recovering.start(), identity: settings.identity() }),
        left_out: Vec::new(),
        given: None,
    })
}

/// Runs the recovery on every state that a crash can leave and the recovery can tell apart.
pub(super) struct VerifyEngine {
    pub(super) settings: VerifySettings,
}

impl Engine for VerifyEngine {
    fn names(&self) -> Vec<String> {
        self.settings.engines()
    }

    fn needs(&self) -> Needs {
        Needs { operations: self.settings.durable.is_some(), ..Needs::default() }
    }

    fn prepare(&self, workload: &Workload) -> Result<(), Error> {
        // Detects a recovery that cannot be traced before anything runs.
        self.settings.recovering.program(workload).map(drop)
    }

    fn describe(&self, workload: &Workload, info: &mut RunInfo) {
        info.recover = texts(&self.settings.recovering.command(workload));
        info.oracle = self.settings.recovering.oracle.as_deref().map(texts);
    }

    fn run(&mut self, session: &mut Session) -> Result<EngineReport, NoReport> {
        let (quiet, stats_file) = (session.quiet, session.stats_file("verify"));
        let Session { workload, folder, info, install, started, .. } = session;
        let lab = Lab { workload, install, folder: &folder.path };
        if let Err(exit) = self.settings.settle(lab, folder)? {
            return Err(NoReport::Exit(exit));
        }
        self.describe(workload, info);
        let settings = &self.settings;
        let plan = settings.plan();
        let recovery_plan = settings.recovering.natively(workload, None);
        let mut verification = Verification::read(lab, &plan, &recovery_plan)?;
        if !verification.is_whole() {
            return Err(NoReport::Exit(budget::exit_before_analysis().unwrap_or(Exit::Interrupted)));
        }
        if !verification.saw_pm() {
            return Err(NoReport::Exit(workload::no_pm(workload)));
        }
        if let Some(durable) = &settings.durable {
            let operations = OperationLog::Lines(durable::kept_lines(folder)?);
            let contents = folder.file(durable::CONTENTS);
            if let Err(why) = verification.expect_durable(&durable.plan(), operations, &contents)? {
                return Err(NoReport::Exit(durable::indistinct(why)));
            }
        }
        let known = (info.usual.as_ref(), info.timeout);
        let (has_oracle, has_dump) = (recovery_plan.oracle.is_some(), settings.durable.is_some());
        let (usual, timeout, shown) = recovery::usual(known, has_oracle, has_dump, || verification.prove())?;
        if let Err(why) = verification.calibrate(shown.as_deref())? {
            return Err(NoReport::Exit(durable::incomparable(why)));
        }
        (info.usual, info.timeout) = (Some(usual.clone()), Some(timeout));
        info.durable = verification.content_judge().map(durable::describe);
        folder.keep_info(info);
        let program = settings.recovering.program(workload)?;
        for name in [JOURNAL, EXPERIMENTS] {
            join_journals(settings, folder, name)?;
        }
        let mut verified = verification.run(program, &usual, timeout, &Shown { quiet })?;
        folder.kept(verified.unsaved.take().map_or(Ok(()), |error| Err(error.into())));
        let stats = VerifyStats::new(info, &verified, settings.recovering.jobs, started.elapsed());
        folder.keep_json(&stats_file, &stats);
        let mut coverage = stats.coverage(settings);
        budget::note(&mut coverage);
        if verified.is_blind() {
            eprintln!(
                "pmvet: nothing was analysed: in {} executions the recovery neither mapped nor read a PM file of the run; is \
                 --recover right?",
                verified.done.watched
            );
            coverage.not_covered.push("everything: the recovery looks at no PM".into());
        }
        Ok(EngineReport {
            coverage,
            tree: None,
            recovery_tree: None,
            phases: stats.phases(),
            complete: verified.is_complete() && !shutdown::is_over(),
            least: if verified.is_blind() { Exit::NothingAnalysed } else { Exit::Ok },
            findings: verified.findings,
            witnesses: verified.witnesses,
        })
    }
}

/// Shows the user the progress of a verification.
struct Shown {
    quiet: bool,
}

impl VerifyObserver for Shown {
    fn search(&self) -> Box<dyn SearchProgress + '_> {
        Box::new(ProgressReport::of_crashes(self.quiet))
    }

    fn journal_was_torn(&self, path: &Path) {
        recovery::say_torn(path);
    }
}

/// Joins the files of this name of all shards into one.
fn join_journals(settings: &VerifySettings, folder: &RunFolder, name: &str) -> Result<(), Error> {
    let Some(gathered) = &settings.gathered else { return Ok(()) };
    let mut joined = Vec::new();
    for path in gathered.iter().map(|folder| folder.join(name)) {
        let lines = match std::fs::read(&path) {
            Ok(lines) => lines,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(failed("read", &path.display().to_string(), e)),
        };
        // A kill may have torn the last line.
        let whole = lines.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
        joined.extend_from_slice(&lines[..whole]);
    }
    folder.write(name, &joined)
}
