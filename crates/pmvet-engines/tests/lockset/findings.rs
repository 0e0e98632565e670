//! What reports say of races and of locks.

use std::path::PathBuf;

use pmvet_engines::lockset::pm_locks::{Aftermath, Afterwards};
use pmvet_findings::{Evidence, Frame, Role, Severity, Stack};

use crate::script::*;

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

/// At the first one, recovery may fail for another reason.
#[test]
fn a_lock_that_is_taken_often_comes_with_later_moments() {
    let mut s = new();
    let mut taken = Vec::new();
    for _ in 0..70 {
        taken.push(s.seq + 1);
        s.cas(2, 51, Z, 0, 1, true);
        s.persist(2, Z);
        s.put(2, 52, Z, &0u64.to_le_bytes());
    }
    let outcome = s.engine.finish();
    let moments: Vec<_> = outcome.held.iter().map(|held| (held.is_spare, held.seq, held.flushed)).collect();
    assert_eq!(moments, [(false, taken[0], true), (true, taken[7], true), (true, taken[63], true)]);
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
    /// The heap's locks are at A and after it; `table_lock` and the dynamic linker's locks are elsewhere.
    struct WithVariable;
    const VARIABLE: u64 = 0x50_0000;
    const LINKER: u64 = 0x60_0000;
    impl Stacks for WithVariable {
        fn stack(&mut self, site: SiteId, context: ContextId) -> Stack {
            Fake.stack(site, context)
        }

        fn file(&self, file: FileId) -> PathBuf {
            Fake.file(file)
        }

        fn variable(&mut self, address: u64) -> Option<(String, u64)> {
            let variables = [("table_lock", VARIABLE), ("_rtld_global", LINKER)];
            let found = variables.into_iter().find(|(_, start)| address / 0x1000 == start / 0x1000);
            found.map(|(name, start)| (name.into(), address - start))
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
    assert_eq!(locks_of(A, LINKER + 0x908), (taken(""), String::new()), "it guards nothing of the program");
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
fn what_a_transaction_makes_persistent_is_guarded_until_its_commit() {
    /// The fence of the script is one of libpmemobj's.
    struct Commits;
    impl Stacks for Commits {
        fn stack(&mut self, site: SiteId, context: ContextId) -> Stack {
            let mut stack = Fake.stack(site, context);
            if site.0 == 902 {
                let function = Some("pmemobj_tx_commit".into());
                stack.insert(0, Frame { function, module: Some("/lib/libpmemobj.so.1".into()), ..Frame::default() });
            }
            stack
        }
        fn file(&self, file: FileId) -> PathBuf {
            Fake.file(file)
        }
    }
    let fix = |locks: bool| {
        let mut s = new();
        if locks {
            s.lock(2, A);
        }
        s.store(2, 1, X);
        if locks {
            s.unlock(2, A);
        }
        locked_load(&mut s);
        s.persist(2, X);
        let found = findings(&s.engine.finish(), &mut Commits, &no_sources());
        found[0].fix.clone()
    };
    for locks in [true, false] {
        let fix = fix(locks);
        assert!(fix.contains("until the transaction is committed") && !fix.contains("flush"), "{locks}: {fix}");
    }
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
