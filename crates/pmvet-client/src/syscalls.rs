//! System calls: mappings, changes to PM files, memory that the kernel writes, new threads and processes.
//!
//! A change made by the kernel is reported after the call by reading back what is there now, under the stripe locks of
//! the lines concerned. A store of another thread that came between is then reported twice with the same value, which does no harm;
//! one that comes later has a later number.

use core::ffi::c_void;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use dynamorio_sys::*;
use pmvet_events::event::{StoreKind, SyncKind, What};
use pmvet_events::ids::{ContextId, FileId, SiteId};
use pmvet_events::wire::MAX_DATA;

use crate::kernel_writes::{self, Buffer};
use crate::pm::{Inode, Mapping, OpenFile};
use crate::thread::Thread;
use crate::{client, counted, dr, taken};

/// What to do when the call under way returns.
#[derive(Debug, Default)]
pub(crate) enum Pending {
    #[default]
    Nothing,
    Map {
        file: FileId,
        inode: Inode,
        writable: bool,
    },
    /// Another mapping may replace PM.
    MapOther,
    Unmapped(Vec<Mapping>),
    Remap {
        old: Vec<Mapping>,
    },
    Written {
        file: FileId,
        inode: Inode,
        fd: i32,
        position: Position,
    },
    Resized {
        file: FileId,
        fd: i32,
    },
    Zeroed {
        file: FileId,
        fd: i32,
        offset: u64,
        len: u64,
    },
    Synced {
        file: FileId,
        offset: u64,
        len: u64,
        how: SyncKind,
    },
    /// A file that may have been truncated by being opened.
    Opened {
        known: Option<(FileId, u64)>,
    },
    Moved {
        file: FileId,
        to: PathBuf,
    },
    Deleted {
        file: FileId,
        inode: Inode,
        last_link: bool,
    },
    Buffers(Vec<Buffer>),
    /// Random bytes or a UUID were read from a device; deterministic runs get others.
    Random {
        buffer: u64,
        uuid: bool,
    },
}

/// Where a write went.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Position {
    At(u64),
    /// It ends at the file's position.
    Current,
}

pub(crate) unsafe extern "C" fn is_interesting(_dc: *mut c_void, number: i32) -> bool_ {
    let number = i64::from(number);
    let deterministic = client().plan.deterministic;
    if client().forks.is_some() || client().plan.in_step && number != libc::SYS_sched_yield {
        return 1;
    }
    let yes = kernel_writes::writes_memory(number)
        || may_block(number)
        || matches!(
            number,
            libc::SYS_mmap
                | libc::SYS_munmap
                | libc::SYS_mremap
                | libc::SYS_madvise
                | libc::SYS_mprotect
                | libc::SYS_brk
                | libc::SYS_msync
                | libc::SYS_write
                | libc::SYS_pwrite64
                | libc::SYS_writev
                | libc::SYS_pwritev
                | libc::SYS_pwritev2
                | libc::SYS_sendfile
                | libc::SYS_splice
                | libc::SYS_copy_file_range
                | libc::SYS_ftruncate
                | libc::SYS_truncate
                | libc::SYS_fallocate
                | libc::SYS_fsync
                | libc::SYS_fdatasync
                | libc::SYS_sync_file_range
                | libc::SYS_open
                | libc::SYS_openat
                | libc::SYS_openat2
                | libc::SYS_creat
                | libc::SYS_rename
                | libc::SYS_renameat
                | libc::SYS_renameat2
                | libc::SYS_unlink
                | libc::SYS_unlinkat
                | libc::SYS_clone
                | libc::SYS_clone3
                | libc::SYS_fork
                | libc::SYS_vfork
                | libc::SYS_execve
                | libc::SYS_execveat
                | libc::SYS_close_range
                | libc::SYS_stat
                | libc::SYS_newfstatat
                | libc::SYS_statx
                | libc::SYS_access
                | libc::SYS_faccessat
                | libc::SYS_faccessat2
                | libc::SYS_io_uring_setup
                | libc::SYS_io_setup
                | libc::SYS_rt_sigaction
                | libc::SYS_rt_sigprocmask
                | libc::SYS_rt_sigsuspend
        )
        || deterministic && matches!(number, libc::SYS_clock_gettime | libc::SYS_gettimeofday | libc::SYS_time);
    yes.into()
}

/// Calls that wait, and that a signal ends early unless its handler asks for them to be restarted. DynamoRIO restarts all that the client
/// does not want to see: a server that its SIGTERM is to wake would wait for ever. Not `futex`, which threads call too often: `sem_wait` goes on
/// after a signal.
fn may_block(number: i64) -> bool {
    matches!(
        number,
        libc::SYS_accept
            | libc::SYS_accept4
            | libc::SYS_connect
            | libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_sendmmsg
            | libc::SYS_recvmmsg
            | libc::SYS_flock
            | libc::SYS_fcntl
            | libc::SYS_waitid
            | libc::SYS_mq_timedsend
            | libc::SYS_mq_timedreceive
    )
}

/// Whether a call reads from a descriptor, its first argument.
pub(crate) fn reads(number: i64) -> bool {
    matches!(number, libc::SYS_read | libc::SYS_pread64 | libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2)
}

/// The C library's `fstat` names a path, an empty one, and the sandbox stops whoever names a path, which takes longer than all
/// the rest. Another call asks for the same without one. Returns the number of the call that is made.
fn name_no_path(thread: &mut Thread, arguments: &Arguments, number: i64) -> i64 {
    let by_descriptor = number == libc::SYS_newfstatat
        && arguments.fd(0) >= 0
        && arguments.fd(3) == libc::AT_EMPTY_PATH
        && dr::read_c_string(arguments.get(1)).is_some_and(|path| path.is_empty());
    if !by_descriptor {
        return number;
    }
    arguments.replace(thread, 1, arguments.get(2));
    arguments.replace_call(libc::SYS_fstat);
    libc::SYS_fstat
}

/// The arguments of the call under way.
pub(crate) struct Arguments(*mut c_void);

impl Arguments {
    pub(crate) fn get(&self, index: i32) -> u64 {
        // SAFETY: from within a system call event of this thread.
        unsafe { dr_syscall_get_param(self.0, index) }
    }

    pub(crate) fn fd(&self, index: i32) -> i32 {
        self.get(index) as i32
    }

    /// Replaces an argument for the kernel. The target gets its own back after the call.
    pub(crate) fn replace(&self, thread: &mut Thread, index: i32, value: u64) {
        thread.replaced.push((index, self.get(index)));
        // SAFETY: as above.
        unsafe { dr_syscall_set_param(self.0, index, value) }
    }

    /// Makes it another call.
    pub(crate) fn replace_call(&self, number: i64) {
        // SAFETY: as above.
        unsafe { dr_syscall_set_sysnum(self.0, number as i32) }
    }

    /// A path argument, made absolute.
    pub(crate) fn path(&self, directory: Option<i32>, index: i32) -> Option<PathBuf> {
        let text = dr::read_c_string(self.get(index))?;
        let path = PathBuf::from(OsString::from_vec(text));
        if path.is_absolute() {
            return Some(path);
        }
        let base = match directory.map(|i| self.fd(i)) {
            None | Some(libc::AT_FDCWD) => std::fs::read_link("/proc/self/cwd").ok()?,
            Some(fd) => std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?,
        };
        Some(base.join(path))
    }
}

pub(crate) unsafe extern "C" fn before(dc: *mut c_void, number: i32) -> bool_ {
    let Some(thread) = Thread::try_current() else { return 1 };
    let arguments = Arguments(dc);
    // DynamoRIO asks for calls that nobody is interested in, too, among them the one that spinning threads make.
    if i64::from(number) == libc::SYS_sched_yield {
        client().schedule.yields();
    }
    // SAFETY: only looks at the number.
    if !client().plan.in_step && unsafe { is_interesting(dc, number) } == 0 {
        return 1;
    }
    let mut number = i64::from(number);
    thread.replaced.clear();
    let takes_lock = thread.waits.sp != 0;
    if !takes_lock {
        client().pace.leave(thread.id);
    }
    client().signals.started();
    match number {
        libc::SYS_rt_sigaction => client().signals.before_sigaction(thread, &arguments),
        libc::SYS_rt_sigprocmask => client().signals.before_sigprocmask(thread, &arguments),
        libc::SYS_rt_sigsuspend => client().signals.before_sigsuspend(thread, &arguments),
        _ => {}
    }
    if let Some(forks) = &client().forks {
        forks.before(dc, &arguments, number);
        number = name_no_path(thread, &arguments, number);
    }
    if client().plan.deterministic && answer(&arguments, dc, number) {
        return 0;
    }
    if client().counts() {
        if let Some(result) = counted::answer(&arguments, number) {
            // SAFETY: from within a pre-syscall event that skips the call.
            unsafe { dr_syscall_set_result(dc, result as u64) };
            return 0;
        }
        counted::name_itself(thread, &arguments, number);
    }
    if number == libc::SYS_mmap && arguments.get(3) as i32 & libc::MAP_FIXED_NOREPLACE != 0 {
        // DynamoRIO drops the address of such a call but not the flag.
        if dr::is_mapped(arguments.get(0), whole_pages(arguments.get(1))) {
            // SAFETY: from within a pre-syscall event that skips the call.
            unsafe { dr_syscall_set_result(dc, -i64::from(libc::EEXIST) as u64) };
            return 0;
        }
        let flags = arguments.get(3) & !(libc::MAP_FIXED_NOREPLACE as u64) | libc::MAP_FIXED as u64;
        arguments.replace(thread, 3, flags);
    }
    own_executable(thread, &arguments, number);
    if number == libc::SYS_close_range {
        close_what_is_open(thread, &arguments);
    }
    if client().plan.races
        && let Some((start, len)) = taken_away(&arguments, number)
    {
        taken::forget(start, len);
    }
    thread.syscall = prepare(thread, &arguments, number);
    1
}

/// Memory that may not be there any more after a call.
fn taken_away(arguments: &Arguments, number: i64) -> Option<(u64, u64)> {
    let range = (arguments.get(0), whole_pages(arguments.get(1)));
    match number {
        libc::SYS_munmap | libc::SYS_mremap => Some(range),
        libc::SYS_mmap if arguments.get(3) as i32 & libc::MAP_FIXED != 0 => Some(range),
        libc::SYS_mprotect if arguments.get(2) as i32 & libc::PROT_READ == 0 => Some(range),
        libc::SYS_brk if arguments.get(0) != 0 => Some((arguments.get(0), u64::MAX >> 17)),
        _ => None,
    }
}

/// DynamoRIO looks at every descriptor that a `close_range` names, up to four billion. Only those that are open matter.
fn close_what_is_open(thread: &mut Thread, arguments: &Arguments) {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let highest = entries.filter_map(|e| e.file_name().to_str()?.parse::<u64>().ok()).max().unwrap_or(0);
    if arguments.get(1) > highest {
        arguments.replace(thread, 1, highest.max(arguments.get(0)));
    }
}

/// For the kernel the target's executable is DynamoRIO, which started it. Paths that lead there are made to lead to the
/// target's own.
fn own_executable(thread: &mut Thread, arguments: &Arguments, number: i64) {
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
    let Some(path) = dr::read_c_string(arguments.get(index)).and_then(|p| String::from_utf8(p).ok()) else { return };
    let Some(who) = path.strip_prefix("/proc/").and_then(|p| p.strip_suffix("/exe")) else { return };
    if who == "self" || who == "thread-self" || who == dr::process().to_string() {
        arguments.replace(thread, index, client().executable.as_ptr() as u64);
    }
}

fn prepare(thread: &mut Thread, arguments: &Arguments, number: i64) -> Pending {
    match number {
        libc::SYS_mmap => map(thread, arguments),
        libc::SYS_munmap => unmap(thread, arguments.get(0), whole_pages(arguments.get(1))),
        libc::SYS_mremap => {
            let old = client().pm.overlaps(arguments.get(0), whole_pages(arguments.get(1)));
            if old.is_empty() { Pending::Nothing } else { Pending::Remap { old } }
        }
        libc::SYS_madvise => advise(arguments),
        libc::SYS_msync => {
            let found = client().pm.overlaps(arguments.get(0), arguments.get(1)).pop();
            found.map_or(Pending::Nothing, |m| Pending::Synced {
                file: m.file,
                offset: m.offset,
                len: m.end - m.start,
                how: SyncKind::Msync,
            })
        }
        libc::SYS_write | libc::SYS_writev => written(thread, arguments.fd(0), Position::Current),
        libc::SYS_pwrite64 | libc::SYS_pwritev => written(thread, arguments.fd(0), Position::At(arguments.get(3))),
        libc::SYS_pwritev2 => {
            let at = arguments.get(3);
            written(thread, arguments.fd(0), if at as i64 == -1 { Position::Current } else { Position::At(at) })
        }
        libc::SYS_sendfile => written(thread, arguments.fd(0), Position::Current),
        libc::SYS_splice | libc::SYS_copy_file_range => {
            let position = match arguments.get(3) {
                0 => Position::Current,
                pointer => dr::read_word(pointer).map_or(Position::Current, Position::At),
            };
            written(thread, arguments.fd(2), position)
        }
        libc::SYS_ftruncate => {
            on_file(thread, arguments.fd(0), |file, _| Pending::Resized { file, fd: arguments.fd(0) })
        }
        libc::SYS_truncate => {
            let known = arguments.path(None, 0).and_then(|path| known_at(&path));
            known.map_or(Pending::Nothing, |(file, _, _)| {
                // Reported at once: there is no descriptor to look at afterwards.
                thread.emit(What::FileResize { file, size: arguments.get(1) });
                Pending::Nothing
            })
        }
        libc::SYS_fallocate => {
            const PUNCH_HOLE: u64 = 2;
            const ZERO_RANGE: u64 = 16;
            let (fd, how) = (arguments.fd(0), arguments.get(1));
            on_file(thread, fd, |file, _| {
                if how & (PUNCH_HOLE | ZERO_RANGE) != 0 {
                    Pending::Zeroed { file, fd, offset: arguments.get(2), len: arguments.get(3) }
                } else {
                    Pending::Resized { file, fd }
                }
            })
        }
        libc::SYS_fsync | libc::SYS_fdatasync => {
            let how = if number == libc::SYS_fsync { SyncKind::Fsync } else { SyncKind::Fdatasync };
            on_file(thread, arguments.fd(0), |file, open| Pending::Synced { file, offset: 0, len: open.size, how })
        }
        libc::SYS_sync_file_range => on_file(thread, arguments.fd(0), |file, _| Pending::Synced {
            file,
            offset: arguments.get(1),
            len: arguments.get(2),
            how: SyncKind::SyncFileRange,
        }),
        libc::SYS_open => opened(arguments, None, 0, arguments.get(1)),
        libc::SYS_creat => opened(arguments, None, 0, libc::O_TRUNC as u64),
        libc::SYS_openat => opened(arguments, Some(0), 1, arguments.get(2)),
        libc::SYS_openat2 => opened(arguments, Some(0), 1, dr::read_word(arguments.get(2)).unwrap_or(0)),
        libc::SYS_rename => moved(arguments, (None, 0), (None, 1)),
        libc::SYS_renameat | libc::SYS_renameat2 => moved(arguments, (Some(0), 1), (Some(2), 3)),
        libc::SYS_unlink => deleted(arguments, None, 0),
        libc::SYS_unlinkat => deleted(arguments, Some(0), 1),
        libc::SYS_clone | libc::SYS_clone3 | libc::SYS_fork | libc::SYS_vfork => {
            crate::processes::before_clone(thread, number, &|i| arguments.get(i));
            Pending::Nothing
        }
        libc::SYS_execve | libc::SYS_execveat => {
            let path = if number == libc::SYS_execve { arguments.path(None, 0) } else { arguments.path(Some(0), 1) };
            let path = path.unwrap_or_default();
            thread.emit(What::Exec { path: &path });
            Pending::Nothing
        }
        libc::SYS_io_uring_setup | libc::SYS_io_setup => {
            thread.emit(What::Unsupported { addr: 0, size: 0, why: "asynchronous input and output is not followed" });
            Pending::Nothing
        }
        _ => {
            if client().plan.deterministic
                && number == libc::SYS_read
                && let Some(random) = crate::processes::random_source(arguments.fd(0))
            {
                return Pending::Random { buffer: arguments.get(1), uuid: random };
            }
            if client().pm.is_empty() {
                return Pending::Nothing;
            }
            match kernel_writes::buffers(number, &|i| arguments.get(i)) {
                buffers if buffers.is_empty() => Pending::Nothing,
                buffers => Pending::Buffers(buffers),
            }
        }
    }
}

fn map(thread: &mut Thread, arguments: &Arguments) -> Pending {
    let (addr, len, protection, flags) =
        (arguments.get(0), whole_pages(arguments.get(1)), arguments.get(2) as i32, arguments.get(3) as i32);
    let sharing = flags & libc::MAP_TYPE;
    let shared = sharing == libc::MAP_SHARED || sharing == libc::MAP_SHARED_VALIDATE;
    let other = || if client().pm.overlaps(addr, len).is_empty() { Pending::Nothing } else { Pending::MapOther };
    if !shared || flags & libc::MAP_ANONYMOUS != 0 {
        return other();
    }
    let fd = arguments.fd(4);
    let Some(open) = OpenFile::of(fd) else { return other() };
    if flags & libc::MAP_SYNC != 0 {
        client().pm.claim(open.inode);
    }
    if !client().pm.is_pm(open.inode, &open.path) && !OpenFile::is_dax(fd) {
        return other();
    }
    let file = client().pm.contact(thread, open.inode, &open.path, open.size);
    if addr == 0 && flags & libc::MAP_FIXED == 0 {
        arguments.replace(thread, 0, client().pm.hint(len));
    }
    Pending::Map { file, inode: open.inode, writable: protection & libc::PROT_WRITE != 0 }
}

/// The kernel maps and unmaps whole pages.
fn whole_pages(len: u64) -> u64 {
    len.checked_next_multiple_of(4096).unwrap_or(len)
}

fn unmap(thread: &mut Thread, addr: u64, len: u64) -> Pending {
    let gone = client().pm.remove(addr, len);
    if gone.is_empty() {
        return Pending::Nothing;
    }
    // Before the call: afterwards another thread may already have something else there.
    for part in &gone {
        thread.emit(What::Unmap { addr: part.start, len: part.end - part.start });
    }
    Pending::Unmapped(gone)
}

fn advise(arguments: &Arguments) -> Pending {
    if arguments.get(2) as i32 != libc::MADV_REMOVE {
        return Pending::Nothing;
    }
    let found = client().pm.overlaps(arguments.get(0), arguments.get(1)).pop();
    found.map_or(Pending::Nothing, |m| Pending::Zeroed { file: m.file, fd: -1, offset: m.offset, len: m.end - m.start })
}

/// Continues with `then` if the descriptor is a PM file.
fn on_file(thread: &mut Thread, fd: i32, then: impl FnOnce(FileId, &OpenFile) -> Pending) -> Pending {
    let Some(open) = OpenFile::of(fd) else { return Pending::Nothing };
    if !client().pm.is_pm(open.inode, &open.path) {
        return Pending::Nothing;
    }
    let file = client().pm.contact(thread, open.inode, &open.path, open.size);
    then(file, &open)
}

fn written(thread: &mut Thread, fd: i32, position: Position) -> Pending {
    on_file(thread, fd, |file, open| Pending::Written { file, inode: open.inode, fd, position })
}

/// A PM file that pmvet knows, by name: its id, inode and number of links.
fn known_at(path: &Path) -> Option<(FileId, Inode, u64)> {
    use std::os::unix::fs::MetadataExt;
    if !client().pm.any_known() {
        return None;
    }
    let found = std::fs::metadata(path).ok()?;
    let inode = (found.dev(), found.ino());
    Some((client().pm.known(inode)?, inode, found.nlink()))
}

fn opened(arguments: &Arguments, directory: Option<i32>, path: i32, flags: u64) -> Pending {
    let known = || {
        let path = arguments.path(directory, path)?;
        let (file, _, _) = known_at(&path)?;
        Some((file, std::fs::metadata(&path).ok()?.len()))
    };
    let truncates = flags as i32 & libc::O_TRUNC != 0;
    if truncates && client().pm.any_known() { Pending::Opened { known: known() } } else { Pending::Nothing }
}

fn moved(arguments: &Arguments, from: (Option<i32>, i32), to: (Option<i32>, i32)) -> Pending {
    let known = arguments.path(from.0, from.1).and_then(|path| known_at(&path));
    match (known, arguments.path(to.0, to.1)) {
        (Some((file, _, _)), Some(to)) => Pending::Moved { file, to },
        _ => Pending::Nothing,
    }
}

fn deleted(arguments: &Arguments, directory: Option<i32>, path: i32) -> Pending {
    let known = arguments.path(directory, path).and_then(|path| known_at(&path));
    known.map_or(Pending::Nothing, |(file, inode, links)| Pending::Deleted { file, inode, last_link: links == 1 })
}

pub(crate) unsafe extern "C" fn after(dc: *mut c_void, number: i32) {
    let Some(thread) = Thread::try_current() else { return };
    client().pace.enter(thread);
    // SAFETY: from within a system call event of this thread.
    let result = unsafe { dr_syscall_get_result(dc) } as i64;
    let pending = std::mem::take(&mut thread.syscall);
    // The pending work below looks at the arguments as the kernel saw them.
    let replaced = std::mem::take(&mut thread.replaced);
    let failed = (-4095..0).contains(&result);
    match pending {
        Pending::Unmapped(parts) if failed => {
            for part in parts {
                remember(thread, part, true);
            }
        }
        _ if failed => {}
        pending => finish(thread, &Arguments(dc), pending, result as u64),
    }
    if client().counts() {
        counted::after(dc, &Arguments(dc), i64::from(number), result);
    }
    if client().plan.deterministic && !failed {
        crate::determinism::fix_file_times(i64::from(number), &|i| Arguments(dc).get(i));
    }
    for (index, value) in replaced {
        dr::restore_argument(index, value);
    }
}

fn finish(thread: &mut Thread, arguments: &Arguments, pending: Pending, result: u64) {
    match pending {
        Pending::Nothing | Pending::Unmapped(_) => {}
        Pending::Map { file, inode, writable } => {
            let len = whole_pages(arguments.get(1));
            replaced(thread, result, len);
            let mapping = Mapping { start: result, end: result + len, file, inode: inode.1, offset: arguments.get(5) };
            remember(thread, mapping, writable);
            if let Some(forks) = &client().forks {
                forks.mapped(inode, arguments.fd(4));
            }
        }
        Pending::MapOther => replaced(thread, result, whole_pages(arguments.get(1))),
        Pending::Remap { old } => {
            let (from, old_len, new_len) =
                (arguments.get(0), whole_pages(arguments.get(1)), whole_pages(arguments.get(2)));
            replaced(thread, from, old_len);
            replaced(thread, result, new_len);
            if let Some(first) = old.iter().min_by_key(|m| m.start) {
                let mapping = Mapping { start: result, end: result + new_len, ..*first };
                remember(thread, mapping, true);
            }
        }
        Pending::Written { file, inode, fd, position } => {
            report_written(thread, file, inode, fd, position, result);
        }
        Pending::Resized { file, fd } => {
            if let Some(open) = OpenFile::of(fd) {
                thread.emit(What::FileResize { file, size: open.size });
            }
        }
        Pending::Zeroed { file, fd, offset, len } => {
            thread.emit(What::FileZero { file, offset, len });
            if let Some(open) = OpenFile::of(fd) {
                thread.emit(What::FileResize { file, size: open.size });
            }
        }
        Pending::Synced { file, offset, len, how } => {
            thread.emit(What::FileSync { file, offset, len, how });
        }
        Pending::Opened { known } => {
            if let Some((file, size)) = known
                && size != 0
            {
                thread.emit(What::FileResize { file, size: 0 });
            }
        }
        Pending::Moved { file, to } => {
            thread.emit(What::FileRename { file, to: &to });
        }
        Pending::Deleted { file, inode, last_link } => {
            thread.emit(What::FileUnlink { file });
            // A mapped file lives on; only its name is gone. An unmapped one frees its inode for others.
            if last_link && !client().pm.is_mapped(file) {
                client().pm.forget(inode);
            }
        }
        Pending::Buffers(buffers) => {
            for (addr, len) in kernel_writes::written(&buffers, result) {
                for part in client().pm.overlaps(addr, len) {
                    let len = part.end - part.start;
                    thread.lock_ranges(&[(part.start, len as u32)]);
                    thread.report_memory(SiteId(0), ContextId(0), part.start, len, StoreKind::Kernel);
                    thread.finish_access();
                }
            }
        }
        Pending::Random { buffer, uuid } => {
            let mut bytes = vec![0; result as usize];
            if uuid {
                dr::read_memory(buffer, &mut bytes);
                client().fixed.fill_uuid(&mut bytes);
            } else {
                client().fixed.fill(&mut bytes);
            }
            dr::write_memory(buffer, &bytes);
        }
    }
}

fn remember(thread: &mut Thread, mapping: Mapping, writable: bool) {
    let near_code = client().pm.add(mapping);
    client().watch_memory(near_code);
    let Mapping { start, end, file, offset, .. } = mapping;
    thread.emit(What::Map { file, addr: start, len: end - start, offset, writable });
}

/// Whatever PM was mapped here is not there any more.
fn replaced(thread: &mut Thread, addr: u64, len: u64) {
    for part in client().pm.remove(addr, len) {
        thread.emit(What::Unmap { addr: part.start, len: part.end - part.start });
    }
}

fn report_written(thread: &mut Thread, file: FileId, inode: Inode, fd: i32, position: Position, len: u64) {
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
                thread.emit(What::FileWrite { file, offset: start + done, data: &data[..read] });
                done += read as u64;
            }
        }
    }
    thread.finish_access();
}

/// Answers a call in place of the kernel, for a deterministic run.
fn answer(arguments: &Arguments, dc: *mut c_void, number: i64) -> bool {
    let fixed = &client().fixed;
    let two_words = |at: u64, first: u64, second: u64| {
        if at != 0 {
            dr::write_memory(at, &[first.to_le_bytes(), second.to_le_bytes()].concat());
        }
    };
    let result = match number {
        libc::SYS_clock_gettime => {
            let now = fixed.now();
            two_words(arguments.get(1), now / 1_000_000_000, now % 1_000_000_000);
            0
        }
        libc::SYS_gettimeofday => {
            let now = fixed.now();
            two_words(arguments.get(0), now / 1_000_000_000, now % 1_000_000_000 / 1000);
            0
        }
        libc::SYS_time => {
            let seconds = fixed.now() / 1_000_000_000;
            if arguments.get(0) != 0 {
                dr::write_memory(arguments.get(0), &seconds.to_le_bytes());
            }
            seconds
        }
        libc::SYS_getrandom => {
            let mut bytes = vec![0; arguments.get(1).min(1 << 25) as usize];
            fixed.fill(&mut bytes);
            dr::write_memory(arguments.get(0), &bytes);
            bytes.len() as u64
        }
        _ => return false,
    };
    // SAFETY: from within a pre-syscall event that skips the call.
    unsafe { dr_syscall_set_result(dc, result) };
    true
}
