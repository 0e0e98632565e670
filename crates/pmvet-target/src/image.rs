//! PM files rebuilt from events: the initial image and every change after it.
//!
//! [`Images`] keeps a copy of each PM file as it was at first contact, sparse and without a name, and applies every store and
//! every change by system call to it. At the end the copy must equal the file: that is what `--check-image` asserts, and
//! what makes crash images trustworthy.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use pmvet_events::event::{Event, What};
use pmvet_events::ids::{FileId, ThreadId};
use pmvet_events::places::Places;

use crate::collect::{Sink, SinkError};

/// Which file stands where, in each process of the target.
///
/// Looked up for every event, so threads are found by index and the mapping that was hit last is tried first.
#[derive(Debug, Default)]
pub struct AddressSpaces {
    /// By thread: the index of its process's space.
    space_of: Vec<usize>,
    spaces: Vec<Space>,
}

#[derive(Debug, Default)]
struct Space {
    process: u32,
    /// Sorted by start, disjoint.
    mappings: Vec<Mapped>,
    last: Cell<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mapped {
    start: u64,
    end: u64,
    file: FileId,
    offset: u64,
}

/// A part of a range that is in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    pub file: FileId,
    pub offset: u64,
    /// Which byte of the range this part starts with.
    pub first: usize,
    pub len: usize,
}

impl AddressSpaces {
    /// Takes notice of an event that changes who is who or what is where.
    pub fn update(&mut self, event: &Event<'_>) {
        match event.what {
            What::ProcessStart { process, parent, .. } => {
                let inherited = self.spaces.iter().rfind(|s| parent != 0 && s.process == parent);
                let mappings = inherited.map(|s| s.mappings.clone()).unwrap_or_default();
                self.spaces.push(Space { process, mappings, last: Cell::new(0) });
                self.enter(event.thread, process);
            }
            What::ThreadStart { process, .. } => self.enter(event.thread, process),
            What::Map { file, addr, len, offset, .. } => {
                if let Some(space) = self.space(event.thread) {
                    space.remove(addr, addr.saturating_add(len));
                    let at = space.mappings.partition_point(|m| m.start < addr);
                    space.mappings.insert(at, Mapped { start: addr, end: addr.saturating_add(len), file, offset });
                }
            }
            What::Unmap { addr, len } => {
                if let Some(space) = self.space(event.thread) {
                    space.remove(addr, addr.saturating_add(len));
                }
            }
            _ => {}
        }
    }

    /// Processes may use a number again: the newest one counts.
    fn enter(&mut self, thread: ThreadId, process: u32) {
        let index = self.spaces.iter().rposition(|s| s.process == process).unwrap_or_else(|| {
            self.spaces.push(Space { process, ..Space::default() });
            self.spaces.len() - 1
        });
        let thread = thread.0 as usize;
        if self.space_of.len() <= thread {
            self.space_of.resize(thread + 1, usize::MAX);
        }
        self.space_of[thread] = index;
    }

    fn space(&mut self, thread: ThreadId) -> Option<&mut Space> {
        let index = *self.space_of.get(thread.0 as usize)?;
        self.spaces.get_mut(index)
    }

    /// Calls `found` for each part of an address range that is in a file.
    pub fn locate(&self, thread: ThreadId, addr: u64, len: u64, mut found: impl FnMut(Located)) {
        let Some(space) = self.space_of.get(thread.0 as usize).and_then(|&i| self.spaces.get(i)) else { return };
        let end = addr.saturating_add(len);
        if let Some(m) = space.mappings.get(space.last.get())
            && m.start <= addr
            && end <= m.end
        {
            return found(Located { file: m.file, offset: m.offset + (addr - m.start), first: 0, len: len as usize });
        }
        let first = space.mappings.partition_point(|m| m.end <= addr);
        space.last.set(first);
        for m in space.mappings[first..].iter().take_while(|m| m.start < end) {
            let (from, to) = (m.start.max(addr), m.end.min(end));
            found(Located {
                file: m.file,
                offset: m.offset + (from - m.start),
                first: (from - addr) as usize,
                len: (to - from) as usize,
            });
        }
    }
}

impl Space {
    fn remove(&mut self, from: u64, to: u64) {
        let mut left = Vec::with_capacity(self.mappings.len() + 1);
        for m in self.mappings.drain(..) {
            if m.start < from {
                left.push(Mapped { end: m.end.min(from), ..m });
            }
            if m.end > to {
                let start = m.start.max(to);
                left.push(Mapped { start, offset: m.offset + (start - m.start), ..m });
            }
        }
        self.mappings = left;
    }
}

/// A file's image.
#[derive(Debug)]
struct Image {
    path: PathBuf,
    /// The target's file, held open so that it can be compared even if it is deleted or renamed.
    original: Option<File>,
    copy: Copy,
    /// Bytes that nobody can be sure of: their writer was killed, or they were written in a way that is not recorded.
    unknown: Vec<(u64, u64)>,
}

/// An unnamed, sparse, writable copy.
#[derive(Debug)]
struct Copy {
    file: File,
    size: u64,
    map: Option<Map>,
}

/// What differs, if anything, between an image and its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Same {
        bytes: u64,
    },
    /// They differ first at this offset.
    Differs {
        offset: u64,
        image: u8,
        file: u8,
    },
    Size {
        image: u64,
        file: u64,
    },
    Unreadable(String),
}

/// Rebuilds every PM file of a run.
#[derive(Debug, Default)]
pub struct Images {
    spaces: AddressSpaces,
    files: Vec<Option<Image>>,
}

impl Images {
    /// Compares each image with the file it stands for.
    pub fn check(&mut self) -> Vec<(PathBuf, Verdict)> {
        self.files.iter_mut().flatten().map(|image| (image.path.clone(), image.check())).collect()
    }

    fn apply(&mut self, event: &Event<'_>) -> io::Result<()> {
        match event.what {
            What::Store { addr, value, .. } => self.store(event.thread, addr, value),
            What::Rmw { addr, new, .. } => self.store(event.thread, addr, new),
            What::Interrupted { addr, size } | What::Unsupported { addr, size, .. } => {
                let Self { spaces, files, .. } = self;
                spaces.locate(event.thread, addr, size.into(), |part| {
                    if let Some(image) = image_of(files, part.file) {
                        image.unknown.push((part.offset, part.offset + part.len as u64));
                    }
                });
                Ok(())
            }
            What::File { file, path, .. } => {
                let image = Image::open(path.into())?;
                let index = file.0 as usize;
                if self.files.len() <= index {
                    self.files.resize_with(index + 1, || None);
                }
                self.files[index] = Some(image);
                Ok(())
            }
            What::FileWrite { file, offset, data } => match image_of(&mut self.files, file) {
                Some(image) => image.copy.write(offset, data, true),
                None => Ok(()),
            },
            What::FileZero { file, offset, len } => match image_of(&mut self.files, file) {
                Some(image) => image.copy.zero(offset, len),
                None => Ok(()),
            },
            What::FileResize { file, size } => match image_of(&mut self.files, file) {
                Some(image) => image.copy.resize(size),
                None => Ok(()),
            },
            What::FileRename { file, to } => {
                if let Some(image) = image_of(&mut self.files, file) {
                    image.path = to.into();
                }
                Ok(())
            }
            _ => {
                self.spaces.update(event);
                Ok(())
            }
        }
    }

    fn store(&mut self, thread: ThreadId, addr: u64, value: &[u8]) -> io::Result<()> {
        let Self { spaces, files, .. } = self;
        let mut result = Ok(());
        spaces.locate(thread, addr, value.len() as u64, |part| {
            if let Some(image) = image_of(files, part.file) {
                let written = image.copy.write(part.offset, &value[part.first..part.first + part.len], false);
                result = std::mem::replace(&mut result, Ok(())).and(written);
            }
        });
        result
    }
}

/// File numbers are small and dense.
fn image_of(files: &mut [Option<Image>], file: FileId) -> Option<&mut Image> {
    files.get_mut(file.0 as usize)?.as_mut()
}

impl Sink for Images {
    fn event(&mut self, event: &Event<'_>, _places: &dyn Places) -> Result<(), SinkError> {
        self.apply(event).map_err(|e| SinkError(format!("cannot rebuild the image of a PM file: {e}")))
    }
}

impl Image {
    fn open(path: PathBuf) -> io::Result<Self> {
        match File::open(&path) {
            Ok(original) => {
                let copy = Copy::of(&original)?;
                Ok(Self { path, original: Some(original), copy, unknown: Vec::new() })
            }
            // It may have been deleted in the meantime; the check says so.
            Err(_) => Ok(Self { path, original: None, copy: Copy::empty()?, unknown: Vec::new() }),
        }
    }

    fn check(&mut self) -> Verdict {
        let Some(original) = &self.original else {
            return Verdict::Unreadable("it could not be opened at first contact".into());
        };
        match self.copy.compare(original, &self.unknown) {
            Ok(verdict) => verdict,
            Err(e) => Verdict::Unreadable(e.to_string()),
        }
    }
}

impl Copy {
    fn empty() -> io::Result<Self> {
        Ok(Self { file: tempfile::tempfile()?, size: 0, map: None })
    }

    /// Copies only what is not a hole.
    fn of(original: &File) -> io::Result<Self> {
        let size = original.metadata()?.len();
        let file = tempfile::tempfile()?;
        file.set_len(size)?;
        let mut buffer = vec![0; 1 << 16];
        let mut at = 0;
        while let Some((start, end)) = next_data(original, at, size) {
            at = start;
            while at < end {
                let want = buffer.len().min((end - at) as usize);
                let read = original.read_at(&mut buffer[..want], at)?;
                if read == 0 {
                    break;
                }
                file.write_all_at(&buffer[..read], at)?;
                at += read as u64;
            }
            at = at.max(end);
        }
        let mut copy = Self { file, size: 0, map: None };
        copy.resize(size)?;
        Ok(copy)
    }

    fn resize(&mut self, size: u64) -> io::Result<()> {
        if size == self.size {
            return Ok(());
        }
        self.map = None;
        self.file.set_len(size)?;
        self.size = size;
        if size > 0 {
            self.map = Some(Map::new(&self.file, size as usize)?);
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8], grow: bool) -> io::Result<()> {
        let end = offset + data.len() as u64;
        if end > self.size && grow {
            self.resize(end)?;
        }
        // Stores behind the end of a file reach its last page, but not the file.
        let data = &data[..data.len().min(self.size.saturating_sub(offset) as usize)];
        if let Some(map) = &mut self.map
            && !data.is_empty()
        {
            let at = offset as usize;
            match data.len() {
                // The common sizes, without a call.
                8 => map.bytes()[at..at + 8].copy_from_slice(&data[..8]),
                4 => map.bytes()[at..at + 4].copy_from_slice(&data[..4]),
                len => map.bytes()[at..at + len].copy_from_slice(data),
            }
        }
        Ok(())
    }

    fn zero(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset.saturating_add(len).min(self.size);
        if let Some(map) = &mut self.map
            && offset < end
        {
            map.bytes()[offset as usize..end as usize].fill(0);
        }
        Ok(())
    }

    fn compare(&mut self, original: &File, unknown: &[(u64, u64)]) -> io::Result<Verdict> {
        let size = original.metadata()?.len();
        if size != self.size {
            return Ok(Verdict::Size { image: self.size, file: size });
        }
        let Some(map) = &mut self.map else { return Ok(Verdict::Same { bytes: 0 }) };
        let image = map.bytes();
        let mut buffer = vec![0; 1 << 20];
        let mut at = 0;
        while at < size {
            let want = buffer.len().min((size - at) as usize);
            let read = original.read_at(&mut buffer[..want], at)?;
            if read == 0 {
                return Ok(Verdict::Unreadable("it shrank while it was compared".into()));
            }
            let ours = &image[at as usize..at as usize + read];
            if ours != &buffer[..read] {
                let differ = |i: &usize| {
                    let offset = at + *i as u64;
                    ours[*i] != buffer[*i] && !unknown.iter().any(|&(from, to)| (from..to).contains(&offset))
                };
                if let Some(i) = (0..read).find(differ) {
                    return Ok(Verdict::Differs { offset: at + i as u64, image: ours[i], file: buffer[i] });
                }
            }
            at += read as u64;
        }
        Ok(Verdict::Same { bytes: size })
    }
}

/// The next part of a file that is not a hole.
fn next_data(file: &File, from: u64, size: u64) -> Option<(u64, u64)> {
    // SAFETY: seeks in our own descriptor.
    unsafe {
        let start = libc::lseek(file.as_raw_fd(), from as i64, libc::SEEK_DATA);
        if start < 0 {
            // Not every file system knows holes.
            let unknown = *libc::__errno_location() == libc::EINVAL && from < size;
            return unknown.then_some((from, size));
        }
        let end = libc::lseek(file.as_raw_fd(), start, libc::SEEK_HOLE);
        Some((start as u64, if end < 0 { size } else { end as u64 }))
    }
}

/// A writable shared mapping of a copy.
#[derive(Debug)]
struct Map {
    start: std::ptr::NonNull<u8>,
    len: usize,
}

impl Map {
    fn new(file: &File, len: usize) -> io::Result<Self> {
        // SAFETY: a fresh mapping of a file that only we have.
        let at = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        match std::ptr::NonNull::new(at.cast()) {
            Some(start) => Ok(Self { start, len }),
            None => Err(io::Error::other("mapped at address 0")),
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this length, and the file is never cut while it is mapped.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: made by `new` with this length.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
