//! The content of PM at chosen moments.
//!
//! A version holds only the pages that differ from the previous version, and any version is available at any time. Equal
//! contents are recognised by a hash that is updated page by page, so each is kept, and recovered from, only once.

use std::collections::{BTreeMap, HashMap};
use std::io;

use xxhash_rust::xxh3::xxh3_128;

use super::PAGE;
use super::replay::{FileState, PmReplay};
use crate::mapped::MappedFile;
use crate::sparse;
use pmvet_events::ids::FileId;

/// Position of a version among the versions of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VersionId(pub u32);

/// The content of PM at one moment, apart from the pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// All PM files that the run had touched by then, deleted ones included.
    pub files: Vec<FileState>,
    /// Hash of everything: names, sizes, bytes.
    pub hash: u128,
}

/// The contents that PM had at the moments of [`Versions::snapshot`], each kept once.
#[derive(Debug)]
pub struct Versions {
    versions: Vec<Version>,
    by_hash: HashMap<u128, VersionId>,
    /// For each page, in which versions it changed, and where in `store` its content is.
    pages: BTreeMap<(FileId, u64), VersionedPage>,
    /// Pages that changed since the last version.
    unkept: Vec<(FileId, u64)>,
    /// Page after page.
    store: MappedFile,
    used: u64,
    sum: u128,
}

#[derive(Debug, Default)]
struct VersionedPage {
    /// Hash of the newest content seen; 0 for zeros.
    hash: u128,
    /// Hash of the newest content kept.
    kept: u128,
    changes: Vec<(VersionId, Slot)>,
    /// It is in `unkept`.
    waiting: bool,
}

/// A store doubles its size, but grows by no more than this at a time: the growth is reserved on disk.
const MOST_GROWTH: u64 = 64 << 20;

/// Makes room up to `end`: on disk, or in memory if the disk is full. Since the file is mapped, a write without disk space would kill
/// pmvet.
fn grow(store: &mut MappedFile, end: u64) -> io::Result<()> {
    let size = end.max(1 << 20).next_multiple_of(PAGE as u64).max(store.size() + store.size().min(MOST_GROWTH));
    match store.resize_reserved(size) {
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
            ) =>
        {
            let mut memory = MappedFile::new(sparse::unnamed("versions".as_ref())?);
            memory.resize(size)?;
            let known = store.bytes();
            memory.bytes_mut()[..known.len()].copy_from_slice(known);
            *store = memory;
            Ok(())
        }
        done => done,
    }
}

/// Where a page's content is; 0: nowhere, it is all zeros.
type Slot = u32;

impl Versions {
    /// Pages are kept in `store`, an empty file.
    pub fn new(store: MappedFile) -> Self {
        Self {
            versions: Vec::new(),
            by_hash: HashMap::new(),
            pages: BTreeMap::new(),
            unkept: Vec::new(),
            store,
            used: 1,
            sum: 0,
        }
    }

    /// The current version of the files. Returns whether it is new.
    pub fn snapshot(&mut self, replay: &mut PmReplay) -> io::Result<(VersionId, bool)> {
        for image in replay.images_mut() {
            let bytes = image.content.bytes();
            for index in image.dirty.drain() {
                let page = self.pages.entry((image.state.file, index)).or_default();
                let hash = page_hash(image.state.file, index, page_bytes(bytes, index));
                self.sum = self.sum.wrapping_sub(page.hash).wrapping_add(hash);
                page.hash = hash;
                if !std::mem::replace(&mut page.waiting, true) {
                    self.unkept.push((image.state.file, index));
                }
            }
        }
        let files: Vec<FileState> = replay.files().cloned().collect();
        let hash = self.sum.wrapping_add(files_hash(&files));
        if let Some(&known) = self.by_hash.get(&hash) {
            return Ok((known, false));
        }
        let id = VersionId(self.versions.len() as u32);
        self.keep_pages(id, replay)?;
        self.versions.push(Version { files, hash });
        self.by_hash.insert(hash, id);
        Ok((id, true))
    }

    fn keep_pages(&mut self, id: VersionId, replay: &PmReplay) -> io::Result<()> {
        for (file, index) in self.unkept.drain(..) {
            let Some(page) = self.pages.get_mut(&(file, index)) else { continue };
            page.waiting = false;
            if page.kept == page.hash {
                continue;
            }
            page.kept = page.hash;
            let slot = if page.hash == 0 {
                0
            } else {
                let slot = self.used;
                self.used += 1;
                let end = self.used * PAGE as u64;
                if end > self.store.size() {
                    grow(&mut self.store, end)?;
                }
                let bytes = page_bytes(replay.bytes(file), index);
                self.store.store(slot * PAGE as u64, bytes);
                u32::try_from(slot).map_err(|_| io::Error::other("more than 16 TiB of changed pages"))?
            };
            page.changes.push((id, slot));
        }
        Ok(())
    }

    /// Nothing if there is no such version.
    pub fn get(&self, id: VersionId) -> Option<&Version> {
        self.versions.get(id.0 as usize)
    }

    /// How many different contents there are.
    pub fn len(&self) -> usize {
        self.versions.len()
    }

    /// Whether there was no snapshot yet.
    pub fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    /// How many bytes of pages are kept.
    pub fn bytes(&self) -> u64 {
        self.used * PAGE as u64
    }

    /// The pages of a file that are not all zeros in a version, in order.
    pub(super) fn pages(&self, file: FileId, id: VersionId) -> impl Iterator<Item = (u64, &[u8])> {
        self.pages.range((file, 0)..=(file, u64::MAX)).filter_map(move |(&(_, index), page)| {
            let newer = page.changes.partition_point(|&(version, _)| version <= id);
            match page.changes[..newer].last() {
                Some(&(_, slot)) if slot != 0 => {
                    let at = slot as usize * PAGE;
                    Some((index, &self.store.bytes()[at..at + PAGE]))
                }
                _ => None,
            }
        })
    }
}

/// A page of a file, short if the file ends within it.
fn page_bytes(bytes: &[u8], index: u64) -> &[u8] {
    let start = (index as usize * PAGE).min(bytes.len());
    &bytes[start..bytes.len().min(start + PAGE)]
}

/// 0 for a page of zeros, so that a hole and zeros are the same.
fn page_hash(file: FileId, index: u64, bytes: &[u8]) -> u128 {
    if bytes.iter().all(|&b| b == 0) {
        return 0;
    }
    let mut place = [0; 12];
    place[..4].copy_from_slice(&file.0.to_le_bytes());
    place[4..].copy_from_slice(&index.to_le_bytes());
    // Mixes content and place, so that swapping two pages changes the sum.
    xxh3_128(bytes).wrapping_mul(xxh3_128(&place) | 1)
}

fn files_hash(files: &[FileState]) -> u128 {
    let mut text = Vec::new();
    for state in files {
        text.extend_from_slice(format!("{}:{}:{}:{:?};", state.file, state.size, state.exists, state.path).as_bytes());
    }
    xxh3_128(&text)
}
