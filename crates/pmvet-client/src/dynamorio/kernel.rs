//! Plain system calls: identity of threads and processes, time and sleep.

use std::ffi::CString;

use super::bindings::*;

pub(crate) fn yield_thread() {
    // SAFETY: no state.
    unsafe { dr_thread_yield() }
}

/// Does something that waits for other threads. Meanwhile DynamoRIO may stop or end this thread, like one in a system call.
pub(crate) fn while_safe_to_suspend<T>(wait: impl FnOnce() -> T) -> T {
    // SAFETY: the context is that of the calling thread, which holds no lock of DynamoRIO.
    unsafe {
        let context = dr_get_current_drcontext();
        dr_mark_safe_to_suspend(context, 1);
        let result = wait();
        dr_mark_safe_to_suspend(context, 0);
        result
    }
}

/// Sleeps for less than a second.
pub(crate) fn sleep_nanos(nanoseconds: u64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds as i64 };
    // SAFETY: a plain system call with a valid argument.
    unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) };
}

pub(crate) fn os_thread() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

pub(crate) fn process() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_getpid) as u32 }
}

pub(crate) fn parent_process() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_getppid) as u32 }
}

/// Whether a process exists.
pub(crate) fn process_lives(pid: u32) -> bool {
    // SAFETY: signal 0 only asks.
    unsafe { libc::syscall(libc::SYS_kill, pid, 0) == 0 }
}

/// Whether a thread exists, in any process.
pub(crate) fn thread_lives(tid: u32) -> bool {
    // SAFETY: signal 0 only asks.
    unsafe { libc::syscall(libc::SYS_tkill, tid, 0) == 0 }
}

/// The processor time that a thread of this process has used, in nanoseconds.
pub(crate) fn thread_cpu_nanos(tid: u32) -> u64 {
    // The kernel's name for the clock of a thread: CPUCLOCK_PERTHREAD_MASK and CPUCLOCK_SCHED.
    clock_nanos((!(tid as i32) << 3) | 6)
}

/// Nanoseconds since some fixed moment.
pub(crate) fn monotonic_nanos() -> u64 {
    clock_nanos(libc::CLOCK_MONOTONIC)
}

fn clock_nanos(clock: i32) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure, or refuses the clock.
    match unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &raw mut time) } {
        0 => time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64,
        _ => 0,
    }
}

/// Whether a thread of this process wants to run: it is on a processor, waits for one, or is stopped in a system call that
/// pmvet's sandbox inspects.
pub(crate) fn thread_is_runnable(tid: u32) -> bool {
    let Ok(path) = CString::new(format!("/proc/self/task/{tid}/stat")) else { return false };
    let mut stat = [0; 64];
    // DynamoRIO's own functions: the thread may be gone when its file is read, and the C library then returns a value that
    // Rust does not recognise as an error.
    // SAFETY: a path and a buffer of the length that is said.
    let read = unsafe {
        let file = dr_open_file(path.as_ptr(), DR_FILE_READ);
        let read = dr_read_file(file, stat.as_mut_ptr().cast(), stat.len());
        dr_close_file(file);
        usize::try_from(read).unwrap_or(0)
    };
    // The number, the name, which may hold anything but is short, and the state.
    let stat = String::from_utf8_lossy(stat.get(..read).unwrap_or_default());
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['R', 't']))
}
