//! Sets of locks, interned, and the locks that a thread holds.
//!
//! The paper puts a timestamp beside each lock of a set, to tell critical sections of the same lock apart. Here the
//! timestamps are in each thread's *held list* and not in the sets, so that equal sets stay equal. The locks that have
//! protected a store ever since are those that the thread holds now and took before the store.

use std::collections::VecDeque;

use rustc_hash::FxHashMap as FastMap;

pub(crate) type LockId = u32;

/// How a lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum HoldMode {
    Exclusive,
    Shared,
    /// The thread incremented a word by one: exclusive if the word turns out to be a plain or a ticket lock, shared if it counts
    /// readers.
    Counted,
}

/// A lock and how it is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Hold {
    pub(crate) lock: LockId,
    pub(crate) mode: HoldMode,
}

/// An interned lockset; the default is the empty one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct SetId(u32);

impl SetId {
    pub(crate) const EMPTY: SetId = SetId(0);

    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

#[derive(Debug)]
pub(crate) struct Locksets {
    sets: Vec<Box<[Hold]>>,
    ids: FastMap<Box<[Hold]>, SetId>,
    /// Caches of sets with one lock more and one lock less: threads take and release the same few locks all the time.
    more: FastMap<(SetId, Hold), SetId>,
    less: FastMap<(SetId, Hold), SetId>,
}

impl Default for Locksets {
    fn default() -> Self {
        Locksets {
            sets: vec![Box::default()],
            ids: FastMap::from_iter([(Box::default(), SetId::EMPTY)]),
            more: FastMap::default(),
            less: FastMap::default(),
        }
    }
}

impl Locksets {
    pub(crate) fn get(&self, id: SetId) -> &[Hold] {
        self.sets.get(id.0 as usize).map_or(&[], |set| set)
    }

    pub(crate) fn len(&self) -> usize {
        self.sets.len()
    }

    pub(crate) fn intern(&mut self, mut holds: Vec<Hold>) -> SetId {
        if holds.is_empty() {
            return SetId::EMPTY;
        }
        holds.sort_unstable();
        holds.dedup();
        if let Some(&id) = self.ids.get(holds.as_slice()) {
            return id;
        }
        let id = SetId(self.sets.len() as u32);
        let set: Box<[Hold]> = holds.into();
        self.sets.push(set.clone());
        self.ids.insert(set, id);
        id
    }

    pub(crate) fn with(&mut self, set: SetId, hold: Hold) -> SetId {
        if let Some(&known) = self.more.get(&(set, hold)) {
            return known;
        }
        let mut holds = self.get(set).to_vec();
        holds.push(hold);
        let found = self.intern(holds);
        self.more.insert((set, hold), found);
        found
    }

    fn without(&mut self, set: SetId, hold: Hold) -> SetId {
        if let Some(&known) = self.less.get(&(set, hold)) {
            return known;
        }
        let holds = self.get(set).iter().copied().filter(|h| *h != hold).collect();
        let found = self.intern(holds);
        self.less.insert((set, hold), found);
        found
    }
}

/// A lock that a thread holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub(crate) hold: Hold,
    /// The thread's count of acquisitions when it took the lock.
    stamp: u32,
    /// How often the thread holds a recursive lock.
    depth: u32,
    /// Inferred, and so perhaps no lock at all.
    guessed: bool,
    /// The event that took it.
    since: u64,
}

/// From when to when a lock was held, as event numbers. Without an end, it is still held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldSpan {
    pub(crate) from: u64,
    pub(crate) to: Option<u64>,
}

/// The locks of one thread.
#[derive(Debug, Default)]
pub(crate) struct HeldList {
    held: Vec<Held>,
    acquisitions: u32,
    /// The set of all of `held`.
    set: SetId,
    /// Released locks, the newest last; for pictures of races.
    returned: VecDeque<(LockId, u64, u64)>,
}

/// Past critical sections to remember per thread. Few are enough: a store is compared with loads when its window ends,
/// soon after it.
const MAX_RETURNED: usize = 32;

/// Inferred locks that a thread may hold at a time. A word that was mistaken for a lock and is never released must not
/// make the sets grow forever.
const MAX_GUESSED: usize = 12;

impl HeldList {
    /// Takes a lock. Returns an inferred one that had to be forgotten to make room.
    pub(crate) fn acquire(&mut self, hold: Hold, guessed: bool, seq: u64, sets: &mut Locksets) -> Option<LockId> {
        self.acquisitions += 1;
        if let Some(again) = self.held.iter_mut().find(|h| h.hold == hold) {
            again.depth += 1;
            return None;
        }
        self.held.push(Held { hold, stamp: self.acquisitions, depth: 1, guessed, since: seq });
        self.set = sets.with(self.set, hold);
        let too_many = guessed && self.held.iter().filter(|h| h.guessed).count() > MAX_GUESSED;
        let oldest = self.held.iter().position(|h| h.guessed).filter(|_| too_many)?;
        let forgotten = self.held.remove(oldest).hold;
        self.set = sets.without(self.set, forgotten);
        Some(forgotten.lock)
    }

    pub(crate) fn release(&mut self, lock: LockId, seq: u64, sets: &mut Locksets) -> bool {
        let Some(at) = self.held.iter().rposition(|h| h.hold.lock == lock) else { return false };
        self.held[at].depth -= 1;
        if self.held[at].depth == 0 {
            let Held { hold, since, .. } = self.held.remove(at);
            self.set = sets.without(self.set, hold);
            if self.returned.len() == MAX_RETURNED {
                self.returned.pop_front();
            }
            self.returned.push_back((lock, since, seq));
        }
        true
    }

    /// The time around an event in which the thread held the lock, if that is still known.
    pub(crate) fn span(&self, lock: LockId, seq: u64) -> Option<HeldSpan> {
        let past = self.returned.iter().rev().find(|(past, from, to)| *past == lock && (*from..=*to).contains(&seq));
        let now = self.held.iter().find(|h| h.hold.lock == lock && h.since <= seq);
        let past = past.map(|&(_, from, to)| HeldSpan { from, to: Some(to) });
        past.or_else(|| now.map(|held| HeldSpan { from: held.since, to: None }))
    }

    pub(crate) fn holds(&self, lock: LockId) -> bool {
        self.held.iter().any(|h| h.hold.lock == lock)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Hold> + '_ {
        self.held.iter().map(|h| h.hold)
    }

    pub(crate) fn stamp(&self) -> u32 {
        self.acquisitions
    }

    pub(crate) fn set(&self) -> SetId {
        self.set
    }

    /// The locks held now that were taken before `stamp` and not released since.
    pub(crate) fn since(&self, stamp: u32, sets: &mut Locksets) -> SetId {
        let newer = self.held.iter().filter(|h| h.stamp > stamp);
        newer.fold(self.set, |set, h| sets.without(set, h.hold))
    }
}
