//! When memory becomes known to other threads. What a thread stores to memory before that, and makes persistent, is
//! initialisation.
//!
//! Memory is published when another thread touches it, and anew whenever a pointer leads to what one thread has filled. A
//! store that has not become persistent by then is no initialisation, whether another thread comes in time or not.

use std::collections::BTreeMap;
use std::ops::Range;

use pmvet_events::ThreadId;
use pmvet_events::event::LINE;

use super::engine::LocksetEngine;
use super::lines::{EventOrigin, TrackedLines, mask};
use super::spin::{Lock, PmWord};
use super::stores::number;

/// How far to look behind the target of a new pointer, in lines.
const MAX_OBJECT_LINES: usize = 64;
/// A smaller number does not count as an offset into the pool.
pub(super) const SMALLEST_OFFSET: u64 = 4096;
/// The bits of an address without the marks that programs keep in pointers: in the upper 16 bits and the lowest three.
const ADDRESS_BITS: u64 = 0x0000_ffff_ffff_fff8;
/// What is larger is hardly one object, but memory that the program hands out itself.
const MAX_OBJECT_BYTES: u64 = 4096;

/// Objects that the program has allocated, by file and offset, with their sizes.
#[derive(Debug, Default)]
pub(super) struct Objects(BTreeMap<(u32, u64), u64>);

impl Objects {
    fn allocated(&mut self, at: PmWord, bytes: u64) {
        if bytes <= MAX_OBJECT_BYTES {
            self.0.insert((at.file.0, at.offset), bytes);
        } else {
            self.0.remove(&(at.file.0, at.offset));
        }
    }

    /// Where the object with this byte begins and ends.
    fn around(&self, at: PmWord) -> Option<Range<u64>> {
        let (&(file, start), &bytes) = self.0.range(..=(at.file.0, at.offset)).next_back()?;
        (file == at.file.0 && at.offset - start < bytes).then_some(start..start + bytes)
    }

    /// Whether other threads have touched the object with this word.
    fn is_shared(&self, word: PmWord, thread: ThreadId, lines: &TrackedLines) -> bool {
        let Some(Range { start, end }) = self.around(word) else { return false };
        (start & !(LINE - 1)..end).step_by(LINE as usize).any(|offset| {
            let line = lines.find(word.file, offset).and_then(|id| lines.peek(id));
            let (from, to) = (start.max(offset), end.min(offset + LINE));
            line.is_some_and(|line| line.is_touched_by_others(thread, mask(from, to - from)))
        })
    }
}

impl LocksetEngine {
    /// A thread stores what may be a pointer.
    pub(super) fn publishes(&mut self, at: EventOrigin, word: PmWord, stored: &[u8]) {
        if !self.options.allocators {
            return;
        }
        // One store may write a pointer together with the number of its pool.
        for value in stored.chunks_exact(8).filter_map(number) {
            let Some(target) = self.target(at.thread, word, value) else { continue };
            self.links(at, word, target);
            self.leads(at, word, target);
            self.forgets_earlier_use(at, target);
        }
    }

    /// What the value of a word leads to.
    fn target(&self, thread: ThreadId, word: PmWord, value: u64) -> Option<PmWord> {
        let address = value & ADDRESS_BITS;
        // An address, or an offset in the pool. Small numbers are offsets too, but far more often just numbers.
        let is_offset = value == address && value >= SMALLEST_OFFSET;
        self.place(thread, address).or_else(|| is_offset.then_some(PmWord { file: word.file, offset: value }))
    }

    /// From now on others may come by the pointer. A pointer that no other thread has read may be a note that the thread makes for itself,
    /// as in a log, unless it belongs to an object that other threads have touched.
    fn links(&mut self, at: EventOrigin, word: PmWord, target: PmWord) {
        let thread = at.thread;
        let pointer = mask(word.offset, 8);
        let (Some(from), Some(to)) =
            (self.lines.find(word.file, word.offset), self.lines.find(target.file, target.offset))
        else {
            return;
        };
        if self.lines.get(from).is_loaded_by_others(thread, pointer) {
            // Where the target ends is not known, but its first line belongs to it.
            self.lines.get(to).publish(thread, u64::MAX << (target.offset % LINE));
        } else if self.lines.get(from).is_private(thread, pointer)
            && self.lines.get(to).is_private(thread, mask(target.offset, 1))
            && self.objects.is_shared(word, thread, &self.lines)
        {
            self.lines.get(from).publish(thread, pointer);
        }
    }

    /// Marks a pointer if no thread that follows it can find a lock there that the writer holds.
    fn leads(&mut self, at: EventOrigin, word: PmWord, target: PmWord) {
        let unknown = || target.offset..target.offset + MAX_OBJECT_BYTES;
        let object = self.objects.around(target).unwrap_or_else(unknown);
        let mut held = self.threads.get(at.thread).held.iter();
        let elsewhere = held.all(|hold| match self.locks.get(hold.lock) {
            Some(Lock { place: Some(lock), .. }) => lock.file != target.file || !object.contains(&lock.offset),
            // What leads to a lock in volatile memory, no event shows. Of many words it is not known yet whether they are locks.
            Some(lock) => !lock.named && !self.locks.verdict(hold.lock).0,
            None => true,
        });
        if let Some(id) = self.lines.find(word.file, word.offset).filter(|_| elsewhere) {
            self.lines.get(id).lead_elsewhere(at.seq, mask(word.offset, 8));
        }
    }

    /// A pointer to lines that the thread has filled and no other thread has seen since: what was stored there was
    /// initialisation, even if the memory had another use before.
    fn forgets_earlier_use(&mut self, at: EventOrigin, target: PmWord) {
        let mut offset = target.offset & !(LINE - 1);
        let mut start = target.offset & (LINE - 1);
        for _ in 0..MAX_OBJECT_LINES {
            let Some(id) = self.lines.find(target.file, offset) else { return };
            let line = self.lines.get(id);
            let bytes = line.filled(at.thread);
            // Nothing before the pointer's target counts, and behind it only lines that no other thread has touched.
            if bytes == 0 && line.is_touched_by_others(at.thread, u64::MAX) || u64::from(bytes.trailing_zeros()) < start
            {
                return;
            }
            // Its earlier uses, by any thread, are over.
            if bytes != 0 {
                line.forget(bytes, at.seq);
            }
            (offset, start) = (offset + LINE, 0);
        }
    }

    /// Memory was allocated: what other threads did with it before no longer counts.
    pub(super) fn allocated(&mut self, at: EventOrigin, addr: u64, len: u64) {
        if !self.options.allocators {
            return;
        }
        if let Some(start) = self.place(at.thread, addr) {
            self.objects.allocated(start, len);
        }
        for part in self.parts(at.thread, addr, len) {
            let Some(id) = self.lines.find(part.word.file, part.word.offset) else { continue };
            let bytes = mask(part.word.offset, part.len);
            let line = self.lines.get(id);
            line.renew(bytes, at.thread);
            line.forget(bytes, at.seq);
        }
    }
}
