//! Private mappings: runs of a fuzzer that leave the PM files unchanged.
//!
//! A fuzzer needs only the coverage of most runs. Such a run gets private mappings in place of the shared ones of its
//! server, so that the files need not be restored for the next run.
//!
//! This works as long as the target reaches PM only through these mappings. A run that is about to reach it in another way,
//! through a descriptor or in another process, reports this and ends, and pmvet repeats it with shared mappings.

use core::ffi::c_void;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::dynamorio::{Inode, Region, Syscall, regions};
use crate::record::open_file::OpenFile;
use crate::record::pm::PM;
use crate::record::syscalls::{self, clone};

#[derive(Default)]
pub(crate) struct PrivateMappings {
    /// The mapped PM files, each opened once more, because the target may close its own descriptor.
    files: Mutex<HashMap<Inode, OwnedFd>>,
    /// The shared mappings of this process and their files. Empty unless its runs can have private ones.
    views: Mutex<Vec<(Region, i32)>>,
    /// This process is a run with private mappings.
    active: AtomicBool,
}

/// The lowest descriptor that the client uses: above those that a target usually gets.
const FIRST_DESCRIPTOR: i32 = 512;

impl PrivateMappings {
    /// The target has mapped a PM file.
    pub(crate) fn mapped(&self, inode: Inode, fd: i32) {
        let mut files = lock(&self.files);
        if files.contains_key(&inode) {
            return;
        }
        // Not a duplicate, which would share its lock with the target's own.
        let Ok(file) = File::open(format!("/proc/self/fd/{fd}")) else { return };
        // SAFETY: a new descriptor, which nobody else owns, or an error.
        unsafe {
            let high = libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR);
            if high >= 0 {
                files.insert(inode, OwnedFd::from_raw_fd(high));
            }
        }
    }

    /// This process is a server from now on. Returns whether its runs can have private mappings.
    pub(crate) fn prepare_server(&self) -> bool {
        self.active.store(false, Ordering::Relaxed);
        let files = lock(&self.files);
        let shared = |region: &Region| region.shared && !PM.overlaps(region.start, region.len()).is_empty();
        let views: Vec<Region> = regions().into_iter().filter(shared).collect();
        // A private store to one of two mappings of the same bytes would not show in the other.
        let doubled = views.iter().enumerate().any(|(i, a)| views[..i].iter().any(|b| a.overlaps_in_file(b)));
        let view = |region: Region| Some((region, files.get(&region.inode)?.as_raw_fd()));
        let views: Option<Vec<_>> = views.into_iter().map(view).collect();
        *lock(&self.views) = views.filter(|_| !doubled).unwrap_or_default();
        !lock(&self.views).is_empty()
    }

    /// This process is a run with private mappings. Returns whether it has got all of them.
    pub(crate) fn make_private(&self) -> bool {
        self.active.store(true, Ordering::Relaxed);
        lock(&self.views).iter().all(|(region, fd)| {
            let (at, len, offset) = (region.start as *mut c_void, region.len() as usize, region.offset as i64);
            let how = libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_NORESERVE;
            // SAFETY: maps the same bytes in the same place.
            unsafe { libc::mmap(at, len, region.protection, how, *fd, offset) != libc::MAP_FAILED }
        })
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// Whether a call that is about to be made accesses PM other than through a mapping of this process.
    pub(crate) fn is_bypassed_by(&self, call: &Syscall, number: i64) -> bool {
        let pm = |index| self.is_pm(call.fd(index));
        let on_mapping = || !PM.overlaps(call.get(0), call.get(1)).is_empty();
        match number {
            _ if syscalls::reads(number) => pm(0),
            libc::SYS_write
            | libc::SYS_pwrite64
            | libc::SYS_writev
            | libc::SYS_pwritev
            | libc::SYS_pwritev2
            | libc::SYS_ftruncate
            | libc::SYS_fallocate
            | libc::SYS_dup
            | libc::SYS_dup2
            | libc::SYS_dup3 => pm(0),
            libc::SYS_fcntl => matches!(call.fd(1), libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) && pm(0),
            libc::SYS_sendfile => pm(0) || pm(1),
            libc::SYS_splice | libc::SYS_copy_file_range => pm(0) || pm(2),
            libc::SYS_mmap => call.fd(3) & libc::MAP_ANONYMOUS == 0 && pm(4),
            libc::SYS_mremap => on_mapping(),
            libc::SYS_madvise => {
                matches!(call.fd(2), libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_REMOVE) && on_mapping()
            }
            libc::SYS_fork | libc::SYS_vfork | libc::SYS_execve | libc::SYS_execveat => true,
            libc::SYS_clone | libc::SYS_clone3 => !clone::makes_thread(number, &|i| call.get(i)),
            libc::SYS_truncate | libc::SYS_io_uring_setup | libc::SYS_io_setup => true,
            _ => false,
        }
    }

    /// The same after a call: only now is it known which file it has opened.
    pub(crate) fn was_bypassed_by(&self, number: i64, result: i64) -> bool {
        let opens = [libc::SYS_open, libc::SYS_openat, libc::SYS_openat2, libc::SYS_creat].contains(&number);
        opens && result >= 0 && self.is_pm(result as i32)
    }

    fn is_pm(&self, fd: i32) -> bool {
        OpenFile::from_fd(fd).is_some_and(|file| PM.is_pm(file.inode, &file.path))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
