//! What runs left in files, kept for later: an archive that `tar` can read.
//!
//! `layers/N/PATH` is what a run changed in its [view](super::view), as the kernel keeps it: a device 0/0 stands for what was removed.
//! `files/PATH` is a stand-in. What the header of an archive has no room for is in a separate record ([`About`]).

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::fs::{self, File, FileTimes, Metadata, Permissions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde::{Deserialize, Serialize};
use tar::{Archive, Builder, EntryType, Header};

use super::attributes::{self, Attribute};
use super::ground::ViewGround;
use crate::sparse;

const LAYERS: &str = "layers";
const STAND_INS: &str = "files";
/// The key of the record with what headers have no room for.
const ABOUT: &str = "PMVET.about";
/// The most bytes that are kept of one run.
const MOST_BYTES: u64 = 2 << 30;

/// What a header has no room for.
#[derive(Debug, Default, Serialize, Deserialize)]
struct About {
    accessed: Duration,
    modified: Duration,
    attributes: Vec<(CString, Vec<u8>)>,
}

/// Writes an archive.
pub(super) struct Saver<W: Write> {
    archive: Builder<W>,
    /// Files with several names, by inode, with the first one.
    linked: HashMap<u64, PathBuf>,
    bytes: u64,
    /// Whether there is anything in it.
    pub(super) is_empty: bool,
}

impl<W: Write> Saver<W> {
    pub(super) fn new(to: W) -> Self {
        Self { archive: Builder::new(to), linked: HashMap::new(), bytes: 0, is_empty: true }
    }

    /// Adds a layer, except the files with these paths.
    pub(super) fn layer(
        &mut self,
        place: usize,
        ground: &ViewGround,
        layer: u64,
        skip: &HashSet<PathBuf>,
    ) -> io::Result<()> {
        for (at, folder) in ground.changed_folders(layer) {
            let name = Path::new(LAYERS).join(place.to_string()).join(relative(at));
            self.folder(&folder, &name, at, skip)?;
        }
        // Another layer has other links.
        self.linked.clear();
        Ok(())
    }

    /// Adds what is in a folder, and all below.
    fn folder(&mut self, folder: &Path, name: &Path, real: &Path, skip: &HashSet<PathBuf>) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let (path, name, real) = (entry.path(), name.join(entry.file_name()), real.join(entry.file_name()));
            let known = path.symlink_metadata()?;
            let kind = known.file_type();
            if skip.contains(&real) && kind.is_file() || kind.is_socket() {
                continue;
            }
            self.is_empty = false;
            let mut header = header(&known);
            if kind.is_dir() {
                let attributes = attributes::list(&File::open(&path)?);
                self.about(&known, attributes)?;
                header.set_entry_type(EntryType::Directory);
                self.archive.append_data(&mut header, &name, io::empty())?;
                self.folder(&path, &name, &real, skip)?;
            } else if kind.is_symlink() {
                header.set_entry_type(EntryType::Symlink);
                self.archive.append_link(&mut header, &name, fs::read_link(&path)?)?;
            } else if kind.is_file() {
                self.file(&File::open(&path)?, &known, &name)?;
            } else {
                header.set_entry_type(if kind.is_fifo() { EntryType::Fifo } else { EntryType::Char });
                header.set_device_major(0)?;
                header.set_device_minor(0)?;
                self.archive.append_data(&mut header, &name, io::empty())?;
            }
        }
        Ok(())
    }

    fn file(&mut self, file: &File, known: &Metadata, name: &Path) -> io::Result<()> {
        self.is_empty = false;
        let mut header = header(known);
        if let Some(first) = self.linked.get(&known.ino()).filter(|_| known.nlink() > 1) {
            header.set_entry_type(EntryType::Link);
            return self.archive.append_link(&mut header, name, first);
        }
        self.linked.insert(known.ino(), name.to_owned());
        self.bytes += known.len();
        if self.bytes > MOST_BYTES {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {} MiB", MOST_BYTES >> 20)));
        }
        self.about(known, attributes::list(file))?;
        header.set_entry_type(EntryType::Regular);
        header.set_size(known.len());
        self.archive.append_data(&mut header, name, io::Read::take(file, known.len()))
    }

    /// Adds a stand-in, or the fact that there is no file.
    pub(super) fn stand_in(&mut self, path: &Path, file: Option<&File>) -> io::Result<()> {
        let name = Path::new(STAND_INS).join(relative(path));
        let Some(file) = file else {
            self.is_empty = false;
            let mut header = Header::new_gnu();
            header.set_size(0);
            header.set_mode(0);
            header.set_entry_type(EntryType::Char);
            header.set_device_major(0)?;
            header.set_device_minor(0)?;
            return self.archive.append_data(&mut header, name, io::empty());
        };
        let file = File::open(super::path_of(file))?;
        self.file(&file, &file.metadata()?, &name)
    }

    fn about(&mut self, known: &Metadata, attributes: Vec<Attribute>) -> io::Result<()> {
        // The kernel's notes on lower files are useless to a later view.
        let is_kept = |(name, _): &Attribute| {
            let name = name.to_bytes();
            name.starts_with(b"user.") || name.ends_with(b"overlay.opaque") || name.ends_with(b"overlay.redirect")
        };
        let since =
            |time: io::Result<SystemTime>| Ok::<_, io::Error>(time?.duration_since(UNIX_EPOCH).unwrap_or_default());
        let (accessed, modified) = (since(known.accessed())?, since(known.modified())?);
        let about = About { accessed, modified, attributes: attributes.into_iter().filter(is_kept).collect() };
        let text = serde_json::to_vec(&about)?;
        self.archive.append_pax_extensions([(ABOUT, text.as_slice())])
    }

    pub(super) fn finish(self) -> io::Result<W> {
        self.archive.into_inner()
    }
}

fn header(known: &Metadata) -> Header {
    let mut header = Header::new_gnu();
    header.set_size(0);
    header.set_mode(known.mode() & 0o7777);
    header.set_uid(known.uid().into());
    header.set_gid(known.gid().into());
    header.set_mtime(u64::try_from(known.mtime()).unwrap_or(0));
    header
}

/// A full path without its first slash.
fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

/// Paths with their stand-ins; `None`: the file was deleted.
pub(super) type StandIns = Vec<(PathBuf, Option<Arc<File>>)>;

/// The stand-ins in an archive, and how many layers it has.
pub(super) fn stand_ins(from: &mut File) -> io::Result<(StandIns, usize)> {
    from.seek(SeekFrom::Start(0))?;
    let (mut found, mut layers): (StandIns, _) = (Vec::new(), 0);
    for entry in Archive::new(from).entries()? {
        let mut entry = entry?;
        let name = entry.path()?.into_owned();
        let (top, rest) = split(&name)?;
        if top == LAYERS {
            layers = layers.max(layer_number(rest)?.0 + 1);
            continue;
        }
        let path = Path::new("/").join(rest);
        let (kind, mode) = (entry.header().entry_type(), entry.header().mode()?);
        let file = match kind {
            EntryType::Char => None,
            EntryType::Link => {
                let first = entry.link_name()?.ok_or_else(damaged)?;
                let first = Path::new("/").join(split(&first)?.1);
                found.iter().find(|(path, _)| *path == first).ok_or_else(damaged)?.1.clone()
            }
            _ => {
                let about = about(&mut entry)?;
                let mut file = sparse::unnamed(&path)?;
                io::copy(&mut entry, &mut file)?;
                about.apply(&file, mode)?;
                Some(Arc::new(file))
            }
        };
        found.push((path, file));
    }
    Ok((found, layers))
}

/// Restores a layer of an archive into a new one.
pub(super) fn restore(from: &mut File, place: usize, ground: &ViewGround, layer: u64) -> io::Result<()> {
    from.seek(SeekFrom::Start(0))?;
    let target = |name: &Path| -> io::Result<Option<PathBuf>> {
        let (top, rest) = split(name)?;
        match (top == LAYERS).then(|| layer_number(rest)).transpose()? {
            Some((number, rest)) if number == place => ground.changed_path(layer, &Path::new("/").join(rest)).map(Some),
            _ => Ok(None),
        }
    };
    let mut folders = Vec::new();
    for entry in Archive::new(from).entries()? {
        let mut entry = entry?;
        let Some(path) = target(&entry.path()?)? else { continue };
        let header = entry.header();
        let (kind, mode, owner) = (header.entry_type(), header.mode()?, (header.uid()? as u32, header.gid()? as u32));
        match kind {
            EntryType::Directory => {
                fs::create_dir_all(&path)?;
                let about = about(&mut entry)?;
                folders.push((path.clone(), about, mode));
            }
            EntryType::Symlink => symlink(entry.link_name()?.ok_or_else(damaged)?, &path)?,
            EntryType::Link => {
                let first = target(&entry.link_name()?.ok_or_else(damaged)?)?.ok_or_else(damaged)?;
                fs::hard_link(first, &path)?;
            }
            EntryType::Fifo | EntryType::Char => {
                let kind = if kind == EntryType::Fifo { FileType::Fifo } else { FileType::CharacterDevice };
                mknodat(CWD, &path, kind, Mode::from_raw_mode(mode & 0o7777), 0)?;
            }
            _ => {
                let about = about(&mut entry)?;
                let mut file = File::create(&path)?;
                io::copy(&mut entry, &mut file)?;
                let _ = chown(&path, Some(owner.0), Some(owner.1));
                about.apply(&file, mode)?;
                continue;
            }
        }
        // An ordinary user cannot change the owner, nor could the program.
        let _ = lchown(&path, Some(owner.0), Some(owner.1));
    }
    // Folders get their times last: adding files to them changes these.
    folders.iter().rev().try_for_each(|(path, about, mode)| about.apply(&File::open(path)?, *mode))
}

impl About {
    fn apply(&self, file: &File, mode: u32) -> io::Result<()> {
        for attribute in &self.attributes {
            match attributes::set(file, attribute) {
                Err(e) if e.raw_os_error() != Some(libc::EOPNOTSUPP) => return Err(e),
                _ => {}
            }
        }
        file.set_permissions(Permissions::from_mode(mode & 0o7777))?;
        file.set_times(
            FileTimes::new().set_accessed(UNIX_EPOCH + self.accessed).set_modified(UNIX_EPOCH + self.modified),
        )
    }
}

fn about<R: io::Read>(entry: &mut tar::Entry<'_, R>) -> io::Result<About> {
    for record in entry.pax_extensions()?.ok_or_else(damaged)? {
        let record = record?;
        if record.key_bytes() == ABOUT.as_bytes() {
            return Ok(serde_json::from_slice(record.value_bytes())?);
        }
    }
    Err(damaged())
}

/// The first part of a name in an archive, and the rest, which must not lead outside.
fn split(name: &Path) -> io::Result<(&str, &Path)> {
    let mut parts = name.components();
    let first = parts.next().and_then(|part| part.as_os_str().to_str()).ok_or_else(damaged)?;
    let rest = parts.as_path();
    match parts.all(|part| matches!(part, Component::Normal(_))) {
        true => Ok((first, rest)),
        false => Err(damaged()),
    }
}

fn layer_number(rest: &Path) -> io::Result<(usize, &Path)> {
    let (number, rest) = split(rest)?;
    Ok((number.parse().map_err(|_| damaged())?, rest))
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the archive is damaged")
}
