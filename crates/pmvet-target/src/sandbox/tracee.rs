//! A stopped thread of a sandboxed process: its registers, its memory, its folders.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::gettid;

pub(super) type TraceeRegisters = libc::user_regs_struct;

/// A thread in a ptrace stop.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tracee {
    pub(super) tid: libc::pid_t,
}

impl Tracee {
    pub(super) fn registers(self) -> io::Result<TraceeRegisters> {
        // SAFETY: all-zero is a valid register set, and the kernel fills it.
        unsafe {
            let mut registers: TraceeRegisters = std::mem::zeroed();
            check(libc::ptrace(libc::PTRACE_GETREGS, self.tid, 0, &raw mut registers))?;
            Ok(registers)
        }
    }

    pub(super) fn set_registers(self, registers: &TraceeRegisters) -> io::Result<()> {
        // SAFETY: the pointer is valid; the thread is ours and stopped.
        check(unsafe { libc::ptrace(libc::PTRACE_SETREGS, self.tid, 0, &raw const *registers) })
    }

    /// Lets it run on, to the next event that matters, and delivers a signal if there is one.
    pub(super) fn resume(self, signal: i32) {
        // SAFETY: as above. It fails only if the thread was killed meanwhile, which the next wait reports.
        unsafe { libc::ptrace(libc::PTRACE_CONT, self.tid, 0, libc::c_long::from(signal)) };
    }

    /// Lets it run until the system call it is in has returned.
    pub(super) fn resume_to_return(self) {
        // SAFETY: as above.
        unsafe { libc::ptrace(libc::PTRACE_SYSCALL, self.tid, 0, 0) };
    }

    /// The data of an event stop, such as the id of a new thread.
    pub(super) fn message(self) -> u64 {
        let mut message = 0u64;
        // SAFETY: the pointer is valid.
        unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, self.tid, 0, &raw mut message) };
        message
    }

    /// Reads its memory: in one call where that is allowed, through its file in `/proc` otherwise.
    pub(super) fn read(self, addr: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let remote = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: buffer.len() };
        // SAFETY: both ranges are described truly; the remote one is checked by the kernel.
        let read = unsafe { libc::process_vm_readv(self.tid, &raw const local, 1, &raw const remote, 1, 0) };
        if read >= 0 {
            return Ok(read as usize);
        }
        let error = io::Error::last_os_error();
        if !is_denied(&error) {
            return Err(error);
        }
        let memory = File::open(self.memory()).map_err(|_| denied("process_vm_readv", &error))?;
        memory.read_at(buffer, addr)
    }

    pub(super) fn write(self, addr: u64, bytes: &[u8]) -> io::Result<()> {
        let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let remote = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: bytes.len() };
        // SAFETY: as in `read`.
        let written = unsafe { libc::process_vm_writev(self.tid, &raw const local, 1, &raw const remote, 1, 0) };
        let error = match written {
            n if n == bytes.len() as isize => return Ok(()),
            n if n >= 0 => return Err(io::ErrorKind::WriteZero.into()),
            _ => io::Error::last_os_error(),
        };
        if !is_denied(&error) {
            return Err(error);
        }
        let memory = File::options().write(true).open(self.memory());
        memory.map_err(|_| denied("process_vm_writev", &error))?.write_all_at(bytes, addr)
    }

    fn memory(self) -> String {
        format!("/proc/{}/mem", self.tid)
    }

    /// A string of the target, up to the length of a path.
    pub(super) fn string(self, addr: u64) -> io::Result<PathBuf> {
        let mut text = Vec::new();
        while text.len() < libc::PATH_MAX as usize {
            // Up to the end of the page, since the next one may be unmapped.
            let at = addr + text.len() as u64;
            let mut chunk = [0; 256];
            let len = chunk.len().min(4096 - (at % 4096) as usize);
            let read = self.read(at, &mut chunk[..len])?;
            match chunk[..read].iter().position(|&b| b == 0) {
                Some(end) => {
                    text.extend_from_slice(&chunk[..end]);
                    return Ok(OsString::from_vec(text).into());
                }
                None => text.extend_from_slice(&chunk[..read]),
            }
        }
        Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG))
    }

    /// The folder that a relative path starts from.
    pub(super) fn folder(self, dir: Option<i32>) -> io::Result<PathBuf> {
        match dir {
            None | Some(libc::AT_FDCWD) => std::fs::read_link(format!("/proc/{}/cwd", self.tid)),
            Some(fd) => std::fs::read_link(format!("/proc/{}/fd/{fd}", self.tid)),
        }
    }

    /// The metadata of an open file.
    pub(super) fn file(self, fd: i32) -> io::Result<Metadata> {
        std::fs::metadata(format!("/proc/{}/fd/{fd}", self.tid))
    }

    /// The process it belongs to.
    pub(super) fn process(self) -> libc::pid_t {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.tid)).unwrap_or_default();
        field(&status, "Tgid:").and_then(|v| v.parse().ok()).unwrap_or(self.tid)
    }

    /// Permissions that its new files must not have.
    pub(super) fn umask(self) -> u32 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.tid)).unwrap_or_default();
        field(&status, "Umask:").and_then(|v| u32::from_str_radix(v, 8).ok()).unwrap_or(0o022)
    }

    /// Whether a process, or a thread, is in the sandbox that the calling thread supervises.
    pub(super) fn shares_sandbox_with(self, process: libc::pid_t) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        field(&status, "TracerPid:").and_then(|v| v.parse().ok()) == Some(gettid().as_raw_pid())
    }

    /// Whether a signal would end the process: it is neither caught nor ignored.
    pub(super) fn dies_of(self, signal: i32) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.tid)).unwrap_or_default();
        let has = |name| {
            let mask = field(&status, name).and_then(|v| u64::from_str_radix(v, 16).ok()).unwrap_or(0);
            mask & (1 << (signal - 1)) != 0
        };
        !has("SigCgt:") && !has("SigIgn:")
    }
}

/// The live threads of a sandbox, for use outside of their tracer.
#[derive(Debug, Default)]
pub struct Tracees {
    alive: Mutex<Alive>,
    fewer: Condvar,
}

#[derive(Debug, Default)]
struct Alive {
    threads: BTreeSet<libc::pid_t>,
    /// Threads whose end was reported before their beginning, which the kernel may do.
    over: BTreeSet<libc::pid_t>,
}

impl Alive {
    fn others(&self, spared: &[libc::pid_t]) -> impl Iterator<Item = libc::pid_t> {
        self.threads.iter().copied().filter(|tid| !spared.contains(tid))
    }
}

impl Tracees {
    fn alive(&self) -> MutexGuard<'_, Alive> {
        self.alive.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(super) fn add(&self, tid: libc::pid_t) {
        let mut alive = self.alive();
        if !alive.over.remove(&tid) {
            alive.threads.insert(tid);
        }
    }

    pub(super) fn remove(&self, tid: libc::pid_t) {
        let mut alive = self.alive();
        if !alive.threads.remove(&tid) {
            alive.over.insert(tid);
        }
        drop(alive);
        self.fewer.notify_all();
    }

    /// Whether the thread is alive, as far as the tracer has heard.
    pub fn contains(&self, tid: libc::pid_t) -> bool {
        self.alive().threads.contains(&tid)
    }

    pub(super) fn count(&self) -> usize {
        self.alive().threads.len()
    }

    /// All live threads except `spared`.
    pub fn others(&self, spared: &[libc::pid_t]) -> Vec<libc::pid_t> {
        self.alive().others(spared).collect()
    }

    /// Kills the process of a thread, if it is still there.
    pub fn kill(&self, tid: libc::pid_t) {
        let alive = self.alive();
        if alive.threads.contains(&tid) {
            // As in `kill_others`.
            send_signal(tid, Signal::KILL);
        }
    }

    /// Waits until there are none except `spared`, but no longer than `most`. Returns whether there are none.
    pub fn wait_for_others(&self, spared: &[libc::pid_t], most: Duration) -> bool {
        let waited = self.fewer.wait_timeout_while(self.alive(), most, |alive| alive.others(spared).next().is_some());
        let (alive, _) = waited.unwrap_or_else(|e| e.into_inner());
        alive.others(spared).next().is_none()
    }

    /// Kills all but these. Returns how many there were.
    pub fn kill_others(&self, spared: &[libc::pid_t]) -> usize {
        let alive = self.alive();
        let others: Vec<_> = alive.others(spared).collect();
        for &tid in &others {
            // The id stays in use until the tracer has waited for it, and the tracer removes it from the set right
            // after.
            send_signal(tid, Signal::KILL);
        }
        others.len()
    }
}

/// Sends a signal to a process, if it is still there.
pub(crate) fn send_signal(process: libc::pid_t, signal: Signal) {
    if let Some(process) = Pid::from_raw(process) {
        let _ = kill_process(process, signal);
    }
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// A system call's argument, by number.
pub(super) fn argument(registers: &TraceeRegisters, number: u8) -> u64 {
    match number {
        0 => registers.rdi,
        1 => registers.rsi,
        2 => registers.rdx,
        3 => registers.r10,
        4 => registers.r8,
        _ => registers.r9,
    }
}

pub(super) fn set_argument(registers: &mut TraceeRegisters, number: u8, value: u64) {
    let place = match number {
        0 => &mut registers.rdi,
        1 => &mut registers.rsi,
        2 => &mut registers.rdx,
        3 => &mut registers.r10,
        4 => &mut registers.r8,
        _ => &mut registers.r9,
    };
    *place = value;
}

/// Whether a filter or a missing right caused the error, rather than the memory itself.
fn is_denied(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS | libc::EACCES))
}

/// An error that names the call.
fn denied(call: &str, error: &io::Error) -> io::Error {
    let advice = "the sandbox needs it, or /proc/PID/mem; allow it in the container's seccomp profile";
    io::Error::new(io::ErrorKind::PermissionDenied, format!("{call}: {error}: {advice}"))
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_may_be_told_before_the_beginning() {
        let tracees = Tracees::default();
        tracees.add(1);
        tracees.remove(2);
        tracees.add(2);
        assert_eq!((tracees.others(&[1]), tracees.contains(2)), (vec![], false));
        // The same number, used again.
        tracees.add(2);
        assert_eq!((tracees.others(&[1]), tracees.contains(2)), (vec![2], true));
    }
}
