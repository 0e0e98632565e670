//! Scripted transactions.

use pmvet_events::event::{Event, FlushKind, StoreKind, TransactionOp, What};
use pmvet_events::spaces::AddressSpaces;
use pmvet_events::{ContextId, FileId, SiteId, ThreadId};
use pmvet_model::Unknown;

use super::{Escape, TransactionFacts, TransactionTracker};

const POOL: u64 = 0x10000;

#[derive(Debug, Clone, Copy)]
enum Step {
    Begin,
    Add(u64, u64),
    Allocate(u64, u64),
    Free(u64),
    Commit,
    Abort,
    End,
    Store(u64),
    Flush(u64),
    Persist(u64, u64),
}
use Step::*;

/// Runs steps in one thread. The site of each is its position, from 1. Addresses are relative to the pool.
fn run(steps: &[Step]) -> TransactionFacts {
    let (mut spaces, mut tracker) = (AddressSpaces::default(), TransactionTracker::default());
    let event = |seq, what| Event { seq, thread: ThreadId(1), site: SiteId(seq as u32), context: ContextId(1), what };
    spaces.update(&event(0, What::ProcessStart { process: 1, parent: 0, path: "/bin/p".as_ref() }));
    spaces.update(&event(0, What::Map { file: FileId(7), addr: POOL, len: 4096, offset: 0, writable: true }));
    for (seq, step) in (1..).zip(steps) {
        let call = |op, addr: u64, len| What::Transaction { op, addr: POOL + addr, len };
        let what = match *step {
            Begin => call(TransactionOp::Begin, 0, 0),
            Add(addr, len) => call(TransactionOp::Add, addr, len),
            Allocate(addr, len) => call(TransactionOp::Allocate, addr, len),
            Free(addr) => call(TransactionOp::Free, addr, 0),
            Persist(addr, len) => call(TransactionOp::Persist, addr, len),
            Commit => call(TransactionOp::Commit, 0, 0),
            Abort => call(TransactionOp::Abort, 0, 0),
            End => call(TransactionOp::End, 0, 0),
            Store(addr) => What::Store { addr: POOL + addr, value: &[1; 8], how: StoreKind::Regular },
            Flush(addr) => What::Flush { addr: POOL + addr, how: FlushKind::Clwb, pm: true },
        };
        tracker.event(&event(seq, what), &spaces, &Unknown);
    }
    tracker.finish()
}

/// The stores that escape, by position, with why.
fn escaped(steps: &[Step]) -> Vec<(u64, Escape)> {
    run(steps).escaped.iter().filter(|store| !store.persisted).map(|store| (store.place.seq, store.escape)).collect()
}

#[test]
fn what_is_added_or_allocated_does_not_escape() {
    assert_eq!(escaped(&[Begin, Add(0, 8), Store(0), Allocate(64, 32), Store(72), Commit, End]), []);
    assert_eq!(escaped(&[Store(0), Begin, Commit, Store(0), End, Store(0)]), [], "outside of any");
    assert!(run(&[Begin, Commit, End]).has_transactions && !run(&[Store(0), Flush(0)]).has_transactions);
}

#[test]
fn what_is_not_added_escapes() {
    let not = Escape::NotAdded;
    assert_eq!(escaped(&[Begin, Add(0, 8), Store(8), Commit, End]), [(3, not)]);
    assert_eq!(escaped(&[Begin, Add(0, 8), Store(4), Commit, End]), [(3, not)], "half of it was added");
    assert_eq!(escaped(&[Begin, Store(8), Abort, Abort, End]), [(2, not)]);
    assert_eq!(escaped(&[Begin, Add(0, 8), Commit, End, Begin, Store(0), Commit, End]), [(6, not)], "each for itself");
}

#[test]
fn it_is_remembered_when_the_transaction_ends() {
    let facts = run(&[Begin, Store(8), Begin, Commit, End, Commit, End, Store(8)]);
    assert_eq!(facts.escaped[0].spans, [(2, 7)]);
    assert_eq!(run(&[Begin, Store(8), Abort]).escaped[0].spans, [(2, u64::MAX)]);
}

#[test]
fn what_is_added_late_escapes() {
    assert_eq!(escaped(&[Begin, Store(8), Add(0, 16), Store(8), Commit, End]), [(2, Escape::AddedLate)]);
}

#[test]
fn a_part_that_is_added_again_is_not_added_late() {
    // The second half of the store is never added, though all of the first is, twice.
    let facts = run(&[Begin, Add(0, 8), Store(4), Add(0, 8), Commit, End]);
    assert_eq!(facts.escaped[0].escape, Escape::NotAdded);
    let part = facts.escaped[0].part.unwrap();
    assert_eq!((part.place.seq, part.first, part.len, part.of), (2, 0, 4, 8));
    assert_eq!(escaped(&[Begin, Add(0, 8), Store(4), Add(8, 8), Commit, End]), [(3, Escape::AddedLate)]);
    assert_eq!(run(&[Begin, Store(4), Commit, End]).escaped[0].part, None);
}

#[test]
fn what_is_freed_escapes() {
    let steps = [Begin, Add(128, 64), Store(128), Free(128), Store(136), Commit, End];
    assert_eq!(escaped(&steps), [(5, Escape::Freed)]);
}

#[test]
fn nested_transactions_are_one() {
    let steps = [Begin, Add(0, 8), Begin, Add(8, 8), Store(0), Commit, End, Store(8), Commit, End];
    assert_eq!(escaped(&steps), []);
    let steps = [Begin, Begin, Store(0), Commit, End, Add(0, 8), Commit, End];
    assert_eq!(escaped(&steps), [(3, Escape::AddedLate)]);
    // After an abort, nothing of the outer one is at work either.
    assert_eq!(
        escaped(&[Begin, Begin, Abort, End, Store(0), End, Begin, Store(0), Commit, End]),
        [(8, Escape::NotAdded)]
    );
}

#[test]
fn what_is_flushed_by_hand_is_remembered_but_not_reported() {
    for by_hand in [Flush(0), Persist(8, 8)] {
        let facts = run(&[Begin, Store(8), by_hand, Commit, End]);
        assert_eq!(facts.escaped.len(), 1);
        assert!(facts.escaped[0].persisted && facts.persists.is_empty());
        assert!(facts.pools.contains(&FileId(7)));
    }
}

#[test]
fn needless_calls_are_told() {
    let facts = run(&[Begin, Add(0, 64), Add(8, 8), Allocate(128, 64), Add(128, 8), Add(32, 64), Commit, End]);
    let adds: Vec<_> = facts.adds.iter().map(|add| (add.place.seq, add.before.seq, add.allocated)).collect();
    assert_eq!(adds, [(3, 2, false), (5, 4, true)], "the last one adds some more");
    let facts = run(&[Begin, Add(0, 8), Store(0), Persist(0, 8), Persist(0, 16), Flush(0), Commit, Persist(0, 8), End]);
    let persists: Vec<_> = facts.persists.iter().map(|p| (p.place.seq, p.added.map(|added| added.seq))).collect();
    assert_eq!(persists, [(4, Some(2))]);
}

#[test]
fn odd_orders_do_no_harm() {
    run(&[
        End,
        Commit,
        Abort,
        Free(0),
        Add(0, 8),
        Store(0),
        Begin,
        Add(u64::MAX - POOL, u64::MAX),
        Add(0, 0),
        Store(0),
    ]);
}
