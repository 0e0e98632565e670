//! Before a system call: what it is about to do to PM.

use std::path::Path;

use pmvet_events::event::{SyncKind, What};
use pmvet_events::ids::FileId;

use super::pending::{FileRange, PendingSyscall, Position};
use super::{clone, kernel_reads, kernel_writes};
use crate::dynamorio::{self, Inode, Syscall};
use crate::record::held_spin_locks;
use crate::record::mapping::Mapping;
use crate::record::open_file::OpenFile;
use crate::record::pm::PM;
use crate::record::thread::Thread;
use crate::run::run;

/// Before a call: reports what has to be reported by then. Returns what is left to do after it.
pub(crate) fn prepare(thread: &mut Thread, call: &Syscall, number: i64) -> PendingSyscall {
    if run().plan.loads {
        kernel_reads::report(thread, call, number);
    }
    match number {
        libc::SYS_mmap => map(thread, call),
        libc::SYS_munmap => unmap(thread, call.get(0), whole_pages(call.get(1))),
        libc::SYS_mremap => {
            let old = PM.overlaps(call.get(0), whole_pages(call.get(1)));
            if old.is_empty() { PendingSyscall::Nothing } else { PendingSyscall::Remap { old } }
        }
        libc::SYS_madvise => advise(call),
        libc::SYS_msync => synced_memory(call),
        libc::SYS_write | libc::SYS_writev => written(thread, call.fd(0), Position::Current),
        libc::SYS_pwrite64 | libc::SYS_pwritev => written(thread, call.fd(0), Position::At(call.get(3))),
        libc::SYS_pwritev2 => {
            let at = call.get(3);
            written(thread, call.fd(0), if at as i64 == -1 { Position::Current } else { Position::At(at) })
        }
        libc::SYS_sendfile => written(thread, call.fd(0), Position::Current),
        libc::SYS_splice | libc::SYS_copy_file_range => {
            let position = match call.get(3) {
                0 => Position::Current,
                pointer => dynamorio::read_word(pointer).map_or(Position::Current, Position::At),
            };
            written(thread, call.fd(2), position)
        }
        libc::SYS_ftruncate => on_file(thread, call.fd(0), |file, _| PendingSyscall::Resized { file, fd: call.fd(0) }),
        libc::SYS_truncate => {
            let known = call.path(None, 0).and_then(|path| known_at(&path));
            known.map_or(PendingSyscall::Nothing, |(file, _, _)| {
                // Reported at once: there is no descriptor to look at afterwards.
                thread.emit_from(call, What::FileResize { file, size: call.get(1) });
                PendingSyscall::Nothing
            })
        }
        libc::SYS_fallocate => {
            const PUNCH_HOLE: u64 = 2;
            const ZERO_RANGE: u64 = 16;
            let (fd, how) = (call.fd(0), call.get(1));
            on_file(thread, fd, |file, _| {
                if how & (PUNCH_HOLE | ZERO_RANGE) != 0 {
                    PendingSyscall::Zeroed { file, fd, offset: call.get(2), len: call.get(3) }
                } else {
                    PendingSyscall::Resized { file, fd }
                }
            })
        }
        libc::SYS_fsync | libc::SYS_fdatasync => {
            let how = if number == libc::SYS_fsync { SyncKind::Fsync } else { SyncKind::Fdatasync };
            on_file(thread, call.fd(0), |file, open| PendingSyscall::Synced {
                ranges: vec![FileRange { file, offset: 0, len: open.size }],
                how,
            })
        }
        libc::SYS_sync => synced_files(PM.known_files(|_| true)),
        libc::SYS_syncfs => match OpenFile::device(call.fd(0)) {
            Some(device) => synced_files(PM.known_files(|inode| inode.0 == device)),
            None => PendingSyscall::Nothing,
        },
        libc::SYS_sync_file_range => synced_file_range(thread, call),
        libc::SYS_open => opened(call, None, 0, call.get(1)),
        libc::SYS_creat => opened(call, None, 0, libc::O_TRUNC as u64),
        libc::SYS_openat => opened(call, Some(0), 1, call.get(2)),
        libc::SYS_openat2 => opened(call, Some(0), 1, dynamorio::read_word(call.get(2)).unwrap_or(0)),
        libc::SYS_rename => moved(call, (None, 0), (None, 1)),
        libc::SYS_renameat | libc::SYS_renameat2 => moved(call, (Some(0), 1), (Some(2), 3)),
        libc::SYS_unlink => deleted(call, None, 0),
        libc::SYS_unlinkat => deleted(call, Some(0), 1),
        libc::SYS_clone | libc::SYS_clone3 | libc::SYS_fork | libc::SYS_vfork => {
            clone::before_clone(thread, number, &|i| call.get(i));
            PendingSyscall::Nothing
        }
        libc::SYS_execve | libc::SYS_execveat => {
            let path = if number == libc::SYS_execve { call.path(None, 0) } else { call.path(Some(0), 1) };
            let path = path.unwrap_or_default();
            thread.emit(What::Exec { path: &path });
            PendingSyscall::Nothing
        }
        libc::SYS_io_uring_setup | libc::SYS_io_setup => {
            thread.emit(What::Unsupported { addr: 0, size: 0, why: "asynchronous input and output is not followed" });
            PendingSyscall::Nothing
        }
        _ => {
            if PM.is_empty() {
                return PendingSyscall::Nothing;
            }
            match kernel_writes::buffers(number, &|i| call.get(i)) {
                buffers if buffers.is_empty() => PendingSyscall::Nothing,
                buffers => PendingSyscall::Buffers(buffers),
            }
        }
    }
}

fn map(thread: &mut Thread, call: &Syscall) -> PendingSyscall {
    let (addr, len, protection, flags) =
        (call.get(0), whole_pages(call.get(1)), call.get(2) as i32, call.get(3) as i32);
    let sharing = flags & libc::MAP_TYPE;
    let shared = sharing == libc::MAP_SHARED || sharing == libc::MAP_SHARED_VALIDATE;
    let other = || if PM.overlaps(addr, len).is_empty() { PendingSyscall::Nothing } else { PendingSyscall::MapOther };
    if !shared || flags & libc::MAP_ANONYMOUS != 0 {
        return other();
    }
    let fd = call.fd(4);
    let Some(open) = OpenFile::from_fd(fd) else { return other() };
    if flags & libc::MAP_SYNC != 0 {
        PM.claim_file(open.inode);
    }
    if !PM.is_pm(open.inode, &open.path) && !OpenFile::is_dax(fd) {
        return other();
    }
    let file = PM.announce_file(thread, open.inode, &open.path, open.size);
    if addr == 0 && flags & libc::MAP_FIXED == 0 {
        call.replace(thread, 0, PM.mapping_hint(len));
    }
    PendingSyscall::Map { file, inode: open.inode, writable: protection & libc::PROT_WRITE != 0 }
}

/// The kernel maps and unmaps whole pages.
pub(crate) fn whole_pages(len: u64) -> u64 {
    len.checked_next_multiple_of(4096).unwrap_or(len)
}

fn unmap(thread: &mut Thread, addr: u64, len: u64) -> PendingSyscall {
    let gone = PM.remove(addr, len);
    if gone.is_empty() {
        return PendingSyscall::Nothing;
    }
    // Before the call: afterwards another thread may already have something else there.
    for part in &gone {
        thread.emit(What::Unmap { addr: part.start, len: part.end - part.start });
    }
    PendingSyscall::Unmapped(gone)
}

fn advise(call: &Syscall) -> PendingSyscall {
    if call.get(2) as i32 != libc::MADV_REMOVE {
        return PendingSyscall::Nothing;
    }
    let found = PM.overlaps(call.get(0), call.get(1)).pop();
    found.map_or(PendingSyscall::Nothing, |m| PendingSyscall::Zeroed {
        file: m.file,
        fd: -1,
        offset: m.offset,
        len: m.end - m.start,
    })
}

/// `MS_ASYNC` and no flag at all start nothing that the caller could wait for.
fn synced_memory(call: &Syscall) -> PendingSyscall {
    if call.get(2) as i32 & libc::MS_SYNC == 0 {
        return PendingSyscall::Nothing;
    }
    let mappings = PM.overlaps(call.get(0), whole_pages(call.get(1)));
    let range = |m: &Mapping| FileRange { file: m.file, offset: m.offset, len: m.end - m.start };
    PendingSyscall::Synced { ranges: mappings.iter().map(range).collect(), how: SyncKind::Msync }
}

/// Only with all three flags are pages that were dirty before the call written when it returns. A length of 0 means to the end.
fn synced_file_range(thread: &mut Thread, call: &Syscall) -> PendingSyscall {
    let (offset, len, flags) = (call.get(1), call.get(2), call.get(3) as u32);
    let waits = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    if flags & waits != waits {
        return PendingSyscall::Nothing;
    }
    on_file(thread, call.fd(0), |file, open| {
        let len = if len == 0 { open.size.saturating_sub(offset) } else { len };
        PendingSyscall::Synced { ranges: vec![FileRange { file, offset, len }], how: SyncKind::SyncFileRange }
    })
}

/// What an `fsync` of each of these files would do.
fn synced_files(files: Vec<FileId>) -> PendingSyscall {
    let ranges = files.into_iter().map(|file| FileRange { file, offset: 0, len: u64::MAX });
    PendingSyscall::Synced { ranges: ranges.collect(), how: SyncKind::Fsync }
}

/// Continues with `then` if the descriptor is a PM file.
pub(super) fn on_file(
    thread: &mut Thread,
    fd: i32,
    then: impl FnOnce(FileId, &OpenFile) -> PendingSyscall,
) -> PendingSyscall {
    let Some(open) = OpenFile::from_fd(fd) else { return PendingSyscall::Nothing };
    if !PM.is_pm(open.inode, &open.path) {
        return PendingSyscall::Nothing;
    }
    let file = PM.announce_file(thread, open.inode, &open.path, open.size);
    then(file, &open)
}

fn written(thread: &mut Thread, fd: i32, position: Position) -> PendingSyscall {
    on_file(thread, fd, |file, open| PendingSyscall::Written { file, inode: open.inode, fd, position })
}

/// A PM file that pmvet knows, by name: its id, inode and number of links.
fn known_at(path: &Path) -> Option<(FileId, Inode, u64)> {
    use std::os::unix::fs::MetadataExt;
    if !PM.knows_any_file() {
        return None;
    }
    let found = std::fs::metadata(path).ok()?;
    let inode = (found.dev(), found.ino());
    Some((PM.known_file(inode)?, inode, found.nlink()))
}

fn opened(call: &Syscall, directory: Option<i32>, path: i32, flags: u64) -> PendingSyscall {
    let known = || {
        let path = call.path(directory, path)?;
        let (file, _, _) = known_at(&path)?;
        Some((file, std::fs::metadata(&path).ok()?.len()))
    };
    let truncates = flags as i32 & libc::O_TRUNC != 0;
    if truncates && PM.knows_any_file() { PendingSyscall::Opened { known: known() } } else { PendingSyscall::Nothing }
}

fn moved(call: &Syscall, from: (Option<i32>, i32), to: (Option<i32>, i32)) -> PendingSyscall {
    let known = call.path(from.0, from.1).and_then(|path| known_at(&path));
    match (known, call.path(to.0, to.1)) {
        (Some((file, _, _)), Some(to)) => PendingSyscall::Moved { file, to },
        _ => PendingSyscall::Nothing,
    }
}

fn deleted(call: &Syscall, directory: Option<i32>, path: i32) -> PendingSyscall {
    let known = call.path(directory, path).and_then(|path| known_at(&path));
    known.map_or(PendingSyscall::Nothing, |(file, inode, links)| PendingSyscall::Deleted {
        file,
        inode,
        last_link: links == 1,
    })
}

/// Memory that contains held spin locks may be about to be unmapped.
pub(crate) fn forget_spin_locks(call: &Syscall, number: i64) {
    if let Some((start, len)) = memory_taken_away(call, number) {
        held_spin_locks::forget_range(start, len);
    }
}

/// Memory that a call may unmap.
fn memory_taken_away(call: &Syscall, number: i64) -> Option<(u64, u64)> {
    let range = (call.get(0), whole_pages(call.get(1)));
    match number {
        libc::SYS_munmap | libc::SYS_mremap => Some(range),
        libc::SYS_mmap if call.get(3) as i32 & libc::MAP_FIXED != 0 => Some(range),
        libc::SYS_mprotect if call.get(2) as i32 & libc::PROT_READ == 0 => Some(range),
        libc::SYS_brk if call.get(0) != 0 => Some((call.get(0), u64::MAX >> 17)),
        _ => None,
    }
}
