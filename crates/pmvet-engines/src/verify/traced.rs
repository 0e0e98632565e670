//! One execution: runs the recovery under DynamoRIO on a crash image, and notes its loads of uncertain lines.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use pmvet_events::plan::{Forks, Plan};
use pmvet_events::{ContextId, FileId, SiteId};
use pmvet_model::{LineContent, LineId, LineSource, Mode};
use pmvet_target::crash::{Scratch, Versions};
use pmvet_target::forkserver::{self, FIRST, ForkError, ForkServer, RunLimits};
use pmvet_target::install::Install;
use pmvet_target::launch::{Ending, Launch, LaunchError, Private, TargetExit, launch};
use pmvet_target::program::Program;
use pmvet_target::sandbox::{self, Capture, Output, Overlay, RawFrame, SandboxedEnd, SandboxedProgram, Unwinder};
use pmvet_target::shutdown::is_over;

use super::campaign::{Observe, TimeLimit};
use super::explore::ImageChoice;
use super::nested::Inner;
use super::reads::UncertainRead;
use super::scan::Crash;
use super::watcher::RecoveryWatcher;
use crate::lab::moments::line_in;

/// How many executions one fork server makes: each adds to the tables of places that they share.
const MOST_SERVED: u32 = 2000;
/// How many times longer an execution may take under DynamoRIO.
const SLOWDOWN: u32 = 10;
/// How often to try an execution whose events are incomplete.
const MOST_TRIES: u32 = 5;

/// The files of the crash image, by device and inode.
type StandIns = HashMap<(u64, u64), FileId>;

/// The recovery, as it is run to see what it reads.
#[derive(Debug)]
pub struct Traced<'a> {
    /// The recovery itself.
    pub program: Program,
    /// What the client reports of it.
    pub plan: Plan,
    /// Where the client and DynamoRIO are.
    pub install: &'a Install,
    /// The files beside PM, as the run started with them.
    pub files: &'a Overlay,
    /// Standard input, if it reads any.
    pub input: Option<Arc<File>>,
    /// The PM files: a recovery has begun once it names one of them.
    pub paths: Vec<PathBuf>,
    /// How much memory it may take.
    pub most_bytes: u64,
    /// How long a native run may take.
    pub timeout: Duration,
    /// Looks at the recovered image; 0 means consistent.
    pub oracle: Option<Vec<OsString>>,
    /// Shows what the recovered image holds, if the recovery itself does not.
    pub dump: Option<Vec<OsString>>,
    /// Environment variables of an oracle, or of a dump, that runs without instrumentation.
    pub variables: Vec<(OsString, OsString)>,
    /// The cache mode for crashes in the recovery. Nothing: those are not wanted.
    pub nested: Option<Mode>,
    /// The contents that crashes refer to.
    pub versions: &'a Versions,
    /// How the recovery ends when nothing was injected; the oracle runs only after such an end.
    pub usual: Ended,
}

/// How an execution ended, as far as it can be told under DynamoRIO.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ended {
    /// With this status.
    Exit(i32),
    /// By this signal.
    Signal(i32),
    /// It took too long, or too much memory, and was ended.
    Hang,
    /// The recovery ended as usual, and the oracle with this status: 128 more than its signal, -1 if it hung.
    Oracle(i32),
    /// Not as usual, in a native run.
    Unseen,
}

impl From<TargetExit> for Ended {
    fn from(exit: TargetExit) -> Self {
        match exit {
            TargetExit::Status(status) => Ended::Exit(status),
            TargetExit::Signal(signal) => Ended::Signal(signal),
        }
    }
}

/// What an execution showed.
#[derive(Debug)]
pub struct Observed {
    /// Loads of bytes that the crash leaves uncertain, in the order of the execution.
    pub reads: Vec<UncertainRead>,
    /// The stack of each read, innermost frame first.
    pub stacks: Vec<Vec<RawFrame>>,
    /// How it ended.
    pub ended: Ended,
    /// Whether it has mapped or read a PM file of the run, if it was watched.
    pub looked: Option<bool>,
    /// Hashes of what it stored before, between and after its reads.
    pub effects: Vec<u64>,
    /// Moments at which it could crash itself, if such crashes are wanted.
    pub inner: Vec<Inner>,
    /// It did something after which its crashes cannot be modelled.
    pub inner_cut: bool,
    /// The stacks of its stores and of the moments at which it could crash.
    pub places: HashMap<(SiteId, ContextId), Vec<RawFrame>>,
}

impl Observed {
    /// An execution that was not watched.
    pub fn unseen(ended: Ended) -> Self {
        Self {
            reads: Vec::new(),
            stacks: Vec::new(),
            ended,
            looked: None,
            effects: Vec::new(),
            inner: Vec::new(),
            inner_cut: false,
            places: HashMap::new(),
        }
    }
}

/// Why an execution could not be watched. That the recovery fails is an outcome.
#[derive(Debug, thiserror::Error)]
pub enum TraceFailure {
    /// The recovery could not be started or followed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A file of the crash image could not be made or read.
    #[error("cannot make a crash image: {0}")]
    Image(#[from] io::Error),
    /// Some events of the recovery were missing in every try.
    #[error("events of a recovery were lost")]
    Lost,
}

/// What a worker keeps from one execution to the next.
#[derive(Debug)]
pub struct TracedWorker {
    scratch: Scratch,
    /// The files as the execution under way finds them.
    overlay: Arc<Mutex<Overlay>>,
    server: Option<ForkServer>,
    /// How many executions the server has made.
    served: u32,
    /// A fork server cannot run this recovery.
    cannot_serve: bool,
    unwinder: Unwinder,
}

impl Default for TracedWorker {
    fn default() -> Self {
        Self {
            scratch: Scratch::default(),
            overlay: Arc::new(Mutex::new(Overlay::new(Capture::Writable))),
            server: None,
            served: 0,
            cannot_serve: false,
            unwinder: Unwinder::default(),
        }
    }
}

/// A crash image in memory.
#[derive(Debug, Default)]
pub(super) struct ImageBytes(pub(super) HashMap<FileId, Vec<u8>>);

impl ImageBytes {
    /// How large a file of the run is.
    pub(super) fn size(&self, file: FileId) -> Option<u64> {
        self.0.get(&file).map(|bytes| bytes.len() as u64)
    }
}

impl LineSource for ImageBytes {
    fn line(&self, line: LineId) -> LineContent {
        line_in(self.0.get(&line.file).map_or(&[][..], Vec::as_slice), line)
    }
}

impl Observe for Traced<'_> {
    type Worker = TracedWorker;

    fn observe(
        &self,
        worker: &mut TracedWorker,
        crash: &Crash,
        choice: &ImageChoice,
        limit: TimeLimit,
    ) -> Result<Option<Observed>, TraceFailure> {
        let limit = match limit {
            TimeLimit::Native => self.timeout,
            TimeLimit::Traced => self.timeout * SLOWDOWN,
        };
        let mut tries = 0;
        let (mut observed, ended) = loop {
            let (observed, ran) = self.execute(worker, crash, choice, limit)?;
            if is_over() {
                return Ok(None);
            }
            // The end of its process may cut a thread off in the middle of an event; the next try will not have that.
            if ran.lost == 0 || !matches!(ran.ended, Ended::Exit(_) | Ended::Oracle(_)) {
                break (observed, ran.ended);
            }
            tries += 1;
            if tries == MOST_TRIES {
                return Err(TraceFailure::Lost);
            }
        };
        observed.ended = ended;
        Ok(Some(observed))
    }
}

impl Traced<'_> {
    /// Runs the recovery on an image, from the fork server if that is possible.
    fn execute(
        &self,
        worker: &mut TracedWorker,
        crash: &Crash,
        choice: &ImageChoice,
        limit: Duration,
    ) -> Result<(Observed, Ran), TraceFailure> {
        let image = self.prepare(worker, crash, choice)?;
        let start = self.nested.map(|mode| (&image.content, mode));
        let mut watcher = RecoveryWatcher::new(image.files, &crash.lines, start);
        if let Some(ran) = self.serve(worker, &mut watcher, limit)? {
            let ran = self.look_at_result(worker, &mut watcher, ran)?;
            return Ok((watcher.finish(), ran));
        }
        // It may have run and changed its files, so they are prepared again.
        let image = self.prepare(worker, crash, choice)?;
        let start = self.nested.map(|mode| (&image.content, mode));
        let mut watcher = RecoveryWatcher::new(image.files, &crash.lines, start);
        let ran = self.in_time(&self.launch(worker, &self.program), &mut watcher, limit)?;
        let ran = self.look_at_result(worker, &mut watcher, ran)?;
        Ok((watcher.finish(), ran))
    }

    /// After a recovery that ended as it should, runs the oracle and then the dump. Only what the dump reads matters here: a native
    /// run shows what the image holds.
    fn look_at_result(
        &self,
        worker: &mut TracedWorker,
        watcher: &mut RecoveryWatcher<'_>,
        mut ran: Ran,
    ) -> Result<Ran, TraceFailure> {
        if let Some(oracle) = &self.oracle {
            ran = self.ask(oracle, worker, watcher, ran)?;
        }
        if let Some(dump) = self.dump.as_ref().filter(|_| !watcher.has_seen_all()) {
            // It is not enough that the recovery looks at PM: a dump that cannot be watched would hide choices.
            watcher.forget_looks();
            ran = self.ask(dump, worker, watcher, ran)?;
        }
        Ok(ran)
    }

    /// Runs a command on what a successful recovery has left; 0 means consistent. Its reads matter as much as the recovery's, so it is
    /// watched, too, unless no uncertain byte is left to read.
    fn ask(
        &self,
        oracle: &[OsString],
        worker: &mut TracedWorker,
        watcher: &mut RecoveryWatcher<'_>,
        ran: Ran,
    ) -> Result<Ran, TraceFailure> {
        if ran.ended != self.usual || is_over() {
            return Ok(ran);
        }
        if !watcher.has_seen_all()
            && let Ok(program) = Program::find(oracle)
        {
            watcher.begin_oracle();
            let mut how = self.launch(worker, &program);
            if let Some(private) = &mut how.sandbox {
                private.input = None;
            }
            let judged = self.in_time(&how, watcher, self.timeout * SLOWDOWN)?;
            let ended = match judged.ended {
                Ended::Exit(0) => ran.ended,
                Ended::Exit(status) => Ended::Oracle(status),
                Ended::Signal(signal) => Ended::Oracle(128 + signal),
                Ended::Hang | Ended::Oracle(_) | Ended::Unseen => Ended::Oracle(-1),
            };
            return Ok(Ran { ended, lost: ran.lost + judged.lost });
        }
        let job = SandboxedProgram {
            variables: &self.variables,
            timeout: Some(self.timeout * SLOWDOWN),
            ..SandboxedProgram::new(oracle)
        };
        let ended = match sandbox::run(&job, &worker.overlay, &mut worker.unwinder)?.end {
            SandboxedEnd::Exit(0) | SandboxedEnd::Interrupted => ran.ended,
            SandboxedEnd::Exit(status) => Ended::Oracle(status),
            SandboxedEnd::Signal(signal) => Ended::Oracle(128 + signal),
            SandboxedEnd::Timeout | SandboxedEnd::Runaway => Ended::Oracle(-1),
        };
        Ok(Ran { ended, ..ran })
    }

    fn launch(&self, worker: &TracedWorker, program: &Program) -> Launch {
        Launch {
            program: program.clone(),
            plan: self.plan.clone(),
            follow_forks: true,
            bare: false,
            sandbox: Some(Private {
                overlay: Arc::clone(&worker.overlay),
                input: self.input.clone(),
                output: Output::Tail(0),
                driver: None,
                timeout: None,
                by_the_clock: false,
                cancel: None,
            }),
        }
    }

    /// A run of the worker's fork server, which it starts if there is none. `None` if the recovery cannot be served.
    fn serve(
        &self,
        worker: &mut TracedWorker,
        watcher: &mut RecoveryWatcher<'_>,
        limit: Duration,
    ) -> Result<Option<Ran>, TraceFailure> {
        if worker.cannot_serve {
            return Ok(None);
        }
        if worker.server.is_none() || worker.served == MOST_SERVED {
            worker.served = 0;
            worker.server = None;
            worker.overlay.lock().unwrap_or_else(|e| e.into_inner()).leave_view();
            let points = Forks { files: self.paths.clone(), ..Forks::default() };
            worker.server = served(ForkServer::start(&self.launch(worker, &self.program), points, self.install))?;
        }
        let limits = RunLimits { time: limit, bytes: self.most_bytes };
        let run = match &mut worker.server {
            Some(server) => served(server.run(FIRST, &limits, watcher))?,
            None => None,
        };
        worker.served += 1;
        worker.cannot_serve = run.is_none();
        if worker.cannot_serve {
            worker.server = None;
        }
        Ok(run.map(|run| Ran {
            ended: match run.end {
                forkserver::ForkedEnd::Exit(exit) => exit.into(),
                forkserver::ForkedEnd::Timeout | forkserver::ForkedEnd::Runaway => Ended::Hang,
            },
            lost: run.loss.events,
        }))
    }

    /// Runs the target, and ends it when its time is over.
    fn in_time(&self, how: &Launch, watcher: &mut RecoveryWatcher<'_>, limit: Duration) -> Result<Ran, LaunchError> {
        let (done, waiting) = mpsc::channel::<()>();
        let hung = AtomicBool::new(false);
        let processes = watcher.processes();
        let result = std::thread::scope(|scope| {
            let hung = &hung;
            scope.spawn(move || {
                while let Err(mpsc::RecvTimeoutError::Timeout) = waiting.recv_timeout(limit) {
                    hung.store(true, Ordering::Release);
                    for &pid in processes.lock().unwrap_or_else(|e| e.into_inner()).iter() {
                        // SAFETY: processes of our own sandbox, which has not ended yet.
                        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
                    }
                }
            });
            let result = launch(how, self.install, watcher);
            drop(done);
            result
        });
        let Ending { exit, loss, .. } = result?;
        Ok(Ran { ended: if hung.into_inner() { Ended::Hang } else { exit.into() }, lost: loss.events })
    }

    /// Sets the worker's files to what the crash leaves.
    fn prepare(&self, worker: &mut TracedWorker, crash: &Crash, choice: &ImageChoice) -> io::Result<StartingFiles> {
        let mut overlay = self.files.above(Capture::Writable);
        worker.scratch.become_version(self.versions, crash.version, &crash.image(choice), &mut overlay)?;
        let states = self.versions.get(crash.version).map_or(&[][..], |version| &version.files);
        let ids: HashMap<&PathBuf, FileId> = states.iter().map(|state| (&state.path, state.file)).collect();
        let mut image = StartingFiles::default();
        for (path, file) in overlay.files() {
            let Some(&id) = ids.get(&path.to_path_buf()) else { continue };
            let found = file.metadata()?;
            image.files.insert((found.dev(), found.ino()), id);
            if self.nested.is_some() {
                let mut bytes = vec![0; found.len() as usize];
                file.read_exact_at(&mut bytes, 0)?;
                image.content.0.insert(id, bytes);
            }
        }
        // If an execution, or its oracle, has changed files, only a new view has them as they were.
        if worker.server.as_ref().is_none_or(ForkServer::is_spoilt) {
            worker.server = None;
            worker.overlay.lock().unwrap_or_else(|e| e.into_inner()).leave_view();
        }
        worker.overlay.lock().unwrap_or_else(|e| e.into_inner()).become_like(overlay);
        Ok(image)
    }
}

/// How a run of the recovery went.
struct Ran {
    ended: Ended,
    /// Events that are missing.
    lost: u64,
}

/// Nothing if a fork server cannot run the target, or if the server is gone.
fn served<T>(result: Result<T, ForkError>) -> Result<Option<T>, TraceFailure> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(ForkError::Ended(..) | ForkError::Threads | ForkError::Died | ForkError::Interrupted) => Ok(None),
        Err(ForkError::Launch(e)) => Err(e.into()),
        Err(ForkError::Collect(e)) => Err(LaunchError::Collect(e).into()),
    }
}

/// The files that an execution starts with: which stand-in is which file of the run, and what is in them.
#[derive(Debug, Default)]
struct StartingFiles {
    files: StandIns,
    content: ImageBytes,
}
