//! `--durable`: what a run had acknowledged before a crash must be there afterwards, even if a race has lost a store.
//!
//! Each forced run is split into operations by itself, since threads interleave differently each time. The contents to compare with
//! depend only on which operations have happened, so all runs share them.

use std::path::Path;
use std::sync::Arc;

use pmvet_findings::Outcome;
use pmvet_target::crash::Versions;

use super::judge::Judge;
use super::judged_run::JudgedRun;
use super::race_case::RaceCase;
use crate::lab::{LabError, TrialImage};
use crate::promises::durable::{DurablePlan, OperationLog, OperationsSeen, promised};
use crate::promises::judge::{DrivenCommand, Incomparable};
use crate::promises::{Acknowledgement, Indistinct, OperationSigns, Promises};

/// What is needed to compare contents.
#[derive(Debug)]
pub struct ComparedContents<'a> {
    /// How contents are shown and compared.
    pub plan: &'a DurablePlan,
    /// The lines of the input.
    pub operations: Vec<String>,
    /// The file that caches the contents that operations lead to.
    pub journal: &'a Path,
}

/// Why contents cannot be compared with what was promised.
#[derive(Debug)]
pub enum NotCompared {
    /// Operations cannot be told apart.
    Indistinct(Indistinct),
    /// Contents without a crash differ, or cannot be shown.
    Incomparable(Incomparable),
}

impl Judge<'_> {
    /// Makes the judge compare contents with what runs have promised. `base` is the recorded run.
    pub(super) fn expect_contents(
        &mut self,
        contents: &ComparedContents<'_>,
        base: &JudgedRun,
    ) -> Result<Result<Acknowledgement, Indistinct>, LabError> {
        let recovery = DrivenCommand { command: self.recovery.command.clone(), driver: None };
        let log = OperationLog::Lines(contents.operations.clone());
        let told = promised(contents.plan, recovery, self.lab.workload, &base.signs, log, contents.journal)?;
        Ok(told.map(|(promised, how)| {
            self.recovery.promised = Some(promised);
            how
        }))
    }

    /// Checks whether contents can be compared. `shown` is what the undisturbed run left.
    pub(super) fn calibrate(&self, shown: &[u8]) -> Result<Result<(), Incomparable>, LabError> {
        let Some(promised) = &self.recovery.promised else { return Ok(Ok(())) };
        let calibrated = promised.judge.calibrate(Some(&String::from_utf8_lossy(shown)));
        calibrated.map_err(|e| LabError::output("run", "the dump", e))
    }

    /// How the recorded run was split into operations, for the report.
    pub(super) fn operations_seen(&self, how: Acknowledgement) -> Option<OperationsSeen> {
        self.recovery.promised.as_ref().map(|promised| OperationsSeen::new(how, &promised.judge))
    }

    /// Notes what a run had promised at the moments of its crashes.
    pub(super) fn note_promises(&mut self, signs: &OperationSigns, cases: &mut [RaceCase<'_>]) {
        let Some(promised) = &mut self.recovery.promised else { return };
        let lines: Vec<&str> = promised.judge.operations().iter().map(String::as_str).collect();
        // A run that ended before its first operation has promised nothing.
        let mut promises: Promises = signs.promises(&lines).map(|(promises, _)| promises).unwrap_or_default();
        for case in cases {
            let (store, load) = (case.meeting.store, case.meeting.load);
            case.promise = promises.at(case.crash.seq);
            case.excused = promises.without_thread(case.promise, store.thread, load.seq);
        }
        promised.promises = Arc::new(promises);
    }

    /// Whether recovery accepts an image whose contents are wrong.
    pub(super) fn misses_content(&self, versions: &Versions, image: &TrialImage<'_>) -> bool {
        let tried = self.journal.get(&image.name(versions));
        tried.is_some_and(|tried| matches!(tried.outcome, Outcome::Content { .. }))
    }
}
