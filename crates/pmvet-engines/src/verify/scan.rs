//! One pass over a recorded run: its crashes.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use pmvet_events::event::{Event, What};
use pmvet_events::{ContextId, SiteId};
use pmvet_model::{Mode, Model};
use pmvet_target::crash::{Patch, PmReplay, VersionId, Versions};
use pmvet_target::mapped::MappedFile;
use pmvet_target::recording::Recording;
use pmvet_target::sandbox::RawFrame;
use rustc_hash::FxHashSet;

use super::crash::{self, CrashMoment, LinePatch, PendingLines};
use super::line::UncertainLines;
use super::points::FailurePointFinder;
use crate::lab::Newest;
use crate::promises::{Promise, PromiseId, Promises};

/// A crash of a recorded run, or of one of its recoveries.
#[derive(Debug, Clone)]
pub struct Crash {
    /// Before which event the power fails.
    pub moment: CrashMoment,
    /// How many crashes came before it.
    pub level: u8,
    /// The moment of the run that `version` is the image of. The image of a later crash consists of changes to it.
    pub origin: Option<u64>,
    /// The newest image, and what differs from it after an earlier crash.
    pub version: VersionId,
    /// What certainly differs from `version`. Empty for crashes of the workload.
    pub patches: Vec<Patch>,
    /// Lines that may hold one of several contents.
    pub lines: UncertainLines,
    /// Equal for crashes after which any recovery does the same, and must do the same.
    pub identity: u128,
    /// What the program had promised by then, if contents are compared.
    pub promise: PromiseId,
    /// Where the stores of crashed recoveries were made, by level and the numbers of their runs.
    pub names: ExecutionStacks,
}

/// Stacks of executions that are over, by how many crashes came before them, instruction and call path.
pub type ExecutionStacks = Arc<HashMap<(u8, SiteId, ContextId), Vec<RawFrame>>>;

impl Crash {
    /// Estimate of its executions, to divide the work: one, and one for each other state of a line. How many it really takes depends
    /// on what the recovery reads.
    pub fn expected_cost(&self) -> u64 {
        self.lines.iter().fold(1, |sum, line| sum + u64::from(line.states().saturating_sub(1)))
    }

    /// All that differs from the version in the chosen image.
    pub fn image(&self, choice: &super::ImageChoice) -> Vec<Patch> {
        let mut patches = self.patches.clone();
        patches.extend(crash::patches(&self.lines, choice).into_iter().map(patch));
        patches
    }
}

pub(super) fn patch((id, first, bytes): LinePatch) -> Patch {
    Patch { file: id.file, offset: id.offset() + first as u64, bytes }
}

/// The crashes that a run offers.
#[derive(Debug)]
pub struct CrashScan {
    /// The contents that crashes refer to.
    pub versions: Versions,
    /// In the order of the run, each only once; with contents to compare, when [promises are set](CrashScan::set_promises).
    pub crashes: Vec<Crash>,
    /// The content at the end of the run.
    pub last: VersionId,
    /// Failure points passed, those that leave the same as another one included.
    pub passed: u64,
    /// Writes by system calls, which count as durable at once.
    pub file_writes: u64,
    /// How many images an eager search would try, at all failure points together.
    pub eager: u128,
    /// Stores without a state of their own because their line had too many.
    pub merged: u64,
    /// Accesses to PM that were not recorded.
    pub unsupported: u64,
    /// Whether the run mapped PM at all.
    pub saw_pm: bool,
}

impl CrashScan {
    /// Sets what each crash must keep: what was promised by then.
    ///
    /// Of crashes with equal lines and the same operations acknowledged, the first is enough: it has the fewest
    /// operations under way, so it allows the fewest contents.
    pub fn set_promises(&mut self, promises: &Promises) {
        let acknowledged = |seq: u64| promises.get(promises.at(seq)).map(Promise::acknowledged_id);
        let mut known = FxHashSet::default();
        (self.passed, self.eager) = (0, 0);
        let Self { crashes, passed, eager, .. } = self;
        crashes.retain_mut(|crash| {
            let seq = crash.moment.before.unwrap_or(u64::MAX);
            let now = acknowledged(seq);
            if crash.moment.is_after_answer && now == acknowledged(seq - 1) {
                // That was no answer, after all.
                return false;
            }
            *passed += 1;
            *eager = eager.saturating_add(crash::combinations(&crash.lines));
            crash.promise = promises.at(seq);
            crash.identity = crash::with_promise(crash.identity, now.unwrap_or(PromiseId::NONE));
            known.insert(crash.identity)
        });
    }
}

/// Makes a [`CrashScan`] out of events.
#[derive(Debug)]
pub struct CrashScanner {
    model: Model,
    replay: PmReplay,
    points: FailurePointFinder,
    pending: PendingLines,
    versions: Versions,
    crashes: Vec<Crash>,
    known: FxHashSet<u128>,
    /// Contents are compared: what is promised by a moment matters, too.
    compares_contents: bool,
    /// The moment right after the last event, if that may have acknowledged an operation.
    answered: Option<CrashMoment>,
    passed: u64,
    eager: u128,
    unsupported: u64,
    saw_pm: bool,
}

impl CrashScanner {
    /// `store` is an empty file for the pages of all versions. If contents are compared, crashes right after an answer matter, too: what
    /// they may leave is little, but it must be right.
    pub fn new(recording: &Recording, mode: Mode, compares_contents: bool, store: MappedFile) -> Self {
        Self {
            model: Model::new(mode),
            replay: PmReplay::new(recording),
            points: FailurePointFinder::default(),
            pending: PendingLines::default(),
            versions: Versions::new(store),
            crashes: Vec::new(),
            known: FxHashSet::default(),
            compares_contents,
            answered: None,
            passed: 0,
            eager: 0,
            unsupported: 0,
            saw_pm: false,
        }
    }

    /// Takes the next event of the run.
    pub fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        match event.what {
            What::Load { .. } => return Ok(()),
            What::Unsupported { .. } | What::Interrupted { .. } => self.unsupported += 1,
            What::Map { .. } => self.saw_pm = true,
            _ => {}
        }
        let answered = self.answered.take();
        if self.points.is_point(event, &self.model) {
            self.crash(CrashMoment::before(event))?;
        } else if let Some(answered) = answered {
            self.crash(answered)?;
        }
        // A program that prints nothing acknowledges an operation when it reads the next one.
        if self.compares_contents && (event.what.is_answer() || matches!(event.what, What::Input { .. })) {
            self.answered = Some(CrashMoment::after_answer(event));
        }
        self.model.event(event, &Newest(&self.replay));
        self.replay.apply(event)
    }

    fn crash(&mut self, moment: CrashMoment) -> io::Result<VersionId> {
        let (version, _) = self.versions.snapshot(&mut self.replay)?;
        let lines = self.pending.lines(&self.model);
        let certain = self.versions.get(version).map_or(0, |version| version.hash);
        let identity = crash::identity(certain, &lines);
        self.passed += 1;
        self.eager = self.eager.saturating_add(crash::combinations(&lines));
        if self.compares_contents || self.known.insert(identity) {
            let origin = moment.before;
            self.crashes.push(Crash {
                moment,
                level: 0,
                origin,
                version,
                patches: Vec::new(),
                lines,
                identity,
                promise: PromiseId::NONE,
                names: ExecutionStacks::default(),
            });
        }
        Ok(version)
    }

    /// The run has ended, which is one more moment to crash at.
    pub fn finish(mut self) -> io::Result<CrashScan> {
        let last = self.crash(CrashMoment::END)?;
        Ok(CrashScan {
            versions: self.versions,
            crashes: self.crashes,
            last,
            passed: self.passed,
            file_writes: self.model.file_writes(),
            eager: self.eager,
            merged: self.model.merged(),
            unsupported: self.unsupported,
            saw_pm: self.saw_pm,
        })
    }
}
