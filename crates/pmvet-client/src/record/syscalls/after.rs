//! After a system call: what it has done to PM.
//!
//! A change made by the kernel is reported by reading back what is there now, under the stripe locks of the lines
//! concerned. If another thread stored in between, its store is reported twice with the same value, which does no harm. A
//! later store has a later number.

use std::fs::File;
use std::os::unix::fs::FileExt;

use pmvet_events::event::{StoreKind, What};
use pmvet_events::ids::{FileId, SiteId};
use pmvet_events::wire::MAX_DATA;

use super::before::whole_pages;
use super::kernel_writes;
use super::pending::{FileRange, PendingSyscall, Position};
use crate::dynamorio::{Inode, Syscall};
use crate::record::mapping::Mapping;
use crate::record::open_file::OpenFile;
use crate::record::pm::PM;
use crate::record::thread::Thread;

/// After a call that succeeded with `result`.
pub(crate) fn finish(thread: &mut Thread, call: &Syscall, pending: PendingSyscall, result: u64) {
    match pending {
        PendingSyscall::Nothing | PendingSyscall::Unmapped(_) | PendingSyscall::Random { .. } => {}
        PendingSyscall::Map { file, inode, writable } => {
            let len = whole_pages(call.get(1));
            replaced(thread, result, len);
            let mapping = Mapping { start: result, end: result + len, file, inode: inode.1, offset: call.get(5) };
            remember(thread, mapping, writable);
        }
        PendingSyscall::MapOther => replaced(thread, result, whole_pages(call.get(1))),
        PendingSyscall::Remap { old } => {
            let (from, old_len, new_len) = (call.get(0), whole_pages(call.get(1)), whole_pages(call.get(2)));
            replaced(thread, from, old_len);
            replaced(thread, result, new_len);
            if let Some(first) = old.iter().min_by_key(|m| m.start) {
                let mapping = Mapping { start: result, end: result + new_len, ..*first };
                remember(thread, mapping, true);
            }
        }
        PendingSyscall::Written { file, inode, fd, position } => {
            report_written(thread, call, file, inode, fd, position, result);
        }
        PendingSyscall::Resized { file, fd } => {
            if let Some(open) = OpenFile::from_fd(fd) {
                thread.emit_from(call, What::FileResize { file, size: open.size });
            }
        }
        PendingSyscall::Zeroed { file, fd, offset, len } => {
            thread.emit_from(call, What::FileZero { file, offset, len });
            if let Some(open) = OpenFile::from_fd(fd) {
                thread.emit_from(call, What::FileResize { file, size: open.size });
            }
        }
        PendingSyscall::Synced { ranges, how } => {
            for FileRange { file, offset, len } in ranges {
                thread.emit_from(call, What::FileSync { file, offset, len, how });
            }
        }
        PendingSyscall::Opened { known } => {
            if let Some((file, size)) = known
                && size != 0
            {
                thread.emit_from(call, What::FileResize { file, size: 0 });
            }
        }
        PendingSyscall::Moved { file, to } => {
            thread.emit_from(call, What::FileRename { file, to: &to });
        }
        PendingSyscall::Deleted { file, inode, last_link } => {
            thread.emit_from(call, What::FileUnlink { file });
            // A mapped file lives on; only its name is gone. An unmapped one frees its inode for others.
            if last_link && !PM.is_mapped(file) {
                PM.forget_file(inode);
            }
        }
        PendingSyscall::Buffers(buffers) => {
            for (addr, len) in kernel_writes::written(&buffers, result) {
                for part in PM.overlaps(addr, len) {
                    let len = part.end - part.start;
                    let context = thread.context(call.stack_pointer());
                    thread.lock_ranges(&[(part.start, len as u32)]);
                    thread.report_memory(SiteId(0), context, part.start, len, StoreKind::Kernel);
                    thread.finish_access();
                }
            }
        }
    }
}

/// Adds and reports a mapping.
fn remember(thread: &mut Thread, mapping: Mapping, writable: bool) {
    let near_code = PM.add(mapping);
    PM.watch(near_code);
    let Mapping { start, end, file, offset, .. } = mapping;
    thread.emit(What::Map { file, addr: start, len: end - start, offset, writable });
}

/// Another mapping has replaced PM here: reports that PM was unmapped.
fn replaced(thread: &mut Thread, addr: u64, len: u64) {
    for part in PM.remove(addr, len) {
        thread.emit(What::Unmap { addr: part.start, len: part.end - part.start });
    }
}

fn report_written(
    thread: &mut Thread,
    call: &Syscall,
    file: FileId,
    inode: Inode,
    fd: i32,
    position: Position,
    len: u64,
) {
    // The target may have opened the file for writing only.
    let Ok(readable) = File::open(format!("/proc/self/fd/{fd}")) else {
        thread.emit(What::Unsupported {
            addr: 0,
            size: len as u32,
            why: "a file was written that cannot be read back",
        });
        return;
    };
    let appends = {
        // SAFETY: asks for the flags of a descriptor.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        flags & libc::O_APPEND != 0
    };
    let start = match position {
        Position::At(at) if !appends => at,
        Position::At(_) => readable.metadata().map_or(0, |m| m.len()).saturating_sub(len),
        // SAFETY: asks for the position of a descriptor.
        Position::Current => (unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) } as u64).saturating_sub(len),
    };
    thread.lock_file_range(inode.1, start, len);
    let mut data = vec![0; MAX_DATA];
    let mut done = 0;
    while done < len {
        let chunk = (len - done).min(MAX_DATA as u64) as usize;
        match readable.read_at(&mut data[..chunk], start + done) {
            Ok(0) | Err(_) => break,
            Ok(read) => {
                thread.emit_from(call, What::FileWrite { file, offset: start + done, data: &data[..read] });
                done += read as u64;
            }
        }
    }
    thread.finish_access();
}

/// After a failed call: mappings that it should have removed are still there.
pub(crate) fn undo(thread: &mut Thread, pending: PendingSyscall) {
    if let PendingSyscall::Unmapped(parts) = pending {
        for part in parts {
            remember(thread, part, true);
        }
    }
}
