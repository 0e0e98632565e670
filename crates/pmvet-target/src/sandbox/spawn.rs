//! Starts the first process of a sandbox.
//!
//! `std` forks to run code of ours before a program starts, and a fork copies the tables of all memory of pmvet, for the program to throw
//! away: with a trace and its images in memory that takes longer than most recoveries. Here the new process borrows
//! pmvet's memory, as in `posix_spawn`, which has no place for such code: the calling thread waits until the program has started.

use std::ffi::{CString, OsStr, OsString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::ptr;

use super::filter::Filter;

/// A program to start, as its own group of processes, stopped once it has started, traced by the calling thread.
pub(super) struct Spawn<'a> {
    /// Found in `PATH` if its name has no slash.
    pub(super) executable: &'a OsStr,
    pub(super) arguments: &'a [OsString],
    /// Variables to set besides the inherited ones.
    pub(super) variables: &'a [(OsString, OsString)],
    pub(super) input: OwnedFd,
    /// Standard output and error, if not pmvet's own.
    pub(super) output: Option<OwnedFd>,
    /// How much memory of its own it may have.
    pub(super) most_memory: Option<u64>,
}

/// Room for what the child calls: the C library builds paths and arguments on the stack.
const STACK: usize = 1 << 18;

/// What the child works with. Nothing here is allocated or freed by it.
struct Prepared {
    executable: CString,
    arguments: Vec<*const c_char>,
    variables: Vec<*const c_char>,
    input: c_int,
    output: Option<c_int>,
    most_memory: Option<libc::rlimit>,
    filter: Filter,
    /// Why the program could not be started, left by the child.
    error: c_int,
}

impl Spawn<'_> {
    pub(super) fn start(self) -> io::Result<libc::pid_t> {
        if self.arguments.is_empty() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let arguments: Vec<CString> = self.arguments.iter().map(|text| text_of(text)).collect::<io::Result<_>>()?;
        let set = |name: &OsStr| self.variables.iter().any(|(own, _)| own == name);
        let inherited = std::env::vars_os().filter(|(name, _)| !set(name));
        let variables: Vec<CString> = inherited
            .chain(self.variables.iter().cloned())
            .map(|(name, value)| text_of(&[name, value].join(OsStr::new("="))))
            .collect::<io::Result<_>>()?;
        let pointers = |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect();
        let mut prepared = Prepared {
            executable: text_of(self.executable)?,
            arguments: pointers(&arguments),
            variables: pointers(&variables),
            input: self.input.as_raw_fd(),
            output: self.output.as_ref().map(AsRawFd::as_raw_fd),
            most_memory: self.most_memory.map(|most| libc::rlimit { rlim_cur: most, rlim_max: most }),
            filter: Filter::new(),
            error: 0,
        };
        let mut stack: Vec<u128> = Vec::with_capacity(STACK / size_of::<u128>());
        let (pid, failed) = without_signals(|| {
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            // SAFETY: the stack is large enough, grows down, and, as what the child is given, outlives its use: this thread waits. The
            // child makes system calls and does not return.
            let pid = unsafe {
                let top = stack.as_mut_ptr().add(stack.capacity()).cast::<c_void>();
                libc::clone(child, top, flags, (&raw mut prepared).cast())
            };
            (pid, io::Error::last_os_error())
        });
        if pid < 0 {
            return Err(failed);
        }
        // SAFETY: the child has written it, if at all, before this thread went on.
        match unsafe { (&raw const prepared.error).read_volatile() } {
            0 => Ok(pid),
            error => {
                // SAFETY: a child of this thread that has ended; nobody wants to know how.
                unsafe { libc::waitpid(pid, ptr::null_mut(), libc::__WALL) };
                Err(io::Error::from_raw_os_error(error))
            }
        }
    }
}

fn text_of(text: &OsStr) -> io::Result<CString> {
    Ok(CString::new(text.to_owned().into_vec())?)
}

/// A handler of pmvet's that ran in the child would take pmvet's memory for its own.
fn without_signals<T>(action: impl FnOnce() -> T) -> T {
    // SAFETY: all-zero is a valid set of signals, and the pointers are valid.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = action();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        result
    }
}

/// The new process, in pmvet's memory until the program starts.
extern "C" fn child(prepared: *mut c_void) -> c_int {
    // SAFETY: the thread that made this process waits, and nobody else knows what it was given.
    let prepared = unsafe { &mut *prepared.cast::<Prepared>() };
    let error = begin(prepared);
    prepared.error = error.raw_os_error().unwrap_or(libc::EINVAL);
    // SAFETY: does not return, and runs nothing of pmvet's.
    unsafe { libc::_exit(127) }
}

/// Makes system calls only. Returns if the program cannot be started.
fn begin(prepared: &Prepared) -> io::Error {
    // SAFETY: system calls with valid arguments, on a process of their own.
    unsafe {
        for signal in 1..=libc::SIGRTMAX() {
            let mut now: libc::sigaction = std::mem::zeroed();
            // Programs that pmvet's user has told to ignore a signal go on doing so; pmvet itself has only SIGPIPE ignored.
            let kept = libc::sigaction(signal, ptr::null(), &raw mut now) != 0
                || now.sa_sigaction == libc::SIG_DFL
                || now.sa_sigaction == libc::SIG_IGN && signal != libc::SIGPIPE;
            if !kept {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
        let outputs = prepared.output.into_iter().flat_map(|output| [(output, 1), (output, 2)]);
        for (from, to) in [(prepared.input, 0)].into_iter().chain(outputs) {
            if libc::dup2(from, to) < 0 {
                return io::Error::last_os_error();
            }
        }
        if let Some(limit) = &prepared.most_memory {
            libc::setrlimit(libc::RLIMIT_DATA, limit);
        }
        // Its own group, so that a signal it sends to its group does not reach pmvet.
        libc::setpgid(0, 0);
        // The same addresses in every run.
        libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
        if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) < 0 {
            return io::Error::last_os_error();
        }
        if let Err(e) = prepared.filter.install() {
            return e;
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        libc::execvpe(prepared.executable.as_ptr(), prepared.arguments.as_ptr(), prepared.variables.as_ptr());
    }
    io::Error::last_os_error()
}
