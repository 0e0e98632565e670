//! `pmvet race --confirm`: predicted races are made to happen, and recovery judges.

mod judge;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pmvet_engines::lockset::pm_locks::HeldLock;
use pmvet_engines::stacks::Stacks;
use pmvet_events::file::TraceHeader;
use pmvet_events::plan::{MAX_STALLS, Stall};
use pmvet_events::{ContextId, SiteId};
use pmvet_findings::{Finding, Frame};
use pmvet_target::install::Install;
use pmvet_target::launch;
use pmvet_target::recording::Recording;

use self::judge::{Judge, Run, output};
use crate::cli;
use crate::exit::Error;
use crate::reporting::Witness;
use crate::run_folder::{RunFolder, RunInfo, texts};
use crate::workload::Workload;

/// A forced run may take this many times as long as the recorded one, and so much longer.
const SLOWER: u32 = 4;
const LONGER: Duration = Duration::from_secs(20);
/// In how many stores of one instruction a thread is stopped in one run.
const STOPS: u32 = 20;
/// After so many rounds in a row without anything new there is nothing to be found.
const FRUITLESS: u32 = 8;
/// The first rounds try what was predicted; then every store that other threads read.
const PREDICTED_FIRST: u32 = 2;

/// An instruction, the same in every run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Spot {
    module: PathBuf,
    offset: u64,
}

impl Spot {
    /// Of an instruction of a run.
    pub(super) fn of(site: SiteId, stacks: &mut dyn Stacks) -> Option<Self> {
        // Inlined functions share the instruction.
        let frame = stacks.stack(site, ContextId(0)).into_iter().next()?;
        Self::of_frame(&frame)
    }

    pub(super) fn of_frame(frame: &Frame) -> Option<Self> {
        Some(Self { module: frame.module.clone()?, offset: frame.offset })
    }
}

/// A store that may be read too early, and what makes it persistent at last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) store: Spot,
    pub(super) end: Option<Spot>,
    /// The locksets say so; otherwise other threads read it, and that is all.
    pub(super) predicted: bool,
}

/// What became of a pair of instructions, over all runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) meetings: usize,
    pub(super) images: usize,
    pub(super) writer_alone: bool,
    pub(super) unfinished: bool,
}

/// What confirming gave.
#[derive(Default)]
pub(super) struct Confirmed {
    /// Proven races, by their store.
    pub(super) findings: BTreeMap<Spot, Finding>,
    pub(super) witnesses: HashMap<String, Witness>,
    /// Everything else that happened.
    pub(super) tallies: BTreeMap<(Spot, Spot), Tally>,
    pub(super) runs: u32,
    pub(super) images: usize,
    /// Why races could not be judged, if so.
    pub(super) no_oracle: Option<String>,
    pub(super) notes: Vec<String>,
}

pub(super) struct Confirm<'a> {
    pub(super) workload: &'a Workload,
    pub(super) folder: &'a RunFolder,
    pub(super) install: &'a Install,
    pub(super) arguments: &'a cli::Confirm,
    pub(super) traced: Duration,
    /// How many threads the recorded run had.
    pub(super) threads: u32,
}

impl Confirm<'_> {
    /// Tries to prove races of these stores, and that these locks stay held.
    pub(super) fn run(
        &self,
        candidates: &[Candidate],
        held: &mut [(HeldLock, Finding)],
        info: &mut RunInfo,
    ) -> Result<Confirmed, Error> {
        let mut confirmed = Confirmed::default();
        let mut judge = Judge::new(self)?;
        let base = Run::read(&self.folder.recording(), self.folder)?;
        confirmed.no_oracle = judge.prove(&base)?.err();
        info.recover = texts(&judge.recovery.command);
        info.oracle = judge.recovery.oracle.as_deref().map(texts);
        (info.usual, info.timeout) = (Some(judge.usual.clone()), Some(judge.recovery.timeout));
        if confirmed.no_oracle.is_none() {
            for (lock, finding) in held {
                judge.lock(lock, finding, &mut confirmed.witnesses)?;
            }
        }
        judge.judge(base, None, &mut confirmed)?;
        let any_predicted = candidates.iter().any(|candidate| candidate.predicted);
        let mut fruitless = 0;
        for round in 0..self.arguments.rounds {
            let proven = |candidate: &&Candidate| confirmed.findings.contains_key(&candidate.store);
            let mut open: Vec<&Candidate> = candidates.iter().filter(|candidate| !proven(candidate)).collect();
            if any_predicted && !open.iter().any(|candidate| candidate.predicted) {
                break;
            }
            if any_predicted && round < PREDICTED_FIRST {
                open.retain(|candidate| candidate.predicted);
            }
            let tired = fruitless >= FRUITLESS && !self.arguments.delay_injection;
            if open.is_empty() || tired || launch::stopped_by().is_some() {
                break;
            }
            if judge.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                confirmed.notes.push(format!("the budget ended after {round} forced runs"));
                break;
            }
            let name = format!("forced-{}", round + 1);
            let Some(recording) = self.force(&open, round, &name, &mut confirmed)? else { continue };
            confirmed.runs += 1;
            let before = (confirmed.findings.len(), confirmed.tallies.len());
            judge.judge(Run::read(&recording, self.folder)?, Some(&name), &mut confirmed)?;
            let news = before != (confirmed.findings.len(), confirmed.tallies.len());
            fruitless = if news { 0 } else { fruitless + 1 };
        }
        Ok(confirmed)
    }

    /// Runs the workload with threads stopped between these stores and their persists.
    fn force(
        &self,
        candidates: &[&Candidate],
        round: u32,
        name: &str,
        confirmed: &mut Confirmed,
    ) -> Result<Option<Recording>, Error> {
        let folder = self.folder.file(name);
        std::fs::create_dir_all(&folder).map_err(|e| output(name, e))?;
        let mut how = self.workload.launch(true);
        how.plan.threads = self.threads;
        match self.arguments.delay_injection {
            true => how.plan.delays = true,
            false => how.plan.stalls = stalls(candidates, round),
        }
        if let Some(private) = &mut how.sandbox {
            let longer = if how.plan.delays { 10 * LONGER } else { LONGER };
            private.timeout = Some(self.traced * SLOWER + longer);
        }
        let header = TraceHeader {
            command: self.workload.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            pmvet_version: env!("CARGO_PKG_VERSION").into(),
            loads: true,
        };
        let (recording, ending) = Recording::make(&folder, &how, &header, self.install, None)?;
        if launch::stopped_by().is_some() {
            return Ok(None);
        }
        if !ending.loss.is_none() {
            confirmed.notes.push(format!("run {name} lost {} events and was not used", ending.loss.events));
            return Ok(None);
        }
        if ending.exit != launch::Exit::Status(0) {
            confirmed.notes.push(format!("in run {name} the target ended with {}", ending.exit));
        }
        Ok(Some(recording))
    }
}

/// Where threads are stopped: before the persist in even rounds, since by then the writer has done all that lets others in;
/// after the store in odd ones. Later rounds let more of them pass first, and leave some out, since a thread that is
/// stopped elsewhere reads nothing.
fn stalls(candidates: &[&Candidate], round: u32) -> Vec<Stall> {
    let late = round.is_multiple_of(2);
    let turn = round / 2;
    let mut stalls: Vec<Stall> = Vec::new();
    for candidate in candidates {
        let (spot, before) = match &candidate.end {
            Some(end) if late => (end, true),
            _ => (&candidate.store, false),
        };
        let stall = Stall {
            module: spot.module.to_string_lossy().into_owned(),
            offset: spot.offset,
            before,
            skip: turn * STOPS,
            times: STOPS * (1 + turn),
        };
        if !stalls.contains(&stall) {
            stalls.push(stall);
        }
    }
    if turn > 0 && stalls.len() > 1 {
        let parity = turn as usize % 2;
        stalls = stalls.into_iter().enumerate().filter(|(i, _)| i % 2 == parity).map(|(_, stall)| stall).collect();
    }
    stalls.truncate(MAX_STALLS);
    stalls
}
