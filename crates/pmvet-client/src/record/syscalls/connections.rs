//! Requests and replies of a server: the connections that it accepts, and the data on them.
//!
//! Only accepted connections count: on others, such as those to another server or a pair of sockets to itself, a server gets no requests.
//! Reads are not shortened: an edge-triggered server may take a short read for the end of the available data.

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{PoisonError, RwLock};

use pmvet_events::event::What;
use pmvet_events::wire::MAX_DATA;

use super::operations::lines_in;
use super::{kernel_reads, kernel_writes};
use crate::dynamorio::{self, Syscall};
use crate::record::open_file::stat;
use crate::record::thread::Thread;

/// The accepted sockets, by inode. The kernel does not reuse a number for a long time.
static ACCEPTED: RwLock<Option<HashSet<u64>>> = RwLock::new(None);

/// After a call that succeeded with `result`.
pub(super) fn report(thread: &mut Thread, call: &Syscall, number: i64, result: u64) {
    match number {
        libc::SYS_accept | libc::SYS_accept4 => accepted(thread, call, result as i32),
        libc::SYS_read | libc::SYS_readv => requested(thread, call, number, result),
        libc::SYS_recvfrom if call.fd(3) & libc::MSG_PEEK == 0 => requested(thread, call, number, result),
        libc::SYS_recvmsg if call.fd(2) & libc::MSG_PEEK == 0 => requested(thread, call, number, result),
        libc::SYS_write | libc::SYS_writev | libc::SYS_sendto | libc::SYS_sendmsg if result > 0 => {
            if let Some(connection) = connection(call.fd(0)) {
                let lines = lines_in(&kernel_reads::memory(call, number), result);
                thread.emit_from(call, What::Reply { connection, len: result, lines });
            }
        }
        // From a file, whose lines are not counted.
        libc::SYS_sendfile if result > 0 => {
            if let Some(connection) = connection(call.fd(0)) {
                thread.emit_from(call, What::Reply { connection, len: result, lines: 0 });
            }
        }
        _ => {}
    }
}

fn accepted(thread: &mut Thread, call: &Syscall, fd: i32) {
    let Some(socket) = stat(fd) else { return };
    let mut accepted = ACCEPTED.write().unwrap_or_else(PoisonError::into_inner);
    accepted.get_or_insert_default().insert(socket.st_ino);
    drop(accepted);
    let address = own_address(fd).unwrap_or_default();
    thread.emit_from(call, What::Connection { connection: socket.st_ino as u32, address: &address });
}

/// The number of the connection behind a descriptor.
fn connection(fd: i32) -> Option<u32> {
    let accepted = ACCEPTED.read().unwrap_or_else(PoisonError::into_inner);
    let accepted = accepted.as_ref()?;
    let socket = stat(fd).filter(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFSOCK)?;
    accepted.contains(&socket.st_ino).then_some(socket.st_ino as u32)
}

fn requested(thread: &mut Thread, call: &Syscall, number: i64, result: u64) {
    let Some(connection) = connection(call.fd(0)) else { return };
    let buffers = kernel_writes::buffers(number, &|i| call.get(i));
    let mut data = vec![0; MAX_DATA];
    for (mut at, mut left) in kernel_writes::written(&buffers, result) {
        while left > 0 {
            let wanted = left.min(MAX_DATA as u64) as usize;
            let read = dynamorio::read_memory(at, &mut data[..wanted]);
            if read == 0 {
                break;
            }
            thread.emit_from(call, What::Request { connection, data: &data[..read] });
            (at, left) = (at + read as u64, left - read as u64);
        }
    }
}

/// Where a client reaches the server, as text: `127.0.0.1:7000`, the path of a socket, or `@` and a name.
fn own_address(fd: i32) -> Option<String> {
    let mut bytes = [0_u8; size_of::<libc::sockaddr_un>() + 1];
    let mut len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the kernel writes no more than `len` bytes.
    let result = unsafe { libc::getsockname(fd, bytes.as_mut_ptr().cast(), &raw mut len) };
    let name = bytes.get(..len as usize).filter(|_| result == 0)?;
    let port = || Some(u16::from_be_bytes(name.get(2..4)?.try_into().ok()?));
    match i32::from(u16::from_ne_bytes(name.get(..2)?.try_into().ok()?)) {
        libc::AF_UNIX => match name.get(2..)? {
            [] => None,
            [0, name @ ..] => Some(format!("@{}", String::from_utf8_lossy(name))),
            path => Some(String::from_utf8_lossy(path.split(|&byte| byte == 0).next()?).into_owned()),
        },
        libc::AF_INET => {
            let ip = <[u8; 4]>::try_from(name.get(4..8)?).ok()?;
            Some(SocketAddr::from((Ipv4Addr::from(ip), port()?)).to_string())
        }
        libc::AF_INET6 => {
            let ip = <[u8; 16]>::try_from(name.get(8..24)?).ok()?;
            Some(SocketAddr::from((Ipv6Addr::from(ip), port()?)).to_string())
        }
        _ => None,
    }
}
