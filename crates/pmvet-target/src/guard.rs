//! The guard: a small process between pmvet and the target that outlives both.
//!
//! It is the target's parent and adopts the target's orphans. It ends when all of them have ended, and if pmvet dies, even by
//! `kill -9`, it kills them first. pmvet starts itself again with a hidden command to become the guard, so the guard
//! has none of pmvet's threads and locks.

use std::ffi::{CString, OsString};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;

/// The hidden command of pmvet that becomes the guard.
pub const COMMAND: &str = "__guard";

/// What the guard reports about the target's first process: the raw wait status, or why it could not be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GuardReport {
    /// It runs, as this process.
    Started(u32),
    /// It has ended, with this status as `waitpid` gives it.
    Ended(i32),
    /// The kernel refused, with this error number.
    NotStarted(i32),
}

impl GuardReport {
    pub(crate) const BYTES: usize = 5;

    fn bytes(self) -> [u8; Self::BYTES] {
        let (tag, value) = match self {
            GuardReport::Started(pid) => (0, pid as i32),
            GuardReport::Ended(status) => (1, status),
            GuardReport::NotStarted(errno) => (2, errno),
        };
        let [a, b, c, d] = value.to_le_bytes();
        [tag, a, b, c, d]
    }

    pub(crate) fn from_bytes(bytes: [u8; Self::BYTES]) -> Option<Self> {
        let [tag, a, b, c, d] = bytes;
        let value = i32::from_le_bytes([a, b, c, d]);
        match tag {
            0 => Some(GuardReport::Started(value as u32)),
            1 => Some(GuardReport::Ended(value)),
            2 => Some(GuardReport::NotStarted(value)),
            _ => None,
        }
    }
}

/// The guard's whole life. `arguments`: pmvet's process id, the descriptor for reports, whether addresses are fixed, how
/// many variables to add to the environment, those variables, then executable and arguments of the target. Returns
/// the guard's exit status.
pub fn run(arguments: &[OsString]) -> i32 {
    let number = |i: usize| arguments.get(i)?.to_str()?.parse::<i32>().ok();
    let (Some(pmvet), Some(fd), Some(fixed_addresses), Some(variables)) = (number(0), number(1), number(2), number(3))
    else {
        return 2;
    };
    let Some((added, command)) = arguments[4..].split_at_checked(variables as usize) else { return 2 };
    let Some(target) = Target::new(command, added) else { return 2 };
    // SAFETY: pmvet passes a descriptor that belongs to nobody else in this process.
    let mut reports = unsafe { std::fs::File::from_raw_fd(fd) };

    // SAFETY: plain system calls with constant arguments.
    unsafe {
        libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
        libc::prctl(libc::PR_SET_NAME, c"pmvet-guard".as_ptr());
    }
    // Signals are taken one by one below: none may end the guard before the target has ended.
    let Ok(mask) = Signals::block() else { return 2 };
    // SAFETY: no arguments.
    if unsafe { libc::getppid() } != pmvet {
        return 1;
    }
    let first = match target.start(mask, fixed_addresses != 0) {
        Ok(pid) => pid,
        Err(errno) => {
            let _ = reports.write_all(&GuardReport::NotStarted(errno).bytes());
            return 1;
        }
    };
    let _ = reports.write_all(&GuardReport::Started(first as u32).bytes());
    loop {
        let signal = mask.wait();
        // SAFETY: no arguments.
        let orphaned = unsafe { libc::getppid() } != pmvet;
        if signal == libc::SIGTERM || orphaned {
            kill_descendants(first, &mut reports);
        }
        loop {
            let mut status = 0;
            // SAFETY: the pointer is valid.
            match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
                0 => break,
                -1 => return 0,
                pid if pid == first => {
                    let _ = reports.write_all(&GuardReport::Ended(status).bytes());
                }
                _ => {}
            }
        }
    }
}

/// What the guard starts, in the form that the kernel takes. The environment is passed on exactly as it came, order and
/// oddities included, which `std::process::Command` does not do.
struct Target {
    executable: CString,
    arguments: Vec<CString>,
    added: Vec<CString>,
}

impl Target {
    fn new(command: &[OsString], added: &[OsString]) -> Option<Self> {
        let strings = |words: &[OsString]| -> Option<Vec<CString>> {
            words.iter().map(|word| CString::new(word.as_bytes()).ok()).collect()
        };
        let (executable, arguments) = command.split_first()?;
        let executable = CString::new(executable.as_bytes()).ok()?;
        Some(Self { executable, arguments: strings(arguments)?, added: strings(added)? })
    }

    /// Starts it. Returns its process id, or the error number of what failed.
    fn start(&self, mask: Signals, fixed_addresses: bool) -> Result<libc::pid_t, i32> {
        let pointers =
            |strings: &[CString]| -> Vec<*const libc::c_char> { strings.iter().map(|s| s.as_ptr()).collect() };
        let mut arguments = pointers(&self.arguments);
        arguments.push(std::ptr::null());
        let mut environment = inherited_environment();
        environment.extend(pointers(&self.added));
        environment.push(std::ptr::null());
        let (mut failed, report) = io::pipe().map_err(|e| e.raw_os_error().unwrap_or(0))?;
        // SAFETY: the guard has one thread; the child makes system calls only, on memory prepared above.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(errno()),
            0 => {
                let restored = mask.restore();
                // SAFETY: as above; both arrays end with a null pointer.
                unsafe {
                    // Rust's runtime ignores SIGPIPE, which the target would inherit.
                    libc::signal(libc::SIGPIPE, libc::SIG_DFL);
                    if fixed_addresses {
                        libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
                    }
                    if restored.is_ok() {
                        libc::execve(self.executable.as_ptr(), arguments.as_ptr(), environment.as_ptr());
                    }
                    let errno = errno().to_le_bytes();
                    libc::write(report.as_raw_fd(), errno.as_ptr().cast(), errno.len());
                    libc::_exit(127)
                }
            }
            pid => {
                drop(report);
                let mut errno = [0; 4];
                match failed.read_exact(&mut errno) {
                    Ok(()) => Err(i32::from_le_bytes(errno)),
                    // Closed by a successful exec.
                    Err(_) => Ok(pid),
                }
            }
        }
    }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// The variables this process was started with.
fn inherited_environment() -> Vec<*const libc::c_char> {
    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }
    let mut variables = Vec::new();
    // SAFETY: the C library's array of pointers, which a null pointer ends; nobody changes it.
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            variables.push(*at);
            at = at.add(1);
        }
    }
    variables
}

/// Kills all descendants of this process, including those just being created.
fn kill_descendants(first: libc::pid_t, reports: &mut std::fs::File) {
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
                let mut status = 0;
                if libc::waitpid(pid, &raw mut status, 0) == first {
                    let _ = reports.write_all(&GuardReport::Ended(status).bytes());
                }
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
