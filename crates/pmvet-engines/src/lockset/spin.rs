//! Locks: those that the program takes by calling a lock function, and those inferred from the trace.
//!
//! A spin lock leaves a pattern on its word: a read-modify-write takes it, a store or another read-modify-write by the same
//! thread releases it, and in between no other thread succeeds. Every successful read-modify-write counts as an acquisition
//! until proven otherwise, so that the first critical section of a run is protected too; the final verdict comes at the end
//! of the run ([`KnownLocks::verdict`]). The engine recognises
//!
//! * plain locks: `free → held`, then `held → free`, by compare-and-swap or exchange; test-and-test-and-set is the same with
//!   loads before. A third state that waiters set, as in Rust's and Go's mutexes, does no harm;
//! * version locks: the word does not return to the old value but moves on, as in optimistic lock coupling. Which of its
//!   changes take the lock becomes clear when another thread makes one, or an instruction that takes other locks does;
//! * reader-writer locks: readers count up and down by one, a writer takes the word from its free value;
//! * ticket locks: a word is incremented, and its neighbour in the line is set to the ticket plus one.
//!
//! What it misses: locks whose two words lie in different lines; MCS and CLH queues. A release by a plain store to
//! volatile memory is seen late, at the thread's next access to PM, and only for the last four words it took; other such
//! locks count as held until another thread takes them. A reference count that is taken and dropped around an access
//! looks like a reader's share of a lock; since two readers never exclude each other, that hides nothing, once two
//! threads at a time have held any word that is incremented in the same place.

use std::collections::{BTreeMap, BTreeSet};

use pmvet_events::{ContextId, FileId, SiteId, ThreadId};

use super::inferred::LockShape;
use super::locksets::{HoldMode, LockId};
use super::races::LockName;
use rustc_hash::{FxHashMap as FastMap, FxHashSet as FastSet};

/// The bits of a lock's key that hold its address, if it is not in PM.
const ADDRESS: u64 = (1 << 48) - 1;

/// A word of a PM file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PmWord {
    /// The PM file.
    pub file: FileId,
    /// Offset of its first byte in the file.
    pub offset: u64,
}

/// Where locks are taken: the first few call paths of each.
pub type Takers = BTreeMap<LockName, Vec<(SiteId, ContextId)>>;

#[derive(Debug, Default)]
pub(crate) struct KnownLocks {
    locks: Vec<Lock>,
    by_key: FastMap<u64, LockId>,
    sites: FastMap<SiteId, SiteRecord>,
    /// Locks, each with a thread that does not hold it after all.
    pub(crate) dropped: Vec<(LockId, ThreadId)>,
    /// Sites known to take locks, as they have taken several words that are; filled at the end.
    lock_sites: FastSet<SiteId>,
    /// Acquire sites that the user has declared to take locks; `denied`: not to take locks.
    pub(crate) declared: FastSet<SiteId>,
    pub(crate) denied: FastSet<SiteId>,
    /// Words inside locks that functions take: only those functions know what they mean.
    pub(crate) insides: FastSet<LockId>,
    /// Version locks that only a library takes: the program's readers do not know their versions.
    pub(crate) of_libraries: FastSet<LockId>,
    /// Whether sites will be denied or declared at the end of the run: until then no inferred lock is certain (`denies`)
    /// or hopeless (`declares`).
    denies: bool,
    declares: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Lock {
    address: u64,
    pub(crate) place: Option<PmWord>,
    /// Taken by a function that is known to take locks.
    pub(crate) named: bool,
    pub(crate) word: Word,
}

/// What is known of a word that was the target of read-modify-writes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Word {
    pub(crate) free: u64,
    pub(crate) holders: Vec<Holder>,
    pub(crate) acquired: u64,
    /// How often its holder released it, back to the value it was taken from.
    pub(super) returned: u64,
    /// How often its holder released it, to another value.
    pub(super) moved_on: u64,
    /// How often another thread changed it while it was held.
    pub(super) disturbed: u64,
    /// Several threads have held it at a time.
    pub(super) counts: bool,
    /// How many of these releases decremented it.
    counted_down: u64,
    /// Offset of the neighbour that says which ticket is served.
    pub(super) serving: Option<u64>,
    pub(crate) sites: Vec<SiteId>,
    /// Where it was taken, with the calls that led there.
    taken: Vec<(SiteId, ContextId)>,
    pub(super) threads: Vec<ThreadId>,
    /// The value that the newest read-modify-write left.
    latest: u64,
    /// Its size.
    pub(crate) bytes: u64,
    /// Another thread that has changed the word while it seemed to be held, from the value that its holder had put there.
    rival: Option<Holder>,
    /// A change that seemed to take it turned out to release it.
    turned: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Holder {
    pub(crate) thread: ThreadId,
    pub(crate) mode: HoldMode,
    /// What the holder found and what it put there.
    pub(crate) found: u64,
    pub(crate) put: u64,
    pub(crate) seq: u64,
    pub(crate) site: SiteId,
    pub(crate) context: ContextId,
    /// Taken by a plain store, which does not check the old value.
    stored: bool,
}

impl Holder {
    fn new(c: WordChange, mode: HoldMode) -> Self {
        let WordChange { thread, site, context, seq, old: found, new: put, discards: stored, .. } = c;
        Self { thread, mode, found, put, seq, site, context, stored }
    }

    /// Whether the new value is the old one with a mark, as when a version lock is taken: a bit, a step, or the owner's number in the lower
    /// bits. A marked pointer that replaces another pointer is data that is not persistent yet.
    fn marks(&self) -> bool {
        let (bits, step) = (self.found ^ self.put, self.put.wrapping_sub(self.found));
        bits.is_power_of_two() || step.is_power_of_two() || bits < 1 << OWNER_BITS && self.found & bits == 0
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct SiteRecord {
    returned: u64,
    /// How often it released a word.
    gave_back: u64,
    /// How often it took a word that was never released.
    lost: u64,
}

/// What an access to a word means for locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockStep {
    Nothing,
    Acquire { lock: LockId, mode: HoldMode, instead_of: Option<ThreadId> },
    Release { lock: LockId, holder: ThreadId },
}

/// A read-modify-write that changed a word.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WordChange {
    pub(crate) thread: ThreadId,
    pub(crate) site: SiteId,
    pub(crate) context: ContextId,
    pub(crate) seq: u64,
    pub(crate) old: u64,
    pub(crate) new: u64,
    pub(crate) bytes: u64,
    /// Nobody uses the old value.
    pub(crate) discards: bool,
}

/// A site takes no locks if it took this many words that were never released, and none that was.
const HOPELESS: u64 = 8;

/// The lower bits of a version lock may hold the number of its owner.
const OWNER_BITS: u32 = 16;

/// A site is known to take locks once this many words that it took were released.
const SURE: u64 = 4;

/// Bound on the words to track, so that reference counts do not use up all memory. Locks beyond it are not recognised.
const MAX_WORDS: usize = 1 << 20;

/// Call paths to remember for each lock.
const MAX_TAKEN: usize = 8;

impl KnownLocks {
    pub(crate) fn new(denies: bool, declares: bool) -> Self {
        KnownLocks { denies, declares, ..KnownLocks::default() }
    }

    pub(crate) fn has_room(&self, key: u64) -> bool {
        self.locks.len() < MAX_WORDS || self.by_key.contains_key(&key)
    }

    pub(crate) fn get(&self, lock: LockId) -> Option<&Lock> {
        self.locks.get(lock as usize)
    }

    /// What to call a lock in a report.
    pub(crate) fn name(&self, lock: LockId) -> Option<LockName> {
        let lock = self.get(lock)?;
        Some(lock.place.map_or(LockName::Memory(lock.address), LockName::Pm))
    }

    /// Where each of these locks is taken.
    pub(crate) fn takers(&self, wanted: &BTreeSet<LockName>) -> Takers {
        let mut takers = Takers::new();
        for (id, lock) in self.all() {
            if let Some(name) = self.name(id).filter(|name| wanted.contains(name)) {
                takers.entry(name).or_default().extend(&lock.word.taken);
            }
        }
        takers
    }

    pub(crate) fn find(&self, key: u64) -> Option<LockId> {
        self.by_key.get(&key).copied()
    }

    fn enter(&mut self, key: u64, place: Option<PmWord>, named: bool) -> LockId {
        let locks = &mut self.locks;
        let id = *self.by_key.entry(key).or_insert_with(|| {
            locks.push(Lock { address: key & ADDRESS, place, named, word: Word::default() });
            locks.len() as LockId - 1
        });
        locks[id as usize].named |= named;
        id
    }

    /// A word that is the target of a read-modify-write, whatever that means.
    pub(crate) fn word(&mut self, key: u64, place: Option<PmWord>) -> LockId {
        self.enter(key, place, false)
    }

    /// A lock function was called for the lock.
    pub(crate) fn named(&mut self, key: u64, place: Option<PmWord>, change: WordChange) -> LockId {
        let id = self.enter(key, place, true);
        let lock = &mut self.locks[id as usize];
        lock.word.note_taken(change, HoldMode::Exclusive);
        id
    }

    /// Names of words that turned out not to be locks, such as counters.
    pub(crate) fn names_of_no_locks(&self) -> FastSet<LockName> {
        let names = |real: bool| self.all().filter(move |&(id, _)| self.verdict(id).0 == real);
        let locks: FastSet<LockName> = names(true).filter_map(|(id, _)| self.name(id)).collect();
        // Words of two processes may share a name.
        names(false).filter_map(|(id, _)| self.name(id)).filter(|name| !locks.contains(name)).collect()
    }

    pub(crate) fn named_released(&mut self, lock: LockId, thread: ThreadId) {
        if let Some(lock) = self.locks.get_mut(lock as usize) {
            lock.word.holders.retain(|h| h.thread != thread);
        }
    }

    /// A thread's held list had to drop an inferred lock that was never released.
    pub(crate) fn forgotten(&mut self, lock: LockId, thread: ThreadId) {
        let Some(lock) = self.locks.get_mut(lock as usize) else { return };
        if let Some(at) = lock.word.holders.iter().position(|h| h.thread == thread) {
            let holder = lock.word.holders.swap_remove(at);
            self.sites.entry(holder.site).or_default().lost += 1;
        }
    }

    pub(crate) fn rmw(&mut self, key: u64, place: Option<PmWord>, c: WordChange) -> LockStep {
        let lock = self.enter(key, place, false);
        let site = self.sites.get(&c.site).copied().unwrap_or_default();
        let hopeless = site.returned == 0 && site.lost >= HOPELESS && !self.declares;
        let only_holder = match &self.locks[lock as usize].word.holders[..] {
            [holder] => Some(*holder),
            _ => None,
        };
        let takes = only_holder.is_some_and(|holder| holder.site != c.site && self.takes(c.site, holder.site));
        let Lock { named, word, .. } = &mut self.locks[lock as usize];
        word.bytes = word.bytes.max(c.bytes);
        // An attempt that failed: its value was read a moment later, when the holder may already have released the word.
        if c.old == c.new {
            return LockStep::Nothing;
        }
        let left = std::mem::replace(&mut word.latest, c.new);
        // Code inside a lock function, whose call is reported anyway.
        if *named {
            return LockStep::Nothing;
        }
        let counts_up = c.new == c.old.wrapping_add(1);
        let mode = if counts_up { HoldMode::Counted } else { HoldMode::Exclusive };
        if let Some(at) = word.holders.iter().position(|h| h.thread == c.thread) {
            // It released the word in a way that no event shows, and takes it again.
            if place.is_none() && word.holders.len() == 1 && c.old == word.free && c.new == word.holders[at].put {
                word.returned += 1;
                word.note_taken(c, mode);
                return LockStep::Acquire { lock, mode, instead_of: Some(c.thread) };
            }
            return self.change_by_holder(lock, at, Some(c), c.new);
        }
        if word.serving.is_some() && counts_up {
            word.note_taken(c, HoldMode::Exclusive);
            return LockStep::Acquire { lock, mode: HoldMode::Exclusive, instead_of: None };
        }
        let Some(first) = word.holders.first().copied() else {
            // A waiter marks a lock that is free by now, or the word changed unseen: this does not acquire it from the free
            // value.
            if word.is_lock() && c.old != word.free && !counts_up || hopeless && !word.is_lock() {
                // Other words that this instruction takes may show what it does.
                word.tried_at(c.site);
                return LockStep::Nothing;
            }
            if !word.is_lock() {
                word.free = c.old;
            }
            word.note_taken(c, mode);
            return LockStep::Acquire { lock, mode, instead_of: None };
        };
        // It was released in a way that no event shows, or a store had set it up before any thread took it.
        let unseen = place.is_none() && c.old != left && word.holders.len() == 1;
        if counts_up && !unseen && word.holders.iter().all(|h| h.mode == HoldMode::Counted) && c.old != word.free {
            word.note_taken(c, HoldMode::Counted);
            return LockStep::Acquire { lock, mode: HoldMode::Counted, instead_of: None };
        }
        let set_up = first.stored && c.old == first.put && word.holders.len() == 1;
        if c.old == word.free || unseen || set_up {
            word.holders.clear();
            if c.old == word.free {
                word.returned += 1;
            } else if set_up {
                word.mistook();
            } else {
                word.moved_on += 1;
            }
            word.free = c.old;
            word.note_taken(c, mode);
            return LockStep::Acquire { lock, mode, instead_of: Some(first.thread) };
        }
        if c.new == word.free {
            word.holders.swap_remove(0);
            return LockStep::Release { lock, holder: first.thread };
        }
        if word.returned == 0 && !word.turned && word.holders.len() == 1 {
            // No thread can take a lock that is held. So the holder had released it or set it up; this is certain if the
            // instruction that comes next takes other locks.
            if c.old == first.put && (word.moved_on > 0 || takes) {
                word.turn(c.old);
                word.note_taken(c, mode);
                return LockStep::Acquire { lock, mode, instead_of: Some(first.thread) };
            }
            // One change might be a waiter's mark, but a waiter does not release the lock.
            let mine = word.rival.filter(|r| r.thread == c.thread && r.put == c.old && r.site != c.site);
            if mine.is_some() {
                word.turn(c.new);
                word.moved_on = 1;
                return LockStep::Release { lock, holder: first.thread };
            }
            word.rival = Some(Holder::new(c, mode)).filter(|_| c.old == first.put);
        }
        word.disturbed += 1;
        LockStep::Nothing
    }

    /// Whether the instruction is known to take locks and, as far as is known, not to release them.
    fn takes(&self, site: SiteId, rather_than: SiteId) -> bool {
        let record = |site| self.sites.get(&site).copied().unwrap_or_default();
        let (this, other) = (record(site), record(rather_than));
        this.returned >= SURE && this.returned / 2 > this.gave_back && this.returned / 2 > other.returned
    }

    /// The holder at `at` stores to the word, or makes the change `by` atomically.
    fn change_by_holder(&mut self, lock: LockId, at: usize, by: Option<WordChange>, new: u64) -> LockStep {
        let old = by.map(|change| change.old);
        let holder = self.locks[lock as usize].word.holders[at];
        let takes = by.filter(|change| change.site != holder.site && self.takes(change.site, holder.site));
        let word = &mut self.locks[lock as usize].word;
        if let Some(change) = takes.filter(|c| c.new != word.free && c.new != holder.put && word.holders.len() == 1) {
            // An instruction that takes locks releases none: the word had been set up or released before.
            word.free = change.old;
            if word.returned + word.moved_on == 0 {
                word.mistook();
            }
            word.note_taken(change, HoldMode::Exclusive);
            return LockStep::Acquire { lock, mode: HoldMode::Exclusive, instead_of: Some(holder.thread) };
        }
        let counted = holder.mode == HoldMode::Counted;
        word.counted_down += u64::from(counted && old.is_some_and(|old| new == old.wrapping_sub(1)));
        // The instruction that takes a lock does not release it, and a version lock has only one holder when it is
        // released.
        let again = by.is_some_and(|change| change.site == holder.site) || word.holders.len() > 1;
        let counter = counted && again && old.is_some_and(|old| new == old.wrapping_add(1));
        if counter {
            // The same thread increments again: this word is a counter.
            word.disturbed += 2;
        } else if counted
            && (word.holders.len() > 1 || word.free != 0)
            && old.is_some_and(|old| new == old.wrapping_sub(1))
        {
            // Other threads keep their share; or, if the count does not start at 0, it counts references.
            word.counts = true;
            word.returned += 1;
        } else if new == word.free {
            word.returned += 1;
            // The lock is free: threads that seemed to have a share were waiting for it.
            for other in word.holders.iter().filter(|h| h.thread != holder.thread) {
                word.disturbed += 1;
                self.dropped.push((lock, other.thread));
            }
            word.counts &= word.holders.len() == 1;
            word.holders.retain(|h| h.thread == holder.thread);
        } else if new != holder.put {
            // If the instruction that took the word also moves it on, it is a counter. A word that is replaced as a whole is data.
            let is_data = by.is_some_and(|change| change.site == holder.site) || !holder.marks();
            word.moved_on += u64::from(!is_data);
            word.disturbed += 2 * u64::from(is_data);
            word.free = new;
        } else {
            return LockStep::Nothing;
        }
        word.holders.retain(|h| h.thread != holder.thread);
        if !counter {
            self.sites.entry(holder.site).or_default().returned += 1;
            if let Some(change) = by {
                self.sites.entry(change.site).or_default().gave_back += 1;
            }
        }
        LockStep::Release { lock, holder: holder.thread }
    }

    /// A plain store to a word that has seen read-modify-writes.
    pub(crate) fn store(&mut self, lock: LockId, thread: ThreadId, value: u64) -> LockStep {
        let Some(Lock { named, word, .. }) = self.locks.get_mut(lock as usize) else { return LockStep::Nothing };
        if *named {
            return LockStep::Nothing;
        }
        let before = std::mem::replace(&mut word.latest, value);
        if let Some(at) = word.holders.iter().position(|h| h.thread == thread) {
            return self.change_by_holder(lock, at, None, value);
        }
        match word.holders.first().copied() {
            // Another thread releases the lock: a handover.
            Some(holder) if value == word.free => {
                word.holders.swap_remove(0);
                LockStep::Release { lock, holder: holder.thread }
            }
            // The thread that took the word although another seemed to hold it releases it: the other had only set it up.
            Some(holder) if word.rival.is_some_and(|r| r.thread == thread && r.put == before && value != r.put) => {
                word.turn(value);
                word.moved_on = 1;
                LockStep::Release { lock, holder: holder.thread }
            }
            Some(_) => LockStep::Nothing,
            None => {
                word.free = value;
                LockStep::Nothing
            }
        }
    }

    /// The thread had changed a word of volatile memory, and now finds `value` there. If no read-modify-write left that
    /// value, it was a plain store of its own. A thread that holds the word no more has read what another one put there,
    /// perhaps before a third one took it.
    pub(crate) fn found(&mut self, lock: LockId, thread: ThreadId, value: u64) -> LockStep {
        let is_its_own = |word: &Word| word.latest != value && word.holders.iter().any(|h| h.thread == thread);
        match self.get(lock) {
            Some(known) if is_its_own(&known.word) => self.store(lock, thread, value),
            _ => LockStep::Nothing,
        }
    }

    /// A store of `value` at `place`, beside a word that `thread` has incremented: perhaps the end of a ticket's turn.
    pub(crate) fn serves(&mut self, lock: LockId, thread: ThreadId, place: PmWord, value: u64) -> LockStep {
        let Some(Lock { place: Some(at), word, .. }) = self.locks.get_mut(lock as usize) else {
            return LockStep::Nothing;
        };
        if at.file != place.file || at.offset / 64 != place.offset / 64 || at.offset == place.offset {
            return LockStep::Nothing;
        }
        // A word that was released is no ticket, whatever is stored beside it.
        if word.serving.is_none() && word.returned + word.moved_on > 0 {
            return LockStep::Nothing;
        }
        // Drawing a ticket increments the word by one. The very first one proves nothing: many words go from 0 to 1.
        let drawn = |h: &Holder| h.put == h.found.wrapping_add(1) && h.found > 0;
        let served = |h: &Holder| h.thread == thread && drawn(h) && h.put == value;
        let Some(turn) = word.holders.iter().position(served) else { return LockStep::Nothing };
        let holder = word.holders.swap_remove(turn);
        word.serving = Some(place.offset);
        word.returned += 1;
        self.sites.entry(holder.site).or_default().returned += 1;
        LockStep::Release { lock, holder: thread }
    }

    /// Whether the word is a lock, as far as is known by now; and whether two threads that incremented it exclude each
    /// other.
    pub(crate) fn verdict(&self, lock: LockId) -> (bool, bool) {
        let is_inside = self.insides.contains(&lock);
        let Some(lock) = self.get(lock) else { return (false, false) };
        if lock.named {
            return (true, true);
        }
        let word = &lock.word;
        let denied = word.sites.iter().any(|s| self.denied.contains(s));
        let declared = word.sites.iter().any(|s| self.declared.contains(s));
        // A lock that was never released still counts as a lock if it is taken where other locks are.
        let usual = word.sites.iter().any(|s| self.lock_sites.contains(s)) && word.disturbed == 0;
        let is_lock = declared || usual || word.is_lock();
        (is_lock && !denied && !is_inside, !word.counts || word.serving.is_some())
    }

    /// Draws the final conclusions at the end of the run.
    pub(crate) fn conclude(&mut self) {
        let mut locks_taken: FastMap<SiteId, u32> = FastMap::default();
        for (_, lock) in self.all().filter(|(id, l)| !l.named && l.word.is_lock() && !self.insides.contains(id)) {
            lock.word.sites.iter().for_each(|&site| *locks_taken.entry(site).or_default() += 1);
        }
        self.lock_sites.extend(locks_taken.into_iter().filter(|&(_, taken)| taken > 1).map(|(site, _)| site));
        // If several threads at a time held one word of a site, its other words that are counted down are shared, too,
        // even if only one thread held them.
        let words = || self.locks.iter().map(|lock| &lock.word);
        let counting: FastSet<SiteId> =
            words().filter(|word| word.counts).flat_map(|word| word.sites.clone()).collect();
        for word in self.locks.iter_mut().map(|lock| &mut lock.word).filter(|word| word.is_counted_down()) {
            word.counts |= word.sites.iter().any(|site| counting.contains(site));
        }
    }

    /// A compare-and-swap that failed.
    pub(crate) fn missed(&mut self, lock: LockId, site: SiteId) {
        if let Some(lock) = self.locks.get_mut(lock as usize) {
            lock.word.tried_at(site);
        }
    }

    /// Whether it is a version lock in volatile memory. Readers that do not take it compare versions before and after, in loads that are not
    /// reported: that is what versions are for.
    pub(crate) fn is_checked_unseen(&self, lock: LockId) -> bool {
        let is_version = self.get(lock).is_some_and(Lock::is_volatile_version);
        is_version && !self.of_libraries.contains(&lock) && self.verdict(lock).0
    }

    /// Whether the word is a lock beyond doubt: later evidence will not change it.
    pub(crate) fn is_certain(&self, lock: LockId) -> bool {
        let certain = |l: &Lock| l.named || !self.denies && l.word.returned >= 4 && l.word.disturbed == 0;
        self.get(lock).is_some_and(certain) && self.verdict(lock).0
    }

    /// The same for two threads that have only incremented it: they may turn out to share it.
    pub(crate) fn is_certain_to_exclude(&self, lock: LockId) -> bool {
        let shared = |l: &Lock| !l.named && l.word.is_counted_down();
        self.is_certain(lock) && self.verdict(lock).1 && !self.get(lock).is_some_and(shared)
    }

    /// Whether the word at this offset says whose ticket is served.
    pub(crate) fn is_serving(&self, lock: LockId, offset: u64) -> bool {
        self.get(lock).is_some_and(|l| l.word.serving == Some(offset))
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (LockId, &Lock)> {
        self.locks.iter().enumerate().map(|(id, lock)| (id as LockId, lock))
    }
}

impl Lock {
    pub(super) fn is_volatile_version(&self) -> bool {
        !self.named && self.place.is_none() && self.word.shape() == LockShape::Version
    }
}

impl Word {
    fn note_taken(&mut self, c: WordChange, mode: HoldMode) {
        self.acquired += 1;
        self.tried_at(c.site);
        if self.taken.len() < MAX_TAKEN && !self.taken.contains(&(c.site, c.context)) {
            self.taken.push((c.site, c.context));
        }
        if self.threads.len() < 64 && !self.threads.contains(&c.thread) {
            self.threads.push(c.thread);
        }
        self.holders.retain(|h| h.thread != c.thread);
        self.holders.push(Holder::new(c, mode));
    }

    /// No thread holds the word after all: this is its free value.
    fn turn(&mut self, free: u64) {
        self.free = free;
        self.turned = true;
        self.holders.clear();
        self.mistook();
    }

    /// Discards the evidence that something took the word.
    fn mistook(&mut self) {
        self.sites.clear();
        self.taken.clear();
        (self.acquired, self.moved_on, self.disturbed) = (0, 0, 0);
    }

    fn tried_at(&mut self, site: SiteId) {
        // Enough for reports: a word that very many instructions take is listed under the first few.
        if self.sites.len() < 8 && !self.sites.contains(&site) {
            self.sites.push(site);
        }
    }

    /// Most releases decrement it, as with references and readers; a lock is rather set to its free value.
    pub(super) fn is_counted_down(&self) -> bool {
        2 * self.counted_down > self.returned
    }

    pub(crate) fn is_lock(&self) -> bool {
        self.returned > 0 && self.disturbed <= self.returned || self.moved_on >= 2 && self.disturbed == 0
    }
}
