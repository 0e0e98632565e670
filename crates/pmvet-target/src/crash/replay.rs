//! The PM files of a run, event by event.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::PathBuf;

use pmvet_events::event::{Event, What};
use pmvet_events::ids::{FileId, ThreadId};
use pmvet_events::spaces::AddressSpaces;

use super::PAGE;
use crate::mapped::MappedFile;
use crate::recording::Recording;
use crate::sparse;

/// Path and size of a PM file at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FileState {
    /// The number that events know it by.
    pub file: FileId,
    /// Its newest path, as the target named it.
    pub path: PathBuf,
    /// In bytes.
    pub size: u64,
    /// False once it has been deleted.
    pub exists: bool,
    /// Its paths before it was renamed.
    pub former: Vec<PathBuf>,
}

/// The PM files of a recorded run, as they are after the events applied so far.
#[derive(Debug)]
pub struct PmReplay {
    recording: Recording,
    spaces: AddressSpaces,
    files: Vec<Option<PmFile>>,
}

/// A PM file, as it is at this moment of the replay.
#[derive(Debug)]
pub(super) struct PmFile {
    pub(super) state: FileState,
    pub(super) content: MappedFile,
    /// Pages that may have changed since the last snapshot.
    pub(super) dirty: Dirty,
}

/// A set of pages. Stores come in clusters, so the last page is cached.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    last: Option<u64>,
    pages: BTreeSet<u64>,
}

impl Dirty {
    fn add(&mut self, offset: u64, len: u64) {
        let (first, last) = (offset / PAGE as u64, (offset + len.max(1) - 1) / PAGE as u64);
        if first == last && self.last == Some(first) {
            return;
        }
        self.last = Some(last);
        self.pages.extend(first..=last);
    }

    pub(super) fn drain(&mut self) -> BTreeSet<u64> {
        self.last = None;
        std::mem::take(&mut self.pages)
    }
}

impl PmReplay {
    /// Starts before the first event, with no files.
    pub fn new(recording: &Recording) -> Self {
        Self { recording: recording.clone(), spaces: AddressSpaces::default(), files: Vec::new() }
    }

    /// Takes the next event. Fails if an initial image is missing, or there is no room for a file.
    pub fn apply(&mut self, event: &Event<'_>) -> io::Result<()> {
        match event.what {
            What::Store { addr, value, .. } => self.store(event.thread, addr, value),
            What::Rmw { addr, new, .. } => self.store(event.thread, addr, new),
            What::File { file, path, .. } => self.contact(file, path.into())?,
            What::FileWrite { file, offset, data } => {
                if let Some(image) = self.image_mut(file) {
                    image.content.write(offset, data)?;
                    image.state.size = image.content.size();
                    image.dirty.add(offset, data.len() as u64);
                }
            }
            What::FileZero { file, offset, len } => {
                if let Some(image) = self.image_mut(file) {
                    let len = len.min(image.content.size().saturating_sub(offset));
                    // Pages that never held anything stay as they are.
                    for (start, end) in data(image.content.file(), offset, offset + len) {
                        image.dirty.add(start, end - start);
                    }
                    image.content.zero(offset, len)?;
                }
            }
            What::FileResize { file, size } => {
                if let Some(image) = self.image_mut(file) {
                    for (start, end) in data(image.content.file(), size, image.content.size()) {
                        image.dirty.add(start, end - start);
                    }
                    image.content.resize(size)?;
                    image.state.size = size;
                }
            }
            What::FileRename { file, to } => {
                if let Some(image) = self.image_mut(file) {
                    let former = std::mem::replace(&mut image.state.path, to.into());
                    image.state.former.push(former);
                }
            }
            What::FileUnlink { file } => {
                if let Some(image) = self.image_mut(file) {
                    image.state.exists = false;
                }
            }
            _ => self.spaces.update(event),
        }
        Ok(())
    }

    fn contact(&mut self, file: FileId, path: PathBuf) -> io::Result<()> {
        let mut content = MappedFile::new(sparse::unnamed(&path)?);
        content.load(&File::open(self.recording.base(file))?)?;
        let size = content.size();
        let mut dirty = Dirty::default();
        for (start, end) in data(content.file(), 0, size) {
            dirty.add(start, end - start);
        }
        let state = FileState { file, path, size, exists: true, former: Vec::new() };
        let index = file.0 as usize;
        if self.files.len() <= index {
            self.files.resize_with(index + 1, || None);
        }
        self.files[index] = Some(PmFile { state, content, dirty });
        Ok(())
    }

    fn store(&mut self, thread: ThreadId, addr: u64, value: &[u8]) {
        let Self { spaces, files, .. } = self;
        spaces.locate(thread, addr, value.len() as u64, |part| {
            if let Some(Some(image)) = files.get_mut(part.file.0 as usize) {
                image.content.store(part.offset, &value[part.first..part.first + part.len]);
                image.dirty.add(part.offset, part.len as u64);
            }
        });
    }

    fn image_mut(&mut self, file: FileId) -> Option<&mut PmFile> {
        self.files.get_mut(file.0 as usize)?.as_mut()
    }

    pub(super) fn images_mut(&mut self) -> impl Iterator<Item = &mut PmFile> {
        self.files.iter_mut().flatten()
    }

    /// The files at this moment.
    pub fn files(&self) -> impl Iterator<Item = &FileState> {
        self.files.iter().flatten().map(|image| &image.state)
    }

    /// The bytes of a file at this moment; nothing for a file that is not known.
    pub fn bytes(&self, file: FileId) -> &[u8] {
        self.files.get(file.0 as usize).and_then(Option::as_ref).map_or(&[], |image| image.content.bytes())
    }

    /// Which file is mapped where after the events applied so far.
    pub fn spaces(&self) -> &AddressSpaces {
        &self.spaces
    }
}

/// The parts of a range of a file that are not holes.
pub fn data(file: &File, from: u64, to: u64) -> Vec<(u64, u64)> {
    let mut parts = Vec::new();
    let mut at = from;
    while let Some((start, end)) = sparse::next_data(file, at, to) {
        if start >= to {
            break;
        }
        parts.push((start, end.min(to)));
        at = end;
    }
    parts
}
