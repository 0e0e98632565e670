//! Starts a target under DynamoRIO and waits for its end.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pmvet_events::event::Event;
use pmvet_events::places::Places;
use pmvet_events::plan::Plan;
use pmvet_events::shm::{RING_BYTES, SharedMemory};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::Signal;

use crate::collect::{Collector, LostEvents, Sink, SinkError};
use crate::guard::{self, GuardReport};
use crate::install::Install;
use crate::program::Program;
use crate::sandbox::driver::{Driver, ServerFailure};
use crate::sandbox::start_error::{StartError, StartStep};
use crate::sandbox::{self, Output, Overlay, SandboxedProgram, SandboxedRun, Tracees, Unwinder, send_signal};
use crate::shutdown::{self, Over};
use crate::stalled_threads::Director;

pub use crate::shutdown::stopped_by;

/// What to run, and how.
#[derive(Debug, Clone)]
pub struct Launch {
    /// What to run, found and checked.
    pub program: Program,
    /// What the client is told.
    pub plan: Plan,
    /// Whether processes that it starts are traced, too.
    pub follow_forks: bool,
    /// Run under DynamoRIO alone, without the client, to measure what instrumentation costs.
    pub bare: bool,
    /// Run on private copies of the files that it may map, and read this input.
    pub sandbox: Option<Private>,
}

impl Launch {
    fn is_cancelled(&self) -> bool {
        let cancel = self.sandbox.as_ref().and_then(|private| private.cancel.as_ref());
        cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed))
    }
}

/// What a target that must not touch the user's files gets.
#[derive(Debug, Clone)]
pub struct Private {
    /// The files that it sees in place of the user's.
    pub overlay: Arc<Mutex<Overlay>>,
    /// What it reads from standard input; nothing for an empty one.
    pub input: Option<Arc<File>>,
    /// Where its output goes, and how much of it is kept.
    pub output: Output,
    /// For servers: the client that talks to it.
    pub driver: Option<Arc<Driver>>,
    /// It is killed if it takes longer.
    pub timeout: Option<Duration>,
    /// The timeout is wall-clock time, even on a busy machine.
    pub by_the_clock: bool,
    /// It is killed as soon as this is set.
    pub cancel: Option<Arc<AtomicBool>>,
}

/// How a run went.
#[derive(Debug)]
pub struct Ending {
    /// How its first process ended; for servers, how the client did.
    pub exit: TargetExit,
    /// From the start to the end of its last process, by the clock.
    pub time: Duration,
    /// Events that are missing.
    pub loss: LostEvents,
    /// Some events have no place, because there were more places than the tables hold.
    pub places_lost: bool,
    /// pmvet was asked to stop, by this signal, and stopped the target.
    pub interrupted: Option<i32>,
    /// The end of its output, if that was kept.
    pub output: Vec<u8>,
    /// For servers: the number of the next event when the client was done.
    pub client_done: Option<u64>,
    /// What failed, if not the target itself. If the client failed, the output is the client's.
    pub server_failure: Option<ServerFailure>,
}

impl Ending {
    /// The ending of a run of which nothing else is known.
    pub fn new(exit: TargetExit, time: Duration, loss: LostEvents) -> Self {
        Self {
            exit,
            time,
            loss,
            places_lost: false,
            interrupted: None,
            output: Vec::new(),
            client_done: None,
            server_failure: None,
        }
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetExit {
    /// By itself, with this exit status.
    Status(i32),
    /// Killed by this signal.
    Signal(i32),
}

impl std::fmt::Display for TargetExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TargetExit::Status(status) => write!(f, "exit status {status}"),
            TargetExit::Signal(signal) => write!(f, "killed by signal {signal} ({})", signal_name(*signal)),
        }
    }
}

/// A signal's name, as `kill -l` prints it.
pub fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGSYS => "SIGSYS",
        _ => "unknown signal",
    }
}

/// Why a target could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The kernel does not give pmvet the memory that it shares with the target.
    #[error("cannot make shared memory for events: {0}")]
    SharedMemory(#[source] std::io::Error),
    /// The plan has something that JSON cannot hold.
    #[error("cannot encode the plan: {0}")]
    Plan(#[source] serde_json::Error),
    /// The process between pmvet and the target could not be started.
    #[error("cannot start pmvet's guard process: {0}")]
    Guard(#[source] std::io::Error),
    /// DynamoRIO could not be run.
    #[error("cannot start DynamoRIO ({}): {source}", .path.display())]
    NotStarted {
        /// What was to be run.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A step before DynamoRIO failed.
    #[error("cannot start the target in its sandbox: {0}")]
    Sandbox(#[source] StartError),
    /// The guard was killed.
    #[error("the guard process ended without a word; the target's fate is unknown")]
    GuardDied,
    /// The client said why, and ended the target.
    #[error("the client inside the target gave up: {0}")]
    ClientFailed(String),
    /// The sink has given up.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// Events could not be read, or not be passed on.
    #[error(transparent)]
    Collect(#[from] crate::collect::CollectError),
}

impl LaunchError {
    pub(crate) fn of_sandbox(error: std::io::Error, install: &Install) -> Self {
        match StartError::from_io(error) {
            Ok(StartError { step: StartStep::Program(path), source }) => Self::NotStarted { path, source },
            Ok(error) => Self::Sandbox(error),
            Err(source) => Self::NotStarted { path: install.dynamorio.clone(), source },
        }
    }
}

/// Minimum sleep between reads of events; a ring holds some milliseconds' worth of the fastest stream.
const PAUSE: Duration = Duration::from_micros(100);
/// If a read finds this many bytes, pmvet hardly keeps up, and does not sleep.
const BACKLOG: u64 = RING_BYTES as u64 / 2;
/// pmvet checks the target's processes once in this many idle rounds.
const LOOK_AROUND: u32 = 4;

/// How long a target may take to end by itself after it was asked to. pmvet itself has two seconds.
const GRACE: Duration = Duration::from_secs(1);

/// Runs a target to its end. Its events go to `sink` while it runs.
pub fn launch(launch: &Launch, install: &Install, sink: &mut dyn Sink) -> Result<Ending, LaunchError> {
    let plan = serde_json::to_vec(&launch.plan).map_err(LaunchError::Plan)?;
    let shared = SharedMemory::create(&plan).map_err(LaunchError::SharedMemory)?;
    let started = Instant::now();
    let mut keeper = TargetKeeper::start(launch, install, &shared)?;
    let mut collector = Collector::new(&shared);
    let director = (!launch.plan.stalls.is_empty()).then(|| Director::new(&launch.plan));
    let mut directed = Directed { sink, director };
    let mut exit = None;
    let mut stopping: Option<Instant> = None;
    let mut idle = 0u32;
    let result = loop {
        let moved = match collector.pump(directed.sink()) {
            Ok(moved) => moved,
            Err(e) => break Err(e),
        };
        if let Some(director) = &mut directed.director {
            collector.direct(director);
        }
        match shutdown::over() {
            Some(Over::Signal(signal)) => {
                let since = *stopping.get_or_insert_with(|| {
                    if !shutdown::target_has_signal() {
                        keeper.forward(signal);
                    }
                    Instant::now()
                });
                if since.elapsed() > GRACE {
                    keeper.kill_target();
                }
            }
            Some(Over::Budget) => keeper.kill_target(),
            None if launch.is_cancelled() => keeper.kill_target(),
            None => {}
        }
        idle = if moved > 0 { 0 } else { idle + 1 };
        // Sleeping lets events gather, which costs the target less than being read all the time.
        if moved < BACKLOG {
            std::thread::sleep(PAUSE * idle.clamp(1, 4));
        }
        if idle % LOOK_AROUND != 1 {
            continue;
        }
        if let Some(report) = keeper.report() {
            match report {
                GuardReport::Started(_) => {}
                GuardReport::Ended(status) => exit = Some(exit_of(status)),
                GuardReport::NotStarted(errno) => {
                    let source = std::io::Error::from_raw_os_error(errno);
                    return Err(LaunchError::NotStarted { path: install.dynamorio.clone(), source });
                }
            }
            continue;
        }
        if keeper.ended() {
            break Ok(());
        }
        // Other processes of the target may wait for the one that the client has ended.
        if shared.header().failure().is_some() {
            keeper.kill_target();
        }
        collector.notice_deaths();
    };
    if let Err(e) = result {
        keeper.kill_target();
        keeper.wait();
        return Err(e.into());
    }
    let time = started.elapsed();
    let loss = collector.finish(directed.sink())?;
    if let Some(why) = shared.header().failure() {
        return Err(LaunchError::ClientFailed(why));
    }
    let interrupted = stopping.and_then(|_| stopped_by());
    let LastWords { exit: last, output, client_done, server_failure } = keeper.last_words(install)?;
    let exit = exit.or(last).ok_or(LaunchError::GuardDied)?;
    let places_lost = shared.places_lost();
    Ok(Ending { exit, time, loss, places_lost, interrupted, output, client_done, server_failure })
}

/// A sink whose run is directed: the director sees the events first.
struct Directed<'a> {
    sink: &'a mut dyn Sink,
    director: Option<Director>,
}

impl Directed<'_> {
    /// Where events go first.
    fn sink(&mut self) -> &mut dyn Sink {
        if self.director.is_some() { self } else { self.sink }
    }
}

impl Sink for Directed<'_> {
    fn event(&mut self, event: &Event<'_>, places: &dyn Places) -> Result<(), SinkError> {
        if let Some(director) = &mut self.director {
            director.event(event);
        }
        self.sink.event(event, places)
    }
}

pub(crate) fn exit_of(status: i32) -> TargetExit {
    if libc::WIFSIGNALED(status) {
        TargetExit::Signal(libc::WTERMSIG(status))
    } else {
        TargetExit::Status(libc::WEXITSTATUS(status))
    }
}

/// Supervises the target while it runs, and kills all of it if pmvet dies.
enum TargetKeeper {
    Guard(Guard),
    Sandbox(SandboxThread),
}

impl TargetKeeper {
    fn start(launch: &Launch, install: &Install, shared: &SharedMemory) -> Result<Self, LaunchError> {
        match &launch.sandbox {
            None => Guard::start(launch, install, shared).map(TargetKeeper::Guard),
            Some(private) => {
                Ok(TargetKeeper::Sandbox(SandboxThread::start(launch, private, install, shared, Arc::default())))
            }
        }
    }

    fn report(&mut self) -> Option<GuardReport> {
        match self {
            TargetKeeper::Guard(guard) => guard.report(),
            TargetKeeper::Sandbox(_) => None,
        }
    }

    fn ended(&mut self) -> bool {
        match self {
            TargetKeeper::Guard(guard) => guard.ended(),
            TargetKeeper::Sandbox(sandbox) => sandbox.is_over(),
        }
    }

    /// How the target ended.
    fn last_words(&mut self, install: &Install) -> Result<LastWords, LaunchError> {
        match self {
            TargetKeeper::Guard(guard) => Ok(LastWords { exit: guard.last_words(), ..LastWords::default() }),
            TargetKeeper::Sandbox(sandbox) => match sandbox.join() {
                Some(Ok(run)) => {
                    let SandboxedRun { end, output, client_output, client_done, server_failure, .. } = run;
                    let is_client = matches!(server_failure, Some(ServerFailure::Client));
                    let output = if is_client { client_output } else { output };
                    Ok(LastWords { exit: Some(end.exit()), output, client_done, server_failure })
                }
                Some(Err(error)) => Err(LaunchError::of_sandbox(error, install)),
                None => Ok(LastWords::default()),
            },
        }
    }

    fn forward(&self, signal: i32) {
        match self {
            TargetKeeper::Guard(guard) => guard.forward(signal),
            // The sandbox's watchdog ends the run by itself.
            TargetKeeper::Sandbox(_) => {}
        }
    }

    fn kill_target(&self) {
        match self {
            TargetKeeper::Guard(guard) => guard.kill_target(),
            TargetKeeper::Sandbox(sandbox) => sandbox.stop.store(true, Ordering::Release),
        }
    }

    fn wait(&mut self) {
        match self {
            TargetKeeper::Guard(guard) => guard.wait(),
            TargetKeeper::Sandbox(sandbox) => drop(sandbox.join()),
        }
    }
}

/// What is known of a target that has ended.
#[derive(Default)]
struct LastWords {
    exit: Option<TargetExit>,
    /// The end of its output.
    output: Vec<u8>,
    client_done: Option<u64>,
    server_failure: Option<ServerFailure>,
}

/// A thread of pmvet that runs the target in a sandbox.
pub(crate) struct SandboxThread {
    thread: Option<JoinHandle<std::io::Result<SandboxedRun>>>,
    /// Why there is no thread.
    failure: Option<std::io::Error>,
    stop: Arc<AtomicBool>,
}

impl std::fmt::Debug for SandboxThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SandboxThread").field("over", &self.is_over()).finish_non_exhaustive()
    }
}

impl SandboxThread {
    pub(crate) fn start(
        launch: &Launch,
        private: &Private,
        install: &Install,
        shared: &SharedMemory,
        tracees: Arc<Tracees>,
    ) -> Self {
        let variables = variables(launch, install, &shared.path().display().to_string(), std::process::id());
        let (private, executable) = (private.clone(), install.dynamorio.clone());
        let arguments = launch.program.arguments.clone();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        // The numbers of events are there.
        let events = private.driver.as_ref().and_then(|_| SharedMemory::attach(&shared.path()).ok());
        let thread = std::thread::Builder::new().spawn(move || {
            let job = SandboxedProgram {
                executable: executable.as_os_str(),
                variables: &variables,
                input: private.input.as_deref(),
                output: private.output,
                client_output: private.output,
                stop: Some(&stopped),
                driver: private.driver.as_deref(),
                clock: events.as_ref().map(|events| &events.header().next_seq.0),
                timeout: private.timeout,
                by_the_clock: private.by_the_clock,
                tracees: Some(&tracees),
                ..SandboxedProgram::new(&arguments)
            };
            sandbox::run(&job, &private.overlay, &mut Unwinder::default())
        });
        let (thread, failure) = match thread {
            Ok(thread) => (Some(thread), None),
            Err(error) => (None, Some(StartError::at(StartStep::Thread)(error))),
        };
        Self { thread, failure, stop }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    pub(crate) fn join(&mut self) -> Option<std::io::Result<SandboxedRun>> {
        match self.failure.take() {
            Some(error) => Some(Err(error)),
            None => self.thread.take()?.join().ok(),
        }
    }
}

impl Drop for SandboxThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        drop(self.join());
    }
}

/// The guard process, seen from pmvet.
struct Guard {
    child: Child,
    reports: File,
    /// The target's first process while it runs.
    target: Option<u32>,
    ended: bool,
}

impl Guard {
    fn start(launch: &Launch, install: &Install, shared: &SharedMemory) -> Result<Self, LaunchError> {
        let (reports, writer) = pipe().map_err(LaunchError::Guard)?;
        let pid = std::process::id();
        let shared_memory = shared.path().display().to_string();
        let mut command = Command::new("/proc/self/exe");
        command.arg(guard::COMMAND).arg(pid.to_string()).arg(writer.as_raw_fd().to_string());
        command.arg(if launch.plan.deterministic { "1" } else { "0" });
        let variables = variables(launch, install, &shared_memory, pid);
        command.arg(variables.len().to_string());
        command.args(variables.into_iter().map(|(mut variable, value)| {
            variable.push("=");
            variable.push(value);
            variable
        }));
        command.arg(&install.dynamorio).args(&launch.program.arguments);
        let child = command.spawn().map_err(LaunchError::Guard)?;
        drop(writer);
        Ok(Self { child, reports, target: None, ended: false })
    }

    /// The next report, if there is one.
    fn report(&mut self) -> Option<GuardReport> {
        let mut bytes = [0; GuardReport::BYTES];
        let report = match self.reports.read_exact(&mut bytes) {
            Ok(()) => GuardReport::from_bytes(bytes)?,
            Err(_) => return None,
        };
        // Once it has ended, its pid may be that of another process.
        self.target = match report {
            GuardReport::Started(pid) => Some(pid),
            GuardReport::Ended(_) | GuardReport::NotStarted(_) => None,
        };
        Some(report)
    }

    /// Whether the guard, and with it every process of the target, has ended.
    fn ended(&mut self) -> bool {
        self.ended = self.ended || !matches!(self.child.try_wait(), Ok(None));
        self.ended
    }

    /// What the guard said before it ended.
    fn last_words(&mut self) -> Option<TargetExit> {
        while let Some(report) = self.report() {
            if let GuardReport::Ended(status) = report {
                return Some(exit_of(status));
            }
        }
        None
    }

    fn forward(&self, signal: i32) {
        if let (Some(pid), Some(signal)) = (self.target, Signal::from_named_raw(signal)) {
            send_signal(pid as i32, signal);
        }
    }

    fn kill_target(&self) {
        // It kills everything below it.
        send_signal(self.child.id() as i32, Signal::TERM);
    }

    fn wait(&mut self) {
        let _ = self.child.wait();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.ended() {
            self.kill_target();
            self.wait();
        }
    }
}

/// A pipe whose reading end does not block and whose writing end is inherited.
fn pipe() -> std::io::Result<(File, std::os::fd::OwnedFd)> {
    let (reader, writer) = std::io::pipe()?;
    let (reader, writer) = (std::os::fd::OwnedFd::from(reader), std::os::fd::OwnedFd::from(writer));
    fcntl_setfl(&reader, OFlags::NONBLOCK)?;
    fcntl_setfd(&writer, FdFlags::empty())?;
    Ok((reader.into(), writer))
}

/// What is added to the target's environment. The client hides DynamoRIO's part of it from the target.
fn variables(launch: &Launch, install: &Install, shared_memory: &str, pid: u32) -> Vec<(OsString, OsString)> {
    let mut variables: Vec<(OsString, OsString)> = vec![
        ("DYNAMORIO_EXE_PATH".into(), launch.program.executable.clone().into()),
        ("DYNAMORIO_RUNUNDER".into(), "1".into()),
        ("DYNAMORIO_OPTIONS".into(), options(launch, install, shared_memory, pid)),
        // Keeps the user's own settings of DynamoRIO out.
        ("DYNAMORIO_CONFIGDIR".into(), "/nonexistent".into()),
    ];
    variables.extend(pm_variables());
    variables
}

/// What makes PMDK map and flush any file as PM, at an address that is the same in every run. The user's own settings win.
pub fn pm_variables() -> impl Iterator<Item = (OsString, OsString)> {
    let defaults = [("PMEM_IS_PMEM_FORCE", "1"), ("PMEM_MMAP_HINT", "10000000000")];
    defaults
        .into_iter()
        .filter(|(name, _)| std::env::var_os(name).is_none())
        .map(|(name, value)| (name.into(), value.into()))
}

/// DynamoRIO's options.
fn options(launch: &Launch, install: &Install, shared_memory: &str, pid: u32) -> OsString {
    let mut options = OsString::from(
        // DynamoRIO prints messages only when it gives up.
        "-no_persist -stderr_mask 0xc -dumpcore_mask 0 -code_api",
    );
    if !launch.follow_forks {
        options.push(" -no_follow_children");
    }
    if !launch.bare {
        // Blocks small enough for our instrumentation, and no traces: instrumenting code a second time costs more than
        // the better layout gains.
        options.push(" -max_bb_instrs 64 -disable_traces");
        if launch.plan.forks.is_some() {
            // Few large mappings in place of many small ones: each costs time at every fork, and again at its end.
            options.push(" -no_guard_pages -initial_heap_unit_size 256K -initial_global_heap_unit_size 256K");
            for size in ["init", "quadruple", "upgrade", "max"] {
                options.push(format!(" -cache_shared_bb_unit_{size} 1M"));
            }
        }
        // Path, number and arguments in one quoted word.
        options.push(" -client_lib \"");
        options.push(&install.client);
        options.push(format!(";0;{shared_memory} {pid}\""));
    }
    options
}
