//! System calls in a coverage run: what makes such runs reproducible, and what makes them fast.
//!
//! The target sees the same process id in every run, because a lock that is kept in PM may hold its owner's id. `fallocate`
//! only sets the size of a PM file, since reserving space would fill a file in memory with zeros. A run may end early when
//! the target has read all of its input.

use core::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use pmvet_events::plan::INPUT_LABEL;

use crate::control::fork_server::FORK_SERVER;
use crate::dynamorio::{self, Syscall};
use crate::record::open_file::OpenFile;
use crate::record::pm::PM;
use crate::record::syscalls::reads;
use crate::record::thread::Thread;

/// The id of the process and of its first thread, as the target sees it. The kernel gives only smaller ones, so no other
/// process has it.
const REPORTED_PID: i64 = 1 << 22;

/// Answers a call in place of the kernel. Returns its result.
pub(crate) fn answer(call: &Syscall, number: i64) -> Option<i64> {
    match number {
        libc::SYS_getpid => Some(REPORTED_PID),
        libc::SYS_gettid if dynamorio::os_thread() == dynamorio::process() => Some(REPORTED_PID),
        libc::SYS_getppid => Some(1),
        libc::SYS_fallocate if call.get(1) == 0 => reserve_space(call),
        _ => None,
    }
}

/// Gives a PM file its size without giving it memory.
fn reserve_space(call: &Syscall) -> Option<i64> {
    let fd = call.fd(0);
    let file = OpenFile::from_fd(fd).filter(|file| PM.is_pm(file.inode, &file.path))?;
    let end = call.get(2).checked_add(call.get(3)).filter(|&end| end <= i64::MAX as u64)?;
    // SAFETY: the target's own descriptor, with a size that fits.
    let done = file.size >= end || unsafe { libc::ftruncate(fd, end as i64) } == 0;
    done.then_some(0)
}

/// Where an argument names the target itself by the id that it sees, gives the kernel the true one.
pub(crate) fn restore_own_pid(thread: &mut Thread, call: &Syscall, number: i64) {
    let names = match number {
        libc::SYS_kill
        | libc::SYS_tkill
        | libc::SYS_rt_sigqueueinfo
        | libc::SYS_pidfd_open
        | libc::SYS_setpgid
        | libc::SYS_getpgid
        | libc::SYS_getsid
        | libc::SYS_sched_getaffinity
        | libc::SYS_sched_setaffinity
        | libc::SYS_sched_getparam
        | libc::SYS_sched_getscheduler
        | libc::SYS_prlimit64
        | libc::SYS_process_vm_readv
        | libc::SYS_process_vm_writev => 1,
        libc::SYS_tgkill | libc::SYS_rt_tgsigqueueinfo => 2,
        _ => return,
    };
    for index in 0..names {
        let named = i64::from(call.fd(index));
        if named.abs() == REPORTED_PID {
            call.replace(thread, index, (named.signum() * i64::from(dynamorio::process())) as u64);
        }
    }
}

/// After any system call.
pub(crate) fn after(call: &Syscall, number: i64, result: i64) {
    let Some(server) = FORK_SERVER.get() else { return };
    server.after(number, result);
    match number {
        libc::SYS_set_tid_address => {
            call.set_result(REPORTED_PID);
        }
        libc::SYS_mmap if call.get(3) as i32 & PRIVATE_ANONYMOUS == PRIVATE_ANONYMOUS => {
            populate(result as u64, call.get(1))
        }
        libc::SYS_brk => heap_grown(result as u64),
        _ if result == 0 && reads(number) && server.may_pause() && is_input(call.fd(0)) => server.pause_at_input_end(),
        _ => {}
    }
}

fn is_input(fd: i32) -> bool {
    OpenFile::from_fd(fd).is_some_and(|file| file.path.as_os_str() == INPUT_LABEL)
}

const PRIVATE_ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
/// Larger mappings are often reserved and never used.
const MAX_POPULATED_BYTES: u64 = 4 << 20;

/// Has the kernel provide all pages of new memory at once, in a fraction of the time that a fault for each page takes.
fn populate(start: u64, len: u64) {
    if len <= MAX_POPULATED_BYTES {
        // SAFETY: touches memory that has just been mapped; fails without harm if that cannot be written to.
        unsafe { libc::madvise(start as *mut c_void, len as usize, libc::MADV_POPULATE_WRITE) };
    }
}

/// The heap now ends at `end`.
fn heap_grown(end: u64) {
    static END: AtomicU64 = AtomicU64::new(0);
    const PAGE_BYTES: u64 = 4096;
    let (from, to) = (END.swap(end, Ordering::Relaxed).next_multiple_of(PAGE_BYTES), end & !(PAGE_BYTES - 1));
    if from > PAGE_BYTES && from < to {
        populate(from, to - from);
    }
}
