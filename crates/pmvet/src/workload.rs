//! A target, its input, and private copies of the files it works on.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

use glob::Pattern;
use pmvet_engines::inject::Recovery;
use pmvet_events::file::TraceHeader;
use pmvet_events::paths;
use pmvet_events::plan::{AllocFunction, Plan, SyncFunction};
use pmvet_target::Launch;
use pmvet_target::install::Install;
use pmvet_target::launch::{Ending, Exit as TargetExit, Private, pm_variables};
use pmvet_target::live::Feed;
use pmvet_target::over;
use pmvet_target::program::Program;
use pmvet_target::recording::{RecordError, Recording};
use pmvet_target::sandbox::driver::Driver;
use pmvet_target::sandbox::{self, Capture, End, Job, Output, Overlay, Unwinder};

use crate::budget;
use crate::cli;
use crate::config::Config;
use crate::exit::{Error, Exit};
use crate::files;
use crate::pm;
use crate::run_folder::{RunFolder, RunInfo};
use crate::system;

/// How much of the output of a command is shown if it fails.
const TAIL: usize = 4 << 10;

/// What runs, on what.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) program: Program,
    pub(crate) command: Vec<OsString>,
    pub(crate) pm: Vec<String>,
    pub(crate) sync: Vec<SyncFunction>,
    pub(crate) alloc: Vec<AllocFunction>,
    /// Whether to record what only `race` looks at.
    pub(crate) races: bool,
    /// Threads are kept in step.
    pub(crate) in_step: bool,
    /// Branches of recorded runs are counted.
    pub(crate) branches: bool,
    pub(crate) in_place: bool,
    /// Files that the user wants for real, as globs.
    pub(crate) keep: Vec<Pattern>,
    pub(crate) input: Option<Arc<File>>,
    /// For servers: who talks to it.
    pub(crate) driver: Option<Arc<Driver>>,
    /// The files that every run starts with, as far as they are not the user's own.
    pub(crate) files: Overlay,
    /// The files as the recorded run left them, which recoveries start with. PM is put over them.
    pub(crate) left: Overlay,
}

impl Workload {
    pub(crate) fn new(arguments: &cli::Workload, config: &Config, folder: &Path) -> Result<Self, Error> {
        if arguments.in_place && arguments.setup.is_some() {
            return Err(Error::Usage(
                "--setup makes private files, which --in-place does not use; leave one out".into(),
            ));
        }
        if arguments.in_place && !arguments.keep.is_empty() {
            return Err(Error::Usage(
                "--keep is for private files, and with --in-place none are; leave one out".into(),
            ));
        }
        let mut globs: Vec<String> = pm::DEFAULT.map(String::from).into();
        globs.extend(config.pm.iter().cloned());
        for text in &arguments.pm {
            globs.push(pm::glob(text, folder).map_err(|e| Error::Usage(format!("--pm: {e}")))?);
        }
        let wanted = |text: &OsString| {
            let pattern = pm::glob(text, folder).and_then(|glob| Pattern::new(&glob).map_err(|e| e.to_string()));
            pattern.map_err(|e| Error::Usage(format!("--keep: {e}")))
        };
        Ok(Self {
            keep: arguments.keep.iter().map(wanted).collect::<Result<_, _>>()?,
            program: Program::find(&arguments.command)?,
            command: arguments.command.clone(),
            pm: globs,
            sync: config.sync.clone(),
            alloc: config.alloc.clone(),
            races: false,
            in_step: false,
            branches: false,
            in_place: arguments.in_place,
            input: None,
            driver: driver(arguments, arguments.client.as_deref())?,
            files: Overlay::new(Capture::Named),
            left: Overlay::new(Capture::Named),
        })
    }

    /// What an earlier run ran, with the input and the client that its recovery has. Only good for plans that are whole.
    pub(crate) fn again(command: &[OsString], recovery: &Recovery) -> Result<Self, Error> {
        Ok(Self {
            program: Program::find(command)?,
            command: command.to_vec(),
            pm: Vec::new(),
            sync: Vec::new(),
            alloc: Vec::new(),
            races: true,
            in_step: true,
            branches: false,
            in_place: false,
            keep: Vec::new(),
            input: recovery.input.clone(),
            driver: recovery.driver.clone(),
            files: Overlay::new(Capture::Named),
            left: Overlay::new(Capture::Named),
        })
    }

    /// Runs a command that makes the files that the target starts with. They stay private. Returns how pmvet ends if there was no
    /// time for it.
    pub(crate) fn set_up(&mut self, line: &str) -> Result<Option<Exit>, Error> {
        let arguments = sandbox::shell(line);
        let variables: Vec<_> = pm_variables().collect();
        let job = Job { variables: &variables, output: Output::Tail(TAIL), ..Job::new(&arguments) };
        let capture = if self.in_place { None } else { Some(Capture::Named) };
        let overlay = Mutex::new(Overlay::new(capture.unwrap_or(Capture::Named)));
        let run = sandbox::run(&job, &overlay, &mut Unwinder::default()).map_err(|source| Error::Output {
            action: "run",
            what: "the set-up command".into(),
            source,
        })?;
        match run.end {
            End::Exit(0) => {}
            End::Interrupted => return Ok(budget::did_not_end("the set-up command")),
            end => {
                let output = String::from_utf8_lossy(&run.output).into_owned();
                return Err(Error::Usage(format!("--setup: the command ended with {}\n{output}", end.exit())));
            }
        }
        let overlay = overlay.into_inner().unwrap_or_else(|e| e.into_inner());
        self.files = overlay.above(Capture::Named);
        self.left = self.files.clone();
        Ok(None)
    }

    /// How it recovers: what the user named, or the program once more.
    pub(crate) fn recovery_command(&self, named: Option<&str>) -> Vec<OsString> {
        match named {
            Some(line) => sandbox::shell(line),
            None => {
                let mut command = self.program.arguments.clone();
                // Found already; what it calls itself does not matter to most.
                if let Some(first) = command.first_mut() {
                    *first = self.program.executable.clone().into();
                }
                command
            }
        }
    }

    /// How to run it under DynamoRIO.
    pub(crate) fn launch(&self, loads: bool) -> Launch {
        let plan = Plan {
            loads,
            races: self.races,
            deterministic: true,
            snapshots: true,
            pm: self.pm.clone(),
            sync: self.sync.clone(),
            forks: None,
            alloc: self.alloc.clone(),
            stalls: Vec::new(),
            threads: 0,
            patience: 0,
            in_step: self.in_step,
            delays: false,
            follow: 0,
            branches: None,
        };
        let overlay = match self.in_place {
            // An overlay that captures nothing would still have to see every call.
            true => None,
            false => Some(Arc::new(Mutex::new(self.files.clone()))),
        };
        let sandbox = overlay.map(|overlay| Private {
            overlay,
            input: self.input.clone(),
            output: Output::Tail(TAIL),
            driver: self.driver.clone(),
            timeout: None,
            by_the_clock: false,
            cancel: None,
        });
        Launch { program: self.program.clone(), plan, follow_forks: true, bare: false, sandbox }
    }

    /// Runs and records it, in this way.
    pub(crate) fn make(
        &self,
        folder: &Path,
        how: Launch,
        install: &Install,
        feed: Option<Feed>,
    ) -> Result<(Recording, Ending), RecordError> {
        let header = TraceHeader {
            command: self.command.clone(),
            pmvet_version: env!("CARGO_PKG_VERSION").into(),
            loads: how.plan.loads,
        };
        match self.branches {
            true => Recording::make_counting(folder, how, &header, install, feed),
            false => Recording::make(folder, &how, &header, install, feed),
        }
    }

    /// Runs it once and records it. Returns how pmvet ends if there is nothing to analyse.
    pub(crate) fn record(
        &mut self,
        folder: &RunFolder,
        info: &mut RunInfo,
        loads: bool,
        install: &Install,
        feed: Option<Feed>,
    ) -> Result<Option<Exit>, Error> {
        let how = self.launch(loads);
        let files = how.sandbox.as_ref().map(|private| Arc::clone(&private.overlay));
        let (recording, ending) = self.make(&folder.path, how, install, feed)?;
        if let Some(files) = files {
            self.left = files.lock().unwrap_or_else(|e| e.into_inner()).above(Capture::Named);
        }
        if !over::is_over() {
            self.keep_outputs()?;
            folder.keep_left(&self.left, &recording.pm);
        }
        // One that has ended by itself was not cut short by the budget; but it may have ended because of a signal.
        let ended = ending.exit == TargetExit::Status(0) && over::stopped_by().is_none();
        if !ended && let Some(exit) = budget::did_not_end("the target") {
            return Ok(Some(exit));
        }
        info.traced_seconds = Some(ending.time.as_secs_f64());
        if ending.exit != TargetExit::Status(0) {
            return Ok(Some(failed("the target itself fails", &ending.exit, &ending.output)));
        }
        if !ending.loss.is_none() {
            eprintln!("pmvet: {} events were lost, so nothing can be said about this run", ending.loss.events);
            return Ok(Some(Exit::Internal));
        }
        info.recorded = true;
        folder.keep_info(info);
        Ok(None)
    }

    /// Makes real what the user wants of the files that the set-up and the recorded run left.
    fn keep_outputs(&self) -> Result<(), Error> {
        if self.keep.is_empty() {
            return Ok(());
        }
        let failed = |what: &Path, source| Error::Output { action: "keep", what: what.display().to_string(), source };
        let changed = self.left.changed_files().map_err(|e| failed(Path::new("what the run left"), e))?;
        for path in changed.iter().filter(|path| self.keep.iter().any(|glob| glob.matches(&paths::text(path)))) {
            let keep = || {
                let mut private = match self.left.open_file(path) {
                    // Removed by a later run.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
                    opened => opened?,
                };
                let mode = private.metadata()?.permissions();
                path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
                files::replace(path, |out| io::copy(&mut private, out).map(drop))?;
                std::fs::set_permissions(path, mode)
            };
            keep().map_err(|e| failed(path, e))?;
        }
        Ok(())
    }

    /// What to say if it mapped no PM.
    pub(crate) fn no_pm(&self) -> Exit {
        eprintln!(
            "pmvet: nothing was analysed: the target mapped no PM file. PM is any file that matches {}, or that is mapped \
             with MAP_SYNC; name other files with --pm GLOB",
            pm::shown(&self.pm)
        );
        Exit::NothingAnalysed
    }

    /// Runs it once without instrumentation, on private copies. Returns how it ended, the end of its output, and the time.
    pub(crate) fn run_natively(&self) -> io::Result<sandbox::Run> {
        let variables: Vec<_> = pm_variables().collect();
        let job = Job {
            executable: self.program.executable.as_os_str(),
            variables: &variables,
            input: self.input.as_deref(),
            output: Output::Tail(TAIL),
            driver: self.driver.as_deref(),
            ..Job::new(&self.program.arguments)
        };
        sandbox::run(&job, &Mutex::new(self.files.above(Capture::Named)), &mut Unwinder::default())
    }

    /// Keeps standard input in a file, so that it can be read more than once. A terminal counts as empty. Returns how pmvet ends if it
    /// did not end in time.
    pub(crate) fn keep_input(&mut self, path: &Path) -> Result<Option<Exit>, Error> {
        let failed = |source| Error::Output { action: "keep", what: "standard input".into(), source };
        let stdin = io::stdin();
        if stdin.is_terminal() {
            return Ok(None);
        }
        let Ok(from) = stdin.as_fd().try_clone_to_owned().map(File::from) else { return Ok(None) };
        let mut file = File::create(path).map_err(failed)?;
        match io::copy(&mut InTime(from), &mut file) {
            Ok(0) => {
                let _ = std::fs::remove_file(path);
            }
            Ok(_) => self.input = Some(Arc::new(File::open(path).map_err(failed)?)),
            // Half an input would make another run of it.
            Err(e) if is_full(&e) => {
                let _ = std::fs::remove_file(path);
                return Err(failed(e));
            }
            // Closed, or a folder: there is nothing to read.
            Err(_) => {
                let _ = std::fs::remove_file(path);
                return Ok(budget::did_not_end("standard input"));
            }
        }
        Ok(None)
    }

    /// The input kept by an earlier run.
    pub(crate) fn known_input(&mut self, path: &Path) {
        self.input = File::open(path).ok().map(Arc::new);
    }
}

/// Standard input, which nobody may ever write to or close.
pub(crate) struct InTime<R>(pub(crate) R);

impl<R: Read> Read for InTime<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !system::input_is_ready() {
            if over::is_over() {
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

/// Who talks to the target, if it is a server.
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
    Ok(Some(Arc::new(Driver { ready, client, stop: arguments.stop.as_deref().map(sandbox::shell) })))
}

/// What to say about a target that fails by itself.
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
