//! A program with its arguments, its input, and private copies of the files that it works on.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pmvet_events::file::TraceHeader;
use pmvet_events::plan::{AllocFunction, OperationsFrom, Plan, SyncFunction};

use crate::install::Install;
use crate::launch::{Ending, Launch, Private, pm_variables};
use crate::live_events::Feed;
use crate::program::{Program, ProgramError};
use crate::recording::{RecordError, Recording};
use crate::sandbox::driver::Driver;
use crate::sandbox::{self, Capture, Output, Overlay, SandboxedProgram, Unwinder};

/// How much of the output of a run is kept, to be shown if it fails.
pub const OUTPUT_TAIL_BYTES: usize = 4 << 10;

/// What to run, and on what.
#[derive(Debug)]
pub struct Workload {
    /// What is run, found and checked.
    pub program: Program,
    /// The command as the user gave it.
    pub command: Vec<OsString>,
    /// Which files are PM, as globs.
    pub pm: Vec<String>,
    /// Functions that synchronise threads, beside those that the client knows.
    pub sync: Vec<SyncFunction>,
    /// Functions that allocate PM, beside those that the client knows.
    pub alloc: Vec<AllocFunction>,
    /// Whether to record what only `race` needs.
    pub races: bool,
    /// Threads are kept in step.
    pub in_step: bool,
    /// Branches of recorded runs are counted.
    pub branches: bool,
    /// Where it reads its operations, if operations are tracked.
    pub operations: Option<OperationsFrom>,
    /// It works on the user's own files.
    pub in_place: bool,
    /// What it reads from standard input.
    pub input: Option<Arc<File>>,
    /// For servers: the client that talks to it.
    pub driver: Option<Arc<Driver>>,
    /// The files that every run starts with, as far as they are not the user's own.
    pub files: Overlay,
    /// The files as the recorded run left them, which recoveries start with, beneath the PM files.
    pub left: Overlay,
}

impl Workload {
    /// A command on the files as they are, with nothing on standard input.
    pub fn new(command: &[OsString]) -> Result<Self, ProgramError> {
        Ok(Self {
            program: Program::find(command)?,
            command: command.to_vec(),
            pm: Vec::new(),
            sync: Vec::new(),
            alloc: Vec::new(),
            races: false,
            in_step: false,
            branches: false,
            operations: None,
            in_place: false,
            input: None,
            driver: None,
            files: Overlay::new(Capture::Named),
            left: Overlay::new(Capture::Named),
        })
    }

    /// How it recovers: what the user named, or the program once more.
    pub fn recovery_command(&self, named: Option<&str>) -> Vec<OsString> {
        match named {
            Some(line) => sandbox::shell(line),
            None => {
                let mut command = self.program.arguments.clone();
                // Uses the executable that was already found; most programs ignore the name they are called by.
                if let Some(first) = command.first_mut() {
                    *first = self.program.executable.clone().into();
                }
                command
            }
        }
    }

    /// How to run it under DynamoRIO.
    pub fn launch(&self, loads: bool) -> Launch {
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
            operations: self.operations.clone(),
        };
        let overlay = match self.in_place {
            // Even an overlay that captures nothing would have to see every call.
            true => None,
            false => Some(Arc::new(Mutex::new(self.files.clone()))),
        };
        let sandbox = overlay.map(|overlay| Private {
            overlay,
            input: self.input.clone(),
            output: match self.operations {
                // An answer that waits in a buffer would not show when the operation was done.
                Some(OperationsFrom::Input | OperationsFrom::File(_)) => Output::Terminal(OUTPUT_TAIL_BYTES),
                Some(OperationsFrom::Connections) | None => Output::Tail(OUTPUT_TAIL_BYTES),
            },
            driver: self.driver.clone(),
            timeout: None,
            by_the_clock: false,
            cancel: None,
        });
        Launch { program: self.program.clone(), plan, follow_forks: true, bare: false, sandbox }
    }

    /// Runs it in this way and records it in `folder`, which exists.
    pub fn record(
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

    /// Runs it once without instrumentation, on private copies. Returns how it ended, the end of its output, and the time.
    pub fn run_natively(&self) -> io::Result<sandbox::SandboxedRun> {
        self.run_natively_on(self.files.above(Capture::Named), None)
    }

    /// The same on other files, and not for longer than `timeout`.
    pub fn run_natively_on(&self, overlay: Overlay, timeout: Option<Duration>) -> io::Result<sandbox::SandboxedRun> {
        let variables: Vec<_> = pm_variables().collect();
        let job = SandboxedProgram {
            executable: self.program.executable.as_os_str(),
            variables: &variables,
            input: self.input.as_deref(),
            output: Output::Tail(OUTPUT_TAIL_BYTES),
            driver: self.driver.as_deref(),
            timeout,
            ..SandboxedProgram::new(&self.program.arguments)
        };
        sandbox::run(&job, &Mutex::new(overlay), &mut Unwinder::default())
    }
}
