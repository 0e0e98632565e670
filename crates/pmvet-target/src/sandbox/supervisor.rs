//! The supervisor: sees every system call that names a file before the kernel does, and answers it from the overlay.
//!
//! It is the tracer (`ptrace`) of the process and of everything that starts from it. A seccomp filter picks the calls that
//! wake it. If pmvet dies, the kernel kills them all (`PTRACE_O_EXITKILL`).

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard};

use rustix::process::Signal;

use super::filter::{self, Call, PathArgument, Target};
use super::listing::{ListedAs, Listing, Told};
use super::naming::{self, Decision};
use super::network;
use super::overlay::{Answer, CallEffect, Overlay};
use super::stack::{RawFrame, Unwinder};
use super::tracee::{Tracee, TraceeRegisters, Tracees, argument, send_signal, set_argument};

/// Bytes below the stack pointer that a function may use without reserving them.
const RED_ZONE: u64 = 128;
/// The length of the instruction that calls the kernel.
const SYSCALL: u64 = 2;

/// How the first process of a sandbox ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Exited(i32),
    Killed(i32),
}

/// Whether a sandbox has to end.
pub(super) mod ending {
    /// Not yet.
    pub(in super::super) const NO: u8 = 0;
    /// As soon as the target's stack was read.
    pub(in super::super) const LOOK: u8 = 1;
    /// At once.
    pub(in super::super) const KILL: u8 = 2;
}

/// A thread of the sandbox.
#[derive(Default)]
struct Thread {
    /// The registers to put back when its system call returns.
    before: Option<TraceeRegisters>,
    /// How the overlay changes if the call succeeds.
    effect: Option<CallEffect>,
    /// A folder that it lists.
    listing: Option<Listing>,
    /// The process it belongs to, once looked up.
    process: Option<libc::pid_t>,
}

/// The parts of a sandbox, for the supervisor of one of them.
#[derive(Clone, Copy)]
pub(super) struct Sandbox<'a> {
    pub(super) overlay: &'a Mutex<Overlay>,
    /// The threads of this part, published for others.
    pub(super) tracees: &'a Tracees,
    /// Those of another part.
    pub(super) beside: Option<&'a Tracees>,
}

pub(super) struct Supervisor<'a> {
    sandbox: Sandbox<'a>,
    /// Set from outside, see [`ending`].
    ending: &'a AtomicU8,
    /// Threads that stopped before the event that announces them.
    early: HashSet<libc::pid_t>,
    /// An exit status that needs no explanation.
    usual_status: Option<i32>,
    first: libc::pid_t,
    threads: HashMap<libc::pid_t, Thread>,
    unwinder: &'a mut Unwinder,
    /// The stack of the first process when it failed.
    pub(super) stack: Vec<RawFrame>,
    told: Told,
    /// Why it can no longer be supervised.
    failure: Option<io::Error>,
}

/// How a system call goes on.
enum CallVerdict {
    /// It goes on as it is.
    Pass,
    /// It goes on with other registers, and has an effect here if it succeeds.
    Changed(Box<TraceeRegisters>, Option<CallEffect>),
    /// It goes on, and its listing is corrected afterwards.
    Listed(Listing),
}

impl<'a> Supervisor<'a> {
    pub(super) fn new(
        sandbox: Sandbox<'a>,
        ending: &'a AtomicU8,
        unwinder: &'a mut Unwinder,
        usual_status: Option<i32>,
        first: libc::pid_t,
    ) -> Self {
        sandbox.tracees.add(first);
        let threads = HashMap::from([(first, Thread::default())]);
        let early = HashSet::new();
        Self {
            sandbox,
            ending,
            early,
            usual_status,
            first,
            threads,
            unwinder,
            stack: Vec::new(),
            told: Told::default(),
            failure: None,
        }
    }

    /// Follows the process, which is stopped where its program starts, to its end, and kills what it leaves behind.
    pub(super) fn run(mut self) -> io::Result<(Status, Vec<RawFrame>)> {
        let mut ended = None;
        let mut all_killed = false;
        let first = Tracee { tid: self.first };
        let options = libc::PTRACE_O_EXITKILL
            | libc::PTRACE_O_TRACESYSGOOD
            | libc::PTRACE_O_TRACESECCOMP
            | libc::PTRACE_O_TRACEFORK
            | libc::PTRACE_O_TRACEVFORK
            | libc::PTRACE_O_TRACECLONE
            | libc::PTRACE_O_TRACEEXEC;
        // SAFETY: the thread is ours and stopped.
        unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, first.tid, 0, libc::c_long::from(options)) };
        first.resume(0);
        loop {
            let mut status = 0;
            // Only the tracees of this thread: other threads supervise others.
            // SAFETY: the pointer is valid.
            let tid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
            if tid < 0 {
                if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                break;
            }
            if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
                self.threads.remove(&tid);
                self.sandbox.tracees.remove(tid);
                if tid == self.first {
                    ended = Some(match libc::WIFEXITED(status) {
                        true => Status::Exited(libc::WEXITSTATUS(status)),
                        false => Status::Killed(libc::WTERMSIG(status)),
                    });
                    all_killed = true;
                    self.kill_all();
                }
                continue;
            }
            let tracee = Tracee { tid };
            let how = self.ending.load(Ordering::Acquire);
            if how != ending::NO || ended.is_some() {
                if how == ending::LOOK && ended.is_none() && !all_killed {
                    self.stack = self.unwinder.stack(tracee);
                }
                if !all_killed {
                    all_killed = true;
                    self.kill_all();
                }
                // New threads die at their first stop from now on, so their number does not grow.
                kill(tid);
                continue;
            }
            self.stopped(tracee, status);
        }
        match self.failure {
            Some(error) => Err(error),
            None => Ok((ended.unwrap_or(Status::Killed(libc::SIGKILL)), self.stack)),
        }
    }

    fn kill_all(&self) {
        self.threads.keys().copied().for_each(kill);
    }

    fn add(&mut self, tid: libc::pid_t) {
        self.threads.entry(tid).or_default();
        self.sandbox.tracees.add(tid);
    }

    fn stopped(&mut self, tracee: Tracee, status: i32) {
        let signal = libc::WSTOPSIG(status);
        match (signal, status >> 16) {
            (libc::SIGTRAP, libc::PTRACE_EVENT_SECCOMP) => self.called(tracee),
            (libc::SIGTRAP, libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE) => {
                let fresh = tracee.message() as libc::pid_t;
                // 0 if it was just killed.
                if fresh > 0 && !self.early.remove(&fresh) {
                    self.add(fresh);
                }
                tracee.resume(0);
            }
            (libc::SIGTRAP, libc::PTRACE_EVENT_EXEC) => {
                // The thread that called exec takes over the process's id.
                let former = tracee.message() as libc::pid_t;
                if former != tracee.tid {
                    self.threads.remove(&former);
                }
                self.threads.insert(tracee.tid, Thread::default());
                tracee.resume(0);
            }
            // A system call returns: the registers that were changed for it go back to what they were.
            (0x85, _) => {
                let thread = self.threads.entry(tracee.tid).or_default();
                if let Some(listing) = thread.listing.take() {
                    return match self.listed(tracee, listing) {
                        Ok(()) => tracee.resume(0),
                        Err(error) => self.fail(tracee, error),
                    };
                }
                let effect = thread.effect.take();
                if let Some(before) = thread.before.take()
                    && let Ok(mut now) = tracee.registers()
                {
                    if let Some(effect) = effect.filter(|_| now.rax == 0) {
                        self.overlay().apply(effect);
                    }
                    let result = (now.rax, now.rip, now.rcx, now.r11, now.eflags);
                    now = before;
                    (now.rax, now.rip, now.rcx, now.r11, now.eflags) = result;
                    let _ = tracee.set_registers(&now);
                }
                tracee.resume(0);
            }
            // The stop that starts every thread comes after, or before, the event that announces it, which never comes if the parent is
            // killed.
            (_, libc::PTRACE_EVENT_STOP) => {
                if !self.threads.contains_key(&tracee.tid) {
                    self.early.insert(tracee.tid);
                    self.add(tracee.tid);
                }
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

    /// A call that lists a folder returns.
    fn listed(&mut self, tracee: Tracee, listing: Listing) -> io::Result<()> {
        let mut now = tracee.registers()?;
        let Ok(bytes) = usize::try_from(now.rax as i64) else { return Ok(()) };
        match listing.finish(tracee, bytes, &mut self.told)? {
            ListedAs::AsItIs => return Ok(()),
            ListedAs::Bytes(bytes) => now.rax = bytes as u64,
            ListedAs::Again => {
                now.rip -= SYSCALL;
                now.rax = now.orig_rax;
            }
        }
        tracee.set_registers(&now)
    }

    /// Whether a thread is of the first process.
    fn is_of_first(&mut self, tracee: Tracee) -> bool {
        let known = &mut self.threads.entry(tracee.tid).or_default().process;
        *known.get_or_insert_with(|| tracee.process()) == self.first
    }

    fn overlay(&self) -> MutexGuard<'_, Overlay> {
        self.sandbox.overlay.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Handles a system call that the filter picked. If it cannot be examined, the sandbox ends before the call happens.
    fn called(&mut self, tracee: Tracee) {
        let result = tracee.registers().and_then(|before| Ok((before, self.system_call(tracee, &before)?)));
        match result {
            Ok((_, CallVerdict::Pass)) => tracee.resume(0),
            Ok((_, CallVerdict::Listed(listing))) => {
                self.threads.entry(tracee.tid).or_default().listing = Some(listing);
                tracee.resume_to_return();
            }
            Ok((before, CallVerdict::Changed(now, effect))) => match tracee.set_registers(&now) {
                Ok(()) => {
                    let thread = self.threads.entry(tracee.tid).or_default();
                    (thread.before, thread.effect) = (Some(before), effect);
                    tracee.resume_to_return();
                }
                Err(error) => self.fail(tracee, error),
            },
            Err(error) => self.fail(tracee, error),
        }
    }

    fn fail(&mut self, tracee: Tracee, error: io::Error) {
        // ESRCH: another process has killed it meanwhile.
        if error.raw_os_error() != Some(libc::ESRCH) {
            self.failure.get_or_insert(error);
        }
        self.kill_all();
        tracee.resume(0);
    }

    /// Decides on a system call.
    fn system_call(&mut self, tracee: Tracee, before: &TraceeRegisters) -> io::Result<CallVerdict> {
        let Some((call, name)) = filter::call(before.orig_rax as i64) else { return Ok(CallVerdict::Pass) };
        let mut now = *before;
        let decided = |now: TraceeRegisters| Ok(CallVerdict::Changed(Box::new(now), None));
        match call {
            Call::Exit => {
                let status = before.rdi as i32 & 0xff;
                if self.usual_status != Some(status) && self.is_of_first(tracee) {
                    self.stack = self.unwinder.stack(tracee);
                }
                Ok(CallVerdict::Pass)
            }
            Call::Map => {
                // Only a DAX file system grants it; here everything counts as one that does.
                let Ok(file) = tracee.file(before.r8 as i32) else { return Ok(CallVerdict::Pass) };
                let overlay = self.overlay();
                if overlay.view().is_none() && !overlay.is_own(file.dev(), file.ino()) || !file.is_file() {
                    return Ok(CallVerdict::Pass);
                }
                let flags = before.r10 & !(libc::MAP_SYNC as u64) & !(libc::MAP_TYPE as u64);
                now.r10 = flags | libc::MAP_SHARED as u64;
                decided(now)
            }
            Call::Lock => {
                let Ok(file) = tracee.file(before.rdi as i32) else { return Ok(CallVerdict::Pass) };
                if !file.is_file() || self.overlay().may_lock(file.dev(), file.ino()) {
                    return Ok(CallVerdict::Pass);
                }
                skip(&mut now, Ok(()));
                decided(now)
            }
            Call::List => {
                let overlay = self.overlay();
                if overlay.view().is_some() {
                    overlay.sync_placeholders();
                    return Ok(CallVerdict::Pass);
                }
                let Ok(folder) = tracee.folder(Some(before.rdi as i32)) else { return Ok(CallVerdict::Pass) };
                let differences = overlay.differences(&folder);
                drop(overlay);
                Ok(match differences.is_empty() {
                    true => CallVerdict::Pass,
                    false => CallVerdict::Listed(Listing::new(tracee, before, differences, &mut self.told)),
                })
            }
            Call::Never | Call::Shared => self.refused(name, None, now),
            // From another user namespace, a process could open neither stand-ins nor event rings of pmvet.
            Call::Namespaces { pointed } => match wants_user_namespace(tracee, before.rdi, pointed)? {
                true => self.refused(name, None, now),
                false => Ok(CallVerdict::Pass),
            },
            _ if filter::names_owner(before.orig_rax as i64, argument(before, 1) as u32) => {
                self.refused(name, None, now)
            }
            Call::Signal { signal: Some(n), .. } if argument(before, n) as i32 == 0 => Ok(CallVerdict::Pass),
            Call::Signal { target, of, .. } => match self.is_own(tracee, argument(before, target) as i32, of) {
                true => Ok(CallVerdict::Pass),
                false => self.refused(name, None, now),
            },
            Call::Address { binds, address, length } => {
                let found = network::address(tracee, argument(before, address), argument(before, length))?;
                self.address(tracee, name, binds, found, now)
            }
            Call::Message => {
                let found = network::message(tracee, before.rsi)?;
                self.address(tracee, name, false, found, now)
            }
            Call::ChangeOpen { fd } => self.change_open(tracee, name, argument(before, fd) as i32, now),
            // Changes the times of an open file.
            Call::Change { path: PathArgument { dir: Some(dir), path } } if argument(before, path) == 0 => {
                self.change_open(tracee, name, argument(before, dir) as i32, now)
            }
            _ => {
                let decision = naming::decide(tracee, &mut now, call, &mut self.overlay())?;
                match decision {
                    Some(decision) => self.answer(tracee, name, now, decision),
                    None => Ok(CallVerdict::Pass),
                }
            }
        }
    }

    /// Handles a change of the metadata of an open file.
    fn change_open(
        &mut self,
        tracee: Tracee,
        name: &'static str,
        fd: i32,
        now: TraceeRegisters,
    ) -> io::Result<CallVerdict> {
        let Ok(file) = tracee.file(fd) else { return Ok(CallVerdict::Pass) };
        let overlay = self.overlay();
        let kind = file.file_type();
        // Pipes, sockets and unnamed memory are private anyway.
        let is_named = |path: &PathBuf| path.is_absolute() && !path.starts_with("/memfd:");
        let Some(path) = tracee.folder(Some(fd)).ok().filter(is_named) else { return Ok(CallVerdict::Pass) };
        if overlay.is_own(file.dev(), file.ino()) || !kind.is_file() && !kind.is_dir() && name != "ioctl" {
            return Ok(CallVerdict::Pass);
        }
        let answer = match name {
            // A view could not keep this private.
            "ioctl" if !kind.is_file() && !kind.is_dir() => Answer::Refused,
            _ => overlay.change_view("/".as_ref()),
        };
        drop(overlay);
        match answer {
            Answer::Refused => self.refused(name, Some(path), now),
            _ => Ok(CallVerdict::Pass),
        }
    }

    fn address(
        &mut self,
        tracee: Tracee,
        name: &'static str,
        binds: bool,
        address: network::Address,
        mut now: TraceeRegisters,
    ) -> io::Result<CallVerdict> {
        match address {
            network::Address::File(path) if binds => {
                let path = tracee.folder(None).unwrap_or_default().join(path);
                match self.overlay().change_view(&path) {
                    Answer::Real => Ok(CallVerdict::Pass),
                    _ => self.refused(name, Some(path), now),
                }
            }
            network::Address::Abstract(name) if binds => {
                self.overlay().add_socket(name);
                Ok(CallVerdict::Pass)
            }
            // In a view the kernel connects only sockets that were made in it.
            network::Address::File(_) if self.overlay().view().is_some() => Ok(CallVerdict::Pass),
            network::Address::Abstract(name) if self.overlay().has_socket(&name) => Ok(CallVerdict::Pass),
            // Services of the machine, such as a log or a name server, do not exist in a sandbox.
            network::Address::File(_) | network::Address::Abstract(_) => {
                skip(&mut now, Err(libc::ECONNREFUSED));
                Ok(CallVerdict::Changed(Box::new(now), None))
            }
            network::Address::Elsewhere if !binds => self.refused(name, None, now),
            _ => Ok(CallVerdict::Pass),
        }
    }

    /// Whether a signal goes to a process of this sandbox.
    fn is_own(&self, tracee: Tracee, target: i32, of: Target) -> bool {
        match (of, target) {
            // Its session has only groups of the sandbox.
            (Target::Process, 0) => true,
            (Target::Process, -1) => false,
            (Target::Process, group) if group < 0 => {
                // SAFETY: asks about processes that may be gone.
                let in_group = |&tid: &libc::pid_t| unsafe { libc::getpgid(tid) } == -group;
                self.threads.keys().any(in_group)
                    || self.sandbox.beside.is_some_and(|beside| beside.others(&[]).iter().any(in_group))
            }
            (Target::Descriptor, fd) => {
                let about = std::fs::read_to_string(format!("/proc/{}/fdinfo/{fd}", tracee.tid)).unwrap_or_default();
                let process = about.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
                process.is_none_or(|process| self.is_own(tracee, process, Target::Thread))
            }
            // A process that is gone gets no signal.
            (_, tid) => {
                self.threads.contains_key(&tid)
                    || self.sandbox.beside.is_some_and(|beside| beside.contains(tid))
                    || tracee.shares_sandbox_with(tid)
                    || !std::path::Path::new(&format!("/proc/{tid}")).exists()
            }
        }
    }

    /// The program gets an error, and the user is told, once for each call.
    fn refused(&self, name: &'static str, path: Option<PathBuf>, mut now: TraceeRegisters) -> io::Result<CallVerdict> {
        super::say_refused(name, path.as_deref());
        skip(&mut now, Err(libc::EPERM));
        Ok(CallVerdict::Changed(Box::new(now), None))
    }

    /// Puts the stand-in's path, or the result, into the call.
    fn answer(
        &self,
        tracee: Tracee,
        name: &'static str,
        mut now: TraceeRegisters,
        Decision { place, answer, effect }: Decision,
    ) -> io::Result<CallVerdict> {
        match answer {
            Answer::Real if effect.is_none() => return Ok(CallVerdict::Pass),
            Answer::Real => {}
            Answer::Refused => {
                let folder = tracee.folder(place.dir.map(|dir| argument(&now, dir) as i32)).unwrap_or_default();
                let path = tracee.string(argument(&now, place.path)).ok().map(|path| folder.join(path));
                return self.refused(name, path, now);
            }
            Answer::Done => skip(&mut now, Ok(())),
            Answer::Error(errno) => skip(&mut now, Err(errno)),
            Answer::Instead(file) => {
                let text = format!("/proc/{}/fd/{}\0", std::process::id(), file.as_raw_fd());
                let room = (now.rsp - RED_ZONE - text.len() as u64) & !15;
                tracee.write(room, text.as_bytes())?;
                set_argument(&mut now, place.path, room);
            }
        }
        Ok(CallVerdict::Changed(Box::new(now), effect))
    }
}

/// Whether a call asks for a user namespace, by flags in its first argument, or at the address in it.
fn wants_user_namespace(tracee: Tracee, argument: u64, pointed: bool) -> io::Result<bool> {
    let mut flags = argument.to_ne_bytes();
    if pointed {
        match tracee.read(argument, &mut flags) {
            Ok(read) if read == flags.len() => {}
            // The kernel cannot read them either.
            Ok(_) => return Ok(false),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EFAULT | libc::EIO)) => return Ok(false),
            Err(e) => return Err(e),
        }
    }
    Ok(u64::from_ne_bytes(flags) & libc::CLONE_NEWUSER as u64 != 0)
}

/// Makes the kernel do nothing, and the program see this result.
fn skip(now: &mut TraceeRegisters, result: Result<(), i32>) {
    now.orig_rax = u64::MAX;
    now.rax = match result {
        Ok(()) => 0,
        Err(errno) => i64::from(-errno) as u64,
    };
}

fn kill(tid: libc::pid_t) {
    // A tracee of ours; the kernel does not use its id again before we have waited for it.
    send_signal(tid, Signal::KILL);
}

/// Signals that a process gets for its own faults.
pub(super) fn is_fault(signal: i32) -> bool {
    use libc::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP, SIGXFSZ};
    [SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP, SIGXFSZ].contains(&signal)
}
