//! Locks that only the trace shows, and locks that are named.

use crate::script::*;

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
        s.put_under(A, 2, 1, X, 7);
        s.put_under(B, 4, 3, X, 7);
        s.load(3, 2, X);
        s.lock(3, lock);
        s.act(3);
        // The value is that of thread 4, which held B: it is safe to follow it to B, and not to A.
        assert_eq!(s.races(), expected, "{lock:x}");
    }
}

/// But if the writer holds no lock in what its pointer leads to, a reader that follows the pointer finds none either.
#[test]
fn a_reader_that_follows_a_pointer_is_kept_out_only_by_a_lock_of_its_target() {
    const NODE: u64 = BASE + 0x20000;
    const OTHER_NODE: u64 = BASE + 0x30000;
    // What leads to a lock in volatile memory, no event shows.
    for (lock, racy) in [(NODE + 8, false), (B, false), (OTHER_NODE, true)] {
        let mut s = new();
        s.put_under(lock, 2, 1, X, NODE);
        s.put_under(A, 4, 3, X, 7);
        // It reads the value of thread 4, and takes another lock.
        s.load(3, 2, X);
        s.lock(3, A);
        s.act(3);
        assert_eq!(s.races() == [(1, 2)], racy, "{lock:x}");
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
            s.put_under(A, thread, 1, X, 7);
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
