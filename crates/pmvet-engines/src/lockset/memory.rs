//! Loads, stores, flushes and fences: the cache at its worst, in which a store is persistent only once it is flushed and fenced.

use pmvet_events::event::{Event, FlushKind, LINE, StoreKind};
use pmvet_events::{FileId, ThreadId};

use super::clocks::Epoch;
use super::engine::{Engine, pm_key};
use super::lines::{At, Dirty, Fate, How, LineId, Owner, Read, Written, mask, words};
use super::locksets::{Hold, Mode};
use super::races::Context;
use super::reader::{ALWAYS, Flushed, Key, MAX_PENDING, Pending};
use super::spin::{Change, PmWord, Step};

/// The bytes of an access that are in one line.
#[derive(Debug, Clone, Copy)]
struct Part {
    word: PmWord,
    /// Which byte of the access comes first.
    first: usize,
    len: u64,
}

/// A thread that has read the same word this often, and did nothing else, waits for it to change.
const SPINS: u32 = 3;
/// Loads and, without `Options::neighbours`, stores to remember per line.
const MAX_PER_LINE: usize = 64;
/// Freshly initialised lines to remember per thread.
const MAX_FRESH: usize = 64;

fn number(bytes: &[u8]) -> Option<u64> {
    let mut word = [0; 8];
    word.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(word))
}

impl Engine {
    /// Cuts an access into lines.
    fn parts(&self, thread: ThreadId, addr: u64, len: u64) -> Vec<Part> {
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

    #[inline]
    pub(super) fn load(&mut self, event: &Event<'_>, addr: u64, size: u32) {
        self.stats.loads += 1;
        let thread = self.threads.get(event.thread);
        let (last_seq, last) = (thread.last_seq, thread.spinning);
        thread.last_seq = event.seq;
        let repeats = if (last.0, last.1) == (addr, event.site) { last.2 + 1 } else { 0 };
        thread.spinning = (addr, event.site, repeats);
        let key = Key {
            addr,
            size,
            site: event.site,
            context: event.context,
            locks: thread.held.set(&mut self.sets),
            epoch: self.clocks.now(event.thread).count,
        };
        if let Some((line, version)) = thread.cache.find(&key, thread.window)
            && self.lines.peek(line).is_some_and(|l| l.version == version)
            && repeats != SPINS
        {
            self.stats.repeated += 1;
            return;
        }
        let at = At { thread: event.thread, site: event.site, context: event.context, seq: event.seq };
        // Nearly always one line of one file; only then can the load be remembered.
        let parts = self.parts(at.thread, addr, size.into());
        for part in &parts {
            self.flags(at, part.word, repeats);
            self.load_line(at, *part, (parts.len() == 1).then_some(key), last_seq);
        }
    }

    /// A flag that a thread spins on orders it after the store that ends the wait.
    fn flags(&mut self, at: At, word: PmWord, repeats: u32) {
        if !self.options.edges.flags {
            return;
        }
        if let Some(Some(known)) = self.spins.get(&word) {
            let known = known.clone();
            self.spins.remove(&word);
            self.clocks.learn(at.thread, &known);
        } else if repeats == SPINS && self.locks.find(pm_key(word)).is_none() && self.spins.len() < 1024 {
            self.spins.insert(word, None);
        }
    }

    fn load_line(&mut self, at: At, part: Part, key: Option<Key>, last_seq: u64) {
        let Some(id) = self.lines.enter(part.word.file, part.word.offset) else { return };
        let bytes = mask(part.word.offset, part.len);
        let mut key = key;
        if self.lines.get(id).atomics & bytes != 0 {
            if let Some(lock) = self.locks.find(pm_key(part.word)) {
                self.look(at.thread, lock, last_seq);
            }
            // To look at a lock means something every time.
            key = None;
        }
        self.settle(id, at.thread, bytes);
        let line = self.lines.get(id);
        line.touch(at.thread, bytes);
        let thread = self.threads.get(at.thread);
        if self.options.init_removal && line.is_private(at.thread, bytes) {
            if let Some(key) = key {
                thread.cache.remember(key, id, line.version, ALWAYS);
            }
            return;
        }
        let mut saw = None;
        for dirty in line.dirty.iter_mut().filter(|d| d.bytes & bytes != 0 && d.at.thread != at.thread) {
            dirty.touched = true;
            saw = Some(dirty.at.seq);
        }
        let locks = thread.held.set(&mut self.sets);
        let read = Read { at, bytes, locks, epoch: self.clocks.now(at.thread), saw };
        self.same_lock(id, read);
        let line = self.lines.get(id);
        let thread = self.threads.get(at.thread);
        if let Some(key) = key {
            let window = if self.options.reader_window { thread.window } else { ALWAYS };
            thread.cache.remember(key, id, line.version, window);
        }
        if !self.options.reader_window {
            return self.commit(id, read);
        }
        let key = key.unwrap_or_default();
        thread.pending.push(Pending {
            line: id,
            read,
            next: None,
            more: Vec::new(),
            overwritten: Vec::new(),
            flushed: false,
            key,
        });
        if thread.pending.len() > MAX_PENDING {
            let old: Vec<_> = thread.pending.drain(..MAX_PENDING / 2).collect();
            old.into_iter().for_each(|pending| self.commit_pending(at.thread, pending));
        }
    }

    /// The reader is inside a lock that the writer had taken, and given back, before its store was persistent. The lock
    /// says that the writer is done: whatever the reader does in there, before or after the load, relies on that.
    fn same_lock(&mut self, id: LineId, read: Read) {
        let line = self.lines.get(id);
        if read.locks == Default::default() || line.dirty.is_empty() && line.written.is_empty() {
            return;
        }
        let (sets, thread) = (&self.sets, read.at.thread);
        let shares = |lock: u32| sets.get(read.locks).iter().any(|h| h.lock == lock);
        for dirty in line.dirty.iter_mut().filter(|d| d.bytes & read.bytes != 0 && d.at.thread != thread) {
            let owner = &self.threads.get(dirty.at.thread).held;
            if sets.get(dirty.locks).iter().any(|h| shares(h.lock) && !owner.holds(h.lock)) {
                dirty.during.push(read);
            }
        }
        let given_back = |w: &&Written| {
            let kept = sets.get(w.locks);
            w.held != w.locks && sets.get(w.held).iter().any(|h| shares(h.lock) && !kept.contains(h))
        };
        let unordered = |w: &&Written| w.at.thread != thread && !self.clocks.is_before(w.end, thread);
        let racy = line.written.iter().filter(|w| w.bytes & read.bytes != 0).filter(unordered).filter(given_back);
        let racy: Vec<Written> = racy.map(|w| Written { waiting: None, ..w.clone() }).collect();
        for written in &racy {
            self.compare(id, written, &[read], false);
        }
    }

    /// A thread reads a word that is perhaps a lock. If the lock is not in the hands of somebody whose stores the thread
    /// has just read, those were persistent before the lock was given back.
    fn look(&mut self, reader: ThreadId, lock: u32, last_seq: u64) {
        let thread = self.threads.get(reader);
        if thread.held.holds(lock) || thread.pending.is_empty() {
            return;
        }
        let Some(info) = self.locks.get(lock) else { return };
        for holder in info.word.holders.iter().filter(|h| h.thread != reader && h.seq <= last_seq) {
            let unsettled = thread.pending.iter().any(|p| {
                let dirty = self.lines.peek(p.line).map_or(&[][..], |line| &line.dirty);
                dirty.iter().any(|d| d.at.thread == holder.thread && d.bytes & p.read.bytes != 0)
            });
            if unsettled {
                return;
            }
        }
        self.later(reader, Hold { lock, mode: Mode::Exclusive });
    }

    /// A lock that a thread takes, or finds free, after it has read something.
    pub(super) fn later(&mut self, thread: ThreadId, hold: Hold) {
        let thread = self.threads.get(thread);
        thread.window = (thread.window + 1) % ALWAYS;
        for pending in &mut thread.pending {
            let guards = self.lines.peek(pending.line).map_or(&[][..], |line| &line.guards);
            pending.later(hold, guards);
        }
    }

    /// The thread does something that can outlast a crash: what it has read by now counts. Not so what it has read of the line
    /// that it stores to, since the line keeps the order of its stores.
    pub(super) fn act(&mut self, thread: ThreadId, line: Option<LineId>) {
        let state = self.threads.get(thread);
        if state.pending.is_empty() {
            return;
        }
        state.window = (state.window + 1) % ALWAYS;
        let mut pending = std::mem::take(&mut state.pending);
        self.late_looks(&mut pending);
        let mut kept = Vec::new();
        for load in pending.drain(..) {
            if Some(load.line) == line {
                kept.push(load);
            } else {
                self.commit_pending(thread, load);
            }
        }
        // Keeps the room of the larger list for the next loads.
        pending.append(&mut kept);
        self.threads.get(thread).pending = pending;
    }

    /// Words that turned out to be locks only after they were looked at.
    fn late_looks(&self, pending: &mut [Pending]) {
        for at in 1..pending.len() {
            let Some(line) = self.lines.peek(pending[at].line) else { continue };
            let atomics = line.atomics & pending[at].read.bytes;
            if atomics == 0 {
                continue;
            }
            let word = PmWord { file: line.file, offset: line.offset + u64::from(atomics.trailing_zeros()) };
            let Some(lock) = self.locks.find(pm_key(word)) else { continue };
            let hold = Hold { lock, mode: Mode::Exclusive };
            let (earlier, look) = pending.split_at_mut(at);
            for p in earlier.iter_mut().filter(|p| p.line == look[0].line && !p.more.contains(&hold)) {
                p.more.push(hold);
            }
        }
    }

    fn commit_pending(&mut self, thread: ThreadId, load: Pending) {
        let mut read = load.read;
        let overwritten = load.overwritten;
        if load.next.is_none() && load.more.is_empty() {
            self.threads.get(thread).cache.confirm(&load.key);
        } else {
            let later: Vec<_> = load.next.into_iter().chain(load.more).collect();
            read.locks = self.sets.with(read.locks, &later);
        }
        for written in &overwritten {
            self.compare(load.line, written, &[read], false);
        }
        self.commit(load.line, read);
    }

    /// Compares a load with the stores before it and keeps it for the stores after it.
    fn commit(&mut self, id: LineId, read: Read) {
        let line = self.lines.get(id);
        // What was stored after the load and before the act may belong to another life of the memory.
        let read = Read { bytes: line.unchanged(read.bytes, read.at.seq), ..read };
        if read.bytes == 0 {
            return;
        }
        for dirty in line.dirty.iter_mut().filter(|d| d.bytes & read.bytes != 0 && d.at.thread != read.at.thread) {
            dirty.during.push(read);
        }
        let context = Context {
            sets: &self.sets,
            locks: &self.locks,
            file: line.file,
            offset: line.offset,
            predict_lock_free: self.options.lock_free,
        };
        for written in line.written.iter().filter(|w| w.bytes & read.bytes != 0) {
            if !self.clocks.is_before(written.end, read.at.thread) {
                self.races.pair(written, &read, false, &context);
            }
        }
        let same = |r: &&mut Read| {
            (r.at.thread, r.at.site, r.locks, r.epoch) == (read.at.thread, read.at.site, read.locks, read.epoch)
        };
        match line.reads.iter_mut().find(same) {
            Some(known) => known.bytes |= read.bytes,
            None => {
                if line.reads.len() >= MAX_PER_LINE {
                    line.reads.remove(0);
                }
                line.reads.push(read);
            }
        }
    }

    pub(super) fn store(&mut self, at: At, addr: u64, value: &[u8], how: StoreKind) {
        for part in self.parts(at.thread, addr, value.len() as u64) {
            let Some(id) = self.lines.enter(part.word.file, part.word.offset) else { continue };
            let stored = value.get(part.first..part.first + part.len as usize).unwrap_or_default();
            let (lock, meant) = self.store_to_word(at, id, part, stored);
            if !meant {
                self.act(at.thread, Some(id));
            }
            self.store_line(at, id, part, lock.map_or(How::Plain, How::Atomic));
            if how == StoreKind::NonTemporal {
                self.threads.get(at.thread).flushes.push(Flushed { line: id, seq: at.seq, only: Some(at.seq) });
            }
            if part.first == 0 && !meant {
                self.publishes(at, part.word, stored);
            }
        }
    }

    /// A plain store to a word that is perhaps a lock, or beside one; the word, and whether it was given back.
    fn store_to_word(&mut self, at: At, id: LineId, part: Part, stored: &[u8]) -> (Option<u32>, bool) {
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
            if step != Step::Nothing {
                self.step(at, step);
                return (Some(hold.lock), true);
            }
            if self.locks.is_serving(hold.lock, part.word.offset) {
                return (Some(hold.lock), true);
            }
        }
        (None, false)
    }

    fn store_line(&mut self, at: At, id: LineId, part: Part, how: How) {
        let bytes = mask(part.word.offset, part.len);
        self.settle(id, at.thread, bytes);
        self.keep_overwritten(at.thread, id, bytes);
        self.overwrite(at, id, bytes);
        if !self.spins.is_empty()
            && let Some(waiting) = self.spins.get_mut(&part.word)
        {
            *waiting = Some(self.clocks.publish(at.thread));
        }
        let line = self.lines.get(id);
        line.touch(at.thread, bytes);
        line.version = line.version.wrapping_add(1);
        words(bytes).for_each(|word| line.stored[word] = at.seq);
        let mut before = Vec::new();
        for read in line.reads.iter_mut().filter(|r| r.bytes & bytes != 0) {
            if read.at.thread != at.thread && !self.clocks.is_before(read.epoch, at.thread) {
                before.push(*read);
            }
            if self.options.neighbours {
                read.bytes &= !bytes;
            }
        }
        line.reads.retain(|r| r.bytes != 0);
        let held = &mut self.threads.get(at.thread).held;
        for hold in held.iter().take(4) {
            line.guard(hold.lock);
        }
        let (stamp, locks) = (held.stamp(), held.set(&mut self.sets));
        line.dirty.push(Dirty { at, bytes, stamp, locks, how, touched: false, before, during: Vec::new() });
    }

    /// A thread stores over what it has read and not acted on yet: what it read from must not be forgotten.
    fn keep_overwritten(&mut self, thread: ThreadId, id: LineId, bytes: u64) {
        let line = self.lines.get(id);
        for load in self.threads.get(thread).pending.iter_mut().filter(|p| p.line == id) {
            // Whole words, as in `Line::unchanged`.
            let common = load.read.bytes & words(bytes).fold(0, |all, word| all | 0xff << (word * 8));
            let from = line.written.iter().filter(|w| w.bytes & common != 0 && w.at.thread != thread);
            let from = from.filter(|w| w.at.seq <= load.read.at.seq && !self.clocks.is_before(w.end, thread));
            load.overwritten.extend(from.map(|w| Written { waiting: None, ..w.clone() }));
        }
    }

    /// Ends the windows of what a new store covers, and forgets the stores it replaces.
    fn overwrite(&mut self, at: At, id: LineId, bytes: u64) {
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
        let line = self.lines.get(id);
        if !self.options.neighbours {
            return;
        }
        let mut replaced = Vec::new();
        for written in line.written.iter_mut().filter(|w| w.bytes & bytes != 0) {
            if written.bytes & !bytes == 0 && written.waiting.is_some() {
                replaced.push(written.clone());
            }
            written.bytes &= !bytes;
        }
        line.written.retain(|w| w.bytes != 0);
        for mut written in replaced {
            let before = written.waiting.take().unwrap_or_default();
            self.compare(id, &written, &before, false);
        }
    }

    pub(super) fn rmw(&mut self, at: At, addr: u64, old: &[u8], new: &[u8], stored: bool) {
        self.fence(at);
        let place = self.place(at.thread, addr);
        let key = self.key(at.thread, addr, place);
        self.consult(at.site);
        let lock = self.locks.word(key, place);
        let mut meant = false;
        if let (true, Some(old), Some(new)) = (stored && self.options.infer_locks, number(old), number(new)) {
            let At { thread, site, context, seq } = at;
            let step = self.locks.rmw(key, place, Change { thread, site, context, seq, old, new });
            meant = self.step(at, step) || self.locks.verdict(lock).0;
        } else if !stored {
            self.locks.missed(lock, at.site);
        }
        let Some(word) = place else { return };
        self.mark_word(word);
        let Some(id) = self.line_of(word) else { return };
        let part = Part { word, first: 0, len: (new.len() as u64).min(LINE - word.offset % LINE) };
        if !meant {
            // The word itself is data: it is read, and written if the comparison held.
            let last_seq = self.threads.get(at.thread).last_seq;
            self.load_line(at, part, None, last_seq);
        }
        if stored {
            if !meant {
                self.act(at.thread, Some(id));
            }
            self.store_line(at, id, part, How::Atomic(lock));
        }
    }

    /// A word is used as locks are. Who has read its line, and then the word, has looked at the lock before anybody could
    /// know that it is one.
    pub(super) fn mark_word(&mut self, word: PmWord) {
        let Some(id) = self.line_of(word) else { return };
        let bit = mask(word.offset, 1);
        let line = self.lines.get(id);
        if line.atomics & bit != 0 {
            return;
        }
        line.atomics |= bit;
        line.version = line.version.wrapping_add(1);
        let Some(lock) = self.locks.find(pm_key(word)) else { return };
        let lookers: Vec<ThreadId> = line.reads.iter().filter(|r| r.bytes & bit != 0).map(|r| r.at.thread).collect();
        for read in line.reads.iter_mut().filter(|r| lookers.contains(&r.at.thread)) {
            read.locks = self.sets.with(read.locks, &[Hold { lock, mode: Mode::Exclusive }]);
        }
    }

    pub(super) fn flush(&mut self, at: At, addr: u64, how: FlushKind) {
        let Some(word) = self.place(at.thread, addr) else { return };
        let Some(id) = self.lines.find(word.file, word.offset) else { return };
        let thread = self.threads.get(at.thread);
        thread.pending.iter_mut().filter(|p| p.line == id).for_each(|p| p.flushed = true);
        let flushed = Flushed { line: id, seq: at.seq, only: None };
        if how != FlushKind::Clflush {
            thread.flushes.push(flushed);
            return;
        }
        // Ordered like a store: nothing of the thread can overtake it.
        thread.pending.retain(|p| p.line != id);
        thread.window = (thread.window + 1) % ALWAYS;
        self.persist(at, flushed);
    }

    pub(super) fn fence(&mut self, at: At) {
        let thread = self.threads.get(at.thread);
        if thread.flushes.is_empty() {
            return;
        }
        let mut flushes = std::mem::take(&mut thread.flushes);
        if !thread.pending.is_empty() {
            thread.pending.retain(|p| !p.flushed);
            thread.window = (thread.window + 1) % ALWAYS;
        }
        for flushed in flushes.drain(..) {
            self.persist(at, flushed);
        }
        self.threads.get(at.thread).flushes = flushes;
    }

    fn persist(&mut self, at: At, flushed: Flushed) {
        let line = self.lines.get(flushed.line);
        let covered = |d: &Dirty| match flushed.only {
            Some(seq) => d.at.seq == seq,
            None => d.at.seq < flushed.seq,
        };
        let done: Vec<Dirty> = line.dirty.extract_if(.., |d| covered(d)).collect();
        done.into_iter().for_each(|dirty| self.close(flushed.line, dirty, Some(at), Fate::Persisted));
        let line = self.lines.get(flushed.line);
        let (file, first, mut atomics) = (line.file, line.offset, line.atomics);
        while atomics != 0 {
            let word = PmWord { file, offset: first + u64::from(atomics.trailing_zeros()) };
            atomics &= atomics - 1;
            if let Some(lock) = self.locks.find(pm_key(word)) {
                self.note_held(lock, at.seq, true);
            }
        }
    }

    pub(super) fn file_sync(&mut self, at: At, file: FileId, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        let touched: Vec<LineId> = self.lines.ids().collect();
        for id in touched {
            let line = self.lines.get(id);
            if line.file == file && !line.dirty.is_empty() && (offset & !(LINE - 1)..end).contains(&line.offset) {
                self.persist(at, Flushed { line: id, seq: at.seq, only: None });
            }
        }
    }

    /// The window of a store is over.
    fn close(&mut self, id: LineId, dirty: Dirty, by: Option<At>, fate: Fate) {
        let line = self.lines.get(id);
        line.version = line.version.wrapping_add(1);
        if self.options.init_removal && line.is_private(dirty.at.thread, dirty.bytes) {
            return;
        }
        let owner = self.threads.get(dirty.at.thread);
        let locks = match fate {
            Fate::LeftInCache => Default::default(),
            _ => owner.held.since(dirty.stamp, &mut self.sets),
        };
        let end = by.map_or(Epoch::NEVER, |by| self.clocks.now(by.thread));
        let Dirty { at, bytes, how, before, during, touched, .. } = dirty;
        let mut written =
            Written { at, bytes, locks, held: dirty.locks, how, end, fate, ended_by: by, waiting: None };
        self.compare(id, &written, &during, true);
        if touched || !self.options.allocators || fate != Fate::Persisted {
            self.compare(id, &written, &before, false);
        } else {
            written.waiting = Some(before);
            let owner = self.threads.get(at.thread);
            if !owner.fresh.contains(&id) {
                if owner.fresh.len() >= MAX_FRESH {
                    owner.fresh.remove(0);
                }
                owner.fresh.push(id);
            }
        }
        let line = self.lines.get(id);
        if fate == Fate::Overwritten && self.options.neighbours {
            return;
        }
        let same = |w: &Written| (w.at.site, w.locks, w.bytes, w.at.thread, w.how) == (at.site, locks, bytes, at.thread, how);
        line.written.retain(|w| !same(w));
        if line.written.len() >= MAX_PER_LINE {
            line.written.remove(0);
        }
        line.written.push(written);
    }

    fn compare(&mut self, id: LineId, written: &Written, reads: &[Read], acted: bool) {
        let line = self.lines.get(id);
        let context = Context {
            sets: &self.sets,
            locks: &self.locks,
            file: line.file,
            offset: line.offset,
            predict_lock_free: self.options.lock_free,
        };
        for read in reads {
            self.races.pair(written, read, acted, &context);
        }
    }

    /// Another thread comes near stores that nobody had looked at: if they were initialisation, it is over.
    fn settle(&mut self, id: LineId, thread: ThreadId, bytes: u64) {
        let line = self.lines.get(id);
        let mut ready = Vec::new();
        for written in line.written.iter_mut().filter(|w| w.bytes & bytes != 0 && w.at.thread != thread) {
            if let Some(before) = written.waiting.take() {
                ready.push((written.clone(), before));
            }
        }
        for (written, before) in ready {
            self.compare(id, &written, &before, false);
        }
    }

    /// A store of a pointer to lines that the thread has filled, and that nobody else has seen since: what was stored there
    /// was initialisation, even if the memory had another use before.
    fn publishes(&mut self, at: At, word: PmWord, stored: &[u8]) {
        let thread = self.threads.get(at.thread);
        if stored.len() != 8 || !self.options.allocators || thread.fresh.is_empty() {
            return;
        }
        let Some(value) = number(stored).filter(|&value| value >= LINE) else { return };
        let target = self.place(at.thread, value).unwrap_or(PmWord { file: word.file, offset: value });
        let mut offset = target.offset & !(LINE - 1);
        while let Some(id) = self.lines.find(target.file, offset) {
            let thread = self.threads.get(at.thread);
            let Some(fresh) = thread.fresh.iter().position(|&f| f == id) else { return };
            thread.fresh.remove(fresh);
            let line = self.lines.get(id);
            line.written.retain(|w| w.waiting.is_none() || w.at.thread != at.thread);
            line.version = line.version.wrapping_add(1);
            offset += LINE;
        }
    }

    pub(super) fn renew(&mut self, thread: ThreadId, addr: u64, len: u64) {
        for part in self.parts(thread, addr, len) {
            let Some(id) = self.lines.find(part.word.file, part.word.offset) else { continue };
            let bytes = mask(part.word.offset, part.len);
            let line = self.lines.get(id);
            words(bytes).for_each(|word| line.owners[word] = Owner::Nobody);
            line.reads.iter_mut().for_each(|r| r.bytes &= !bytes);
            line.reads.retain(|r| r.bytes != 0);
            line.written.iter_mut().for_each(|w| w.bytes &= !bytes);
            line.written.retain(|w| w.bytes != 0);
            line.dirty.iter_mut().for_each(|d| d.before.clear());
            line.version = line.version.wrapping_add(1);
        }
    }

    pub(super) fn close_all(&mut self) {
        for id in self.lines.ids() {
            let line = self.lines.get(id);
            let (dirty, written) = (std::mem::take(&mut line.dirty), std::mem::take(&mut line.written));
            for mut written in written {
                if let Some(before) = written.waiting.take() {
                    self.compare(id, &written, &before, false);
                }
            }
            for left in dirty {
                self.close(id, left, None, Fate::LeftInCache);
            }
        }
    }
}
