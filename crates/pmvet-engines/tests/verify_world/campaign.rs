//! Campaigns over small worlds: the recoveries of the search run in memory, not in processes.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pmvet_engines::lab::ShownContent;
use pmvet_engines::promises::PromiseId;
use pmvet_engines::verify::{
    ConfirmNatively, Crash, CrashMoment, CrashSearch, Ended, ImageChoice, NativeOutcome, Observe, Observed,
    SearchJournal, SearchResult, TimeLimit, TraceFailure, crash,
};
use pmvet_events::SiteId;
use pmvet_events::event::{FenceKind, FlushKind};
use pmvet_findings::Outcome;
use pmvet_target::crash::{Patch, VersionId};

use super::{Image, Op, Pm, crashes, observe};

/// What a recovery returns if it never ends, and if it ends late when it is watched.
pub(crate) const HANG: u64 = 100;
pub(crate) const SLOW: u64 = 101;

/// A world whose versions are images in memory.
pub(crate) struct World<'a> {
    pub(crate) images: Vec<Image>,
    pub(crate) recovery: &'a (dyn Fn(&mut Pm<'_>) -> u64 + Sync),
    /// What instrumented runs show, native ones do not.
    pub(crate) only_traced: bool,
    /// What an image shows, if contents are compared.
    pub(crate) shows: Option<fn(&Image) -> ShownContent>,
    pub(crate) executions: AtomicU64,
    pub(crate) broken: AtomicBool,
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

pub(crate) fn store(at: usize, value: u8) -> Op {
    Op::Store { thread: 1, at, value: vec![value], nontemporal: false }
}

pub(crate) fn persist(line: usize) -> [Op; 2] {
    [Op::Flush { thread: 1, line, how: FlushKind::Clwb }, Op::Fence { thread: 1, how: FenceKind::Sfence }]
}

pub(crate) fn world<'a>(ops: &[Op], recovery: &'a (dyn Fn(&mut Pm<'_>) -> u64 + Sync)) -> (World<'a>, Vec<Crash>) {
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
        let before = Some(found.before);
        let identity = crash::identity(i as u128, &found.lines);
        world.images.push(found.newest);
        let (moment, names) =
            (CrashMoment { before, site: SiteId(found.before as u32), ..CrashMoment::END }, Default::default());
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

pub(crate) struct How {
    pub(crate) workers: usize,
    pub(crate) most: u64,
    pub(crate) patience: u64,
    pub(crate) failures: u8,
    pub(crate) keep_going: bool,
}

pub(crate) const PLAIN: How = How { workers: 1, most: u64::MAX, patience: u64::MAX, failures: 1, keep_going: true };

pub(crate) fn run(
    world: &World<'_>,
    crashes: &[Crash],
    journal: SearchJournal,
    how: &How,
) -> Result<SearchResult, TraceFailure> {
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
