//! What is PM: files, and their mappings in this process.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, RwLock};

use pmvet_events::event::{LINE, What};
use pmvet_events::ids::FileId;
use pmvet_events::paths;
use pmvet_events::plan::Plan;

use super::mapping::Mapping;
use super::sites::SITES;
use super::thread::Thread;
use super::threads::threads;
use crate::dynamorio::{self, Global, Inode};
use crate::run::run;

/// The persistent memory of this process.
pub(crate) static PM: Global<Pm> = Global::new();

/// Addresses have 48 bits.
const FILTER_ENTRIES: usize = 1 << 16;

pub(crate) struct Pm {
    /// One entry for each 4 GiB of address space: whether PM is in it. Instrumented code reads it; its address fits 32 bits.
    filter: *mut AtomicU8,
    mappings: RwLock<BTreeMap<u64, Mapping>>,
    files: Mutex<Files>,
    patterns: Vec<glob::Pattern>,
    next_hint: AtomicU64,
    /// PM was mapped: from now on accesses are instrumented. Before that there is nothing they could hit.
    watched: AtomicBool,
}

// SAFETY: `filter` points to atomics that live as long as the process.
unsafe impl Send for Pm {}
// SAFETY: as above.
unsafe impl Sync for Pm {}

#[derive(Default)]
struct Files {
    known: HashMap<Inode, FileId>,
    /// Files that the target has tried to map with `MAP_SYNC`, which shows that it regards them as PM.
    claimed: HashMap<Inode, ()>,
}

/// Where PM is mapped if the target leaves the choice: far from everything else, so that the filter is precise.
const FIRST_HINT: u64 = 0x2000_0000_0000;
const GRANULE_BYTES: u64 = 1 << 32;

impl Pm {
    pub(crate) fn new(plan: &Plan) -> Self {
        let patterns = plan.pm.iter().filter_map(|p| glob::Pattern::new(p).ok()).collect();
        Self {
            filter: dynamorio::alloc_low(FILTER_ENTRIES).cast(),
            mappings: RwLock::default(),
            files: Mutex::default(),
            patterns,
            next_hint: AtomicU64::new(FIRST_HINT),
            // The children of a fork server share its code, which must not be made again when the first of them maps PM.
            watched: AtomicBool::new(plan.forks.is_some()),
        }
    }

    pub(crate) fn filter_table(&self) -> u64 {
        self.filter as u64
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
    }

    /// PM is mapped now. Code that was translated without regard to it is translated again.
    pub(crate) fn watch(&self, near_code: bool) {
        if !self.watched.swap(true, Ordering::AcqRel) || near_code {
            dynamorio::flush_code();
        }
    }

    /// A mapping that holds any of the `len` bytes at `addr`.
    pub(crate) fn find(&self, addr: u64, len: u64) -> Option<Mapping> {
        let mappings = self.mappings.read().unwrap_or_else(|e| e.into_inner());
        let (_, mapping) = mappings.range(..addr + len.max(1)).next_back()?;
        (mapping.end > addr).then_some(*mapping)
    }

    /// The parts of an address range that are PM.
    pub(crate) fn overlaps(&self, addr: u64, len: u64) -> Vec<Mapping> {
        let mappings = self.mappings.read().unwrap_or_else(|e| e.into_inner());
        let end = addr.saturating_add(len);
        mappings.range(..end).rev().map_while(|(_, m)| m.clip(addr, end)).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.mappings.read().unwrap_or_else(|e| e.into_inner()).is_empty()
    }

    /// Whether there is PM in the same 4 GiB.
    pub(crate) fn may_be_near(&self, addr: u64) -> bool {
        // SAFETY: the index is below FILTER_ENTRIES.
        unsafe { &*self.filter.add((addr / GRANULE_BYTES) as usize % FILTER_ENTRIES) }.load(Ordering::Acquire) != 0
    }

    /// The stripe lock of the line at `addr`.
    pub(crate) fn stripe(&self, addr: u64) -> Option<usize> {
        Some(self.find(addr, LINE)?.stripe(addr))
    }

    pub(crate) fn is_mapped(&self, file: FileId) -> bool {
        self.mappings.read().unwrap_or_else(|e| e.into_inner()).values().any(|m| m.file == file)
    }

    /// An address for a mapping of `len` bytes whose place the target leaves to the kernel.
    pub(crate) fn mapping_hint(&self, len: u64) -> u64 {
        self.next_hint.fetch_add(len.next_multiple_of(GRANULE_BYTES) + GRANULE_BYTES, Ordering::Relaxed)
    }

    /// Adds a mapping. Returns whether translated code may refer to it by constant addresses, and has to be translated again.
    pub(crate) fn add(&self, mapping: Mapping) -> bool {
        let near_code = !self.may_be_near(mapping.start) && SITES.is_near_code(mapping.start, mapping.end);
        self.remove(mapping.start, mapping.end - mapping.start);
        let mut mappings = self.mappings.write().unwrap_or_else(|e| e.into_inner());
        mappings.insert(mapping.start, mapping);
        self.update_filter(&mappings, mapping.start, mapping.end);
        near_code
    }

    /// Forgets an address range. Returns the parts that were PM.
    pub(crate) fn remove(&self, addr: u64, len: u64) -> Vec<Mapping> {
        let end = addr.saturating_add(len);
        let gone = self.overlaps(addr, len);
        if gone.is_empty() {
            return gone;
        }
        let mut mappings = self.mappings.write().unwrap_or_else(|e| e.into_inner());
        let hit: Vec<Mapping> = mappings.range(..end).rev().map(|(_, m)| *m).take_while(|m| m.end > addr).collect();
        for mapping in hit {
            mappings.remove(&mapping.start);
            for rest in [mapping.clip(0, addr), mapping.clip(end, u64::MAX)].into_iter().flatten() {
                mappings.insert(rest.start, rest);
            }
        }
        self.update_filter(&mappings, addr, end);
        drop(mappings);
        threads().forget_cached_mappings();
        gone
    }

    fn update_filter(&self, mappings: &BTreeMap<u64, Mapping>, start: u64, end: u64) {
        // A store that starts just below a mapping may reach into it.
        for granule in (start.saturating_sub(LINE) / GRANULE_BYTES)..=((end - 1) / GRANULE_BYTES) {
            let (from, to) = (granule * GRANULE_BYTES, (granule + 1) * GRANULE_BYTES);
            let pm = mappings.range(..to + LINE).next_back().is_some_and(|(_, m)| m.end > from);
            // SAFETY: the index is below FILTER_ENTRIES, since addresses have 48 bits.
            unsafe { &*self.filter.add(granule as usize % FILTER_ENTRIES) }.store(pm.into(), Ordering::Release);
        }
    }

    /// The target asked for `MAP_SYNC`: it treats this file as PM.
    pub(crate) fn claim_file(&self, inode: Inode) {
        self.files().claimed.insert(inode, ());
    }

    pub(crate) fn known_file(&self, inode: Inode) -> Option<FileId> {
        self.files().known.get(&inode).copied()
    }

    pub(crate) fn knows_any_file(&self) -> bool {
        !self.files().known.is_empty()
    }

    /// Whether the file at `path` counts as PM.
    pub(crate) fn is_pm(&self, inode: Inode, path: &Path) -> bool {
        let files = self.files();
        files.known.contains_key(&inode)
            || files.claimed.contains_key(&inode)
            || self.patterns.iter().any(|p| p.matches(&paths::text(path)))
    }

    /// The id of a PM file. Reports a new one, and then waits until pmvet has seen the file as it is now, if it wants to.
    pub(crate) fn announce_file(&self, thread: &mut Thread, inode: Inode, path: &Path, size: u64) -> FileId {
        let mut files = self.files();
        if let Some(&file) = files.known.get(&inode) {
            return file;
        }
        let file = FileId(run().shared.header().next_file.fetch_add(1, Ordering::AcqRel));
        files.known.insert(inode, file);
        drop(files);
        thread.emit(What::File { file, size, device: inode.0, inode: inode.1, path });
        if run().plan.snapshots {
            thread.wait_until_seen();
        }
        file
    }

    /// The PM files that were announced and are `wanted`, in that order.
    pub(crate) fn known_files(&self, wanted: impl Fn(Inode) -> bool) -> Vec<FileId> {
        let files = self.files();
        let mut files: Vec<FileId> =
            files.known.iter().filter(|(inode, _)| wanted(**inode)).map(|(_, &file)| file).collect();
        files.sort_unstable_by_key(|file| file.0);
        files
    }

    /// A deleted inode may be reused for another file.
    pub(crate) fn forget_file(&self, inode: Inode) {
        let mut files = self.files();
        files.known.remove(&inode);
        files.claimed.remove(&inode);
    }
}
