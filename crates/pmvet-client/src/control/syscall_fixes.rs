//! System calls that the client changes on their way, because DynamoRIO gets them wrong or the sandbox makes them slow.

use crate::dynamorio::{self, Syscall};
use crate::record::syscalls::before::whole_pages;
use crate::record::thread::Thread;
use crate::run::run;

/// DynamoRIO drops the address of a mapping that must not replace another, but not the flag. Returns the result of a call
/// that is not made.
pub(crate) fn map_without_replacing(thread: &mut Thread, call: &Syscall, number: i64) -> Option<i64> {
    if number != libc::SYS_mmap || call.get(3) as i32 & libc::MAP_FIXED_NOREPLACE == 0 {
        return None;
    }
    if dynamorio::is_mapped(call.get(0), whole_pages(call.get(1))) {
        return Some(-i64::from(libc::EEXIST));
    }
    let flags = call.get(3) & !(libc::MAP_FIXED_NOREPLACE as u64) | libc::MAP_FIXED as u64;
    call.replace(thread, 3, flags);
    None
}

/// Replaces `newfstatat` with an empty path by `fstat`. The C library uses the former, and the sandbox stops every call
/// that names a path, which takes far longer than the call. Returns the number of the call that is made.
pub(crate) fn stat_by_descriptor(thread: &mut Thread, call: &Syscall, number: i64) -> i64 {
    let by_descriptor = number == libc::SYS_newfstatat
        && call.fd(0) >= 0
        && call.fd(3) == libc::AT_EMPTY_PATH
        && dynamorio::read_c_string(call.get(1)).is_some_and(|path| path.is_empty());
    if !by_descriptor {
        return number;
    }
    call.replace(thread, 1, call.get(2));
    call.set_number(libc::SYS_fstat);
    libc::SYS_fstat
}

/// Ends a `close_range` at the highest open descriptor. DynamoRIO would visit every number in it, up to four billion.
pub(crate) fn close_open_descriptors(thread: &mut Thread, call: &Syscall) {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let highest = entries.filter_map(|e| e.file_name().to_str()?.parse::<u64>().ok()).max().unwrap_or(0);
    if call.get(1) > highest {
        call.replace(thread, 1, highest.max(call.get(0)));
    }
}

/// For the kernel the target's executable is DynamoRIO, which started it. Replaces `/proc/self/exe` and the like by the
/// path of the target's own.
pub(crate) fn name_own_executable(thread: &mut Thread, call: &Syscall, number: i64) {
    let index = match number {
        libc::SYS_open | libc::SYS_stat | libc::SYS_access | libc::SYS_execve => 0,
        libc::SYS_openat
        | libc::SYS_openat2
        | libc::SYS_newfstatat
        | libc::SYS_statx
        | libc::SYS_faccessat
        | libc::SYS_faccessat2 => 1,
        _ => return,
    };
    let Some(path) = dynamorio::read_c_string(call.get(index)).and_then(|p| String::from_utf8(p).ok()) else { return };
    let Some(who) = path.strip_prefix("/proc/").and_then(|p| p.strip_suffix("/exe")) else { return };
    if who == "self" || who == "thread-self" || who == dynamorio::process().to_string() {
        call.replace(thread, index, run().executable.as_ptr() as u64);
    }
}
