//! A step of a timeline: what happened to a cache line.

use pmvet_events::{ContextId, FileId, SiteId, ThreadId};
use pmvet_findings::{PmRange, TimelineStep};

use crate::stacks::{Stacks, subject};

/// Bytes of a PM file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PmExtent {
    pub file: FileId,
    pub offset: u64,
    pub len: u64,
}

/// A step in the life of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawStep {
    pub seq: u64,
    pub thread: ThreadId,
    pub site: SiteId,
    pub context: ContextId,
    pub what: StepKind,
    pub pm: Option<PmExtent>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    Stored,
    Flushed,
    Fenced,
    Persisted,
    Crash,
}

impl StepKind {
    pub fn name(self) -> &'static str {
        match self {
            StepKind::Stored => "stored",
            StepKind::Flushed => "flushed",
            StepKind::Fenced => "fenced",
            StepKind::Persisted => "persisted",
            StepKind::Crash => "crash",
        }
    }
}

pub(crate) fn range(pm: PmExtent, stacks: &dyn Stacks) -> PmRange {
    PmRange { file: stacks.file(pm.file), offset: pm.offset, len: pm.len, object: None }
}

/// The step as findings show it.
pub(crate) fn access(step: &RawStep, stacks: &mut dyn Stacks) -> TimelineStep {
    let stack = stacks.stack(step.site, step.context);
    TimelineStep {
        seq: step.seq,
        thread: step.thread.0,
        what: step.what.name().into(),
        pm: step.pm.map(|pm| range(pm, stacks)),
        at: Some(subject(&stack).clone()),
    }
}
