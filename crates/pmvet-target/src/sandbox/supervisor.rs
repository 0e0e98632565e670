//! The supervisor: sees every system call that names a file before the kernel does, and answers it from the overlay.
//!
//! It is the tracer (`ptrace`) of the process and of everything that starts from it. A seccomp filter picks the calls it is
//! woken for. If pmvet dies, the kernel kills them all (`PTRACE_O_EXITKILL`).

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::filter::{self, Call, PathArgument};
use super::overlay::{Answer, Overlay};
use super::stack::{RawFrame, Unwinder};
use super::tracee::{Registers, Tracee, Tracees, argument, set_argument};

/// Room below the stack pointer that a function may use without saying so.
const RED_ZONE: u64 = 128;

/// How the first process of a sandbox ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Exited(i32),
    Killed(i32),
}

/// A thread of the sandbox.
#[derive(Default)]
struct Thread {
    /// Its first stop, which every new thread makes, is over.
    started: bool,
    /// The registers to put back when its system call returns.
    before: Option<Registers>,
    /// The process it belongs to, once somebody asked.
    process: Option<libc::pid_t>,
}

pub(super) struct Supervisor<'a> {
    overlay: &'a Mutex<Overlay>,
    /// Set from outside: stop the target, have a look where it is, and kill it.
    pub(super) timed_out: &'a AtomicBool,
    /// An exit status that needs no explanation.
    usual_status: Option<i32>,
    first: libc::pid_t,
    threads: HashMap<libc::pid_t, Thread>,
    /// Whoever wants to know which threads there are.
    tracees: Option<&'a Tracees>,
    unwinder: &'a mut Unwinder,
    /// Where the first process was when it failed.
    pub(super) stack: Vec<RawFrame>,
}

impl<'a> Supervisor<'a> {
    pub(super) fn new(
        overlay: &'a Mutex<Overlay>,
        timed_out: &'a AtomicBool,
        unwinder: &'a mut Unwinder,
        usual_status: Option<i32>,
        first: libc::pid_t,
        tracees: Option<&'a Tracees>,
    ) -> Self {
        if let Some(tracees) = tracees {
            tracees.add(first);
        }
        let threads = HashMap::from([(first, Thread { started: true, ..Thread::default() })]);
        Self { overlay, timed_out, usual_status, first, threads, tracees, unwinder, stack: Vec::new() }
    }

    /// Follows the process, which has just been started under ptrace, to its end, and ends what it leaves behind.
    pub(super) fn run(mut self) -> (Status, Vec<RawFrame>) {
        let mut ended = None;
        let mut options_set = false;
        loop {
            let mut status = 0;
            // Only the tracees of this thread: other threads supervise others.
            // SAFETY: the pointer is valid.
            let tid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
            if tid < 0 {
                if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted {
                    continue;
                }
                break;
            }
            if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
                self.threads.remove(&tid);
                if let Some(tracees) = self.tracees {
                    tracees.remove(tid);
                }
                if tid == self.first {
                    ended = Some(match libc::WIFEXITED(status) {
                        true => Status::Exited(libc::WEXITSTATUS(status)),
                        false => Status::Killed(libc::WTERMSIG(status)),
                    });
                    self.kill_all();
                }
                continue;
            }
            let tracee = Tracee { tid };
            if !options_set && tid == self.first {
                options_set = true;
                let options = libc::PTRACE_O_EXITKILL
                    | libc::PTRACE_O_TRACESYSGOOD
                    | libc::PTRACE_O_TRACESECCOMP
                    | libc::PTRACE_O_TRACEFORK
                    | libc::PTRACE_O_TRACEVFORK
                    | libc::PTRACE_O_TRACECLONE
                    | libc::PTRACE_O_TRACEEXEC;
                // SAFETY: the thread is ours and stopped.
                unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, tid, 0, libc::c_long::from(options)) };
                tracee.resume(0);
                continue;
            }
            if self.timed_out.load(Ordering::Acquire) {
                if self.stack.is_empty() {
                    self.stack = self.unwinder.stack(tracee);
                }
                self.kill_all();
                continue;
            }
            if ended.is_some() {
                self.kill_all();
            }
            self.stopped(tracee, status);
        }
        (ended.unwrap_or(Status::Killed(libc::SIGKILL)), self.stack)
    }

    fn kill_all(&self) {
        for &tid in self.threads.keys() {
            // SAFETY: our own tracees; the kernel does not use their ids again before we have waited for them.
            unsafe { libc::kill(tid, libc::SIGKILL) };
        }
    }

    fn stopped(&mut self, tracee: Tracee, status: i32) {
        let signal = libc::WSTOPSIG(status);
        match (signal, status >> 16) {
            (libc::SIGTRAP, libc::PTRACE_EVENT_SECCOMP) => match self.system_call(tracee) {
                Some(before) => {
                    self.threads.entry(tracee.tid).or_default().before = Some(before);
                    tracee.resume_to_return();
                }
                None => tracee.resume(0),
            },
            (libc::SIGTRAP, libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE) => {
                let fresh = tracee.message() as libc::pid_t;
                self.threads.entry(fresh).or_default();
                if let Some(tracees) = self.tracees {
                    tracees.add(fresh);
                }
                tracee.resume(0);
            }
            (libc::SIGTRAP, libc::PTRACE_EVENT_EXEC) => {
                // The thread that called exec takes over the process's id.
                let former = tracee.message() as libc::pid_t;
                if former != tracee.tid {
                    self.threads.remove(&former);
                }
                self.threads.insert(tracee.tid, Thread { started: true, ..Thread::default() });
                tracee.resume(0);
            }
            // A system call returns: the registers that were changed for it go back to what they were.
            (0x85, _) => {
                if let Some(before) = self.threads.entry(tracee.tid).or_default().before.take()
                    && let Ok(mut now) = tracee.registers()
                {
                    let result = (now.rax, now.rip, now.rcx, now.r11, now.eflags);
                    now = before;
                    (now.rax, now.rip, now.rcx, now.r11, now.eflags) = result;
                    let _ = tracee.set_registers(&now);
                }
                tracee.resume(0);
            }
            // The stop that starts every thread comes after, or before, the event that announces it.
            (libc::SIGSTOP, _) if !self.threads.entry(tracee.tid).or_default().started => {
                self.threads.entry(tracee.tid).or_default().started = true;
                tracee.resume(0);
            }
            (_, event) if event != 0 => tracee.resume(0),
            (signal, _) => {
                if is_fault(signal) && self.is_of_first(tracee) && tracee.dies_of(signal) {
                    self.stack = self.unwinder.stack(tracee);
                }
                tracee.resume(signal);
            }
        }
    }

    /// Whether a thread is of the first process.
    fn is_of_first(&mut self, tracee: Tracee) -> bool {
        let known = &mut self.threads.entry(tracee.tid).or_default().process;
        *known.get_or_insert_with(|| tracee.process()) == self.first
    }

    fn overlay(&self) -> MutexGuard<'_, Overlay> {
        self.overlay.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Answers a system call. Returns the registers to restore when it returns, if they were changed.
    fn system_call(&mut self, tracee: Tracee) -> Option<Registers> {
        let before = tracee.registers().ok()?;
        let mut now = before;
        match filter::call(before.orig_rax as i64)? {
            Call::Exit => {
                let status = before.rdi as i32 & 0xff;
                if self.usual_status != Some(status) && self.is_of_first(tracee) {
                    self.stack = self.unwinder.stack(tracee);
                }
                return None;
            }
            Call::Map => {
                // Only a DAX file system grants it; here everything counts as one that does.
                let file = tracee.file(before.r8 as i32).ok()?;
                self.overlay().by_inode(file.dev(), file.ino())?;
                let flags = before.r10 & !(libc::MAP_SYNC as u64) & !(libc::MAP_TYPE as u64);
                now.r10 = flags | libc::MAP_SHARED as u64;
            }
            Call::Lock => {
                let file = tracee.file(before.rdi as i32).ok()?;
                if !file.is_file() || self.overlay().may_lock(file.dev(), file.ino()) {
                    return None;
                }
                skip(&mut now, Ok(()));
            }
            Call::Open { path, flags } => {
                let asked = argument(&before, flags) as i32;
                let named = resolve(tracee, &before, path, asked & libc::O_NOFOLLOW == 0)?;
                let answer = self.overlay().open(&named, asked);
                self.answer(tracee, &mut now, path, answer)?;
                set_argument(&mut now, flags, u64::from(reopen(asked) as u32));
            }
            Call::Create { path } => {
                let asked = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
                let named = resolve(tracee, &before, path, true)?;
                let answer = self.overlay().open(&named, asked);
                self.answer(tracee, &mut now, path, answer)?;
                if now.orig_rax == before.orig_rax {
                    now.orig_rax = libc::SYS_open as u64;
                    now.rsi = (libc::O_WRONLY | libc::O_TRUNC) as u64;
                }
            }
            Call::Open2 { path, how } => {
                let mut flags = [0; 8];
                tracee.read(argument(&before, how), &mut flags).ok()?;
                let asked = u64::from_le_bytes(flags) as i32;
                let named = resolve(tracee, &before, path, asked & libc::O_NOFOLLOW == 0)?;
                let answer = self.overlay().open(&named, asked);
                self.answer(tracee, &mut now, path, answer)?;
                if now.orig_rax == before.orig_rax {
                    // Its rules about paths do not suit the stand-in.
                    now.orig_rax = libc::SYS_openat as u64;
                    now.rdx = u64::from(reopen(asked) as u32);
                }
            }
            Call::Look { path, nofollow } => {
                let follow = nofollow.is_none_or(|n| argument(&before, n) & libc::AT_SYMLINK_NOFOLLOW as u64 == 0);
                let named = resolve(tracee, &before, path, follow)?;
                let answer = self.overlay().look(&named);
                self.answer(tracee, &mut now, path, answer)?;
                if let Some(n) = nofollow {
                    set_argument(&mut now, n, argument(&before, n) & !(libc::AT_SYMLINK_NOFOLLOW as u64));
                }
            }
            Call::LookAtLink { path, followed } => {
                let named = resolve(tracee, &before, path, false)?;
                let answer = self.overlay().look(&named);
                self.answer(tracee, &mut now, path, answer)?;
                if now.orig_rax == before.orig_rax {
                    now.orig_rax = followed as u64;
                }
            }
            Call::Change { path } => {
                let named = resolve(tracee, &before, path, true)?;
                let answer = self.overlay().change(&named);
                self.answer(tracee, &mut now, path, answer)?;
            }
            Call::Unlink { path, flags } => {
                if flags.is_some_and(|n| argument(&before, n) & libc::AT_REMOVEDIR as u64 != 0) {
                    return None;
                }
                let named = resolve(tracee, &before, path, false)?;
                let result = self.overlay().unlink(&named)?;
                skip(&mut now, result);
            }
            Call::Rename { from, to, flags } => {
                let (from, to) = (resolve(tracee, &before, from, false)?, resolve(tracee, &before, to, false)?);
                let flags = flags.map_or(0, |n| argument(&before, n));
                let result = self.overlay().rename(&from, &to, flags)?;
                skip(&mut now, result);
            }
            Call::Link { from, to } => {
                let (from, to) = (resolve(tracee, &before, from, true)?, resolve(tracee, &before, to, false)?);
                let result = self.overlay().link(&from, &to)?;
                skip(&mut now, result);
            }
        }
        tracee.set_registers(&now).ok()?;
        Some(before)
    }

    /// Puts the stand-in's path, or the error, into the call. Nothing if the call is to go on as it is.
    fn answer(&self, tracee: Tracee, now: &mut Registers, path: PathArgument, answer: Answer) -> Option<()> {
        match answer {
            Answer::Real => return None,
            Answer::Error(errno) => skip(now, Err(errno)),
            Answer::Instead(file) => {
                let text = format!("/proc/{}/fd/{}\0", std::process::id(), file.as_raw_fd());
                let room = (now.rsp - RED_ZONE - text.len() as u64) & !15;
                tracee.write(room, text.as_bytes()).ok()?;
                set_argument(now, path.path, room);
            }
        }
        Some(())
    }
}

/// Makes the kernel do nothing, and the program see this result.
fn skip(now: &mut Registers, result: Result<(), i32>) {
    now.orig_rax = u64::MAX;
    now.rax = match result {
        Ok(()) => 0,
        Err(errno) => i64::from(-errno) as u64,
    };
}

/// The flags to open a stand-in with, which exists and is reached through a link.
fn reopen(flags: i32) -> i32 {
    flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_DIRECT)
}

/// Signals that a process gets for what it did.
fn is_fault(signal: i32) -> bool {
    use libc::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP, SIGXFSZ};
    [SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP, SIGXFSZ].contains(&signal)
}

/// The full path that a call means, with the symbolic links on the way resolved.
fn resolve(tracee: Tracee, registers: &Registers, place: PathArgument, follow: bool) -> Option<PathBuf> {
    let named = tracee.string(argument(registers, place.path)).ok()?;
    if named.as_os_str().is_empty() {
        return None;
    }
    let full = if named.is_absolute() {
        named
    } else {
        tracee.folder(place.dir.map(|n| argument(registers, n) as i32)).ok()?.join(named)
    };
    canonical(&full, follow)
}

/// The path without symbolic links and dots, whether or not the last part exists.
pub fn canonical(path: &Path, follow: bool) -> Option<PathBuf> {
    if follow && let Ok(found) = path.canonicalize() {
        return Some(found);
    }
    let name = path.file_name()?;
    Some(path.parent()?.canonicalize().ok()?.join(name))
}
