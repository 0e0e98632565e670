//! Files in memory and files with holes.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};
use rustix::io::Errno;

/// A file in memory with a path as its label, which the client reads back from `/proc/self/fd`.
pub fn unnamed(label: &Path) -> io::Result<File> {
    // The kernel takes 249 bytes; a longer label loses its start, which does no harm.
    let label = label.as_os_str().as_bytes();
    let label = &label[label.len().saturating_sub(240)..];
    let made = memfd_create(label, MemfdFlags::CLOEXEC).map_err(io::Error::from);
    let file = File::from(made.map_err(|e| io::Error::new(e.kind(), format!("memfd_create: {e}")))?);
    file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
    Ok(file)
}

/// An empty unnamed file: in this folder if it is writable, else in memory.
pub fn temporary(folder: &Path) -> io::Result<File> {
    tempfile::tempfile_in(folder).or_else(|_| unnamed("temporary".as_ref()))
}

/// A file in memory for a target to read its input from.
pub fn input() -> io::Result<File> {
    unnamed(pmvet_events::plan::INPUT_LABEL.as_ref())
}

/// Copies a file without its holes.
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
    match seek(file, SeekFrom::Data(from)) {
        Ok(start) => Some((start, seek(file, SeekFrom::Hole(start)).unwrap_or(size))),
        // Nothing but a hole.
        Err(Errno::NXIO) => None,
        // The file system cannot find holes.
        Err(_) => Some((from, size)),
    }
}
