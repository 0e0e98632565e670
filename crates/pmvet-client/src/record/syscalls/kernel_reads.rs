//! What the kernel reads from PM for the target: bytes of PM files, and mapped PM that is passed to a call.
//!
//! Reported before the call is made, with the requested length, even if the call then reads less.

use pmvet_events::event::What;

use super::kernel_writes::vector;
use crate::dynamorio::{self, Syscall};
use crate::record::open_file::OpenFile;
use crate::record::pm::PM;
use crate::record::thread::Thread;

/// Reports what the call is about to read from PM.
pub(crate) fn report(thread: &mut Thread, call: &Syscall, number: i64) {
    if let Some(read) = FileRead::new(call, number) {
        read.report(thread, call);
    }
    if PM.is_empty() {
        return;
    }
    for (addr, len) in memory(call, number) {
        for part in PM.overlaps(addr, len) {
            thread.emit_from(call, What::FileRead { file: part.file, offset: part.offset, len: part.end - part.start });
        }
    }
}

/// A call that reads a file.
struct FileRead {
    fd: i32,
    /// Where it begins, if not at the file's position.
    at: Option<u64>,
    len: u64,
}

impl FileRead {
    fn new(call: &Syscall, number: i64) -> Option<Self> {
        let pointed = |index: i32| (call.get(index) != 0).then(|| dynamorio::read_word(call.get(index))).flatten();
        let all = |at: u64, count: u64| vector(at, count).iter().map(|part| part.most()).sum();
        let (fd, at, len) = match number {
            libc::SYS_read => (0, None, call.get(2)),
            libc::SYS_pread64 => (0, Some(call.get(3)), call.get(2)),
            libc::SYS_readv => (0, None, all(call.get(1), call.get(2))),
            libc::SYS_preadv => (0, Some(call.get(3)), all(call.get(1), call.get(2))),
            libc::SYS_preadv2 => (0, Some(call.get(3)).filter(|&at| at as i64 != -1), all(call.get(1), call.get(2))),
            libc::SYS_sendfile => (1, pointed(2), call.get(3)),
            libc::SYS_splice | libc::SYS_copy_file_range => (0, pointed(1), call.get(4)),
            // Loads of a private mapping are not followed: all that it shows counts as read.
            libc::SYS_mmap if is_private(call.get(3) as i32) => (4, Some(call.get(5)), call.get(1)),
            _ => return None,
        };
        Some(Self { fd: call.fd(fd), at, len })
    }

    fn report(self, thread: &mut Thread, call: &Syscall) {
        let Some(open) = OpenFile::from_fd(self.fd) else { return };
        if !PM.is_pm(open.inode, &open.path) {
            return;
        }
        // SAFETY: asks for the position of a descriptor.
        let offset = self.at.unwrap_or_else(|| unsafe { libc::lseek(self.fd, 0, libc::SEEK_CUR) } as u64);
        let len = self.len.min(open.size.saturating_sub(offset));
        if len > 0 {
            let file = PM.announce_file(thread, open.inode, &open.path, open.size);
            thread.emit_from(call, What::FileRead { file, offset, len });
        }
    }
}

fn is_private(flags: i32) -> bool {
    flags & libc::MAP_TYPE == libc::MAP_PRIVATE && flags & libc::MAP_ANONYMOUS == 0
}

/// Memory of the target that a call reads, as address and length.
pub(super) fn memory(call: &Syscall, number: i64) -> Vec<(u64, u64)> {
    let parts = |at: u64, count: u64| vector(at, count).iter().map(|part| (part.addr(), part.most())).collect();
    match number {
        libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_sendto => vec![(call.get(1), call.get(2))],
        libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 | libc::SYS_vmsplice => {
            parts(call.get(1), call.get(2))
        }
        libc::SYS_sendmsg => {
            let message = call.get(1);
            match (dynamorio::read_word(message + 16), dynamorio::read_word(message + 24)) {
                (Some(at), Some(count)) => parts(at, count),
                _ => Vec::new(),
            }
        }
        _ => Vec::new(),
    }
}
