//! Lock-free stores, order between threads, and memory that is published, or begins another life.

use crate::script::*;

#[test]
fn lock_free_publication_is_reported_when_observed_or_asked_for() {
    let run = |options: LocksetOptions, observed: bool| {
        let mut s = Script::new(options);
        s.public(X);
        s.cas(2, 1, X, 0, 0x4040, true);
        if observed {
            s.use_(3, 2, X);
        }
        s.persist(2, X);
        if !observed {
            s.use_(3, 2, X);
        }
        let outcome = s.engine.finish();
        (races(&outcome), outcome.stats.lock_free)
    };
    assert_eq!(run(LocksetOptions::default(), false), (vec![], 1), "it is counted");
    assert_eq!(run(LocksetOptions::default(), true), (vec![(1, 2)], 0));
    assert_eq!(run(LocksetOptions { lock_free: true, ..LocksetOptions::default() }, false), (vec![(1, 2)], 0));
}

#[test]
fn barriers_conditions_semaphores_and_flags_order_threads_unless_turned_off() {
    type Between = fn(&mut Script);
    type Off = fn(&mut Edges);
    let cases: [(Between, Off); 4] = [
        (
            |s| {
                s.sync(2, SyncOp::BarrierEnter);
                s.sync(3, SyncOp::BarrierEnter);
                s.sync(2, SyncOp::BarrierLeave);
                s.sync(3, SyncOp::BarrierLeave);
            },
            |e| e.barriers = false,
        ),
        (
            |s| {
                s.sync(2, SyncOp::CondSignal);
                s.sync(3, SyncOp::CondWoken);
            },
            |e| e.conditions = false,
        ),
        (
            |s| {
                s.sync(2, SyncOp::SemPost);
                s.sync(3, SyncOp::SemAcquire);
            },
            |e| e.semaphores = false,
        ),
        (
            |s| {
                (0..5).for_each(|_| s.load(3, 60, Z));
                s.store(2, 61, Z);
                s.persist(2, Z);
                s.load(3, 60, Z);
            },
            |e| e.flags = false,
        ),
    ];
    for (between, off) in cases {
        let run = |edges: Edges| {
            let mut s = Script::new(LocksetOptions { edges, ..LocksetOptions::default() });
            s.public(X);
            s.store(2, 1, X);
            s.persist(2, X);
            between(&mut s);
            s.use_(3, 2, X);
            s.races()
        };
        assert!(!run(Edges::ALL).contains(&(1, 2)));
        let mut edges = Edges::ALL;
        off(&mut edges);
        assert!(run(edges).contains(&(1, 2)));
    }
}

#[test]
fn memory_that_is_allocated_again_is_unpublished_again() {
    for known in [true, false] {
        let mut s = new();
        s.lock(3, B);
        s.use_(3, 2, X);
        s.unlock(3, B);
        if known {
            s.add(2, 907, What::Allocate { addr: X, len: 64 });
        }
        s.lock(2, A);
        s.store(2, 1, X);
        s.persist(2, X);
        s.unlock(2, A);
        assert_eq!(s.races().is_empty(), known);
    }
}

#[test]
fn a_load_of_an_earlier_life_is_forgotten_even_if_its_thread_acts_later() {
    let mut s = new();
    s.lock(3, B);
    s.load(3, 2, X);
    s.unlock(3, B);
    s.add(2, 907, What::Allocate { addr: X, len: 64 });
    s.act(3);
    s.lock(2, A);
    s.store(2, 1, X);
    s.persist(2, X);
    s.unlock(2, A);
    assert_eq!(s.races(), []);
}

#[test]
fn memory_that_a_pointer_newly_leads_to_was_unpublished() {
    for (allocators, racy) in [(true, false), (false, true)] {
        let mut s = Script::new(LocksetOptions { allocators, ..LocksetOptions::default() });
        s.public(X);
        s.public(Y);
        s.lock(3, B);
        s.use_(3, 2, X);
        s.unlock(3, B);
        s.lock(2, A);
        s.store(2, 1, X);
        s.persist(2, X);
        s.put(2, 5, Y, &X.to_le_bytes());
        s.persist(2, Y);
        s.unlock(2, A);
        assert_eq!(s.races() == [(1, 2)], racy);
    }
}

/// No other thread touches it before it is persistent; but one could, and a crash then would lose it.
#[test]
fn what_is_published_before_it_is_persistent_is_no_initialisation() {
    for (others_know_the_pointer, at_once, racy) in [(true, true, true), (true, false, false), (false, true, false)] {
        let mut s = Script::new(LocksetOptions::default());
        if others_know_the_pointer {
            s.public(Y);
        }
        s.lock(2, A);
        s.store(2, 1, X);
        if !at_once {
            s.persist(2, X);
        }
        s.put(2, 5, Y, &X.to_le_bytes());
        s.persist(2, X);
        s.persist(2, Y);
        s.unlock(2, A);
        s.use_(3, 2, X);
        assert_eq!(
            s.races() == [(1, 2)],
            racy,
            "others know the pointer: {others_know_the_pointer}, at once: {at_once}"
        );
    }
}

/// Each slot of a node is written by one thread before another comes to it, but the node itself is known to all.
#[test]
fn a_link_in_an_object_that_others_know_is_no_initialisation() {
    const NODE: u64 = BASE + 0x20000;
    for (allocated, visited, racy) in
        [(Some(512), true, true), (Some(512), false, false), (Some(0x10000), true, false), (None, true, false)]
    {
        let mut s = Script::new(LocksetOptions::default());
        if let Some(len) = allocated {
            s.add(2, 907, What::Allocate { addr: NODE, len });
        }
        if visited {
            s.public(NODE + 8);
        }
        s.store(2, 1, X);
        s.persist(2, X);
        s.put(2, 5, NODE + 256, &X.to_le_bytes());
        s.persist(2, NODE + 256);
        s.use_(3, 6, NODE + 256);
        assert_eq!(s.races() == [(5, 6)], racy, "allocated: {allocated:?}, visited by others: {visited}");
    }
}

/// An object is copied to reused memory, changed, made persistent and then published.
#[test]
fn what_is_filled_and_then_changed_was_unpublished_too() {
    for (writer, publishes, expected) in
        [(2, true, &[][..]), (2, false, &[(1, 2), (3, 2)]), (4, true, &[(1, 2), (3, 2)])]
    {
        let mut s = new();
        s.lock(3, B);
        s.use_(3, 2, X);
        s.unlock(3, B);
        s.lock(2, A);
        s.store(2, 1, X);
        s.store(writer, 3, X);
        s.persist(writer, X);
        if publishes {
            s.put(2, 5, Y, &X.to_le_bytes());
            s.persist(2, Y);
        }
        s.unlock(2, A);
        assert_eq!(s.races(), expected, "overwritten by {writer}, published: {publishes}");
    }
}

#[test]
fn what_a_constructor_fills_before_the_allocator_returns_was_unpublished() {
    for (known, overwritten) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut s = new();
        // Other threads have read the memory before it was reused.
        s.use_(3, 2, X);
        s.store(2, 1, X);
        if known {
            s.add(2, 907, What::Allocate { addr: X, len: 64 });
        }
        if overwritten {
            s.store(2, 3, X);
        }
        s.persist(2, X);
        // Published under a lock that the reader has released when it follows the pointer.
        s.lock(2, A);
        s.store(2, 5, Y);
        s.persist(2, Y);
        s.unlock(2, A);
        s.use_(3, 4, X);
        assert_eq!(s.races().iter().all(|&(store, _)| store > 4), known, "overwritten: {overwritten}");
    }
}

#[test]
fn a_pointer_may_come_with_marks_or_the_number_of_its_pool_or_by_an_exchange() {
    type Publish = fn(&mut Script);
    let publish: [(&str, Publish); 5] = [
        ("alone", |s| s.put(2, 5, Y, &X.to_le_bytes())),
        ("with a mark in a low bit", |s| s.put(2, 5, Y, &(X | 1).to_le_bytes())),
        ("with a mark in a high bit", |s| s.put(2, 5, Y, &(X | 1 << 63).to_le_bytes())),
        ("with a number", |s| s.put(2, 5, Y, &[77u64.to_le_bytes(), (X - BASE).to_le_bytes()].concat())),
        ("by an exchange", |s| s.cas(2, 5, Y, 0, X, true)),
    ];
    for (how, publish) in publish {
        let mut s = new();
        s.use_(3, 2, X);
        s.store(2, 1, X);
        s.persist(2, X);
        publish(&mut s);
        s.persist(2, Y);
        s.use_(3, 4, X);
        assert!(s.races().iter().all(|&(store, _)| store != 1), "{how}");
    }
}

/// Thread 4 is faster to make the value persistent than the writer, which the reader is ordered after.
#[test]
fn a_window_that_a_helper_ends_is_over_when_the_writer_ends_it_too() {
    for (commits, racy) in [(true, false), (false, true)] {
        let mut s = new();
        s.public(Z);
        s.store(2, 1, X);
        s.persist(4, X);
        if commits {
            s.persist(2, X);
        }
        s.sync(2, SyncOp::SemPost);
        s.sync(3, SyncOp::SemAcquire);
        s.use_(3, 2, X);
        assert_eq!(s.races() == [(1, 2)], racy, "the writer commits: {commits}");
    }
}

#[test]
fn what_is_stored_to_a_lock_before_it_is_one_is_no_data() {
    let mut s = new();
    s.public(Z);
    // Set up by a plain store, and read before that is persistent.
    s.put(2, 5, Z, &0u64.to_le_bytes());
    s.use_(3, 4, Z);
    for thread in [2, 3, 2, 3] {
        spin_section(&mut s, thread, 51, 1, 0, 1);
    }
    assert_eq!(s.races(), []);
}
