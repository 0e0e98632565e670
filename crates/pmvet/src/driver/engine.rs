//! The interface between the driver and an engine.

use std::collections::HashMap;

use pmvet_findings::{Coverage, FailurePointTree, Finding, Phase};
use pmvet_target::live_events::LiveEvents;

use super::Session;
use crate::exit::{Error, Exit};
use crate::run_folder::RunInfo;
use pmvet_engines::lab::Witness;
use pmvet_target::Workload;

/// Looks for one kind of bug in a recorded run. It knows no other engine.
pub(crate) trait Engine: Send {
    /// Its names in reports.
    fn names(&self) -> Vec<String>;

    /// What the recording must hold.
    fn needs(&self) -> Needs;

    /// Its share of the remaining time, relative to the weights of the engines after it.
    fn weight(&self) -> u32 {
        1
    }

    /// Refuses a workload that it cannot work on, before anything runs.
    fn prepare(&self, _workload: &Workload) -> Result<(), Error> {
        Ok(())
    }

    /// Adds to `run.json` what a replay of its findings needs.
    fn describe(&self, _workload: &Workload, _info: &mut RunInfo) {}

    /// Follows the run while it is recorded, if the engine needs that ([`Needs::live`]).
    fn watch(&mut self, _live: LiveEvents) {}

    /// Asks for another recording if the last one shows too little. The driver then makes one for [`Engine::watch`] to follow.
    fn wants_another_recording(&self, _session: &Session) -> bool {
        false
    }

    /// Does its work on the recorded run.
    fn run(&mut self, session: &mut Session) -> Result<EngineReport, NoReport>;
}

/// What a recording must hold for an engine.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Needs {
    /// Loads of PM.
    pub(crate) loads: bool,
    /// Atomic operations on volatile memory, and allocations.
    pub(crate) races: bool,
    /// Threads that are kept in step.
    pub(crate) in_step: bool,
    /// Counts of branches.
    pub(crate) branches: bool,
    /// The engine follows the run while it is recorded.
    pub(crate) live: bool,
    /// The time that the workload takes without pmvet.
    pub(crate) native_time: bool,
    /// The operations that the workload reads, and its answers.
    pub(crate) operations: bool,
}

impl Needs {
    /// The needs of both.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            loads: self.loads || other.loads,
            races: self.races || other.races,
            in_step: self.in_step || other.in_step,
            branches: self.branches || other.branches,
            live: self.live || other.live,
            native_time: self.native_time || other.native_time,
            operations: self.operations || other.operations,
        }
    }
}

/// What an engine found, what it covered, and what it left untried.
pub(crate) struct EngineReport {
    pub(crate) findings: Vec<Finding>,
    /// How to rebuild the crash images of its findings, by hash.
    pub(crate) witnesses: HashMap<String, Witness>,
    pub(crate) coverage: Coverage,
    pub(crate) tree: Option<FailurePointTree>,
    pub(crate) recovery_tree: Option<FailurePointTree>,
    /// Where its time went.
    pub(crate) phases: Vec<Phase>,
    /// It tried everything that it was asked to try.
    pub(crate) complete: bool,
    /// The least grave exit code with which pmvet may end.
    pub(crate) least: Exit,
}

impl EngineReport {
    /// The report of an engine that could not begin.
    pub(super) fn nothing() -> Self {
        let mut coverage = Coverage::default();
        coverage.not_covered.push("everything: it did not run".into());
        Self {
            findings: Vec::new(),
            witnesses: HashMap::new(),
            coverage,
            tree: None,
            recovery_tree: None,
            phases: Vec::new(),
            complete: false,
            least: Exit::Ok,
        }
    }
}

/// Why there is no report: either pmvet has printed what is wrong and ends with this code, or there was an error.
pub(crate) enum NoReport {
    Exit(Exit),
    Error(Error),
}

impl<E: Into<Error>> From<E> for NoReport {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}
