//! The ring through which a thread sends its events to pmvet.

use std::sync::atomic::Ordering;

use pmvet_events::event::{Event, What};
use pmvet_events::ids::{ContextId, SiteId};
use pmvet_events::shm::{RING_BYTES, RingControl};
use pmvet_events::wire;

use super::ring_claim::wait_a_little;
use super::thread::Thread;
use crate::run::run;

/// The largest record that a stub writes. While the ring has this much room, a stub need not check for more.
pub(crate) const STUB_RECORD_BYTES: usize = wire::HEADER + 64;

impl Thread {
    pub(super) fn control(&self) -> &RingControl {
        // SAFETY: points into the shared memory, which stays mapped.
        unsafe { &*self.control }
    }

    /// Sets how far stubs may write: to the end of the free part or of the buffer, less one record.
    pub(super) fn set_limit(&mut self) {
        let tail = self.control().tail.0.load(Ordering::Acquire);
        let free = RING_BYTES - (self.head - tail) as usize;
        let start = self.buffer.start();
        let at = self.head as usize % RING_BYTES;
        let room = free.min(RING_BYTES - at);
        // SAFETY: the result stays within the buffer, or just before it when there is no room at all.
        self.limit = unsafe { start.add(at) }.wrapping_add(room).wrapping_sub(STUB_RECORD_BYTES);
    }

    /// Makes room for a record of `len` bytes at `cursor`, waiting for pmvet if the ring is full.
    pub(crate) fn make_room(&mut self, len: usize) {
        let mut waits = 0u32;
        // A stub may have left the cursor at the very end of the buffer.
        self.cursor = self.buffer.start().wrapping_add(self.head as usize % RING_BYTES);
        loop {
            let tail = self.control().tail.0.load(Ordering::Acquire);
            let free = RING_BYTES - (self.head - tail) as usize;
            let at = self.head as usize % RING_BYTES;
            let to_end = RING_BYTES - at;
            if len <= to_end && len <= free {
                break;
            }
            if len > to_end && to_end <= free {
                // SAFETY: at least one free word is left before the end of the buffer.
                unsafe { self.cursor.cast::<u64>().write(wire::word0(0, wire::PAD, 0)) };
                self.advance(to_end);
                continue;
            }
            wait_a_little(&mut waits);
        }
        self.set_limit();
    }

    pub(crate) fn advance(&mut self, len: usize) {
        self.head += len as u64;
        self.cursor = self.buffer.start().wrapping_add(self.head as usize % RING_BYTES);
        self.control().head.0.store(self.head, Ordering::Release);
    }

    /// Numbers and sends an event that no stub writes. Returns its number.
    pub(crate) fn emit_at(&mut self, site: SiteId, context: ContextId, what: What<'_>) -> u64 {
        if run().is_coverage_run() {
            return 0;
        }
        // First make room: a numbered event must not wait for pmvet, which may itself wait for that number.
        let mut record = std::mem::take(&mut self.scratch);
        record.clear();
        wire::write(&Event { seq: 0, thread: self.id, site, context, what }, &mut record);
        self.make_room(record.len());
        if wire::is_rare(&record) {
            run().shared.header().rare_begun.fetch_add(1, Ordering::AcqRel);
        }
        let seq = if what.is_numbered() {
            run().shared.header().next_seq.0.fetch_add(1, Ordering::AcqRel)
        } else {
            run().shared.header().next_seq.0.load(Ordering::Acquire) - 1
        };
        let word = u64::from_le_bytes(record[..8].try_into().unwrap_or_default()) | seq;
        record[..8].copy_from_slice(&word.to_le_bytes());
        // SAFETY: `make_room` left this many bytes.
        unsafe { std::ptr::copy_nonoverlapping(record.as_ptr(), self.cursor, record.len()) };
        self.advance(record.len());
        self.seq_after = seq + 1;
        self.set_limit();
        self.scratch = record;
        seq
    }

    /// Sends an event that belongs to no instruction.
    pub(crate) fn emit(&mut self, what: What<'_>) -> u64 {
        self.emit_at(SiteId(0), ContextId(0), what)
    }

    /// Waits until pmvet has seen everything this thread sent.
    pub(crate) fn wait_until_seen(&mut self) {
        let mut waits = 0;
        while self.control().tail.0.load(Ordering::Acquire) != self.head {
            wait_a_little(&mut waits);
        }
    }
}
