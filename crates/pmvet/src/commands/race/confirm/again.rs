//! A schedule that proved a race, forced again.
//!
//! The plan of a forced run says where threads stop and whom they wait for; the rest is left to the machine. So the same plan
//! gives the same meeting mostly, not always, and is tried some times.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use pmvet_engines::confirm::Meeting;
use pmvet_engines::confirm::shared::Nth;
use pmvet_engines::inject::{Journal, Recovery};
use pmvet_engines::stacks::Stacks;
use pmvet_events::plan::{Plan, Stall, Stop};
use pmvet_findings::{Evidence, Outcome};
use pmvet_target::install::Install;
use pmvet_target::launch::{self, Ending};
use pmvet_target::recording::Recording;
use serde::{Deserialize, Serialize};

use super::judge::{Judge, Run, output, spots};
use super::{Confirmed, Spot};
use crate::exit::Error;
use crate::run_folder::{RunFolder, RunInfo, words};
use crate::workload::Workload;

/// How often a schedule is tried before it is given up.
const TRIES: usize = 40;

/// The schedules of a run's proven races, by the names of their crash images.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Schedules {
    /// The command that makes the files that the workload starts with.
    pub(crate) setup: Option<String>,
    pub(crate) schedules: HashMap<String, Schedule>,
}

impl Schedules {
    /// In the run's folder.
    pub(crate) const FILE: &str = "schedules.json";

    fn read(folder: &RunFolder) -> Result<Option<Self>, Error> {
        let path = folder.file(Self::FILE);
        let bad = |e: &dyn std::fmt::Display| Error::Run(format!("{} cannot be used: {e}", path.display()));
        match fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text).map(Some).map_err(|e| bad(&e)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(bad(&e)),
        }
    }
}

/// All that it takes to make a race happen again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Schedule {
    /// To be tried in turn.
    plans: Vec<Plan>,
    store: Spot,
    /// Nothing: nobody reads the store, and it does not matter who goes on.
    load: Option<Spot>,
    timeout: Duration,
}

impl Schedule {
    /// The store is read by somebody.
    pub(super) fn is_read(&self) -> bool {
        self.load.is_some()
    }

    /// In the order in which they are tried.
    pub(super) fn plans(&self) -> impl Iterator<Item = &Plan> {
        self.plans.iter()
    }
}

impl Run {
    /// The meetings, taken out of a run, that a schedule is for.
    pub(super) fn meetings_of(&mut self, schedule: &Schedule) -> Vec<Meeting> {
        let mut meetings = std::mem::take(&mut self.meetings.meetings);
        let spots = spots(&meetings, self);
        let is = |site, spot: &Spot| spots.get(&site).is_some_and(|known| known.as_ref() == Some(spot));
        meetings.retain(|m| {
            let loads = schedule.load.as_ref().is_none_or(|load| m.read && is(m.load.site, load));
            is(m.store.site, &schedule.store) && loads
        });
        meetings
    }
}

/// A run that is judged, and how it came about.
pub(super) struct Forced {
    /// Nothing: the recorded run, in which nobody was stopped.
    pub(super) name: Option<String>,
    pub(super) plan: Plan,
    pub(super) timeout: Duration,
}

impl Forced {
    /// How to make a meeting happen again: the whole plan of its run, or only the writer is stopped, for this reader.
    pub(super) fn schedule(
        &self,
        meeting: &Meeting,
        (store, load): &(Spot, Spot),
        fences: &HashMap<u64, Nth>,
        stacks: &mut dyn Stacks,
    ) -> Schedule {
        let plan = |at: &Spot, nth: u32, before: bool| {
            let (thread, reader) = (meeting.store.thread.0, meeting.load.thread.0);
            let stop = Stop { thread, nth, reader, reads: 1, ..Stop::default() };
            let module = at.module.clone();
            let stall = Stall { module, offset: at.offset, before, stops: vec![stop] };
            Plan { stalls: vec![stall], delays: false, in_step: true, ..self.plan.clone() }
        };
        let fence = fences.get(&meeting.store.seq);
        let late = fence.and_then(|fence| Some(plan(&Spot::of(fence.site, stacks)?, fence.nth, true)));
        let early = meeting.nth.map(|nth| plan(store, nth, false));
        let whole = self.name.is_some().then(|| self.plan.clone());
        let mut plans: Vec<Plan> = [whole.clone(), whole, late, early].into_iter().flatten().collect();
        if plans.is_empty() {
            plans.push(self.plan.clone());
        }
        Schedule { plans, store: store.clone(), load: meeting.read.then(|| load.clone()), timeout: self.timeout }
    }
}

/// Runs a workload by a plan and records it.
pub(super) fn make(
    workload: &Workload,
    plan: &Plan,
    timeout: Duration,
    folder: &Path,
    install: &Install,
    cancel: Option<Arc<AtomicBool>>,
) -> Result<(Recording, Ending), Error> {
    fs::create_dir_all(folder).map_err(|e| output(&folder.display().to_string(), e))?;
    let mut how = workload.launch(true);
    how.plan = plan.clone();
    if let Some(private) = &mut how.sandbox {
        (private.timeout, private.by_the_clock, private.cancel) = (Some(timeout), true, cancel);
    }
    Ok(workload.make(folder, how, install, None)?)
}

/// What forcing a schedule again gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Again {
    /// The race is proven once more, by this run, and recovery ended like this.
    Proven {
        run: usize,
        outcome: Outcome,
    },
    /// Not in so many runs.
    NotProven {
        runs: usize,
    },
    Interrupted,
}

/// Forces the schedule that led to a crash image until its race is proven once more. Nothing if the image is not that of a
/// race.
pub(crate) fn again(
    folder: &RunFolder,
    image: &str,
    info: &RunInfo,
    recovery: &Recovery,
) -> Result<Option<Again>, Error> {
    let Some(mut all) = Schedules::read(folder)? else { return Ok(None) };
    let Some(schedule) = all.schedules.remove(image) else { return Ok(None) };
    let usual = info.usual.clone().unwrap_or(Outcome::Exit { status: 0 });
    let install = Install::find()?;
    let mut workload = Workload::again(&words(&info.command), recovery)?;
    if let Some(line) = &all.setup
        && workload.set_up(line)?.is_some()
    {
        return Ok(Some(Again::Interrupted));
    }
    let scratch = Scratch::new(folder.file("replayed"));
    for (nth, plan) in schedule.plans.iter().cycle().take(TRIES).enumerate() {
        let _ = fs::remove_dir_all(scratch.path());
        let (recording, ending) = make(&workload, plan, schedule.timeout, scratch.path(), &install, None)?;
        if launch::stopped_by().is_some() {
            return Ok(Some(Again::Interrupted));
        }
        if !ending.loss.is_none() {
            continue;
        }
        let mut run = Run::read(&recording, folder)?;
        run.meetings.meetings = run.meetings_of(&schedule);
        let journal = Journal::open(&scratch.path().join("tried.jsonl")).map_err(|e| output("tried.jsonl", e))?;
        let mut judge = Judge::with(folder, recovery.clone(), usual.clone(), journal);
        let mut confirmed = Confirmed::default();
        let forced = Forced { name: None, plan: plan.clone(), timeout: schedule.timeout };
        judge.judge(run, &forced, &mut confirmed)?;
        let outcome = confirmed.findings.values().find_map(|finding| match &finding.evidence {
            Evidence::Crash { recovery, .. } => Some(recovery.outcome.clone()),
            _ => None,
        });
        if let Some(outcome) = outcome {
            return Ok(Some(Again::Proven { run: nth + 1, outcome }));
        }
    }
    Ok(Some(Again::NotProven { runs: TRIES }))
}

/// A folder that is removed at the end.
pub(super) struct Scratch(std::path::PathBuf);

impl Scratch {
    pub(super) fn new(path: std::path::PathBuf) -> Self {
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
