//! Servers: processes that work only while a client talks to them, and do not end by themselves.
//!
//! The client lives in the same sandbox: it finds the server's sockets and files, may signal it, and changes nothing outside.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use regex::bytes::Regex;
use rustix::process::Signal;

use super::listening;
use super::tracee::send_signal;
use super::waiting;
use super::{Output, Overlay, SandboxedEnd, SandboxedProgram, SandboxedRun, Tracees, Unwinder};

/// The client of a server, when it begins, and how to end the server.
#[derive(Debug, Clone)]
pub struct Driver {
    /// How to know that the client can begin.
    pub ready: Ready,
    /// Run once the server is ready; its exit status is that of the whole run.
    pub client: Vec<OsString>,
    /// What the client reads from its standard input.
    pub input: Option<Arc<File>>,
    /// Run when the client is done; without it the server gets SIGTERM.
    pub stop: Option<Vec<OsString>>,
}

/// How to know that a server is ready.
#[derive(Debug, Clone)]
pub enum Ready {
    /// Some process listens on this port of this machine.
    Port(u16),
    /// This file exists, or, if it existed before, has changed. If it is a socket for connections, the server listens on it.
    File(PathBuf),
    /// It has printed a line like this.
    Line(Regex),
}

/// As users write it: `port:N`, `file:PATH` or `line:REGEX`.
impl FromStr for Ready {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("port", port)) => port.parse().map(Ready::Port).map_err(|_| format!("`{port}` is no port")),
            Some(("file", path)) if !path.is_empty() => Ok(Ready::File(path.into())),
            Some(("line", pattern)) => Regex::new(pattern).map(Ready::Line).map_err(|e| e.to_string()),
            _ => Err("write port:N, file:PATH or line:REGEX".into()),
        }
    }
}

impl std::fmt::Display for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ready::Port(port) => write!(f, "port:{port}"),
            Ready::File(path) => write!(f, "file:{}", path.display()),
            Ready::Line(pattern) => write!(f, "line:{pattern}"),
        }
    }
}

/// Signals between the driver and the rest of the sandbox.
#[derive(Debug, Default)]
pub(super) struct Signs {
    /// The line that was waited for has been printed.
    pub(super) line: AtomicBool,
    /// The server was not ready in time.
    pub(super) not_ready: AtomicBool,
    /// The server has ended, or the run has to end now.
    pub(super) over: AtomicBool,
}

/// What failed in the run of a server, if not the server itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerFailure {
    /// It was not ready in time; with what was waited for.
    NotReady(String),
    /// Its client failed.
    Client,
}

/// How long a server may take to start if nothing else bounds the run: a recorded one takes much longer than usual.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// Poll interval for states that are not signalled.
const ROUND: Duration = Duration::from_millis(2);

/// A server that runs.
pub(super) struct Server<'a> {
    pub(super) pid: libc::pid_t,
    pub(super) signs: &'a Signs,
    pub(super) tracees: &'a Tracees,
    pub(super) overlay: &'a Mutex<Overlay>,
    /// The file that signals readiness, as an earlier run left it.
    pub(super) stale: Option<Sign>,
    /// Whether something else bounds the run.
    pub(super) is_timed: bool,
    /// How much of the client's output is kept.
    pub(super) client_output: Output,
    /// Read when the client is done.
    pub(super) clock: Option<&'a AtomicU64>,
}

/// The result of driving a server.
pub(super) struct Driven {
    /// How the client ended.
    pub(super) end: Option<SandboxedEnd>,
    pub(super) output: Vec<u8>,
    /// When the client ended, by the clock.
    pub(super) at: Option<u64>,
}

/// Identifies a file and its state: changes when the file does.
pub(super) type Sign = (u64, u64, i64, i64);

impl Driver {
    /// A driver whose client reads nothing from standard input.
    pub fn new(ready: Ready, client: Vec<OsString>, stop: Option<Vec<OsString>>) -> Self {
        Self { ready, client, input: None, stop }
    }

    /// Waits for the server, lets the client talk to it, and stops it. Nothing if the server ended before the client did.
    pub(super) fn drive(&self, server: &Server<'_>) -> Option<Driven> {
        let since = Instant::now();
        while !self.is_ready(server) {
            if server.is_over() {
                return None;
            }
            if !server.is_timed && since.elapsed() > READY_WITHIN {
                server.signs.not_ready.store(true, Ordering::Release);
            }
            std::thread::sleep(ROUND);
        }
        let talked = server.talk(&self.client, self.input.as_deref(), server.client_output);
        let at = server.clock.map(|clock| clock.load(Ordering::SeqCst));
        // If the server died first, that is the result.
        if server.is_over() {
            return None;
        }
        let stopped = self.stop.as_deref().and_then(|stop| server.talk(stop, None, Output::Tail(0)));
        if stopped.is_none_or(|run| run.end != SandboxedEnd::Exit(0)) {
            server.end();
        }
        let (end, output) = talked.map(|run| (run.end, run.output)).unzip();
        Some(Driven { end, output: output.unwrap_or_default(), at })
    }

    /// The file that signals readiness, as it is before the server starts.
    pub(super) fn stale(&self, overlay: &Overlay) -> Option<Sign> {
        match &self.ready {
            Ready::File(path) => overlay.look_up(path).map(|found| sign(&found)),
            _ => None,
        }
    }

    /// Describes what was waited for in vain.
    pub(super) fn in_vain(&self) -> String {
        let seconds = READY_WITHIN.as_secs();
        match &self.ready {
            Ready::Port(port) => format!("after {seconds} s nobody listens on port {port} of 127.0.0.1"),
            Ready::File(path) => format!("after {seconds} s it has not made {}", path.display()),
            Ready::Line(pattern) => format!("after {seconds} s it has printed no line that matches `{pattern}`"),
        }
    }

    fn is_ready(&self, server: &Server<'_>) -> bool {
        match &self.ready {
            Ready::Port(port) => {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
                TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_ok()
            }
            Ready::File(path) => {
                let Some(found) = server.overlay().look_up(path) else { return false };
                let is_new = Some(sign(&found)) != server.stale;
                let is_deaf = || listening::is_only_bound(path, &server.tracees.others(&[]));
                is_new && !(found.file_type().is_socket() && is_deaf())
            }
            Ready::Line(_) => server.signs.line.load(Ordering::Acquire),
        }
    }
}

fn sign(found: &Metadata) -> Sign {
    (found.dev(), found.ino(), found.ctime(), found.ctime_nsec())
}

/// How long a recorded server may do nothing after it was told to end.
const SILENCE: Duration = Duration::from_secs(1);

impl Server<'_> {
    /// Tells the server to end. A recorded server may miss the signal: DynamoRIO holds it back until the thread leaves DynamoRIO's own
    /// code, and the thread may wait in the kernel by then. A server that does nothing at all is told again.
    fn end(&self) {
        // The supervisor waits for the server and has not reported its end.
        if !self.is_over() {
            send_signal(self.pid, Signal::TERM);
        }
        let (mut since, mut used) = (Instant::now(), waiting::used_by(self.pid));
        while self.clock.is_some() && !self.is_over() {
            std::thread::sleep(ROUND);
            let now = waiting::used_by(self.pid);
            if now != used {
                (since, used) = (Instant::now(), now);
            } else if since.elapsed() > SILENCE && !self.is_over() {
                send_signal(self.pid, Signal::TERM);
                since = Instant::now();
            }
        }
    }

    fn is_over(&self) -> bool {
        self.signs.over.load(Ordering::Acquire)
    }

    fn overlay(&self) -> MutexGuard<'_, Overlay> {
        self.overlay.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Runs a command beside the server, but not longer than the run lasts. Nothing if it could not start or end.
    fn talk(&self, command: &[OsString], input: Option<&File>, output: Output) -> Option<SandboxedRun> {
        let job = SandboxedProgram {
            stop: Some(&self.signs.over),
            beside: Some(self.tracees),
            input,
            output,
            ..SandboxedProgram::new(command)
        };
        let run = super::run(&job, self.overlay, &mut Unwinder::default()).ok()?;
        Some(run).filter(|run| run.end != SandboxedEnd::Interrupted)
    }
}
