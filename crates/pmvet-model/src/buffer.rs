//! Flush buffers: the flushes of each thread that wait for its next fence.

use pmvet_events::ThreadId;

use crate::lines::{PendingLineTable, SlotRef};

#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// By thread: the lines with a flush of this thread under way. The line itself says how far the flush reaches.
    threads: Vec<Vec<SlotRef>>,
}

/// From this size on, a full buffer drops lines that are already persistent.
const LARGE: usize = 4096;

impl Buffers {
    pub(crate) fn push(&mut self, thread: ThreadId, at: SlotRef, lines: &PendingLineTable) {
        let index = thread.0 as usize;
        if self.threads.len() <= index {
            self.threads.resize_with(index + 1, Vec::new);
        }
        let buffer = &mut self.threads[index];
        // Otherwise the buffer of a thread that flushes and never fences, while others persist the same lines, would
        // grow forever.
        if buffer.len() >= LARGE && buffer.len() == buffer.capacity() {
            buffer.retain(|at| lines.get(at.slot).life == at.life);
            buffer.reserve(buffer.len().max(LARGE));
        }
        buffer.push(at);
    }

    /// The lines in the buffer of a thread.
    pub(crate) fn get(&self, thread: ThreadId) -> &[SlotRef] {
        self.threads.get(thread.0 as usize).map_or(&[], Vec::as_slice)
    }

    /// Moves the buffer of a thread into the empty `into`, and takes its allocation in exchange.
    pub(crate) fn drain_into(&mut self, thread: ThreadId, into: &mut Vec<SlotRef>) {
        if let Some(buffer) = self.threads.get_mut(thread.0 as usize) {
            std::mem::swap(buffer, into);
        }
    }

    /// The thread has ended: no fence of its own will come.
    pub(crate) fn forget(&mut self, thread: ThreadId) {
        if let Some(buffer) = self.threads.get_mut(thread.0 as usize) {
            *buffer = Vec::new();
        }
    }
}
