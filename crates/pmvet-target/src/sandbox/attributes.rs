//! Extended attributes of files.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// A name and a value.
pub(super) type Attribute = (CString, Vec<u8>);

/// The most bytes that the kernel gives a list of names or a value.
const MOST: usize = 1 << 16;

/// The attributes that the calling thread may see. A file system without attributes has none.
pub(super) fn list(file: &File) -> Vec<Attribute> {
    let (mut names, mut value) = (vec![0u8; MOST], vec![0u8; MOST]);
    // SAFETY: the buffer has this length.
    let length = unsafe { libc::flistxattr(file.as_raw_fd(), names.as_mut_ptr().cast(), names.len()) };
    let listed = names[..usize::try_from(length).unwrap_or(0)].split_inclusive(|&b| b == 0);
    let mut get = |name: &CStr| {
        // SAFETY: the name is a string, and the buffer has this length.
        let length =
            unsafe { libc::fgetxattr(file.as_raw_fd(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
        Some((name.to_owned(), value[..usize::try_from(length).ok()?].to_vec()))
    };
    listed.filter_map(|name| get(CStr::from_bytes_with_nul(name).ok()?)).collect()
}

pub(super) fn set(file: &File, (name, value): &Attribute) -> io::Result<()> {
    // SAFETY: the name is a string, and the value has this length.
    match unsafe { libc::fsetxattr(file.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives a file the attributes of another that a user may set. A stand-in on a kernel that gives memory none goes without.
pub(super) fn copy(from: &File, to: &File) -> io::Result<()> {
    for attribute in list(from).iter().filter(|(name, _)| name.to_bytes().starts_with(b"user.")) {
        match set(to, attribute) {
            Err(e) if e.raw_os_error() != Some(libc::EOPNOTSUPP) => return Err(e),
            _ => {}
        }
    }
    Ok(())
}
