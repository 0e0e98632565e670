//! The file behind a descriptor of the target.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use pmvet_events::paths;

use crate::dynamorio::Inode;

/// The file behind a descriptor, if it is a regular file or a DAX device.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) inode: Inode,
    pub(crate) size: u64,
    pub(crate) path: PathBuf,
}

impl OpenFile {
    pub(crate) fn from_fd(fd: i32) -> Option<Self> {
        let stat = stat(fd)?;
        let regular = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
        let path = || real_path(std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default());
        let device = stat.st_mode & libc::S_IFMT == libc::S_IFCHR && path().starts_with("/dev/dax");
        (regular || device).then(|| Self { inode: (stat.st_dev, stat.st_ino), size: stat.st_size as u64, path: path() })
    }

    /// The device that a descriptor's file lies on.
    pub(crate) fn device(fd: i32) -> Option<u64> {
        stat(fd).map(|stat| stat.st_dev)
    }

    /// Whether it lies on a DAX file system.
    pub(crate) fn is_dax(fd: i32) -> bool {
        // SAFETY: all-zero is a valid `statx`, and the pointers are valid.
        unsafe {
            let mut info: libc::statx = std::mem::zeroed();
            let result = libc::statx(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, 0, &raw mut info);
            result == 0 && info.stx_attributes & libc::STATX_ATTR_DAX as u64 != 0
        }
    }
}

/// What the kernel says about a descriptor of the target.
pub(crate) fn stat(fd: i32) -> Option<libc::stat> {
    // SAFETY: all-zero is a valid `stat`, and the pointer is valid.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        // The C library's `fstat` makes a call with an empty path, and the sandbox stops every call that names a path.
        (libc::syscall(libc::SYS_fstat, fd, &raw mut stat) == 0).then_some(stat)
    }
}

/// The path of the file that a private copy stands for. pmvet keeps such copies in memory, labelled with that path, and the
/// kernel adds to the label.
fn real_path(path: PathBuf) -> PathBuf {
    let bytes = path.as_os_str().as_bytes();
    match bytes.strip_prefix(b"/memfd:").and_then(|rest| rest.strip_suffix(b" (deleted)")) {
        Some(label) if label.starts_with(b"/") => paths::of_bytes(label).into(),
        _ => path,
    }
}
