//! Litmus tests of the lockset engine: the figures of the HawkSet paper and the patterns that pmvet adds, as scripted events
//! with exact verdicts.

use std::path::PathBuf;

use pmvet_engines::lockset::pm_locks::{Aftermath, Afterwards};
use pmvet_engines::lockset::recordings::join;
use pmvet_engines::lockset::{self, Code, Edges, LockShape, LocksetAnalysis, LocksetEngine, LocksetOptions};
use pmvet_engines::stacks::Stacks;
use pmvet_events::event::{AtomicKind, Event, FenceKind, FlushKind, LockKind, StoreKind, SyncOp, What};
use pmvet_events::{ContextId, FileId, SiteId, ThreadId};
use pmvet_findings::{Evidence, Finding, Frame, Role, Severity, Sources, Stack};
use proptest::prelude::*;

const BASE: u64 = 0x2000_0000_0000;
const X: u64 = BASE + 0x10000;
const Y: u64 = BASE + 0x10040;
const Z: u64 = BASE + 0x10080;
const A: u64 = 0x7000_0000;
const B: u64 = 0x7000_0040;

/// What one recording predicts.
fn findings(outcome: &LocksetAnalysis, stacks: &mut dyn Stacks, sources: &Sources) -> Vec<Finding> {
    join(vec![lockset::findings::findings(outcome, stacks, sources)])
}

/// Scripts a run, event by event. The test chooses the numbers of sites.
struct Script {
    engine: LocksetEngine,
    seq: u64,
}

impl Script {
    /// One PM file at `BASE`, and thread 1 with children 2 to 5.
    fn new(options: LocksetOptions) -> Self {
        let mut script = Script::bare(options);
        (2..=5).for_each(|child| script.create(1, child));
        script
    }

    fn bare(options: LocksetOptions) -> Self {
        let mut script = Script { engine: LocksetEngine::new(options), seq: 0 };
        script.add(1, 0, What::ProcessStart { process: 7, parent: 0, path: "prog".as_ref() });
        script.add(1, 0, What::ThreadStart { process: 7, os_thread: 7 });
        let file = FileId(1);
        script.add(1, 0, What::File { file, size: 1 << 20, device: 1, inode: 1, path: "/pool".as_ref() });
        script.add(1, 0, What::Map { file, addr: BASE, len: 1 << 20, offset: 0, writable: true });
        script
    }

    fn add(&mut self, thread: u32, site: u32, what: What<'_>) {
        self.seq += u64::from(what.is_numbered());
        let (thread, site) = (ThreadId(thread), SiteId(site));
        self.engine.event(&Event { seq: self.seq, thread, site, context: ContextId(1), what });
    }

    fn create(&mut self, parent: u32, child: u32) {
        self.add(parent, 0, What::ThreadCreate { child: ThreadId(child) });
        self.add(child, 0, What::ThreadStart { process: 7, os_thread: child });
    }

    fn store(&mut self, thread: u32, site: u32, addr: u64) {
        self.put(thread, site, addr, &7u64.to_le_bytes());
    }

    fn put(&mut self, thread: u32, site: u32, addr: u64, value: &[u8]) {
        self.add(thread, site, What::Store { addr, value, how: StoreKind::Regular });
    }

    fn load(&mut self, thread: u32, site: u32, addr: u64) {
        self.add(thread, site, What::Load { addr, size: 8 });
    }

    /// A load that its thread acts on, by a store to a place of its own.
    fn use_(&mut self, thread: u32, site: u32, addr: u64) {
        self.load(thread, site, addr);
        self.act(thread);
    }

    fn act(&mut self, thread: u32) {
        self.store(thread, 900, BASE + 0x80000 + u64::from(thread) * 64);
    }

    fn persist(&mut self, thread: u32, addr: u64) {
        self.add(thread, 901, What::Flush { addr, how: FlushKind::Clwb, pm: true });
        self.add(thread, 902, What::Fence { how: FenceKind::Sfence });
    }

    fn lock(&mut self, thread: u32, lock: u64) {
        self.add(thread, 903, What::Acquire { lock, how: LockKind::Exclusive });
    }

    fn unlock(&mut self, thread: u32, lock: u64) {
        self.add(thread, 904, What::Release { lock, how: LockKind::Exclusive });
    }

    fn cas(&mut self, thread: u32, site: u32, addr: u64, old: u64, new: u64, stored: bool) {
        let (old, new) = (&old.to_le_bytes(), &new.to_le_bytes());
        let how = if stored { AtomicKind::Changed } else { AtomicKind::Failed };
        let volatile = What::Atomic { addr, old, new, how };
        self.add(
            thread,
            site,
            if addr < BASE { volatile } else { What::Rmw { addr, old, new, stored, discards: false } },
        );
    }

    fn sync(&mut self, thread: u32, op: SyncOp) {
        self.add(thread, 905, What::Sync { object: B, op });
    }

    /// Both threads have touched `addr`, so that what follows is not initialisation.
    fn public(&mut self, addr: u64) {
        self.load(2, 906, addr);
        self.load(3, 906, addr);
    }

    fn races(self) -> Vec<(u32, u32)> {
        races(&self.engine.finish())
    }
}

fn races(outcome: &LocksetAnalysis) -> Vec<(u32, u32)> {
    let mut found: Vec<_> = outcome.races.iter().map(|r| (r.store.site.0, r.load.site.0)).collect();
    // Races of `Script::public` only prepare the test.
    found.retain(|&(_, load)| load != 906);
    found.sort_unstable();
    found
}

fn new() -> Script {
    let mut script = Script::new(LocksetOptions::default());
    script.public(X);
    script.public(Y);
    script
}

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
fn late_persist(s: &mut Script) {
    s.lock(2, A);
    s.store(2, 1, X);
    s.unlock(2, A);
    s.persist(2, X);
}

fn locked_load(s: &mut Script) {
    s.lock(3, A);
    s.use_(3, 2, X);
    s.unlock(3, A);
}

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

/// A critical section of a spin lock in PM around a store to X and its persist.
fn spin_section(s: &mut Script, thread: u32, take: u32, store: u32, free: u64, held: u64) {
    s.cas(thread, take, Z, free, held, true);
    s.store(thread, store, X);
    s.persist(thread, X);
    s.put(thread, 52, Z, &free.to_le_bytes());
}

#[test]
fn an_inferred_spin_lock_protects_and_can_be_turned_off_or_denied() {
    let script = |options: LocksetOptions| {
        let mut s = Script::new(options);
        s.public(X);
        spin_section(&mut s, 2, 51, 1, 0, 1);
        s.cas(3, 51, Z, 0, 1, true);
        s.use_(3, 2, X);
        s.put(3, 52, Z, &0u64.to_le_bytes());
        spin_section(&mut s, 2, 51, 1, 0, 1);
        s.engine.finish_with(&mut |site| {
            let functions = if site.0 == 51 { vec!["my_lock".to_string()] } else { Vec::new() };
            Code { functions, module: "program".into() }
        })
    };
    let outcome = script(LocksetOptions::default());
    assert_eq!(races(&outcome), []);
    assert_eq!((outcome.inferred.len(), outcome.inferred[0].shape), (1, LockShape::Plain));
    assert_eq!((outcome.inferred[0].acquired, outcome.inferred[0].threads), (3, 2));
    // Without inference the word is data, and races itself.
    assert_eq!(races(&script(LocksetOptions { infer_locks: false, ..LocksetOptions::default() })), [(1, 2), (52, 51)]);
    let deny = vec!["my_lock".into(), "my_lok".into()];
    let denied = script(LocksetOptions { deny, declare: vec!["other".into()], ..LocksetOptions::default() });
    assert_eq!(races(&denied), [(1, 2)]);
    assert_eq!(denied.unmatched.deny, ["my_lok"], "no function has this name");
    assert_eq!(denied.unmatched.declare, ["other"]);
}

#[test]
fn a_mutex_outside_of_pm_is_known_by_its_atomics() {
    // Rust's mutex: 0 free, 1 held, 2 held and waited for; released by an exchange.
    let mut s = new();
    s.cas(2, 51, A, 0, 1, true);
    s.store(2, 1, X);
    s.persist(2, X);
    s.cas(3, 53, A, 1, 2, true);
    s.cas(2, 52, A, 2, 0, true);
    s.cas(3, 53, A, 0, 2, true);
    s.use_(3, 2, X);
    s.cas(3, 52, A, 2, 0, true);
    assert_eq!(s.races(), []);
}

/// Whatever happens in between: it is chance that threads took turns, or that one was done before the other began.
#[test]
fn a_load_races_with_stores_that_others_have_long_covered() {
    let mut s = new();
    s.lock(2, A);
    s.store(2, 1, X);
    s.persist(2, X);
    s.unlock(2, A);
    for _ in 0..100 {
        s.lock(3, A);
        s.store(3, 3, X);
        s.persist(3, X);
        s.unlock(3, A);
    }
    s.use_(3, 2, X);
    assert_eq!(s.races(), [(1, 2)]);
    // And the other way round.
    let mut s = new();
    s.use_(3, 2, X);
    for thread in [3, 3, 3, 2] {
        s.lock(thread, A);
        s.store(thread, thread, X);
        s.persist(thread, X);
        s.unlock(thread, A);
    }
    assert_eq!(s.races(), [(2, 2)]);
}

/// A thread that follows a pointer takes the lock of its target. Had the pointer led elsewhere, it would have taken
/// another lock.
#[test]
fn a_lock_that_depends_on_the_value_says_nothing_about_other_values() {
    for (lock, expected) in [(B, vec![]), (A, vec![(3, 2)])] {
        let mut s = new();
        s.lock(2, A);
        s.store(2, 1, X);
        s.persist(2, X);
        s.unlock(2, A);
        s.lock(4, B);
        s.store(4, 3, X);
        s.persist(4, X);
        s.unlock(4, B);
        s.load(3, 2, X);
        s.lock(3, lock);
        s.act(3);
        // The value is that of thread 4, which held B: it is safe to follow it to B, and not to A.
        assert_eq!(s.races(), expected, "{lock:x}");
    }
}

/// Some of many threads that do the same represent all of them, whichever thread is on the other side.
#[test]
fn a_crowd_of_like_threads_hides_nothing() {
    for reader in 2..40 {
        let mut s = Script::new(LocksetOptions::default());
        (5..40).for_each(|child| s.create(1, child));
        s.public(X);
        for thread in 2..40 {
            s.lock(thread, A);
            s.store(thread, 1, X);
            s.persist(thread, X);
            s.unlock(thread, A);
        }
        s.use_(reader, 2, X);
        assert_eq!(s.races(), [(1, 2)], "reader {reader}");
    }
}

#[test]
fn the_end_of_a_detached_thread_is_known_to_its_creator_alone() {
    for (detached, reader, races) in [(true, 1, 0), (false, 1, 1), (true, 3, 1)] {
        let mut s = new();
        s.lock(2, A);
        s.store(2, 1, X);
        s.persist(2, X);
        s.unlock(2, A);
        if detached {
            s.add(1, 0, What::ThreadDetach { child: ThreadId(2) });
        }
        s.add(2, 0, What::ThreadExit);
        s.use_(reader, 2, X);
        assert_eq!(s.races().len(), races, "detached: {detached}, reader {reader}");
    }
}

#[test]
fn a_mutex_in_pm_is_no_data_and_a_library_is_its_own_business() {
    let script = |module: &str| {
        let mut s = new();
        s.store(2, 1, Z + 8);
        s.lock(2, Z);
        s.use_(3, 2, Z + 8);
        s.store(2, 3, X);
        s.use_(3, 4, X);
        let outcome = s.engine.finish_with(&mut |_| Code { functions: Vec::new(), module: module.into() });
        races(&outcome)
    };
    assert_eq!(script("program"), [(3, 4)]);
    assert_eq!(script("libpmemobj.so.1.0.0"), []);
}

#[test]
fn a_lock_in_pm_is_as_large_as_what_its_function_locks() {
    for (function, bytes) in [
        ("pthread_spin_lock", 4),
        ("__pthread_spin_trylock", 4),
        ("pthread_mutex_lock", 40),
        ("pthread_rwlock_wrlock", 56),
        ("take_latch", 8),
    ] {
        let found = |at: u64| {
            let mut s = new();
            s.public(Z + at);
            s.lock(2, Z);
            s.put(2, 1, Z + at, &[7; 4]);
            s.unlock(2, Z);
            s.use_(3, 2, Z + at);
            let named = |site: SiteId| if site.0 == 903 { vec![function.to_owned()] } else { Vec::new() };
            races(&s.engine.finish_with(&mut |site| Code { functions: named(site), module: String::new() }))
        };
        assert_eq!(found(bytes - 4), [], "{function}");
        assert_eq!(found(bytes), [(1, 2)], "{function}");
    }
}

/// The function takes a mutex for the lock that is named; the lock's own function stores to it.
#[test]
fn what_the_c_library_stores_to_a_lock_that_a_function_wraps_is_no_data() {
    for (function, expected) in [("__pthread_mutex_lock", &[][..]), ("set_owner", &[(1, 2)])] {
        let mut s = new();
        s.public(Z + 16);
        s.lock(2, Z);
        s.store(2, 1, Z + 16);
        s.unlock(2, Z);
        s.use_(3, 2, Z + 16);
        let named = |site: SiteId| match site.0 {
            903 => vec!["take_latch".to_owned()],
            1 => vec![function.to_owned()],
            _ => Vec::new(),
        };
        let outcome = s.engine.finish_with(&mut |site| Code { functions: named(site), module: String::new() });
        assert_eq!(races(&outcome), expected, "{function}");
    }
}

/// A sequence lock: odd while a thread writes. `given_back` is the instruction that makes it even again, by one more.
fn sequence_sections(given_back: u32) -> (Vec<(u32, u32)>, Vec<LockShape>) {
    let mut s = new();
    for round in 0..4u32 {
        let (thread, sequence) = (2 + round % 2, u64::from(round) * 2);
        s.cas(thread, 51, X + 32, sequence, sequence + 1, true);
        s.store(thread, 1, X);
        s.persist(thread, X);
        s.cas(thread, given_back, X + 32, sequence + 1, sequence + 2, true);
        let reader = 5 - thread;
        s.load(reader, 60, X + 32);
        s.load(reader, 2, X);
        s.load(reader, 61, X + 32);
        s.act(reader);
    }
    let outcome = s.engine.finish();
    let shapes = outcome.inferred.iter().map(|lock| lock.shape).collect();
    (races(&outcome).into_iter().filter(|&(_, load)| load == 2).collect(), shapes)
}

#[test]
fn a_sequence_lock_may_count_up_by_two_instructions_and_not_by_one() {
    assert_eq!(sequence_sections(52), (vec![], vec![LockShape::Version]));
    // One instruction that increments, twice in a row by each thread, is a counter.
    assert_eq!(sequence_sections(51), (vec![(1, 2)], vec![]));
}

/// What is stored beside a lock may be any number, even that of a ticket.
#[test]
fn a_word_that_was_given_back_is_no_ticket() {
    let mut s = new();
    for round in 0..4u32 {
        let (thread, sequence) = (2 + round % 2, u64::from(round) * 2);
        s.cas(thread, 51, X + 32, sequence, sequence + 1, true);
        let value = if round == 2 { sequence + 1 } else { 77 };
        s.put(thread, 1, X, &value.to_le_bytes());
        s.persist(thread, X);
        s.cas(thread, 52, X + 32, sequence + 1, sequence + 2, true);
    }
    let outcome = s.engine.finish();
    let shapes: Vec<LockShape> = outcome.inferred.iter().map(|lock| lock.shape).collect();
    assert_eq!(shapes, [LockShape::Version]);
}

/// Each thread counts a word up while it is about, as with pins of a page, and down again: by an atomic subtraction, or by a store as with
/// a spin lock. `together`: two are there at a time once, at another word.
fn counted_sections(together: bool, subtracts: bool) -> Vec<(u32, u32)> {
    let mut s = new();
    if together {
        s.cas(2, 51, B, 0, 1, true);
        s.cas(3, 51, B, 1, 2, true);
        s.cas(2, 52, B, 2, 1, true);
        s.cas(3, 52, B, 1, 0, true);
    }
    for round in 0..12 {
        let thread = 2 + round % 2;
        s.cas(thread, 51, A, 0, 1, true);
        s.use_(thread, 2, X);
        s.store(thread, 1, X);
        s.persist(thread, X);
        if subtracts {
            s.cas(thread, 52, A, 1, 0, true);
        } else {
            s.add(
                thread,
                53,
                What::Atomic { addr: A, old: &1u64.to_le_bytes(), new: &[0; 8], how: AtomicKind::Stored },
            );
        }
    }
    s.races()
}

#[test]
fn what_several_hold_at_a_time_in_one_place_is_shared_elsewhere_too() {
    assert_eq!(counted_sections(false, true), []);
    assert_eq!(counted_sections(true, true), [(1, 2)]);
    // A lock that one compare-and-swap of a library takes, as it counts references.
    assert_eq!(counted_sections(true, false), []);
}

/// A counter beside a name, which other threads search with a vector string function.
#[test]
fn what_a_string_function_reads_behind_the_string_does_not_count() {
    for (name, function, module, expected) in [
        (&b"key\0"[..], "__strcmp_evex", "libc.so.6", &[][..]),
        (b"key\0", "strncmp", "libc.so.6", &[]),
        (b"a name without end", "__strcmp_evex", "libc.so.6", &[(1, 2)]),
        (b"key\0", "__memcpy_evex", "libc.so.6", &[(1, 2)]),
        (b"key\0", "strcmp", "program", &[(1, 2)]),
    ] {
        let mut s = new();
        s.put(2, 10, Y, name);
        s.persist(2, Y);
        s.public(Y + 24);
        for _ in 0..2 {
            s.store(2, 1, Y + 24);
            s.add(3, 2, What::Load { addr: Y, size: 32 });
            s.act(3);
            s.persist(2, Y);
        }
        let named = |site: SiteId| if site.0 == 2 { vec![function.to_owned()] } else { Vec::new() };
        let module_of = |site: SiteId| if site.0 == 2 { module.to_owned() } else { String::new() };
        let mut found =
            races(&s.engine.finish_with(&mut |site| Code { functions: named(site), module: module_of(site) }));
        found.retain(|&(store, _)| store == 1);
        assert_eq!(found, expected, "{function} of {module}");
    }
}

/// The string grows until it includes what was behind it.
#[test]
fn a_string_that_grows_is_another_string() {
    let mut s = new();
    s.put(2, 10, Y, b"key\0");
    s.persist(2, Y);
    s.public(Y + 8);
    let look = |s: &mut Script| {
        s.add(3, 2, What::Load { addr: Y, size: 32 });
        s.act(3);
    };
    look(&mut s);
    look(&mut s);
    s.put(2, 11, Y + 3, b"boards ");
    s.persist(2, Y);
    s.store(2, 1, Y + 8);
    look(&mut s);
    s.persist(2, Y);
    let code = |site: SiteId| Code {
        functions: vec!["strcmp".to_owned(); usize::from(site.0 == 2)],
        module: "libc.so.6".into(),
    };
    let found = races(&s.engine.finish_with(&mut |site| code(site)));
    assert!(found.contains(&(1, 2)), "{found:?}");
}

#[test]
fn functions_that_take_no_lock_in_the_run_are_named() {
    let names = ["no_such_function", "take_latch", "_ZL6unlocki", "_ZL6unlockl"].map(str::to_owned);
    let mut s = Script::new(LocksetOptions { sync: names.to_vec(), ..LocksetOptions::default() });
    s.lock(2, Z);
    s.unlock(2, Z);
    let named = |site: SiteId| match site.0 {
        903 => vec!["take_latch".to_owned()],
        904 => vec!["unlock(int)".to_owned()],
        _ => vec!["no_such_function".to_owned()],
    };
    let outcome = s.engine.finish_with(&mut |site| Code { functions: named(site), module: String::new() });
    // Arguments are not compared: debug information may leave them out.
    assert_eq!(outcome.unmatched.sync, ["no_such_function"]);
}

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
        s.races()
    };
    assert_eq!(run(LocksetOptions::default(), false), []);
    assert_eq!(run(LocksetOptions::default(), true), [(1, 2)]);
    assert_eq!(run(LocksetOptions { lock_free: true, ..LocksetOptions::default() }, false), [(1, 2)]);
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
fn a_pointer_may_come_with_the_number_of_its_pool_or_by_an_exchange() {
    type Publish = fn(&mut Script);
    let publish: [(&str, Publish); 3] = [
        ("alone", |s| s.put(2, 5, Y, &X.to_le_bytes())),
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

#[test]
fn a_lock_in_pm_is_named_with_a_crash_that_leaves_it_held() {
    let mut s = new();
    s.cas(2, 51, Z, 0, 1, true);
    s.store(2, 1, Z + 8);
    s.persist(2, Z);
    let crash = s.seq + 1;
    s.put(2, 52, Z, &0u64.to_le_bytes());
    let outcome = s.engine.finish();
    let [held] = &outcome.held[..] else { panic!("{:?}", outcome.held) };
    assert_eq!((held.word.offset, held.crash_at, held.flushed, held.values), (Z - BASE, crash, true, Some((0, 1))));

    let after = |recovery: &[What<'_>], failed| {
        let mut aftermath = Aftermath::new(held, "/pool".as_ref());
        let start = [
            What::ThreadStart { process: 1, os_thread: 1 },
            What::File { file: FileId(9), size: 1 << 20, device: 1, inode: 1, path: "/pool".as_ref() },
            What::Map { file: FileId(9), addr: BASE, len: 1 << 20, offset: 0, writable: true },
        ];
        for (seq, &what) in start.iter().chain(recovery).enumerate() {
            let (site, context) = (SiteId(1), ContextId(1));
            aftermath.event(&Event { seq: seq as u64 + 1, thread: ThreadId(1), site, context, what });
        }
        aftermath.verdict(failed)
    };
    let (zero, one) = (0u64.to_le_bytes(), 1u64.to_le_bytes());
    let frees = What::Store { addr: Z, value: &zero, how: StoreKind::Regular };
    let refused = What::Rmw { addr: Z, old: &one, new: &one, stored: false, discards: false };
    assert_eq!(after(&[], false), Afterwards::Unused);
    assert_eq!(after(&[frees], false), Afterwards::Freed);
    assert_eq!(after(&[refused], true), Afterwards::LeftHeld);
    let (two, three) = (2u64.to_le_bytes(), 3u64.to_le_bytes());
    let joins = What::Rmw { addr: Z, old: &one, new: &two, stored: true, discards: false };
    assert_eq!(after(&[joins], true), Afterwards::LeftHeld, "a count that goes on is not free");
    let takes_over = What::Rmw { addr: Z, old: &one, new: &three, stored: true, discards: false };
    assert_eq!(after(&[takes_over], false), Afterwards::Freed);
    assert_eq!(after(&[What::Load { addr: Z, size: 8 }], true), Afterwards::LeftHeld);
    assert_eq!(after(&[What::Load { addr: Z, size: 8 }], false), Afterwards::Unused);
}

#[test]
fn who_only_looks_at_a_lock_spins() {
    let mut s = new();
    s.cas(2, 51, Z, 0, 1, true);
    s.persist(2, Z);
    s.put(2, 52, Z, &0u64.to_le_bytes());
    let outcome = s.engine.finish();
    let [held] = &outcome.held[..] else { panic!("{:?}", outcome.held) };

    let (zero, one) = (0u64.to_le_bytes(), 1u64.to_le_bytes());
    let look = What::Rmw { addr: Z, old: &one, new: &one, stored: false, discards: false };
    let elsewhere = What::Load { addr: Z + 64, size: 8 };
    let frees = What::Store { addr: Z, value: &zero, how: StoreKind::Regular };
    let spins = |events: &[(u32, What<'_>)]| {
        let mut aftermath = Aftermath::new(held, "/pool".as_ref());
        let start = [
            What::ThreadStart { process: 1, os_thread: 1 },
            What::File { file: FileId(9), size: 1 << 20, device: 1, inode: 1, path: "/pool".as_ref() },
            What::Map { file: FileId(9), addr: BASE, len: 1 << 20, offset: 0, writable: true },
        ];
        let start = start.iter().map(|&what| (1, what));
        let second = (2, What::ThreadStart { process: 1, os_thread: 2 });
        for (seq, (thread, what)) in start.chain([second]).chain(events.iter().copied()).enumerate() {
            let (site, context) = (SiteId(1), ContextId(1));
            aftermath.event(&Event { seq: seq as u64 + 1, thread: ThreadId(thread), site, context, what });
        }
        assert!(!aftermath.is_decided() || events.last() == Some(&(1, frees)));
        aftermath.is_spinning()
    };
    // The client reports no more of a row than this.
    let row = vec![(2, look); 256];
    assert!(spins(&row));
    assert!(!spins(&row[..100]), "it may get the lock yet");
    assert!(spins(&[&row[..], &[(1, elsewhere)]].concat()), "another thread did something: the row goes on");
    assert!(!spins(&[&row[..], &[(2, elsewhere)]].concat()));
    assert!(!spins(&[&row[..], &[(1, frees)]].concat()));
}

/// Calls every site by its number.
struct Fake;

impl Stacks for Fake {
    fn stack(&mut self, site: SiteId, _: ContextId) -> Stack {
        vec![Frame {
            function: Some(format!("f{site}")),
            file: Some("a.c".into()),
            line: Some(site.0),
            ..Frame::default()
        }]
    }

    fn file(&self, _: FileId) -> PathBuf {
        "/pool".into()
    }
}

fn no_sources() -> Sources {
    Sources::in_memory([] as [(&str, &str); 0])
}

#[test]
fn locks_are_named_by_variable_by_place_in_pm_or_by_the_line_that_takes_them() {
    /// The heap's locks are at A and after it; `table_lock` is elsewhere.
    struct WithVariable;
    const VARIABLE: u64 = 0x50_0000;
    impl Stacks for WithVariable {
        fn stack(&mut self, site: SiteId, context: ContextId) -> Stack {
            Fake.stack(site, context)
        }

        fn file(&self, file: FileId) -> PathBuf {
            Fake.file(file)
        }

        fn variable(&mut self, address: u64) -> Option<(String, u64)> {
            (address / 0x1000 == VARIABLE / 0x1000).then(|| ("table_lock".into(), address - VARIABLE))
        }
    }
    /// Every line is called by a line 903, but that.
    struct Wrapped;
    impl Stacks for Wrapped {
        fn stack(&mut self, site: SiteId, context: ContextId) -> Stack {
            let inner = if site.0 == 903 { SiteId(800) } else { site };
            [inner, SiteId(903)].into_iter().flat_map(|site| Fake.stack(site, context)).collect()
        }

        fn file(&self, file: FileId) -> PathBuf {
            Fake.file(file)
        }
    }
    // Each thread has a lock of its own that is taken by the same line; that of the reader is at the lower address.
    let locks_of = |writer: u64, reader: u64| {
        let mut s = new();
        s.lock(2, writer);
        s.store(2, 1, X);
        s.lock(3, reader);
        s.load(3, 2, X);
        s.act(3);
        s.unlock(3, reader);
        s.persist(2, X);
        s.unlock(2, writer);
        let found = findings(&s.engine.finish(), &mut WithVariable, &no_sources());
        let race = found.into_iter().find(|f| f.places[1].stack[0].line == Some(2)).expect("the race is found");
        let Evidence::Race { store_locks, load_locks, .. } = race.evidence else { panic!("{race:?}") };
        (store_locks.join(", "), load_locks.join(", "))
    };
    let taken = |number| format!("a lock taken at {}{number}", Fake.stack(SiteId(903), ContextId(0))[0]);
    assert_eq!(locks_of(A + 64, A), (taken(" #1"), taken(" #2")));
    assert_eq!(locks_of(A, A + 64), (taken(" #1"), taken(" #2")));
    assert_eq!(locks_of(VARIABLE, VARIABLE + 40), ("`table_lock`".into(), "`table_lock`+0x28".into()));
    // The arguments of a function that takes locks name them.
    let sources = Sources::in_memory([("a.c", "\n".repeat(902) + "spin_lock(&b->lock);\n")]);
    let mut s = new();
    s.lock(2, A);
    s.store(2, 1, X);
    s.use_(3, 2, X);
    s.persist(2, X);
    s.unlock(2, A);
    let found = findings(&s.engine.finish(), &mut Wrapped, &sources);
    let race = found.into_iter().find(|f| f.places[1].stack[0].line == Some(2)).expect("the race is found");
    assert!(
        matches!(&race.evidence, Evidence::Race { store_locks, .. } if *store_locks == ["`b->lock` taken at f903 (a.c:903)"]),
        "{race:?}"
    );
    let (store, load) = locks_of(Z, A);
    assert_eq!((store, load), (format!("pool+{:#x}{}", Z - BASE, &taken("")[6..]), taken("")));
}

#[test]
fn a_race_says_from_when_to_when_its_locks_were_held() {
    let mut s = new();
    s.lock(2, A);
    s.store(2, 1, X);
    s.lock(3, A + 64);
    s.load(3, 2, X);
    s.act(3);
    s.unlock(3, A + 64);
    // Taken and released before and after: not the critical section of the load.
    s.lock(3, A + 64);
    s.unlock(3, A + 64);
    s.persist(2, X);
    s.unlock(2, A);
    let found = findings(&s.engine.finish(), &mut Fake, &no_sources());
    let race = found.into_iter().find(|f| f.places[1].stack[0].line == Some(2)).expect("the race is found");
    let Evidence::Race { lock_spans, timeline, .. } = &race.evidence else { panic!("{race:?}") };
    let seq = |what: &str| timeline.iter().find(|step| step.what == what).unwrap().seq;
    let [store, load] = lock_spans.as_slice() else { panic!("{lock_spans:?}") };
    assert_eq!((store.thread, load.thread), (2, 3));
    assert!(store.from < seq("stored") && store.to.is_none(), "{store:?}: held when the value becomes persistent");
    assert!(load.from <= seq("loaded") && load.from > seq("stored"), "{load:?}");
    assert!(load.to.is_some_and(|to| to > seq("loaded") && to < seq("persisted")), "{load:?}");
}

/// Every event is in a function that the context is the caller of.
struct Called;

impl Stacks for Called {
    fn stack(&mut self, site: SiteId, context: ContextId) -> Stack {
        [site.0, 10_000 + context.0].into_iter().flat_map(|at| Fake.stack(SiteId(at), context)).collect()
    }

    fn file(&self, file: FileId) -> PathBuf {
        Fake.file(file)
    }
}

#[test]
fn races_through_one_setter_are_told_apart_by_its_callers_and_all_paths_are_told() {
    // Both fields are in one line. Paths 11 and 12 lead to the setter at 1, and fence in the caller; 21 and 22 to the getter at 2.
    let run = |own_fence: bool| {
        let mut s = new();
        s.public(X + 8);
        let mut on_path = |context: u32, thread: u32, site: u32, what: What<'_>| {
            s.seq += u64::from(what.is_numbered());
            let (thread, site, context) = (ThreadId(thread), SiteId(site), ContextId(context));
            s.engine.event(&Event { seq: s.seq, thread, site, context, what });
        };
        for (setter, getter, addr) in [(11, 21, X), (12, 22, X + 8)] {
            on_path(setter, 2, 1, What::Store { addr, value: &[7; 8], how: StoreKind::Regular });
            on_path(setter, 2, 901, What::Flush { addr, how: FlushKind::Clwb, pm: true });
            // Where the fence is in the setter itself, so is the race.
            let fence = if own_fence { 1 } else { 902 };
            on_path(setter, 2, fence, What::Fence { how: FenceKind::Sfence });
            on_path(getter, 3, 2, What::Load { addr, size: 8 });
            on_path(getter, 3, 900, What::Store { addr: Z, value: &[1; 8], how: StoreKind::Regular });
        }
        let mut found = findings(&s.engine.finish(), &mut Called, &no_sources());
        found.retain(|f| f.places[0].stack[0].line == Some(1) && f.places[1].stack[0].line == Some(2));
        found
    };
    let apart = run(false);
    let callers: Vec<_> = apart.iter().map(|f| f.places[0].stack[1].line.unwrap_or_default()).collect();
    assert_eq!(callers, [10_011, 10_012]);
    assert_eq!(apart.iter().map(|f| f.places[1].stack[1].line).collect::<Vec<_>>(), [Some(10_021), Some(10_022)]);
    let [one] = &run(true)[..] else { panic!("{:?}", run(true)) };
    assert!(one.happened.contains("The store is also reached in"), "{}", one.happened);
    assert!(one.happened.contains("The load is also reached in"), "{}", one.happened);
}

#[test]
fn a_finding_names_both_ends_and_what_to_change() {
    let mut s = new();
    s.lock(2, A);
    s.store(2, 1, X);
    s.unlock(2, A);
    locked_load(&mut s);
    s.persist(2, X);
    let found = findings(&s.engine.finish(), &mut Fake, &no_sources());
    // The line that made the word public reads it, too, though it was not seen to come too early.
    let [finding] = &found[..] else { panic!("one store, one finding: {found:?}") };
    assert_eq!((finding.rule.0.as_str(), finding.severity), ("persistency-race", Severity::Warning));
    assert_eq!(finding.title, "`f2` or `f906` may act on what `f1` has stored but not persisted");
    assert_eq!(finding.fix, "Flush and fence the value in `f1` before the lock is given back.");
    let places: Vec<_> = finding.places.iter().map(|p| (p.role, p.stack[0].line.unwrap_or_default())).collect();
    assert_eq!(places[..2], [(Role::Store, 1), (Role::Load, 2)], "{places:?}");
    assert_eq!((places[2].0, places[3]), (Role::Fence, (Role::Load, 906)), "{places:?}");
    assert!(matches!(&finding.evidence, Evidence::Race { observed: true, timeline, .. } if timeline.len() == 3));
}

#[test]
fn ten_million_loads_of_a_hot_line_and_sixty_four_threads_stay_small() {
    let mut s = Script::bare(LocksetOptions::default());
    (2..=65).for_each(|child| s.create(1, child));
    for round in 0..2_500 {
        for thread in 2..=65 {
            (0..if cfg!(debug_assertions) { 2 } else { 62 }).for_each(|_| s.load(thread, 3, X));
        }
        if round % 100 == 0 {
            s.lock(2, A);
            s.store(2, 1, X);
            s.persist(2, X);
            s.unlock(2, A);
        }
    }
    (2..=65).for_each(|thread| s.act(thread));
    let outcome = s.engine.finish();
    assert_eq!(races(&outcome), [(1, 3)]);
    assert!(outcome.stats.locksets < 10 && outcome.stats.lines < 100, "{:?}", outcome.stats);
}

/// Any event at all, on few addresses, sites and threads so that they meet.
fn event() -> impl Strategy<Value = (u32, u32, u8, u64, u64)> {
    (0..6u32, 0..8u32, 0..24u8, 0..40u64, 0..4u64)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn no_order_of_events_makes_it_panic(events in prop::collection::vec(event(), 0..300), variant in 0..4u8) {
        let options = match variant {
            0 => LocksetOptions::default(),
            1 => LocksetOptions::as_published(),
            2 => LocksetOptions { lock_free: true, init_removal: false, ..LocksetOptions::default() },
            _ => LocksetOptions { reader_window: false, max_lines: 3, ..LocksetOptions::default() },
        };
        let mut s = Script::bare(options);
        for (thread, site, kind, place, n) in events {
            let addr = X + place * 5;
            let (old, new) = (n.to_le_bytes(), (n + 1).to_le_bytes());
            let lock = if place % 2 == 0 { addr } else { A + place * 8 };
            let wide = [n as u8; 100];
            let how = if n == 0 { LockKind::Shared } else { LockKind::Exclusive };
            let sync = SyncOp::ALL[place as usize % SyncOp::ALL.len()];
            let (file, child) = (FileId(n as u32), ThreadId(n as u32 + 1));
            let what = match kind {
                0..3 => What::Load { addr, size: 1 << n },
                3 => What::Load { addr: lock, size: 200 },
                4 | 5 => What::Store { addr, value: &new, how: StoreKind::Regular },
                6 => What::Store { addr, value: &wide, how: StoreKind::NonTemporal },
                7 => What::Rmw { addr: lock, old: &old, new: &new, stored: site % 2 == 0, discards: false },
                8 => What::Rmw { addr: lock, old: &new, new: &old, stored: true, discards: false },
                9 => What::Flush { addr, how: FlushKind::Clwb, pm: true },
                10 => What::Flush { addr, how: FlushKind::Clflush, pm: true },
                11 | 12 => What::Fence { how: FenceKind::Sfence },
                13 => What::Acquire { lock, how },
                14 => What::Release { lock, how },
                15 => What::ThreadCreate { child },
                16 => What::ThreadJoin { child },
                17 => What::ThreadExit,
                18 => What::Sync { object: lock, op: sync },
                19 => What::Map { file, addr: BASE, len: 1 << (12 + n * 2), offset: n * 64, writable: true },
                21 => What::Allocate { addr, len: n * 100 },
                22 => What::Atomic { addr: lock, old: &old, new: &new, how: AtomicKind::ALL[site as usize % 3] },
                20 => What::Unmap { addr: X, len: 4096 },
                _ => What::FileSync { file: FileId(1), offset: place, len: u64::MAX, how: pmvet_events::event::SyncKind::Msync },
            };
            s.add(thread, site, what);
        }
        s.engine.finish();
    }
}
