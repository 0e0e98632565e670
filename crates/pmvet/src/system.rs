//! Calls to the operating system. All `unsafe` of this crate is here.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use pmvet_target::shutdown;

use crate::exit::Exit;

/// How many processors pmvet may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

type Handler = extern "C" fn(libc::c_int, *const libc::siginfo_t, *const libc::c_void);

extern "C" fn stop(signal: libc::c_int, info: *const libc::siginfo_t, _: *const libc::c_void) {
    // SAFETY: the kernel passes a valid pointer. A code above 0 means that the kernel sent the signal by itself.
    let from_terminal = unsafe { (*info).si_code > 0 };
    if shutdown::stopped_by().is_none() {
        return shutdown::stop(signal, from_terminal);
    }
    // SAFETY: both may be called here. The signal is blocked until the handler returns, and ends pmvet then.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

extern "C" fn nothing(_: libc::c_int, _: *const libc::siginfo_t, _: *const libc::c_void) {}

/// Lets SIGINT, SIGTERM and SIGHUP stop the target first. A second signal, whichever it is, ends pmvet at once, and the guard ends the
/// target.
///
/// An ignored signal, as under `nohup`, stays ignored. A file that exceeds its size limit becomes an error of the write and does not end
/// pmvet. Handlers do not survive an exec, so the target notices none of this.
pub(crate) fn handle_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        handle(signal, stop, libc::SA_RESTART);
    }
    handle(libc::SIGXFSZ, nothing, libc::SA_RESTART);
}

extern "C" fn end_now(_: libc::c_int, _: *const libc::siginfo_t, _: *const libc::c_void) {
    end_at_once("pmvet: interrupted\n", Exit::Interrupted)
}

/// Lets the same signals end pmvet at once, for commands that start nothing and change files in one step each.
pub(crate) fn end_on_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        handle(signal, end_now, 0);
    }
}

fn handle(signal: libc::c_int, handler: Handler, flags: libc::c_int) {
    // SAFETY: the handlers only do what handlers may; all-zero is a valid sigaction, and the pointers are valid.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut before);
        if before.sa_sigaction == libc::SIG_IGN {
            return;
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as libc::sighandler_t;
        action.sa_flags = flags | libc::SA_SIGINFO;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
}

/// Ends pmvet at once, whatever its threads wait for, and all that it has started.
pub(crate) fn end_at_once(message: &str, exit: Exit) -> ! {
    let mut output = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    // Not through `std`: a thread may hold its lock while it waits for a pipe that nobody reads.
    // SAFETY: the pointers are valid, and the length is that of the message. Nothing of this process runs afterwards.
    unsafe {
        if libc::poll(&raw mut output, 1, 0) > 0 {
            libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len());
        }
        libc::_exit(exit.code().into())
    }
}

/// Waits a short time until standard input can be read, has ended or has failed. False if none of that happened.
pub(crate) fn input_is_ready() -> bool {
    const WHILE: libc::c_int = 50;
    let mut input = libc::pollfd { fd: libc::STDIN_FILENO, events: libc::POLLIN, revents: 0 };
    // SAFETY: the pointer is valid.
    unsafe { libc::poll(&raw mut input, 1, WHILE) != 0 }
}

/// CPU time of all child processes that have ended, and of theirs.
pub(crate) fn children_cpu_time() -> Duration {
    // SAFETY: all-zero is a valid rusage, and the pointer is valid.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Environment variable with the process id of the pmvet that started this one, so that this one dies with it.
const PARENT: &str = "PMVET_PARENT";

/// Makes the process that `command` will start die with pmvet. Another pmvet has to arrange that itself ([`die_with_parent`]): the kernel
/// clears the setting if the process gains rights when it starts, and root's pmvet gives up some of its own.
pub(crate) fn die_with_us(command: &mut Command) {
    command.env(PARENT, std::process::id().to_string());
    // SAFETY: one system call between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

/// Makes this process die with the pmvet that started it, if one did. Call it at the start, while there is one thread. False if the parent
/// is gone already.
pub(crate) fn die_with_parent() -> bool {
    let Some(parent) = std::env::var_os(PARENT) else { return true };
    // SAFETY: there is no other thread that could look at the environment; the rest are system calls without pointers.
    unsafe {
        std::env::remove_var(PARENT);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        parent.to_str().is_some_and(|text| text == libc::getppid().to_string())
    }
}

/// A child made by [`fork`]. It dies with this process.
#[derive(Debug)]
pub(crate) struct Fork {
    pid: libc::pid_t,
    ended: Option<ExitStatus>,
}

impl Fork {
    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> io::Result<ExitStatus> {
        let mut status = 0;
        while self.ended.is_none() {
            // SAFETY: our own child, which nobody else waits for, and a valid pointer.
            if unsafe { libc::waitpid(self.pid, &raw mut status, 0) } == self.pid {
                self.ended = Some(ExitStatus::from_raw(status));
            } else if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(self.ended.unwrap_or_default())
    }

    /// Kills it, and waits for its end.
    pub(crate) fn kill(&mut self) {
        if self.ended.is_none() {
            // SAFETY: our own child, whose number is not given away before it is waited for.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
            let _ = self.wait();
        }
    }
}

/// Forks this process, which must have one thread: others would be missing in the child, and their locks would stay held. Returns nothing
/// in the child.
pub(crate) fn fork() -> io::Result<Option<Fork>> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::Error::other(format!("pmvet has {threads} threads already")));
    }
    // SAFETY: there is no other thread, so the new process may do whatever this one could. The rest are system calls without pointers.
    unsafe {
        let parent = libc::getpid();
        match libc::fork() {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::getppid() != parent {
                    libc::_exit(1);
                }
                Ok(None)
            }
            pid => Ok(Some(Fork { pid, ended: None })),
        }
    }
}

/// Ends a process that [`fork`] made, and nothing else of pmvet.
pub(crate) fn end(status: i32) -> ! {
    // SAFETY: runs nothing of this process.
    unsafe { libc::_exit(status) }
}

/// Ignores the signals that stop pmvet: the parent ends this process.
pub(crate) fn wait_out_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        handle(signal, nothing, libc::SA_RESTART);
    }
}

/// From now on this process has no input, writes its messages (standard error) to this file, and drops its standard output.
pub(crate) fn print_to(file: &File) -> io::Result<()> {
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    for (to, from) in [(libc::STDIN_FILENO, &nothing), (libc::STDOUT_FILENO, &nothing), (libc::STDERR_FILENO, file)] {
        // SAFETY: both are open files of this process, and nobody else uses the first one's number for anything else.
        if unsafe { libc::dup2(from.as_raw_fd(), to) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Waits until there is something to read, or the end of the file.
pub(crate) fn wait_for_input(file: &impl AsRawFd) {
    let mut input = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the pointer is valid.
    while unsafe { libc::poll(&raw mut input, 1, -1) } < 0 {}
}

/// Size and free bytes of the file system at `path`.
pub(crate) fn file_system_space(path: &std::ffi::CStr) -> Option<(u64, u64)> {
    // SAFETY: all-zero is a valid statvfs, and the pointers are valid.
    unsafe {
        let mut found: libc::statvfs = std::mem::zeroed();
        let ok = libc::statvfs(path.as_ptr(), &raw mut found) == 0;
        ok.then_some((found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize))
    }
}

/// Columns of the terminal at standard output.
pub(crate) fn columns() -> Option<usize> {
    // SAFETY: all-zero is a valid winsize, and the pointer is valid.
    unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        let ok = libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) == 0;
        (ok && size.ws_col > 0).then_some(size.ws_col.into())
    }
}
