//! Extended attributes of files.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;

use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr};

/// A name and a value.
pub(super) type Attribute = (CString, Vec<u8>);

/// The most bytes that the kernel gives a list of names or a value.
const MOST: usize = 1 << 16;

/// The attributes that the calling thread may see. A file system without attributes has none.
pub(super) fn list(file: &File) -> Vec<Attribute> {
    let (mut names, mut value) = (vec![0u8; MOST], vec![0u8; MOST]);
    let length = flistxattr(file, &mut names[..]).unwrap_or(0);
    let mut get = |name: &CStr| {
        let length = fgetxattr(file, name, &mut value[..]).ok()?;
        Some((name.to_owned(), value[..length].to_vec()))
    };
    names[..length].split_inclusive(|&b| b == 0).filter_map(|name| get(CStr::from_bytes_with_nul(name).ok()?)).collect()
}

pub(super) fn set(file: &File, (name, value): &Attribute) -> io::Result<()> {
    Ok(fsetxattr(file, name.as_c_str(), value, XattrFlags::empty())?)
}

/// Copies the attributes that a user may set from one file to another. If the kernel supports none for files in memory, a
/// stand-in has none.
pub(super) fn copy(from: &File, to: &File) -> io::Result<()> {
    for attribute in list(from).iter().filter(|(name, _)| name.to_bytes().starts_with(b"user.")) {
        match set(to, attribute) {
            Err(e) if e.raw_os_error() != Some(libc::EOPNOTSUPP) => return Err(e),
            _ => {}
        }
    }
    Ok(())
}
