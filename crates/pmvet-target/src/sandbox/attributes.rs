//! Extended attributes of files.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Gives a file the attributes of another that a user may set. A file system without attributes has none, and a stand-in on a kernel that
/// gives memory none goes without.
pub(super) fn copy(from: &File, to: &File) -> io::Result<()> {
    let mut names = vec![0; 1 << 16];
    // SAFETY: the buffer has this length.
    let length = unsafe { libc::flistxattr(from.as_raw_fd(), names.as_mut_ptr().cast(), names.len()) };
    let Ok(length) = usize::try_from(length) else { return Ok(()) };
    let listed = names[..length].split_inclusive(|&b| b == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok());
    let mut value = vec![0u8; 1 << 16];
    for name in listed.filter(|name| name.to_bytes().starts_with(b"user.")) {
        // SAFETY: the name is a string, and the buffer has this length.
        let length =
            unsafe { libc::fgetxattr(from.as_raw_fd(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
        let Ok(length) = usize::try_from(length) else { continue };
        // SAFETY: as above.
        let set = unsafe { libc::fsetxattr(to.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), length, 0) };
        if set != 0 && io::Error::last_os_error().raw_os_error() != Some(libc::EOPNOTSUPP) {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
