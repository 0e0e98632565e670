//! What the engine knows of each cache line of PM: who has touched it, which stores are not persistent yet, which were
//! the last ones, and who has read them since.
//!
//! Accesses are kept with a mask of the bytes of the line, so that partial overlap needs no special case.

use pmvet_events::{ContextId, FileId, SiteId, ThreadId};

use super::clocks::{Clocks, Epoch};
use super::locksets::{LockId, SetId};
use super::reads::{LineRead, Maker, Reads};
use super::strings::LineContent;
use rustc_hash::FxHashMap as FastMap;

pub(crate) type LineIndex = u32;

/// Where an access was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct EventOrigin {
    pub(crate) thread: ThreadId,
    pub(crate) site: SiteId,
    pub(crate) context: ContextId,
    pub(crate) seq: u64,
}

/// A store whose bytes may still be in the cache only.
#[derive(Debug, Clone)]
pub(crate) struct Dirty {
    pub(crate) at: EventOrigin,
    pub(crate) bytes: u64,
    /// The storing thread's count of acquisitions, for the effective lockset.
    pub(crate) stamp: u32,
    pub(crate) locks: SetId,
    pub(crate) how: StoreMeans,
    /// No other thread had touched these bytes before.
    pub(crate) alone: bool,
    /// Another thread has touched them since.
    pub(crate) touched: bool,
    /// Other threads may come to them since: this is no initialisation, even if no other thread comes in time.
    pub(crate) published: bool,
    /// It is a pointer to an object that none of the thread's locks lies in.
    pub(crate) leads_elsewhere: bool,
    /// Loads by others that saw it.
    pub(crate) during: Vec<LineRead>,
}

impl Dirty {
    /// Its memory was allocated anew: no other thread has seen it since.
    fn begin_again(&mut self) {
        self.touched = false;
        self.published = false;
        self.during.clear();
    }

    /// A thread has acted on what it read of this store.
    pub(crate) fn acted_on(&mut self, read: LineRead) {
        let of = |r: &LineRead| (r.at.thread, r.at.site, r.at.context, r.locks);
        let same = |r: &LineRead| of(r) == of(&read);
        let most = self.during.len() >= MAX_PER_LINE;
        match self.during.iter_mut().find(|r| same(r)) {
            Some(known) => known.text |= read.text,
            None if most => {}
            None => self.during.push(read),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum StoreMeans {
    Plain,
    /// A locked read-modify-write of a word that is perhaps a lock.
    Atomic(LockId),
    /// A store to such a word: plain, or an exchange whose old value nobody uses.
    Store(LockId),
}

/// A store whose window is closed: persisted or overwritten.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    pub(crate) at: EventOrigin,
    pub(crate) bytes: u64,
    /// The effective lockset.
    pub(crate) locks: SetId,
    pub(crate) held: SetId,
    pub(crate) how: StoreMeans,
    /// It would count as initialisation, had no other thread come within the window.
    pub(crate) overlapped: bool,
    /// When the window ended.
    pub(crate) end: Epoch,
    /// When the storing thread itself made it persistent, if another thread had done that before.
    pub(crate) own_end: Option<Epoch>,
    pub(crate) fate: Fate,
    /// The fence or the store that ended it.
    pub(crate) ended_by: Option<EventOrigin>,
    /// No other thread has read it yet. If the memory turns out to be published only later, this was initialisation;
    /// until that is known, it is compared with nothing.
    pub(crate) waiting: bool,
    /// As in [`Dirty`].
    pub(crate) leads_elsewhere: bool,
    /// The count of the line's loads when it was compared with them.
    pub(crate) compared: u32,
}

impl Written {
    /// Whether all that `thread` does from now on comes after the store was persistent.
    pub(crate) fn is_over_for(&self, thread: ThreadId, clocks: &Clocks) -> bool {
        let over = |end: Epoch| clocks.is_before(end, thread);
        over(self.end) || self.own_end.is_some_and(over)
    }

    /// Whether the two differ only in threads, times and callers.
    fn is_like(&self, other: &Written) -> bool {
        (self.at.site, self.locks, self.held, self.how, self.fate)
            == (other.at.site, other.locks, other.held, other.how, other.fate)
    }
}

/// How the window of a store ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// A flush and a fence, or a system call, made it persistent.
    Persisted,
    /// Another store replaced its bytes first.
    Overwritten,
    /// Never, in this run.
    LeftInCache,
}

/// Who has touched a word, or has loaded it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum LineOwner {
    #[default]
    Nobody,
    One(ThreadId),
    /// Published: a second thread has touched the word.
    All,
}

impl LineOwner {
    /// `thread` comes to the word. Returns whether it is the second thread that does.
    fn note(&mut self, thread: ThreadId) -> bool {
        match *self {
            Self::Nobody => *self = Self::One(thread),
            Self::One(first) if first != thread => {
                *self = Self::All;
                return true;
            }
            _ => {}
        }
        false
    }

    fn is_other_than(self, thread: ThreadId) -> bool {
        self != Self::Nobody && self != Self::One(thread)
    }
}

/// Fields that every load looks at come first, so that they fit into one cache line of the host.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct TrackedLine {
    /// Changes whenever an access that was seen before may mean something new.
    pub(crate) version: u32,
    /// One bit per published word, so that most accesses need not look at the owners.
    public: u8,
    /// A bit for the first byte of each word that was the target of a read-modify-write.
    pub(crate) atomics: u64,
    pub(crate) dirty: Vec<Dirty>,
    /// Bytes that a thread has stored and persisted since another thread last touched them.
    fresh: Vec<(ThreadId, u64)>,
    pub(crate) reads: Reads,
    /// Bytes of stores whose thread released a lock before they were persistent.
    pub(crate) let_go: u64,
    pub(crate) written: Vec<Written>,
    pub(crate) owners: [LineOwner; 8],
    /// Who has loaded each word. `loaded` has a bit for each that several threads have.
    loaders: [LineOwner; 8],
    loaded: u8,
    /// Who has stored to each word last.
    pub(crate) makers: [Maker; 8],
    pub(crate) file: FileId,
    /// Of the first byte in the file.
    pub(crate) offset: u64,
    /// The number of the newest flush.
    pub(crate) flushed: u64,
    /// When bytes were last forgotten, and all bytes that ever were.
    born: (u64, u64),
    /// Locks under which the line was stored to lately.
    pub(crate) guards: [Option<LockId>; 4],
    pub(crate) content: LineContent,
    /// A thread has read what may be a string.
    pub(crate) holds_text: bool,
}

/// Loads and stores to remember per line.
pub(crate) const MAX_PER_LINE: usize = 64;
/// Threads to remember that do the same at the same place: enough that some of them differ from the thread on the other
/// side.
pub(crate) const MAX_ALIKE_THREADS: usize = 3;

/// Call paths to remember per instruction, all else being equal.
pub(crate) const MAX_ALIKE_PATHS: usize = 4;

/// Bytes `first..first + len` of a line.
pub(crate) fn mask(first: u64, len: u64) -> u64 {
    let ones = if len >= 64 { u64::MAX } else { (1 << len) - 1 };
    ones << (first & 63)
}

/// The same, as a bit for each word.
pub(crate) fn word_bits(bytes: u64) -> u8 {
    // Gathers each byte of the mask into its lowest bit, then those into one byte.
    let any = bytes | bytes >> 4;
    let any = any | any >> 2;
    let any = (any | any >> 1) & 0x0101_0101_0101_0101;
    (any.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

/// The words that a mask of bytes touches.
pub(crate) fn words(bytes: u64) -> impl Iterator<Item = usize> {
    (0..8).filter(move |word| bytes >> (word * 8) & 0xff != 0)
}

impl TrackedLine {
    /// Notes that `thread` touches these bytes.
    #[inline]
    pub(crate) fn touch(&mut self, thread: ThreadId, bytes: u64) {
        if word_bits(bytes) & !self.public != 0 {
            self.claim(thread, bytes);
        }
    }

    fn claim(&mut self, thread: ThreadId, bytes: u64) {
        let mut published = false;
        for word in words(bytes) {
            if self.owners[word].note(thread) {
                self.public |= 1 << word;
                published = true;
            }
        }
        if published {
            self.version = self.version.wrapping_add(1);
        }
    }

    /// Notes that `thread` loads these bytes.
    #[inline]
    pub(crate) fn load(&mut self, thread: ThreadId, bytes: u64) {
        if word_bits(bytes) & !self.loaded == 0 {
            return;
        }
        for word in words(bytes) {
            self.loaded |= u8::from(self.loaders[word].note(thread)) << word;
        }
    }

    /// Whether a thread other than this one has loaded any of these bytes.
    pub(crate) fn is_loaded_by_others(&self, thread: ThreadId, bytes: u64) -> bool {
        words(bytes).any(|word| self.loaders[word].is_other_than(thread))
    }

    /// Whether a thread other than this one has touched any of these bytes.
    pub(crate) fn is_touched_by_others(&self, thread: ThreadId, bytes: u64) -> bool {
        words(bytes).any(|word| self.owners[word].is_other_than(thread))
    }

    /// No thread has touched these newly allocated words, except `thread` if it filled them before the allocator handed
    /// them out, as constructors do.
    pub(crate) fn renew(&mut self, bytes: u64, thread: ThreadId) {
        let own = self.dirty.iter().filter(|d| d.at.thread == thread).fold(self.filled(thread), |own, d| own | d.bytes);
        for word in words(bytes) {
            let constructed = word_bits(own & bytes) >> word & 1 != 0;
            self.owners[word] = if constructed { LineOwner::One(thread) } else { LineOwner::Nobody };
            self.public &= !(1 << word);
            self.loaders[word] = LineOwner::Nobody;
            self.loaded &= !(1 << word);
        }
        self.dirty.iter_mut().filter(|d| d.at.thread == thread && d.bytes & !bytes == 0).for_each(Dirty::begin_again);
    }

    /// Whether a load by `thread` finds nothing that is under way: no store of another thread that is not persistent, or
    /// that may have been initialisation.
    #[inline]
    pub(crate) fn is_settled(&self, thread: ThreadId, bytes: u64) -> bool {
        self.fresh.iter().all(|&(by, fresh)| by == thread || fresh & bytes == 0)
            && self.dirty.iter().all(|d| d.at.thread == thread || d.bytes & bytes == 0)
    }

    /// The bytes of a load whose memory was not reallocated since.
    pub(crate) fn still(&self, read: &LineRead) -> u64 {
        if read.at.seq < self.born.0 { read.bytes & !self.born.1 } else { read.bytes }
    }

    /// Keeps a store whose window is closed, unless one like it is there. Returns its index if it has to be compared with
    /// the loads.
    pub(crate) fn note_written(&mut self, written: Written, clocks: &Clocks) -> Option<usize> {
        if written.waiting {
            self.fill(written.at.thread, written.bytes);
        }
        if written.held != written.locks {
            self.let_go |= written.bytes;
        }
        let mut alike = 0;
        let other_path = |w: &&Written| w.at.context != written.at.context && w.is_like(&written);
        let any_path = self.written.iter().filter(other_path).count() >= MAX_ALIKE_PATHS;
        let like = |w: &Written| (any_path || w.at.context == written.at.context) && w.is_like(&written);
        for (at, known) in self.written.iter_mut().enumerate().filter(|(_, w)| like(w)) {
            let covered = written.bytes & !known.bytes == 0;
            let same = (known.at.thread, known.end) == (written.at.thread, written.end);
            // A store can wait only if nothing is known of its bytes yet.
            if same && (known.waiting == written.waiting || covered) {
                known.bytes |= written.bytes;
                (known.at, known.ended_by, known.own_end) = (written.at, written.ended_by, written.own_end);
                if !covered {
                    known.compared = 0;
                    self.version = self.version.wrapping_add(1);
                }
                return (!known.waiting && known.compared != self.reads.seen()).then_some(at);
            }
            alike += usize::from(covered && !known.waiting && !clocks.is_before(known.end, written.at.thread));
        }
        if alike >= MAX_ALIKE_THREADS {
            return None;
        }
        if self.written.len() >= MAX_PER_LINE {
            self.written.remove(0);
        }
        let waits = written.waiting;
        self.written.push(written);
        self.version = self.version.wrapping_add(1);
        (!waits).then_some(self.written.len() - 1)
    }

    /// Notes what is stored. If a string becomes longer, loads that were seen before may mean something new.
    pub(crate) fn hold(&mut self, first: u64, value: &[u8]) {
        if self.content.store(first, value) && self.holds_text {
            self.version = self.version.wrapping_add(1);
        }
    }

    fn fill(&mut self, thread: ThreadId, bytes: u64) {
        match self.fresh.iter_mut().find(|(by, _)| *by == thread) {
            Some((_, fresh)) => *fresh |= bytes,
            None => self.fresh.push((thread, bytes)),
        }
    }

    /// The bytes that `thread` has filled and no other thread has seen since.
    pub(crate) fn filled(&self, thread: ThreadId) -> u64 {
        self.fresh.iter().find(|(by, _)| *by == thread).map_or(0, |&(_, fresh)| fresh)
    }

    /// `thread` touches the bytes of waiting stores, which decides what they were. Returns whether there were any.
    pub(crate) fn settle(&mut self, thread: ThreadId, bytes: u64) -> bool {
        if self.fresh.iter().all(|&(by, fresh)| by == thread || fresh & bytes == 0) {
            return false;
        }
        self.fresh.iter_mut().filter(|(by, _)| *by != thread).for_each(|(_, fresh)| *fresh &= !bytes);
        self.fresh.retain(|&(_, fresh)| fresh != 0);
        let mut any = false;
        for written in self.written.iter_mut().filter(|w| w.bytes & bytes != 0 && w.at.thread != thread) {
            any |= written.waiting;
            written.waiting = false;
        }
        if any {
            self.version = self.version.wrapping_add(1);
        }
        any
    }

    /// Forgets what was known of these bytes: the event with this number made them new memory.
    pub(crate) fn forget(&mut self, bytes: u64, seq: u64) {
        self.born = (seq, bytes | self.born.1);
        self.reads.forget(bytes);
        self.written.iter_mut().for_each(|w| w.bytes &= !bytes);
        self.written.retain(|w| w.bytes != 0);
        self.fresh.iter_mut().for_each(|(_, fresh)| *fresh &= !bytes);
        self.fresh.retain(|&(_, fresh)| fresh != 0);
        self.version = self.version.wrapping_add(1);
    }

    /// Other threads may come to these bytes from now on: what `thread` has stored there, and is not persistent, is no initialisation.
    pub(crate) fn publish(&mut self, thread: ThreadId, bytes: u64) {
        let stores = self.dirty.iter_mut().filter(|d| d.at.thread == thread && d.bytes & bytes != 0);
        stores.for_each(|dirty| dirty.published = true);
    }

    /// The store with this number, to these bytes alone, is a pointer to an object that none of its thread's locks lies in.
    pub(crate) fn lead_elsewhere(&mut self, seq: u64, bytes: u64) {
        let pointer = self.dirty.last_mut().filter(|d| d.at.seq == seq && d.bytes == bytes);
        pointer.into_iter().for_each(|dirty| dirty.leads_elsewhere = true);
    }

    /// Whether several threads have touched any of these bytes.
    pub(crate) fn is_public(&self, bytes: u64) -> bool {
        word_bits(bytes) & self.public != 0
    }

    #[inline]
    pub(crate) fn is_private(&self, thread: ThreadId, bytes: u64) -> bool {
        word_bits(bytes) & self.public == 0 && words(bytes).all(|word| self.owners[word] == LineOwner::One(thread))
    }

    pub(crate) fn guard(&mut self, lock: LockId) {
        if !self.guards.contains(&Some(lock)) {
            self.guards.rotate_right(1);
            self.guards[0] = Some(lock);
        }
    }
}

/// All lines, found by file and offset.
#[derive(Debug, Default)]
pub(crate) struct TrackedLines {
    lines: Vec<TrackedLine>,
    /// By file and page number: which of `pages`.
    index: FastMap<(u32, u64), u32>,
    /// For each line of a page, its index plus one; 0: not tracked.
    pages: Vec<[u32; 64]>,
    last: Option<((u32, u64), u32)>,
    /// Accesses to lines that are not tracked because there are too many.
    pub(crate) refused: u64,
    limit: usize,
}

impl TrackedLines {
    pub(crate) fn with_limit(limit: usize) -> Self {
        TrackedLines { limit, ..TrackedLines::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }

    pub(crate) fn get(&mut self, id: LineIndex) -> &mut TrackedLine {
        &mut self.lines[id as usize]
    }

    pub(crate) fn peek(&self, id: LineIndex) -> Option<&TrackedLine> {
        self.lines.get(id as usize)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = LineIndex> + use<> {
        0..self.lines.len() as LineIndex
    }

    /// The line at an offset, if it is tracked.
    pub(crate) fn find(&self, file: FileId, offset: u64) -> Option<LineIndex> {
        let key = (file.0, offset >> 12);
        let page = match self.last {
            Some((last, page)) if last == key => page,
            _ => *self.index.get(&key)?,
        };
        self.pages[page as usize][(offset >> 6 & 63) as usize].checked_sub(1)
    }

    pub(crate) fn enter(&mut self, file: FileId, offset: u64) -> Option<LineIndex> {
        let key = (file.0, offset >> 12);
        let page = match self.last {
            Some((last, page)) if last == key => page,
            _ => {
                let pages = &mut self.pages;
                let page = *self.index.entry(key).or_insert_with(|| {
                    pages.push([0; 64]);
                    pages.len() as u32 - 1
                });
                self.last = Some((key, page));
                page
            }
        };
        let slot = &mut self.pages[page as usize][(offset >> 6 & 63) as usize];
        if *slot == 0 {
            if self.lines.len() >= self.limit {
                self.refused += 1;
                return None;
            }
            self.lines.push(TrackedLine { file, offset: offset & !63, ..TrackedLine::default() });
            *slot = self.lines.len() as u32;
        }
        Some(*slot - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_bits_are_the_words() {
        for bytes in [0, 1, 0x80, 0xff00, 0x8000_0000_0000_0000, u64::MAX, 0x0100_0001_8000_0010] {
            assert_eq!(word_bits(bytes), words(bytes).fold(0, |bits, word| bits | 1 << word), "{bytes:x}");
        }
    }

    #[test]
    fn masks_end_with_the_line() {
        assert_eq!((mask(0, 64), mask(60, 4), mask(64, 8)), (u64::MAX, 0xf << 60, 0xff));
    }
}
