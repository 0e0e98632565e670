//! What views are built from, and how.
//!
//! In a view `/dev` has only devices that hold no data; `/sys`, `/proc/sys` and other file systems of the kernel are read-only; devices in
//! overlays do not work. A file system that overlays do not work on is read-only, and pmvet says so.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::ptr;

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::pivot_root;

use super::mounts::{self, Mount, below};

/// Why a view could not be made: the step, which is a system call or a file, and the error.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{step}: {error}")]
pub struct NoViews {
    /// The system call or the file.
    pub step: String,
    /// What the kernel said.
    pub error: String,
}

pub(super) fn step<T>(name: &str, result: io::Result<T>) -> Result<T, NoViews> {
    result.map_err(|error| NoViews { step: name.into(), error: error.to_string() })
}

pub(super) fn call(name: &str, result: libc::c_long) -> Result<libc::c_long, NoViews> {
    step(name, if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) })
}

/// What a view is made from.
#[derive(Debug)]
pub(super) struct ViewGround {
    /// The whole tree is replaced. Otherwise it stays, read-only, but for some folders.
    pub(super) whole: bool,
    mounts: Vec<Mount>,
    /// The folders that become overlays, parents first; with `whole`, `/` is the first.
    overlays: Vec<PathBuf>,
    /// Where the private file system is, in the keeper's namespace alone.
    store: PathBuf,
}

/// A view that was built.
#[derive(Debug)]
pub(super) struct Built {
    /// Its root folder.
    pub(super) root: OwnedFd,
    /// The folders that its changes go to, one for each overlay.
    pub(super) changes: Vec<OwnedFd>,
}

/// Devices in `/dev` that a program may use: they hold no data.
pub(super) const HARMLESS_DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Parts of `/proc` that change the machine.
const SETTINGS: [&str; 4] = ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"];
/// A file that serves as a mount point is copied for a view up to this size; a larger one is read-only.
const COPIED_FILE_BYTES: u64 = 1 << 20;

impl ViewGround {
    /// Makes the private file system, in a namespace of the calling thread's own, and finds what to replace.
    pub(super) fn new(hints: &[PathBuf]) -> Result<Self, NoViews> {
        let mounts = step("/proc/thread-self/mountinfo", mounts::reachable())?;
        own_mounts()?;
        // In a user namespace the kernel does not release the mounts that were there before.
        let whole =
            std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.trim_end().ends_with("4294967295"));
        let mut overlays: Vec<PathBuf> = if whole {
            let real = |m: &&Mount| !m.is_pseudo() && !m.read_only && !m.at.starts_with("/dev") && m.at.is_dir();
            mounts.iter().filter(real).map(|m| m.at.clone()).collect()
        } else {
            mounts::writable_tops(&mounts, hints)
        };
        overlays.retain(|place| place != Path::new("/"));
        if whole {
            overlays.insert(0, "/".into());
        }
        let shared = PathBuf::from("/dev/shm");
        if shared.is_dir() && !overlays.contains(&shared) {
            overlays.push(shared);
        }
        // A folder that no program needs, since it is hidden while a view is built.
        let places = ["/sys/kernel/debug", "/sys/kernel/security", "/sys/fs/cgroup", "/sys", "/media", "/mnt", "/srv"];
        let free = |place: &PathBuf| {
            place.symlink_metadata().is_ok_and(|m| m.is_dir()) && !overlays.iter().any(|o| o.starts_with(place))
        };
        let store = places.map(PathBuf::from).into_iter().find(free);
        let store = store.ok_or_else(|| NoViews { step: "mount".into(), error: "no folder to mount on".into() })?;
        mount(Some(Path::new("pmvet")), &store, Some("tmpfs"), libc::MS_NODEV | libc::MS_NOSUID, Some(b"mode=755"))?;
        Ok(Self { whole, mounts, overlays, store })
    }

    pub(super) fn layer(&self, number: u64) -> PathBuf {
        self.store.join(number.to_string())
    }

    /// Builds a view with the given layers, oldest first, below its own, and puts the calling thread into it, in a
    /// folder.
    pub(super) fn build(&self, number: u64, lower: &[u64], folder: &Path) -> Result<Built, NoViews> {
        own_mounts()?;
        let root = self.layer(number).join("root");
        step("mkdir", std::fs::create_dir_all(&root))?;
        if self.whole {
            self.overlay(0, &root, number, lower)?;
            self.bring_mounts(&root, number)?;
        } else {
            mount(Some(Path::new("/")), &root, None, libc::MS_BIND | libc::MS_REC, None)?;
            set_read_only(&root, true, true)?;
            detach(&below(&root, &self.store))?;
            set_read_only(&below(&root, Path::new("/proc")), false, false)?;
        }
        devices(&root)?;
        for index in usize::from(self.whole)..self.overlays.len() {
            let place = &self.overlays[index];
            let target = below(&root, place);
            let Err(error) = self.overlay(index, &target, number, lower) else { continue };
            // Overlays do not work on every file system.
            mount(Some(place), &target, None, libc::MS_BIND, None)?;
            set_read_only(&target, true, false)?;
            let text = "cannot be made private";
            super::say(&format!("{} {text} ({error}), so programs cannot write there", place.display()));
        }
        let changes =
            self.changed_folders(number).map(|(_, folder)| step("open", File::open(folder)).map(OwnedFd::from));
        let changes = changes.collect::<Result<_, _>>()?;
        enter_root(&root)?;
        step("chdir", std::env::set_current_dir(folder))?;
        Ok(Built { root: step("open", File::open("/"))?.into(), changes })
    }

    /// The folders with what a layer changes, each with the folder that it changes.
    pub(super) fn changed_folders(&self, layer: u64) -> impl Iterator<Item = (&Path, PathBuf)> {
        let folders = self.overlays.iter().enumerate().map(move |(i, at)| (at.as_path(), self.changes(layer, i)));
        folders.filter(|(_, folder)| folder.is_dir())
    }

    /// The regular files that a layer adds or changes.
    pub(super) fn changed_files(&self, layer: u64, found: &mut Vec<PathBuf>) -> io::Result<()> {
        fn look(folder: &Path, real: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
            for entry in std::fs::read_dir(folder)? {
                let entry = entry?;
                let real = real.join(entry.file_name());
                match entry.file_type()? {
                    kind if kind.is_dir() => look(&entry.path(), &real, found)?,
                    kind if kind.is_file() => found.push(real),
                    _ => {}
                }
            }
            Ok(())
        }
        self.changed_folders(layer).try_for_each(|(at, folder)| look(&folder, at, found))
    }

    /// Where a layer keeps a change of this path. Creates its folder.
    pub(super) fn changed_path(&self, layer: u64, path: &Path) -> io::Result<PathBuf> {
        let around = self.overlays.iter().enumerate().filter(|(_, at)| path.starts_with(at));
        let (index, at) = around
            .max_by_key(|(_, at)| at.as_os_str().len())
            .ok_or_else(|| io::Error::other(format!("{}: programs cannot write there any more", path.display())))?;
        let folder = self.changes(layer, index);
        std::fs::create_dir_all(&folder)?;
        Ok(folder.join(path.strip_prefix(at).unwrap_or(path)))
    }

    /// The folder with what a layer changes in one of the overlays.
    fn changes(&self, layer: u64, index: usize) -> PathBuf {
        self.layer(layer).join("changes").join(index.to_string())
    }

    /// Mounts the overlay of one folder.
    fn overlay(&self, index: usize, target: &Path, number: u64, lower: &[u64]) -> Result<(), NoViews> {
        let place = &self.overlays[index];
        let real = step("stat", place.metadata())?;
        let upper = |layer: u64| self.changes(layer, index);
        let work = self.layer(number).join("work").join(index.to_string());
        for folder in [&upper(number), &work] {
            step("mkdir", std::fs::create_dir_all(folder))?;
            step("chmod", std::fs::set_permissions(folder, std::fs::Permissions::from_mode(real.mode() & 0o7777)))?;
        }
        // It appears in place of the folder, so it gets its owner. An ordinary user can neither change the owner, nor
        // needs to.
        let _ = std::os::unix::fs::chown(upper(number), Some(real.uid()), Some(real.gid()));
        let _ = copy_times(&real, &upper(number));
        let mut options = b"lowerdir=".to_vec();
        for layer in lower.iter().rev().map(|&layer| upper(layer)).filter(|layer| layer.is_dir()) {
            options.extend(layer.as_os_str().as_bytes());
            options.push(b':');
        }
        for &byte in place.as_os_str().as_bytes() {
            if b"\\:,".contains(&byte) {
                options.push(b'\\');
            }
            options.push(byte);
        }
        options.extend(b",upperdir=");
        options.extend(upper(number).as_os_str().as_bytes());
        options.extend(b",workdir=");
        options.extend(work.as_os_str().as_bytes());
        // Only the administrator of the machine may rename folders in an overlay.
        options.extend(if self.whole { &b",redirect_dir=on"[..] } else { b",userxattr" });
        let flags = libc::MS_NODEV | libc::MS_NOSUID;
        mount(Some(Path::new("overlay")), target, Some("overlay"), flags, Some(&options))
    }

    /// Mounts what is not an overlay below the root of a view that replaces the whole tree.
    fn bring_mounts(&self, root: &Path, number: u64) -> Result<(), NoViews> {
        let covered =
            |path: &Path| ["/proc", "/sys", "/dev"].iter().any(|top| path.starts_with(top) && path != Path::new(top));
        for (index, Mount { at, read_only, .. }) in self.mounts.iter().enumerate() {
            let target = below(root, at);
            if covered(at) || at == Path::new("/dev") || self.overlays.contains(at) {
                continue;
            }
            if at == Path::new("/proc") || at == Path::new("/sys") {
                mount(Some(at), &target, None, libc::MS_BIND | libc::MS_REC, None)?;
                if self.store.starts_with(at) {
                    detach(&below(root, &self.store))?;
                }
                if at == Path::new("/sys") {
                    set_read_only(&target, true, true)?;
                }
                continue;
            }
            let found = step("stat", at.metadata())?;
            if found.is_file() && !read_only && found.len() <= COPIED_FILE_BYTES {
                let copy = self.layer(number).join(format!("file-{index}"));
                step("copy", std::fs::copy(at, &copy))?;
                mount(Some(&copy), &target, None, libc::MS_BIND, None)?;
                continue;
            }
            mount(Some(at), &target, None, libc::MS_BIND, None)?;
            set_read_only(&target, true, false)?;
        }
        for settings in SETTINGS.map(Path::new).into_iter().filter(|path| path.exists()) {
            let target = below(root, settings);
            mount(Some(&target), &target, None, libc::MS_BIND, None)?;
            set_read_only(&target, true, false)?;
        }
        Ok(())
    }
}

/// Gives the calling thread private mounts.
fn own_mounts() -> Result<(), NoViews> {
    // SAFETY: a system call without pointers.
    call("unshare", unsafe { libc::unshare(libc::CLONE_NEWNS) }.into())?;
    mount(None, Path::new("/"), None, libc::MS_REC | libc::MS_PRIVATE, None)
}

/// A `/dev` of its own.
fn devices(root: &Path) -> Result<(), NoViews> {
    let dev = root.join("dev");
    mount(Some(Path::new("dev")), &dev, Some("tmpfs"), libc::MS_NOSUID, Some(b"mode=755,size=64k"))?;
    for name in HARMLESS_DEVICES {
        let real = Path::new("/dev").join(name);
        if real.exists() {
            step("open", File::create(dev.join(name)))?;
            mount(Some(&real), &dev.join(name), None, libc::MS_BIND, None)?;
        }
    }
    let links =
        [("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2"), ("ptmx", "pts/ptmx")];
    for (name, to) in links {
        step("symlink", symlink(to, dev.join(name)))?;
    }
    for name in ["pts", "shm", "mqueue"] {
        step("mkdir", std::fs::create_dir(dev.join(name)))?;
    }
    let options = Some(&b"newinstance,ptmxmode=0666,mode=620"[..]);
    let flags = libc::MS_NOSUID | libc::MS_NOEXEC;
    mount(Some(Path::new("devpts")), &dev.join("pts"), Some("devpts"), flags, options)?;
    // Not every kernel has message queues.
    let _ = mount(Some(Path::new("mqueue")), &dev.join("mqueue"), Some("mqueue"), flags, None);
    Ok(())
}

/// Makes a folder, which something is mounted on, the root of the calling thread's namespace.
fn enter_root(root: &Path) -> Result<(), NoViews> {
    step("chdir", std::env::set_current_dir(root))?;
    // The old root then lies on the new one, and is removed.
    step("pivot_root", pivot_root(".", ".").map_err(io::Error::from))?;
    detach(Path::new("."))?;
    step("chdir", std::env::set_current_dir("/"))
}

fn text(path: &Path) -> Result<CString, NoViews> {
    step("path", CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other))
}

pub(super) fn mount(
    source: Option<&Path>,
    target: &Path,
    kind: Option<&str>,
    flags: libc::c_ulong,
    options: Option<&[u8]>,
) -> Result<(), NoViews> {
    let source = source.map(text).transpose()?;
    let place = text(target)?;
    let kind = kind.map(|kind| text(Path::new(kind))).transpose()?;
    let options = step("mount", options.map(CString::new).transpose().map_err(io::Error::other))?;
    let pointer = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
    // SAFETY: the pointers are valid or null.
    let done =
        unsafe { libc::mount(pointer(&source), place.as_ptr(), pointer(&kind), flags, pointer(&options).cast()) };
    call("mount", done.into()).map(drop).map_err(|NoViews { step, error }| {
        let kind = kind.as_ref().map_or("", |kind| kind.to_str().unwrap_or_default());
        NoViews { step, error: format!("{error} ({kind} on {})", target.display()) }
    })
}

fn detach(target: &Path) -> Result<(), NoViews> {
    step("umount2", unmount(target, UnmountFlags::DETACH).map_err(io::Error::from))
}

/// Makes a mount, or a whole tree of them, read-only or writable.
fn set_read_only(target: &Path, read_only: bool, tree: bool) -> Result<(), NoViews> {
    /// As the kernel has it.
    #[repr(C)]
    struct Attributes {
        set: u64,
        clear: u64,
        propagation: u64,
        users: u64,
    }
    const READ_ONLY: u64 = 1;
    let place = text(target)?;
    let (set, clear) = if read_only { (READ_ONLY, 0) } else { (0, READ_ONLY) };
    let attributes = Attributes { set, clear, propagation: 0, users: 0 };
    let flags = if tree { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the pointers are valid and the size is that of the structure.
    let done = unsafe {
        let (number, size) = (libc::SYS_mount_setattr, size_of::<Attributes>());
        libc::syscall(number, libc::AT_FDCWD, place.as_ptr(), flags, &raw const attributes, size)
    };
    call("mount_setattr", done).map(drop)
}

fn copy_times(from: &std::fs::Metadata, to: &Path) -> io::Result<()> {
    let times = std::fs::FileTimes::new().set_accessed(from.accessed()?).set_modified(from.modified()?);
    File::open(to)?.set_times(times)
}
