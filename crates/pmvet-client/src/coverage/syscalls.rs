//! System calls in a run that counts: what makes such runs alike, and what makes them fast.
//!
//! The target's process has the same number in every run, since a lock that is kept in PM holds its owner's. Space is not
//! reserved, which would fill a file in memory with zeros. The end of the input is where a run may be cut short.

use core::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use pmvet_events::plan::INPUT_LABEL;

use crate::control::fork_server::FORK_SERVER;
use crate::dynamorio::{self, Syscall};
use crate::record::open_file::OpenFile;
use crate::record::pm::PM;
use crate::record::syscalls::reads;
use crate::record::thread::Thread;

/// The number of the process and of its first thread, as they see it. Above what the kernel gives away, so that no other
/// process has it.
const REPORTED_PID: i64 = 1 << 22;

/// The result of a call that is answered here.
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

/// Where the target means itself, the kernel is given the true number.
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
/// What is larger is often reserved rather than used.
const MAX_POPULATED_BYTES: u64 = 4 << 20;

/// Gives memory that the target has just been promised to it at once: it takes the kernel a fraction of the time that a fault
/// for each page takes.
fn populate(start: u64, len: u64) {
    if len <= MAX_POPULATED_BYTES {
        // SAFETY: touches memory that has just been mapped; fails without harm if that cannot be written to.
        unsafe { libc::madvise(start as *mut c_void, len as usize, libc::MADV_POPULATE_WRITE) };
    }
}

/// The heap ends here now.
fn heap_grown(end: u64) {
    static END: AtomicU64 = AtomicU64::new(0);
    const PAGE_BYTES: u64 = 4096;
    let (from, to) = (END.swap(end, Ordering::Relaxed).next_multiple_of(PAGE_BYTES), end & !(PAGE_BYTES - 1));
    if from > PAGE_BYTES && from < to {
        populate(from, to - from);
    }
}
