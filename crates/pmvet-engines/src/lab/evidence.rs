//! A recovery as evidence, as findings show it.

use pmvet_findings::{Outcome, Recovery, Stack};
use pmvet_target::crash::Patch;

use super::native::NativeStacks;
use super::tried::Tried;
use crate::promises::Promise;
use crate::stacks::Stacks;

/// Looks up the names of places, in the run and in its recoveries.
pub struct StackLookup<'a> {
    /// Places of the recorded run.
    pub stacks: &'a mut dyn Stacks,
    /// Places of recoveries, which run without instrumentation.
    pub natives: &'a mut NativeStacks,
}

impl std::fmt::Debug for StackLookup<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StackLookup").finish_non_exhaustive()
    }
}

/// How to rebuild a crash image from the recorded run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Witness {
    /// The recording it is made from, if that is not the workload's: a folder in the run's.
    pub recording: Option<String>,
    /// The crash is before the event with this number; nothing: at the end.
    pub seq: Option<u64>,
    /// What the crash loses: bytes to write over the content at `seq`.
    pub patches: Vec<Patch>,
    /// What the recovered image must show, if contents are compared.
    pub promise: Option<Promise>,
}

/// What all findings of a run share.
#[derive(Debug, Clone)]
pub struct UsualRecovery {
    /// The recovery's command line, as findings print it.
    pub recovery: Vec<String>,
    /// How it ends when nothing was injected.
    pub usual: Outcome,
}

/// What a recovery did, and what it should have done.
pub(crate) fn recovered(tried: &Tried, setting: &UsualRecovery, stack: Stack) -> Recovery {
    Recovery {
        command: setting.recovery.clone(),
        outcome: tried.outcome.clone(),
        expected: setting.usual.clone(),
        stack,
        output: tried.output.clone(),
        seconds: tried.seconds,
    }
}
