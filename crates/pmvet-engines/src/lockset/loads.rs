//! Loads: what a thread reads, and what becomes of it when the thread acts.

use pmvet_events::ThreadId;
use pmvet_events::event::Event;

use super::engine::{LocksetEngine, pm_key};
use super::lines::{Dirty, EventOrigin, LineIndex, StoreMeans, Written, mask, word_bits, words};
use super::locksets::{Hold, HoldMode};
use super::races::PairContext;
use super::reader::{ALWAYS, LoadKey, MAX_PENDING, PendingLoad};
use super::reads::LineRead;
use super::rechecks::Rechecked;
use super::spin::PmWord;
use super::stores::Part;
use super::strings::WORD;

/// A thread that has read the same word this often, without doing anything else, waits for it to change.
const SPINS: u32 = 3;
/// Words to follow that threads spin on.
const MAX_SPINS: usize = 1024;

impl LocksetEngine {
    #[inline]
    pub(super) fn load(&mut self, event: &Event<'_>, addr: u64, size: u32) {
        self.stats.loads += 1;
        let thread = self.threads.get(event.thread);
        if let Some(first) = thread.recent.note(addr)
            && !thread.pending.is_empty()
            && let Some(word) = self.place(event.thread, addr)
        {
            self.threads.get(event.thread).recheck(first, pm_key(word));
        }
        let thread = self.threads.get(event.thread);
        let (last_seq, last) = (thread.last_seq, thread.spinning);
        let repeats = if (last.0, last.1) == (addr, event.site) { last.2 + 1 } else { 0 };
        thread.spinning = (addr, event.site, repeats);
        let key = LoadKey {
            addr,
            size,
            site: event.site,
            context: event.context,
            locks: thread.held.set(),
            epoch: self.clocks.now(event.thread).count,
        };
        if let Some((line, version)) = thread.cache.find(&key, thread.window)
            && self
                .lines
                .peek(line)
                .is_some_and(|l| l.version == version && l.is_settled(event.thread, mask(addr, size.into())))
            && repeats != SPINS
        {
            self.stats.repeated += 1;
            thread.glance(line, word_bits(mask(addr, size.into())));
            return;
        }
        let at = EventOrigin { thread: event.thread, site: event.site, context: event.context, seq: event.seq };
        // Nearly always one line of one file; only then can the load be remembered.
        if let Some(part) = self.one_part(at.thread, addr, size.into()) {
            self.flags(at, part.word, repeats);
            let text = if size > WORD { self.text(part, &mut false) } else { u64::MAX };
            return self.load_line(at, part, text, Some(key), last_seq);
        }
        let mut ended = false;
        for part in self.parts(at.thread, addr, size.into()) {
            self.flags(at, part.word, repeats);
            let text = if size > WORD { self.text(part, &mut ended) } else { u64::MAX };
            self.load_line(at, part, text, None, last_seq);
        }
    }

    /// A flag that a thread spins on orders it after the store that ends the wait.
    fn flags(&mut self, at: EventOrigin, word: PmWord, repeats: u32) {
        if !self.options.edges.flags {
            return;
        }
        if let Some(Some(known)) = self.spins.get(&word) {
            let known = known.clone();
            self.spins.remove(&word);
            self.clocks.learn(at.thread, &known);
        } else if repeats == SPINS && self.locks.find(pm_key(word)).is_none() && self.spins.len() < MAX_SPINS {
            self.spins.insert(word, None);
        }
    }

    /// `text`: the bytes that matter if it reads a string.
    pub(super) fn load_line(&mut self, at: EventOrigin, part: Part, text: u64, key: Option<LoadKey>, last_seq: u64) {
        let Some(id) = self.lines.enter(part.word.file, part.word.offset) else { return };
        let bytes = mask(part.word.offset, part.len);
        let text = text & bytes;
        let mut key = key;
        if self.lines.get(id).atomics & bytes != 0 {
            if let Some(lock) = self.locks.find(pm_key(part.word)) {
                self.look(at.thread, lock, last_seq);
            }
            // Every look at a lock has a meaning of its own, so the load must not be cached.
            key = None;
        } else {
            self.threads.get(at.thread).glance(id, word_bits(bytes));
        }
        self.settle(id, at.thread, bytes);
        let line = self.lines.get(id);
        line.touch(at.thread, bytes);
        line.load(at.thread, bytes);
        let thread = self.threads.get(at.thread);
        thread.retry(id, at.site, bytes);
        if self.options.init_removal && line.is_private(at.thread, bytes) {
            if let Some(key) = key {
                thread.cache.remember(key, id, line.version, ALWAYS);
            }
            return;
        }
        let mut saw = None;
        let mut doubted = false;
        for dirty in line.dirty.iter_mut().filter(|d| d.bytes & bytes != 0 && d.at.thread != at.thread) {
            dirty.touched = true;
            saw = Some(dirty.at.seq);
            let unseen = |hold: &Hold| self.locks.get(hold.lock).is_some_and(|l| !l.named && l.place.is_none());
            doubted |= self.sets.get(dirty.locks).iter().any(unseen);
        }
        let locks = thread.held.set();
        // The same load was seen before, with no more protection than now, and nothing has been stored since: it adds
        // nothing.
        let epoch = self.clocks.now(at.thread);
        if saw.is_none() && line.atomics & bytes == 0 && line.reads.knows(&at, locks, epoch, [bytes, text]) {
            if let Some(key) = key {
                thread.cache.remember(key, id, line.version, ALWAYS);
            }
            return;
        }
        let from = words(bytes).next().map_or(Default::default(), |word| line.makers[word]);
        let read = LineRead {
            at,
            bytes,
            text,
            locks,
            epoch,
            saw,
            from,
            followed: false,
            looked: 0,
            rechecked: Rechecked::default(),
        };
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
        if let Some(last) = thread.pending.last_mut().filter(|last| last.line == id && last.is_like(&read)) {
            last.read.bytes |= bytes;
            last.read.text |= text;
            return;
        }
        let key = key.unwrap_or_default();
        let number = thread.recent.newest();
        thread.doubts |= doubted;
        thread.pending.push(PendingLoad {
            line: id,
            read,
            next: None,
            more: Vec::new(),
            flushed: false,
            key,
            number,
            doubted,
        });
        if thread.pending.len() > MAX_PENDING {
            let old: Vec<_> = thread.pending.drain(..MAX_PENDING / 2).collect();
            old.into_iter().for_each(|pending| self.commit_pending(at.thread, pending));
        }
    }

    /// The reader holds a lock that the writer released before its store was persistent. The free lock says that the
    /// writer is done, and all that the reader does under the lock, before or after the load, relies on that.
    fn same_lock(&mut self, id: LineIndex, read: LineRead) {
        let line = self.lines.get(id);
        if read.locks == Default::default() || line.dirty.is_empty() && line.let_go & read.bytes == 0 {
            return;
        }
        let (sets, thread) = (&self.sets, read.at.thread);
        let shares = |lock: u32| sets.get(read.locks).iter().any(|h| h.lock == lock);
        for dirty in line.dirty.iter_mut().filter(|d| d.bytes & read.bytes != 0 && d.at.thread != thread) {
            let owner = &self.threads.get(dirty.at.thread).held;
            if sets.get(dirty.locks).iter().any(|h| shares(h.lock) && !owner.holds(h.lock)) {
                dirty.acted_on(read);
            }
        }
        let given_back = |w: &&Written| {
            let kept = sets.get(w.locks);
            w.held != w.locks && sets.get(w.held).iter().any(|h| shares(h.lock) && !kept.contains(h))
        };
        let unordered = |w: &&Written| w.at.thread != thread && !w.is_over_for(thread, &self.clocks);
        let racy = line.written.iter().filter(|w| w.bytes & read.bytes != 0).filter(unordered).filter(given_back);
        let racy: Vec<Written> = racy.cloned().collect();
        for written in &racy {
            self.compare(id, written, &[read], false);
        }
    }

    /// A thread reads a word that is perhaps a lock. If no thread whose stores it has just read holds the lock, those
    /// stores were persistent before the lock was released.
    fn look(&mut self, reader: ThreadId, lock: u32, last_seq: u64) {
        let thread = self.threads.get(reader);
        if thread.held.holds(lock) || thread.pending.is_empty() {
            return;
        }
        let Some(info) = self.locks.get(lock) else { return };
        let mut unsettled = false;
        for holder in info.word.holders.iter().filter(|h| h.thread != reader && h.seq <= last_seq) {
            for pending in &mut thread.pending {
                let dirty = self.lines.peek(pending.line).map_or(&[][..], |line| &line.dirty);
                // Not the lock words themselves, which stay in the cache.
                let read = |d: &Dirty| d.at.thread == holder.thread && d.bytes & pending.read.bytes != 0;
                if dirty.iter().any(|d| read(d) && d.how == StoreMeans::Plain) {
                    (pending.doubted, thread.doubts, unsettled) = (true, true, true);
                    // The versions that it compares differ.
                    pending.read.rechecked = Rechecked::default();
                }
            }
        }
        if unsettled {
            return;
        }
        self.later(reader, Hold { lock, mode: HoldMode::Exclusive });
    }

    /// Notes a lock that a thread takes, or finds free, after it has read something.
    pub(super) fn later(&mut self, thread: ThreadId, hold: Hold) {
        let thread = self.threads.get(thread);
        thread.window = (thread.window + 1) % ALWAYS;
        for pending in &mut thread.pending {
            let guards = self.lines.peek(pending.line).map_or(&[][..], |line| &line.guards);
            pending.later(hold, guards);
        }
    }

    /// The thread does something that can outlast a crash, so what it has read so far counts. Loads of the line that it stores
    /// to do not count, since the stores to one line stay in order.
    pub(super) fn act(&mut self, thread: ThreadId, line: Option<LineIndex>) {
        let state = self.threads.get(thread);
        if state.pending.is_empty() {
            return;
        }
        state.window = (state.window + 1) % ALWAYS;
        let mut pending = std::mem::take(&mut state.pending);
        let mut kept = Vec::new();
        for load in pending.drain(..) {
            if Some(load.line) == line {
                kept.push(load);
            } else {
                self.commit_pending(thread, load);
            }
        }
        // Keeps the allocation of the larger list for the next loads.
        pending.append(&mut kept);
        self.threads.get(thread).pending = pending;
    }

    fn commit_pending(&mut self, thread: ThreadId, load: PendingLoad) {
        let mut read = load.read;
        if load.next.is_none() && load.more.is_empty() {
            self.threads.get(thread).cache.confirm(&load.key);
        } else {
            let later = load.next.into_iter().chain(load.more);
            read.locks = later.fold(read.locks, |set, hold| self.sets.with(set, hold));
            read.followed = true;
        }
        self.commit(load.line, read);
    }

    /// Compares a load with the stores before it and keeps it for the stores after it.
    pub(super) fn commit(&mut self, id: LineIndex, mut read: LineRead) {
        let line = self.lines.get(id);
        read.bytes = line.still(&read);
        if read.bytes == 0 {
            return;
        }
        // Excludes what was stored between the load and the act of its thread.
        let read_from =
            |d: &&mut Dirty| d.bytes & read.bytes != 0 && d.at.thread != read.at.thread && d.at.seq <= read.at.seq;
        for dirty in line.dirty.iter_mut().filter(read_from) {
            dirty.acted_on(read);
        }
        if !line.reads.note(read, &self.clocks) {
            return;
        }
        let context = PairContext::new(line, &self.sets, &self.locks, &self.threads, &self.options);
        for written in line.written.iter().filter(|w| w.bytes & read.bytes != 0 && !w.waiting) {
            if read.would_differ(written) {
                continue;
            }
            if !written.is_over_for(read.at.thread, &self.clocks) {
                self.races.pair(written, &read, false, &context);
            }
        }
    }
}
