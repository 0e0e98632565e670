//! The campaign without processes: workers, bounds, the journal, failures that are not confirmed, crashes in the recovery.

mod verify_world;

use std::sync::atomic::Ordering;

use pmvet_engines::lab::ShownContent;
use pmvet_engines::verify::{SearchJournal, SearchResult};
use verify_world::campaign::{HANG, How, PLAIN, SLOW, persist, run, store, world};
use verify_world::{Op, Pm};

/// Puts `rounds` numbers into line 0, each announced in line 1. With the bug nothing orders the two.
fn program(rounds: u8, bug: bool) -> Vec<Op> {
    let mut ops = Vec::new();
    for i in 1..=rounds {
        ops.push(store(0, i));
        if !bug {
            ops.extend(persist(0));
        }
        ops.push(store(64, i));
        ops.extend(persist(1));
        if bug {
            ops.extend(persist(0));
        }
    }
    ops
}

/// Fails if what is announced is not there.
fn recovery(pm: &mut Pm<'_>) -> u64 {
    let announced = pm.load(64, 1)[0];
    u64::from(announced > pm.load(0, 1)[0])
}

#[test]
fn a_correct_program_is_verified_completely() {
    let (world, crashes) = world(&program(5, false), &recovery);
    let done = run(&world, &crashes, SearchJournal::none(), &PLAIN).unwrap();
    assert!(done.is_complete() && done.failures.is_empty());
    // Two failure points per round and the end; the one before the announcement is persistent has two outcomes, and so has the other.
    assert_eq!((done.crashes, done.executions), (11, 21));
}

#[test]
fn the_number_of_workers_changes_nothing() {
    let (world, crashes) = world(&program(9, true), &recovery);
    let failures = |workers| {
        let done = run(&world, &crashes, SearchJournal::none(), &How { workers, ..PLAIN }).unwrap();
        assert!(done.is_complete());
        let all: Vec<_> = done.failures.into_iter().map(|f| (f.crash.moment.before, f.choice)).collect();
        (done.executions, all)
    };
    let alone = failures(1);
    assert!(!alone.1.is_empty());
    for workers in [2, 3, 8] {
        assert_eq!(failures(workers), alone);
    }
}

#[test]
fn a_crash_that_fails_is_left_alone() {
    let (world, crashes) = world(&program(9, true), &recovery);
    let all = run(&world, &crashes, SearchJournal::none(), &PLAIN).unwrap();
    let first = run(&world, &crashes, SearchJournal::none(), &How { keep_going: false, ..PLAIN }).unwrap();
    let places = |done: &SearchResult| {
        done.failures.iter().map(|f| f.crash.moment.before).collect::<std::collections::BTreeSet<_>>()
    };
    // The same crashes fail, each with one witness, and what was not tried is counted.
    assert_eq!(places(&first), places(&all));
    assert_eq!(first.failures.len(), places(&all).len());
    assert!(first.executions < all.executions || first.abandoned == 0);
    assert_eq!(first.is_complete(), first.abandoned == 0);
}

#[test]
fn a_bound_ends_it_and_what_is_left_is_counted() {
    let (world, crashes) = world(&program(9, true), &recovery);
    for most in [1, 2, 7, 20] {
        let done = run(&world, &crashes, SearchJournal::none(), &How { most, ..PLAIN }).unwrap();
        assert_eq!(done.executions, most);
        assert!(!done.is_complete() && done.left + done.crashes_left > 0);
    }
}

#[test]
fn an_interrupted_search_goes_on() {
    let (world, crashes) = world(&program(6, true), &recovery);
    let whole = run(&world, &crashes, SearchJournal::none(), &PLAIN).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("executions.jsonl");
    let open = || SearchJournal::open(&path).unwrap();
    run(&world, &crashes, open(), &How { most: 9, ..PLAIN }).unwrap();
    // The last line was being written when pmvet was killed.
    let mut text = std::fs::read(&path).unwrap();
    text.truncate(text.len() - 3);
    std::fs::write(&path, text).unwrap();
    let before = world.executions.load(Ordering::Relaxed);
    let done = run(&world, &crashes, open(), &How { workers: 2, ..PLAIN }).unwrap();
    assert_eq!((done.known, done.executions), (8, whole.executions - 8));
    // Where nothing is uncertain there is nothing to observe: those are run without.
    let observed = world.executions.load(Ordering::Relaxed) - before;
    assert!(observed > 0 && observed <= done.executions, "{observed} of {}", done.executions);
    assert_eq!(done.failures.len(), whole.failures.len());
    assert!(done.is_complete());
}

#[test]
fn what_shows_another_content_is_tried_and_what_cannot_be_judged_is_counted() {
    // Reads two lines and is content with everything: only what it shows tells images apart.
    let reads = |pm: &mut Pm<'_>| {
        pm.load(0, 1);
        pm.load(64, 1);
        0
    };
    let hasty = How { patience: 0, ..PLAIN };
    let (mut world, crashes) = world(&[store(0, 1), store(64, 1)], &reads);
    let done = run(&world, &crashes, SearchJournal::none(), &hasty).unwrap();
    assert_eq!((done.executions, done.doubtful), (3, 1), "either of them alone is lost, and not both");
    world.shows = Some(|image| ShownContent {
        hash: u64::from(image[0]) * 2 + u64::from(image[64]),
        not_judged: image[0] == 0 && image[64] == 0,
    });
    let folder = tempfile::tempdir().unwrap();
    let journal = || SearchJournal::open(&folder.path().join("executions.jsonl")).unwrap();
    for known in [0, 4] {
        let done = run(&world, &crashes, journal(), &hasty).unwrap();
        assert_eq!((done.known, done.executions + done.known, done.doubtful), (known, 4, 0));
        assert_eq!(done.not_judged, 1);
        assert!(!done.is_complete());
    }
}

#[test]
fn what_only_instrumentation_shows_is_no_finding() {
    let (mut world, crashes) = world(&program(3, true), &recovery);
    world.only_traced = true;
    let done = run(&world, &crashes, SearchJournal::none(), &PLAIN).unwrap();
    assert!(done.failures.is_empty() && done.unconfirmed > 0 && !done.is_complete());
}

#[test]
fn a_hang_is_known_from_a_native_run_and_a_slow_execution_is_given_more_time() {
    let executions = |how: u64| {
        let recovery = move |pm: &mut Pm<'_>| recovery(pm) * how;
        let (world, crashes) = world(&program(3, true), &recovery);
        let done = run(&world, &crashes, SearchJournal::none(), &How { keep_going: false, ..PLAIN }).unwrap();
        (done.failures.len(), done.unconfirmed, world.executions.load(Ordering::Relaxed), done.executions)
    };
    let (failures, unconfirmed, ..) = executions(HANG);
    assert_eq!((failures, unconfirmed), (executions(1).0, 0));
    assert_eq!(executions(HANG).2, executions(1).2);
    // Each slow one is made twice, and none of them fails.
    let (failures, unconfirmed, observed, made) = executions(SLOW);
    assert_eq!((failures, unconfirmed), (0, 0));
    assert!(observed > made.min(executions(1).2), "{observed} observed of {made}");
}

#[test]
fn an_execution_that_cannot_be_made_is_an_error() {
    let (world, crashes) = world(&program(3, true), &recovery);
    world.broken.store(true, Ordering::Relaxed);
    assert!(run(&world, &crashes, SearchJournal::none(), &How { workers: 2, ..PLAIN }).is_err());
}

/// Line 0 holds data, line 1 a flag that says it may be wrong, line 2 what recovery believes. Recovery repairs the data, and with the bug
/// lowers the flag before that is persistent.
fn repair(pm: &mut Pm<'_>, bug: bool) -> u64 {
    if pm.load(64, 1)[0] == 0 {
        return u64::from(pm.load(0, 1)[0] == 1);
    }
    pm.store(0, &[2]);
    if !bug {
        persist(0).iter().for_each(|op| pm.op(op));
    }
    pm.store(64, &[0]);
    persist(1).iter().for_each(|op| pm.op(op));
    persist(0).iter().for_each(|op| pm.op(op));
    0
}

#[test]
fn a_bug_of_the_recovery_itself_takes_two_crashes() {
    let mut ops = vec![store(64, 1)];
    ops.extend(persist(1));
    ops.push(store(0, 1));
    ops.extend(persist(0));
    for (bug, failures, found) in [(false, 1, false), (false, 2, false), (true, 1, false), (true, 2, true)] {
        let recovery = move |pm: &mut Pm<'_>| repair(pm, bug);
        let (world, crashes) = world(&ops, &recovery);
        let done = run(&world, &crashes, SearchJournal::none(), &How { failures, ..PLAIN }).unwrap();
        assert_eq!(!done.failures.is_empty(), found, "bug {bug}, {failures} failures");
        assert_eq!(done.inner_crashes > 0, failures > 1);
        assert!(done.is_complete());
        assert!(done.failures.iter().all(|failure| failure.crash.level == 1));
    }
}
