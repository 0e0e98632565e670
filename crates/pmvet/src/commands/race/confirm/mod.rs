//! `pmvet race --confirm`: predicted races are made to happen, and recovery judges.

mod again;
mod ahead;
mod chains;
mod chooser;
mod judge;
mod sync;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use pmvet_engines::confirm;
use pmvet_engines::confirm::sync_variables::Variables;
use pmvet_engines::interleave::alias::Covered;
use pmvet_engines::lockset::pm_locks::HeldLock;
use pmvet_engines::stacks::{Stacks, Symbols};
use pmvet_events::plan::{Plan, Stall};
use pmvet_events::{ContextId, SiteId};
use pmvet_findings::{Evidence, Finding, Frame, Place, Role};
use pmvet_target::install::Install;
use pmvet_target::{launch, over};
use serde::{Deserialize, Serialize};

pub(crate) use self::again::{Again, again};
use self::again::{Forced, make};
pub(super) use self::again::{Schedule, Schedules};
use self::ahead::{Ahead, Made, Order};
pub(super) use self::chains::Chain;
pub(super) use self::chooser::{Attempt, Promise, Stop};
use self::chooser::{Choice, Chooser};
use self::judge::{Judge, Run};
use crate::cli;
use crate::exit::Error;
use crate::reporting::Witness;
use crate::run_folder::{RunFolder, RunInfo, texts};
use crate::workload::Workload;

/// A forced run may take this many times as long as the recorded one, and so much longer: stopped threads may lock the target up.
const SLOWER: u32 = 8;
const LONGER: Duration = Duration::from_secs(2);
/// After so many rounds in a row without anything new there is nothing to be found.
const FRUITLESS: u32 = 40;
/// ... or so many, if other inputs are waiting for their turn.
const COVERED: u32 = 3;
/// ... or so many, if something was found that nobody predicted.
const ENOUGH: u32 = 4;
/// A stopped thread lets others make at least so many stores, and at most such a part of those of the whole run.
const LEAST_PATIENCE: u32 = 200;
const SHARE: u64 = 2;
/// How long it may all take if nobody says: so many times as long as the recorded run, or as everything before, which tells how slow
/// the machine is, but within these bounds; or longer for runs of which there would be too few.
const BUDGET_RUNS: u32 = 30;
const BUDGET_BEFORE: u32 = 3;
const BUDGET: [Duration; 2] = [Duration::from_secs(7), Duration::from_secs(30)];
const FEWEST_RUNS: u32 = 10;
const FEWEST_UNPREDICTED: u32 = 3;
/// With what came before it may all take so long at least; and so long if no race is predicted, but at least the latter.
const AT_LEAST: Duration = Duration::from_secs(9);
const UNPREDICTED: [Duration; 2] = [Duration::from_secs(8), Duration::from_secs(4)];
/// So many instructions after a load of what may still be lost are followed.
const FOLLOWED: u32 = 2000;
/// Every so many runs are followed, and so many once more for the sake of a proven race: that takes time.
const FOLLOWS: u32 = 4;
const MOST_AGAIN: usize = 3;
/// The last run has at least so long.
const LEAST_TIME: Duration = Duration::from_millis(500);

/// An instruction, the same in every run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Spot {
    #[serde(with = "pmvet_events::paths::as_text")]
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

/// What became of a pair of instructions, over all runs.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    pub(super) meetings: usize,
    pub(super) images: usize,
    /// Images that were not tried.
    pub(super) left_out: usize,
    /// Meetings whose reader was followed; a branch of it depended on the value.
    pub(super) followed: usize,
    pub(super) branched: bool,
    /// A side effect that was seen, and in a sentence.
    pub(super) effect: Option<(Place, String)>,
    /// How many bytes depend on the value, and how many of those recovery leaves as they are.
    pub(super) inconsistent: Option<(usize, usize)>,
}

/// What confirming gave.
#[derive(Default)]
pub(super) struct Confirmed {
    /// Proven races, by their store.
    pub(super) findings: BTreeMap<Spot, Finding>,
    /// Those in which the writer itself is at fault, of the run that is being judged.
    alone: BTreeMap<Spot, Finding>,
    pub(super) witnesses: HashMap<String, Witness>,
    /// Synchronisation variables that keep their value over a crash.
    pub(super) sync: Vec<Finding>,
    /// What led to the images that prove races.
    pub(super) schedules: HashMap<String, Schedule>,
    /// What the locksets predict.
    pub(super) predicted: HashSet<(Spot, Spot)>,
    /// Everything else that happened.
    pub(super) tallies: BTreeMap<(Spot, Spot), Tally>,
    /// How many meetings were left out, and why.
    allowed: BTreeMap<&'static str, usize>,
    /// What all runs have covered.
    pub(super) covered: Covered,
    pub(super) runs: u32,
    pub(super) images: usize,
    /// Somebody beside recovery looks at what it leaves.
    pub(super) has_oracle: bool,
    /// Why races could not be judged, if so.
    pub(super) no_oracle: Option<String>,
    pub(super) notes: Vec<String>,
    /// Forced runs in which the target failed, or took too long and was ended, and how.
    failed: Vec<(String, String)>,
}

impl Confirmed {
    /// Whether of a predicted pair that met nobody knows where the value went.
    fn any_not_followed(&self) -> bool {
        let open = |tally: &Tally| tally.meetings > 0 && tally.followed == 0;
        self.predicted.iter().filter_map(|pair| self.tallies.get(pair)).any(open)
    }
}

pub(super) struct Confirm<'a> {
    pub(super) workload: &'a Workload,
    pub(super) folder: &'a RunFolder,
    pub(super) install: &'a Install,
    pub(super) arguments: &'a cli::Confirm,
    pub(super) traced: Duration,
    /// How long everything took before, and whether it has given predicted races.
    pub(super) before: Duration,
    pub(super) predicted: bool,
    /// How many threads and stores the recorded run had.
    pub(super) threads: u32,
    pub(super) stores: u64,
    /// How often it was recorded until threads shared something.
    pub(super) recordings: u32,
    /// Synchronisation variables that the configuration declares.
    pub(super) variables: &'a Variables,
}

impl Confirm<'_> {
    /// How long it may all take.
    fn budget(&self) -> Duration {
        let [least, most] = BUDGET;
        let usual = if self.predicted || self.arguments.delay_injection {
            let least = least.max(AT_LEAST.saturating_sub(self.before));
            let usual = (self.traced * BUDGET_RUNS).max(self.before * BUDGET_BEFORE).clamp(least, most);
            usual.max(self.traced * FEWEST_RUNS)
        } else {
            let [all, rest] = UNPREDICTED;
            all.saturating_sub(self.before).clamp(rest, least).max(self.traced * FEWEST_UNPREDICTED)
        };
        self.arguments.budget.unwrap_or(usual)
    }

    /// Tries to prove races of these stores, and that these locks stay held. `symbols`: what is known of the program's files.
    pub(super) fn run(
        &self,
        attempts: Vec<Attempt>,
        held: &mut [(HeldLock, Finding)],
        symbols: Symbols,
        info: &mut RunInfo,
    ) -> Result<Confirmed, Error> {
        let nothing_shared = attempts.is_empty();
        let mut confirmed = Confirmed { has_oracle: self.arguments.oracle.is_some(), ..Confirmed::default() };
        let pairs = attempts.iter().filter(|attempt| attempt.promise.pair);
        confirmed.predicted = pairs.map(|attempt| (attempt.store.at.clone(), attempt.load.clone())).collect();
        let mut judge = Judge::new(self, symbols)?;
        let mut base = Run::read(&self.folder.recording(), self.folder)?;
        judge.lend_symbols(&mut base);
        confirmed.no_oracle = judge.prove(&base)?.err();
        info.recover = texts(&judge.recovery.command);
        info.oracle = judge.recovery.oracle.as_deref().map(texts);
        (info.usual, info.timeout) = (Some(judge.usual.clone()), Some(judge.recovery.timeout));
        if confirmed.no_oracle.is_none() {
            for (lock, finding) in held.iter_mut().take_while(|_| !over::is_over()) {
                judge.lock(lock, finding, &mut confirmed.witnesses)?;
            }
        }
        if confirmed.no_oracle.is_none() && !self.variables.all.is_empty() {
            confirmed.sync = judge.sync_variables(self.variables, &mut base, &mut confirmed)?;
        }
        let forced = Forced { name: None, plan: self.plan(Vec::new()), timeout: self.timeout() };
        judge.judge(base, &forced, &mut confirmed)?;
        let chooser = Chooser::new(attempts, self.threads);
        std::thread::scope(|scope| self.explore(Ahead::new(scope, self), chooser, &mut judge, &mut confirmed))?;
        if self.has_what_it_wants(&confirmed) {
            confirmed.notes.push("what comes after the first proof: --until-finding".into());
        } else {
            self.follow(&mut judge, &mut confirmed)?;
        }
        if nothing_shared {
            let runs = match self.recordings {
                1 => "the recorded run".to_owned(),
                recordings => format!("{recordings} recorded runs"),
            };
            confirmed.notes.push(format!(
                "races of stores that others read: in {runs} no thread read what another had stored while that one lived. Perhaps \
                 they did not overlap; run it again, or with more to do"
            ));
        }
        let allowed = confirmed.allowed.iter().map(|(reason, count)| format!("{count} meetings of threads: {reason}"));
        confirmed.notes.extend(allowed);
        if let Some((name, how)) = confirmed.failed.first() {
            let (failed, runs) = (confirmed.failed.len(), confirmed.runs);
            let note =
                format!("what comes after the end of {failed} of {runs} forced runs: in {name} the target {how}");
            confirmed.notes.push(note);
        }
        Ok(confirmed)
    }

    /// The user wants no more than something proven.
    fn has_what_it_wants(&self, confirmed: &Confirmed) -> bool {
        self.arguments.until_finding && !confirmed.witnesses.is_empty()
    }

    /// Forces one schedule after the other, and lets recovery judge what happens.
    fn explore(
        &self,
        mut ahead: Ahead<'_, '_>,
        mut chooser: Chooser,
        judge: &mut Judge<'_>,
        confirmed: &mut Confirmed,
    ) -> Result<(), Error> {
        let any_predicted = chooser.any_predicted(|_| true);
        let most = if self.arguments.explored.is_some() { COVERED } else { FRUITLESS };
        let (mut begun, mut fruitless) = (0, 0);
        loop {
            let open = |attempt: &Attempt| !confirmed.findings.contains_key(&attempt.store.at);
            let nothing_left = match any_predicted {
                true => !chooser.any_predicted(open),
                false => !confirmed.findings.is_empty() && fruitless >= ENOUGH,
            };
            let enough = nothing_left
                || self.has_what_it_wants(confirmed)
                || fruitless >= most && !self.arguments.delay_injection;
            if enough || over::stopped_by().is_some() {
                return Ok(());
            }
            if judge.is_over() {
                let (runs, budget) = (confirmed.runs, self.budget());
                confirmed
                    .notes
                    .push(format!("what more than {runs} forced runs show: the budget of {budget:?} is used up"));
                return Ok(());
            }
            while begun < self.arguments.rounds && ahead.has_room() {
                let Choice { stalls, in_step } = chooser.next(open);
                if stalls.is_empty() && !self.arguments.delay_injection {
                    break;
                }
                begun += 1;
                let mut plan = self.plan(stalls);
                plan.in_step &= in_step;
                let follows = !self.arguments.delay_injection && begun % FOLLOWS == 0 && confirmed.any_not_followed();
                plan.follow = if follows { FOLLOWED } else { 0 };
                let time = self.timeout().min(judge.left().max(LEAST_TIME));
                ahead.begin(Order { name: format!("forced-{begun}"), plan, time });
            }
            let Some(made) = ahead.next()? else { return Ok(()) };
            let news = self.take(made, judge, confirmed)?;
            fruitless = if news { 0 } else { fruitless + 1 };
        }
    }

    /// Judges a forced run. Whether anything new was seen.
    fn take(&self, made: Made, judge: &mut Judge<'_>, confirmed: &mut Confirmed) -> Result<bool, Error> {
        let Made { order, recording, ending, run } = made;
        if over::is_over() {
            recording.remove();
            return Ok(false);
        }
        let Some(run) = run else {
            confirmed.notes.push(format!("run {} lost {} events and was not used", order.name, ending.loss.events));
            recording.remove();
            return Ok(false);
        };
        if ending.exit != launch::Exit::Status(0) {
            // It is pmvet that ends a run that takes too long. One that had less time than it might need has not failed.
            let how = match ending.time >= order.time {
                true if order.time < self.timeout() => None,
                true => {
                    Some(format!("was ended after {:.1} s; perhaps it has locked itself up", order.time.as_secs_f64()))
                }
                false => Some(format!("ended with {}", ending.exit)),
            };
            confirmed.failed.extend(how.map(|how| (order.name.clone(), how)));
        }
        confirmed.runs += 1;
        let known = |confirmed: &Confirmed| {
            let covered = if self.arguments.explored.is_some() { confirmed.covered.len() } else { 0 };
            (confirmed.findings.len(), confirmed.tallies.len(), covered)
        };
        let before = known(confirmed);
        let forced = Forced { name: Some(order.name), plan: order.plan, timeout: self.timeout() };
        judge.judge(run, &forced, confirmed)?;
        if confirmed.witnesses.values().all(|witness| witness.recording != forced.name) {
            recording.remove();
        }
        Ok(before != known(confirmed))
    }

    /// Makes proven races happen once more to see where their values go, as far as that is not known and time is left.
    fn follow(&self, judge: &mut Judge<'_>, confirmed: &mut Confirmed) -> Result<(), Error> {
        let open = |finding: &&mut Finding| !finding.places.iter().any(|place| place.role == Role::SideEffect);
        for finding in confirmed.findings.values_mut().filter(open).take(MOST_AGAIN) {
            let Evidence::Crash { image, .. } = &finding.evidence else { continue };
            let Some(schedule) = confirmed.schedules.get(&image.hash).filter(|schedule| schedule.is_read()) else {
                continue;
            };
            if judge.is_over() || self.arguments.delay_injection {
                break;
            }
            for plan in schedule.plans().take(MOST_AGAIN) {
                let folder = again::Scratch::new(self.folder.file("followed"));
                let plan = Plan { follow: FOLLOWED, ..plan.clone() };
                let time = self.timeout().min(judge.left());
                let (recording, ending) = make(self.workload, &plan, time, folder.path(), self.install, None)?;
                if !ending.loss.is_none() {
                    continue;
                }
                let mut run = Run::read(&recording, self.folder)?;
                let meetings = run.meetings_of(schedule);
                let mut stacks = run.symbols.with(&run.places);
                let mut flows = meetings.iter().filter_map(|meeting| meeting.flow.as_ref());
                if flows.any(|flow| confirm::findings::add_flow(finding, flow, u64::MAX, &mut stacks))
                    || judge.is_over()
                {
                    break;
                }
            }
        }
        Ok(())
    }

    fn plan(&self, stalls: Vec<Stall>) -> Plan {
        let patience = u32::try_from(self.stores / SHARE).unwrap_or(u32::MAX).max(LEAST_PATIENCE);
        let delays = self.arguments.delay_injection;
        let stalls = if delays { Vec::new() } else { stalls };
        Plan { threads: self.threads, patience, delays, stalls, ..self.workload.launch(true).plan }
    }

    /// How long a forced run may take.
    fn timeout(&self) -> Duration {
        let longer = if self.arguments.delay_injection { 100 * LONGER } else { LONGER };
        self.traced * SLOWER + longer
    }
}
