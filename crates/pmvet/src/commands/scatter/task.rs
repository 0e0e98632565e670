//! Runs one task: its part of the work, on the shared recording. A task that was killed resumes where it was.

use std::ffi::OsString;

use super::shared::{SEED, ScatteredWork, SharedFolder, TaskState};
use crate::cli::{self, Command};
use crate::exit::{Error, Exit};
use crate::recovery::failed;
use crate::run_folder::words;

pub(super) fn run(shared: &SharedFolder, number: u32) -> Result<Exit, Error> {
    let work = shared.work()?;
    if number > work.tasks {
        return Err(Error::Usage(format!("--task: {number} of {} tasks; write 1 to {0}", work.tasks)));
    }
    let _claim = shared.claim(number)?;
    if let Some(TaskState::Done(_)) = shared.state(number) {
        eprintln!("pmvet: task {number} of {} was done before", work.tasks);
        return Ok(Exit::Ok);
    }
    std::env::set_current_dir(&work.folder.0).map_err(|e| failed("go to", &work.folder.0.to_string_lossy(), e))?;
    let ended = super::super::run(command(shared, &work, number));
    let state = match &ended {
        // The scheduler starts it again, and it resumes.
        Ok(Exit::Interrupted) => return Ok(Exit::Interrupted),
        Ok(exit) if did_its_part(*exit, shared, number) => TaskState::Done(*exit),
        Ok(exit) => TaskState::Failed(format!("exit code {}: {}", exit.code(), exit.meaning())),
        Err(_) if pmvet_target::shutdown::stopped_by().is_some() => return ended,
        Err(error) => TaskState::Failed(error.to_string()),
    };
    shared.set_state(number, &state)?;
    match state {
        // `gather` reports the findings. A scheduler must not take them for a failure.
        TaskState::Done(_) => Ok(Exit::Ok),
        TaskState::Failed(_) => ended,
    }
}

fn did_its_part(exit: Exit, shared: &SharedFolder, number: u32) -> bool {
    match exit {
        Exit::Ok | Exit::Findings | Exit::Incomplete => true,
        // With more tasks than work, some have nothing to do.
        Exit::NothingAnalysed => shared.run_of(number).is_some_and(|run| run.join("report.json").is_file()),
        _ => false,
    }
}

/// The engine's command, for this part of the work.
fn command(shared: &SharedFolder, work: &ScatteredWork, number: u32) -> Command {
    let mut command = super::parse(work.engine, &words(&work.command));
    let (runs, resume) = (shared.task(number), shared.run_of(number).is_some());
    let recording = work.recording.as_ref().map(|id| shared.recordings().join(id));
    match &mut command {
        Command::Check(a) => {
            a.workload.runs = runs;
            a.reporting = a.reporting.of_inner_runs();
            on(&mut a.recovering, recording, resume, a.workload.client.is_some());
            a.shard = Some((number, work.tasks));
        }
        Command::Verify(a) => {
            a.workload.runs = runs;
            a.reporting = a.reporting.of_inner_runs();
            on(&mut a.recovering, recording, resume, false);
            a.shard = Some((number, work.tasks));
        }
        Command::Fuzz(a) => {
            a.workload.runs = runs;
            a.reporting = a.reporting.of_inner_runs();
            a.corpus = Some(shared.corpora().join(number.to_string()));
            a.exchange = Some(shared.corpora());
            a.seeds = a.seeds.take().or_else(|| Some(shared.file(SEED)));
            // Different seeds, so that no two tasks make the same choices.
            a.seed = a.seed.wrapping_add(u64::from(number - 1) << 16);
        }
        _ => {}
    }
    command
}

fn on(recovering: &mut cli::Recovering, recording: Option<std::path::PathBuf>, resume: bool, one_at_a_time: bool) {
    (recovering.recording, recovering.resume) = (recording, resume);
    if recovering.jobs.is_none() && !one_at_a_time {
        // Only the cores that Slurm gave this task; others may use the rest of the machine.
        let given = std::env::var_os("SLURM_CPUS_ON_NODE").map(OsString::into_string);
        recovering.jobs = given.and_then(Result::ok).and_then(|text| text.parse().ok()).filter(|&jobs| jobs > 0);
    }
}
