//! The campaign without processes: workers, bounds, the journal, failures that are not confirmed, crashes in the recovery.

mod verify_world;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pmvet_engines::lab::ShownContent;
use pmvet_engines::promises::PromiseId;
use pmvet_engines::verify::{
    ConfirmNatively, Crash, CrashMoment, CrashSearch, Ended, ImageChoice, NativeOutcome, Observe, Observed,
    SearchJournal, SearchResult, TimeLimit, TraceFailure, crash,
};
use pmvet_events::event::{FenceKind, FlushKind};
use pmvet_findings::Outcome;
use pmvet_target::crash::{Patch, VersionId};
use verify_world::{Image, Op, Pm, crashes, observe};

/// What a recovery returns if it never ends, and if it ends late when it is watched.
const HANG: u64 = 100;
const SLOW: u64 = 101;

/// A world whose versions are images in memory.
struct World<'a> {
    images: Vec<Image>,
    recovery: &'a (dyn Fn(&mut Pm<'_>) -> u64 + Sync),
    /// What instrumented runs show, native ones do not.
    only_traced: bool,
    /// What an image shows, if contents are compared.
    shows: Option<fn(&Image) -> ShownContent>,
    executions: AtomicU64,
    broken: AtomicBool,
}

impl World<'_> {
    fn image(&self, version: VersionId, patches: &[Patch]) -> Image {
        let mut image = self.images[version.0 as usize];
        for patch in patches {
            image[patch.offset as usize..][..patch.bytes.len()].copy_from_slice(&patch.bytes);
        }
        image
    }
}

impl Observe for World<'_> {
    type Worker = ();

    fn observe(
        &self,
        (): &mut (),
        crash: &Crash,
        choice: &ImageChoice,
        limit: TimeLimit,
    ) -> Result<Option<Observed>, TraceFailure> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(io::Error::other("broken").into());
        }
        self.executions.fetch_add(1, Ordering::Relaxed);
        let image = self.image(crash.version, &crash.image(choice));
        let (_, outcome, reads, effects, inner) = observe(image, &crash.lines, self.recovery);
        let stacks = vec![Vec::new(); reads.len()];
        let ended = match outcome {
            HANG => Ended::Hang,
            SLOW if limit == TimeLimit::Native => Ended::Hang,
            SLOW => Ended::Exit(0),
            status => Ended::Exit(status as i32),
        };
        Ok(Some(Observed { reads, stacks, effects, inner, ..Observed::unseen(ended) }))
    }
}

impl ConfirmNatively for World<'_> {
    type Bench = ();

    fn confirm(&self, (): &mut (), crash: &Crash, patches: &[Patch]) -> io::Result<Option<NativeOutcome>> {
        let (_, outcome, ..) = observe(self.image(crash.version, patches), &Vec::new(), self.recovery);
        let shown = self.shows.map(|shows| shows(&self.image(crash.version, patches))).unwrap_or_default();
        let outcome = match outcome {
            HANG => Outcome::Hang { seconds: 1 },
            SLOW => Outcome::Exit { status: 0 },
            _ if self.only_traced => Outcome::Exit { status: 0 },
            status => Outcome::Exit { status: status as i32 },
        };
        Ok(Some(NativeOutcome { outcome, output: String::new(), stack: Vec::new(), seconds: 0.0, shown }))
    }
}

fn store(at: usize, value: u8) -> Op {
    Op::Store { thread: 1, at, value: vec![value], nontemporal: false }
}

fn persist(line: usize) -> [Op; 2] {
    [Op::Flush { thread: 1, line, how: FlushKind::Clwb }, Op::Fence { thread: 1, how: FenceKind::Sfence }]
}

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

fn world<'a>(ops: &[Op], recovery: &'a (dyn Fn(&mut Pm<'_>) -> u64 + Sync)) -> (World<'a>, Vec<Crash>) {
    let mut world = World {
        images: Vec::new(),
        recovery,
        only_traced: false,
        shows: None,
        executions: AtomicU64::new(0),
        broken: AtomicBool::new(false),
    };
    let mut all = Vec::new();
    for (i, found) in crashes(ops).into_iter().enumerate() {
        let version = VersionId(i as u32);
        let before = Some(i as u64);
        let identity = crash::identity(i as u128, &found.lines);
        world.images.push(found.newest);
        let (moment, names) = (CrashMoment { before, ..CrashMoment::END }, Default::default());
        all.push(Crash {
            moment,
            level: 0,
            origin: before,
            version,
            patches: Vec::new(),
            lines: found.lines,
            identity,
            promise: PromiseId::NONE,
            names,
        });
    }
    (world, all)
}

struct How {
    workers: usize,
    most: u64,
    patience: u64,
    failures: u8,
    keep_going: bool,
}

const PLAIN: How = How { workers: 1, most: u64::MAX, patience: u64::MAX, failures: 1, keep_going: true };

fn run(world: &World<'_>, crashes: &[Crash], journal: SearchJournal, how: &How) -> Result<SearchResult, TraceFailure> {
    let usual_outcome = Outcome::Exit { status: 0 };
    let campaign = CrashSearch {
        observe: world,
        confirm: world,
        usual: Ended::Exit(0),
        usual_outcome: &usual_outcome,
        workers: how.workers,
        deadline: None,
        most: how.most,
        patience: how.patience,
        failures: how.failures,
        known_only: false,
        compares_contents: world.shows.is_some(),
        keep_going: how.keep_going,
    };
    campaign.run(crashes, journal, &())
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
