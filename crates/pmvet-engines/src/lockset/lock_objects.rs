//! Locks in PM as objects. Their content is not data, but what follows them is, so it matters where each of them ends.
//!
//! An event says where a lock begins. Its size follows from the function that takes it. A function of the user may lock
//! anything: only the first word counts as the lock.

use std::collections::BTreeMap;

use super::CodeNames;
use super::races::RaceAccess;
use super::spin::{KnownLocks, Lock, PmWord};

/// Sizes on x86-64, by how the names of the functions begin.
const KINDS: [(&str, u64); 6] = [
    ("pthread_spin_", 4),
    ("pthread_rwlock_", LARGEST),
    ("pthread_mutex_", MUTEX),
    ("pthread_cond_", MUTEX),
    ("mtx_", MUTEX),
    ("cnd_", MUTEX),
];
/// Size of `pthread_mutex_t`, and of a lock whose function is unknown.
const MUTEX: u64 = 40;
/// Size of `pthread_rwlock_t`.
const LARGEST: u64 = 56;
/// Assumed size of what a function of the user locks.
const WORD: u64 = 8;

/// The size of what this function locks, if it belongs to the C library.
fn bytes_locked_by(function: &str) -> Option<u64> {
    let name = function.trim_start_matches('_');
    KINDS.iter().find(|(kind, _)| name.starts_with(kind)).map(|&(_, bytes)| bytes)
}

/// The locks in PM that functions take, by file and offset.
#[derive(Debug, Default)]
pub(super) struct LockObjects {
    bytes: BTreeMap<(u32, u64), u64>,
}

impl LockObjects {
    /// Asks for the names of the functions that take the locks.
    pub(super) fn new(locks: &KnownLocks, names: CodeNames<'_>) -> Self {
        let mut bytes_of = |lock: &Lock| {
            let functions: Vec<String> = lock.word.sites.iter().flat_map(|&site| names(site).functions).collect();
            let unknown = functions.is_empty();
            let known = functions.iter().filter_map(|function| bytes_locked_by(function)).max();
            known.unwrap_or(if unknown { MUTEX } else { WORD })
        };
        let named = locks.all().filter(|(_, lock)| lock.named);
        let in_pm = named.filter_map(|(_, lock)| Some((lock.place?, lock)));
        Self { bytes: in_pm.map(|(at, lock)| ((at.file.0, at.offset), bytes_of(lock))).collect() }
    }

    /// Adds words that turned out to be locks.
    pub(super) fn with_words(mut self, locks: &KnownLocks) -> Self {
        for (id, lock) in locks.all().filter(|(_, lock)| !lock.named) {
            if let Some(at) = lock.place.filter(|_| locks.verdict(id).0) {
                self.bytes.insert((at.file.0, at.offset), lock.word.bytes);
            }
        }
        self
    }

    /// Whether a word is part of one of them.
    pub(super) fn contain(&self, word: PmWord) -> bool {
        self.around(word).any(|(end, _)| word.offset < end)
    }

    /// Whether the whole store lies within one of them. A function of the user may call one of the C library for the lock at the same
    /// place, which then stores anywhere in that larger object.
    pub(super) fn contain_all_of(&self, store: &RaceAccess, names: CodeNames<'_>) -> bool {
        let mut near = self.around(PmWord { file: store.file, offset: store.offset }).peekable();
        if near.peek().is_none() {
            return false;
        }
        let called = names(store.site).functions.iter().find_map(|function| bytes_locked_by(function));
        let is_inside = |(end, begin): (u64, u64)| store.offset + store.len <= end.max(begin + called.unwrap_or(0));
        near.any(is_inside)
    }

    /// The ends and beginnings of those that may reach as far as the word.
    fn around(&self, word: PmWord) -> impl Iterator<Item = (u64, u64)> {
        let from = (word.file.0, word.offset.saturating_sub(LARGEST - 1));
        let near = self.bytes.range(from..=(word.file.0, word.offset));
        near.map(|(&(_, begin), bytes)| (begin + bytes, begin))
    }
}
