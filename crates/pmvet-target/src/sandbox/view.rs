//! Private views of the file system, made by the kernel.
//!
//! A [`View`] is a mount namespace in which every folder that can be written to is an overlay: reads come from the real files, changes go to
//! a layer in a file system in memory that nobody else can reach and that ends with pmvet, however pmvet ends. Contents, listings,
//! links, times, modes and attributes are exactly what the kernel makes of them.
//!
//! A view lives in a thread ([`serve`]) that has entered the namespace and starts processes there. Later runs may build on the
//! changes of a run: its layer is then a lower layer of their views. A view without changes is reused.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, fstatvfs, openat2, readlinkat, unlinkat};

use super::capabilities;
use super::ground::Built;
use super::keeper::{self, Keeper};
use super::spawn::{SpawnOrder, Spawner};
use crate::sparse;

/// What the runs in one view changed, as a folder in the private file system. Dropping the last reference removes it.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) number: u64,
}

impl Drop for Layer {
    fn drop(&mut self) {
        if let Some(keeper) = keeper::get() {
            keeper.remove(self.number);
        }
    }
}

/// A private view of the file system.
#[derive(Debug)]
pub(super) struct View {
    built: Built,
    spawner: Spawner,
    layer: Arc<Layer>,
    /// The layers below, oldest first.
    lower: Vec<Arc<Layer>>,
    /// A program has changed something in it.
    touched: AtomicBool,
    /// A real file was hidden in it.
    stained: AtomicBool,
    /// Empty files that represent stand-ins in listings.
    placeholders: Mutex<HashSet<PathBuf>>,
}

/// Views in which nothing was changed.
static UNTOUCHED: Mutex<Vec<View>> = Mutex::new(Vec::new());
/// How many of them are kept: one for each worker, and some for fork servers.
const KEPT_VIEWS: usize = 16;

/// A view for one user at a time, kept for the next if nothing was changed in it.
#[derive(Debug)]
pub(super) struct Lease(Option<View>);

impl Lease {
    /// A view whose ground is the real files with these changes, oldest first. Nothing if the kernel allows no views.
    pub(super) fn new(lower: &[Arc<Layer>]) -> io::Result<Option<Arc<Self>>> {
        let Some(keeper) = keeper::get() else { return Ok(None) };
        let same = |view: &View| view.lower.iter().map(|l| l.number).eq(lower.iter().map(|l| l.number));
        let mut idle = untouched();
        let known = idle.iter().position(same).map(|at| idle.swap_remove(at));
        drop(idle);
        let view = match known {
            Some(view) => view,
            None => View::new(keeper, lower)?,
        };
        Ok(Some(Arc::new(Self(Some(view)))))
    }
}

impl std::ops::Deref for Lease {
    type Target = View;

    fn deref(&self) -> &View {
        // Taken by `drop` alone.
        self.0.as_ref().expect("a view until the end")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(view) = self.0.take() else { return };
        view.retain_placeholders(|_| false);
        let fresh = view.is_fresh();
        let mut idle = untouched();
        if fresh && idle.len() < KEPT_VIEWS {
            idle.push(view);
        }
    }
}

fn untouched() -> MutexGuard<'static, Vec<View>> {
    UNTOUCHED.lock().unwrap_or_else(|e| e.into_inner())
}

impl View {
    fn new(keeper: &'static Keeper, lower: &[Arc<Layer>]) -> io::Result<Self> {
        let (orders, received) = mpsc::channel::<SpawnOrder>();
        let (ready, made) = mpsc::channel();
        let folder = std::env::current_dir()?;
        let layer = Arc::new(Layer { number: keeper.next_layer() });
        let (number, numbers) = (layer.number, lower.iter().map(|layer| layer.number).collect::<Vec<_>>());
        keeper.spawn(move || {
            let built = keeper.build(number, &numbers, &folder).and_then(|built| {
                Spawner::confine(true)?;
                Ok(built)
            });
            let works = built.is_ok();
            if ready.send(built).is_ok() && works {
                Spawner::serve(received);
            }
        })?;
        let built = made.recv().map_err(io::Error::other)??;
        let spawner = Spawner::new(orders);
        let (touched, stained, placeholders) = Default::default();
        Ok(Self { built, spawner, layer, lower: lower.to_vec(), touched, stained, placeholders })
    }

    pub(super) fn spawner(&self) -> &Spawner {
        &self.spawner
    }

    pub(super) fn touch(&self) {
        self.touched.store(true, Ordering::Release);
    }

    pub(super) fn is_touched(&self) -> bool {
        self.touched.load(Ordering::Acquire)
    }

    /// Makes the changes so far part of what every later run finds.
    pub(super) fn settle(&self) {
        if self.touched.swap(false, Ordering::AcqRel) {
            self.stained.store(true, Ordering::Release);
        }
    }

    /// Whether nothing was changed in it: checks both what programs asked for and what the kernel has made of it.
    fn is_fresh(&self) -> bool {
        !self.is_touched() && !self.stained.load(Ordering::Acquire) && self.built.changes.iter().all(is_empty)
    }

    /// How much memory the changes in all views take.
    pub(super) fn bytes_of_all(&self) -> u64 {
        let told = self.built.changes.first().and_then(|folder| fstatvfs(folder).ok());
        told.map_or(0, |found| (found.f_blocks - found.f_bfree) * found.f_frsize)
    }

    /// How much memory the changes in this one take, as far as they can be seen.
    pub(super) fn bytes(&self) -> u64 {
        let path = |folder: &OwnedFd| PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
        self.built.changes.iter().map(|folder| bytes_below(&path(folder))).sum()
    }

    /// Its layers, its own last, for other views to build on. It must not be changed any more.
    pub(super) fn layers(&self) -> Vec<Arc<Layer>> {
        self.touch();
        self.lower.iter().chain([&self.layer]).map(Arc::clone).collect()
    }

    /// Opens a file as a process in the view would.
    pub(super) fn open(&self, path: &Path, flags: i32, mode: u32) -> io::Result<File> {
        open_in(&self.built.root, path, flags, mode)
    }

    /// The path without symbolic links and dots, and whether there is a file.
    pub(super) fn canonical(&self, path: &Path, follow: bool) -> Option<(PathBuf, bool)> {
        let flags = libc::O_PATH | if follow { 0 } else { libc::O_NOFOLLOW };
        let name = |file: &File| std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok();
        if let Ok(found) = self.open(path, flags, 0) {
            return Some((name(&found)?, true));
        }
        let folder = self.open(path.parent()?, libc::O_PATH | libc::O_DIRECTORY, 0).ok()?;
        Some((name(&folder)?.join(path.file_name()?), false))
    }

    pub(super) fn read_link(&self, path: &Path) -> Option<PathBuf> {
        let link = self.open(path, libc::O_PATH | libc::O_NOFOLLOW, 0).ok()?;
        let target = readlinkat(link, c"", Vec::new()).ok()?;
        Some(OsStr::from_bytes(target.as_bytes()).into())
    }

    pub(super) fn exists(&self, path: &Path) -> bool {
        self.open(path, libc::O_PATH | libc::O_NOFOLLOW, 0).is_ok()
    }

    pub(super) fn is_folder(&self, path: &Path) -> bool {
        self.open(path, libc::O_PATH | libc::O_NOFOLLOW | libc::O_DIRECTORY, 0).is_ok()
    }

    /// Makes a folder renamable. Without the rights of the machine's administrator, the kernel refuses to rename a real folder, so its
    /// content moves to a new folder that replaces it.
    pub(super) fn make_movable(&self, path: &Path) -> io::Result<()> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
        let folder = self.open(parent, libc::O_PATH | libc::O_DIRECTORY, 0)?;
        let folder = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
        let (old, new) = (folder.join(name), folder.join(format!(".pmvet-moved-{}", self.layer.number)));
        match std::fs::rename(&old, &new) {
            Err(e) if e.kind() == io::ErrorKind::CrossesDevices => move_content(&old, &new)?,
            moved => moved?,
        }
        std::fs::rename(new, old)
    }

    /// Removes a file.
    pub(super) fn unlink(&self, path: &Path) -> io::Result<()> {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let folder = self.open(folder, libc::O_PATH | libc::O_DIRECTORY, 0)?;
        Ok(unlinkat(folder, name, AtFlags::empty())?)
    }

    /// Puts an empty file where listings should show one. If the folder is missing, there is no listing.
    pub(super) fn add_placeholder(&self, path: &Path) {
        if self.open(path, libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, 0o644).is_ok() {
            self.placeholders().insert(path.to_owned());
        }
    }

    /// Notes that the kernel moved or linked a placeholder there.
    pub(super) fn know_placeholder(&self, path: &Path) {
        self.placeholders().insert(path.to_owned());
    }

    /// Hides a file.
    pub(super) fn hide(&self, path: &Path) {
        self.stained.store(true, Ordering::Release);
        if self.unlink(path).is_err() {
            self.touch();
        }
    }

    /// Notes that a placeholder is gone.
    pub(super) fn forget_placeholder(&self, path: &Path) {
        self.placeholders().remove(path);
    }

    /// Removes the placeholders for which this does not hold.
    pub(super) fn retain_placeholders(&self, keep: impl Fn(&Path) -> bool) {
        self.placeholders().retain(|path| {
            let stays = keep(path);
            if !stays && self.unlink(path).is_err() && self.exists(path) {
                self.touch();
            }
            stays
        });
    }

    pub(super) fn has_placeholders(&self) -> bool {
        !self.placeholders().is_empty()
    }

    fn placeholders(&self) -> MutexGuard<'_, HashSet<PathBuf>> {
        self.placeholders.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Runs a command to its end in a separate view, with these files in their places, or hidden. It has no supervisor: this is for
/// programs that trace it themselves, such as a debugger. Nothing if the kernel allows no views.
pub(super) fn run_alone(
    lower: &[Arc<Layer>],
    files: Vec<(PathBuf, Option<Arc<File>>)>,
    mut command: Command,
) -> io::Result<Option<ExitStatus>> {
    let Some(keeper) = keeper::get() else { return Ok(None) };
    let folder = std::env::current_dir()?;
    let layer = Layer { number: keeper.next_layer() };
    let (number, numbers) = (layer.number, lower.iter().map(|layer| layer.number).collect::<Vec<_>>());
    let status = keeper.call(move |ground| {
        ground.build(number, &numbers, &folder).map_err(io::Error::other)?;
        capabilities::drop_for_good()?;
        for (path, file) in files {
            let placed = match file {
                Some(file) => File::create(&path).and_then(|to| sparse::copy(&file, &to)),
                None if path.exists() => std::fs::remove_file(&path),
                None => Ok(()),
            };
            placed.map_err(|e| io::Error::other(format!("{}: {e}", path.display())))?;
        }
        command.status()
    })?;
    Ok(Some(status))
}

/// Opens a file as a process with this root would.
pub(super) fn open_in(root: &OwnedFd, path: &Path, flags: i32, mode: u32) -> io::Result<File> {
    let (flags, mode) = (OFlags::from_bits_retain(flags as u32) | OFlags::CLOEXEC, Mode::from_raw_mode(mode));
    Ok(openat2(root, path, flags, mode, ResolveFlags::IN_ROOT)?.into())
}

fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => bytes_below(&entry.path()),
        found => found.map_or(0, |found| found.blocks() * 512),
    };
    entries.flatten().map(bytes).sum()
}

/// Whether a folder is empty, as far as can be seen.
fn is_empty(folder: &OwnedFd) -> bool {
    let path = format!("/proc/self/fd/{}", folder.as_raw_fd());
    std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// Moves the content of a folder to a new one, and removes the old one.
fn move_content(old: &Path, new: &Path) -> io::Result<()> {
    let known = old.metadata()?;
    std::fs::create_dir(new)?;
    for entry in old.read_dir()? {
        let entry = entry?;
        let target = new.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => move_content(&entry.path(), &target)?,
            false => std::fs::rename(entry.path(), target)?,
        }
    }
    std::fs::remove_dir(old)?;
    std::fs::set_permissions(new, known.permissions())?;
    let times = std::fs::FileTimes::new().set_accessed(known.accessed()?).set_modified(known.modified()?);
    File::open(new)?.set_times(times)
}
