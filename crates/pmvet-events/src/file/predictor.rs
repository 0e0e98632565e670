//! What writer and reader expect to come next. Both update it in the same way after each event, so the file needs only
//! the differences from it.

use super::codec::Shape;
use super::codec::op;
use crate::ids::{ContextId, SiteId, ThreadId};

#[derive(Debug)]
pub(super) struct Predictor {
    pub(super) seq: u64,
    /// The thread of the last event.
    pub(super) thread: u32,
    // Numbered in the order of definition. The first of each is there from the start: no thread, the unknown
    // instruction, the outermost context.
    pub(super) threads: Vec<Thread>,
    pub(super) slots: Vec<Slot>,
    pub(super) contexts: Vec<ContextId>,
}

#[derive(Debug)]
pub(super) struct Thread {
    pub(super) id: ThreadId,
    slot: u32,
    context: u32,
    addr: u64,
}

/// What one instruction does. One that both loads and stores, as `add [mem], 1` does, has a slot for each: in a common
/// slot they would spoil each other's predictions.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) site: SiteId,
    pub(super) load: bool,
    /// Whether the context was last that of the thread's previous event, not the slot's own last one.
    follows: bool,
    context: u32,
    /// The slots that came after this one, the latest first.
    next: [u32; 2],
    pub(super) shape: Shape,
    addr: u64,
    /// The step between addresses, once it has been seen twice in a row, and the latest step.
    stride: u64,
    step: u64,
    /// The last value of at most eight bytes.
    pub(super) value: u64,
}

impl Slot {
    pub(super) fn new(site: SiteId, load: bool) -> Self {
        let shape = Shape { kind: if load { op::LOAD } else { op::STORE } << 3, size: 8 };
        Slot { site, load, follows: true, context: 0, next: [0; 2], shape, addr: 0, stride: 0, step: 0, value: 0 }
    }
}

impl Thread {
    pub(super) fn new(id: ThreadId) -> Self {
        Thread { id, slot: 0, context: 0, addr: 0 }
    }
}

impl Predictor {
    pub(super) fn new() -> Self {
        Predictor {
            seq: 0,
            thread: 0,
            threads: vec![Thread::new(ThreadId(0))],
            slots: vec![Slot::new(SiteId(0), false)],
            contexts: vec![ContextId(0)],
        }
    }

    pub(super) fn slot(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }

    pub(super) fn slot_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    fn thread(&self, thread: u32) -> &Thread {
        &self.threads[thread as usize]
    }

    pub(super) fn slot_guesses(&self, thread: u32) -> [u32; 2] {
        self.slot(self.thread(thread).slot).next
    }

    /// Events of one function call share their context, so that the thread's last one is a good guess except for the
    /// first event of a call; for that one the slot's last context is.
    pub(super) fn context_guesses(&self, thread: u32, slot: u32) -> [u32; 2] {
        let (slot, thread) = (self.slot(slot), self.thread(thread));
        if slot.follows { [thread.context, slot.context] } else { [slot.context, thread.context] }
    }

    /// Loops go on from the instruction's last address, other code stays near what the thread touched last.
    pub(super) fn addr_guesses(&self, thread: u32, slot: u32) -> [u64; 2] {
        let slot = self.slot(slot);
        [slot.addr.wrapping_add(slot.stride), self.thread(thread).addr]
    }

    pub(super) fn touched(&mut self, thread: u32, slot: u32, shape: Shape, addr: u64) {
        let slot = self.slot_mut(slot);
        let step = addr.wrapping_sub(slot.addr);
        if step == slot.step {
            slot.stride = step;
        }
        slot.step = step;
        slot.addr = addr;
        if shape.is_access() {
            self.threads[thread as usize].addr = addr;
        }
    }

    pub(super) fn happened(&mut self, seq: u64, thread: u32, slot: u32, context: u32, shape: Shape) {
        self.seq = seq;
        self.thread = thread;
        let thread = &mut self.threads[thread as usize];
        let before = &mut self.slots[thread.slot as usize];
        if before.next[0] != slot {
            before.next = [slot, before.next[0]];
        }
        let state = &mut self.slots[slot as usize];
        if thread.context != state.context {
            state.follows = context == thread.context;
        }
        state.context = context;
        state.shape = shape;
        thread.slot = slot;
        thread.context = context;
    }
}

/// The number an event has if none is missing.
pub(super) fn expected_seq(last: u64, shape: Shape) -> u64 {
    last.wrapping_add(u64::from(shape.op() != op::LOAD))
}
