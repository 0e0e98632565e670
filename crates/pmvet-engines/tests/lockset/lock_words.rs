//! Words that are taken for locks, and words that are not.

use crate::script::*;

/// A thread that waits for a `pthread_rwlock_t` changes words of it the way spin locks change.
#[test]
fn words_within_a_lock_are_no_locks_and_hide_none_of_it() {
    let mut s = new();
    s.public(Z + 16);
    for round in 0..4 {
        let thread = 2 + round % 2;
        s.lock(thread, Z);
        s.cas(thread, 51, Z + 8, 0, 1, true);
        s.store(thread, 1, Z + 16);
        s.cas(thread, 52, Z + 8, 1, 0, true);
        s.unlock(thread, Z);
        s.use_(5 - thread, 2, Z + 16);
    }
    let named = |site: SiteId| if site.0 == 903 { vec!["pthread_rwlock_wrlock".to_owned()] } else { Vec::new() };
    let outcome = s.engine.finish_with(&mut |site| Code { functions: named(site), module: String::new() });
    assert_eq!(races(&outcome), []);
    assert_eq!(outcome.inferred, []);
}

#[test]
fn a_counter_that_moves_in_strides_is_no_version_lock() {
    let mut s = new();
    let mut at = 0;
    for thread in [2, 2, 2, 2, 3, 3, 3, 3] {
        s.cas(thread, 51, A, at, at + 16, true);
        at += 16;
    }
    s.cas(2, 51, A, at, at + 16, true);
    s.store(2, 1, X);
    s.persist(2, X);
    s.cas(2, 51, A, at + 16, at + 32, true);
    s.cas(3, 51, A, at + 32, at + 48, true);
    s.use_(3, 2, X);
    assert_eq!(s.races(), [(1, 2)]);
}

/// A spin lock in volatile memory, released by a plain store that shows only at the thread's next event.
#[test]
fn a_volatile_spin_lock_protects_until_the_store_that_frees_it_is_found() {
    for late in [false, true] {
        let mut s = new();
        for thread in [2, 3, 2, 3, 2] {
            s.cas(thread, 51, A, 0, 1, true);
            s.use_(thread, 2, X);
            s.store(thread, 1, X);
            if !late {
                s.persist(thread, X);
            }
            let found = (1u64.to_le_bytes(), 0u64.to_le_bytes());
            s.add(thread, 9, What::Atomic { addr: A, old: &found.0, new: &found.1, how: AtomicKind::Found });
            if late {
                s.persist(thread, X);
            }
        }
        assert_eq!(s.races().is_empty(), !late, "persisted after the lock: {late}");
    }
}

/// A thread has released the lock unseen, and reads that it is free just before another one takes it; what it read is reported after that.
#[test]
fn what_a_former_holder_reads_takes_no_lock_from_the_next_one() {
    let mut s = new();
    for thread in [2, 3, 2, 3] {
        s.cas(thread, 51, A, 0, 1, true);
        let (held, free) = (1u64.to_le_bytes(), 0u64.to_le_bytes());
        s.add(5 - thread, 9, What::Atomic { addr: A, old: &held, new: &free, how: AtomicKind::Found });
        s.use_(thread, 2, X);
        s.store(thread, 1, X);
        s.persist(thread, X);
    }
    assert_eq!(s.races(), []);
}

/// Another thread tries to take a lock that is held and fails, but by the time its attempt is reported, the lock is free.
#[test]
fn a_failed_attempt_that_sees_the_release_hides_it_from_nobody() {
    let mut s = new();
    let (held, free) = (1u64.to_le_bytes(), 0u64.to_le_bytes());
    let mut section = |thread: u32, is_disturbed: bool| {
        s.cas(thread, 51, A, 0, 1, true);
        s.use_(thread, 2, X);
        s.store(thread, 1, X);
        s.persist(thread, X);
        if is_disturbed {
            s.add(5 - thread, 51, What::Atomic { addr: A, old: &free, new: &free, how: AtomicKind::Changed });
        }
        s.add(thread, 9, What::Atomic { addr: A, old: &held, new: &free, how: AtomicKind::Found });
    };
    section(2, false);
    section(3, false);
    section(3, true);
    section(3, false);
    section(2, true);
    section(2, false);
    assert_eq!(s.races(), []);
}

/// A thread remembers only a few locks that it has taken: it may take one again before its release was seen.
#[test]
fn a_lock_may_be_taken_again_after_a_release_that_nobody_saw() {
    let mut s = new();
    for thread in [2, 3, 3, 2, 2, 2, 3] {
        s.cas(thread, 51, A, 0, 1, true);
        s.use_(thread, 2, X);
        s.store(thread, 1, X);
        s.persist(thread, X);
    }
    assert_eq!(s.races(), []);
}

/// The same, released by an exchange that only stores. If the lock is not held, such a store takes nothing.
#[test]
fn an_exchange_that_only_stores_gives_a_lock_back_and_takes_none() {
    let stored = |s: &mut Script, thread: u32, addr: u64, old: u64, new: u64| {
        let (old, new) = (old.to_le_bytes(), new.to_le_bytes());
        s.add(thread, 53, What::Atomic { addr, old: &old, new: &new, how: AtomicKind::Stored });
    };
    for late in [false, true] {
        let mut s = new();
        for thread in [2, 3, 2, 3, 2] {
            stored(&mut s, thread, B, 0, 1);
            s.cas(thread, 51, A, 0, 1, true);
            s.use_(thread, 2, X);
            s.store(thread, 1, X);
            if !late {
                s.persist(thread, X);
            }
            stored(&mut s, thread, A, 1, 0);
            if late {
                s.persist(thread, X);
            }
        }
        let outcome = s.engine.finish();
        assert_eq!(races(&outcome).is_empty(), !late, "persisted after the lock: {late}");
        assert_eq!(outcome.inferred.len(), 1, "{:?}", outcome.inferred);
    }
}

#[test]
fn an_exchange_of_pm_that_only_stores_is_a_store_and_may_lock_what_is_not_published() {
    let exchange = |s: &mut Script, thread: u32, site: u32, addr: u64, new: u64, discards: bool| {
        let (old, new) = (0u64.to_le_bytes(), new.to_le_bytes());
        s.add(thread, site, What::Rmw { addr, old: &old, new: &new, stored: true, discards });
    };
    for discards in [true, false] {
        let mut s = new();
        for value in 1..4 {
            exchange(&mut s, 2, 1, X, value, discards);
            s.persist(2, X);
            s.use_(3, 2, X);
        }
        assert_eq!(s.races() == [(1, 2)], discards);
    }
    // The maker of a node that no other thread knows locks it, and does not use what it found either.
    let mut s = new();
    exchange(&mut s, 2, 50, Z, 1, true);
    s.store(2, 1, X);
    s.persist(2, X);
    s.put(2, 52, Z, &0u64.to_le_bytes());
    for thread in [3, 2, 3] {
        s.cas(thread, 51, Z, 0, 1, true);
        s.use_(thread, 2, X);
        s.put(thread, 52, Z, &0u64.to_le_bytes());
    }
    assert_eq!(s.races(), []);
}

/// A value that another thread put there is no store of this thread.
#[test]
fn a_word_that_another_thread_has_changed_is_not_given_back() {
    let mut s = new();
    s.cas(2, 51, A, 0, 1, true);
    s.cas(3, 53, A, 1, 2, true);
    let (one, two) = (1u64.to_le_bytes(), 2u64.to_le_bytes());
    s.add(2, 9, What::Atomic { addr: A, old: &one, new: &two, how: AtomicKind::Found });
    s.store(2, 1, X);
    s.persist(2, X);
    s.cas(2, 52, A, 2, 0, true);
    s.cas(3, 53, A, 0, 2, true);
    s.use_(3, 2, X);
    s.cas(3, 52, A, 2, 0, true);
    assert_eq!(s.races(), []);
}

#[test]
fn a_ticket_lock_and_a_reader_writer_lock_are_told_apart() {
    let mut s = new();
    for (turn, thread) in [2, 3, 2, 3].into_iter().enumerate() {
        s.cas(thread, 51, Z, turn as u64, turn as u64 + 1, true);
        s.store(thread, 1, X);
        s.persist(thread, X);
        s.put(thread, 52, Z + 8, &(turn as u64 + 1).to_le_bytes());
    }
    let outcome = s.engine.finish();
    assert_eq!((races(&outcome), outcome.inferred[0].shape), (vec![], LockShape::Ticket));

    let mut s = new();
    s.cas(3, 53, Z, 0, 1, true);
    s.cas(4, 53, Z, 1, 2, true);
    s.use_(3, 2, X);
    s.cas(3, 54, Z, 2, 1, true);
    s.cas(4, 54, Z, 1, 0, true);
    spin_section(&mut s, 2, 51, 1, 0, 1 << 63);
    let outcome = s.engine.finish();
    assert_eq!((races(&outcome), outcome.inferred[0].shape), (vec![], LockShape::ReaderWriter));
}

/// A read-modify-write sets up a version lock, as if it took the lock. The next thread shows what really takes it.
#[test]
fn a_version_lock_that_is_set_up_by_a_read_modify_write_is_taken_where_it_is_taken() {
    let section = |s: &mut Script, thread: u32, version: &mut u64| {
        s.cas(thread, 51, Z, *version, *version + 2, true);
        s.use_(thread, 2, X);
        s.store(thread, 1, X);
        s.persist(thread, X);
        s.cas(thread, 52, Z, *version + 2, *version + 4, true);
        *version += 4;
    };
    for first in [2, 3] {
        let mut s = new();
        let mut version = 1 << 62;
        s.cas(2, 50, Z, 0, version, true);
        section(&mut s, first, &mut version);
        for thread in [3, 2, 3, 2, 3] {
            section(&mut s, thread, &mut version);
        }
        // Kept by a lock in the second half at least: the first sections may have been misunderstood.
        let outcome = s.engine.finish();
        let [lock] = &outcome.inferred[..] else { panic!("{first}: {:?}", outcome.inferred) };
        assert_eq!((lock.shape, lock.disturbed), (LockShape::Version, 0), "{first}");
        assert!(lock.returned >= 4, "{first}: {lock:?}");
    }
    // Where locks are known to be taken, even the first section is understood, whosever it is. A number beside the word that
    // happens to be one more than what was found there is no ticket.
    for threads in [[2, 3, 2, 3], [3, 2, 3, 2]] {
        let mut s = new();
        let mut others = 0;
        for thread in [2, 3, 2, 3, 2, 3, 2, 3] {
            s.cas(thread, 51, A, others, others + 2, true);
            s.cas(thread, 52, A, others + 2, others + 4, true);
            others += 4;
        }
        let mut version = 4 + (1 << 62);
        s.cas(2, 50, Z, 4, version, true);
        s.put(2, 53, Z + 8, &5_u64.to_le_bytes());
        s.persist(2, Z + 8);
        for thread in threads {
            section(&mut s, thread, &mut version);
        }
        let outcome = s.engine.finish();
        assert_eq!(races(&outcome), []);
        assert!(outcome.inferred.iter().all(|lock| lock.shape == LockShape::Version), "{:?}", outcome.inferred);
    }
}

#[test]
fn a_word_that_is_no_lock_is_not_shown_as_held() {
    let mut s = new();
    for n in 0..8 {
        s.cas(2 + n % 2, 51, A, n.into(), u64::from(n) + 1, true);
    }
    s.cas(2, 55, B, 0, 1, true);
    s.store(2, 1, X);
    s.use_(3, 2, X);
    s.persist(2, X);
    let outcome = s.engine.finish();
    assert_eq!(races(&outcome), [(1, 2)]);
    assert!(outcome.races.iter().all(|race| race.store.locks.is_empty() && race.load.locks.is_empty()));
}

#[test]
fn a_counter_is_no_lock() {
    let mut s = new();
    for n in 0..20 {
        s.cas(2 + n % 2, 51, Z, n.into(), u64::from(n) + 1, true);
        s.persist(2 + n % 2, Z);
    }
    s.store(2, 1, X);
    s.persist(2, X);
    s.use_(3, 2, X);
    let outcome = s.engine.finish();
    assert_eq!((races(&outcome), outcome.inferred.len()), (vec![(1, 2)], 0));
}

#[test]
fn who_looks_at_the_lock_after_reading_is_safe_and_who_does_not_is_not() {
    for looks in [true, false] {
        let mut s = new();
        spin_section(&mut s, 2, 51, 1, 0, 1);
        s.load(3, 2, X);
        if looks {
            s.load(3, 3, Z);
        }
        s.act(3);
        spin_section(&mut s, 2, 51, 1, 0, 1);
        assert_eq!(s.races().is_empty(), looks);
    }
}

#[test]
fn who_looks_at_a_lock_that_nobody_has_taken_yet_is_safe_too() {
    let lock = X + 8;
    for looks in [true, false] {
        let mut s = new();
        s.public(lock);
        // More threads than are kept apart, and some of them have been here before.
        for thread in [5, 4, 3, 3] {
            s.load(thread, 2, X);
            if looks {
                s.load(thread, 3, lock);
            }
            s.act(thread);
        }
        for _ in 0..2 {
            s.cas(2, 51, lock, 0, 1, true);
            s.store(2, 1, X);
            s.persist(2, X);
            s.put(2, 52, lock, &0u64.to_le_bytes());
        }
        assert_eq!(s.races().is_empty(), looks);
    }
}

#[test]
fn a_lock_taken_after_the_readers_last_store_may_have_been_free_when_it_looked() {
    let mut s = new();
    spin_section(&mut s, 2, 51, 1, 0, 1);
    // The loads have no number: the trace has them after the store, but they may have come before the lock was taken.
    s.cas(2, 51, Z, 0, 1, true);
    s.store(2, 1, X);
    s.load(3, 2, X);
    s.load(3, 3, Z);
    s.act(3);
    s.persist(2, X);
    s.put(2, 52, Z, &0u64.to_le_bytes());
    assert_eq!(s.races(), []);
}

#[test]
fn a_load_does_not_see_what_is_stored_before_its_thread_acts() {
    let mut s = new();
    s.load(3, 2, X);
    s.cas(2, 1, X, 0, 0x4040, true);
    s.act(3);
    s.persist(2, X);
    assert_eq!(s.races(), []);
}

#[test]
fn locks_that_are_never_given_back_are_locks_if_they_are_taken_where_locks_are() {
    let word = |i: u64| X + 0x1000 + i * 64;
    for known in [true, false] {
        let mut s = new();
        for i in 0..20 {
            s.public(word(i));
            if known && i < 10 {
                s.cas(2, 50, word(i), 0, 1, true);
                s.put(2, 52, word(i), &0u64.to_le_bytes());
            }
        }
        // Forever, as in a table that was replaced: its locks stay held, in the cache.
        for i in 0..20 {
            s.cas(2, 51, word(i), 0, 2, true);
            s.use_(3, 2, word(i));
        }
        assert_eq!(s.races().is_empty(), known);
    }
}
