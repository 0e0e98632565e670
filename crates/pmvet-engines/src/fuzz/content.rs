//! The content of PM at the start or end of a run.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use pmvet_target::crash::{PAGE, data};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// A content, by its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageId(pub u128);

impl std::fmt::Display for ImageId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl std::str::FromStr for ImageId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(Self)
    }
}

impl Serialize for ImageId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ImageId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A page that is not all zeros, with its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PmPage {
    /// Tells contents apart.
    pub hash: u128,
    /// A whole page, or the part that exists of a file's last one.
    pub bytes: Arc<[u8]>,
}

impl PmPage {
    /// Hashes these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self { hash: xxh3_128(bytes), bytes: bytes.into() }
    }
}

/// What one PM file holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileContent {
    /// In bytes; pages that are not listed are zeros.
    pub size: u64,
    /// Pages that are not all zeros, by their number in the file.
    pub pages: BTreeMap<u64, PmPage>,
}

impl FileContent {
    /// Reads a whole file, without its holes.
    pub fn read(file: &File) -> io::Result<Self> {
        Self::read_like(file, None)
    }

    /// Reads a file that is mostly like this content, whose pages need no new hash.
    pub fn read_like(file: &File, like: Option<&Self>) -> io::Result<Self> {
        let size = file.metadata()?.len();
        let mut pages = BTreeMap::new();
        let mut buffer = vec![0; 64 * PAGE];
        for (start, end) in data(file, 0, size) {
            let mut at = start / PAGE as u64 * PAGE as u64;
            while at < end {
                let want = buffer.len().min((size - at) as usize);
                let read = file.read_at(&mut buffer[..want], at)?;
                if read == 0 {
                    break;
                }
                for (i, page) in buffer[..read].chunks(PAGE).enumerate() {
                    let index = at / PAGE as u64 + i as u64;
                    match like.and_then(|like| like.pages.get(&index)) {
                        Some(known) if *known.bytes == *page => {
                            pages.insert(index, known.clone());
                        }
                        _ if page.iter().all(|&b| b == 0) => {}
                        _ => {
                            pages.insert(index, PmPage::new(page));
                        }
                    }
                }
                at += read as u64;
            }
        }
        Ok(Self { size, pages })
    }

    /// Makes a file hold exactly this.
    pub fn restore(&self, file: &File) -> io::Result<()> {
        pmvet_target::crash::restore(file, self.size, self.pages())
    }

    /// Pages that are not all zeros, in order.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.pages.iter().map(|(&index, page)| (index, &*page.bytes))
    }
}

/// The PM files that exist.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PmContent {
    /// By the path under which the program opens them.
    pub files: BTreeMap<PathBuf, FileContent>,
}

impl PmContent {
    /// The hash of all files, with their paths and sizes.
    pub fn id(&self) -> ImageId {
        let mut hash = Xxh3::new();
        for (path, file) in &self.files {
            hash.update(path.as_os_str().as_bytes());
            hash.update(&file.size.to_le_bytes());
            for (index, page) in &file.pages {
                hash.update(&index.to_le_bytes());
                hash.update(&page.hash.to_le_bytes());
            }
        }
        ImageId(hash.digest128())
    }

    /// How much of it is not zeros.
    pub fn bytes(&self) -> usize {
        self.files.values().map(|file| file.pages.len() * PAGE).sum()
    }
}
