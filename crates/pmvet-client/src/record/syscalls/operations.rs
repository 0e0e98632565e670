//! Operations and answers of the target: reads of its operations, and output.
//!
//! The operations are lines of a regular file. The target gets one line at a time, as from a terminal, so that what it does between two
//! reads is one operation. A program that wants more at once reads again, as it must with a pipe.

use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use pmvet_events::event::What;
use pmvet_events::plan::OperationsFrom;

use super::{connections, kernel_reads, reads};
use crate::dynamorio::{self, Inode, Syscall};
use crate::record::open_file::stat;
use crate::record::thread::Thread;
use crate::run::run;

/// Which files the operations come from and the answers go to.
struct Ends {
    operations: Option<Inode>,
    output: Option<Inode>,
}

/// Determined at the target's first call: later it may have replaced them.
fn ends() -> Option<&'static Ends> {
    static ENDS: OnceLock<Ends> = OnceLock::new();
    let from = run().plan.operations.as_ref()?;
    Some(ENDS.get_or_init(|| Ends {
        operations: match from {
            OperationsFrom::Input => inode(0),
            OperationsFrom::File(path) => std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino())),
            OperationsFrom::Connections => None,
        },
        output: inode(1),
    }))
}

/// The file of a descriptor.
fn inode(fd: i32) -> Option<Inode> {
    stat(fd).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Before a call: a read of the operations gets one line.
pub(crate) fn limit(thread: &mut Thread, call: &Syscall, number: i64) {
    let Some(ends) = ends() else { return };
    let fd = call.fd(0);
    let at = match number {
        // SAFETY: asks for the position of a descriptor.
        libc::SYS_read => unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) },
        libc::SYS_pread64 => call.get(3) as i64,
        _ => return,
    };
    if at < 0 || ends.operations.is_none() || inode(fd) != ends.operations {
        return;
    }
    let wanted = call.get(2);
    if let Some(len) = line_length(fd, at, wanted)
        && len < wanted
    {
        call.replace(thread, 2, len);
    }
}

/// How many bytes there are up to the end of a line, if that is among the next `most`.
fn line_length(fd: i32, at: i64, most: u64) -> Option<u64> {
    let mut seen = 0;
    let mut buffer = [0u8; 4096];
    while seen < most {
        // SAFETY: reads into `buffer`, no more than it holds.
        let read = unsafe { libc::pread(fd, buffer.as_mut_ptr().cast(), buffer.len(), at + seen as i64) };
        let found = buffer.get(..usize::try_from(read).ok().filter(|&read| read > 0)?)?;
        if let Some(end) = found.iter().position(|&byte| byte == b'\n') {
            return Some(seen + end as u64 + 1);
        }
        seen += found.len() as u64;
    }
    None
}

/// After a call that succeeded with `result`.
pub(crate) fn report(thread: &mut Thread, call: &Syscall, number: i64, result: u64) {
    let Some(ends) = ends() else { return };
    if run().plan.operations == Some(OperationsFrom::Connections) {
        return connections::report(thread, call, number, result);
    }
    if reads(number) && ends.operations.is_some() && inode(call.fd(0)) == ends.operations {
        thread.emit_from(call, What::Input { len: result });
    }
    let writes = matches!(number, libc::SYS_write | libc::SYS_writev | libc::SYS_sendto | libc::SYS_sendmsg);
    if writes && result > 0 && is_output(call.fd(0), ends) {
        let lines = lines_in(&kernel_reads::memory(call, number), result);
        thread.emit_from(call, What::Output { len: result, lines });
    }
}

/// Whether a descriptor is an output: standard output, or a connection.
fn is_output(fd: i32, ends: &Ends) -> bool {
    stat(fd).is_some_and(|stat| {
        stat.st_mode & libc::S_IFMT == libc::S_IFSOCK || ends.output == Some((stat.st_dev, stat.st_ino))
    })
}

/// How many lines end in the first `len` bytes of these parts.
pub(super) fn lines_in(parts: &[(u64, u64)], mut len: u64) -> u64 {
    let mut lines = 0;
    let mut buffer = [0; 512];
    for &(mut at, size) in parts {
        let mut left = size.min(len);
        len -= left;
        while left > 0 {
            let wanted = left.min(buffer.len() as u64) as usize;
            let read = dynamorio::read_memory(at, &mut buffer[..wanted]);
            if read == 0 {
                break;
            }
            lines += buffer[..read].iter().filter(|&&byte| byte == b'\n').count() as u64;
            (at, left) = (at + read as u64, left - read as u64);
        }
    }
    lines
}
