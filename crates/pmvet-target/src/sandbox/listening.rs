//! Whether a server already accepts connections on a socket in the file system: the file exists from `bind` on, but until `listen` the
//! kernel refuses clients.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether one of these processes has bound a socket for connections to this path and does not listen yet. If the kernel does not say,
/// it counts as listening.
pub(super) fn is_only_bound(path: &Path, processes: &[libc::pid_t]) -> bool {
    let Some(name) = path.file_name() else { return false };
    let table = fs::read("/proc/net/unix").unwrap_or_default();
    let deaf = unconnected(&table, name);
    !deaf.is_empty() && processes.iter().any(|process| sockets(*process).any(|socket| deaf.contains(&socket)))
}

/// The inodes of sockets with this file name that could listen and do not.
fn unconnected(table: &[u8], name: &OsStr) -> HashSet<u64> {
    const LISTENS: u32 = 0x10000;
    const UNCONNECTED: u32 = 1;
    const FOR_CONNECTIONS: [i32; 2] = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET];
    let socket = |line: &[u8]| {
        // Num RefCount Protocol Flags Type St Inode Path
        let mut fields = line.split(|&b| b == b' ').filter(|field| !field.is_empty());
        let mut hex = |skipped| u32::from_str_radix(std::str::from_utf8(fields.nth(skipped)?).ok()?, 16).ok();
        let (flags, kind, state) = (hex(3)?, hex(0)?, hex(0)?);
        let inode = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let path = Path::new(OsStr::from_bytes(fields.next()?));
        let is_deaf = flags & LISTENS == 0 && state == UNCONNECTED && FOR_CONNECTIONS.contains(&(kind as i32));
        (is_deaf && path.file_name() == Some(name)).then_some(inode)
    };
    table.split(|&b| b == b'\n').filter_map(socket).collect()
}

/// The inodes of the sockets that a process has open.
fn sockets(process: libc::pid_t) -> impl Iterator<Item = u64> {
    let files = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    files.filter_map(|file| {
        let target = fs::read_link(file.path()).ok()?;
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    use super::*;

    #[test]
    fn a_socket_is_ready_once_it_listens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let own = [std::process::id() as libc::pid_t];
        // SAFETY: plain system calls with valid arguments; the descriptor is owned by nobody else.
        let socket = unsafe {
            let socket = OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0));
            let mut address: libc::sockaddr_un = std::mem::zeroed();
            address.sun_family = libc::AF_UNIX as libc::sa_family_t;
            for (to, from) in address.sun_path.iter_mut().zip(path.as_os_str().as_bytes()) {
                *to = *from as libc::c_char;
            }
            let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
            assert_eq!(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length), 0);
            socket
        };
        assert!(path.exists() && is_only_bound(&path, &own));
        assert!(!is_only_bound(&path, &[]), "of another process");
        assert!(!is_only_bound(&path.with_file_name("other"), &own));
        // SAFETY: as above.
        assert_eq!(unsafe { libc::listen(socket.as_raw_fd(), 1) }, 0);
        assert!(!is_only_bound(&path, &own));
    }

    #[test]
    fn a_damaged_table_says_nothing() {
        let table = b"Num RefCount Protocol Flags Type St Inode Path\nf: 2 0 x 0001 01 7 /s\n\xff 1\n0: 2 0 0 1 01 9";
        assert!(unconnected(table, OsStr::new("s")).is_empty());
    }
}
