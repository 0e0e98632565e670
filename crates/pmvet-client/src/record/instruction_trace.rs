//! The instruction trace of a thread that has read what another thread has stored and not fenced yet.
//!
//! From such a load on the client reports every instruction of the reader with its registers, up to a number that the plan
//! gives or until the thread has made some fences. pmvet computes from this where the value goes.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pmvet_events::event::What;
use pmvet_events::step::{CODE, State};
use pmvet_events::{SiteId, ThreadId};

use super::sites::SITES;
use super::thread::{Thread, slot};
use crate::dynamorio;
use crate::run::run;

/// The stores of all threads that are not fenced yet.
static UNFENCED_STORES: UnfencedStores = UnfencedStores([const { ThreadStores::new() }; TRACKED_THREADS]);

/// For how many threads unfenced stores are tracked, and how many of the last ones for each.
const TRACKED_THREADS: usize = 16;
const STORES_PER_THREAD: usize = 16;
/// How many fences after the load the trace goes on: what depends on the value has mostly happened by then.
const TRACED_FENCES: u64 = 2;
/// Upper bound for the instructions that one thread reports in a run, for the sake of loops.
const MAX_TRACED_INSTRUCTIONS: u64 = 1 << 16;

/// The state of a thread's trace.
#[derive(Debug, Default)]
pub(crate) struct InstructionTrace {
    /// Where its own unfenced stores are, from its first store on.
    unfenced: Option<&'static ThreadStores>,
    /// Where its next store goes there, modulo the size.
    next: usize,
    /// The trace ends when the thread has made this many fences.
    until: u64,
    /// How many instructions it has reported in all.
    reported: u64,
    /// The base of the thread's fs segment, or 0 if not known yet.
    fs: u64,
}

impl InstructionTrace {
    /// The thread makes a fence: its stores so far are fenced, or soon will be.
    pub(crate) fn fenced(&mut self) {
        if let Some(place) = self.unfenced {
            place.clear();
        }
    }

    /// Its thread ends.
    pub(crate) fn thread_ends(&mut self) {
        if let Some(place) = self.unfenced.take() {
            place.clear();
            place.thread.store(0, Ordering::Release);
        }
    }
}

/// The stores that threads have not fenced: whoever reads these bytes is traced.
#[derive(Debug)]
struct UnfencedStores([ThreadStores; TRACKED_THREADS]);

#[derive(Debug)]
struct ThreadStores {
    /// 0 if nobody uses this entry.
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
    /// then a thread is traced in vain, or not traced.
    fn overlaps(&self, reader: ThreadId, addr: u64, len: u64) -> bool {
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

/// Before an instruction, if its thread is traced.
pub(crate) unsafe extern "C" fn before_instruction(pc: u64, _size: u32) {
    let thread = Thread::current();
    let left = thread.slot(slot::TRACE).saturating_sub(1);
    let over = thread.fences_made >= thread.trace.until || thread.trace.reported >= MAX_TRACED_INSTRUCTIONS;
    thread.set_slot(slot::TRACE, if over { 0 } else { left });
    if !over {
        thread.report_step(pc, 0, 0);
    }
}

/// Before an instruction that loads from PM; the address is in its slot.
pub(crate) unsafe extern "C" fn before_load(pc: u64, size: u32) {
    let thread = Thread::current();
    let (addr, len) = (thread.slot(slot::ADDR), u64::from(size));
    if !UNFENCED_STORES.overlaps(thread.id, addr, len) || thread.trace.reported >= MAX_TRACED_INSTRUCTIONS {
        return;
    }
    thread.trace.until = thread.fences_made + TRACED_FENCES;
    thread.set_slot(slot::TRACE, run().plan.follow.into());
    thread.report_step(pc, addr, len);
}

/// Before a store to PM, so that nobody reads it unnoticed; the address is in its slot.
pub(crate) unsafe extern "C" fn before_store(_pc: u64, size: u32) {
    let thread = Thread::current();
    let at = thread.slot(slot::ADDR);
    let trace = &mut thread.trace;
    let Some(stores) = trace.unfenced.or_else(|| UNFENCED_STORES.claim(thread.id)) else { return };
    trace.unfenced = Some(stores);
    let (addr, len) = &stores.stores[trace.next % STORES_PER_THREAD];
    // A reader must not combine the address of one store with the size of another.
    len.store(0, Ordering::Relaxed);
    addr.store(at, Ordering::Release);
    len.store(size.into(), Ordering::Release);
    trace.next = trace.next.wrapping_add(1);
}

impl Thread {
    fn report_step(&mut self, pc: u64, addr: u64, len: u64) {
        self.trace.reported += 1;
        let mut code = [0; CODE];
        dynamorio::read_memory(pc, &mut code);
        let general = dynamorio::integer_registers(&mut self.trace.fs);
        let fs = self.trace.fs;
        let state = State { general, fs, pc, code }.to_bytes();
        let context = self.context(general[4]);
        let site = SiteId(SITES.id_at(pc));
        self.emit_at(site, context, What::Step { addr, len, state: &state });
    }
}
