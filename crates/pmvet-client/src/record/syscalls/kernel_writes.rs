//! Memory that the kernel writes for the target, by system call.

use crate::dynamorio;

/// Memory that a call may write, and how much of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buffer {
    addr: u64,
    len: Len,
}

impl Buffer {
    pub(super) fn addr(&self) -> u64 {
        self.addr
    }

    /// Its length, unless the call decides that.
    pub(super) fn most(&self) -> u64 {
        match self.len {
            Len::Fixed(len) | Len::Vector(len) => len,
            Len::Result | Len::Records(_) => 0,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Len {
    /// As many bytes as the call returns.
    Result,
    Fixed(u64),
    /// Part of a vector that the result fills in order.
    Vector(u64),
    /// As many records of this size as the call returns.
    Records(u64),
}

/// Size of the kernel's `struct stat`.
const STAT_BYTES: u64 = 144;

/// Calls with buffers: the argument, and the length.
const CALLS: &[(i64, i32, Len)] = &[
    (libc::SYS_read, 1, Len::Result),
    (libc::SYS_pread64, 1, Len::Result),
    (libc::SYS_recvfrom, 1, Len::Result),
    (libc::SYS_getrandom, 0, Len::Result),
    (libc::SYS_getdents64, 1, Len::Result),
    (libc::SYS_getcwd, 0, Len::Result),
    (libc::SYS_readlink, 1, Len::Result),
    (libc::SYS_readlinkat, 2, Len::Result),
    (libc::SYS_getxattr, 2, Len::Result),
    (libc::SYS_fgetxattr, 2, Len::Result),
    (libc::SYS_stat, 1, Len::Fixed(STAT_BYTES)),
    (libc::SYS_fstat, 1, Len::Fixed(STAT_BYTES)),
    (libc::SYS_lstat, 1, Len::Fixed(STAT_BYTES)),
    (libc::SYS_newfstatat, 2, Len::Fixed(STAT_BYTES)),
    (libc::SYS_statx, 4, Len::Fixed(256)),
    (libc::SYS_statfs, 1, Len::Fixed(120)),
    (libc::SYS_fstatfs, 1, Len::Fixed(120)),
    (libc::SYS_uname, 0, Len::Fixed(390)),
    (libc::SYS_sysinfo, 0, Len::Fixed(112)),
    (libc::SYS_times, 0, Len::Fixed(32)),
    (libc::SYS_getrusage, 1, Len::Fixed(144)),
    (libc::SYS_clock_gettime, 1, Len::Fixed(16)),
    (libc::SYS_clock_getres, 1, Len::Fixed(16)),
    (libc::SYS_gettimeofday, 0, Len::Fixed(16)),
    (libc::SYS_pipe, 0, Len::Fixed(8)),
    (libc::SYS_pipe2, 0, Len::Fixed(8)),
    (libc::SYS_socketpair, 3, Len::Fixed(8)),
    (libc::SYS_epoll_wait, 1, Len::Records(12)),
    (libc::SYS_epoll_pwait, 1, Len::Records(12)),
    (libc::SYS_wait4, 1, Len::Fixed(4)),
];

pub(crate) fn writes_memory(number: i64) -> bool {
    CALLS.iter().any(|c| c.0 == number)
        || matches!(number, libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 | libc::SYS_recvmsg)
}

/// The buffers of a call that is about to be made.
pub(crate) fn buffers(number: i64, argument: &dyn Fn(i32) -> u64) -> Vec<Buffer> {
    match number {
        libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => vector(argument(1), argument(2)),
        libc::SYS_recvmsg => {
            let message = argument(1);
            let (Some(at), Some(count)) = (dynamorio::read_word(message + 16), dynamorio::read_word(message + 24))
            else {
                return Vec::new();
            };
            vector(at, count)
        }
        _ => {
            let found = CALLS.iter().filter(|c| c.0 == number);
            found.map(|&(_, index, len)| Buffer { addr: argument(index), len }).filter(|b| b.addr != 0).collect()
        }
    }
}

/// The parts of an `iovec` array of the target.
pub(super) fn vector(at: u64, count: u64) -> Vec<Buffer> {
    let entry = |i| {
        Some(Buffer {
            addr: dynamorio::read_word(at + i * 16)?,
            len: Len::Vector(dynamorio::read_word(at + i * 16 + 8)?),
        })
    };
    (0..count.min(1024)).map_while(entry).collect()
}

/// What was written, after the call returned `result`.
pub(crate) fn written(buffers: &[Buffer], result: u64) -> Vec<(u64, u64)> {
    let mut left = result;
    let ranges = buffers.iter().map(|b| {
        let len = match b.len {
            Len::Result => result,
            Len::Fixed(len) => len,
            Len::Records(size) => result * size,
            Len::Vector(len) => {
                let part = len.min(left);
                left -= part;
                part
            }
        };
        (b.addr, len)
    });
    ranges.filter(|r| r.1 != 0).collect()
}
