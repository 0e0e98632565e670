//! Where a socket leads. Of the network, programs may use only this machine's loopback.

use std::ffi::OsStr;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::tracee::Tracee;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// No address, or one of the sandbox's own.
    Here,
    /// A socket in the file system.
    File(PathBuf),
    /// A socket of this machine that has a name, but no file.
    Abstract(Vec<u8>),
    /// Another machine, or a service of this one.
    Elsewhere,
}

/// The address that a call gives.
pub(super) fn address(tracee: Tracee, at: u64, length: u64) -> io::Result<Address> {
    if at == 0 || length < 2 {
        return Ok(Address::Here);
    }
    let mut bytes = [0; size_of::<libc::sockaddr_storage>()];
    let wanted = bytes.len().min(length as usize);
    match tracee.read(at, &mut bytes[..wanted]) {
        Ok(read) => Ok(parse(&bytes[..read])),
        // The kernel will say so itself.
        Err(e) if e.raw_os_error() == Some(libc::EFAULT) => Ok(Address::Here),
        Err(e) => Err(e),
    }
}

/// The address in a `msghdr`: a pointer and a length at its start.
pub(super) fn message(tracee: Tracee, at: u64) -> io::Result<Address> {
    let mut header = [0; 12];
    match tracee.read(at, &mut header) {
        Ok(12) => {}
        Ok(_) => return Ok(Address::Here),
        Err(e) if e.raw_os_error() == Some(libc::EFAULT) => return Ok(Address::Here),
        Err(e) => return Err(e),
    }
    let (pointer, length) = header.split_at(8);
    let pointer = pointer.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte));
    let length = length.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte));
    address(tracee, pointer, length)
}

fn parse(bytes: &[u8]) -> Address {
    let [low, high, rest @ ..] = bytes else { return Address::Here };
    match i32::from(u16::from_ne_bytes([*low, *high])) {
        libc::AF_UNIX => match rest.split(|&b| b == 0).next() {
            Some(path) if !path.is_empty() => Address::File(OsStr::from_bytes(path).into()),
            _ if rest.len() > 1 => Address::Abstract(rest.to_vec()),
            _ => Address::Here,
        },
        libc::AF_INET => match rest.get(2..6).and_then(|ip| <[u8; 4]>::try_from(ip).ok()) {
            Some(ip) if Ipv4Addr::from(ip).is_loopback() || Ipv4Addr::from(ip).is_unspecified() => Address::Here,
            _ => Address::Elsewhere,
        },
        libc::AF_INET6 => match rest.get(6..22).and_then(|ip| <[u8; 16]>::try_from(ip).ok()).map(Ipv6Addr::from) {
            Some(ip) if ip.is_loopback() || ip.is_unspecified() => Address::Here,
            Some(ip) if ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback()) => Address::Here,
            _ => Address::Elsewhere,
        },
        // Undoes a connection.
        libc::AF_UNSPEC => Address::Here,
        // Questions to the kernel.
        libc::AF_NETLINK => Address::Here,
        _ => Address::Elsewhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_family(family: i32, rest: &[u8]) -> Address {
        parse(&[&(family as u16).to_ne_bytes()[..], rest].concat())
    }

    #[test]
    fn loopback_is_here_and_the_rest_is_not() {
        assert_eq!(with_family(libc::AF_INET, &[0, 80, 127, 0, 0, 1]), Address::Here);
        assert_eq!(with_family(libc::AF_INET, &[0, 80, 10, 0, 0, 1]), Address::Elsewhere);
        let six = |ip: Ipv6Addr| [&[0, 80, 0, 0, 0, 0][..], &ip.octets()].concat();
        assert_eq!(with_family(libc::AF_INET6, &six(Ipv6Addr::LOCALHOST)), Address::Here);
        assert_eq!(with_family(libc::AF_INET6, &six(Ipv4Addr::LOCALHOST.to_ipv6_mapped())), Address::Here);
        assert_eq!(with_family(libc::AF_INET6, &six(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1))), Address::Elsewhere);
        assert_eq!(with_family(libc::AF_UNIX, b"/run/x\0"), Address::File("/run/x".into()));
        assert_eq!(with_family(libc::AF_UNIX, b"\0abstract"), Address::Abstract(b"\0abstract".to_vec()));
        assert_eq!((with_family(libc::AF_VSOCK, &[]), parse(&[1])), (Address::Elsewhere, Address::Here));
    }
}
