//! PM files rebuilt from events: the initial image and every change after it.
//!
//! [`Images`] keeps a copy of each PM file as it was at first contact, sparse and without a name, and applies every store and
//! every change by system call to it. At the end the copy must equal the file: `--check-image` asserts that, and it
//! makes crash images trustworthy.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use pmvet_events::event::{Event, What};
use pmvet_events::ids::{FileId, ThreadId};
use pmvet_events::places::Places;
use pmvet_events::spaces::AddressSpaces;

use crate::collect::{Sink, SinkError};
use crate::mapped::MappedFile;

/// A file's image.
#[derive(Debug)]
struct Image {
    path: PathBuf,
    /// The target's file, held open so that it can be compared even if it is deleted or renamed.
    original: Option<File>,
    copy: MappedFile,
    /// Bytes that are uncertain: their writer was killed, or they were written in a way that is not recorded.
    unknown: Vec<(u64, u64)>,
}

/// What differs, if anything, between an image and its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageComparison {
    /// They are the same, uncertain bytes aside.
    Same {
        /// The size of both.
        bytes: u64,
    },
    /// They differ first at this offset.
    Differs {
        /// From the start of the file.
        offset: u64,
        /// The byte in the image.
        image: u8,
        /// The byte in the file.
        file: u8,
    },
    /// One is longer than the other.
    Size {
        /// The size of the image, in bytes.
        image: u64,
        /// The size of the file, in bytes.
        file: u64,
    },
    /// They could not be compared, for this reason.
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
    pub fn check(&mut self) -> Vec<(PathBuf, ImageComparison)> {
        self.files.iter_mut().flatten().map(|image| (image.path.clone(), image.check())).collect()
    }

    fn apply(&mut self, event: &Event<'_>) -> io::Result<()> {
        match event.what {
            What::Store { addr, value, .. } => {
                self.store(event.thread, addr, value);
                Ok(())
            }
            What::Rmw { addr, new, .. } => {
                self.store(event.thread, addr, new);
                Ok(())
            }
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
                Some(image) => image.copy.write(offset, data),
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

    fn store(&mut self, thread: ThreadId, addr: u64, value: &[u8]) {
        let Self { spaces, files, .. } = self;
        spaces.locate(thread, addr, value.len() as u64, |part| {
            if let Some(image) = image_of(files, part.file) {
                image.copy.store(part.offset, &value[part.first..part.first + part.len]);
            }
        });
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
        let mut copy = MappedFile::new(tempfile::tempfile()?);
        // It may have been deleted in the meantime; the check says so.
        let original = File::open(&path).ok();
        if let Some(original) = &original {
            copy.load(original)?;
        }
        Ok(Self { path, original, copy, unknown: Vec::new() })
    }

    fn check(&mut self) -> ImageComparison {
        let Some(original) = &self.original else {
            return ImageComparison::Unreadable("it could not be opened at first contact".into());
        };
        match compare(&self.copy, original, &self.unknown) {
            Ok(verdict) => verdict,
            Err(e) => ImageComparison::Unreadable(e.to_string()),
        }
    }
}

fn compare(copy: &MappedFile, original: &File, unknown: &[(u64, u64)]) -> io::Result<ImageComparison> {
    let size = original.metadata()?.len();
    if size != copy.size() {
        return Ok(ImageComparison::Size { image: copy.size(), file: size });
    }
    let image = copy.bytes();
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < size {
        let want = buffer.len().min((size - at) as usize);
        let read = original.read_at(&mut buffer[..want], at)?;
        if read == 0 {
            return Ok(ImageComparison::Unreadable("it shrank while it was compared".into()));
        }
        let ours = &image[at as usize..at as usize + read];
        if ours != &buffer[..read] {
            let differ = |i: &usize| {
                let offset = at + *i as u64;
                ours[*i] != buffer[*i] && !unknown.iter().any(|&(from, to)| (from..to).contains(&offset))
            };
            if let Some(i) = (0..read).find(differ) {
                return Ok(ImageComparison::Differs { offset: at + i as u64, image: ours[i], file: buffer[i] });
            }
        }
        at += read as u64;
    }
    Ok(ImageComparison::Same { bytes: size })
}
