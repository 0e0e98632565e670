//! `pmvet init`: runs a program once, privately, and proposes a `pmvet.toml` from what it saw.

mod functions;
mod proposal;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use pmvet_events::wire::Brief;
use pmvet_events::{Event, Places, ThreadId};
use pmvet_target::collect::SinkError;
use pmvet_target::install::Install;
use pmvet_target::launch::TargetExit;
use pmvet_target::sandbox::{Capture, SandboxedEnd};
use pmvet_target::{Sink, Workload, launch, shutdown};

use self::proposal::Seen;
use crate::cli;
use crate::config::DEFAULT_FILE;
use crate::exit::{Error, Exit};
use crate::summary::count::{EventCounter, FileCount};
use crate::{budget, isolation, kinds, pm, workload};

pub(crate) fn run(arguments: &cli::Init) -> Result<Exit, Error> {
    let path = arguments.config.as_deref().unwrap_or(Path::new(DEFAULT_FILE));
    if arguments.write {
        // Before a run that may take long.
        refuse_existing(path)?;
    }
    let exit = propose(arguments, path)?;
    Ok(if shutdown::stopped_by().is_some() { Exit::Interrupted } else { exit })
}

fn propose(arguments: &cli::Init, path: &Path) -> Result<Exit, Error> {
    let failed = |action, what: &str, source| Error::Output { action, what: what.into(), source };
    let folder = std::env::current_dir().map_err(|e| failed("find", "the current folder", e))?;
    // Every file that it maps may turn out to be PM.
    let mut target = Workload { pm: vec!["/**".into()], ..Workload::new(&arguments.command)? };
    isolation::start(Vec::new())?;
    budget::begin(None);
    let install = Install::find()?;
    let scratch = tempfile::tempdir().map_err(|e| failed("make", "a temporary folder", e))?;
    if let Some(line) = &arguments.setup
        && let Some(exit) = workload::set_up(&mut target, line)?
    {
        return Ok(exit);
    }
    if let Some(exit) = workload::keep_input(&mut target, &scratch.path().join("input"))? {
        return Ok(exit);
    }
    let counter = match observe(&mut target, &install)? {
        Ok(counter) => counter,
        Err(exit) => return Ok(exit),
    };
    let files = pm_files(&counter);
    if files.is_empty() {
        eprintln!(
            "pmvet: nothing to propose: the program maps no file that it shares and stores to. Give it a workload that works on its PM"
        );
        return Ok(Exit::NothingAnalysed);
    }
    let Some(recovers) = runs_again(&target)? else { return Ok(Exit::Interrupted) };
    let acquire = kinds::parse("acquire").ok();
    let seen = Seen {
        command: &arguments.command,
        setup: arguments.setup.as_deref(),
        folder: &folder,
        files: files.into_iter().filter(|file| !is_pm_anyway(file)).collect(),
        threads: counter.threads.iter().filter(|thread| thread.kinds.iter().any(|count| *count > 0)).count(),
        locks: acquire.map_or(0, |kind| counter.threads.iter().map(|thread| thread.kinds[kind]).sum()),
        has_input: target.input.is_some(),
        recovers,
        functions: functions::candidates_in(&target.program.executable),
    };
    let text = seen.proposal();
    if !arguments.write {
        print!("{text}");
        return Ok(Exit::Ok);
    }
    write_new(path, &text)?;
    eprintln!("pmvet: wrote {}; `pmvet vet` uses it", path.display());
    Ok(Exit::Ok)
}

fn refuse_existing(path: &Path) -> Result<(), Error> {
    match path.symlink_metadata() {
        Ok(_) => Err(Error::Usage(format!(
            "{} exists and is never overwritten; without --write the proposal is printed",
            path.display()
        ))),
        Err(_) => Ok(()),
    }
}

/// Writes a file that must not exist, as a whole or not at all.
fn write_new(path: &Path, text: &str) -> Result<(), Error> {
    let failed = |source| Error::Output { action: "write", what: path.display().to_string(), source };
    let mut file = match std::fs::File::create_new(path) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => return refuse_existing(path),
        opened => opened.map_err(failed)?,
    };
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(|e| {
        // Half a configuration would be read as a whole one.
        let _ = std::fs::remove_file(path);
        failed(e)
    })
}

/// Runs the target under DynamoRIO, on private files. Returns the exit code if the target failed.
fn observe(target: &mut Workload, install: &Install) -> Result<Result<EventCounter, Exit>, Error> {
    let how = target.launch(false);
    let files = how.sandbox.as_ref().map(|private| Arc::clone(&private.overlay));
    let mut counter = Counting(EventCounter::default());
    let ending = launch(&how, install, &mut counter).map_err(Error::Launch)?;
    if shutdown::stopped_by().is_some() {
        return Ok(Err(Exit::Interrupted));
    }
    if ending.exit != TargetExit::Status(0) {
        return Ok(Err(workload::failed("the program itself fails", &ending.exit, &ending.output)));
    }
    if let Some(files) = files {
        target.left = left(&files);
    }
    Ok(Ok(counter.0))
}

fn left(files: &Mutex<pmvet_target::sandbox::Overlay>) -> pmvet_target::sandbox::Overlay {
    files.lock().unwrap_or_else(|e| e.into_inner()).above(Capture::Named)
}

/// Only counts.
struct Counting(EventCounter);

impl Sink for Counting {
    fn event(&mut self, event: &Event<'_>, places: &dyn Places) -> Result<(), SinkError> {
        self.0.event(event, places);
        Ok(())
    }

    fn counts(&self) -> bool {
        true
    }

    fn count(&mut self, thread: ThreadId, record: &Brief, places: &dyn Places) {
        self.0.record(thread, record, places);
    }
}

/// Files that the target maps shared and stores to.
fn pm_files(counter: &EventCounter) -> Vec<PathBuf> {
    let stored_to = |file: &&FileCount| file.traffic().stores + file.traffic().rmw > 0 && file.mapped > 0;
    counter.files.iter().filter(stored_to).filter_map(|file| file.path.clone()).collect()
}

fn is_pm_anyway(path: &Path) -> bool {
    let text = pmvet_events::paths::text(path);
    pm::DEFAULT.iter().any(|glob| glob::Pattern::new(glob).is_ok_and(|glob| glob.matches(&text)))
}

/// Whether the same command line succeeds on what a run has left, so that it can serve as the recovery. Nothing if interrupted.
fn runs_again(target: &Workload) -> Result<Option<bool>, Error> {
    let again = Workload { files: target.left.clone(), input: target.input.clone(), ..Workload::new(&target.command)? };
    let run = again.run_natively().map_err(|source| Error::Output {
        action: "run",
        what: "the program once more".into(),
        source,
    })?;
    Ok(match run.end {
        SandboxedEnd::Interrupted => None,
        end => Some(end == SandboxedEnd::Exit(0)),
    })
}
