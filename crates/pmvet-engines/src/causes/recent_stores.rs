//! The recent stores of each thread, which may be to blame for a crash, and whether the thread has waited for them.

use std::collections::{BTreeMap, HashMap, VecDeque};

use pmvet_events::event::{Event, LINE, StoreKind, What};
use pmvet_events::spaces::AddressSpaces;
use pmvet_events::{FileId, ThreadId};
use pmvet_model::LineId;
use pmvet_target::crash::Patch;

use super::early_stores::PmStore;

/// How many storing instructions before the lost store are examined.
const CANDIDATES: usize = 16;
/// How many stores in a row by one instruction count as one: a copy.
const IN_A_ROW: usize = 64;

/// A store that may be to blame, and what undoes it.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) store: PmStore,
    pub(super) before: Vec<Patch>,
    /// It stands for several instructions, of which `store` is the last.
    pub(super) is_several: bool,
}

/// One store, or several that one instruction made in a row.
#[derive(Debug, Clone)]
pub(super) struct Row {
    /// Each store, and what it replaced; the oldest first.
    stores: Vec<(PmStore, Patch)>,
    /// Its lines that were not flushed since.
    unflushed: Vec<LineId>,
    /// How often its thread has waited for all of it.
    waits: u32,
}

/// What a thread has stored lately.
#[derive(Debug, Default)]
pub(super) struct Recent {
    rows: VecDeque<Row>,
    last_fence: u64,
}

/// What all threads have stored lately.
#[derive(Debug, Default)]
pub(super) struct RecentStores(HashMap<ThreadId, Recent>);

impl RecentStores {
    pub(super) fn of(&self, thread: ThreadId) -> Option<&Recent> {
        self.0.get(&thread)
    }

    /// Notes an event. `before` gives the bytes of a file before it, by offset and length.
    pub(super) fn event(
        &mut self,
        event: &Event<'_>,
        spaces: &AddressSpaces,
        before: impl Fn(FileId, u64, usize) -> Vec<u8>,
    ) {
        match event.what {
            // It does not matter which thread flushes: what counts is that a fence of the storing thread can wait for
            // it.
            What::Flush { addr, pm: true, .. } => {
                spaces.locate(event.thread, addr, 1, |part| {
                    let flushed = LineId::containing(part.file, part.offset);
                    self.rows().for_each(|row| row.unflushed.retain(|line| *line != flushed));
                });
            }
            What::FileSync { file, offset, len, .. } => {
                let synced = |line: &LineId| {
                    line.file == file && line.offset() < offset.saturating_add(len) && offset < line.offset() + LINE
                };
                self.rows().for_each(|row| row.unflushed.retain(|line| !synced(line)));
            }
            _ => {}
        }
        let thread = self.0.entry(event.thread).or_default();
        if matches!(event.what, What::Fence { .. } | What::Rmw { .. } | What::FileSync { .. }) {
            thread.last_fence = event.seq;
            thread.rows.iter_mut().filter(|row| row.unflushed.is_empty()).for_each(|row| row.waits += 1);
        }
        let (addr, value, bypasses_cache) = match event.what {
            What::Store { addr, value, how } => (addr, value, how == StoreKind::NonTemporal),
            What::Rmw { addr, new, stored: true, .. } => (addr, new, false),
            _ => return,
        };
        let Event { seq, thread: id, site, context, .. } = *event;
        let mut stores = Vec::new();
        spaces.locate(event.thread, addr, value.len() as u64, |part| {
            let store = PmStore {
                seq,
                thread: id,
                site,
                context,
                file: part.file,
                offset: part.offset,
                len: part.len as u64,
                waits: 0,
            };
            let bytes = before(part.file, part.offset, part.len);
            stores.push((store, Patch { file: part.file, offset: part.offset, bytes }));
        });
        if !stores.is_empty() {
            thread.stored(stores, bypasses_cache);
        }
    }

    fn rows(&mut self) -> impl Iterator<Item = &mut Row> {
        self.0.values_mut().flat_map(|thread| &mut thread.rows)
    }
}

impl Recent {
    /// Whether it has fenced since this event.
    pub(super) fn has_fenced_since(&self, seq: u64) -> bool {
        self.last_fence > seq
    }

    /// Its stores that it has waited for at most this often.
    pub(super) fn waited_at_most(&self, waits: u32) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.waits <= waits)
    }

    /// All its stores that it has not waited for and that are not lost, if they come from several instructions.
    pub(super) fn pending(&self, lost: &[Patch]) -> Option<Candidate> {
        if self.waited_at_most(0).filter_map(|row| row.undone(0, lost)).count() < 2 {
            return None;
        }
        let stores = self.waited_at_most(0).flat_map(|row| &row.stores);
        let mut stores: Vec<&(PmStore, Patch)> =
            stores.filter(|(_, before)| !before.bytes.is_empty() && !is_lost(before, lost)).collect();
        stores.sort_by_key(|(store, _)| store.seq);
        let before = undo(stores.iter().map(|(_, before)| before));
        Some(Candidate { store: stores.last()?.0, before, is_several: true })
    }

    fn stored(&mut self, stores: Vec<(PmStore, Patch)>, bypasses_cache: bool) {
        let lines = stores.iter().flat_map(|(store, _)| {
            let first = LineId::containing(store.file, store.offset).offset();
            let end = store.offset + store.len;
            (first..end).step_by(LINE as usize).map(|offset| LineId::containing(store.file, offset))
        });
        let unflushed: Vec<LineId> = lines.filter(|_| !bypasses_cache).collect();
        let site = stores[0].0.site;
        let last = self.rows.back_mut().filter(|row| row.site() == Some(site) && row.stores.len() < IN_A_ROW);
        if let Some(row) = last {
            row.stores.extend(stores);
            row.unflushed.extend(unflushed);
            return;
        }
        self.rows.retain(|row| row.site() != Some(site));
        if self.rows.len() == CANDIDATES {
            self.rows.pop_front();
        }
        self.rows.push_back(Row { stores, unflushed, waits: 0 });
    }
}

impl Row {
    fn site(&self) -> Option<pmvet_events::SiteId> {
        self.stores.first().map(|(store, _)| store.site)
    }

    /// What undoes, at this moment, its stores after the event of this number and what was stored there since. Stores that are lost anyway
    /// do not count.
    pub(super) fn undone(&self, after: u64, lost: &[Patch]) -> Option<Candidate> {
        let kept = |(store, before): &&(PmStore, Patch)| {
            store.seq > after && !before.bytes.is_empty() && !is_lost(before, lost)
        };
        let (first, _) = self.stores.iter().find(kept)?;
        let before = undo(self.stores.iter().filter(kept).map(|(_, before)| before));
        Some(Candidate { store: PmStore { waits: self.waits, ..*first }, before, is_several: false })
    }
}

/// What undoes stores, given oldest first: for each byte, what was there before the first of them.
fn undo<'a>(stores: impl Iterator<Item = &'a Patch>) -> Vec<Patch> {
    let mut bytes: BTreeMap<(FileId, u64), u8> = BTreeMap::new();
    for before in stores {
        for (offset, &old) in (before.offset..).zip(&before.bytes) {
            bytes.entry((before.file, offset)).or_insert(old);
        }
    }
    let mut before: Vec<Patch> = Vec::new();
    for ((file, offset), byte) in bytes {
        match before.last_mut() {
            Some(patch) if patch.file == file && patch.offset + patch.bytes.len() as u64 == offset => {
                patch.bytes.push(byte);
            }
            _ => before.push(Patch { file, offset, bytes: vec![byte] }),
        }
    }
    before
}

fn is_lost(patch: &Patch, lost: &[Patch]) -> bool {
    let end = |patch: &Patch| patch.offset + patch.bytes.len() as u64;
    lost.iter().any(|p| p.file == patch.file && p.offset < end(patch) && patch.offset < end(p))
}

#[cfg(test)]
mod unit_tests {
    use pmvet_events::event::{FenceKind, FlushKind};
    use pmvet_events::{ContextId, SiteId};

    use super::*;

    const POOL: u64 = 0x10000;
    const FILE: FileId = FileId(7);

    enum Step {
        Store(u64),
        NonTemporal(u64),
        Flush(u64),
        Fence,
        /// By the instruction of an earlier step.
        Again(u64, u32),
    }
    use Step::{Again, Fence, Flush, NonTemporal, Store};

    /// Runs steps in one thread. The number of each is its position, from 1, and so is its instruction. PM is zero before them.
    fn recent(steps: &[Step]) -> RecentStores {
        let (mut spaces, mut recent) = (AddressSpaces::default(), RecentStores::default());
        let event = |seq, site, what| Event { seq, thread: ThreadId(1), site, context: ContextId(1), what };
        spaces.update(&event(0, SiteId(0), What::ProcessStart { process: 1, parent: 0, path: "/bin/p".as_ref() }));
        let map = What::Map { file: FILE, addr: POOL, len: 4096, offset: 0, writable: true };
        spaces.update(&event(0, SiteId(0), map));
        for (seq, step) in (1..).zip(steps) {
            let store = |addr, how| What::Store { addr: POOL + addr, value: &[1; 8], how };
            let (site, what) = match *step {
                Store(addr) => (seq as u32, store(addr, StoreKind::Regular)),
                NonTemporal(addr) => (seq as u32, store(addr, StoreKind::NonTemporal)),
                Again(addr, site) => (site, store(addr, StoreKind::Regular)),
                Flush(addr) => (seq as u32, What::Flush { addr: POOL + addr, how: FlushKind::Clwb, pm: true }),
                Fence => (seq as u32, What::Fence { how: FenceKind::Sfence }),
            };
            recent.event(&event(seq, SiteId(site), what), &spaces, |_, _, len| vec![0; len]);
        }
        recent
    }

    /// The numbers of the stores, and how often the thread has waited for each.
    fn waits(steps: &[Step]) -> Vec<(u64, u32)> {
        let recent = recent(steps);
        let rows = recent.of(ThreadId(1)).into_iter().flat_map(|thread| thread.waited_at_most(u32::MAX));
        rows.map(|row| (row.stores[0].0.seq, row.waits)).collect()
    }

    #[test]
    fn a_fence_waits_for_what_was_flushed_before_it() {
        assert_eq!(waits(&[Store(0), Fence, Fence]), [(1, 0)], "nothing was flushed yet");
        assert_eq!(waits(&[Store(0), Store(64), Flush(64), Fence, Flush(0), Fence]), [(1, 1), (2, 2)]);
        assert_eq!(waits(&[NonTemporal(0), Fence]), [(1, 1)]);
        assert_eq!(waits(&[Store(60), Flush(0), Fence, Flush(64), Fence]), [(1, 1)], "it is in two lines");
    }

    #[test]
    fn a_copy_is_undone_as_far_as_it_is_not_lost() {
        let recent = recent(&[Store(0), Again(64, 1), Again(128, 1)]);
        let row = recent.of(ThreadId(1)).and_then(|thread| thread.waited_at_most(0).next()).unwrap();
        let undone = |after, lost: &[u64]| {
            let lost: Vec<Patch> = lost.iter().map(|&offset| Patch { file: FILE, offset, bytes: vec![0; 4] }).collect();
            let candidate = row.undone(after, &lost)?;
            Some((candidate.store.seq, candidate.before.iter().map(|patch| patch.offset).collect::<Vec<_>>()))
        };
        assert_eq!(undone(0, &[]), Some((1, vec![0, 64, 128])));
        assert_eq!(undone(0, &[0]), Some((2, vec![64, 128])));
        assert_eq!(undone(2, &[0]), Some((3, vec![128])));
        assert_eq!(undone(0, &[0, 64, 128]), None);
    }

    #[test]
    fn what_nobody_has_waited_for_is_undone_at_once() {
        let steps = [Store(0), Flush(0), Fence, Store(64), Store(128), Store(128), Store(192)];
        let recent = recent(&steps);
        let pending = |lost: &[Patch]| recent.of(ThreadId(1)).and_then(|thread| thread.pending(lost));
        let candidate = pending(&[Patch { file: FILE, offset: 64, bytes: vec![0; 8] }]).unwrap();
        let offsets: Vec<u64> = candidate.before.iter().map(|patch| patch.offset).collect();
        assert_eq!((candidate.store.seq, candidate.is_several, offsets), (7, true, vec![128, 192]));
        assert!(candidate.before.iter().all(|patch| patch.bytes == [0; 8]), "as it was before the first of them");
        assert!(pending(&[64, 128].map(|offset| Patch { file: FILE, offset, bytes: vec![0; 8] })).is_none());
    }
}
