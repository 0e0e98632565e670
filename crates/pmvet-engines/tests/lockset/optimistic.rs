//! Readers that take no lock: they compare versions before and after and start over if one has changed, or they help.

use crate::script::*;

/// A version lock of the data in X, in another line.
const VERSION: u64 = Z;

/// A writer's critical section. `late`: the data is made persistent after it.
fn write(s: &mut Script, thread: u32, lock: u64, version: &mut u64, late: bool) {
    s.cas(thread, 51, lock, *version, *version + 1, true);
    s.store(thread, 1, X);
    if !late {
        s.persist(thread, X);
    }
    *version += 2;
    if lock < BASE {
        let (old, new) = ((*version - 1).to_le_bytes(), version.to_le_bytes());
        s.add(thread, 52, What::Atomic { addr: lock, old: &old, new: &new, how: AtomicKind::Stored });
    } else {
        s.put(thread, 52, lock, &version.to_le_bytes());
    }
    if late {
        s.persist(thread, X);
    }
}

#[test]
fn readers_that_compare_versions_are_safe_before_any_thread_takes_the_lock() {
    for (checks, late) in [(true, false), (false, false), (true, true)] {
        let mut s = new();
        s.public(VERSION);
        // More threads than a line keeps apart, one of them twice.
        for thread in [5, 4, 3, 3] {
            s.load(thread, 3, VERSION);
            s.load(thread, 2, X);
            if checks {
                s.load(thread, 4, VERSION);
            }
            s.act(thread);
        }
        let mut version = 0;
        (0..3).for_each(|_| write(&mut s, 2, VERSION, &mut version, late));
        assert_eq!(s.races().is_empty(), checks && !late, "checks: {checks}, late: {late}");
    }
}

#[test]
fn a_read_under_a_held_lock_does_not_count_once_it_is_repeated() {
    for again in [true, false] {
        let mut s = new();
        s.public(VERSION);
        let mut version = 0;
        (0..3).for_each(|_| write(&mut s, 2, VERSION, &mut version, false));
        s.load(3, 3, VERSION);
        s.cas(2, 51, VERSION, version, version + 1, true);
        s.store(2, 1, X);
        // Loads have no number: they are known to come after what their thread did last.
        s.act(3);
        s.load(3, 2, X);
        // The version has changed.
        s.load(3, 4, VERSION);
        if again {
            s.persist(2, X);
            s.put(2, 52, VERSION, &(version + 2).to_le_bytes());
            s.load(3, 3, VERSION);
            s.load(3, 2, X);
            s.load(3, 4, VERSION);
            s.act(3);
        } else {
            s.act(3);
            s.persist(2, X);
            s.put(2, 52, VERSION, &(version + 2).to_le_bytes());
        }
        assert_eq!(s.races().is_empty(), again);
    }
}

/// Loads of volatile memory leave no event. If writers hold a version lock there, readers are assumed to compare versions.
#[test]
fn readers_check_version_locks_in_volatile_memory_unseen() {
    for late in [false, true] {
        let mut s = new();
        let mut version = 0;
        for writer in [2, 3, 2, 3] {
            write(&mut s, writer, A, &mut version, late);
            s.use_(4, 2, X);
        }
        assert_eq!(s.races().is_empty(), !late);
    }
    // A reader that acts on the store within its window did not check.
    let mut s = new();
    let mut version = 0;
    (0..3).for_each(|_| write(&mut s, 2, A, &mut version, false));
    s.cas(2, 51, A, version, version + 1, true);
    s.store(2, 1, X);
    s.use_(4, 2, X);
    s.persist(2, X);
    assert_eq!(s.races(), [(1, 2)]);
}

/// The locks of libpmemobj are not those of the program's readers.
#[test]
fn readers_do_not_know_the_versions_of_a_library() {
    for (module, count) in [("libpmemobj.so.1", 1), ("a.out", 0)] {
        let mut s = new();
        let mut version = 0;
        for writer in [2, 3, 2, 3] {
            write(&mut s, writer, A, &mut version, false);
            s.use_(4, 2, X);
        }
        let of_lock = |site: SiteId| if matches!(site.0, 51 | 52) { module } else { "a.out" };
        let outcome = s.engine.finish_with(&mut |site| Code { functions: Vec::new(), module: of_lock(site).into() });
        assert_eq!((races(&outcome).len(), outcome.stats.checked_unseen), (count, 1 - count as u64), "{module}");
    }
}

/// A plain lock returns to its free value, so readers cannot use it as a version.
#[test]
fn a_plain_lock_in_volatile_memory_is_not_checked_by_readers() {
    let mut s = new();
    let (free, held) = (0u64.to_le_bytes(), 1u64.to_le_bytes());
    for _ in 0..3 {
        s.cas(2, 51, A, 0, 1, true);
        s.store(2, 1, X);
        s.persist(2, X);
        s.add(2, 52, What::Atomic { addr: A, old: &held, new: &free, how: AtomicKind::Stored });
        s.use_(4, 2, X);
    }
    assert_eq!(s.races(), [(1, 2)]);
}

/// Another thread releases a volatile lock by a plain store, which shows only when a thread next takes it.
#[test]
fn a_version_that_has_moved_on_unseen_was_given_back() {
    let mut s = new();
    let mut version = 0;
    for writer in [2, 3, 2, 3] {
        s.cas(writer, 51, A, version, version + 1, true);
        s.store(writer, 1, X);
        s.persist(writer, X);
        version += 2;
    }
    s.use_(4, 2, X);
    let outcome = s.engine.finish();
    assert_eq!((races(&outcome), outcome.inferred[0].shape), (vec![], LockShape::Version));
}

/// The word of an unpublished node is set up by an exchange that only stores, as `std::atomic` does.
#[test]
fn a_version_lock_that_is_set_up_by_an_exchange_is_taken_by_the_first_who_takes_it() {
    let mut s = new();
    let (old, new) = (0u64.to_le_bytes(), 4u64.to_le_bytes());
    s.add(2, 50, What::Rmw { addr: VERSION, old: &old, new: &new, stored: true, discards: true });
    let mut version = 4;
    for writer in [3, 4, 3] {
        write(&mut s, writer, VERSION, &mut version, false);
        s.load(5, 3, VERSION);
        s.load(5, 2, X);
        s.load(5, 4, VERSION);
        s.act(5);
    }
    let outcome = s.engine.finish();
    assert_eq!((races(&outcome), outcome.inferred[0].shape), (vec![], LockShape::Version));
}

/// Link-and-persist: a pointer is marked until it is persistent, and a thread that finds a mark makes it persistent first, if it `helps`.
fn marked_pointers(helps: bool) -> Vec<(u32, u32)> {
    let mut s = new();
    let mut pointer = 0x8000;
    for writer in [2, 3, 2, 3] {
        let next = pointer + 0x40;
        s.cas(writer, 51, X, pointer, next | 1, true);
        // The reader comes first.
        s.load(4, 2, X);
        if helps {
            s.persist(4, X);
        }
        s.cas(4, 52, X, next | 1, next, true);
        s.act(4);
        s.use_(5, 3, X);
        s.persist(writer, X);
        s.cas(writer, 53, X, next | 1, next, false);
        pointer = next;
    }
    s.races()
}

#[test]
fn a_pointer_with_a_mark_is_no_lock_and_loses_nothing_with_it() {
    assert_eq!(marked_pointers(true), []);
    let races = marked_pointers(false);
    assert!(races.contains(&(52, 3)), "{races:?}");
}

/// A slot is taken by a compare-and-exchange, and filled by a plain store.
#[test]
fn a_plain_store_to_a_word_of_read_modify_writes_needs_no_overlap() {
    let mut s = new();
    s.cas(2, 51, X, 0, u64::MAX - 1, true);
    s.store(2, 1, X);
    s.persist(2, X);
    s.use_(3, 2, X);
    assert_eq!(s.races(), [(1, 2)]);
}
