//! Starts a target under DynamoRIO and sees it through to its end.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use pmvet_events::plan::Plan;
use pmvet_events::shm::{RING_BYTES, Shared};

use crate::collect::{Collector, Loss, Sink, SinkError};
use crate::guard::{self, Report};
use crate::install::Install;
use crate::program::Program;

/// What to run, and how.
#[derive(Debug, Clone)]
pub struct Launch {
    pub program: Program,
    pub plan: Plan,
    pub follow_forks: bool,
    /// Run under DynamoRIO alone, without the client: what instrumentation is compared with.
    pub bare: bool,
}

/// How a run went.
#[derive(Debug)]
pub struct Ending {
    pub exit: Exit,
    pub time: Duration,
    pub loss: Loss,
    /// Some events have no place, because there were more places than the tables hold.
    pub places_lost: bool,
    /// pmvet was asked to stop, by this signal, and stopped the target.
    pub interrupted: Option<i32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Status(i32),
    Signal(i32),
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Exit::Status(status) => write!(f, "exit status {status}"),
            Exit::Signal(signal) => write!(f, "killed by signal {signal} ({})", signal_name(*signal)),
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

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("cannot make shared memory for events: {0}")]
    SharedMemory(#[source] std::io::Error),
    #[error("cannot encode the plan: {0}")]
    Plan(#[source] serde_json::Error),
    #[error("cannot start pmvet's guard process: {0}")]
    Guard(#[source] std::io::Error),
    #[error("cannot start DynamoRIO ({}): {source}", .path.display())]
    NotStarted { path: PathBuf, source: std::io::Error },
    #[error("the guard process ended without a word; the target's fate is unknown")]
    GuardDied,
    #[error("the client inside the target gave up (its message is above)")]
    ClientFailed,
    #[error(transparent)]
    Sink(#[from] SinkError),
    #[error(transparent)]
    Collect(#[from] crate::collect::CollectError),
}

/// The signal that asked pmvet to stop, and whether the target got it too.
static STOP: AtomicU32 = AtomicU32::new(0);
const TARGET_HAS_IT: u32 = 1 << 16;

/// Asks the run under way to end. Safe to call from a signal handler. A terminal sends its signals to the target as well,
/// which must not get them twice.
pub fn stop(signal: i32, from_terminal: bool) {
    STOP.store(signal as u32 | if from_terminal { TARGET_HAS_IT } else { 0 }, Ordering::Relaxed);
}

/// The signal that asked pmvet to stop, if one did.
pub fn stopped_by() -> Option<i32> {
    match STOP.load(Ordering::Relaxed) & !TARGET_HAS_IT {
        0 => None,
        signal => Some(signal as i32),
    }
}

/// How long events may wait, at least; a ring holds some milliseconds' worth of the fastest stream.
const PAUSE: Duration = Duration::from_micros(100);
/// With this many bytes at a time pmvet hardly keeps up, and does not sleep.
const BACKLOG: u64 = RING_BYTES as u64 / 2;
/// Every how many idle rounds pmvet looks for news of the target's processes.
const LOOK_AROUND: u32 = 4;

/// How long a target may take to end by itself after it was asked to.
const GRACE: Duration = Duration::from_secs(2);

/// Runs a target to its end. Its events go to `sink` while it runs.
pub fn launch(launch: &Launch, install: &Install, sink: &mut dyn Sink) -> Result<Ending, LaunchError> {
    let plan = serde_json::to_vec(&launch.plan).map_err(LaunchError::Plan)?;
    let shared = Shared::create(&plan).map_err(LaunchError::SharedMemory)?;
    let started = Instant::now();
    let mut guard = Guard::start(launch, install, &shared)?;
    let mut collector = Collector::new(&shared);
    let mut exit = None;
    let mut stopping: Option<Instant> = None;
    let mut idle = 0u32;
    let result = loop {
        let moved = match collector.pump(sink) {
            Ok(moved) => moved,
            Err(e) => break Err(e),
        };
        if let Some(signal) = stopped_by() {
            let since = *stopping.get_or_insert_with(|| {
                if STOP.load(Ordering::Relaxed) & TARGET_HAS_IT == 0 {
                    guard.forward(signal);
                }
                Instant::now()
            });
            if since.elapsed() > GRACE {
                guard.kill_target();
            }
        }
        idle = if moved > 0 { 0 } else { idle + 1 };
        // Events gather while pmvet sleeps, which costs the target less than being watched at every step.
        if moved < BACKLOG {
            std::thread::sleep(PAUSE * idle.clamp(1, 4));
        }
        if idle % LOOK_AROUND != 1 {
            continue;
        }
        if let Some(report) = guard.report() {
            match report {
                Report::Started(_) => {}
                Report::Ended(status) => exit = Some(exit_of(status)),
                Report::NotStarted(errno) => {
                    let source = std::io::Error::from_raw_os_error(errno);
                    return Err(LaunchError::NotStarted { path: install.dynamorio.clone(), source });
                }
            }
            continue;
        }
        if guard.ended() {
            break Ok(());
        }
        collector.notice_deaths();
    };
    if let Err(e) = result {
        guard.kill_target();
        guard.wait();
        return Err(e.into());
    }
    let time = started.elapsed();
    let loss = collector.finish(sink)?;
    if shared.header().client_failed.load(Ordering::Acquire) != 0 {
        return Err(LaunchError::ClientFailed);
    }
    let interrupted = stopping.and_then(|_| stopped_by());
    let exit = exit.or_else(|| guard.last_words()).ok_or(LaunchError::GuardDied)?;
    Ok(Ending { exit, time, loss, places_lost: shared.places_lost(), interrupted })
}

fn exit_of(status: i32) -> Exit {
    if libc::WIFSIGNALED(status) {
        Exit::Signal(libc::WTERMSIG(status))
    } else {
        Exit::Status(libc::WEXITSTATUS(status))
    }
}

/// The guard process, seen from pmvet.
struct Guard {
    child: Child,
    reports: std::fs::File,
    target: Option<u32>,
    ended: bool,
}

impl Guard {
    fn start(launch: &Launch, install: &Install, shared: &Shared) -> Result<Self, LaunchError> {
        let (reports, writer) = pipe().map_err(LaunchError::Guard)?;
        let pid = std::process::id();
        let shared_memory = shared.path().display().to_string();
        let mut command = Command::new("/proc/self/exe");
        command.arg(guard::COMMAND).arg(pid.to_string()).arg(writer.as_raw_fd().to_string());
        command.arg(if launch.plan.deterministic { "1" } else { "0" });
        let variables = variables(launch, install, &shared_memory, pid);
        command.arg(variables.len().to_string()).args(variables);
        command.arg(&install.dynamorio).args(&launch.program.arguments);
        let child = command.spawn().map_err(LaunchError::Guard)?;
        drop(writer);
        Ok(Self { child, reports, target: None, ended: false })
    }

    /// The next report, if there is one.
    fn report(&mut self) -> Option<Report> {
        let mut bytes = [0; Report::BYTES];
        let report = match self.reports.read_exact(&mut bytes) {
            Ok(()) => Report::from_bytes(bytes)?,
            Err(_) => return None,
        };
        if let Report::Started(pid) = report {
            self.target = Some(pid);
        }
        Some(report)
    }

    /// Whether the guard, and with it every process of the target, has ended.
    fn ended(&mut self) -> bool {
        self.ended = self.ended || !matches!(self.child.try_wait(), Ok(None));
        self.ended
    }

    /// What the guard said before it ended.
    fn last_words(&mut self) -> Option<Exit> {
        while let Some(report) = self.report() {
            if let Report::Ended(status) = report {
                return Some(exit_of(status));
            }
        }
        None
    }

    fn forward(&self, signal: i32) {
        if let Some(pid) = self.target {
            // SAFETY: signals a process that the guard has not reaped without telling us.
            unsafe { libc::kill(pid as i32, signal) };
        }
    }

    fn kill_target(&self) {
        // SAFETY: our own child; it kills everything below it.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
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
fn pipe() -> std::io::Result<(std::fs::File, std::os::fd::OwnedFd)> {
    let (reader, writer) = std::io::pipe()?;
    let (reader, writer) = (std::os::fd::OwnedFd::from(reader), std::os::fd::OwnedFd::from(writer));
    // SAFETY: flags of our own descriptors.
    unsafe {
        libc::fcntl(reader.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK);
        libc::fcntl(writer.as_raw_fd(), libc::F_SETFD, 0);
    }
    Ok((reader.into(), writer))
}

/// What is added to the target's environment. The client hides DynamoRIO's part of it from the target.
fn variables(launch: &Launch, install: &Install, shared_memory: &str, pid: u32) -> Vec<OsString> {
    let variable = |name: &str, value: &OsStr| {
        let mut variable = OsString::from(name);
        variable.push("=");
        variable.push(value);
        variable
    };
    let mut variables = vec![
        variable("DYNAMORIO_EXE_PATH", launch.program.executable.as_os_str()),
        variable("DYNAMORIO_RUNUNDER", "1".as_ref()),
        variable("DYNAMORIO_OPTIONS", &options(launch, install, shared_memory, pid)),
        // Not the user's own settings of DynamoRIO.
        variable("DYNAMORIO_CONFIGDIR", "/nonexistent".as_ref()),
    ];
    // PMDK maps and flushes any file as PM then, at an address that is the same in every run.
    for (name, value) in [("PMEM_IS_PMEM_FORCE", "1"), ("PMEM_MMAP_HINT", "10000000000")] {
        if std::env::var_os(name).is_none() {
            variables.push(variable(name, value.as_ref()));
        }
    }
    variables
}

/// DynamoRIO's options.
fn options(launch: &Launch, install: &Install, shared_memory: &str, pid: u32) -> OsString {
    let mut options = OsString::from(
        // Messages of DynamoRIO itself only when it gives up.
        "-no_persist -stderr_mask 0xc -dumpcore_mask 0 -code_api",
    );
    if !launch.follow_forks {
        options.push(" -no_follow_children");
    }
    if !launch.bare {
        // Blocks small enough for our instrumentation, and no traces: making instrumented code a second time costs
        // more than the better layout gains.
        options.push(" -max_bb_instrs 64 -disable_traces");
        // Path, number and arguments in one quoted word.
        options.push(" -client_lib \"");
        options.push(&install.client);
        options.push(format!(";0;{shared_memory} {pid}\""));
    }
    options
}
