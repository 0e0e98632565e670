//! Windows of stores, the locks that protect them and the order of threads: the figures of the paper.

use crate::script::*;

#[test]
fn figure_1a_and_1b_a_lock_around_everything_is_enough() {
    let mut s = new();
    s.lock(2, A);
    s.store(2, 1, X);
    s.persist(2, X);
    s.unlock(2, A);
    s.lock(3, A);
    s.use_(3, 2, X);
    s.unlock(3, A);
    assert_eq!(s.races(), []);
}

/// Thread 2 of figures 1c, 2a and 2c: the persist is outside of the critical section.
#[test]
fn figure_1c_2a_2c_a_persist_outside_of_the_lock_is_a_race_in_either_order() {
    let mut s = new();
    late_persist(&mut s);
    locked_load(&mut s);
    assert_eq!(s.races(), [(1, 2)]);
    let mut s = new();
    locked_load(&mut s);
    late_persist(&mut s);
    assert_eq!(s.races(), [(1, 2)]);
}

#[test]
fn figure_1c_observed_if_the_load_comes_in_between() {
    let mut s = new();
    s.lock(2, A);
    s.store(2, 1, X);
    s.unlock(2, A);
    locked_load(&mut s);
    s.persist(2, X);
    let outcome = s.engine.finish();
    assert_eq!(races(&outcome), [(1, 2)]);
    assert!(outcome.races.iter().find(|race| race.load.site.0 == 2).unwrap().observed);
}

#[test]
fn figure_2b_2d_a_lock_taken_again_is_another_critical_section() {
    let mut s = new();
    s.lock(2, A);
    s.store(2, 1, X);
    s.unlock(2, A);
    s.lock(2, A);
    s.persist(2, X);
    s.unlock(2, A);
    locked_load(&mut s);
    assert_eq!(s.races(), [(1, 2)]);
}

#[test]
fn figure_3_order_by_creation_counts_from_the_persist() {
    let mut s = Script::bare(LocksetOptions { init_removal: false, ..LocksetOptions::default() });
    s.store(1, 1, X);
    s.persist(1, X);
    s.create(1, 2);
    s.store(1, 3, X);
    s.create(1, 3);
    s.persist(1, X);
    // Thread 2 was created before the second store, thread 3 before its persist.
    s.use_(2, 12, X);
    s.use_(3, 13, X);
    assert_eq!(s.races(), [(3, 12), (3, 13)]);
}

#[test]
fn figure_3_threads_that_are_created_after_the_persist_or_joined_before_the_load_are_ordered() {
    let mut s = Script::bare(LocksetOptions { init_removal: false, ..LocksetOptions::default() });
    s.store(1, 1, X);
    s.persist(1, X);
    s.create(1, 2);
    s.use_(2, 12, X);
    s.store(2, 2, Y);
    s.persist(2, Y);
    s.add(2, 0, What::ThreadExit);
    s.add(1, 0, What::ThreadJoin { child: ThreadId(2) });
    s.use_(1, 11, Y);
    assert_eq!(s.races(), []);
}

#[test]
fn figure_5_a_pointer_that_others_follow_before_it_is_persisted() {
    // The writer holds the lock of the old node; the reader follows the link and takes the lock of the new one only.
    let mut s = new();
    s.lock(2, A);
    s.put(2, 1, X, &Z.to_le_bytes());
    s.persist(2, X);
    s.unlock(2, A);
    s.load(3, 2, X);
    s.lock(3, B);
    s.act(3);
    s.unlock(3, B);
    assert_eq!(s.races(), [(1, 2)]);
}

#[test]
fn accesses_that_overlap_in_part_race_and_neighbours_do_not() {
    for (addr, size, racy) in [(X, 1, true), (X + 7, 1, true), (X + 4, 8, true), (X + 8, 8, false), (X - 8, 8, false)] {
        let mut s = new();
        s.add(2, 9, What::Load { addr, size });
        s.add(3, 9, What::Load { addr, size });
        s.store(2, 1, X);
        s.persist(2, X);
        s.add(3, 2, What::Load { addr, size });
        s.act(3);
        assert_eq!(!s.races().iter().all(|&(_, load)| load != 2), racy, "{addr:x} {size}");
    }
}

#[test]
fn an_access_over_two_lines_is_two() {
    let mut s = new();
    s.public(X + 60);
    s.put(2, 1, X + 60, &[1; 8]);
    s.persist(2, X);
    s.use_(3, 2, Y);
    assert_eq!(s.races(), [(1, 2)]);
}

#[test]
fn initialisation_that_is_persisted_is_removed() {
    let mut s = Script::new(LocksetOptions::default());
    s.store(2, 1, X);
    s.persist(2, X);
    s.use_(3, 2, X);
    assert_eq!(s.races(), []);
    let mut s = Script::new(LocksetOptions { init_removal: false, allocators: false, ..LocksetOptions::default() });
    s.store(2, 1, X);
    s.persist(2, X);
    s.use_(3, 2, X);
    assert_eq!(s.races(), [(1, 2)]);
}

#[test]
fn initialisation_that_is_not_persisted_is_kept() {
    let mut s = Script::new(LocksetOptions::default());
    s.store(2, 1, X);
    s.use_(3, 2, X);
    s.persist(2, X);
    assert_eq!(s.races(), [(1, 2)]);
}

/// Whether another run may not show the races with the load at site 2.
fn is_chance(s: Script) -> Vec<bool> {
    let outcome = s.engine.finish();
    outcome.races.iter().filter(|race| race.load.site.0 == 2).map(|race| race.sightings.is_chance()).collect()
}

#[test]
fn a_race_at_one_line_of_many_may_not_show_again() {
    let run = |lines: u64, read: u64| {
        let mut s = Script::new(LocksetOptions::default());
        for line in 0..lines {
            s.public(X + 64 * line);
            s.store(2, 1, X + 64 * line);
            s.persist(2, X + 64 * line);
        }
        (0..read).for_each(|line| s.use_(3, 2, X + 64 * line));
        is_chance(s)
    };
    assert_eq!(run(1, 1), [false], "there is no other line");
    assert_eq!((run(6, 1), run(6, 2), run(6, 3)), (vec![true], vec![true], vec![false]));
}

#[test]
fn what_only_an_overlap_makes_a_race_may_not_show_again() {
    let run = |persisted: bool, known: bool| {
        let mut s = Script::new(LocksetOptions::default());
        if known {
            s.public(X);
        }
        s.store(2, 1, X);
        s.use_(3, 2, X);
        if persisted {
            s.persist(2, X);
        }
        is_chance(s)
    };
    assert_eq!(run(true, false), [true], "had the reader come later, it would have been initialisation");
    assert_eq!(run(true, true), [false]);
    assert_eq!(run(false, false), [false], "whenever the reader comes, it comes in time");
}

#[test]
fn a_lock_free_store_that_was_read_in_time_may_not_show_again() {
    let mut s = new();
    s.cas(2, 1, X, 0, 64, true);
    s.use_(3, 2, X);
    s.persist(2, X);
    assert_eq!(is_chance(s), [true]);
}

#[test]
fn a_store_that_is_never_persisted_races_and_so_does_one_that_is_overwritten() {
    let mut s = new();
    s.store(2, 1, X);
    s.use_(3, 2, X);
    assert_eq!(s.races(), [(1, 2)]);
    let mut s = new();
    s.store(2, 1, X);
    s.use_(3, 2, X);
    s.store(2, 3, X);
    s.persist(2, X);
    assert_eq!(s.races(), [(1, 2), (3, 2)]);
}

#[test]
fn a_flush_without_a_fence_persists_nothing_and_clflush_needs_none() {
    for (how, racy) in [(FlushKind::Clwb, true), (FlushKind::Clflushopt, true), (FlushKind::Clflush, false)] {
        let mut s = new();
        s.lock(2, A);
        s.store(2, 1, X);
        s.add(2, 9, What::Flush { addr: X, how, pm: true });
        s.unlock(2, A);
        s.add(2, 9, What::Fence { how: FenceKind::Sfence });
        locked_load(&mut s);
        assert_eq!(s.races() == [(1, 2)], racy, "{how:?}");
    }
}

#[test]
fn a_non_temporal_store_is_persistent_at_the_fence() {
    let mut s = new();
    s.lock(2, A);
    s.add(2, 1, What::Store { addr: X, value: &[1; 8], how: StoreKind::NonTemporal });
    s.add(2, 9, What::Fence { how: FenceKind::Sfence });
    s.unlock(2, A);
    locked_load(&mut s);
    assert_eq!(s.races(), []);
}

#[test]
fn readers_share_a_lock_and_do_not_exclude_each_other() {
    for (how, racy) in [(LockKind::Shared, true), (LockKind::Exclusive, false)] {
        let mut s = new();
        s.add(2, 9, What::Acquire { lock: A, how });
        s.store(2, 1, X);
        s.persist(2, X);
        s.add(2, 9, What::Release { lock: A, how });
        s.add(3, 9, What::Acquire { lock: A, how: LockKind::Shared });
        s.use_(3, 2, X);
        s.add(3, 9, What::Release { lock: A, how: LockKind::Shared });
        assert_eq!(s.races() == [(1, 2)], racy, "{how:?}");
    }
}

#[test]
fn recursive_locks_are_held_until_the_last_release() {
    let mut s = new();
    s.lock(2, A);
    s.lock(2, A);
    s.store(2, 1, X);
    s.unlock(2, A);
    s.persist(2, X);
    s.unlock(2, A);
    locked_load(&mut s);
    assert_eq!(s.races(), []);
}

#[test]
fn a_lock_that_another_thread_gives_back_is_given_back() {
    let mut s = new();
    s.lock(2, A);
    s.store(2, 1, X);
    s.unlock(4, A);
    s.persist(2, X);
    locked_load(&mut s);
    assert_eq!(s.races(), [(1, 2)]);
}

#[test]
fn a_reader_that_persists_what_it_read_before_it_acts_is_safe() {
    let run = |options: LocksetOptions, helps: bool| {
        let mut s = Script::new(options);
        s.public(X);
        s.store(2, 1, X);
        s.load(3, 2, X);
        if helps {
            s.persist(3, X);
        }
        s.act(3);
        s.persist(2, X);
        s.races()
    };
    assert_eq!(run(LocksetOptions::default(), true), []);
    assert_eq!(run(LocksetOptions::default(), false), [(1, 2)]);
    assert_eq!(run(LocksetOptions { reader_window: false, ..LocksetOptions::default() }, true), [(1, 2)]);
}

#[test]
fn a_reader_that_takes_the_writers_lock_before_it_acts_is_safe() {
    let mut s = new();
    s.lock(2, A);
    s.store(2, 1, X);
    s.persist(2, X);
    s.unlock(2, A);
    s.load(3, 2, X);
    s.lock(3, A);
    s.act(3);
    s.unlock(3, A);
    assert_eq!(s.races(), []);
}
