//! The engine's view of a thread: its locks, its pending flushes, and what it has read but not acted on yet.
//!
//! The paper counts a load at the moment of the load. But a thread that has read an unpersisted value can still make it
//! persistent itself, or wait until the writer has, before it *acts*: before it stores to another line of PM, or ends.
//! PMRace draws the same line between an inconsistency candidate and an inconsistency, which has durable side effects.
//! So loads wait here until their thread acts, and meanwhile
//!
//! * a load is forgotten if its thread flushes the line and fences;
//! * a load is also protected by locks that its thread takes afterwards, or finds not held by the writer: by then the
//!   writer's critical section was over, and so was the persist in it;
//! * a store to the same line is no act: no crash keeps it and loses an earlier store to the line.
//!
//! What it misses: acts that leave no event, such as an answer sent to a client between the load and the lock; and readers that
//! look at the writer's lock but do not care what they find, unless that was observed.

use pmvet_events::{ContextId, SiteId, ThreadId};

use super::lines::LineIndex;
use super::locksets::{HeldList, Hold, SetId};
use super::reads::LineRead;
use super::rechecks::RecentLoads;

/// The state of one thread.
#[derive(Debug, Default)]
pub(crate) struct ThreadView {
    pub(crate) held: HeldList,
    /// Lines flushed since the last fence, and single non-temporal stores.
    pub(crate) flushes: Vec<Flushed>,
    pub(crate) pending: Vec<PendingLoad>,
    /// Changes when loads that were already seen must be processed again.
    pub(crate) window: u32,
    /// Number of the thread's newest event that is no load. Loads have no exact position: they came after it, but how long
    /// after is unknown.
    pub(crate) last_seq: u64,
    /// The load that the last events all were, if so: its address, its instruction, and how often.
    pub(crate) spinning: (u64, SiteId, u32),
    pub(crate) recent: RecentLoads,
    /// Whether one of `pending` is doubted.
    pub(crate) doubts: bool,
    pub(crate) cache: LoadCache,
    /// Number of its process.
    pub(crate) process: u32,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Flushed {
    pub(crate) line: LineIndex,
    pub(crate) seq: u64,
    /// Only this store, which bypassed the cache.
    pub(crate) only: Option<u64>,
}

/// A load that its thread has not acted on yet.
#[derive(Debug, Clone)]
pub(crate) struct PendingLoad {
    pub(crate) line: LineIndex,
    pub(crate) read: LineRead,
    /// The lock taken or looked at next, whichever it is; `more` has later ones that are known to guard this line.
    pub(crate) next: Option<Hold>,
    pub(crate) more: Vec<Hold>,
    /// The same thread has flushed the line since; its next fence settles the load.
    pub(crate) flushed: bool,
    pub(crate) key: LoadKey,
    /// Its number among the loads of its thread.
    pub(crate) number: u64,
    /// A writer was at work on what it read, and the thread may have noticed. It does not count if the thread repeats it.
    pub(crate) doubted: bool,
}

/// Locks to keep in `more`: enough for what happens between a load and the act it leads to.
const MAX_LATER_LOCKS: usize = 4;
/// Bound on pending loads, for threads that only read. When it is reached, half of them count as acted on.
pub(crate) const MAX_PENDING: usize = 256;

/// How many pending loads to search for the same line.
const GLANCE: usize = 16;

impl ThreadView {
    /// The thread reads these words of a line.
    #[inline]
    pub(crate) fn glance(&mut self, line: LineIndex, words: u8) {
        for pending in self.pending.iter_mut().rev().take(GLANCE).filter(|p| p.line == line) {
            pending.read.looked |= words;
        }
    }

    /// Notes for all loads since number `first` that the thread reads a word again that it read there.
    pub(crate) fn recheck(&mut self, first: u64, word: u64) {
        let between = self.pending.iter_mut().rev().take_while(|p| p.number > first);
        between.for_each(|pending| pending.read.rechecked.insert(word));
    }

    /// If the thread repeats a load that it had doubts about, the doubtful one does not count.
    #[inline]
    pub(crate) fn retry(&mut self, line: LineIndex, site: SiteId, bytes: u64) {
        if self.doubts {
            let again =
                |p: &PendingLoad| p.doubted && (p.line, p.read.at.site) == (line, site) && p.read.bytes & bytes != 0;
            self.pending.retain(|p| !again(p));
            self.doubts = self.pending.iter().any(|p| p.doubted);
        }
    }
}

impl PendingLoad {
    /// Whether another load of the line is just one more step of the same loop.
    pub(crate) fn is_like(&self, read: &LineRead) -> bool {
        let of = |r: &LineRead| (r.at.site, r.at.context, r.locks, r.epoch, r.saw, r.from);
        of(&self.read) == of(read)
            && self.next.is_none()
            && self.more.is_empty()
            && !self.flushed
            && !self.doubted
            && self.read.rechecked.is_empty()
    }

    /// The thread takes `hold`, or finds it free.
    pub(crate) fn later(&mut self, hold: Hold, guards: &[Option<u32>]) {
        if self.next.is_none() {
            self.next = Some(hold);
        } else if self.more.len() < MAX_LATER_LOCKS && guards.contains(&Some(hold.lock)) && !self.more.contains(&hold) {
            self.more.push(hold);
        }
    }
}

/// What makes two loads the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LoadKey {
    pub(crate) addr: u64,
    pub(crate) size: u32,
    pub(crate) site: SiteId,
    pub(crate) context: ContextId,
    pub(crate) locks: SetId,
    pub(crate) epoch: u32,
}

/// Loads that need not be looked at again as long as nothing has changed: most loads of most programs.
#[derive(Debug)]
pub(crate) struct LoadCache {
    entries: Box<[Entry]>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    key: LoadKey,
    line: LineIndex,
    version: u32,
    window: u32,
}

/// Stands for a window: the entry is valid in every window.
pub(crate) const ALWAYS: u32 = u32::MAX;
const CACHE: usize = 512;

impl Default for LoadCache {
    fn default() -> Self {
        LoadCache { entries: vec![Entry::default(); CACHE].into() }
    }
}

impl LoadCache {
    fn slot(key: &LoadKey) -> usize {
        let mixed = (key.addr ^ u64::from(key.site.0) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 52) as usize % CACHE
    }

    /// The line of a load that was seen before, with the version that the line must still have.
    #[inline]
    pub(crate) fn find(&self, key: &LoadKey, window: u32) -> Option<(LineIndex, u32)> {
        let entry = &self.entries[Self::slot(key)];
        let hit = entry.key == *key && (entry.window == window || entry.window == ALWAYS);
        hit.then_some((entry.line, entry.version))
    }

    pub(crate) fn remember(&mut self, key: LoadKey, line: LineIndex, version: u32, window: u32) {
        self.entries[Self::slot(&key)] = Entry { key, line, version, window };
    }

    /// A load that was remembered for one window is valid in all.
    pub(crate) fn confirm(&mut self, key: &LoadKey) {
        let entry = &mut self.entries[Self::slot(key)];
        if entry.key == *key {
            entry.window = ALWAYS;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.entries.fill(Entry::default());
    }
}

/// All threads, by number.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    threads: Vec<Option<Box<ThreadView>>>,
}

impl Threads {
    #[inline]
    pub(crate) fn get(&mut self, id: ThreadId) -> &mut ThreadView {
        let index = id.0 as usize;
        if self.threads.len() <= index {
            self.threads.resize_with(index + 1, || None);
        }
        self.threads[index].get_or_insert_default()
    }

    /// A thread that has done something.
    pub(crate) fn known(&self, id: ThreadId) -> Option<&ThreadView> {
        self.threads.get(id.0 as usize)?.as_deref()
    }

    pub(crate) fn ids(&self) -> Vec<ThreadId> {
        let alive = self.threads.iter().enumerate().filter(|(_, t)| t.is_some());
        alive.map(|(index, _)| ThreadId(index as u32)).collect()
    }

    pub(crate) fn clear_caches(&mut self) {
        self.threads.iter_mut().flatten().for_each(|t| t.cache.clear());
    }
}
