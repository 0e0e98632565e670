//! Counts events as they come.
//!
//! The counter sees every load of a target, so each event may cost only a few additions: tables are indexed by the small numbers that
//! events carry. Memory does not grow with the number of events.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pmvet_events::wire::Brief;
use pmvet_events::{Event, FileId, ModuleId, Places, Site, SiteId, ThreadId, What};
use pmvet_target::symbols::Symbolizer;
use serde::Serialize;

use crate::kinds::{self, Class};
use crate::locate::Locator;

/// Threads and files with greater numbers are counted together, as number 0.
const MAX_COUNTED_APART: u32 = 1 << 14;

/// How many mappings of each file are remembered.
const MAPPINGS: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct EventCounter {
    pub(crate) threads: Vec<ThreadCount>,
    pub(crate) sites: Vec<SiteCount>,
    pub(crate) files: Vec<FileCount>,
    pub(crate) processes: u64,
    /// Reason and kind of access, and how often.
    pub(crate) unsupported: BTreeMap<String, u64>,
    pub(crate) volatile_flushes: u64,
    pub(crate) symbolizer: Symbolizer,
    pub(crate) modules: BTreeMap<ModuleId, (u64, PathBuf)>,
    locator: Locator,
}

#[derive(Debug, Clone)]
pub(crate) struct ThreadCount {
    pub(crate) process: u32,
    pub(crate) os_thread: u32,
    pub(crate) kinds: [u64; kinds::COUNT],
}

impl Default for ThreadCount {
    fn default() -> Self {
        Self { process: 0, os_thread: 0, kinds: [0; kinds::COUNT] }
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SiteCount {
    /// Set by the first event.
    pub(crate) site: Option<Site>,
    pub(crate) classes: [u64; Class::COUNT],
}

#[derive(Debug, Clone, Default)]
pub(crate) struct FileCount {
    /// None for a number that does not stand for a single file.
    pub(crate) path: Option<PathBuf>,
    pub(crate) size: u64,
    pub(crate) unlinked: bool,
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) mapped: u64,
    /// Accesses and flushes by [`Class`], and their bytes.
    pub(crate) accesses: [u64; Class::COUNT],
    pub(crate) bytes: [u64; Class::COUNT],
    pub(crate) writes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) syncs: u64,
}

impl FileCount {
    pub(crate) fn traffic(&self) -> Traffic {
        let of = |class: Class| self.accesses[class as usize];
        Traffic {
            stores: of(Class::Store),
            stored_bytes: self.bytes[Class::Store as usize],
            loads: of(Class::Load),
            flushes: of(Class::Flush),
            rmw: of(Class::Rmw),
            writes: self.writes,
            written_bytes: self.written_bytes,
            syncs: self.syncs,
        }
    }
}

/// What happened to a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Traffic {
    pub(crate) stores: u64,
    pub(crate) stored_bytes: u64,
    pub(crate) loads: u64,
    pub(crate) flushes: u64,
    pub(crate) rmw: u64,
    pub(crate) writes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) syncs: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) offset: u64,
    pub(crate) writable: bool,
}

impl EventCounter {
    #[inline]
    pub(crate) fn event(&mut self, event: &Event<'_>, places: &dyn Places) {
        let kind = kinds::index(&event.what);
        let (addr, len) = match event.what {
            What::Store { addr, value, .. } => (addr, value.len() as u64),
            What::Load { addr, size } => (addr, size.into()),
            What::Flush { addr, pm, .. } => (addr, pm.into()),
            What::Rmw { addr, new, .. } => (addr, new.len() as u64),
            What::Fence { .. }
            | What::Atomic { .. }
            | What::Allocate { .. }
            | What::Transaction { .. }
            | What::Step { .. }
            | What::Acquire { .. }
            | What::Release { .. }
            | What::Sync { .. } => (0, 0),
            _ => {
                self.rare(event);
                (0, 0)
            }
        };
        self.access(event.thread, event.site, kind, (addr, len), places);
    }

    /// Counts a record that need not become an event.
    #[inline]
    pub(crate) fn record(&mut self, thread: ThreadId, record: &Brief, places: &dyn Places) {
        let kind = kinds::OF_RECORD[usize::from(record.kind)].into();
        self.access(thread, record.site, kind, (record.addr, record.size.into()), places);
    }

    /// A flush of volatile memory has no length.
    // Avoids branches on the kind where possible: the processor mispredicts them.
    #[inline(always)]
    fn access(&mut self, thread: ThreadId, site: SiteId, kind: usize, at: (u64, u64), places: &dyn Places) {
        self.thread(thread).kinds[kind] += 1;
        let class = Class::of_kind(kind);
        if site != SiteId::default() {
            self.count_site(site, class, places);
        }
        let (addr, len) = at;
        if matches!(class, Class::Fence | Class::Other) {
            return;
        }
        if class == Class::Flush && len == 0 {
            self.volatile_flushes += 1;
            return;
        }
        if let Some(file) = self.file_at(thread, addr, len) {
            file.accesses[class as usize] += 1;
            file.bytes[class as usize] += len;
        }
    }

    #[inline]
    fn thread(&mut self, thread: ThreadId) -> &mut ThreadCount {
        let slot = if thread.0 < MAX_COUNTED_APART { thread.0 as usize } else { 0 };
        if slot >= self.threads.len() {
            self.threads.resize_with(slot + 1, ThreadCount::default);
        }
        &mut self.threads[slot]
    }

    #[inline]
    fn count_site(&mut self, id: SiteId, class: Class, places: &dyn Places) {
        let slot = id.0 as usize;
        if slot >= self.sites.len() {
            // An id without a site must not cost memory.
            if places.site(id).is_none() {
                return;
            }
            self.sites.resize(slot + 1, SiteCount::default());
        }
        let site = &mut self.sites[slot];
        if site.site.is_none() {
            site.site = places.site(id);
        }
        site.classes[class as usize] += 1;
    }

    #[inline]
    fn file_at(&mut self, thread: ThreadId, addr: u64, len: u64) -> Option<&mut FileCount> {
        let (file, _) = self.locator.find(thread, addr, len)?;
        Some(self.file(file))
    }

    #[inline]
    fn file(&mut self, file: FileId) -> &mut FileCount {
        let slot = if file.0 < MAX_COUNTED_APART { file.0 as usize } else { 0 };
        if slot >= self.files.len() {
            self.files.resize_with(slot + 1, FileCount::default);
        }
        &mut self.files[slot]
    }

    #[cold]
    fn rare(&mut self, event: &Event<'_>) {
        self.locator.update(event);
        match event.what {
            What::File { file, size, path, .. } => {
                let known = self.file(file);
                known.size = size;
                known.path = Some(if file.0 < MAX_COUNTED_APART { path.to_owned() } else { "(further files)".into() });
            }
            What::Map { file, addr, len, offset, writable } => {
                let file = self.file(file);
                file.mapped += 1;
                let mapping = Mapping { addr, len, offset, writable };
                if file.mappings.len() < MAPPINGS && !file.mappings.contains(&mapping) {
                    file.mappings.push(mapping);
                }
            }
            What::FileWrite { file, offset, data } => {
                let file = self.file(file);
                file.writes += 1;
                file.written_bytes += data.len() as u64;
                file.size = file.size.max(offset.saturating_add(data.len() as u64));
            }
            What::FileZero { file, len, .. } => {
                let file = self.file(file);
                file.writes += 1;
                file.written_bytes += len;
            }
            What::FileResize { file, size } => self.file(file).size = size,
            What::FileSync { file, .. } => self.file(file).syncs += 1,
            What::FileRename { file, to } => self.file(file).path = Some(to.to_owned()),
            What::FileUnlink { file } => self.file(file).unlinked = true,
            What::Unsupported { why, .. } => match self.unsupported.get_mut(why) {
                Some(count) => *count += 1,
                None => {
                    self.unsupported.insert(why.to_owned(), 1);
                }
            },
            What::ProcessStart { process, .. } => {
                self.processes += 1;
                self.thread(event.thread).process = process;
            }
            What::ThreadStart { process, os_thread } => {
                let thread = self.thread(event.thread);
                (thread.process, thread.os_thread) = (process, os_thread);
            }
            What::Module { module, base, path, .. } => {
                self.symbolizer.add_module(module, base, path);
                self.modules.insert(module, (base, path.into()));
            }
            _ => {}
        }
    }

    /// How many events of each kind there were.
    pub(crate) fn kinds(&self) -> [u64; kinds::COUNT] {
        let mut sum = [0; kinds::COUNT];
        for thread in &self.threads {
            sum.iter_mut().zip(&thread.kinds).for_each(|(sum, count)| *sum += count);
        }
        sum
    }

    /// Whether any PM file was mapped.
    pub(crate) fn saw_pm(&self) -> bool {
        self.files.iter().any(|file| file.mapped > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::tests::every_kind;
    use pmvet_events::event::{FlushKind, StoreKind};
    use pmvet_events::{Context, ContextId, wire};

    struct Sites;

    impl Places for Sites {
        fn site(&self, id: SiteId) -> Option<Site> {
            (id.0 < 1000).then_some(Site { pc: id.0.into(), module: ModuleId(1) })
        }

        fn context(&self, _: ContextId) -> Option<Context> {
            None
        }
    }

    fn feed(counter: &mut EventCounter, thread: u32, site: u32, what: What<'_>) {
        let (thread, site) = (ThreadId(thread), SiteId(site));
        counter.event(&Event { seq: 1, thread, site, context: ContextId(0), what }, &Sites);
    }

    fn mapped() -> EventCounter {
        let mut counter = EventCounter::default();
        feed(&mut counter, 1, 0, What::ProcessStart { process: 5, parent: 0, path: "".as_ref() });
        feed(&mut counter, 1, 0, What::File { file: FileId(1), size: 10, device: 0, inode: 0, path: "/pm/a".as_ref() });
        let map = What::Map { file: FileId(1), addr: 0x1000, len: 0x1000, offset: 0, writable: true };
        feed(&mut counter, 1, 0, map);
        counter
    }

    #[test]
    fn counts_by_kind_thread_site_and_file() {
        let mut counter = mapped();
        assert!(counter.saw_pm());
        let value = &[0u8; 16][..];
        feed(&mut counter, 1, 7, What::Store { addr: 0x1000, value, how: StoreKind::Regular });
        feed(&mut counter, 1, 7, What::Store { addr: 0x1010, value, how: StoreKind::NonTemporal });
        feed(&mut counter, 1, 8, What::Load { addr: 0x1010, size: 8 });
        feed(&mut counter, 1, 9, What::Flush { addr: 0x1010, how: FlushKind::Clwb, pm: true });
        feed(&mut counter, 1, 9, What::Flush { addr: 0x99, how: FlushKind::Clwb, pm: false });
        let traffic = counter.files[1].traffic();
        assert_eq!((traffic.stores, traffic.stored_bytes, traffic.loads, traffic.flushes), (2, 32, 1, 1));
        assert_eq!(counter.volatile_flushes, 1);
        assert_eq!(counter.sites[7].classes[Class::Store as usize], 2);
        assert_eq!(counter.sites[9].classes[Class::Flush as usize], 2);
        let kinds = counter.kinds();
        assert_eq!((kinds[0], kinds[1], kinds[3], kinds[7]), (1, 1, 1, 2));
        assert_eq!(kinds.iter().sum::<u64>(), 8);
    }

    #[test]
    fn records_count_as_events_do() {
        let (mut events, mut records) = (mapped(), mapped());
        for what in every_kind() {
            let event = Event { seq: 1, thread: ThreadId(1), site: SiteId(7), context: ContextId(0), what };
            let mut bytes = Vec::new();
            wire::write(&event, &mut bytes);
            if let Some(record) = wire::brief(&bytes) {
                events.event(&event, &Sites);
                records.record(event.thread, &record, &Sites);
            }
        }
        assert_eq!(events.kinds(), records.kinds());
        assert_eq!(events.kinds()[..12].iter().filter(|&&count| count > 0).count(), 11, "all but stores by the kernel");
        assert_eq!(events.sites[7].classes, records.sites[7].classes);
        assert_eq!(events.files[1].traffic(), records.files[1].traffic());
        assert_eq!(events.volatile_flushes, records.volatile_flushes);
    }

    #[test]
    fn no_kind_is_forgotten_and_no_number_too_large() {
        let mut counter = mapped();
        let before = counter.kinds().iter().sum::<u64>();
        for what in every_kind() {
            feed(&mut counter, u32::MAX, u32::MAX, what);
        }
        feed(&mut counter, 1, 0, What::FileUnlink { file: FileId(u32::MAX) });
        assert_eq!(counter.kinds().iter().sum::<u64>(), before + kinds::COUNT as u64 + 1);
        assert!(counter.threads.len() < 10 && counter.files.len() < 10 && counter.sites.is_empty());
    }

    /// `cargo test --release -p pmvet counting_speed -- --ignored --nocapture`
    #[test]
    #[ignore = "a measurement"]
    fn counting_speed() {
        let mut counter = mapped();
        let start = std::time::Instant::now();
        let count = 100_000_000u64;
        for i in 0..count {
            let (addr, site) = (0x1000 + ((i * 8) & 0xfff), (i & 127) as u32 + 1);
            let what = What::Load { addr, size: 8 };
            let event = Event { seq: i, thread: ThreadId(1), site: SiteId(site), context: ContextId(0), what };
            counter.event(&event, &Sites);
        }
        println!("{:.1} ns per event", start.elapsed().as_secs_f64() * 1e9 / count as f64);
        assert_eq!(counter.files[1].traffic().loads, count);
    }
}
