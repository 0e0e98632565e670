//! Private stand-ins for files, under the files' own names.
//!
//! An [`Overlay`] says which file a sandboxed process gets when it names a path. Files of PM are put there by name ([`Overlay::put`]).
//! What a process changes besides stays in its [view](super::view), where the kernel allows one. Without one, or if runs of one
//! process must not see each other's changes, a file that is opened for writing is first copied to an unnamed file, which vanishes
//! with pmvet, however that ends. The user's file is only ever read.
//!
//! What cannot be made private is refused. Without a view that is everything but regular files: folders, links, pipes, sockets.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;

use super::attributes;
use super::ground::HARMLESS_DEVICES;
use super::keeper;
use super::listing::Differences;
use super::saved::{self, Saver};
use super::view::{self, Layer, Lease, View};
use crate::sparse::{copy, unnamed};

/// Which files are replaced by stand-ins when a process opens them, besides those that were put there by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capture {
    /// None, if there is a view: it takes all changes, and they stay for later runs.
    Named,
    /// All that are opened for writing. The copies are gone when the overlay is replaced, so that each run in the same process
    /// starts afresh.
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
    /// What an earlier run left without a view; never written.
    below: Arc<Entries>,
    /// What earlier runs left in views, oldest first.
    layers: Vec<Arc<Layer>>,
    /// The view for runs with this overlay, once there is one.
    view: Option<Arc<Lease>>,
    /// Files that were opened without a name, and may be linked later.
    nameless: Vec<Arc<File>>,
    /// Names of sockets, without files, that were made with this overlay.
    sockets: HashSet<Vec<u8>>,
}

/// What a process that names a file gets.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    /// The file itself: it is not replaced.
    Real,
    /// This one instead.
    Instead(Arc<File>),
    /// An error number.
    Error(i32),
    /// The overlay has done it already.
    Done,
    /// It would change what is not private.
    Refused,
}

/// How the overlay changes when a call that names files has succeeded.
#[derive(Debug)]
pub(super) enum CallEffect {
    Unlinked(PathBuf),
    Renamed { from: PathBuf, to: PathBuf, exchanged: bool },
    Linked { from: PathBuf, to: PathBuf },
}

impl Overlay {
    /// Replaces no file yet. `capture` says which ones it will when they are opened.
    pub fn new(capture: Capture) -> Self {
        let (entries, below, layers, view, nameless, sockets) = Default::default();
        Self { capture, entries, below, layers, view, nameless, sockets }
    }

    /// An overlay that starts with the files of this one. This one must not be used for another run.
    pub fn above(&self, capture: Capture) -> Self {
        let mut below = Entries::clone(&self.below);
        below.extend(self.entries.iter().map(|(path, entry)| (path.clone(), entry.clone())));
        let layers = self.view.as_ref().map_or_else(|| self.layers.clone(), |view| view.layers());
        Self { below: Arc::new(below), layers, ..Self::new(capture) }
    }

    /// Writes the changes to an archive, except files with these paths. Returns whether it has any content. No run may use the
    /// overlay.
    pub fn save(&self, to: File, skip: &HashSet<PathBuf>) -> io::Result<bool> {
        let mut saver = Saver::new(to);
        for (path, entry) in self.below.iter().chain(&self.entries).filter(|(path, _)| !skip.contains(*path)) {
            match entry {
                Entry::Present(file) => saver.stand_in(path, Some(file))?,
                Entry::Deleted => saver.stand_in(path, None)?,
            }
        }
        if let Some(keeper) = keeper::get() {
            let (layers, skip) = (self.layers.clone(), skip.clone());
            saver = keeper.call(move |ground| {
                for (place, layer) in layers.iter().enumerate() {
                    saver.layer(place, ground, layer.number, &skip)?;
                }
                Ok(saver)
            })?;
        }
        let is_empty = saver.is_empty;
        saver.finish()?.flush()?;
        Ok(!is_empty)
    }

    /// The regular files that were made or changed. No run may use the overlay.
    pub fn changed_files(&self) -> io::Result<BTreeSet<PathBuf>> {
        let entries = self.below.iter().chain(&self.entries);
        let mut found: BTreeSet<_> =
            entries.filter(|(_, entry)| matches!(entry, Entry::Present(_))).map(|(path, _)| path.clone()).collect();
        if let Some(keeper) = keeper::get() {
            let layers = self.layers.clone();
            found.extend(keeper.call(move |ground| {
                let mut found = Vec::new();
                layers.iter().try_for_each(|layer| ground.changed_files(layer.number, &mut found))?;
                Ok(found)
            })?);
        }
        Ok(found)
    }

    /// An overlay with what was saved.
    pub fn load(mut from: File, capture: Capture) -> io::Result<Self> {
        let (stand_ins, count) = saved::stand_ins(&mut from)?;
        let entry = |file: Option<Arc<File>>| file.map_or(Entry::Deleted, Entry::Present);
        let below = stand_ins.into_iter().map(|(path, file)| (path, entry(file))).collect();
        let mut layers = Vec::new();
        if count > 0 {
            let keeper = keeper::get().ok_or_else(|| {
                let reason = "they were made in a private view of the file system, which is not available now";
                io::Error::new(io::ErrorKind::Unsupported, reason)
            })?;
            layers = (0..count).map(|_| Arc::new(Layer { number: keeper.next_layer() })).collect::<Vec<_>>();
            let numbers = layers.clone();
            keeper.call(move |ground| {
                let mut places = numbers.iter().enumerate();
                places.try_for_each(|(place, layer)| saved::restore(&mut from, place, ground, layer.number))
            })?;
        }
        Ok(Self { below: Arc::new(below), layers, ..Self::new(capture) })
    }

    /// Runs a command to its end on these files, without a supervisor, for instance for a debugger that traces it itself. Its
    /// changes are gone afterwards. Nothing if the kernel allows no private view of the files.
    pub fn run_alone(&self, command: Command) -> io::Result<Option<ExitStatus>> {
        let file = |entry: &Entry| match entry {
            Entry::Present(file) => Some(Arc::clone(file)),
            Entry::Deleted => None,
        };
        let files = self.below.iter().chain(&self.entries).map(|(path, entry)| (path.clone(), file(entry)));
        view::run_alone(&self.layers, files.collect(), command)
    }

    /// Takes the files of another overlay in place of its own, for the next run in the same process.
    pub fn become_like(&mut self, other: Overlay) {
        let view = self.view.take();
        *self = Self { view, ..other };
        self.tidy();
    }

    /// The view that runs with this overlay live in. Nothing if the kernel allows none.
    pub(super) fn enter_view(&mut self) -> io::Result<Option<Arc<Lease>>> {
        if self.view.is_none() {
            self.view = Lease::new(&self.layers)?;
        }
        Ok(self.view.clone())
    }

    /// Leaves the view: the next run gets another one, without the changes.
    pub fn leave_view(&mut self) {
        self.view = None;
    }

    /// Makes the changes so far part of what every later run in the same process finds.
    pub(crate) fn settle(&self) {
        if let Some(view) = &self.view {
            view.settle();
        }
    }

    /// Whether a run has changed something that the next one in the same process would see.
    pub fn is_touched(&self) -> bool {
        self.view.as_ref().is_some_and(|view| view.is_touched())
    }

    /// Replaces the file at `path`, which need not exist.
    pub fn put(&mut self, path: PathBuf, file: Arc<File>) {
        self.entries.insert(path, Entry::Present(file));
    }

    /// Hides the file at `path`.
    pub fn hide(&mut self, path: PathBuf) {
        self.entries.insert(path, Entry::Deleted);
    }

    /// The file that was put here under this path; nothing if it is hidden, or only the overlay below replaces it.
    pub fn get(&self, path: &Path) -> Option<&Arc<File>> {
        match self.entries.get(path) {
            Some(Entry::Present(file)) => Some(file),
            _ => None,
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

    /// A file as a process would find it.
    pub fn open_file(&self, path: &Path) -> io::Result<File> {
        match self.find(path) {
            Some(Entry::Present(file)) => return file.try_clone(),
            Some(Entry::Deleted) => return Err(io::ErrorKind::NotFound.into()),
            None => {}
        }
        let view = match &self.view {
            None if !self.layers.is_empty() => Lease::new(&self.layers)?,
            known => known.clone(),
        };
        match view {
            Some(view) => view.open(path, libc::O_RDONLY, 0),
            None => File::open(path),
        }
    }

    /// What a process would find there.
    pub(super) fn look_up(&self, path: &Path) -> Option<std::fs::Metadata> {
        let full = std::path::absolute(path).ok()?;
        let real = match self.view() {
            Some(view) => view.canonical(&full, true)?.0,
            None => super::canonical(&full, true)?.0,
        };
        match self.find(&real) {
            Some(Entry::Present(file)) => file.metadata().ok(),
            Some(Entry::Deleted) => None,
            None => self.metadata(&real).ok(),
        }
    }

    pub(super) fn add_socket(&mut self, name: Vec<u8>) {
        self.sockets.insert(name);
    }

    pub(super) fn has_socket(&self, name: &[u8]) -> bool {
        self.sockets.contains(name)
    }

    /// Whether a process may really lock this file. A lock on a shared file, such as PMDK takes on the description of a pool of
    /// several files, would be seen outside, and make unrelated runs fail.
    pub(super) fn may_lock(&self, device: u64, inode: u64) -> bool {
        self.view.is_some() || self.is_own(device, inode)
    }

    /// Whether this file, which a process has open, is private to the sandbox.
    pub(super) fn is_own(&self, device: u64, inode: u64) -> bool {
        let same = |file: &Arc<File>| file.metadata().is_ok_and(|m| (m.dev(), m.ino()) == (device, inode));
        self.by_inode(device, inode).is_some() || self.nameless.iter().any(same)
    }

    /// Whether stand-ins and changes in the view take more memory than this.
    pub fn exceeds(&self, most: u64) -> bool {
        let own = self.files().map(|(_, file)| file).chain(&self.nameless);
        let own: u64 = own.filter_map(|file| file.metadata().ok()).map(|m| m.blocks() * 512).sum();
        // The sum over all views is quick to read.
        let changed = || self.view.as_ref().filter(|view| view.bytes_of_all() > most).map_or(0, |view| view.bytes());
        own > most || own + changed() > most
    }

    fn find(&self, path: &Path) -> Option<&Entry> {
        self.entries.get(path).or_else(|| self.below.get(path))
    }

    /// Notes that a call will change the view. Without a view, only regular files can be changed.
    pub(super) fn change_view(&self, path: &Path) -> Answer {
        match &self.view {
            Some(view) => {
                if !is_kernels(path) || !is_harmless(path) {
                    view.touch();
                }
                Answer::Real
            }
            None => Answer::Refused,
        }
    }

    /// The answer for a path that seems to lead nowhere.
    pub(super) fn unknown(&self, writes: bool) -> Answer {
        if let Some(view) = self.view.as_ref().filter(|_| writes) {
            view.touch();
        }
        Answer::Real
    }

    /// `mode` gives the mode of a new file; it is called only then, since that takes time.
    pub(super) fn open(&mut self, path: &Path, flags: i32, mode: impl FnOnce() -> u32) -> Answer {
        let create = flags & libc::O_CREAT != 0;
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0;
        if flags & libc::O_PATH != 0 && self.find(path).is_none() {
            return Answer::Real;
        }
        if flags & libc::O_TMPFILE == libc::O_TMPFILE {
            return self.open_nameless(path);
        }
        match self.find(path) {
            Some(Entry::Present(_)) if create && flags & libc::O_EXCL != 0 => return Answer::Error(libc::EEXIST),
            Some(Entry::Present(_)) if writes => return self.own(path),
            Some(Entry::Present(file)) => return Answer::Instead(Arc::clone(file)),
            Some(Entry::Deleted) if create && self.takes_writable() => return self.make(path, mode()),
            Some(Entry::Deleted) if create => {
                self.sync_placeholders();
                self.entries.remove(path);
                return self.change_view(path);
            }
            Some(Entry::Deleted) => return Answer::Error(libc::ENOENT),
            None if !writes && !create => return Answer::Real,
            None => {}
        }
        if is_kernels(path) {
            return if self.view.is_some() || is_harmless(path) { Answer::Real } else { Answer::Refused };
        }
        if !self.takes_writable() {
            return self.change_view(path);
        }
        match self.metadata(path) {
            Ok(found) if found.is_file() && create && flags & libc::O_EXCL != 0 => Answer::Error(libc::EEXIST),
            // What is written through one of several names must show under the others, so the kernel handles it.
            Ok(found) if found.is_file() && writes && self.view.is_some() && found.nlink() > 1 => {
                self.change_view(path)
            }
            Ok(found) if found.is_file() && writes => self.own(path),
            Ok(found) if found.is_dir() || found.is_file() => Answer::Real,
            Ok(found) if found.file_type().is_symlink() => Answer::Error(libc::ELOOP),
            Ok(_) => self.change_view(path),
            Err(e) if e.kind() == io::ErrorKind::NotFound && create => self.make(path, mode()),
            Err(_) => Answer::Real,
        }
    }

    /// Whether regular files that are written to are replaced here.
    fn takes_writable(&self) -> bool {
        self.capture == Capture::Writable || self.view.is_none()
    }

    fn open_nameless(&mut self, folder: &Path) -> Answer {
        if self.view.is_some() {
            return self.change_view(folder);
        }
        match unnamed(&folder.join("nameless")) {
            Ok(file) => {
                let file = Arc::new(file);
                self.nameless.push(Arc::clone(&file));
                Answer::Instead(file)
            }
            Err(e) => Answer::Error(e.raw_os_error().unwrap_or(libc::EIO)),
        }
    }

    fn metadata(&self, path: &Path) -> io::Result<std::fs::Metadata> {
        match &self.view {
            Some(view) => view.open(path, libc::O_PATH | libc::O_NOFOLLOW, 0)?.metadata(),
            None => path.symlink_metadata(),
        }
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
            None if is_kernels(path) && is_harmless(path) => Answer::Real,
            None => match self.metadata(path) {
                Ok(found) if found.is_file() && self.view.is_none() => self.own(path),
                Ok(_) => self.change_view(path),
                Err(_) => Answer::Real,
            },
        }
    }

    /// Removes a name. With a view, the kernel removes it there, and the effect follows.
    pub(super) fn unlink(&mut self, path: &Path) -> (Answer, Option<CallEffect>) {
        if self.view.is_some() {
            self.sync_placeholders();
            if self.find(path).is_none() {
                self.change_view(path);
            }
            return (Answer::Real, Some(CallEffect::Unlinked(path.into())));
        }
        let answer = match self.find(path) {
            Some(Entry::Deleted) => Answer::Error(libc::ENOENT),
            Some(Entry::Present(_)) => self.delete(path),
            None => match path.symlink_metadata() {
                Ok(found) if found.is_file() => self.delete(path),
                Ok(found) if found.is_dir() => Answer::Error(libc::EISDIR),
                Ok(_) => Answer::Refused,
                Err(_) => Answer::Real,
            },
        };
        (answer, None)
    }

    fn delete(&mut self, path: &Path) -> Answer {
        self.entries.insert(path.into(), Entry::Deleted);
        Answer::Done
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path, flags: u64) -> (Answer, Option<CallEffect>) {
        let exchanged = flags & u64::from(libc::RENAME_EXCHANGE) != 0;
        if self.view.is_some() {
            self.sync_placeholders();
            if let Some(view) = &self.view
                && !keeper::replaces_all()
            {
                for folder in
                    [Some(from), exchanged.then_some(to)].into_iter().flatten().filter(|path| view.is_folder(path))
                {
                    if let Err(error) = view.make_movable(folder) {
                        return (Answer::Error(error.raw_os_error().unwrap_or(libc::EXDEV)), None);
                    }
                }
            }
            let only_placeholders =
                self.entries.contains_key(from) && (self.entries.contains_key(to) || !self.exists(to));
            if !only_placeholders {
                self.change_view(from);
            }
            return (Answer::Real, Some(CallEffect::Renamed { from: from.into(), to: to.into(), exchanged }));
        }
        (self.rename_here(from, to, flags, exchanged).unwrap_or_else(|answer| answer), None)
    }

    fn rename_here(&mut self, from: &Path, to: &Path, flags: u64, exchanged: bool) -> Result<Answer, Answer> {
        let moved = self.private_file(from)?;
        if flags & u64::from(libc::RENAME_NOREPLACE) != 0 && self.exists(to) {
            return Err(Answer::Error(libc::EEXIST));
        }
        if self.find(to).is_none() && to.symlink_metadata().is_ok_and(|m| !m.is_file()) {
            return Err(Answer::Refused);
        }
        let other = if exchanged { Entry::Present(self.private_file(to)?) } else { Entry::Deleted };
        self.entries.insert(from.into(), other);
        self.entries.insert(to.into(), Entry::Present(moved));
        Ok(Answer::Done)
    }

    pub(super) fn link(&mut self, from: &Path, to: &Path) -> (Answer, Option<CallEffect>) {
        if self.view.is_some() {
            self.sync_placeholders();
            if !self.entries.contains_key(from) {
                self.change_view(to);
            }
            return (Answer::Real, Some(CallEffect::Linked { from: from.into(), to: to.into() }));
        }
        // Stand-ins have no link counts, which many programs make links for.
        let answer = match (self.exists(from), self.exists(to)) {
            (false, _) => Answer::Error(libc::ENOENT),
            (_, true) => Answer::Error(libc::EEXIST),
            _ => Answer::Refused,
        };
        (answer, None)
    }

    /// Gives a name to a file that was opened without one.
    pub(super) fn link_nameless(&mut self, device: u64, inode: u64, to: &Path) -> Answer {
        let same = |file: &&Arc<File>| file.metadata().is_ok_and(|m| (m.dev(), m.ino()) == (device, inode));
        let Some(file) = self.nameless.iter().find(same).cloned() else { return Answer::Refused };
        if self.exists(to) {
            return Answer::Error(libc::EEXIST);
        }
        self.entries.insert(to.into(), Entry::Present(file));
        Answer::Done
    }

    /// Follows a call that the kernel carried out in the view.
    pub(super) fn apply(&mut self, effect: CallEffect) {
        match effect {
            CallEffect::Unlinked(path) => self.forget(&path),
            CallEffect::Linked { from, to } => {
                if let Some(entry @ Entry::Present(_)) = self.entries.get(&from).cloned() {
                    self.put_below(&to, vec![(PathBuf::new(), entry)]);
                }
            }
            CallEffect::Renamed { from, to, exchanged } => {
                let (first, second) = (self.take_below(&from), self.take_below(&to));
                self.put_below(&to, first);
                if exchanged {
                    self.put_below(&from, second);
                }
            }
        }
    }

    fn forget(&mut self, path: &Path) {
        self.entries.remove(path);
        if let Some(view) = &self.view {
            view.forget_placeholder(path);
        }
    }

    /// Takes the entries of a path and of all below it, by what follows the path.
    fn take_below(&mut self, top: &Path) -> Vec<(PathBuf, Entry)> {
        let paths: Vec<PathBuf> = self.entries.keys().filter(|path| path.starts_with(top)).cloned().collect();
        let taken = paths.into_iter().filter_map(|path| {
            let entry = self.entries.remove(&path)?;
            if let Some(view) = &self.view {
                view.forget_placeholder(&path);
            }
            Some((path.strip_prefix(top).ok()?.to_owned(), entry))
        });
        taken.collect()
    }

    fn put_below(&mut self, top: &Path, entries: Vec<(PathBuf, Entry)>) {
        for (rest, entry) in entries {
            let path = if rest.as_os_str().is_empty() { top.to_owned() } else { top.join(rest) };
            if let Some(view) = &self.view {
                view.know_placeholder(&path);
            }
            self.entries.insert(path, entry);
        }
    }

    /// How the listing of a folder differs from the real one. For programs without a view.
    pub(super) fn differences(&self, folder: &Path) -> Differences {
        let mut found = Differences::default();
        let here = self.below.iter().filter(|(path, _)| !self.entries.contains_key(*path)).chain(&self.entries);
        for (path, entry) in here.filter(|(path, _)| path.parent() == Some(folder)) {
            let Some(name) = path.file_name() else { continue };
            match (entry, path.symlink_metadata().is_ok()) {
                (Entry::Present(_), false) => found.added.push(name.to_owned()),
                (Entry::Deleted, true) => found.hidden.push(name.to_owned()),
                _ => {}
            }
        }
        // The order must be the same at each call.
        found.added.sort();
        found
    }

    /// Makes the view's folders list the right files: an empty one for each stand-in, and no hidden ones.
    pub(super) fn sync_placeholders(&self) {
        let Some(view) = &self.view else { return };
        if view.has_placeholders() {
            view.retain_placeholders(|path| matches!(self.entries.get(path), Some(Entry::Present(_))));
        }
        for (path, entry) in &self.entries {
            match (entry, view.exists(path)) {
                (Entry::Present(_), false) => view.add_placeholder(path),
                (Entry::Deleted, true) => view.hide(path),
                _ => {}
            }
        }
    }

    /// The same if the view may be out of date: before a run that follows another in the same process.
    pub(crate) fn tidy(&self) {
        if self.view.as_ref().is_some_and(|view| view.has_placeholders()) {
            self.sync_placeholders();
        }
    }

    fn exists(&self, path: &Path) -> bool {
        match self.find(path) {
            Some(Entry::Present(_)) => true,
            Some(Entry::Deleted) => false,
            None => self.metadata(path).is_ok(),
        }
    }

    fn private_file(&mut self, path: &Path) -> Result<Arc<File>, Answer> {
        if self.find(path).is_none() && !self.metadata(path).is_ok_and(|found| found.is_file()) {
            let missing = self.metadata(path).is_err();
            return Err(if missing { Answer::Error(libc::ENOENT) } else { Answer::Refused });
        }
        match self.own(path) {
            Answer::Instead(file) => Ok(file),
            answer => Err(answer),
        }
    }

    fn make(&mut self, path: &Path, mode: u32) -> Answer {
        // As for a real file, the folder has to exist and be writable for the user.
        let Some(folder) = path.parent() else { return Answer::Real };
        let found = match &self.view {
            Some(view) => view.is_folder(folder),
            None => folder.is_dir(),
        };
        if !found {
            return Answer::Error(libc::ENOENT);
        }
        let made = unnamed(path).and_then(|file| {
            file.set_permissions(std::fs::Permissions::from_mode(mode & 0o7777))?;
            Ok(file)
        });
        match made {
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
            (None, None) => self.open_file(path),
        };
        let copied = original.and_then(|original| {
            let file = unnamed(path)?;
            copy(&original, &file)?;
            copy_about(&original, &file)?;
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

    /// The view, to resolve names in it.
    pub(super) fn view(&self) -> Option<&View> {
        self.view.as_deref().map(|lease| &**lease)
    }
}

/// Copies mode, times and attributes of a file.
fn copy_about(from: &File, to: &File) -> io::Result<()> {
    let known = from.metadata()?;
    to.set_permissions(known.permissions())?;
    attributes::copy(from, to)?;
    to.set_times(std::fs::FileTimes::new().set_accessed(known.accessed()?).set_modified(known.modified()?))
}

/// Paths that hold no data of the user.
pub(super) fn is_kernels(path: &Path) -> bool {
    path.starts_with("/proc") || path.starts_with("/sys") || path.starts_with("/dev") && !path.starts_with("/dev/shm")
}

/// Kernel files that may be written without a view: those of the process itself, and devices that hold no data.
fn is_harmless(path: &Path) -> bool {
    // A view has pseudoterminals of its own.
    const PSEUDOTERMINALS: [&str; 2] = ["ptmx", "pts"];
    let mut parts = path.components().skip(1).map(|part| part.as_os_str().to_str().unwrap_or_default());
    match (parts.next(), parts.next()) {
        (Some("proc"), Some(process)) => process.bytes().all(|b| b.is_ascii_digit()),
        (Some("dev"), Some(device)) => {
            let terminal = || path.symlink_metadata().is_ok_and(|m| m.file_type().is_char_device());
            let harmless = HARMLESS_DEVICES.contains(&device) || PSEUDOTERMINALS.contains(&device);
            harmless || device.starts_with("tty") && terminal()
        }
        _ => false,
    }
}
