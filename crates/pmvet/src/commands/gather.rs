//! `pmvet gather`: waits for the tasks of scattered work and joins their findings, so that the report is that of one machine.
//!
//! * `check`: the findings of all shards are joined, as by `pmvet merge`.
//! * `verify`: the search runs again with the executions of all tasks instead of new ones. It is deterministic, so its result is that of
//!   one machine.
//! * `fuzz`: the test cases of all tasks are copied into one corpus, and their findings are joined.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use pmvet_engines::verify::SearchJournal;
use pmvet_engines::verify::verification::JOURNAL;
use pmvet_target::{launch, shutdown};

use super::scatter::parse;
use super::scatter::shared::{ScatteredWork, SharedFolder, TaskState};
use super::{fuzz, merge, verify};
use crate::cli::{self, Command, ScatterEngine};
use crate::config;
use crate::exit::{Error, Exit};
use crate::progress::{PhaseProgress, ProgressReport};
use crate::recovery::failed;
use crate::run_folder::{RunFolder, words};
use crate::system;

/// Poll interval of the shared folder while tasks are under way. Each poll reads a file per task, maybe over a network.
const POLL: Duration = Duration::from_secs(2);
/// Poll interval for interrupts.
const TICK: Duration = Duration::from_millis(50);

pub(crate) fn run(mut arguments: cli::Gather) -> Result<Exit, Error> {
    system::handle_signals();
    let shared = SharedFolder::existing(&arguments.shared)?;
    let work = shared.work()?;
    let tasks = Tasks::wait(&shared, &work, &arguments);
    if let Some(signal) = shutdown::stopped_by() {
        let signal = launch::signal_name(signal);
        eprintln!("pmvet: interrupted by {signal}; the tasks go on, and `pmvet gather` may be called again");
        return Ok(Exit::Interrupted);
    }
    let Usable { runs, missing } = tasks.usable(&shared, &work);
    for why in &missing {
        eprintln!("pmvet: {why}");
    }
    if runs.is_empty() {
        eprintln!("pmvet: nothing was analysed: no task is done");
        return Ok(Exit::NothingAnalysed);
    }
    // Paths in findings are relative to where the program was started.
    absolute(&mut arguments)?;
    std::env::set_current_dir(&work.folder.0).map_err(|e| failed("go to", &work.folder.0.to_string_lossy(), e))?;
    let is_whole = missing.is_empty();
    let exit = match work.engine {
        ScatterEngine::Check => merge::join_runs(&names(&runs), &arguments.runs, &arguments.reporting, |results| {
            results.coverage.not_covered.extend(missing);
        })?,
        ScatterEngine::Verify => join_verify(&work, runs, arguments)?,
        ScatterEngine::Fuzz => {
            let to = arguments.corpus.unwrap_or_else(|| shared.file("corpus"));
            let corpora = (1..=work.tasks).map(|task| shared.corpora().join(task.to_string()));
            let joined = fuzz::join_corpora(&corpora.collect::<Vec<_>>(), &to)?;
            merge::join_runs(&names(&runs), &arguments.runs, &arguments.reporting, |results| {
                fuzz::join_cases(&runs, &to, results);
                let counters = results.coverage.counters.iter_mut();
                counters.filter(|c| c.name == "test cases").for_each(|c| c.done = joined as u64);
                results.coverage.not_covered.extend(missing);
            })?
        }
    };
    Ok(if is_whole { exit } else { exit.max(Exit::Incomplete) })
}

fn names(runs: &[PathBuf]) -> Vec<String> {
    runs.iter().map(|run| run.to_string_lossy().into_owned()).collect()
}

/// Makes paths absolute, since the current folder is about to change.
fn absolute(arguments: &mut cli::Gather) -> Result<(), Error> {
    let how = &mut arguments.reporting;
    let optional = [
        &mut how.suppressions,
        &mut how.baseline,
        &mut how.export_json,
        &mut how.export_sarif,
        &mut how.export_junit,
        &mut how.export_html,
        &mut arguments.corpus,
    ];
    for path in optional.into_iter().flatten().chain([&mut arguments.runs]) {
        *path = std::path::absolute(&*path).map_err(|e| failed("find", &path.display().to_string(), e))?;
    }
    Ok(())
}

/// Runs the search again, with the executions that the tasks have made.
fn join_verify(work: &ScatteredWork, runs: Vec<PathBuf>, gather: cli::Gather) -> Result<Exit, Error> {
    let mut command = parse(work.engine, &words(&work.command));
    config::fill_in(&mut command)?;
    let Command::Verify(mut a) = command else {
        return Err(Error::Run("scatter.json is damaged: its command is not verify".into()));
    };
    (a.workload.runs, a.reporting) = (gather.runs, gather.reporting);
    a.recovering.recording = runs.first().cloned();
    // No budget, since nothing that takes long is executed.
    a.recovering.budget = None;
    a.gathered = Some(runs);
    verify::run(&a)
}

/// How each task ended, in their order.
struct Tasks(Vec<Option<TaskState>>);

/// The runs of the tasks that are done, and why the others have none.
struct Usable {
    runs: Vec<PathBuf>,
    missing: Vec<String>,
}

impl Tasks {
    /// Polls until all tasks have ended, or only once with `--no-wait`.
    fn wait(shared: &SharedFolder, work: &ScatteredWork, arguments: &cli::Gather) -> Self {
        let mut tasks = Self(vec![None; work.tasks as usize]);
        let quiet = arguments.reporting.quiet;
        let progress = ProgressReport::of_tasks(quiet);
        let mut findings = HashSet::new();
        loop {
            for (number, state) in (1..).zip(&mut tasks.0).filter(|(_, state)| state.is_none()) {
                *state = shared.state(number);
                if let (Some(TaskState::Done(_)), Some(run)) = (&state, shared.run_of(number)) {
                    findings.extend(fingerprints(&run));
                }
            }
            progress.show(|_| tasks.stand(findings.len()));
            let is_over = tasks.0.iter().all(Option::is_some) || shutdown::stopped_by().is_some();
            if is_over || arguments.no_wait {
                progress.finish();
                if !quiet {
                    eprintln!("pmvet: {}", tasks.stand(findings.len()).line);
                }
                return tasks;
            }
            let next = Instant::now() + POLL;
            while Instant::now() < next && shutdown::stopped_by().is_none() {
                thread::sleep(TICK);
            }
        }
    }

    fn stand(&self, findings: usize) -> PhaseProgress {
        let total = self.0.len();
        let done = self.0.iter().flatten().filter(|state| matches!(state, TaskState::Done(_))).count();
        let failed = self.0.iter().flatten().count() - done;
        let failures = if failed > 0 { format!(", {failed} failed") } else { String::new() };
        let message = format!("findings so far: {findings}{failures}");
        PhaseProgress {
            done: done as u64,
            total: total as u64,
            line: format!("{done} of {total} tasks done, {message}"),
            message,
        }
    }

    fn usable(self, shared: &SharedFolder, work: &ScatteredWork) -> Usable {
        let (mut runs, mut missing) = (Vec::new(), Vec::new());
        for (number, state) in (1..).zip(self.0) {
            let task = format!("task {number} of {}", work.tasks);
            match (state, shared.run_of(number)) {
                (Some(TaskState::Done(_)), Some(run)) => match readable(&run, work.engine) {
                    Ok(()) => runs.push(run),
                    Err(error) => missing.push(format!(
                        "{task} cannot be used: {error}. Remove {} and do the task again",
                        shared.task(number).display()
                    )),
                },
                (Some(TaskState::Done(_)), None) => missing.push(format!("{task} is done, but its run is gone")),
                (Some(TaskState::Failed(why)), _) => missing.push(format!("{task} failed: {why}")),
                (None, Some(_)) => missing.push(format!("{task} has not come to its end")),
                (None, None) => missing.push(format!("{task} has not begun")),
            }
        }
        Usable { runs, missing }
    }
}

/// Whether a run can be joined with others.
fn readable(run: &Path, engine: ScatterEngine) -> Result<(), Error> {
    let name = run.to_string_lossy();
    if engine != ScatterEngine::Verify {
        return merge::check_shard(&name);
    }
    let folder = RunFolder::named(run, &name)?;
    folder.read_info()?;
    let path = folder.file(JOURNAL);
    SearchJournal::open(&path).map(drop).map_err(|e| failed("read", &path.display().to_string(), e))
}

/// The findings of a task; several tasks may have the same.
fn fingerprints(run: &Path) -> Vec<String> {
    let found = RunFolder::named(run, &run.to_string_lossy()).and_then(|folder| folder.findings());
    found.unwrap_or_default().into_iter().map(|finding| finding.fingerprint).collect()
}
