//! Private stand-ins for files, under the files' own names.
//!
//! An [`Overlay`] says which file a sandboxed process gets when it names a path. Whatever it may write to is copied first, to a file
//! without a name that vanishes with pmvet, however that ends; the user's file is only ever read. Deleting and renaming
//! happen in the overlay alone.
//!
//! What it does not do: listings of folders show the files that are really there.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::sparse::{copy, unnamed};

/// Which files are replaced when a process opens them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capture {
    /// Those that can be mapped and written: opened for reading and writing. What the target only writes (a log, its
    /// output) goes where it should.
    Mappable,
    /// All that are opened for writing in any way, so that a process leaves no trace at all.
    Writable,
}

#[derive(Debug, Clone)]
enum Entry {
    Present(Arc<File>),
    Deleted,
}

/// By full path, without symbolic links.
type Entries = HashMap<PathBuf, Entry>;

/// The state of the replaced files, shared by the processes of one sandbox.
#[derive(Debug, Clone)]
pub struct Overlay {
    capture: Capture,
    entries: Entries,
    /// What an earlier run left; never written.
    below: Arc<Entries>,
}

/// What a process gets that names a file.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    /// The file itself: it is not replaced.
    Real,
    /// This one instead.
    Instead(Arc<File>),
    /// An error number.
    Error(i32),
}

impl Overlay {
    pub fn new(capture: Capture) -> Self {
        Self { capture, entries: HashMap::new(), below: Arc::default() }
    }

    /// An overlay that starts with the files of this one, which must not be used for another run.
    pub fn above(&self, capture: Capture) -> Self {
        let mut below = Entries::clone(&self.below);
        below.extend(self.entries.iter().map(|(path, entry)| (path.clone(), entry.clone())));
        Self { capture, entries: HashMap::new(), below: Arc::new(below) }
    }

    /// Replaces the file at `path`, which need not exist.
    pub fn put(&mut self, path: PathBuf, file: Arc<File>) {
        self.entries.insert(path, Entry::Present(file));
    }

    /// Makes believe that there is no such file.
    pub fn hide(&mut self, path: PathBuf) {
        self.entries.insert(path, Entry::Deleted);
    }

    pub fn get(&self, path: &Path) -> Option<&Arc<File>> {
        match self.entries.get(path) {
            Some(Entry::Present(file)) => Some(file),
            _ => None,
        }
    }

    /// What a process finds under a path: a file, the knowledge that there is none, or nothing, if the path is not replaced.
    pub fn stand_in(&self, path: &Path) -> Option<Option<Arc<File>>> {
        match self.find(path)? {
            Entry::Present(file) => Some(Some(Arc::clone(file))),
            Entry::Deleted => Some(None),
        }
    }

    /// The replaced files that exist, with their paths.
    pub fn files(&self) -> impl Iterator<Item = (&Path, &Arc<File>)> {
        self.entries.iter().filter_map(|(path, entry)| match entry {
            Entry::Present(file) => Some((path.as_path(), file)),
            Entry::Deleted => None,
        })
    }

    /// The path and the stand-in with this identity.
    pub fn by_inode(&self, device: u64, inode: u64) -> Option<(&Path, &Arc<File>)> {
        self.files().find(|(_, file)| file.metadata().is_ok_and(|m| (m.dev(), m.ino()) == (device, inode)))
    }

    /// Whether a process may really lock this file. A lock on one that others have too, such as PMDK takes on the description of a
    /// pool of several files, would be seen outside, and make runs that have nothing to do with each other fail.
    pub(super) fn may_lock(&self, device: u64, inode: u64) -> bool {
        self.capture == Capture::Mappable || self.by_inode(device, inode).is_some()
    }

    /// How much memory the stand-ins take.
    pub fn bytes(&self) -> u64 {
        self.files().filter_map(|(_, file)| file.metadata().ok()).map(|m| m.blocks() * 512).sum()
    }

    pub(super) fn open(&mut self, path: &Path, flags: i32) -> Answer {
        let create = flags & libc::O_CREAT != 0;
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0;
        match self.find(path) {
            Some(Entry::Present(_)) if create && flags & libc::O_EXCL != 0 => return Answer::Error(libc::EEXIST),
            Some(Entry::Present(_)) if writes => return self.own(path),
            Some(Entry::Present(file)) => return Answer::Instead(Arc::clone(file)),
            Some(Entry::Deleted) if create => return self.make(path),
            Some(Entry::Deleted) => return Answer::Error(libc::ENOENT),
            None => {}
        }
        let captured = match self.capture {
            Capture::Mappable => flags & libc::O_ACCMODE == libc::O_RDWR,
            Capture::Writable => writes || create,
        };
        if !captured || flags & libc::O_PATH != 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE || is_kernels(path) {
            return Answer::Real;
        }
        match path.metadata() {
            Ok(found) if found.is_file() && create && flags & libc::O_EXCL != 0 => Answer::Error(libc::EEXIST),
            Ok(found) if found.is_file() => self.own(path),
            Ok(_) => Answer::Real,
            Err(e) if e.kind() == io::ErrorKind::NotFound && create => self.make(path),
            Err(_) => Answer::Real,
        }
    }

    fn find(&self, path: &Path) -> Option<&Entry> {
        self.entries.get(path).or_else(|| self.below.get(path))
    }

    pub(super) fn look(&self, path: &Path) -> Answer {
        match self.find(path) {
            Some(Entry::Present(file)) => Answer::Instead(Arc::clone(file)),
            Some(Entry::Deleted) => Answer::Error(libc::ENOENT),
            None => Answer::Real,
        }
    }

    /// For calls that change a file by its name.
    pub(super) fn change(&mut self, path: &Path) -> Answer {
        match self.find(path) {
            Some(Entry::Present(_)) => self.own(path),
            Some(Entry::Deleted) => Answer::Error(libc::ENOENT),
            None if self.capture == Capture::Writable && is_file(path) && !is_kernels(path) => self.own(path),
            None => Answer::Real,
        }
    }

    /// Returns the result of the call, or nothing if it is to be made in earnest.
    pub(super) fn unlink(&mut self, path: &Path) -> Option<Result<(), i32>> {
        match self.find(path) {
            Some(Entry::Deleted) => return Some(Err(libc::ENOENT)),
            Some(Entry::Present(_)) => {}
            None if self.capture == Capture::Writable && is_file(path) && !is_kernels(path) => {}
            None => return None,
        }
        self.entries.insert(path.into(), Entry::Deleted);
        Some(Ok(()))
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path, flags: u64) -> Option<Result<(), i32>> {
        if !self.concerns(from, to) {
            return None;
        }
        let moved = match self.take(from) {
            Ok(file) => file,
            Err(errno) => return Some(Err(errno)),
        };
        if flags & u64::from(libc::RENAME_NOREPLACE) != 0 && self.exists(to) {
            return Some(Err(libc::EEXIST));
        }
        let exchanged = if flags & u64::from(libc::RENAME_EXCHANGE) != 0 {
            match self.take(to) {
                Ok(file) => Entry::Present(file),
                Err(errno) => return Some(Err(errno)),
            }
        } else {
            Entry::Deleted
        };
        self.entries.insert(from.into(), exchanged);
        self.entries.insert(to.into(), Entry::Present(moved));
        Some(Ok(()))
    }

    pub(super) fn link(&mut self, from: &Path, to: &Path) -> Option<Result<(), i32>> {
        if !self.concerns(from, to) {
            return None;
        }
        if self.exists(to) {
            return Some(Err(libc::EEXIST));
        }
        Some(self.take(from).map(|file| {
            self.entries.insert(to.into(), Entry::Present(file));
        }))
    }

    /// Whether a call that names two files is to be answered here.
    fn concerns(&self, from: &Path, to: &Path) -> bool {
        let ours = self.find(from).is_some() || self.find(to).is_some();
        ours || self.capture == Capture::Writable && is_file(from) && !is_kernels(to)
    }

    fn exists(&self, path: &Path) -> bool {
        match self.find(path) {
            Some(Entry::Present(_)) => true,
            Some(Entry::Deleted) => false,
            None => path.symlink_metadata().is_ok(),
        }
    }

    fn take(&mut self, path: &Path) -> Result<Arc<File>, i32> {
        match self.own(path) {
            Answer::Instead(file) => Ok(file),
            Answer::Error(errno) => Err(errno),
            Answer::Real => Err(libc::ENOENT),
        }
    }

    fn make(&mut self, path: &Path) -> Answer {
        // The folder has to be there, as for a real file.
        if !path.parent().is_some_and(Path::is_dir) {
            return Answer::Real;
        }
        match unnamed(path) {
            Ok(file) => self.keep(path, file),
            Err(e) => Answer::Error(e.raw_os_error().unwrap_or(libc::EIO)),
        }
    }

    /// The stand-in of a file that may be written, made now if there is none yet.
    fn own(&mut self, path: &Path) -> Answer {
        let original = match (self.entries.get(path), self.below.get(path)) {
            (Some(Entry::Present(file)), _) => return Answer::Instead(Arc::clone(file)),
            (Some(Entry::Deleted), _) | (None, Some(Entry::Deleted)) => return Answer::Error(libc::ENOENT),
            (None, Some(Entry::Present(file))) => file.try_clone(),
            (None, None) => File::open(path),
        };
        let copied = original.and_then(|original| {
            let file = unnamed(path)?;
            copy(&original, &file)?;
            file.set_permissions(original.metadata()?.permissions())?;
            Ok(file)
        });
        match copied {
            Ok(file) => self.keep(path, file),
            Err(e) => Answer::Error(e.raw_os_error().unwrap_or(libc::EIO)),
        }
    }

    fn keep(&mut self, path: &Path, file: File) -> Answer {
        let file = Arc::new(file);
        self.entries.insert(path.into(), Entry::Present(Arc::clone(&file)));
        Answer::Instead(file)
    }
}

fn is_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.is_file())
}

/// Names that stand for no data of the user's.
fn is_kernels(path: &Path) -> bool {
    path.starts_with("/proc") || path.starts_with("/sys") || path.starts_with("/dev") && !path.starts_with("/dev/shm")
}
