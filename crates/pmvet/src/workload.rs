//! The workload of a command: made from its arguments, set up, recorded.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

use glob::Pattern;
use pmvet_engines::lab::RecoveryCommand;
use pmvet_events::paths;
use pmvet_events::plan::OperationsFrom;
use pmvet_target::install::Install;
use pmvet_target::launch::{TargetExit, pm_variables};
use pmvet_target::live_events::Feed;
use pmvet_target::sandbox::driver::{Driver, ServerFailure};
use pmvet_target::sandbox::{self, Capture, Output, Overlay, SandboxedEnd, SandboxedProgram, Unwinder};
use pmvet_target::shutdown;
use pmvet_target::workload::{OUTPUT_TAIL_BYTES, Workload};

use crate::budget;
use crate::cli;
use crate::config::Config;
use crate::exit::{Error, Exit};
use crate::files;
use crate::pm;
use crate::run_folder::{RunFolder, RunInfo};
use crate::system;

/// The workload that the command line and the configuration describe.
pub(crate) fn describe(arguments: &cli::Workload, config: &Config, folder: &Path) -> Result<Workload, Error> {
    if arguments.in_place && arguments.setup.is_some() {
        return Err(Error::Usage("--setup makes private files, which --in-place does not use; leave one out".into()));
    }
    if arguments.in_place && !arguments.keep.is_empty() {
        return Err(Error::Usage("--keep is for private files, and with --in-place none are; leave one out".into()));
    }
    let mut globs: Vec<String> = pm::DEFAULT.map(String::from).into();
    globs.extend(config.pm.iter().cloned());
    for text in &arguments.pm {
        globs.push(pm::glob(text, folder).map_err(|e| Error::Usage(format!("--pm: {e}")))?);
    }
    Ok(Workload {
        pm: globs,
        sync: config.sync.clone(),
        alloc: config.alloc.clone(),
        in_place: arguments.in_place,
        driver: driver(arguments, arguments.client.as_deref())?,
        ..Workload::new(&arguments.command)?
    })
}

/// Files to copy to their real places (`--keep`), as globs.
pub(crate) fn wanted_outputs(arguments: &cli::Workload, folder: &Path) -> Result<Vec<Pattern>, Error> {
    let wanted = |text: &OsString| {
        let pattern = pm::glob(text, folder).and_then(|glob| Pattern::new(&glob).map_err(|e| e.to_string()));
        pattern.map_err(|e| Error::Usage(format!("--keep: {e}")))
    };
    arguments.keep.iter().map(wanted).collect()
}

/// The workload of an earlier run, with the input and the client of its recovery. Only usable with complete plans.
pub(crate) fn of_earlier_run(command: &[OsString], recovery: &RecoveryCommand) -> Result<Workload, Error> {
    let (input, driver) = (recovery.input.clone(), recovery.driver.clone());
    Ok(Workload { races: true, in_step: true, input, driver, ..Workload::new(command)? })
}

/// Runs the command that makes the files with which the target starts. They stay private. Returns the exit code if time ran out.
pub(crate) fn set_up(workload: &mut Workload, line: &str) -> Result<Option<Exit>, Error> {
    let arguments = sandbox::shell(line);
    let variables: Vec<_> = pm_variables().collect();
    let job = SandboxedProgram {
        variables: &variables,
        output: Output::Tail(OUTPUT_TAIL_BYTES),
        ..SandboxedProgram::new(&arguments)
    };
    let capture = if workload.in_place { None } else { Some(Capture::Named) };
    let overlay = Mutex::new(Overlay::new(capture.unwrap_or(Capture::Named)));
    let run = sandbox::run(&job, &overlay, &mut Unwinder::default()).map_err(|source| Error::Output {
        action: "run",
        what: "the set-up command".into(),
        source,
    })?;
    match run.end {
        SandboxedEnd::Exit(0) => {}
        SandboxedEnd::Interrupted => return Ok(budget::exit_if_cut_short("the set-up command")),
        end => {
            let output = String::from_utf8_lossy(&run.output).into_owned();
            return Err(Error::Usage(format!("--setup: the command ended with {}\n{output}", end.exit())));
        }
    }
    let overlay = overlay.into_inner().unwrap_or_else(|e| e.into_inner());
    workload.files = overlay.above(Capture::Named);
    workload.left = workload.files.clone();
    Ok(None)
}

/// Runs the target once and records it. Returns the exit code if there is nothing to analyse.
pub(crate) fn record(
    workload: &mut Workload,
    keep: &[Pattern],
    folder: &RunFolder,
    info: &mut RunInfo,
    loads: bool,
    install: &Install,
    feed: Option<Feed>,
) -> Result<Option<Exit>, Error> {
    let how = workload.launch(loads);
    let files = how.sandbox.as_ref().map(|private| Arc::clone(&private.overlay));
    let (recording, ending) = budget::while_recording(|| workload.record(&folder.path, how, install, feed))?;
    if let Some(files) = files {
        workload.left = files.lock().unwrap_or_else(|e| e.into_inner()).above(Capture::Named);
    }
    if !shutdown::is_over() {
        keep_outputs(workload, keep)?;
        folder.keep_left(&workload.left, &recording.pm);
    }
    // A target that has ended by itself was not cut short by the budget, but it may have ended because of a signal.
    let ended = ending.exit == TargetExit::Status(0) && shutdown::stopped_by().is_none();
    if !ended && let Some(exit) = budget::exit_if_cut_short("the target") {
        return Ok(Some(exit));
    }
    info.traced_seconds = Some(ending.time.as_secs_f64());
    info.client_done = ending.client_done;
    if ending.exit != TargetExit::Status(0) {
        return Ok(Some(match &ending.server_failure {
            None => failed("the target itself fails", &ending.exit, &ending.output),
            Some(ServerFailure::Client) => failed("the client of the server fails", &ending.exit, &ending.output),
            Some(ServerFailure::NotReady(wait)) => failed("the server is not ready", wait, &ending.output),
        }));
    }
    if !ending.loss.is_none() {
        eprintln!("pmvet: {} events were lost, so nothing can be said about this run", ending.loss.events);
        return Ok(Some(Exit::Internal));
    }
    info.recorded = true;
    folder.keep_info(info);
    Ok(None)
}

/// Copies the files that the user wants to keep from the private files to their real places.
fn keep_outputs(workload: &Workload, keep: &[Pattern]) -> Result<(), Error> {
    if keep.is_empty() {
        return Ok(());
    }
    let failed = |what: &Path, source| Error::Output { action: "keep", what: what.display().to_string(), source };
    let changed = workload.left.changed_files().map_err(|e| failed(Path::new("what the run left"), e))?;
    for path in changed.iter().filter(|path| keep.iter().any(|glob| glob.matches(&paths::text(path)))) {
        let copy = || {
            let mut private = match workload.left.open_file(path) {
                // Removed by a later run.
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
                opened => opened?,
            };
            let mode = private.metadata()?.permissions();
            path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            files::replace(path, |out| io::copy(&mut private, out).map(drop))?;
            std::fs::set_permissions(path, mode)
        };
        copy().map_err(|e| failed(path, e))?;
    }
    Ok(())
}

/// Explains that the target mapped no PM, and returns the exit code.
pub(crate) fn no_pm(workload: &Workload) -> Exit {
    eprintln!(
        "pmvet: nothing was analysed: the target mapped no PM file. PM is any file that matches {}, or that is mapped \
             with MAP_SYNC; name other files with --pm GLOB",
        pm::shown(&workload.pm)
    );
    Exit::NothingAnalysed
}

/// Keeps standard input in a file, so that it can be read more than once. A terminal counts as empty. Returns the exit code if the input
/// did not end in time.
pub(crate) fn keep_input(workload: &mut Workload, path: &Path) -> Result<Option<Exit>, Error> {
    let failed = |source| Error::Output { action: "keep", what: "standard input".into(), source };
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return Ok(None);
    }
    let Ok(from) = stdin.as_fd().try_clone_to_owned().map(File::from) else { return Ok(None) };
    let mut file = File::create(path).map_err(failed)?;
    match io::copy(&mut DeadlineReader(from), &mut file) {
        Ok(0) => {
            let _ = std::fs::remove_file(path);
        }
        Ok(_) => workload.input = Some(Arc::new(File::open(path).map_err(failed)?)),
        // Half an input would make a different run.
        Err(e) if is_full(&e) => {
            let _ = std::fs::remove_file(path);
            return Err(failed(e));
        }
        // Closed, or a folder: there is nothing to read.
        Err(_) => {
            let _ = std::fs::remove_file(path);
            return Ok(budget::exit_if_cut_short("standard input"));
        }
    }
    Ok(None)
}

/// Makes the workload start with these private files and this input, and keeps the input.
pub(crate) fn start_with(workload: &mut Workload, files: &Overlay, input: &[u8], path: &Path) -> Result<(), Error> {
    workload.files = files.above(Capture::Named);
    workload.left = workload.files.clone();
    if !input.is_empty() {
        let kept = std::fs::write(path, input).and_then(|()| File::open(path));
        let kept = kept.map_err(|source| Error::Output { action: "keep", what: "the input".into(), source })?;
        workload.input = Some(Arc::new(kept));
    }
    Ok(())
}

/// Placeholder for the file with the operations in the arguments of a program.
const OPERATIONS_FILE: &str = "@@";

/// Follows which operations the program reads: the lines of its input, on standard input or in the file that `@@` stands for. For a server,
/// the operations are what its clients ask.
pub(crate) fn follow_operations(workload: &mut Workload, input: &Path) -> Result<(), Error> {
    if workload.driver.is_some() {
        workload.operations = Some(OperationsFrom::Connections);
        return Ok(());
    }
    if workload.input.is_none() {
        return Err(Error::Usage(
            "--durable: there are no operations; give them on standard input, a line for each".into(),
        ));
    }
    let mut from = OperationsFrom::Input;
    for argument in workload.program.arguments.iter_mut().filter(|argument| *argument == OPERATIONS_FILE) {
        let path = input.canonicalize().map_err(|source| Error::Output {
            action: "find",
            what: input.display().to_string(),
            source,
        })?;
        *argument = path.clone().into();
        from = OperationsFrom::File(path);
    }
    workload.operations = Some(from);
    Ok(())
}

/// The input kept by an earlier run.
pub(crate) fn known_input(workload: &mut Workload, path: &Path) {
    workload.input = File::open(path).ok().map(Arc::new);
}
/// Standard input that nobody may ever write to or close: reads end when time is up.
pub(crate) struct DeadlineReader<R>(pub(crate) R);

impl<R: Read> Read for DeadlineReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !system::input_is_ready() {
            if shutdown::is_over() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        self.0.read(buffer)
    }
}

/// Whether there is no room for more.
fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// The client of the target, if that is a server.
pub(crate) fn driver(arguments: &cli::Workload, client: Option<&str>) -> Result<Option<Arc<Driver>>, Error> {
    let ready = match (&arguments.ready_when, client) {
        (Some(ready), Some(_)) => ready.clone(),
        (None, None) if arguments.stop.is_some() => {
            return Err(Error::Usage("--stop ends a server when its client is done: name a --client, too".into()));
        }
        (None, None) => return Ok(None),
        (None, Some(_)) => return Err(Error::Usage("--client needs --ready-when port:N, file:F or line:REGEX".into())),
        (Some(_), None) => return Err(Error::Usage("--ready-when is for servers: name a --client, too".into())),
    };
    if arguments.in_place {
        return Err(Error::Usage("--client does not work together with --in-place".into()));
    }
    let client = client.map(sandbox::shell).unwrap_or_default();
    Ok(Some(Arc::new(Driver::new(ready, client, arguments.stop.as_deref().map(sandbox::shell)))))
}

/// Explains that a target fails by itself, and returns the exit code.
pub(crate) fn failed(what: &str, how: &impl std::fmt::Display, output: &[u8]) -> Exit {
    eprintln!("pmvet: {what}: {how}");
    let text = String::from_utf8_lossy(output);
    if !text.trim().is_empty() {
        eprintln!("pmvet: the end of its output:");
        for line in text.lines() {
            eprintln!("  | {line}");
        }
    }
    Exit::TargetFailed
}
