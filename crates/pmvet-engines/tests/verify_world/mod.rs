//! Small worlds for the search: programs of stores, flushes and fences, recoveries that read, and an eager search that tries everything.

#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod campaign;

use std::collections::{BTreeMap, BTreeSet};

use pmvet_engines::verify::crash::{self, CrashMoment, PendingLines};
use pmvet_engines::verify::nested::{self, Inner, RecoveryGround, WrittenLines};
use pmvet_engines::verify::{
    Execution, Executor, Explorer, FailurePointFinder, ImageChoice, Observer, UncertainLines, explore,
};
use pmvet_events::event::{Event, FenceKind, FlushKind, StoreKind, SyncKind, What};
use pmvet_events::{ContextId, FileId, SiteId, ThreadId};
use pmvet_model::{LineContent, LineId, LineSource, Mode, Model};
use rustc_hash::FxHashSet;

pub(crate) const FILE: FileId = FileId(1);
pub(crate) const BASE: u64 = 0x10_0000;
pub(crate) const LINES: usize = 5;
pub(crate) const SIZE: usize = LINES * 64;

pub(crate) type Image = [u8; SIZE];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    Store { thread: u32, at: usize, value: Vec<u8>, nontemporal: bool },
    Rmw { thread: u32, at: usize, value: Vec<u8>, stored: bool },
    Flush { thread: u32, line: usize, how: FlushKind },
    Fence { thread: u32, how: FenceKind },
    Sync { line: usize },
}

struct View<'a>(&'a Image);

impl LineSource for View<'_> {
    fn line(&self, line: LineId) -> LineContent {
        let first = line.offset() as usize;
        LineContent::new(self.0[first..first + 64].try_into().expect("a line"))
    }
}

/// An execution that the model follows.
pub(crate) struct Running {
    pub(crate) model: Model,
    pub(crate) image: Image,
    started_on: Image,
    written: WrittenLines,
    undecided: FxHashSet<LineId>,
    points: FailurePointFinder,
    last_store: Option<(SiteId, ContextId)>,
    seq: u64,
}

impl Running {
    pub(crate) fn new(image: Image, undecided: FxHashSet<LineId>) -> Self {
        let mut running = Self {
            model: Model::new(Mode::Adr),
            image,
            started_on: image,
            written: WrittenLines::default(),
            undecided,
            points: FailurePointFinder::default(),
            last_store: None,
            seq: 0,
        };
        running.send(1, What::ProcessStart { process: 1, parent: 0, path: "".as_ref() });
        for thread in 1..=3 {
            running.send(thread, What::ThreadStart { process: 1, os_thread: thread });
        }
        running.send(1, What::Map { file: FILE, addr: BASE, len: SIZE as u64, offset: 0, writable: true });
        running
    }

    fn event<'a>(&self, thread: u32, what: What<'a>) -> Event<'a> {
        let (site, context) = (SiteId(self.seq as u32), ContextId(1));
        Event { seq: self.seq, thread: ThreadId(thread), site, context, what }
    }

    fn send(&mut self, thread: u32, what: What<'_>) {
        self.seq += 1;
        let event = self.event(thread, what);
        let image = View(&self.started_on);
        self.model.event(&event, &RecoveryGround { image: &image, written: &self.written, undecided: &self.undecided });
        if let What::Store { addr, value, .. } | What::Rmw { addr, new: value, stored: true, .. } = what {
            self.last_store = Some((SiteId(self.seq as u32), ContextId(1)));
            let at = (addr - BASE) as usize;
            self.image[at..at + value.len()].copy_from_slice(value);
            for (i, byte) in value.iter().enumerate() {
                let at = at + i;
                self.written.store(LineId::containing(FILE, at as u64), at % 64, &[*byte], &View(&self.started_on));
            }
        }
    }

    /// Whether a crash before this operation is worth trying.
    pub(crate) fn is_point(&mut self, op: &Op) -> bool {
        let mut is_point = false;
        with_what(op, |thread, what| {
            let event = self.event(thread, what);
            is_point = self.points.is_point(&event, &self.model);
        });
        is_point
    }

    pub(crate) fn at_end(&self) -> bool {
        self.points.at_end()
    }

    pub(crate) fn apply(&mut self, op: &Op) {
        with_what(op, |thread, what| self.send(thread, what));
    }

    fn crash(&self, pending: &mut PendingLines) -> Crash {
        Crash { before: self.seq + 1, lines: pending.lines(&self.model), newest: self.image }
    }

    fn inner(&self, reads: usize) -> Inner {
        let last_store = self.last_store;
        let moment = CrashMoment { before: Some(self.seq), thread: ThreadId(1), last_store, ..CrashMoment::END };
        Inner { moment, reads, pending: nested::pending(&self.model), written: self.written.all() }
    }
}

fn with_what(op: &Op, mut f: impl FnMut(u32, What<'_>)) {
    let addr = |at: usize| BASE + at as u64;
    match op {
        Op::Store { thread, at, value, nontemporal } => {
            let how = if *nontemporal { StoreKind::NonTemporal } else { StoreKind::Regular };
            f(*thread, What::Store { addr: addr(*at), value, how });
        }
        Op::Rmw { thread, at, value, stored } => {
            let old = vec![0; value.len()];
            f(*thread, What::Rmw { addr: addr(*at), old: &old, new: value, stored: *stored, discards: false });
        }
        Op::Flush { thread, line, how } => f(*thread, What::Flush { addr: addr(line * 64 + 5), how: *how, pm: true }),
        Op::Fence { thread, how } => f(*thread, What::Fence { how: *how }),
        Op::Sync { line } => {
            let offset = *line as u64 * 64;
            f(1, What::FileSync { file: FILE, offset, len: 64, how: SyncKind::Msync });
        }
    }
}

/// A crash to recover from.
pub(crate) struct Crash {
    /// The number of the event before which it comes.
    pub(crate) before: u64,
    pub(crate) lines: UncertainLines,
    pub(crate) newest: Image,
}

/// The crashes of a program, at its failure points only.
pub(crate) fn crashes(program: &[Op]) -> Vec<Crash> {
    let mut running = Running::new([0; SIZE], FxHashSet::default());
    let mut pending = PendingLines::default();
    let mut found = Vec::new();
    for op in program {
        if running.is_point(op) {
            found.push(running.crash(&mut pending));
        }
        running.apply(op);
    }
    found.push(running.crash(&mut pending));
    found
}

/// PM as a recovery sees it: what it loads is written down.
pub(crate) struct Pm<'a> {
    image: Image,
    trace: Vec<(usize, Vec<u8>)>,
    observer: Option<Observer>,
    /// What it stored before, between and after its reads, as numbers.
    effects: Vec<u64>,
    inside: Option<&'a mut dyn FnMut(Step<'_>)>,
}

pub(crate) enum Step<'a> {
    Before { op: &'a Op, reads: usize },
    End { reads: usize },
}

impl Pm<'_> {
    pub(crate) fn load(&mut self, at: usize, len: usize) -> Vec<u8> {
        let value = self.image[at..at + len].to_vec();
        if let Some(observer) = &mut self.observer {
            observer.load(FILE, at as u64, len as u64);
            self.effects.resize(observer.count() + 1, 0);
        }
        self.trace.push((at, value.clone()));
        value
    }

    pub(crate) fn op(&mut self, op: &Op) {
        let reads = self.observer.as_ref().map_or(0, Observer::count);
        if let Some(inside) = &mut self.inside {
            inside(Step::Before { op, reads });
        }
        if let Op::Store { at, value, .. } | Op::Rmw { at, value, stored: true, .. } = op {
            self.image[*at..*at + value.len()].copy_from_slice(value);
            if let Some(observer) = &mut self.observer {
                observer.store(FILE, *at as u64, value.len() as u64);
            }
            if let Some(last) = self.effects.last_mut() {
                let text = [&last.to_le_bytes()[..], &at.to_le_bytes(), value].concat();
                *last = xxhash_rust::xxh3::xxh3_64(&text);
            }
        }
    }

    pub(crate) fn store(&mut self, at: usize, value: &[u8]) {
        self.op(&Op::Store { thread: 1, at, value: value.to_vec(), nontemporal: false });
    }
}

/// A recovery: reads and stores, and ends in some way. Must depend on nothing but what it loads.
pub(crate) type Recovery<'a> = dyn Fn(&mut Pm<'_>) -> u64 + 'a;

/// All that can be seen of an execution: what it loaded, and how it ended.
pub(crate) type Seen = (Vec<(usize, Vec<u8>)>, u64);

/// What a search found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// For each execution, in order.
    pub(crate) seen: Vec<Seen>,
    pub(crate) doubtful: usize,
}

impl Found {
    pub(crate) fn set(&self) -> BTreeSet<Seen> {
        self.seen.iter().cloned().collect()
    }
}

/// What a recovery loaded, how it ended, what it read of uncertain lines, what it stored, and where it could crash.
pub(crate) type Observed =
    (Vec<(usize, Vec<u8>)>, u64, Vec<pmvet_engines::verify::UncertainRead>, Vec<u64>, Vec<Inner>);

/// Runs a recovery and sees what it loads, how it ends, what it reads of uncertain lines, and where it could crash itself.
pub(crate) fn observe(image: Image, lines: &UncertainLines, recovery: &Recovery<'_>) -> Observed {
    let undecided: FxHashSet<LineId> = lines.iter().map(|line| line.id()).collect();
    let mut running = Running::new(image, undecided);
    let mut inners = Vec::new();
    let mut follow = |step: Step<'_>| match step {
        Step::Before { op, reads } => {
            if running.is_point(op) {
                inners.push(running.inner(reads));
            }
            running.apply(op);
        }
        Step::End { reads } => {
            if running.at_end() {
                inners.push(running.inner(reads));
            }
        }
    };
    let observer = Some(Observer::new(lines.iter().map(|line| &**line)));
    let mut pm = Pm { image, trace: Vec::new(), observer, effects: vec![0], inside: Some(&mut follow) };
    let outcome = recovery(&mut pm);
    let Pm { trace, observer, effects, inside, .. } = pm;
    let reads = observer.expect("it was given one").finish();
    inside.expect("it was given one")(Step::End { reads: reads.len() });
    (trace, outcome, reads, effects, inners)
}

/// Observer of the crashes in a recovery.
type Inside<'a> =
    &'a mut dyn FnMut(&UncertainLines, &ImageChoice, &[pmvet_engines::verify::UncertainRead], &Image, &[Inner]);

struct Runner<'a> {
    newest: &'a Image,
    recovery: &'a Recovery<'a>,
    /// Crashes in the recovery, if they are wanted.
    inner: Option<Inside<'a>>,
    seen: Vec<Seen>,
}

impl Executor for Runner<'_> {
    type Outcome = u64;
    type Error = ();

    fn run(&mut self, lines: &UncertainLines, choice: &ImageChoice) -> Result<Execution<u64>, ()> {
        let mut image = *self.newest;
        for (id, first, bytes) in crash::patches(lines, choice) {
            let at = id.offset() as usize + first;
            image[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        let (trace, outcome, reads, effects, inners) = observe(image, lines, self.recovery);
        if let Some(inner) = &mut self.inner {
            inner(lines, choice, &reads, self.newest, &inners);
        }
        self.seen.push((trace, outcome));
        Ok(Execution { reads, outcome, effects })
    }
}

/// The lazy search.
pub(crate) fn lazy(crash: &Crash, recovery: &Recovery<'_>, patience: u64) -> Found {
    let mut explorer = Explorer::new(crash.lines.clone(), patience);
    let mut runner = Runner { newest: &crash.newest, recovery, inner: None, seen: Vec::new() };
    explore(&mut explorer, &mut runner, u64::MAX, |_, _| {}).expect("never fails");
    assert_eq!(explorer.left(), 0);
    assert_eq!(explorer.diverged(), 0);
    assert_eq!(explorer.executions() as usize, runner.seen.len());
    Found { seen: runner.seen, doubtful: explorer.doubtful() }
}

/// The lazy search with crashes in the recovery: what the second recoveries see. Equal second crashes are explored once.
pub(crate) fn lazy_twice(crash: &Crash, recovery: &Recovery<'_>, second: &Recovery<'_>) -> BTreeSet<Seen> {
    let mut all = BTreeSet::new();
    let mut known = FxHashSet::default();
    let mut inner = |lines: &UncertainLines,
                     choice: &ImageChoice,
                     reads: &[pmvet_engines::verify::UncertainRead],
                     newest: &Image,
                     inners: &[Inner]| {
        for inner in inners {
            let nested::Second { lines, patches } = nested::crash(lines, choice, reads, inner, 1);
            let mut newest = *newest;
            for (id, first, bytes) in patches {
                let at = id.offset() as usize + first;
                newest[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            for line in &lines {
                let at = line.id().offset() as usize;
                assert_eq!(newest[at..at + 64], line.content(line.newest()).expect("it has one").bytes);
            }
            let certain = xxhash_rust::xxh3::xxh3_128(&newest);
            if known.insert(crash::identity(certain, &lines)) {
                let found = lazy(&Crash { before: 0, lines, newest }, second, u64::MAX);
                let set = found.set();
                assert_eq!(set.len(), found.seen.len());
                all.extend(set);
            }
        }
    };
    let mut explorer = Explorer::new(crash.lines.clone(), u64::MAX);
    let mut runner = Runner { newest: &crash.newest, recovery, inner: Some(&mut inner), seen: Vec::new() };
    explore(&mut explorer, &mut runner, u64::MAX, |_, _| {}).expect("never fails");
    all
}

/// Too simple to be wrong: per line all stores ever made and how many are guaranteed; per thread all flushes.
#[derive(Default, Clone)]
pub(crate) struct Reference {
    /// Offset in the line, bytes, and whether they are atomic.
    stores: BTreeMap<usize, Vec<(usize, Vec<u8>, bool)>>,
    guaranteed: BTreeMap<usize, usize>,
    flushes: Vec<(u32, usize, usize)>,
}

impl Reference {
    fn store(&mut self, thread: u32, at: usize, value: &[u8], nontemporal: bool, atomic: bool) {
        let mut parts: BTreeMap<usize, (usize, Vec<u8>, bool)> = BTreeMap::new();
        for (i, byte) in value.iter().enumerate() {
            parts.entry((at + i) / 64).or_insert(((at + i) % 64, Vec::new(), atomic)).1.push(*byte);
        }
        for (line, part) in parts {
            let stores = self.stores.entry(line).or_default();
            stores.push(part);
            let count = stores.len();
            if nontemporal {
                self.flushes.push((thread, line, count));
            }
        }
    }

    fn raise(&mut self, line: usize, count: usize) {
        let bound = self.guaranteed.entry(line).or_default();
        *bound = count.max(*bound);
    }

    fn count(&self, line: usize) -> usize {
        self.stores.get(&line).map_or(0, Vec::len)
    }

    fn fence(&mut self, thread: u32) {
        let (mine, others) = std::mem::take(&mut self.flushes).into_iter().partition(|f| f.0 == thread);
        self.flushes = others;
        let mine: Vec<_> = mine;
        for (_, line, count) in mine {
            self.raise(line, count);
        }
    }

    pub(crate) fn apply(&mut self, op: &Op) {
        match op {
            Op::Store { thread, at, value, nontemporal } => self.store(*thread, *at, value, *nontemporal, false),
            Op::Rmw { thread, at, value, stored } => {
                self.fence(*thread);
                if *stored {
                    self.store(*thread, *at, value, false, true);
                }
            }
            Op::Flush { line, how: FlushKind::Clflush, .. } => self.raise(*line, self.count(*line)),
            Op::Flush { thread, line, .. } => self.flushes.push((*thread, *line, self.count(*line))),
            Op::Fence { thread, .. } => self.fence(*thread),
            Op::Sync { line } => self.raise(*line, self.count(*line)),
        }
    }

    /// Every image that a crash may leave, on top of `start`, with repetitions.
    pub(crate) fn images(&self, start: &Image) -> Vec<Image> {
        let mut images = vec![*start];
        for (line, stores) in &self.stores {
            let bound = self.guaranteed.get(line).copied().unwrap_or(0);
            let mut more = Vec::new();
            for image in images {
                for count in bound..=stores.len() {
                    let mut image = image;
                    for (at, value, _) in &stores[..count] {
                        image[line * 64 + at..][..value.len()].copy_from_slice(value);
                    }
                    more.push(image);
                    // Of the next one, a part: eight bytes at a time reach memory.
                    if let Some((at, value, false)) = stores.get(count) {
                        for len in (1..value.len()).filter(|len| (at + len) % 8 == 0) {
                            image[line * 64 + at..][..len].copy_from_slice(&value[..len]);
                            more.push(image);
                        }
                    }
                }
            }
            images = more;
        }
        images
    }
}

/// What a recovery sees on every image.
pub(crate) fn eager(images: &[Image], recovery: &Recovery<'_>) -> BTreeSet<Seen> {
    let run = |image: &Image| {
        let mut pm = Pm { image: *image, trace: Vec::new(), observer: None, effects: Vec::new(), inside: None };
        let outcome = recovery(&mut pm);
        (pm.trace, outcome)
    };
    images.iter().map(run).collect()
}

/// Every image that a crash at any moment of a recovery may leave, for each image it starts on.
pub(crate) fn eager_inside(images: &[Image], recovery: &Recovery<'_>) -> Vec<Image> {
    let mut all = BTreeSet::new();
    for image in images.iter().collect::<BTreeSet<_>>() {
        let mut reference = Reference::default();
        let mut follow = |step: Step<'_>| {
            if let Step::Before { op, .. } = step {
                reference.apply(op);
                all.extend(reference.images(image));
            }
        };
        let mut pm =
            Pm { image: *image, trace: Vec::new(), observer: None, effects: Vec::new(), inside: Some(&mut follow) };
        recovery(&mut pm);
    }
    all.into_iter().collect()
}
