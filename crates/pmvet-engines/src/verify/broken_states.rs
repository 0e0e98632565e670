//! Which failures are about the same broken state: one that recovery cannot handle although the crash loses nothing.
//!
//! A store leaves such a state, and a later one ends it. In between every crash fails, wherever it comes: these crashes are one
//! [window](crate::causes::windows), as they are for `check`. A crash that loses the store which ends it leaves the same state once more.

use std::collections::HashMap;

use pmvet_findings::Outcome;

use super::campaign::FailedExecution;
use super::explore::state_of;
use crate::causes::windows::{FailureMode, PointVerdict, windows};

/// What two failures have in common if they are about the same broken state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum BrokenState<'a> {
    /// What is wrong, with which operation.
    Operation(&'static str, &'a str),
    /// Crashes that follow each other, after all of which recovery fails alike although nothing is lost.
    Window(usize),
}

/// How recovery fails. Of contents, also what is wrong with them.
type Mode = (FailureMode, Option<&'static str>);

/// The windows of a run.
#[derive(Debug, Default)]
pub(super) struct BrokenStates {
    /// Of the moments that are in one: which, and how recovery fails.
    windows: HashMap<u64, (usize, Mode)>,
    /// The moment before each.
    before: HashMap<u64, u64>,
}

impl BrokenStates {
    /// From the failures that lose nothing. `moments` are all at which the run was crashed, in order.
    pub(super) fn new<'a>(losing_nothing: impl Iterator<Item = &'a FailedExecution>, moments: &[u64]) -> Self {
        let of_workload = losing_nothing.filter(|failure| failure.crash.level == 0);
        let modes: HashMap<u64, Mode> = of_workload.map(|failure| (moment(failure), mode(failure))).collect();
        let mode = |at: usize| modes.get(&moments[at]).copied();
        let verdict = |at| if mode(at).is_some() { PointVerdict::Bad } else { PointVerdict::Good };
        let verdicts: Vec<PointVerdict> = (0..moments.len()).map(verdict).collect();
        let mut found = Self::default();
        for (number, window) in windows(&verdicts).into_iter().flat_map(|window| window.by_mode(mode)).enumerate() {
            let failing = (window.first..=window.last).filter_map(|at| Some((moments[at], (number, mode(at)?))));
            found.windows.extend(failing);
        }
        found.before = moments.windows(2).map(|two| (two[1], two[0])).collect();
        found
    }

    /// What is broken, in all ways in which it may be the same as what another failure shows.
    pub(super) fn of<'a>(&self, failure: &'a FailedExecution) -> Vec<BrokenState<'a>> {
        let window = self.window(failure).map(BrokenState::Window);
        let operation = match &failure.verdict.outcome {
            Outcome::Content { violation, operation, .. } => Some(BrokenState::Operation(violation.title(), operation)),
            _ => None,
        };
        operation.into_iter().chain(window).collect()
    }

    /// The window that a failure is in, or that it prolongs.
    fn window(&self, failure: &FailedExecution) -> Option<usize> {
        if failure.crash.level > 0 {
            return None;
        }
        let (now, mode) = (moment(failure), mode(failure));
        // What is wrong although nothing is lost stays wrong, whatever else is lost meanwhile. A wrong content may look like several things.
        let is_content = mode.0 == FailureMode::Content;
        if let Some((window, _)) = self.windows.get(&now).filter(|(_, known)| *known == mode || is_content) {
            return Some(*window);
        }
        let before = self.before.get(&now)?;
        let (window, _) = self.windows.get(before).filter(|(_, known)| *known == mode)?;
        reads_as_before(failure, *before).then_some(*window)
    }
}

/// Whether all that recovery has read is as it was at this earlier moment, with nothing lost: what the crash loses was stored since, and
/// nothing else that was stored since made a difference.
fn reads_as_before(failure: &FailedExecution, earlier: u64) -> bool {
    let lines = &failure.crash.lines;
    failure.reads.iter().all(|read| {
        let Some(line) = lines.get(read.line as usize) else { return false };
        line.is_as_before(state_of(line, &failure.choice, read.line), read.bytes, earlier)
    })
}

fn mode(failure: &FailedExecution) -> Mode {
    let outcome = &failure.verdict.outcome;
    let violation = match outcome {
        Outcome::Content { violation, .. } => Some(violation.title()),
        _ => None,
    };
    (FailureMode::from(outcome), violation)
}

fn moment(failure: &FailedExecution) -> u64 {
    failure.crash.moment.before.unwrap_or(u64::MAX)
}
