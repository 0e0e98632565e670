//! Files in memory and files with holes.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

/// A file in memory that bears a path as its label, which the client reads back from `/proc/self/fd`.
pub fn unnamed(label: &Path) -> io::Result<File> {
    // The kernel takes 249 bytes; a longer label loses its start, and with it no more than its beauty.
    let label = label.as_os_str().as_bytes();
    let label = CString::new(&label[label.len().saturating_sub(240)..])?;
    // SAFETY: the label is a valid string; the descriptor is new and ours.
    let file = unsafe {
        match libc::memfd_create(label.as_ptr(), libc::MFD_CLOEXEC) {
            -1 => {
                let error = io::Error::last_os_error();
                return Err(io::Error::new(error.kind(), format!("memfd_create: {error}")));
            }
            fd => File::from_raw_fd(fd),
        }
    };
    file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
    Ok(file)
}

/// A file in memory for a target to read its input from.
pub fn input() -> io::Result<File> {
    unnamed(pmvet_events::plan::INPUT_LABEL.as_ref())
}

/// Copies a file, holes left out.
pub fn copy(from: &File, to: &File) -> io::Result<()> {
    let size = from.metadata()?.len();
    to.set_len(size)?;
    let mut buffer = vec![0; 1 << 16];
    let mut at = 0;
    while let Some((start, end)) = next_data(from, at, size) {
        at = start;
        while at < end {
            let want = buffer.len().min((end - at) as usize);
            let read = from.read_at(&mut buffer[..want], at)?;
            if read == 0 {
                return Ok(());
            }
            // A file system without holes, or a file that was filled with zeros to reserve its space.
            if buffer[..read].iter().any(|&b| b != 0) {
                to.write_all_at(&buffer[..read], at)?;
            }
            at += read as u64;
        }
    }
    Ok(())
}

/// The next range of a file that is not a hole.
pub(crate) fn next_data(file: &File, from: u64, size: u64) -> Option<(u64, u64)> {
    if from >= size {
        return None;
    }
    // SAFETY: plain system calls on an open file.
    unsafe {
        let start = libc::lseek(file.as_raw_fd(), from as i64, libc::SEEK_DATA);
        if start < 0 {
            // Nothing but a hole, or a file system that cannot tell.
            let nothing = io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO);
            return (!nothing).then_some((from, size));
        }
        let end = libc::lseek(file.as_raw_fd(), start, libc::SEEK_HOLE);
        Some((start as u64, if end < 0 { size } else { end as u64 }))
    }
}
