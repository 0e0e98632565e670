//! Forces a schedule again that proved a race.
//!
//! The plan of a forced run says where threads stop and whom they wait for; the rest is up to the machine. So the same plan
//! mostly, but not always, gives the same meeting, and is tried several times.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use std::time::Duration;

use pmvet_events::plan::{Plan, Stall, Stop};
use pmvet_findings::{Evidence, Outcome, Role};
use pmvet_target::shutdown;
use serde::{Deserialize, Serialize};

use super::instruction::Instruction;
use super::judge::{Judge, journal};
use super::judged_run::{JudgedRun, spots};
use super::meeting::Meeting;
use super::policy::POLICY;
use super::schedule_picker::stops_of_anyone;
use super::search::Confirmed;
use super::shared::Nth;
use crate::lab::{Lab, LabError, RecoveryCommand};
use crate::stacks::Stacks;

/// The schedules of a run's proven races, by the names of their crash images.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Schedules {
    /// The command that creates the workload's initial files.
    pub setup: Option<String>,
    /// The schedule that reproduces each of them.
    pub schedules: HashMap<String, Schedule>,
}

impl Schedules {
    /// In the run's folder.
    pub const FILE: &str = "schedules.json";
}

/// All that is needed to make a race happen again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// To be tried in turn.
    plans: Vec<Plan>,
    store: Instruction,
    /// Nothing: no thread reads the store, and it does not matter which one acts.
    load: Option<Instruction>,
    timeout: Duration,
    /// Instructions that take locks that stay held; the image has these locks free.
    #[serde(default)]
    held_locks: BTreeSet<Instruction>,
}

impl Schedule {
    /// Some thread reads the store.
    pub(super) fn is_read(&self) -> bool {
        self.load.is_some()
    }

    /// In the order in which they are tried.
    pub(super) fn plans(&self) -> impl Iterator<Item = &Plan> {
        self.plans.iter()
    }
}

impl JudgedRun {
    /// Takes the meetings of a schedule out of a run, or, with `any_reader`, those of its store with any reader.
    pub(super) fn meetings_of(&mut self, schedule: &Schedule, any_reader: bool) -> Vec<Meeting> {
        let mut meetings = std::mem::take(&mut self.meetings.meetings);
        let spots = spots(&meetings, self);
        let is = |site, spot: &Instruction| spots.get(&site).is_some_and(|known| known.as_ref() == Some(spot));
        meetings.retain(|m| {
            let comes = |load| m.read && (is(m.load.site, load) || any_reader && !m.is_intra());
            let loads = schedule.load.as_ref().is_none_or(comes);
            is(m.store.site, &schedule.store) && loads
        });
        meetings
    }
}

/// The plan of a run that is judged.
pub(super) struct Forced {
    /// Nothing: the recorded run, in which no thread was stopped.
    pub(super) name: Option<String>,
    pub(super) plan: Plan,
    /// The stores that it targets, if those are only a few.
    pub(super) about: BTreeSet<Instruction>,
    pub(super) timeout: Duration,
}

impl Forced {
    /// How to make a meeting happen again. The plans: that of its whole run; a stop of the writer only, for this reader; or a stop of
    /// any thread that comes to the store, for all others, as chance may decide which thread does what.
    pub(super) fn schedule(
        &self,
        meeting: &Meeting,
        (store, load): &(Instruction, Instruction),
        fences: &HashMap<u64, Nth>,
        held_locks: &BTreeSet<Instruction>,
        stacks: &mut dyn Stacks,
    ) -> Schedule {
        let plan = |at: &Instruction, nth: u32, before: bool| {
            let (thread, reader) = (meeting.store.thread.0, meeting.load.thread.0);
            let stop = Stop { thread, nth, reader, reads: 1, ..Stop::default() };
            let module = at.module.clone();
            let stall = Stall { module, offset: at.offset, before, stops: vec![stop] };
            Plan { stalls: vec![stall], delays: false, in_step: true, ..self.plan.clone() }
        };
        let fence = fences.get(&meeting.store.seq);
        let late = fence.and_then(|fence| Some(plan(&Instruction::at(fence.site, stacks)?, fence.nth, true)));
        let early = meeting.nth.map(|nth| plan(store, nth, false));
        let whole = self.name.is_some().then(|| self.plan.clone());
        let stopped = [&late, &early].into_iter().flatten().filter(|_| meeting.read);
        let all: Vec<Plan> = stopped.map(|plan| for_all(plan, self.plan.threads)).collect();
        let mut plans: Vec<Plan> = [whole.clone(), whole, late, early].into_iter().flatten().chain(all).collect();
        if plans.is_empty() {
            plans.push(self.plan.clone());
        }
        Schedule {
            plans,
            store: store.clone(),
            load: meeting.read.then(|| load.clone()),
            timeout: self.timeout,
            held_locks: held_locks.clone(),
        }
    }
}

/// Extends a plan that stops one thread to all threads: each stops there several times, until the others have finished.
fn for_all(plan: &Plan, threads: u32) -> Plan {
    let stops = |stop: &Stop| {
        let first = stop.nth.saturating_sub(POLICY.visits_of_anyone / 2);
        stops_of_anyone(threads, first..first + POLICY.visits_of_anyone)
    };
    let stall = |stall: &Stall| Stall { stops: stall.stops.first().map_or_else(Vec::new, stops), ..stall.clone() };
    Plan { stalls: plan.stalls.iter().map(stall).collect(), ..plan.clone() }
}

/// The result of forcing a schedule again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Again {
    /// The race is proven once more, by this run, and recovery ended like this.
    Proven {
        /// Which of the runs proved it, counted from 1.
        run: usize,
        /// How recovery ended on its crash image.
        outcome: Outcome,
        /// By another reader of the same store.
        other_reader: bool,
    },
    /// The race was not proven in this many runs.
    NotProven {
        /// How many runs were made.
        runs: usize,
    },
    /// pmvet was asked to stop.
    Interrupted,
}

/// Forces a schedule until its race is proven once more. `usual`: how the recovery ends when nothing was lost.
pub fn again(
    lab: Lab<'_>,
    schedule: &Schedule,
    recovery: &RecoveryCommand,
    usual: &Outcome,
) -> Result<Again, LabError> {
    let scratch = ScratchFolder::new(lab.folder.join("replayed"));
    let mut undisturbed = None;
    for (nth, plan) in schedule.plans.iter().cycle().take(POLICY.replays).enumerate() {
        let _ = fs::remove_dir_all(scratch.path());
        let (recording, ending) = lab.record(plan, schedule.timeout, scratch.path(), None)?;
        if shutdown::stopped_by().is_some() {
            return Ok(Again::Interrupted);
        }
        if !ending.loss.is_none() {
            continue;
        }
        let mut run = JudgedRun::read(&recording, lab)?;
        let any_reader = nth >= POLICY.replays_by_reader;
        run.meetings.meetings = run.meetings_of(schedule, any_reader);
        if run.meetings.meetings.is_empty() {
            continue;
        }
        let mut judge = Judge::with(lab, recovery.clone(), usual.clone(), journal(scratch.path())?);
        judge.held_locks.clone_from(&schedule.held_locks);
        judge.screen_like(&run, &mut undisturbed)?;
        let mut confirmed = Confirmed::default();
        let (plan, about) = (plan.clone(), BTreeSet::from([schedule.store.clone()]));
        let forced = Forced { name: None, plan, about, timeout: schedule.timeout };
        judge.judge(run, &forced, &mut confirmed)?;
        let proven = confirmed.findings.values().find_map(|finding| match &finding.evidence {
            Evidence::Crash { recovery, .. } => Some((finding, recovery.outcome.clone())),
            _ => None,
        });
        if let Some((finding, outcome)) = proven {
            let mut loads = finding.places.iter().filter(|place| place.role == Role::Load);
            let load = loads.find_map(|place| Instruction::of_frame(place.stack.first()?));
            let other_reader = schedule.load.is_some() && load != schedule.load;
            return Ok(Again::Proven { run: nth + 1, outcome, other_reader });
        }
    }
    Ok(Again::NotProven { runs: POLICY.replays })
}

/// A folder that is removed at the end.
pub(super) struct ScratchFolder(std::path::PathBuf);

impl ScratchFolder {
    pub(super) fn new(path: std::path::PathBuf) -> Self {
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
