//! The stores to PM that threads have not fenced yet. A thread that reads these bytes is traced.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pmvet_events::ThreadId;

/// The stores of all threads that are not fenced yet.
pub(super) static UNFENCED_STORES: UnfencedStores = UnfencedStores([const { ThreadStores::new() }; TRACKED_THREADS]);

/// For how many threads unfenced stores are tracked, and how many of the last ones for each.
const TRACKED_THREADS: usize = 16;
const STORES_PER_THREAD: usize = 16;

/// The state of a thread's trace.
#[derive(Debug, Default)]
pub(crate) struct InstructionTrace {
    /// Where its own unfenced stores are, from its first store on.
    unfenced: Option<&'static ThreadStores>,
    /// Where its next store goes there, modulo the size.
    next: usize,
    /// The trace ends when the thread has made this many fences.
    pub(super) until: u64,
    /// How many instructions it has reported in all.
    pub(super) reported: u64,
    /// The base of the thread's fs segment, or 0 if not known yet.
    pub(super) fs: u64,
}

impl InstructionTrace {
    /// The thread makes a fence: its stores so far are fenced, or soon will be.
    pub(crate) fn fenced(&mut self) {
        if let Some(stores) = self.unfenced {
            stores.clear();
        }
    }

    /// The thread is about to store to PM.
    pub(super) fn note_store(&mut self, thread: ThreadId, at: u64, size: u32) {
        let Some(stores) = self.unfenced.or_else(|| UNFENCED_STORES.claim(thread)) else { return };
        self.unfenced = Some(stores);
        let (addr, len) = &stores.stores[self.next % STORES_PER_THREAD];
        // A reader must not combine the address of one store with the size of another.
        len.store(0, Ordering::Relaxed);
        addr.store(at, Ordering::Release);
        len.store(size.into(), Ordering::Release);
        self.next = self.next.wrapping_add(1);
    }

    /// Its thread ends.
    pub(crate) fn thread_ends(&mut self) {
        if let Some(stores) = self.unfenced.take() {
            stores.clear();
            stores.thread.store(0, Ordering::Release);
        }
    }
}

/// The stores that threads have not fenced: a thread that reads these bytes is traced.
#[derive(Debug)]
pub(super) struct UnfencedStores([ThreadStores; TRACKED_THREADS]);

#[derive(Debug)]
struct ThreadStores {
    /// 0 if the entry is free.
    thread: AtomicU32,
    /// Address and size of stores to PM, in a ring.
    stores: [(AtomicU64, AtomicU64); STORES_PER_THREAD],
}

impl ThreadStores {
    const fn new() -> Self {
        Self {
            thread: AtomicU32::new(0),
            stores: [const { (AtomicU64::new(0), AtomicU64::new(0)) }; STORES_PER_THREAD],
        }
    }

    fn clear(&self) {
        self.stores.iter().for_each(|(_, len)| len.store(0, Ordering::Relaxed));
    }
}

impl UnfencedStores {
    /// An entry for the stores of a thread, if one is free.
    fn claim(&self, thread: ThreadId) -> Option<&ThreadStores> {
        let free = |place: &&ThreadStores| {
            place.thread.compare_exchange(0, thread.0, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        self.0.iter().find(free)
    }

    /// Whether another thread has stored any of these bytes, or is about to. The answer may be wrong while an entry changes:
    /// then a thread is traced needlessly, or not traced.
    pub(super) fn overlaps(&self, reader: ThreadId, addr: u64, len: u64) -> bool {
        let others = self.0.iter().filter(|place| place.thread.load(Ordering::Acquire) != 0);
        others.filter(|place| place.thread.load(Ordering::Relaxed) != reader.0).any(|place| {
            place.stores.iter().any(|(start, size)| {
                let size = size.load(Ordering::Acquire);
                let start = start.load(Ordering::Relaxed);
                size > 0 && start < addr + len && addr < start + size
            })
        })
    }
}
