//! Finds the file that a system call names.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::filter::PathArgument;
use super::tracee::{Tracee, TraceeRegisters, argument};
use super::view::View;

/// What a path argument of a call refers to.
#[derive(Debug)]
pub(super) enum Named {
    /// A full path without symbolic links, whether or not its last part exists.
    Path(PathBuf),
    /// A file that the process has open, by device and inode.
    Open(u64, u64),
    /// Nothing that the kernel will find.
    Nothing,
    /// A file of a process outside the sandbox.
    Outside,
}

/// What a call is about to do with the file that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PathAccess {
    /// A symbolic link at the end is followed.
    pub(super) follow: bool,
    pub(super) writes: bool,
}

/// How many links a path may lead through, as in the kernel.
const MOST_LINKS: usize = 40;

pub(super) fn resolve(
    tracee: Tracee,
    registers: &TraceeRegisters,
    place: PathArgument,
    access: PathAccess,
    view: Option<&View>,
) -> io::Result<Named> {
    let text = match tracee.string(argument(registers, place.path)) {
        Ok(text) => text,
        // The kernel will say so itself.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EFAULT | libc::EIO | libc::ENAMETOOLONG)) => {
            return Ok(Named::Nothing);
        }
        Err(e) => return Err(e),
    };
    let from = place.dir.map(|n| argument(registers, n) as i32);
    if text.as_os_str().is_empty() {
        // Each `fstat` of the C library comes here. Which file it is matters only if the call changes it.
        let file = from.filter(|_| access.writes).and_then(|fd| tracee.file(fd).ok());
        return Ok(file.map_or(Named::Nothing, |m| Named::Open(m.dev(), m.ino())));
    }
    let full = if text.is_absolute() {
        text
    } else {
        let Ok(folder) = tracee.folder(from) else { return Ok(Named::Nothing) };
        folder.join(text)
    };
    Ok(name(tracee, full, access, view))
}

fn name(tracee: Tracee, mut path: PathBuf, access: PathAccess, view: Option<&View>) -> Named {
    for _ in 0..MOST_LINKS {
        path = of_process(tracee, path);
        if let Some((process, rest)) = process_path(&path) {
            return in_process(tracee, &path, process, rest, access, view);
        }
        match canonical(&path, access.follow, view) {
            Some((found, true)) => return Named::Path(found),
            Some((found, false)) => {
                // A link that leads nowhere names the file that it leads to.
                let target = access.follow.then(|| read_link(&found, view)).flatten();
                let Some(target) = target else { return Named::Path(found) };
                path = found.parent().unwrap_or(&found).join(target);
            }
            None => return Named::Nothing,
        }
    }
    Named::Nothing
}

/// A path through `/proc/PID`. It leads to the files of that process, whatever view that has.
fn in_process(
    tracee: Tracee,
    path: &Path,
    process: libc::pid_t,
    rest: &Path,
    access: PathAccess,
    view: Option<&View>,
) -> Named {
    const DOORS: [&str; 4] = ["fd", "root", "cwd", "map_files"];
    let is_door = rest.iter().any(|part| DOORS.iter().any(|door| part == *door));
    if (is_door || access.writes) && !tracee.shares_sandbox_with(process) && !is_stand_in(path) {
        return Named::Outside;
    }
    // In a view the kernel does the rest.
    match open_file(path, rest).filter(|_| access.follow && view.is_none()) {
        Some((.., target)) if target.is_absolute() && !is_memory(&target) => Named::Path(target),
        Some((device, inode, _)) => Named::Open(device, inode),
        None if is_door && view.is_none() && access.writes => Named::Outside,
        None => Named::Path(path.to_owned()),
    }
}

/// `/proc/self` and its kin refer to the process that names them.
fn of_process(tracee: Tracee, path: PathBuf) -> PathBuf {
    let own = |rest: &Path| Path::new("/proc").join(tracee.process().to_string()).join(rest);
    let standard = ["/dev/stdin", "/dev/stdout", "/dev/stderr"].iter().position(|name| path == Path::new(name));
    if let Some(fd) = standard {
        own(&Path::new("fd").join(fd.to_string()))
    } else if let Ok(rest) = path.strip_prefix("/dev/fd") {
        own(&Path::new("fd").join(rest))
    } else if let Ok(rest) = path.strip_prefix("/proc/self") {
        own(rest)
    } else if let Ok(rest) = path.strip_prefix("/proc/thread-self") {
        own(&Path::new("task").join(tracee.tid.to_string()).join(rest))
    } else {
        path
    }
}

/// A path through `/proc/PID`: the process, and what follows.
fn process_path(path: &Path) -> Option<(libc::pid_t, &Path)> {
    let rest = path.strip_prefix("/proc").ok()?;
    let first = rest.components().next()?.as_os_str();
    Some((first.to_str()?.parse().ok()?, rest.strip_prefix(first).ok()?))
}

/// The file behind `/proc/PID/fd/N`, and the kernel's name for it.
fn open_file(path: &Path, rest: &Path) -> Option<(u64, u64, PathBuf)> {
    let in_fd = rest.parent().and_then(Path::file_name) == Some(OsStr::new("fd"));
    let found = path.metadata().ok().filter(|_| in_fd)?;
    Some((found.dev(), found.ino(), std::fs::read_link(path).ok()?))
}

/// Memory without a name.
fn is_memory(target: &Path) -> bool {
    target.as_os_str().as_encoded_bytes().starts_with(b"/memfd:")
}

/// A stand-in of this pmvet, or its shared memory: memory without a name.
fn is_stand_in(path: &Path) -> bool {
    path.starts_with(format!("/proc/{}/fd", std::process::id()))
        && std::fs::read_link(path).is_ok_and(|target| is_memory(&target))
}

/// The path without symbolic links and dots, and whether there is a file.
fn canonical(path: &Path, follow: bool, view: Option<&View>) -> Option<(PathBuf, bool)> {
    if let Some(view) = view {
        return view.canonical(path, follow);
    }
    super::canonical(path, follow)
}

fn read_link(path: &Path, view: Option<&View>) -> Option<PathBuf> {
    match view {
        Some(view) => view.read_link(path),
        None => std::fs::read_link(path).ok(),
    }
}
