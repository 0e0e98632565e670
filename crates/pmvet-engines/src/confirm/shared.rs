//! Stores that other threads read: races may be there, whatever the locksets say.
//!
//! PMRace's priority queue of shared accesses to PM (section 4.2.2), from a recorded run. The paper's entries are
//! instructions; here they are single stores, since of an instruction's many stores only those that another thread is
//! about to read are worth a stop.

use std::collections::{HashMap, HashSet};

use pmvet_events::event::{Event, FlushKind, LINE, StoreKind, What};
use pmvet_events::spaces::AddressSpaces;
use pmvet_events::{ContextId, FileId, SiteId, ThreadId};

use super::changes::{Change, Visits};
use super::fences::Fences;
use super::operation_similarity::OperationWords;

/// Words to remember; a bound on memory.
const MOST_WORDS: usize = 1 << 22;
/// Stores to remember per instruction.
const MOST_STORES: usize = 1 << 12;
/// Reads to remember per store; `MOST_ALIKE` of them by the same instruction of the same thread.
const MOST_READS: usize = 32;
const MOST_ALIKE: usize = 6;
/// For how many stores per instruction to search readers that would see them as a change; a bound on time.
const MOST_CHANGED: usize = 512;
/// If nothing is shared: how many stores to keep for each instruction of a thread.
const MOST_UNREAD: usize = 4;
/// How many of a word's last stores to remember.
const MOST_LAST: usize = 4;

/// The n-th time, from 0, that a thread ran an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nth {
    /// The instruction.
    pub site: SiteId,
    /// How often the thread has run it before.
    pub nth: u32,
}

/// A store that another thread reads; or, if there is none in the run, a store that others may learn of elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedStore {
    /// The thread that stored.
    pub thread: ThreadId,
    /// The instruction, and which of the thread's runs of it.
    pub store: Nth,
    /// The thread's fence, or its `clflush`, that made it persistent.
    pub fence: Option<Nth>,
    /// Number of its event.
    pub seq: u64,
    /// Reads by other threads, before another thread overwrote it.
    pub reads: Vec<SharedRead>,
    /// Readers that would see it as a change in another schedule.
    pub changes: Vec<Change>,
    word: Option<(FileId, u64)>,
    /// Number of its thread's operation; `previous`: of the one with the thread's previous store to the word.
    operation: u32,
    previous: Option<u32>,
}

impl SharedStore {
    /// Whether another thread reads it, or would in another schedule.
    pub fn is_read(&self) -> bool {
        !self.reads.is_empty() || !self.changes.is_empty()
    }

    fn read(&mut self, event: &Event<'_>, operation: u32, sees_change: bool) {
        let Event { thread, site, context, seq, .. } = *event;
        let mine = || self.reads.iter().rev().filter(|read| read.thread == thread);
        let alike = mine().filter(|read| read.site == site && read.context == context).count();
        let again = mine().any(|read| read.site == site && read.operation == operation);
        if self.reads.len() >= MOST_READS || alike >= MOST_ALIKE || again {
            return;
        }
        let last = mine().next().map_or((0, None), |read| (read.operations, Some(read.operation)));
        let operations = last.0 + u32::from(last.1 != Some(operation));
        self.reads.push(SharedRead { thread, site, context, seq, operations, sees_change, similarity: 0, operation });
    }
}

/// A load of a store by another thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedRead {
    /// The thread that read.
    pub thread: ThreadId,
    /// The instruction.
    pub site: SiteId,
    /// Its call path.
    pub context: ContextId,
    /// Number of its event; a load shares that of the event before it.
    pub seq: u64,
    /// In how many of its operations its thread has read the store by then. An operation ends with a fence.
    pub operations: u32,
    /// The thread had also read the word before the store, so it can see the change.
    pub sees_change: bool,
    /// How closely the operation is related to that of the store.
    pub similarity: u8,
    /// The number of that operation.
    operation: u32,
}

/// What is known of a word.
#[derive(Debug, Clone, Default)]
struct Word {
    /// Its last stores, all by one thread: had that thread stopped at one of them, it would not have made the later ones.
    stores: Vec<LastStore>,
    /// The threads that have read it: one bit per thread, which some threads share.
    readers: u64,
}

/// One of the last stores to a word, and the threads that had read the word before.
#[derive(Debug, Clone, Copy)]
struct LastStore {
    store: usize,
    readers: u64,
}

/// Fed with the events of a run.
#[derive(Debug, Default)]
pub struct SharedStores {
    spaces: AddressSpaces,
    words: HashMap<(FileId, u64), Word>,
    stores: Vec<SharedStore>,
    per_site: HashMap<SiteId, usize>,
    /// How often each thread ran an instruction.
    counts: HashMap<(ThreadId, SiteId), u32>,
    /// Stores that their thread has not flushed yet, by their line.
    unflushed: HashMap<(ThreadId, FileId, u64), Vec<usize>>,
    /// Stores that it has flushed since its last fence.
    unfenced: HashMap<ThreadId, Vec<usize>>,
    fences: Fences,
    /// Threads that have ended: later reads of what they stored cannot come too early.
    gone: HashSet<ThreadId>,
    visits: Visits,
    operations: OperationWords,
    all_stores: u64,
}

impl SharedStores {
    /// Takes the next event of the run, which has to be recorded with loads.
    pub fn event(&mut self, event: &Event<'_>) {
        self.spaces.update(event);
        self.fences.event(event);
        match event.what {
            What::Load { addr, size } => self.read(event, addr, size.into()),
            What::Store { addr, value, .. } => self.write(event, addr, value.len() as u64),
            What::Rmw { addr, new, stored, .. } => {
                self.read(event, addr, new.len() as u64);
                if stored {
                    self.write(event, addr, new.len() as u64);
                }
            }
            What::Flush { addr, how, .. } => {
                let nth = self.nth(event);
                let mut lines = Vec::new();
                self.spaces.locate(event.thread, addr & !(LINE - 1), LINE, |part| {
                    lines.push((event.thread, part.file, part.offset / LINE));
                });
                for store in lines.iter().filter_map(|line| self.unflushed.remove(line)).flatten() {
                    match how {
                        // `clflush` needs no fence.
                        FlushKind::Clflush => _ = self.stores[store].fence.get_or_insert(nth),
                        _ => self.unfenced.entry(event.thread).or_default().push(store),
                    }
                }
            }
            What::ThreadExit => {
                self.gone.insert(event.thread);
            }
            What::Fence { how } => {
                let nth = self.nth(event);
                self.fences.made(event.thread, how, nth);
                for store in self.unfenced.remove(&event.thread).unwrap_or_default() {
                    self.stores[store].fence.get_or_insert(nth);
                }
            }
            _ => {}
        }
    }

    /// Counts an instruction of a thread.
    fn nth(&mut self, event: &Event<'_>) -> Nth {
        let count = self.counts.entry((event.thread, event.site)).or_insert(0);
        *count += 1;
        Nth { site: event.site, nth: *count - 1 }
    }

    fn words(&self, event: &Event<'_>, addr: u64, len: u64) -> Vec<(FileId, u64)> {
        let mut words = Vec::new();
        self.spaces.locate(event.thread, addr, len, |part| {
            words.extend((part.offset / 8..=(part.offset + part.len as u64 - 1) / 8).map(|word| (part.file, word)));
        });
        words
    }

    fn read(&mut self, event: &Event<'_>, addr: u64, len: u64) {
        let thread = event.thread;
        let operation = self.fences.made_by(thread);
        let bit = 1 << (thread.0 % 64);
        let words = self.words(event, addr, len);
        self.operations.touched(thread, operation, &words);
        for word in words {
            if self.words.len() >= MOST_WORDS && !self.words.contains_key(&word) {
                continue;
            }
            self.visits.read(event, operation, word);
            let word = self.words.entry(word).or_default();
            word.readers |= bit;
            for last in &word.stores {
                let store = &mut self.stores[last.store];
                if store.thread != thread && !self.gone.contains(&store.thread) {
                    store.read(event, operation, last.readers & bit != 0);
                }
            }
        }
    }

    fn write(&mut self, event: &Event<'_>, addr: u64, len: u64) {
        self.all_stores += 1;
        let store = self.nth(event);
        let per_site = self.per_site.entry(event.site).or_insert(0);
        *per_site += 1;
        let known = *per_site <= MOST_STORES;
        let index = self.stores.len();
        let words = self.words(event, addr, len);
        let operation = self.fences.made_by(event.thread);
        self.operations.touched(event.thread, operation, &words);
        let last = words.first().and_then(|word| self.words.get(word)?.stores.last());
        let previous = last.map(|last| &self.stores[last.store]).filter(|store| store.thread == event.thread);
        let previous = previous.map(|store| store.operation);
        for &word in &words {
            if self.words.len() < MOST_WORDS || self.words.contains_key(&word) {
                let Word { stores, readers } = self.words.entry(word).or_default();
                let oldest = stores.len().saturating_sub(MOST_LAST - 1);
                stores.drain(..oldest);
                stores.retain(|last| self.stores[last.store].thread == event.thread);
                if known {
                    stores.push(LastStore { store: index, readers: *readers });
                }
            }
        }
        if known {
            let Event { seq, thread, .. } = *event;
            self.stores.push(SharedStore {
                thread,
                store,
                fence: None,
                seq,
                reads: Vec::new(),
                changes: Vec::new(),
                word: words.first().copied(),
                operation,
                previous,
            });
            match (event.what, words.first()) {
                (What::Store { how: StoreKind::NonTemporal, .. }, _) | (_, None) => {
                    self.unfenced.entry(thread).or_default().push(index);
                }
                (_, Some(&(file, word))) => {
                    self.unflushed.entry((thread, file, word * 8 / LINE)).or_default().push(index);
                }
            }
        }
    }

    /// The shared stores in program order, and how many stores there were in all. If nothing is shared: some stores of each thread, if
    /// several store. One thread may have told the other about its store in volatile memory.
    pub fn finish(mut self) -> (Vec<SharedStore>, u64) {
        self.operations.sort();
        let mut per_site: HashMap<SiteId, usize> = HashMap::new();
        for store in &mut self.stores {
            let SharedStore { thread, operation, previous, .. } = *store;
            let mine = (thread, operation);
            for read in &mut store.reads {
                read.similarity = self.operations.similarity(mine, (read.thread, read.operation));
            }
            let of_site = per_site.entry(store.store.site).or_insert(0);
            *of_site += 1;
            let word = store.word.filter(|_| *of_site <= MOST_CHANGED);
            let changes = word.map(|word| self.visits.changes(word, mine, previous, &self.operations, &self.fences));
            store.changes = changes.unwrap_or_default();
        }
        if self.stores.iter().any(SharedStore::is_read) {
            self.stores.retain(SharedStore::is_read);
        } else {
            self.keep_some();
        }
        (self.stores, self.all_stores)
    }

    /// Keeps stores that live for a while, from all parts of the run.
    fn keep_some(&mut self) {
        self.stores.retain(|store| store.fence.is_some());
        let mut visits: HashMap<(ThreadId, SiteId), usize> = HashMap::new();
        for store in &self.stores {
            *visits.entry((store.thread, store.store.site)).or_default() += 1;
        }
        let threads: HashSet<ThreadId> = self.stores.iter().map(|store| store.thread).collect();
        if threads.len() < 2 {
            self.stores.clear();
        }
        let mut seen: HashMap<(ThreadId, SiteId), usize> = HashMap::new();
        self.stores.retain(|store| {
            let key = (store.thread, store.store.site);
            let seen = seen.entry(key).or_default();
            *seen += 1;
            (*seen - 1).is_multiple_of(visits[&key].div_ceil(MOST_UNREAD))
        });
    }
}

#[cfg(test)]
mod tests {
    use pmvet_events::event::FenceKind;

    use super::*;

    const WRITER: ThreadId = ThreadId(1);
    const READER: ThreadId = ThreadId(2);
    const FLUSH: SiteId = SiteId(2);
    const FENCE: SiteId = SiteId(3);

    /// Two stores, each flushed and fenced, of which the second is read by another thread: what makes it persistent.
    fn persisted_by(how: FlushKind) -> Option<Nth> {
        let mut stores = SharedStores::default();
        let mut event = |thread, site, what| {
            stores.event(&Event { seq: 1, thread, site, context: ContextId(1), what });
        };
        for thread in [WRITER, READER] {
            event(thread, SiteId(0), What::ThreadStart { process: 7, os_thread: thread.0 });
        }
        event(WRITER, SiteId(0), What::Map { file: FileId(1), addr: 0x1000, len: 0x1000, offset: 0, writable: true });
        for addr in [0x1000, 0x1100] {
            event(WRITER, SiteId(1), What::Store { addr, value: &[1; 8], how: StoreKind::Regular });
            event(WRITER, FLUSH, What::Flush { addr, how, pm: true });
            event(WRITER, FENCE, What::Fence { how: FenceKind::Sfence });
        }
        event(READER, SiteId(4), What::Load { addr: 0x1100, size: 8 });
        let (found, _) = stores.finish();
        found.iter().find(|store| !store.reads.is_empty()).and_then(|store| store.fence)
    }

    /// The numbers of the stores that are kept if each of these threads stores so often, and none reads.
    fn unread(threads: &[ThreadId], times: u64) -> Vec<u64> {
        let mut stores = SharedStores::default();
        let mut seq = 0;
        let mut event = |thread, site, what| {
            seq += 1;
            stores.event(&Event { seq, thread, site, context: ContextId(1), what });
        };
        for &thread in threads {
            event(thread, SiteId(0), What::ThreadStart { process: 7, os_thread: thread.0 });
        }
        event(WRITER, SiteId(0), What::Map { file: FileId(1), addr: 0x1000, len: 0x1000, offset: 0, writable: true });
        for _ in 0..times {
            for &thread in threads {
                let addr = 0x1000 + 64 * u64::from(thread.0);
                event(thread, SiteId(1), What::Store { addr, value: &[1; 8], how: StoreKind::Regular });
                event(thread, FLUSH, What::Flush { addr, how: FlushKind::Clwb, pm: true });
                event(thread, FENCE, What::Fence { how: FenceKind::Sfence });
            }
        }
        let (found, _) = stores.finish();
        assert!(found.iter().all(|store| !store.is_read() && store.fence.is_some()));
        found.iter().filter(|store| store.thread == threads[0]).map(|store| u64::from(store.store.nth)).collect()
    }

    #[test]
    fn if_nothing_is_shared_some_stores_of_all_threads_are_kept() {
        assert_eq!(unread(&[WRITER, READER], 2), [0, 1]);
        assert_eq!(unread(&[WRITER, READER], 40), [0, 10, 20, 30]);
        assert_eq!(unread(&[WRITER], 40), [0; 0], "nobody else stores");
    }

    #[test]
    fn a_store_is_persistent_with_the_fence_or_with_a_clflush() {
        assert_eq!(persisted_by(FlushKind::Clwb), Some(Nth { site: FENCE, nth: 1 }));
        assert_eq!(persisted_by(FlushKind::Clflush), Some(Nth { site: FLUSH, nth: 1 }));
    }
}
