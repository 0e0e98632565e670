//! The guard: a small process between pmvet and the target that outlives both.
//!
//! It is the target's parent and adopts the target's orphans. It ends when all of them have ended, and if pmvet dies, even by
//! `kill -9`, it kills them first. pmvet starts itself again under a hidden command to become the guard, so it
//! has none of pmvet's threads and locks.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::FromRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The hidden command of pmvet that becomes the guard.
pub const COMMAND: &str = "__guard";

/// What the guard reports about the target's first process: the raw wait status, or why it could not be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    Started(u32),
    Ended(i32),
    NotStarted(i32),
}

impl Report {
    pub(crate) const BYTES: usize = 5;

    fn bytes(self) -> [u8; Self::BYTES] {
        let (tag, value) = match self {
            Report::Started(pid) => (0, pid as i32),
            Report::Ended(status) => (1, status),
            Report::NotStarted(errno) => (2, errno),
        };
        let [a, b, c, d] = value.to_le_bytes();
        [tag, a, b, c, d]
    }

    pub(crate) fn from_bytes(bytes: [u8; Self::BYTES]) -> Option<Self> {
        let [tag, a, b, c, d] = bytes;
        let value = i32::from_le_bytes([a, b, c, d]);
        match tag {
            0 => Some(Report::Started(value as u32)),
            1 => Some(Report::Ended(value)),
            2 => Some(Report::NotStarted(value)),
            _ => None,
        }
    }
}

/// The guard's whole life. `arguments`: pmvet's process id, the descriptor for reports, flags, then executable and
/// arguments of the target. Returns the guard's exit status.
pub fn run(arguments: &[OsString]) -> i32 {
    let number = |i: usize| arguments.get(i)?.to_str()?.parse::<i32>().ok();
    let (Some(pmvet), Some(fd), Some(fixed_addresses)) = (number(0), number(1), number(2)) else { return 2 };
    let Some((executable, names)) = arguments.get(3..).and_then(|rest| rest.split_first()) else { return 2 };
    // SAFETY: pmvet passes a descriptor that belongs to nobody else in this process.
    let mut reports = unsafe { std::fs::File::from_raw_fd(fd) };

    // SAFETY: plain system calls with constant arguments.
    unsafe {
        libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
        libc::prctl(libc::PR_SET_NAME, c"pmvet-guard".as_ptr());
    }
    // Signals are taken one by one below, none may end the guard before the target has ended.
    let mask = match Signals::block() {
        Ok(mask) => mask,
        Err(_) => return 2,
    };
    // SAFETY: no arguments.
    if unsafe { libc::getppid() } != pmvet {
        return 1;
    }
    let mut command = Command::new(executable);
    if let Some((name, rest)) = names.split_first() {
        command.arg0(name).args(rest);
    }
    // SAFETY: only system calls between fork and exec.
    unsafe {
        command.pre_exec(move || {
            mask.restore()?;
            if fixed_addresses != 0 {
                libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
            }
            Ok(())
        });
    }
    let first = match command.spawn() {
        Ok(child) => child.id(),
        Err(e) => {
            let _ = reports.write_all(&Report::NotStarted(e.raw_os_error().unwrap_or(0)).bytes());
            return 1;
        }
    };
    let _ = reports.write_all(&Report::Started(first).bytes());
    loop {
        let signal = mask.wait();
        // SAFETY: no arguments.
        let orphaned = unsafe { libc::getppid() } != pmvet;
        if signal == libc::SIGTERM || orphaned {
            kill_descendants();
        }
        loop {
            let mut status = 0;
            // SAFETY: the pointer is valid.
            match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
                0 => break,
                -1 => return 0,
                pid if pid as u32 == first => {
                    let _ = reports.write_all(&Report::Ended(status).bytes());
                }
                _ => {}
            }
        }
    }
}

/// Kills every process below this one, those that are being made included.
fn kill_descendants() {
    loop {
        let children = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
        let mut left: Vec<i32> = children.split_whitespace().filter_map(|p| p.parse().ok()).collect();
        if left.is_empty() {
            return;
        }
        // SAFETY: signals and waits for our own children; orphans of theirs become ours and come next.
        unsafe {
            for pid in left.drain(..) {
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, std::ptr::null_mut(), 0);
            }
        }
    }
}

/// The signals the guard waits for, and the mask it had before.
#[derive(Clone, Copy)]
struct Signals {
    taken: libc::sigset_t,
    before: libc::sigset_t,
}

impl Signals {
    fn block() -> io::Result<Self> {
        // SAFETY: all-zero sets are initialised by sigemptyset; pointers are valid.
        unsafe {
            let mut taken: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut taken);
            for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGPIPE] {
                libc::sigaddset(&raw mut taken, signal);
            }
            if libc::sigprocmask(libc::SIG_BLOCK, &raw const taken, &raw mut before) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self { taken, before })
        }
    }

    fn restore(&self) -> io::Result<()> {
        // SAFETY: the set is initialised.
        match unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn wait(&self) -> i32 {
        // SAFETY: the set is initialised.
        unsafe { libc::sigwaitinfo(&raw const self.taken, std::ptr::null_mut()) }
    }
}
