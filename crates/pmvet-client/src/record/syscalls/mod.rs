//! System calls: mappings, changes to PM files, memory that the kernel writes, new threads and processes.

pub(crate) mod after;
pub(crate) mod before;
pub(crate) mod clone;
mod connections;
mod kernel_reads;
mod kernel_writes;
pub(crate) mod operations;
pub(crate) mod pending;

use pmvet_events::event::What;
use pmvet_events::ids::SiteId;

use super::thread::Thread;
use crate::dynamorio::Syscall;

/// Whether recording needs to see a call.
pub(crate) fn is_recorded(number: i64) -> bool {
    kernel_writes::writes_memory(number)
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
                | libc::SYS_sync
                | libc::SYS_syncfs
                | libc::SYS_sync_file_range
                | libc::SYS_vmsplice
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
}

/// Calls that wait, and that a signal ends early unless its handler asks for a restart. DynamoRIO restarts all calls that the
/// client does not want to see, so a server that waits for SIGTERM would wait forever. `futex` is left out, because threads
/// call it too often; so `sem_wait` goes on after a signal.
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

impl Thread {
    /// Sends an event of a system call, with the call path to it.
    fn emit_from(&mut self, call: &Syscall, what: What<'_>) {
        let context = self.context(call.stack_pointer());
        self.emit_at(SiteId(0), context, what);
    }
}

impl Syscall {
    /// Replaces an argument for the kernel. The target gets its own back after the call.
    pub(crate) fn replace(&self, thread: &mut Thread, index: i32, value: u64) {
        thread.replaced_arguments.push((index, self.get(index)));
        self.set(index, value);
    }
}
