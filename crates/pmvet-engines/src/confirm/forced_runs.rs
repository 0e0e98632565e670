//! Forced runs, made while earlier ones are judged: a run spends most of its time waiting, for stopped threads and for those that
//! it keeps in step.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use pmvet_events::plan::Plan;
use pmvet_target::launch::Ending;
use pmvet_target::recording::Recording;
use pmvet_target::shutdown;

use super::instruction::Instruction;
use super::judged_run::JudgedRun;
use super::policy::POLICY;
use super::search::Confirmation;
use crate::lab::LabError;

/// A run to be made.
pub(super) struct RunOrder {
    pub(super) name: String,
    pub(super) plan: Plan,
    /// The stores that it targets, if those are only a few.
    pub(super) about: BTreeSet<Instruction>,
    /// The run is ended after this.
    pub(super) time: Duration,
}

/// A run that was made.
pub(super) struct MadeRun {
    pub(super) order: RunOrder,
    pub(super) recording: Recording,
    pub(super) ending: Ending,
    /// Nothing if events were lost, or pmvet is shutting down.
    pub(super) run: Option<JudgedRun>,
}

/// Poll interval while waiting for a run to end.
const LOOK: Duration = Duration::from_millis(1);

/// Runs under way, in the order in which they began. Dropping this ends them.
pub(super) struct ForcedRuns<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    confirm: &'scope Confirmation<'scope>,
    runs: VecDeque<ScopedJoinHandle<'scope, Result<MadeRun, LabError>>>,
    cancel: Arc<AtomicBool>,
}

impl<'scope, 'env> ForcedRuns<'scope, 'env> {
    pub(super) fn new(scope: &'scope Scope<'scope, 'env>, confirm: &'scope Confirmation<'scope>) -> Self {
        Self { scope, confirm, runs: VecDeque::new(), cancel: Arc::default() }
    }

    /// Whether another run may begin now.
    pub(super) fn has_room(&self) -> bool {
        // Two servers cannot share a port.
        let most = match self.confirm.lab.workload.driver {
            Some(_) => 1,
            None => (POLICY.threads_at_once / (self.confirm.threads as usize).max(1)).clamp(2, POLICY.runs_at_once),
        };
        self.runs.len() < most
    }

    pub(super) fn begin(&mut self, order: RunOrder) {
        let (confirm, cancel) = (self.confirm, Arc::clone(&self.cancel));
        self.runs.push_back(self.scope.spawn(move || made(confirm, order, cancel)));
    }

    /// The first run that is over: a run that has deadlocked does not block the others. Nothing if none is left.
    pub(super) fn next(&mut self) -> Result<Option<MadeRun>, LabError> {
        let over = loop {
            match self.runs.iter().position(ScopedJoinHandle::is_finished) {
                None if !self.runs.is_empty() => std::thread::sleep(LOOK),
                over => break over,
            }
        };
        let Some(run) = over.and_then(|at| self.runs.remove(at)) else { return Ok(None) };
        match run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
            // On shutdown, a run fails because it was cut short.
            Err(_) if shutdown::is_over() => Ok(None),
            made => made.map(Some),
        }
    }
}

impl Drop for ForcedRuns<'_, '_> {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
        for made in self.runs.drain(..).filter_map(|run| run.join().ok()?.ok()) {
            made.recording.remove();
        }
    }
}

fn made(confirm: &Confirmation<'_>, order: RunOrder, cancel: Arc<AtomicBool>) -> Result<MadeRun, LabError> {
    let folder = confirm.lab.folder.join(&order.name);
    let (recording, ending) = confirm.lab.record(&order.plan, order.time, &folder, Some(cancel))?;
    let run = (ending.loss.is_none() && !shutdown::is_over())
        .then(|| JudgedRun::read(&recording, confirm.lab))
        .transpose()?;
    Ok(MadeRun { order, recording, ending, run })
}
