//! The sandbox: native runs that get other files under the same names.
//!
//! A recovery is the user's own command line, unchanged, on a crash image. It runs at native speed; the
//! [`supervisor`](Supervisor) acts only when it names a file. If the name is that of a PM file it gets the image instead;
//! whatever else it opens for writing is copied first. So the user's files are never written, and nothing has to be cleaned up:
//! the stand-ins have no names and end with pmvet.
//!
//! * [`overlay`] — which file stands in for which path; `saved` — what runs left, kept for later.
//! * `spawn` — how the first process begins; [`start_error`] — why it does not.
//! * `filter` — which system calls are stopped; `supervisor` and, for those that name files, `naming` — how they are handled; `tracee` —
//!   the stopped thread.
//! * [`driver`] — the client of a server; [`requests`] — pmvet itself as the client, with requests of an earlier run.
//! * `stack` — where a process was when it failed.
//!
//! Why there are no private mappings of the image, which would save restoring it afterwards: a program that maps its pool
//! twice, forks, or mixes `pwrite` with loads would see other bytes than on a real machine.
//!
//! What a sandboxed process can notice: stand-ins have no links (`st_nlink` is 0), `io_uring` and 32-bit system calls do not exist,
//! setuid programs have no effect, and orphans are adopted by pmvet.

pub mod driver;
pub mod overlay;
pub mod probe;
pub mod requests;

mod attributes;
mod capabilities;
mod filter;
mod ground;
mod keeper;
mod listening;
mod listing;
mod mounts;
mod naming;
mod network;
mod resolve;
mod saved;
mod spawn;
mod stack;
pub mod start_error;
mod supervisor;
mod tracee;
mod view;
pub(crate) mod waiting;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, Once, mpsc};
use std::time::{Duration, Instant};

pub use self::ground::NoViews;
pub use self::keeper::enter;
pub use self::overlay::{Capture, Overlay};
pub use self::stack::{RawFrame, Unwinder};
pub use self::tracee::Tracees;
pub(crate) use self::tracee::send_signal;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

use crate::launch::TargetExit;
use crate::shutdown;

use self::driver::{Driver, Ready, Server, ServerFailure, Signs};
use self::spawn::Spawn;
use self::start_error::{StartError, StartStep};
use self::supervisor::{Sandbox, Status, Supervisor, ending, is_fault};
use self::waiting::Waiting;

/// How many threads a run may have, in all its processes: more than the tracer can follow.
const MOST_THREADS: usize = 10_000;

/// What to run, and what it may use.
#[derive(Debug, Clone)]
pub struct SandboxedProgram<'a> {
    /// The program, found in `PATH` if its name has no slash.
    pub executable: &'a OsStr,
    /// What it is called with, its own name first.
    pub arguments: &'a [OsString],
    /// Variables to set besides the inherited ones.
    pub variables: &'a [(OsString, OsString)],
    /// A file to read from its start, or nothing.
    pub input: Option<&'a File>,
    /// Where its output goes, and how much of it is kept.
    pub output: Output,
    /// How long it may run, not counting waits for a processor; nothing: no limit.
    pub timeout: Option<Duration>,
    /// The timeout is wall-clock time, even on a busy machine.
    pub by_the_clock: bool,
    /// Ends the run if its stand-ins take more memory than this.
    pub most_bytes: u64,
    /// How much private memory each process may have, if less than the machine has.
    pub most_memory: Option<u64>,
    /// An exit status that is no reason to record a stack.
    pub usual_status: Option<i32>,
    /// Set from outside to end the run.
    pub stop: Option<&'a AtomicBool>,
    /// For servers: the client that talks to it.
    pub driver: Option<&'a Driver>,
    /// How much of the client's output is kept.
    pub client_output: Output,
    /// A counter that is read when the client is done.
    pub clock: Option<&'a AtomicU64>,
    /// Updated with the threads of this run, for other threads.
    pub tracees: Option<&'a Tracees>,
    /// The threads of another run with the same overlay, which this one may signal.
    pub beside: Option<&'a Tracees>,
}

impl<'a> SandboxedProgram<'a> {
    /// A job without input or limits, whose output is thrown away.
    pub fn new(arguments: &'a [OsString]) -> Self {
        Self {
            executable: arguments.first().map_or(OsStr::new(""), OsString::as_os_str),
            arguments,
            variables: &[],
            input: None,
            output: Output::Tail(0),
            timeout: None,
            by_the_clock: false,
            most_bytes: u64::MAX,
            most_memory: None,
            usual_status: None,
            stop: None,
            driver: None,
            client_output: Output::Tail(0),
            clock: None,
            tracees: None,
            beside: None,
        }
    }
}

/// Where the output of a program goes, and how much of it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Where pmvet's own output goes.
    Inherit,
    /// The last bytes are kept, up to this many.
    Tail(usize),
    /// As with `Tail`; and it goes to a terminal, so that most programs write out each line when it is complete.
    Terminal(usize),
    /// The last bytes of standard output are kept, up to this many; those of standard error are not.
    Standard(usize),
}

impl Output {
    fn kept(self) -> usize {
        match self {
            Output::Inherit => 0,
            Output::Tail(bytes) | Output::Terminal(bytes) | Output::Standard(bytes) => bytes,
        }
    }

    /// Where pmvet reads it, and where the program writes it.
    fn open(self) -> io::Result<Option<(OwnedFd, OwnedFd)>> {
        let (reader, writer) = match self {
            Output::Inherit => return Ok(None),
            // Without a terminal, lines come later than they might.
            Output::Terminal(_) => terminal().or_else(|_| pipe())?,
            Output::Tail(_) | Output::Standard(_) => pipe()?,
        };
        // Reads must not wait for a process that still has the other end when all others are dead.
        fcntl_setfl(&reader, OFlags::NONBLOCK)?;
        Ok(Some((reader, writer)))
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = io::pipe()?;
    Ok((reader.into(), writer.into()))
}

/// A terminal that changes nothing of what is written to it.
fn terminal() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let reader = openpt(flags)?;
    unlockpt(&reader)?;
    let writer = ioctl_tiocgptpeer(&reader, flags)?;
    let mut settings = tcgetattr(&writer)?;
    settings.make_raw();
    tcsetattr(&writer, OptionalActions::Now, &settings)?;
    Ok((reader, writer))
}

/// How a run went.
#[derive(Debug, Clone)]
pub struct SandboxedRun {
    /// How its first process ended, or why pmvet ended it; for servers, how the client ended.
    pub end: SandboxedEnd,
    /// The end of what it wrote to its standard output and error.
    pub output: Vec<u8>,
    /// Its stack when it failed.
    pub stack: Vec<RawFrame>,
    /// How long it ran.
    pub time: Duration,
    /// The end of what a server's client has printed.
    pub client_output: Vec<u8>,
    /// What the clock showed when the client was done.
    pub client_done: Option<u64>,
    /// What failed, if not the program itself.
    pub server_failure: Option<ServerFailure>,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxedEnd {
    /// By itself, with this exit status.
    Exit(i32),
    /// Killed by this signal.
    Signal(i32),
    /// It was still running when its time was over.
    Timeout,
    /// It took too much memory or disk space.
    Runaway,
    /// pmvet was asked to stop, or its budget is used up.
    Interrupted,
}

impl SandboxedEnd {
    /// How the process itself ended, if pmvet did not end it.
    pub fn exit(self) -> TargetExit {
        match self {
            SandboxedEnd::Exit(status) => TargetExit::Status(status),
            SandboxedEnd::Signal(signal) => TargetExit::Signal(signal),
            SandboxedEnd::Timeout | SandboxedEnd::Runaway | SandboxedEnd::Interrupted => {
                TargetExit::Signal(libc::SIGKILL)
            }
        }
    }
}

/// Runs a command to its end. What it does to files stays in `overlay`.
pub fn run(job: &SandboxedProgram<'_>, overlay: &Mutex<Overlay>, unwinder: &mut Unwinder) -> io::Result<SandboxedRun> {
    let cut = || SandboxedRun {
        end: SandboxedEnd::Interrupted,
        output: Vec::new(),
        stack: Vec::new(),
        time: Duration::ZERO,
        client_output: Vec::new(),
        client_done: None,
        server_failure: None,
    };
    if shutdown::is_over() {
        return Ok(cut());
    }
    let input = match job.input {
        // Opened anew, since the position of the old one is shared.
        Some(file) => File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?,
        None => File::open("/dev/null")?,
    };
    let (pipe, output) = job.output.open()?.unzip();
    let errors = match job.output {
        Output::Standard(_) => Some(File::options().write(true).open("/dev/null")?.into()),
        _ => None,
    };
    adopt_orphans();
    let started = Instant::now();
    let SandboxedProgram { executable, arguments, variables, most_memory, .. } = *job;
    let (view, stale) = {
        let mut overlay = overlay.lock().unwrap_or_else(|e| e.into_inner());
        (overlay.enter_view()?, job.driver.and_then(|driver| driver.stale(&overlay)))
    };
    let view = view.as_deref().map(|lease| &**lease);
    let most_memory = most_memory.or_else(memory);
    let spawn = Spawn { executable, arguments, variables, input: input.into(), output, errors, most_memory, view };
    let ending = AtomicU8::new(ending::NO);
    let signs = Signs::default();
    let unwatched = Tracees::default();
    let tracees = job.tracees.unwrap_or(&unwatched);
    let (done, watch_done) = io::pipe()?;
    let (begun, process) = mpsc::channel();
    let ran = std::thread::scope(|scope| {
        let (signs, ending) = (&signs, &ending);
        // In a separate thread, since it waits for all its children: the calling thread may have others.
        let supervise = move || {
            let pid = spawn.start();
            let first = pid.as_ref().ok().copied();
            if let Some(pid) = first {
                // If memory runs out, the kernel must kill this program rather than one of the user's.
                let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), "1000");
            }
            let own = rustix::thread::gettid().as_raw_pid();
            // The caller waits for this.
            let _ = begun.send(pid.map(|pid| (pid, own)));
            let sandbox = Sandbox { overlay, tracees, beside: job.beside };
            let supervisor = Supervisor::new(sandbox, ending, unwinder, job.usual_status, first?);
            let result = supervisor.run();
            signs.over.store(true, Ordering::Release);
            drop(watch_done);
            Some(result)
        };
        // A target that has filled the table of processes is no reason to panic.
        let supervising = std::thread::Builder::new().spawn_scoped(scope, supervise);
        let supervising = supervising.map_err(StartError::at(StartStep::Thread))?;
        let (pid, supervisor) = process.recv().map_err(io::Error::other)??;
        let (client_output, clock) = (job.client_output, job.clock);
        let is_timed = job.timeout.is_some();
        let server = Server { pid, signs, tracees, overlay, stale, is_timed, client_output, clock };
        let driving = job.driver.map(|driver| scope.spawn(move || driver.drive(&server)));
        let mut watchdog = Watchdog {
            pid,
            deadline: job.timeout.map(|t| started + t),
            most_wait: if job.by_the_clock { Duration::ZERO } else { job.timeout.unwrap_or_default() * waiting::MOST },
            waiting: Waiting::new(pid, supervisor),
            most_bytes: job.most_bytes,
            stop: job.stop,
            overlay,
            tracees,
            ending,
            line: match job.driver.map(|driver| &driver.ready) {
                Some(Ready::Line(line)) => Some(line),
                _ => None,
            },
            signs,
            pipe,
            keep: job.output.kept(),
            output: Vec::new(),
            why: None,
        };
        watchdog.watch(&done);
        let driven = driving.and_then(|thread| thread.join().ok().flatten());
        let supervised = supervising.join().ok().flatten();
        Ok::<_, io::Error>((supervised, (watchdog.output, watchdog.why), driven))
    });
    let (supervised, watchdog, mut driven) = match ran {
        // Killed before it had started.
        Err(_) if shutdown::is_over() => return Ok(cut()),
        ran => ran?,
    };
    let (status, stack) = supervised.ok_or_else(|| io::Error::other("the supervisor of a process has failed"))??;
    let time = started.elapsed();
    let (mut output, why) = watchdog;
    output.drain(..output.len().saturating_sub(job.output.kept()));
    let not_ready = || job.driver.map(|driver| ServerFailure::NotReady(driver.in_vain()));
    let mut server_failure = if signs.not_ready.load(Ordering::Acquire) { not_ready() } else { None };
    let (client_output, client_done) =
        driven.as_mut().map(|d| (std::mem::take(&mut d.output), d.at)).unwrap_or_default();
    let end = match (why, driven.and_then(|driven| driven.end), status) {
        (Some(why), ..) => why,
        // The client noticed the server's death before the supervisor did.
        (None, Some(client), Status::Killed(signal)) if client != SandboxedEnd::Exit(0) && is_fault(signal) => {
            SandboxedEnd::Signal(signal)
        }
        // The server was told to end, so the client's result counts.
        (None, Some(client), _) => {
            server_failure = (client != SandboxedEnd::Exit(0)).then_some(ServerFailure::Client);
            client
        }
        (None, None, Status::Exited(status)) => SandboxedEnd::Exit(status),
        (None, None, Status::Killed(signal)) => SandboxedEnd::Signal(signal),
    };
    Ok(SandboxedRun { end, output, stack, time, client_output, client_done, server_failure })
}

/// The memory of the machine.
fn memory() -> Option<u64> {
    // SAFETY: has no preconditions.
    let (pages, size) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    u64::try_from(pages).ok()?.checked_mul(u64::try_from(size).ok()?)
}

/// Makes orphans of the sandbox's processes children of pmvet. They are gone as soon as their tracer has seen their end. With
/// another parent they would stay until it reaps them, and a target that forks forever would fill the process table with them.
fn adopt_orphans() {
    static ONCE: Once = Once::new();
    // SAFETY: has no preconditions.
    ONCE.call_once(|| unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
    });
}

/// Reads what the process writes, so that it never waits, and watches over its time and space.
struct Watchdog<'a> {
    pid: libc::pid_t,
    deadline: Option<Instant>,
    most_wait: Duration,
    waiting: Waiting,
    most_bytes: u64,
    stop: Option<&'a AtomicBool>,
    overlay: &'a Mutex<Overlay>,
    tracees: &'a Tracees,
    ending: &'a AtomicU8,
    /// The line that signals readiness.
    line: Option<&'a regex::bytes::Regex>,
    signs: &'a Signs,
    pipe: Option<OwnedFd>,
    keep: usize,
    output: Vec<u8>,
    why: Option<SandboxedEnd>,
}

impl Watchdog<'_> {
    /// Poll interval for what has no event to wait for.
    const ROUND: Duration = Duration::from_millis(50);
    /// After a short read, it pauses for this long: waking for every line costs more than the line, and a pipe holds many.
    const PAUSE: Duration = Duration::from_millis(2);
    const LITTLE: usize = 1 << 12;
    /// How long it may take until a process has stopped and its stack has been read: on a busy machine, both wait for a processor.
    const PATIENCE: Duration = Duration::from_secs(3);

    fn watch(&mut self, done: &io::PipeReader) {
        let mut reader = self.pipe.take().map(File::from);
        let mut buffer = vec![0; 1 << 16];
        let mut paused = false;
        loop {
            let readable = reader.as_ref().filter(|_| !paused).map_or(-1, |r| r.as_raw_fd());
            let mut fds = [
                libc::pollfd { fd: done.as_raw_fd(), events: libc::POLLIN, revents: 0 },
                libc::pollfd { fd: readable, events: libc::POLLIN, revents: 0 },
            ];
            let round = if paused { Self::PAUSE } else { Self::ROUND };
            // SAFETY: the array is valid.
            unsafe { libc::poll(fds.as_mut_ptr(), 2, round.as_millis() as i32) };
            paused = false;
            if fds[1].revents != 0
                && let Some(file) = &mut reader
            {
                match file.read(&mut buffer) {
                    Ok(0) | Err(_) => reader = None,
                    Ok(n) => {
                        self.keep(&buffer[..n]);
                        paused = n < Self::LITTLE;
                    }
                }
                // The limits also apply to a process that prints without end.
                if fds[0].revents == 0 && !self.is_over() {
                    continue;
                }
            }
            if fds[0].revents != 0 {
                // All are dead: what is left in the pipe is all there is.
                while let Some(file) = &mut reader
                    && let Ok(n @ 1..) = file.read(&mut buffer)
                {
                    self.keep(&buffer[..n]);
                }
                return;
            }
            if self.is_over() {
                self.end();
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
        if self.line.is_some_and(|line| self.output.split(|&b| b == b'\n').any(|text| line.is_match(text))) {
            self.line = None;
            self.signs.line.store(true, Ordering::Release);
        }
        if self.output.len() > 4 * self.keep.max(1024) {
            self.output.drain(..self.output.len() - self.keep);
        }
    }

    fn is_over(&mut self) -> bool {
        if self.why.is_none() {
            // The holder of the lock may be busy with a large file.
            let is_full = || self.overlay.try_lock().is_ok_and(|overlay| overlay.exceeds(self.most_bytes));
            self.why = if shutdown::is_over() || self.stop.is_some_and(|stop| stop.load(Ordering::Acquire)) {
                Some(SandboxedEnd::Interrupted)
            } else if self.is_late() || self.signs.not_ready.load(Ordering::Acquire) {
                Some(SandboxedEnd::Timeout)
            } else if is_full() {
                Some(SandboxedEnd::Runaway)
            } else if self.tracees.count() > MOST_THREADS {
                say(&format!("a run that had more than {MOST_THREADS} threads at a time was killed"));
                Some(SandboxedEnd::Signal(libc::SIGKILL))
            } else {
                None
            };
            let Some(why) = self.why else { return false };
            self.signs.over.store(true, Ordering::Release);
            if why == SandboxedEnd::Interrupted {
                // Its stack is not needed.
                self.ending.store(ending::KILL, Ordering::Release);
                return true;
            }
            self.ending.store(ending::LOOK, Ordering::Release);
            // The signal stops it, and the supervisor reads its stack. The supervisor has not waited for its end, or we
            // would be done.
            send_signal(self.pid, Signal::STOP);
            self.deadline = Some(Instant::now() + Self::PATIENCE);
            return false;
        }
        self.why == Some(SandboxedEnd::Interrupted)
            || shutdown::is_over()
            || self.deadline.is_some_and(|at| Instant::now() >= at)
    }

    /// Whether its time is over, not counting what it spent waiting for a processor. A thread that yields all the time also waits, so
    /// waiting counts only up to a bound.
    fn is_late(&self) -> bool {
        let Some(at) = self.deadline.filter(|at| Instant::now() >= *at) else { return false };
        Instant::now() >= at + self.waiting.so_far().min(self.most_wait)
    }

    fn end(&mut self) {
        // As above.
        send_signal(self.pid, Signal::KILL);
    }
}

/// A command line as the user wrote it, for the shell. A single program replaces the shell, so that pmvet sees how and
/// where the program ends, rather than the shell.
pub fn shell(line: &str) -> Vec<OsString> {
    let line = match program_in(line) {
        Some(at) => format!("{}exec {}", &line[..at], &line[at..]),
        None => line.into(),
    };
    ["/bin/sh", "-c", &line].map(OsString::from).into()
}

/// Commands that a shell runs itself.
const BUILTINS: &[&str] = &[
    ".", ":", "!", "[", "{", "alias", "bg", "break", "case", "cd", "chdir", "command", "continue", "echo", "eval",
    "exec", "exit", "export", "false", "fc", "fg", "for", "function", "getopts", "hash", "if", "jobs", "kill", "local",
    "printf", "pwd", "read", "readonly", "return", "set", "shift", "test", "times", "trap", "true", "type", "ulimit",
    "umask", "unset", "until", "wait", "while",
];

/// Where in a line that starts a single program, and nothing else, the program is named: after settings of variables.
fn program_in(line: &str) -> Option<usize> {
    if line.contains([';', '&', '|', '(', ')', '`', '\n']) {
        return None;
    }
    let plain = |c: char| c.is_alphanumeric() || "/._-+:,@%".contains(c);
    let mut end = 0;
    for word in line.split_whitespace() {
        let start = end + line[end..].find(word)?;
        if !is_setting(word) {
            return (word.chars().all(plain) && !BUILTINS.contains(&word)).then_some(start);
        }
        end = start + word.len();
    }
    None
}

/// `NAME=value`, without anything that a shell would expand.
fn is_setting(word: &str) -> bool {
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    word.split_once('=').is_some_and(|(name, value)| is_name(name) && !value.contains(['"', '\'', '\\', '$']))
}

/// Tells the user something that happens behind the scenes.
fn say(text: &str) {
    eprintln!("pmvet: {text}");
}

/// Tells the user, once for each call, that a program could not do something.
fn say_refused(call: &'static str, path: Option<&Path>) {
    static SAID: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    if SAID.lock().unwrap_or_else(|e| e.into_inner()).insert(call) {
        let path = path.map(|path| format!(" for {}", path.display())).unwrap_or_default();
        say(&format!(
            "the program called `{call}`{path} in a way that cannot be kept private, so the call was refused (Operation not permitted); \
             --in-place runs the workload unconfined"
        ));
    }
}

/// The path without symbolic links and dots, whether or not the last part exists, and whether there is a file.
fn canonical(path: &Path, follow: bool) -> Option<(PathBuf, bool)> {
    if follow && let Ok(found) = path.canonicalize() {
        return Some((found, true));
    }
    let found = path.parent()?.canonicalize().ok()?.join(path.file_name()?);
    let exists = !follow && found.symlink_metadata().is_ok();
    Some((found, exists))
}

/// The path of a stand-in that any process can open.
pub fn path_of(file: &File) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_program_takes_the_place_of_the_shell() {
        for (line, run) in [
            ("./kv pool", "exec ./kv pool"),
            ("kv pool < input", "exec kv pool < input"),
            ("A=kv B=2 kv pool", "A=kv B=2 exec kv pool"),
            ("test -e pool", "test -e pool"),
            ("while true", "while true"),
            ("A=$B kv", "A=$B kv"),
            ("kv a; kv b", "kv a; kv b"),
            ("kv a && kv b", "kv a && kv b"),
            ("'my kv' a", "'my kv' a"),
            ("A=1", "A=1"),
            ("", ""),
        ] {
            assert_eq!(shell(line), ["/bin/sh", "-c", run].map(OsString::from), "{line}");
        }
    }
}
