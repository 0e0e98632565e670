//! From failing executions to findings: one for each bug, whichever crashes show it.

mod verify_world;

use std::path::PathBuf;

use pmvet_engines::lab::native::NativeStacks;
use pmvet_engines::stacks::Stacks;
use pmvet_engines::verify::SearchJournal;
use pmvet_engines::verify::findings::{SearchSetting, one_per_cause};
use pmvet_events::{ContextId, FileId, SiteId};
use pmvet_findings::{Finding, Frame, Outcome, Stack};
use verify_world::campaign::{How, PLAIN, persist, run, store, world};
use verify_world::{Op, Pm};

/// Says that each event is on a line of its own, the one of its number.
struct Lines;

impl Stacks for Lines {
    fn stack(&mut self, site: SiteId, _context: ContextId) -> Stack {
        let function = Some("work".into());
        vec![Frame { function, file: Some("/src/work.c".into()), line: Some(site.0), ..Frame::default() }]
    }

    fn file(&self, _file: FileId) -> PathBuf {
        "/pm/pool".into()
    }
}

/// What a search reports, without experiments.
fn found(ops: &[Op], recovery: &(dyn Fn(&mut Pm<'_>) -> u64 + Sync), how: &How) -> Vec<Finding> {
    let (world, crashes) = world(ops, recovery);
    let failures = run(&world, &crashes, SearchJournal::none(), how).expect("the search ends").failures;
    let setting = SearchSetting {
        recovery: Vec::new(),
        usual: Outcome::Exit { status: 0 },
        moments: crashes.iter().map(|crash| crash.moment.before.unwrap_or(u64::MAX)).collect(),
        image: &|_, _| String::new(),
    };
    let decisive = vec![None; failures.len()];
    let found = one_per_cause(&failures, &decisive, &setting, &mut Lines, &mut NativeStacks::default());
    found.into_iter().map(|found| found.finding).collect()
}

/// The sum of lines 0 and 1 must stay the same: `amount` moves from one to the other, in two steps. Line 2 counts what was done.
fn transfer(amount: u8) -> Vec<Op> {
    let mut ops = Vec::new();
    for (line, value) in [(0, 100 - amount), (2, 1), (1, 100 + amount), (2, 2)] {
        ops.push(store(line * 64, value));
        ops.extend(persist(line));
    }
    ops
}

/// The sum of lines 0 and 1, which are not there before the first store.
fn sum(pm: &mut Pm<'_>) -> u64 {
    let [a, b] = [0, 64].map(|at| u64::from(pm.load(at, 1)[0]));
    a + b
}

const FIRST_CRASH_ONLY: How = How { keep_going: false, ..PLAIN };

#[test]
fn crashes_between_two_stores_and_the_loss_of_the_second_are_one_finding() {
    let begin: Vec<Op> = [(0, 100), (1, 100)]
        .into_iter()
        .flat_map(|(line, value)| std::iter::once(store(line * 64, value)).chain(persist(line)))
        .collect();
    let ops = [begin, transfer(7)].concat();
    let recovery = |pm: &mut Pm<'_>| u64::from(!matches!(sum(pm), 0 | 100 | 200));
    let found = found(&ops, &recovery, &FIRST_CRASH_ONLY);
    let titles: Vec<_> = found.iter().map(|finding| (&finding.title, finding.count)).collect();
    // Crashes before three fences: the last one loses the store to line 1 only if it is chosen so.
    assert_eq!(titles, [(&"recovery fails after a crash in `work`".to_owned(), 3)]);
}

#[test]
fn what_fails_in_another_way_is_another_finding() {
    let ops = transfer(7);
    // Not even the count may be seen alone.
    let recovery = |pm: &mut Pm<'_>| match (pm.load(0, 1)[0], pm.load(128, 1)[0]) {
        (0, _) | (_, 2) => 0,
        (_, 0) => 1,
        (_, _) => 2,
    };
    let found = found(&ops, &recovery, &FIRST_CRASH_ONLY);
    assert_eq!(found.len(), 2);
}

#[test]
fn a_store_that_is_lost_with_an_older_one_is_a_finding_of_its_own() {
    // Line 0 is never persisted before line 1 announces it; line 3 is broken for a while before that.
    let mut ops = vec![store(192, 1)];
    ops.extend(persist(3));
    ops.extend([store(0, 1), store(192, 0)]);
    ops.extend(persist(3));
    ops.push(store(64, 1));
    ops.extend(persist(1));
    let recovery = |pm: &mut Pm<'_>| {
        let broken = pm.load(192, 1)[0] == 1;
        u64::from(broken || pm.load(64, 1)[0] > pm.load(0, 1)[0])
    };
    let found = found(&ops, &recovery, &FIRST_CRASH_ONLY);
    let titles: Vec<_> = found.iter().map(|finding| finding.title.as_str()).collect();
    assert_eq!(titles, ["recovery fails after a crash in `work`", "recovery fails if a store in `work` is lost"]);
}

/// A flag in line 1 says that line 0 has to be set to 2. With the bug the recovery lowers the flag first.
#[test]
fn a_recovery_that_cannot_begin_again_is_to_blame_not_the_workload() {
    let mut ops = vec![store(64, 1)];
    ops.extend(persist(1));
    ops.push(store(0, 1));
    ops.extend(persist(0));
    let recovery = |pm: &mut Pm<'_>| {
        if pm.load(64, 1)[0] == 0 {
            return u64::from(pm.load(0, 1)[0] == 1);
        }
        for (line, value) in [(1, 0), (0, 2)] {
            pm.store(line * 64, &[value]);
            persist(line).iter().for_each(|op| pm.op(op));
        }
        0
    };
    let found = found(&ops, &recovery, &How { failures: 2, ..FIRST_CRASH_ONLY });
    assert_eq!(found.len(), 1, "{:?}", found.iter().map(|f| (&f.title, &f.happened)).collect::<Vec<_>>());
    assert!(found[0].title.starts_with("recovery fails after a crash of the recovery"), "{}", found[0].title);
    assert!(found[0].fix.contains("begin again") && found[0].places[0].label.contains("store of the recovery"));
    assert!(found[0].places.iter().all(|place| place.thread.is_none()));
}

#[test]
fn a_store_that_came_too_early_is_found_once() {
    // Line 0 is acknowledged in line 1 before it is there.
    let mut ops = vec![store(64, 1)];
    ops.extend(persist(1));
    ops.push(store(0, 1));
    ops.extend(persist(0));
    let recovery = |pm: &mut Pm<'_>| u64::from(pm.load(64, 1)[0] > pm.load(0, 1)[0]);
    assert_eq!(found(&ops, &recovery, &FIRST_CRASH_ONLY).len(), 1);
}

#[test]
fn the_newest_of_several_lost_stores_is_blamed() {
    // Line 0 is cleared and set, and then announced in line 1. Events before the first store begin the run.
    let mut ops = vec![store(0, 1), store(0, 7), store(64, 1)];
    ops.extend(persist(1));
    let recovery = |pm: &mut Pm<'_>| u64::from(pm.load(64, 1)[0] == 1 && pm.load(0, 1)[0] != 7);
    let found = found(&ops, &recovery, &FIRST_CRASH_ONLY);
    let blamed: Vec<_> = found.iter().map(|finding| finding.places[0].stack[0].line).collect();
    assert_eq!(blamed, [Some(7)], "the second store, which is the seventh event");
}
