//! Stores and read-modify-writes: what they overwrite, and what they publish.

use pmvet_events::event::{AtomicKind, LINE, StoreKind};
use pmvet_events::{FileId, ThreadId};

use super::engine::{LocksetEngine, pm_key};
use super::lines::{Dirty, EventOrigin, Fate, LineIndex, StoreMeans, mask, words};
use super::locksets::Hold;
use super::publication::SMALLEST_OFFSET;
use super::reader::Flushed;
use super::spin::{LockStep, PmWord, WordChange};

/// The bytes of an access that are in one line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) word: PmWord,
    /// Index of its first byte in the access.
    first: usize,
    pub(super) len: u64,
}

pub(super) fn number(bytes: &[u8]) -> Option<u64> {
    let mut word = [0; 8];
    word.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(word))
}

/// Whether a pointer only loses a mark in its lowest bits, as in link-and-persist, where the mark says that the pointer may not be persistent
/// yet: nothing is lost if the mark is back after a crash. Marks that say more, such as that a node is deleted, are set, not cleared.
fn drops_mark(old: u64, new: u64) -> bool {
    let mark = old ^ new;
    mark.is_power_of_two() && mark < 8 && old & mark != 0 && new >= SMALLEST_OFFSET && new.is_multiple_of(8)
}

impl LocksetEngine {
    /// Splits an access at line boundaries.
    pub(super) fn parts(&self, thread: ThreadId, addr: u64, len: u64) -> Vec<Part> {
        let mut parts = Vec::new();
        self.spaces.locate(thread, addr, len, |found| {
            let (mut offset, mut first) = (found.offset, found.first);
            let end = found.offset.saturating_add(found.len as u64);
            while offset < end {
                let len = (LINE - offset % LINE).min(end - offset);
                parts.push(Part { word: PmWord { file: found.file, offset }, first, len });
                offset += len;
                first += len as usize;
            }
        });
        parts
    }

    /// The whole access, if it is in one line.
    pub(super) fn one_part(&self, thread: ThreadId, addr: u64, len: u64) -> Option<Part> {
        if addr % LINE + len > LINE {
            return None;
        }
        let word = self.place(thread, addr)?;
        Some(Part { word, first: 0, len })
    }

    pub(super) fn store(&mut self, at: EventOrigin, addr: u64, value: &[u8], how: StoreKind) {
        match self.one_part(at.thread, addr, value.len() as u64) {
            Some(part) => self.store_part(at, part, value, how),
            None => self
                .parts(at.thread, addr, value.len() as u64)
                .into_iter()
                .for_each(|part| self.store_part(at, part, value, how)),
        }
    }

    fn store_part(&mut self, at: EventOrigin, part: Part, value: &[u8], how: StoreKind) {
        let Some(id) = self.lines.enter(part.word.file, part.word.offset) else { return };
        let stored = value.get(part.first..part.first + part.len as usize).unwrap_or_default();
        self.lines.get(id).hold(part.word.offset, stored);
        let (lock, meant) = self.store_to_word(at, id, part, stored);
        if !meant {
            self.act(at.thread, Some(id));
        }
        self.store_line(at, id, part, lock.map_or(StoreMeans::Plain, StoreMeans::Store));
        if how == StoreKind::NonTemporal {
            self.threads.get(at.thread).flushes.push(Flushed { line: id, seq: at.seq, only: Some(at.seq) });
        }
        if part.first == 0 && !meant {
            self.publishes(at, part.word, stored);
        }
    }

    /// Handles a plain store to a word that is perhaps a lock, or beside one. Returns the word, and whether the store
    /// released it.
    fn store_to_word(&mut self, at: EventOrigin, id: LineIndex, part: Part, stored: &[u8]) -> (Option<u32>, bool) {
        let bytes = mask(part.word.offset, part.len);
        let line = self.lines.get(id);
        if line.atomics == 0 || !self.options.infer_locks {
            return (None, false);
        }
        let Some(value) = number(stored) else { return (None, false) };
        if line.atomics & bytes != 0
            && let Some(lock) = self.locks.find(pm_key(part.word))
        {
            let step = self.locks.store(lock, at.thread, value);
            let meant = self.step(at, step) || self.locks.verdict(lock).0;
            return (Some(lock), meant);
        }
        let held: Vec<Hold> = self.threads.get(at.thread).held.iter().collect();
        for hold in held {
            let step = self.locks.serves(hold.lock, at.thread, part.word, value);
            if step != LockStep::Nothing {
                self.step(at, step);
                return (Some(hold.lock), true);
            }
            if self.locks.is_serving(hold.lock, part.word.offset) {
                return (Some(hold.lock), true);
            }
        }
        (None, false)
    }

    fn store_line(&mut self, at: EventOrigin, id: LineIndex, part: Part, how: StoreMeans) {
        let bytes = mask(part.word.offset, part.len);
        self.settle(id, at.thread, bytes);
        self.overwrite(at, id, bytes);
        if !self.spins.is_empty()
            && let Some(waiting) = self.spins.get_mut(&part.word)
        {
            *waiting = Some(self.clocks.publish(at.thread));
        }
        let line = self.lines.get(id);
        line.touch(at.thread, bytes);
        words(bytes).for_each(|word| line.makers[word] = (at.thread, at.site));
        let held = &mut self.threads.get(at.thread).held;
        for hold in held.iter().take(4) {
            line.guard(hold.lock);
        }
        let (stamp, locks) = (held.stamp(), held.set());
        let alone = line.is_private(at.thread, bytes);
        // Words of one object, or bytes of one copy, share one record, unless a flush has come in between.
        if let Some(last) = line.dirty.last_mut()
            && (last.at.thread, last.at.site, last.at.context) == (at.thread, at.site, at.context)
            && (last.stamp, last.locks, last.how) == (stamp, locks, how)
            && how == StoreMeans::Plain
            && !last.touched
            && !last.published
            && !last.leads_elsewhere
            && last.at.seq > line.flushed
            && self.threads.get(at.thread).flushes.iter().all(|f| f.only.is_none())
        {
            last.bytes |= bytes;
            last.at.seq = at.seq;
            last.alone &= alone;
            return;
        }
        let (touched, published, leads_elsewhere) = (false, false, false);
        let during = Vec::new();
        line.dirty.push(Dirty { at, bytes, stamp, locks, how, alone, touched, published, leads_elsewhere, during });
    }

    /// Ends the windows of what a new store covers.
    fn overwrite(&mut self, at: EventOrigin, id: LineIndex, bytes: u64) {
        let line = self.lines.get(id);
        let mut over = Vec::new();
        for dirty in line.dirty.iter_mut().filter(|d| d.bytes & bytes != 0) {
            over.push(Dirty { bytes: dirty.bytes & bytes, ..dirty.clone() });
            dirty.bytes &= !bytes;
        }
        if !over.is_empty() {
            line.dirty.retain(|d| d.bytes != 0);
            over.into_iter().for_each(|dirty| self.close(id, dirty, Some(at), Fate::Overwritten));
        }
    }

    /// A system call writes to a file.
    pub(super) fn file_write(&mut self, file: FileId, mut offset: u64, mut data: &[u8]) {
        while !data.is_empty() {
            let (now, later) = data.split_at(data.len().min((LINE - offset % LINE) as usize));
            if let Some(id) = self.lines.find(file, offset) {
                self.lines.get(id).hold(offset, now);
            }
            (offset, data) = (offset + now.len() as u64, later);
        }
    }

    pub(super) fn rmw(&mut self, at: EventOrigin, addr: u64, old: &[u8], new: &[u8], stored: bool) {
        self.fence(at);
        let place = self.place(at.thread, addr);
        let key = self.key(at.thread, addr, place);
        let lock = self.locks.word(key, place);
        let bytes = new.len() as u64;
        let mut meant = false;
        if let (true, Some(old), Some(new)) = (stored && self.options.infer_locks, number(old), number(new)) {
            let EventOrigin { thread, site, context, seq } = at;
            let change = WordChange { thread, site, context, seq, old, new, bytes, discards: false };
            let step = self.locks.rmw(key, place, change);
            meant = self.step(at, step) || self.locks.verdict(lock).0;
        } else if !stored {
            self.locks.missed(lock, at.site);
        }
        let Some(word) = place else { return };
        self.mark_word(word);
        let Some(id) = self.line_of(word) else { return };
        let part = Part { word, first: 0, len: (new.len() as u64).min(LINE - word.offset % LINE) };
        if !meant {
            // The word is data: the instruction reads it, and writes it if the comparison held.
            let last_seq = self.threads.get(at.thread).last_seq;
            self.load_line(at, part, u64::MAX, None, last_seq);
        }
        if stored {
            let line = self.lines.get(id);
            line.hold(word.offset, new.get(..part.len as usize).unwrap_or_default());
            let is_clean = line.dirty.iter().all(|d| d.bytes & mask(word.offset, part.len) == 0);
            if is_clean && number(old).zip(number(new)).is_some_and(|(old, new)| drops_mark(old, new)) {
                return;
            }
            if !meant {
                self.act(at.thread, Some(id));
            }
            self.store_line(at, id, part, StoreMeans::Atomic(lock));
            if !self.locks.verdict(lock).0 {
                self.publishes(at, word, new);
            }
        }
    }

    /// An exchange whose old value is not used. It stores, and may release a lock; but it can take one only where no other thread can
    /// be, such as that of a node that is not published yet.
    pub(super) fn exchange(&mut self, at: EventOrigin, addr: u64, old: &[u8], new: &[u8]) {
        self.fence(at);
        let Some(word) = self.place(at.thread, addr) else { return };
        let Some(id) = self.line_of(word) else { return };
        let bytes = new.len() as u64;
        let part = Part { word, first: 0, len: bytes.min(LINE - word.offset % LINE) };
        self.lines.get(id).hold(word.offset, new.get(..part.len as usize).unwrap_or_default());
        let (key, public) = (pm_key(word), self.lines.get(id).is_public(mask(word.offset, part.len)));
        let known = self.locks.find(key);
        let holds = known.is_some_and(|lock| self.threads.get(at.thread).held.holds(lock));
        let mut is_lock = known.is_some_and(|lock| self.locks.verdict(lock).0);
        if !is_lock && !holds {
            self.act(at.thread, Some(id));
        }
        let mut how = known.map_or(StoreMeans::Plain, StoreMeans::Store);
        if let (true, Some(old), Some(new)) = (self.options.infer_locks, number(old), number(new)) {
            let EventOrigin { thread, site, context, seq } = at;
            let step = match known {
                Some(lock) if public && !is_lock => self.locks.store(lock, thread, new),
                None if public => LockStep::Nothing,
                _ => {
                    how = StoreMeans::Store(self.locks.word(key, Some(word)));
                    self.mark_word(word);
                    let change = WordChange { thread, site, context, seq, old, new, bytes, discards: true };
                    self.locks.rmw(key, Some(word), change)
                }
            };
            self.step(at, step);
            is_lock |= known.is_some_and(|lock| self.locks.verdict(lock).0);
        }
        self.store_line(at, id, part, how);
        if !is_lock {
            self.publishes(at, word, new);
        }
    }

    /// A word of volatile memory changes the way locks do, or an attempt to change it fails.
    pub(super) fn atomic(&mut self, at: EventOrigin, addr: u64, old: &[u8], new: &[u8], how: AtomicKind) {
        let bytes = new.len() as u64;
        let (Some(old), Some(new)) = (number(old), number(new)) else { return };
        if !self.options.infer_locks {
            return;
        }
        let key = self.key(at.thread, addr, None);
        let EventOrigin { thread, site, context, seq } = at;
        let step = match (how, self.locks.find(key)) {
            (AtomicKind::Changed, _) if self.locks.has_room(key) => {
                let change = WordChange { thread, site, context, seq, old, new, bytes, discards: false };
                self.locks.rmw(key, None, change)
            }
            (AtomicKind::Failed, Some(lock)) => {
                self.locks.missed(lock, site);
                LockStep::Nothing
            }
            (AtomicKind::Found, Some(lock)) => self.locks.found(lock, thread, new),
            (AtomicKind::Stored, Some(lock)) => self.locks.store(lock, thread, new),
            _ => LockStep::Nothing,
        };
        self.step(at, step);
    }

    /// Marks a word that is used like a lock.
    pub(super) fn mark_word(&mut self, word: PmWord) {
        let Some(id) = self.line_of(word) else { return };
        let line = self.lines.get(id);
        let bit = mask(word.offset, 1);
        if line.atomics & bit == 0 {
            line.atomics |= bit;
            line.version = line.version.wrapping_add(1);
        }
    }
}
