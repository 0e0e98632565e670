//! Forced runs, made while earlier ones are judged: most of its time a run waits, for stopped threads and for those that it keeps
//! in step.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use pmvet_events::plan::Plan;
use pmvet_target::launch::Ending;
use pmvet_target::over;
use pmvet_target::recording::Recording;

use super::Confirm;
use super::again::make;
use super::judge::Run;
use crate::exit::Error;

/// How many runs there are at a time, beside what is being judged; the last of them counts as that until it begins. Fewer if they
/// have more threads than this together, which are in each other's way.
const MOST: usize = 3;
const MOST_THREADS: usize = 24;

/// A run to be made.
pub(super) struct Order {
    pub(super) name: String,
    pub(super) plan: Plan,
    /// It is ended then.
    pub(super) time: Duration,
}

/// A run that was made.
pub(super) struct Made {
    pub(super) order: Order,
    pub(super) recording: Recording,
    pub(super) ending: Ending,
    /// Nothing if events were lost, or all is over.
    pub(super) run: Option<Run>,
}

/// How often it is looked whether a run is over.
const LOOK: Duration = Duration::from_millis(1);

/// Runs under way, in the order in which they were begun. They are ended if nobody waits for them any more.
pub(super) struct Ahead<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    confirm: &'scope Confirm<'scope>,
    runs: VecDeque<ScopedJoinHandle<'scope, Result<Made, Error>>>,
    cancel: Arc<AtomicBool>,
}

impl<'scope, 'env> Ahead<'scope, 'env> {
    pub(super) fn new(scope: &'scope Scope<'scope, 'env>, confirm: &'scope Confirm<'scope>) -> Self {
        Self { scope, confirm, runs: VecDeque::new(), cancel: Arc::default() }
    }

    /// Whether another run may begin now.
    pub(super) fn has_room(&self) -> bool {
        // Two servers cannot have one port.
        let most = match self.confirm.workload.driver {
            Some(_) => 1,
            None => (MOST_THREADS / (self.confirm.threads as usize).max(1)).clamp(2, MOST),
        };
        self.runs.len() < most
    }

    pub(super) fn begin(&mut self, order: Order) {
        let (confirm, cancel) = (self.confirm, Arc::clone(&self.cancel));
        self.runs.push_back(self.scope.spawn(move || made(confirm, order, cancel)));
    }

    /// The first run that is over: one that has locked itself up does not keep the others. Nothing if there is none.
    pub(super) fn next(&mut self) -> Result<Option<Made>, Error> {
        let over = loop {
            match self.runs.iter().position(ScopedJoinHandle::is_finished) {
                None if !self.runs.is_empty() => std::thread::sleep(LOOK),
                over => break over,
            }
        };
        let Some(run) = over.and_then(|at| self.runs.remove(at)) else { return Ok(None) };
        match run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
            // What fails then was cut short.
            Err(_) if over::is_over() => Ok(None),
            made => made.map(Some),
        }
    }
}

impl Drop for Ahead<'_, '_> {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
        for made in self.runs.drain(..).filter_map(|run| run.join().ok()?.ok()) {
            made.recording.remove();
        }
    }
}

fn made(confirm: &Confirm<'_>, order: Order, cancel: Arc<AtomicBool>) -> Result<Made, Error> {
    let folder = confirm.folder.file(&order.name);
    let (recording, ending) = make(confirm.workload, &order.plan, order.time, &folder, confirm.install, Some(cancel))?;
    let run = (ending.loss.is_none() && !over::is_over()).then(|| Run::read(&recording, confirm.folder)).transpose()?;
    Ok(Made { order, recording, ending, run })
}
