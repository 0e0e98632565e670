//! Flushes and fences, for the worst-case cache, in which a store is persistent only once it is flushed and fenced; and
//! what happens when the window of a store ends.

use pmvet_events::event::{FlushKind, LINE};
use pmvet_events::{FileId, ThreadId};

use super::clocks::Epoch;
use super::engine::{LocksetEngine, pm_key};
use super::lines::{Dirty, EventOrigin, Fate, LineIndex, Written};
use super::races::PairContext;
use super::reader::{ALWAYS, Flushed};
use super::reads::LineRead;
use super::spin::PmWord;

impl LocksetEngine {
    pub(super) fn flush(&mut self, at: EventOrigin, addr: u64, how: FlushKind) {
        let Some(word) = self.place(at.thread, addr) else { return };
        let Some(id) = self.lines.find(word.file, word.offset) else { return };
        let thread = self.threads.get(at.thread);
        thread.pending.iter_mut().filter(|p| p.line == id).for_each(|p| p.flushed = true);
        self.lines.get(id).flushed = at.seq;
        let flushed = Flushed { line: id, seq: at.seq, only: None };
        if how != FlushKind::Clflush {
            thread.flushes.push(flushed);
            return;
        }
        // `clflush` is ordered like a store: no later store of the thread can overtake it.
        thread.pending.retain(|p| p.line != id);
        thread.window = (thread.window + 1) % ALWAYS;
        self.persist(at, flushed);
    }

    pub(super) fn fence(&mut self, at: EventOrigin) {
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

    fn persist(&mut self, at: EventOrigin, flushed: Flushed) {
        let line = self.lines.get(flushed.line);
        let covered = |d: &Dirty| match flushed.only {
            Some(seq) => d.at.seq == seq,
            None => d.at.seq < flushed.seq,
        };
        let done: Vec<Dirty> = line.dirty.extract_if(.., |d| covered(d)).collect();
        done.into_iter().for_each(|dirty| self.close(flushed.line, dirty, Some(at), Fate::Persisted));
        let line = self.lines.get(flushed.line);
        // Stores of this thread that another thread had made persistent before: what is ordered after this persist is
        // ordered after both.
        let helped = |w: &&mut Written| {
            let mine = w.at.thread == at.thread && w.at.seq < flushed.seq && flushed.only.is_none();
            mine && w.end.thread != at.thread && w.fate == Fate::Persisted && w.own_end.is_none()
        };
        for written in line.written.iter_mut().filter(helped) {
            written.own_end = Some(self.clocks.now(at.thread));
        }
        let (file, first, mut atomics) = (line.file, line.offset, line.atomics);
        while atomics != 0 {
            let word = PmWord { file, offset: first + u64::from(atomics.trailing_zeros()) };
            atomics &= atomics - 1;
            if let Some(lock) = self.locks.find(pm_key(word)) {
                self.note_held(lock, at.seq, true);
            }
        }
    }

    pub(super) fn file_sync(&mut self, at: EventOrigin, file: FileId, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        let touched: Vec<LineIndex> = self.lines.ids().collect();
        for id in touched {
            let line = self.lines.get(id);
            if line.file == file && !line.dirty.is_empty() && (offset & !(LINE - 1)..end).contains(&line.offset) {
                self.persist(at, Flushed { line: id, seq: at.seq, only: None });
            }
        }
    }

    /// The window of a store is over.
    pub(super) fn close(&mut self, id: LineIndex, dirty: Dirty, by: Option<EventOrigin>, fate: Fate) {
        let line = self.lines.get(id);
        if self.options.init_removal && !dirty.published && line.is_private(dirty.at.thread, dirty.bytes) {
            return;
        }
        let owner = self.threads.get(dirty.at.thread);
        let locks = match fate {
            Fate::LeftInCache => Default::default(),
            _ => owner.held.since(dirty.stamp, &mut self.sets),
        };
        let end = by.map_or(Epoch::NEVER, |by| self.clocks.now(by.thread));
        self.races.stored(dirty.at, PmWord { file: line.file, offset: line.offset });
        let Dirty { at, bytes, how, during, touched, published, alone, leads_elsewhere, .. } = dirty;
        // If a store is never persistent, other threads always come in time, so no overlap was needed.
        let overlapped = alone && touched && !published && self.options.init_removal && fate != Fate::LeftInCache;
        // A store that its own thread overwrites before any other thread comes near is initialisation, too, as when an object is copied
        // and changed.
        let own = by.is_some_and(|by| by.thread == at.thread);
        let is_over = fate == Fate::Persisted || fate == Fate::Overwritten && own;
        let waiting = !touched && !published && self.options.allocators && is_over;
        let held = dirty.locks;
        let own_end = None;
        let written = Written {
            at,
            bytes,
            locks,
            held,
            how,
            overlapped,
            end,
            own_end,
            fate,
            ended_by: by,
            waiting,
            leads_elsewhere,
            compared: 0,
        };
        self.compare(id, &written, &during, true);
        if let Some(at) = self.lines.get(id).note_written(written, &self.clocks) {
            self.judge(id, at);
        }
    }

    pub(super) fn compare(&mut self, id: LineIndex, written: &Written, reads: &[LineRead], acted: bool) {
        let line = self.lines.get(id);
        let context = PairContext::new(line, &self.sets, &self.locks, &self.threads, &self.options);
        for read in reads {
            self.races.pair(written, read, acted, &context);
        }
    }

    /// Compares a store with all loads of its line by other threads.
    fn judge(&mut self, id: LineIndex, at: usize) {
        let line = self.lines.get(id);
        let context = PairContext::new(line, &self.sets, &self.locks, &self.threads, &self.options);
        let Some(written) = line.written.get_mut(at) else { return };
        written.compared = line.reads.seen();
        let (clocks, writer) = (&self.clocks, written.at.thread);
        for read in line.reads.iter().filter(|r| r.bytes & written.bytes != 0 && r.at.thread != writer) {
            let ordered = clocks.is_before(read.epoch, writer) || written.is_over_for(read.at.thread, clocks);
            if !ordered && !read.would_differ(written) {
                self.races.pair(written, read, false, &context);
            }
        }
    }

    /// Another thread comes near stores that no other thread had read: initialisation ends here.
    pub(super) fn settle(&mut self, id: LineIndex, thread: ThreadId, bytes: u64) {
        let line = self.lines.get(id);
        if line.settle(thread, bytes) {
            let seen = line.reads.seen();
            let stale = |w: &Written| w.compared != seen && !w.waiting;
            let late: Vec<usize> = (0..line.written.len()).filter(|&at| stale(&line.written[at])).collect();
            late.into_iter().for_each(|at| self.judge(id, at));
        }
    }

    pub(super) fn close_all(&mut self) {
        for id in self.lines.ids() {
            // No thread has the number `MAX`, so this settles everything.
            self.settle(id, ThreadId(u32::MAX), u64::MAX);
            let dirty = std::mem::take(&mut self.lines.get(id).dirty);
            for left in dirty {
                self.close(id, left, None, Fate::LeftInCache);
            }
        }
    }
}
