//! Fork points: system calls that name a file of interest or read standard input.

use std::path::{Path, PathBuf};

use crate::dynamorio::{self, Syscall};
use crate::record::syscalls;

/// Whether a file that a call names is the one at `path`.
pub(super) fn is_same_file(named: &Path, path: &Path) -> bool {
    let same_name = named.file_name() == path.file_name();
    same_name && (named == path || resolve_links(named).as_deref() == Some(path))
}

/// The file that a call names, made absolute.
pub(super) fn named_file(call: &Syscall, number: i64) -> Option<PathBuf> {
    match number {
        libc::SYS_open
        | libc::SYS_creat
        | libc::SYS_stat
        | libc::SYS_lstat
        | libc::SYS_access
        | libc::SYS_truncate
        | libc::SYS_unlink
        | libc::SYS_rename
        | libc::SYS_statfs => call.path(None, 0),
        libc::SYS_openat
        | libc::SYS_openat2
        | libc::SYS_newfstatat
        | libc::SYS_statx
        | libc::SYS_faccessat
        | libc::SYS_faccessat2
        | libc::SYS_unlinkat => call.path(Some(0), 1),
        _ => None,
    }
}

fn resolve_links(path: &Path) -> Option<PathBuf> {
    let whole = std::fs::canonicalize(path).ok();
    whole.or_else(|| Some(std::fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?)))
}

pub(super) fn looks_at_stdin(call: &Syscall, number: i64) -> bool {
    match number {
        _ if syscalls::reads(number) => call.fd(0) == 0,
        libc::SYS_fstat | libc::SYS_lseek | libc::SYS_ioctl | libc::SYS_recvfrom | libc::SYS_recvmsg => call.fd(0) == 0,
        libc::SYS_newfstatat | libc::SYS_statx => {
            call.fd(0) == 0 && dynamorio::read_c_string(call.get(1)).is_some_and(|path| path.is_empty())
        }
        libc::SYS_mmap => call.fd(4) == 0 && call.get(3) as i32 & libc::MAP_ANONYMOUS == 0,
        libc::SYS_splice | libc::SYS_copy_file_range => call.fd(0) == 0,
        libc::SYS_sendfile | libc::SYS_epoll_ctl => call.fd(if number == libc::SYS_sendfile { 1 } else { 2 }) == 0,
        libc::SYS_poll | libc::SYS_ppoll => polls_stdin(call),
        libc::SYS_select | libc::SYS_pselect6 => true,
        _ => false,
    }
}

/// Whether a call waits for standard input. Rust's runtime polls it at the start without events, to see whether it is open.
fn polls_stdin(call: &Syscall) -> bool {
    /// Enough for real programs; the list is read word by word.
    const MAX_ENTRIES: u64 = 64;
    (0..call.get(1).min(MAX_ENTRIES)).any(|i| {
        let entry = dynamorio::read_word(call.get(0) + i * size_of::<libc::pollfd>() as u64).unwrap_or(0);
        entry as i32 == 0 && (entry >> 32) as i16 & libc::POLLIN != 0
    })
}
