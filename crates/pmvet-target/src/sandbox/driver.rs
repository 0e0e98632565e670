//! Servers: a process that does its work only while somebody talks to it, and does not end by itself.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use regex::bytes::Regex;

use super::End;

/// Who talks to a server, when, and how it is told to end.
#[derive(Debug, Clone)]
pub struct Driver {
    pub ready: Ready,
    /// Run once the server is ready; its exit status is that of the whole run.
    pub client: Vec<OsString>,
    /// Run when the client is done; without it the server gets SIGTERM.
    pub stop: Option<Vec<OsString>>,
}

/// How to know that a server can be talked to.
#[derive(Debug, Clone)]
pub enum Ready {
    /// Somebody listens on this port of this machine.
    Port(u16),
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

/// What the driver and the rest of the sandbox tell each other.
#[derive(Debug, Default)]
pub(super) struct Signs {
    /// A line that was waited for has been printed.
    pub(super) line: AtomicBool,
    /// The server has ended.
    pub(super) ended: AtomicBool,
    /// The run is to end now, whatever state it is in.
    pub(super) over: AtomicBool,
}

/// How often a state is looked at that announces itself to nobody.
const ROUND: Duration = Duration::from_millis(2);

impl Driver {
    /// Waits for the server, lets the client talk to it, and stops it. Nothing if the server ended before the client did.
    pub(super) fn drive(&self, server: libc::pid_t, signs: &Signs) -> Option<End> {
        while !self.is_ready(signs) {
            if signs.ended.load(Ordering::Acquire) || signs.over.load(Ordering::Acquire) {
                return None;
            }
            std::thread::sleep(ROUND);
        }
        let mut client = start(&self.client).ok()?;
        let end = wait(&mut client, signs);
        // The server's death is the news, if it came first.
        let end = if signs.ended.load(Ordering::Acquire) { None } else { end };
        if signs.over.load(Ordering::Acquire) {
            return None;
        }
        match self.stop.as_deref().map(start) {
            Some(Ok(mut stop)) => {
                wait(&mut stop, signs);
            }
            // SAFETY: the server is waited for by the supervisor, who has not said that it ended.
            _ => unsafe {
                if !signs.ended.load(Ordering::Acquire) {
                    libc::kill(server, libc::SIGTERM);
                }
            },
        }
        end
    }

    fn is_ready(&self, signs: &Signs) -> bool {
        match &self.ready {
            Ready::Port(port) => {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
                TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_ok()
            }
            Ready::File(path) => path.exists(),
            Ready::Line(_) => signs.line.load(Ordering::Acquire),
        }
    }
}

fn start(command: &[OsString]) -> std::io::Result<Child> {
    let (program, arguments) = command.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    // SAFETY: one system call between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    command.spawn()
}

/// Waits for a command, but not longer than the run lasts.
fn wait(child: &mut Child, signs: &Signs) -> Option<End> {
    use std::os::unix::process::ExitStatusExt;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => {
                return Some(match (status.code(), status.signal()) {
                    (Some(code), _) => End::Exit(code),
                    (None, signal) => End::Signal(signal.unwrap_or(libc::SIGKILL)),
                });
            }
            Ok(None) if !signs.over.load(Ordering::Acquire) && !signs.ended.load(Ordering::Acquire) => {
                std::thread::sleep(ROUND);
            }
            _ => {
                // SAFETY: its own group, which it leads.
                unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
                let _ = child.wait();
                return None;
            }
        }
    }
}
