//! Which failures are about the same broken state: one that recovery cannot handle although the crash loses nothing.
//!
//! A store leaves such a state, and a later one ends it. In between, recovery from every crash fails: these crashes form one
//! [window](crate::causes::windows), as they do for `check`. A crash that loses the store that ends the state leaves it once more.

use std::collections::HashMap;

use pmvet_findings::Outcome;

use super::campaign::FailedExecution;
use super::explore::state_of;
use crate::causes::windows::{FailureMode, PointVerdict, windows};

/// What two failures have in common if they are about the same broken state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum BrokenState<'a> {
    /// What is wrong, and with which operation.
    Operation(&'static str, &'a str),
    /// A row of crashes after which recovery fails in the same way although nothing is lost.
    Window(usize),
}

/// How recovery fails; for wrong contents, also what is wrong with them.
type Mode = (FailureMode, Option<&'static str>);

/// The windows of a run.
#[derive(Debug, Default)]
pub(super) struct BrokenStates {
    /// For moments in a window: which window, and how recovery fails.
    windows: HashMap<u64, (usize, Mode)>,
    /// The moment before each.
    before: HashMap<u64, u64>,
}

impl BrokenStates {
    /// Finds the windows among the failures that lose nothing. `moments` are all moments at which the run was crashed,
    /// in order.
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

    /// The broken states that a failure shows: it may share any of them with another failure.
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
        // What is wrong with nothing lost stays wrong whatever else is lost. Wrong contents may look different each
        // time.
        let is_content = mode.0 == FailureMode::Content;
        if let Some((window, _)) = self.windows.get(&now).filter(|(_, known)| *known == mode || is_content) {
            return Some(*window);
        }
        let before = self.before.get(&now)?;
        let (window, _) = self.windows.get(before).filter(|(_, known)| *known == mode)?;
        reads_as_before(failure, *before).then_some(*window)
    }
}

/// Whether all that recovery has read equals what was there at this earlier moment with nothing lost: the crash loses only stores made
/// since, and no other store since made a difference.
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
