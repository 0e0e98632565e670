//! Makes predicted races happen in one forced run after another, and lets recovery judge each run.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use pmvet_events::plan::{Plan, Stall};
use pmvet_findings::{Evidence, Finding, Outcome, Phase, Place, Role};
use pmvet_target::{launch, shutdown};

use super::contents::{ComparedContents, NotCompared};
use super::culprits::leave_to_culprits;
use super::forced_runs::{ForcedRuns, MadeRun, RunOrder};
use super::held_locks::{HeldLock, LockCrashes};
use super::instruction::Instruction;
use super::judge::Judge;
use super::judged_run::JudgedRun;
use super::policy::POLICY;
use super::replay::{Forced, Schedule, ScratchFolder};
use super::schedule_picker::{Attempt, RunPlan, SchedulePicker};
use super::sync_variables::Variables;
use crate::alias_coverage::Covered;
use crate::lab::{self, Lab, LabError, RecoveryCommand, Witness};
use crate::promises::Acknowledgement;
use crate::promises::durable::OperationsSeen;
use crate::stacks::Symbols;

/// What all runs have shown about a pair of instructions.
#[derive(Debug, Clone, Default)]
pub struct PairTally {
    /// How often one thread read by the second instruction what another had just stored by the first.
    pub meetings: usize,
    /// Crash images of these meetings that were tried, whatever they showed.
    pub tries: usize,
    /// ... that proved nothing.
    pub images: usize,
    /// Crash images that were not tried.
    pub left_out: usize,
    /// Meetings whose reader was followed.
    pub followed: usize,
    /// A branch depended on the value, in one of those.
    pub branched: bool,
    /// A side effect that was seen, and its description.
    pub effect: Option<(Place, String)>,
    /// Output depended on the value.
    pub output: bool,
    /// How many bytes depend on the value, and how many of those recovery leaves as they are.
    pub inconsistent: Option<(usize, usize)>,
}

/// The result of confirming races.
#[derive(Debug, Default)]
pub struct Confirmed {
    /// Proven races, by their store.
    pub findings: BTreeMap<Instruction, Finding>,
    /// Findings of the run being judged in which the writer alone is at fault.
    pub(super) alone: BTreeMap<Instruction, Finding>,
    /// Stores whose finding is such a one from an earlier run, until a better one is found.
    pub(super) provisional: BTreeSet<Instruction>,
    /// For lost stores, the others lost with them whose loss alone makes recovery fail, too.
    pub(super) culprits: BTreeMap<Instruction, BTreeSet<Instruction>>,
    /// Stores without a finding of their own, since one of those has it.
    pub(super) left_to_culprits: BTreeSet<Instruction>,
    /// What is needed to rebuild each failing image, by the hash of the image.
    pub witnesses: HashMap<String, Witness>,
    /// Synchronisation variables that keep their value across a crash.
    pub sync: Vec<Finding>,
    /// The schedules that led to the images that prove races.
    pub schedules: HashMap<String, Schedule>,
    /// What the locksets predict.
    pub predicted: HashSet<(Instruction, Instruction)>,
    /// Everything else that happened.
    pub tallies: BTreeMap<(Instruction, Instruction), PairTally>,
    /// How many meetings were ignored as harmless, by reason.
    pub(super) allowed: BTreeMap<&'static str, usize>,
    /// What all runs have covered, without what was known already.
    pub covered: Covered,
    /// Forced runs that were judged.
    pub runs: u32,
    /// Recoveries that were run on crash images.
    pub images: usize,
    /// The recovery that judged, and how it ends when nothing was lost.
    pub judged_by: Option<(RecoveryCommand, Outcome)>,
    /// An oracle, or a comparison of contents, checks what recovery leaves.
    pub has_oracle: bool,
    /// How operations were told apart, if contents were compared.
    pub operations: Option<OperationsSeen>,
    /// Why races could not be judged, if so.
    pub no_oracle: Option<String>,
    /// What was not covered, and why; for the report.
    pub notes: Vec<String>,
    /// How long each phase took.
    pub phases: Vec<Phase>,
    /// Forced runs in which the target failed, or took too long and was ended, with the reason.
    failed: Vec<(String, String)>,
}

impl Confirmed {
    fn took(&mut self, name: &str, since: Instant) {
        self.phases.push(Phase { name: name.into(), seconds: since.elapsed().as_secs_f64() });
    }

    /// The store has a finding that no other can improve on.
    pub(super) fn is_settled(&self, store: &Instruction) -> bool {
        self.findings.contains_key(store) && !self.provisional.contains(store)
    }

    /// Whether a predicted pair has met without its value ever being followed.
    fn any_not_followed(&self) -> bool {
        let open = |tally: &PairTally| tally.meetings > 0 && tally.followed == 0;
        self.predicted.iter().filter_map(|pair| self.tallies.get(pair)).any(open)
    }
}

/// What the user asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wanted {
    /// How long everything may take, the recorded run included.
    pub budget: Option<Duration>,
    /// Upper bound of forced runs.
    pub rounds: u32,
    /// Stop as soon as something is proven.
    pub until_finding: bool,
    /// Go on only while runs cover something beyond this: other inputs are waiting for their turn.
    pub news_beyond: Option<Covered>,
    /// Threads wait at random instead of being stopped, for comparison.
    pub delay_injection: bool,
    /// How the program recovers, as a shell command. Nothing: by its own command line.
    pub recover: Option<String>,
    /// A shell command that looks at the recovered files; 0 means consistent.
    pub oracle: Option<String>,
    /// How long a recovery may take. Nothing: a multiple of the time without a crash.
    pub recover_timeout: Option<Duration>,
    /// How many recoveries run at a time. Nothing: one per core.
    pub jobs: Option<usize>,
}

/// Forces predicted races and lets recovery judge.
#[derive(Debug)]
pub struct Confirmation<'a> {
    /// The workload, and the folder with its recorded run.
    pub lab: Lab<'a>,
    /// What the user asks for.
    pub wanted: &'a Wanted,
    /// How long the recorded run took.
    pub traced: Duration,
    /// How long the earlier phases took.
    pub before: Duration,
    /// The locksets predict races.
    pub predicted: bool,
    /// Whether there is anything to force.
    pub forces: bool,
    /// How many threads the recorded run had.
    pub threads: u32,
    /// How many stores to PM the recorded run had.
    pub stores: u64,
    /// How often it was recorded until threads shared something.
    pub recordings: u32,
    /// Synchronisation variables that the configuration declares.
    pub variables: &'a Variables,
    /// With `--durable`: what was acknowledged must be there.
    pub contents: Option<ComparedContents<'a>>,
}

/// A confirmation under way: first locks, which need no forced runs, then races.
pub struct Confirming<'a> {
    confirm: &'a Confirmation<'a>,
    judge: Judge<'a>,
    base: JudgedRun,
    crashes: LockCrashes,
    confirmed: Confirmed,
    /// Deadline for the locks.
    locks_until: Option<Instant>,
    acknowledged_by: Option<Acknowledgement>,
}

impl std::fmt::Debug for Confirming<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Confirming").field("confirmed", &self.confirmed).finish_non_exhaustive()
    }
}

impl Confirming<'_> {
    /// Turns a lock's finding into an error if recovery cannot cope with the lock held. Returns whether it did.
    pub fn held_lock(&mut self, lock: &mut HeldLock) -> Result<bool, LabError> {
        let Self { judge, base, crashes, confirmed, locks_until, .. } = self;
        let whole = judge.deadline;
        judge.deadline = whole.into_iter().chain(*locks_until).min();
        if confirmed.no_oracle.is_some() || judge.is_over() {
            judge.deadline = whole;
            return Ok(false);
        }
        let held = judge.held_lock(lock, crashes, base, confirmed);
        judge.deadline = whole;
        held
    }

    /// Tries to prove races of these stores.
    pub fn finish(self, attempts: Vec<Attempt>) -> Result<Confirmed, LabError> {
        let Self { confirm, mut judge, base, mut confirmed, acknowledged_by, .. } = self;
        confirm.prove_races(attempts, &mut judge, base, &mut confirmed)?;
        confirmed.operations = acknowledged_by.and_then(|how| judge.operations_seen(how));
        Ok(confirmed)
    }
}

impl Confirmation<'_> {
    /// How long everything may take.
    pub(super) fn budget(&self) -> Duration {
        let policy = POLICY;
        let usual = if self.predicted || self.wanted.delay_injection {
            let shortest = policy.shortest_budget.max(policy.shortest_whole.saturating_sub(self.before));
            let usual = (self.traced * policy.budget_runs).max(self.before * policy.budget_times_before);
            usual.clamp(shortest, policy.longest_budget).max(self.traced * policy.fewest_runs)
        } else {
            let left = policy.unpredicted_whole.saturating_sub(self.before);
            let usual = left.clamp(policy.shortest_unpredicted, policy.shortest_budget);
            usual.max(self.traced * policy.fewest_unpredicted_runs)
        };
        self.wanted.budget.unwrap_or(usual)
    }

    /// Checks whether recovery can judge. `symbols`: those of the program's files; `crashes`: the moments of all crashes that leave locks
    /// held.
    pub fn begin(&self, symbols: Symbols, crashes: Vec<u64>) -> Result<Result<Confirming<'_>, NotCompared>, LabError> {
        let has_oracle = self.wanted.oracle.is_some() || self.contents.is_some();
        let mut confirmed = Confirmed { has_oracle, ..Confirmed::default() };
        confirmed.covered = self.wanted.news_beyond.clone().unwrap_or_default();
        let mut judge = Judge::new(self, symbols)?;
        let mut base = JudgedRun::read(&self.lab.recording(), self.lab)?;
        judge.lend_symbols(&mut base);
        let mut acknowledged_by = None;
        if let Some(contents) = &self.contents {
            match judge.expect_contents(contents, &base)? {
                Ok(how) => acknowledged_by = Some(how),
                Err(why) => return Ok(Err(NotCompared::Indistinct(why))),
            }
        }
        match judge.prove(&base)? {
            Ok(shown) => {
                if let Err(why) = judge.calibrate(&shown)? {
                    return Ok(Err(NotCompared::Incomparable(why)));
                }
            }
            Err(why) => confirmed.no_oracle = Some(why),
        }
        confirmed.judged_by = Some((judge.recovery.clone(), judge.usual.clone()));
        let (versions, moments) = lab::versions_at(&self.lab.recording(), &[crashes], self.lab.temporary()?)?;
        let share = if self.forces { judge.left() / POLICY.locks_divisor } else { judge.left() };
        let locks_until = Instant::now().checked_add(share);
        let crashes = LockCrashes { versions, moments };
        Ok(Ok(Confirming { confirm: self, judge, base, crashes, confirmed, locks_until, acknowledged_by }))
    }

    /// How long watched restarts may take in all: they cannot be skipped but take seconds each.
    pub fn restarts_time(&self) -> Duration {
        self.budget() / POLICY.restarts_divisor
    }

    /// Tries to prove races of these stores.
    fn prove_races(
        &self,
        attempts: Vec<Attempt>,
        judge: &mut Judge<'_>,
        mut base: JudgedRun,
        confirmed: &mut Confirmed,
    ) -> Result<(), LabError> {
        let nothing_shared = attempts.iter().all(|attempt| attempt.reader.is_none());
        let pairs = attempts.iter().filter(|attempt| attempt.promise.pair);
        confirmed.predicted = pairs.map(|attempt| (attempt.store.at.clone(), attempt.load.clone())).collect();
        // Races need runs of their own, so the recorded one must leave time for them.
        let whole = judge.deadline;
        if !attempts.is_empty() {
            judge.end_within(judge.left() / POLICY.recorded_run_divisor);
        }
        if confirmed.no_oracle.is_none() && !self.variables.all.is_empty() {
            confirmed.sync = judge.sync_variables(self.variables, &mut base, confirmed)?;
        }
        let plan = self.plan(Vec::new());
        let forced = Forced { name: None, plan, about: BTreeSet::new(), timeout: self.timeout() };
        let since = Instant::now();
        judge.judge(base, &forced, confirmed)?;
        confirmed.took("recoveries from the recorded run", since);
        judge.deadline = whole;
        let since = Instant::now();
        let picker = SchedulePicker::new(attempts, self.threads);
        std::thread::scope(|scope| self.explore(ForcedRuns::new(scope, self), picker, judge, confirmed))?;
        confirmed.took("forced runs", since);
        judge.drop_other_failures(confirmed);
        confirmed.left_to_culprits = leave_to_culprits(&mut confirmed.findings, &confirmed.culprits);
        if self.has_what_it_wants(confirmed) {
            confirmed.notes.push("what comes after the first proof: --until-finding".into());
        } else {
            let since = Instant::now();
            self.follow(judge, confirmed)?;
            confirmed.took("values followed", since);
        }
        if nothing_shared {
            let runs = match self.recordings {
                1 => "the recorded run".to_owned(),
                recordings => format!("{recordings} recorded runs"),
            };
            confirmed.notes.push(format!(
                "races of stores that others read: in {runs} no thread read what another had stored while that one lived. If threads \
                 share PM, give them more to do, so that they overlap"
            ));
        }
        if let Some(known) = &self.wanted.news_beyond {
            confirmed.covered = std::mem::take(&mut confirmed.covered).without(known);
        }
        let allowed = confirmed.allowed.iter().map(|(reason, count)| format!("{count} meetings of threads: {reason}"));
        confirmed.notes.extend(allowed);
        if let Some((name, how)) = confirmed.failed.first() {
            let (failed, runs) = (confirmed.failed.len(), confirmed.runs);
            let note =
                format!("what comes after the end of {failed} of {runs} forced runs: in {name} the target {how}");
            confirmed.notes.push(note);
        }
        Ok(())
    }

    /// The user wants to stop at the first proof, and there is one.
    fn has_what_it_wants(&self, confirmed: &Confirmed) -> bool {
        self.wanted.until_finding && !confirmed.witnesses.is_empty()
    }

    /// Forces one schedule after another, and lets recovery judge what happens.
    fn explore(
        &self,
        mut forced_runs: ForcedRuns<'_, '_>,
        mut picker: SchedulePicker,
        judge: &mut Judge<'_>,
        confirmed: &mut Confirmed,
    ) -> Result<(), LabError> {
        let any_predicted = picker.any_predicted(|_| true);
        let patience = match self.wanted.news_beyond {
            Some(_) => POLICY.fruitless_rounds_of_a_turn,
            None if !picker.any_read() => POLICY.fruitless_rounds_if_unread,
            None => POLICY.fruitless_rounds,
        };
        let (mut begun, mut fruitless) = (0, 0);
        loop {
            let open = |attempt: &Attempt| !confirmed.findings.contains_key(&attempt.store.at);
            let nothing_left = match any_predicted {
                true => !picker.any_predicted(open),
                false => !confirmed.findings.is_empty() && fruitless >= POLICY.fruitless_rounds_after_proof,
            };
            let enough = nothing_left
                || self.has_what_it_wants(confirmed)
                || fruitless >= patience && !self.wanted.delay_injection;
            if enough || shutdown::stopped_by().is_some() {
                return Ok(());
            }
            if judge.is_over() {
                let (runs, budget) = (confirmed.runs, self.budget());
                confirmed
                    .notes
                    .push(format!("what more than {runs} forced runs show: the budget of {budget:?} is used up"));
                return Ok(());
            }
            while begun < self.wanted.rounds && forced_runs.has_room() {
                let RunPlan { stalls, in_step, about } = picker.next(open);
                if stalls.is_empty() && !self.wanted.delay_injection {
                    break;
                }
                begun += 1;
                let mut plan = self.plan(stalls);
                plan.in_step &= in_step;
                let follows = !self.wanted.delay_injection
                    && begun % POLICY.runs_per_followed == 0
                    && confirmed.any_not_followed();
                plan.follow = if follows { POLICY.followed_instructions } else { 0 };
                let time = self.timeout().min(judge.left().max(POLICY.shortest_run));
                forced_runs.begin(RunOrder { name: format!("forced-{begun}"), plan, about, time });
            }
            let Some(made) = forced_runs.next()? else { return Ok(()) };
            let news = self.judge_made(made, judge, confirmed)?;
            fruitless = if news { 0 } else { fruitless + 1 };
        }
    }

    /// Judges a forced run. Returns whether it showed anything new.
    fn judge_made(&self, made: MadeRun, judge: &mut Judge<'_>, confirmed: &mut Confirmed) -> Result<bool, LabError> {
        let MadeRun { order, recording, ending, run } = made;
        if shutdown::is_over() {
            recording.remove();
            return Ok(false);
        }
        let Some(run) = run else {
            confirmed.notes.push(format!("run {} lost {} events and was not used", order.name, ending.loss.events));
            recording.remove();
            return Ok(false);
        };
        if ending.exit != launch::TargetExit::Status(0) {
            // pmvet itself ends a run that takes too long. A run that had less than the full time has not failed.
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
            // If other inputs wait for their turn, pairs that meet for the first time here do not count as news.
            let met = match self.wanted.news_beyond {
                Some(_) => confirmed.covered.len(),
                None => confirmed.tallies.len(),
            };
            (confirmed.findings.len(), met)
        };
        let before = known(confirmed);
        let RunOrder { name, plan, about, .. } = order;
        let forced = Forced { name: Some(name), plan, about, timeout: self.timeout() };
        // Other runs are to come.
        let whole = judge.deadline;
        judge.end_within((judge.left() / POLICY.judged_run_divisor).max(POLICY.shortest_judged_run));
        let judged = judge.judge(run, &forced, confirmed);
        judge.deadline = whole;
        judged?;
        if confirmed.witnesses.values().all(|witness| witness.recording != forced.name) {
            recording.remove();
        }
        Ok(before != known(confirmed))
    }

    /// Makes proven races happen once more to see where their values go, if that is not known and time is left.
    fn follow(&self, judge: &mut Judge<'_>, confirmed: &mut Confirmed) -> Result<(), LabError> {
        let open = |finding: &&mut Finding| !finding.places.iter().any(|place| place.role == Role::SideEffect);
        for finding in confirmed.findings.values_mut().filter(open).take(POLICY.followed_again) {
            let Evidence::Crash { image, .. } = &finding.evidence else { continue };
            let Some(schedule) = confirmed.schedules.get(&image.hash).filter(|schedule| schedule.is_read()) else {
                continue;
            };
            if judge.is_over() || self.wanted.delay_injection {
                break;
            }
            for plan in schedule.plans().take(POLICY.followed_again) {
                let folder = ScratchFolder::new(self.lab.folder.join("followed"));
                let plan = Plan { follow: POLICY.followed_instructions, ..plan.clone() };
                let time = self.timeout().min(judge.left());
                let (recording, ending) = self.lab.record(&plan, time, folder.path(), None)?;
                if !ending.loss.is_none() {
                    continue;
                }
                let mut run = JudgedRun::read(&recording, self.lab)?;
                let meetings = run.meetings_of(schedule, false);
                let mut stacks = run.symbols.with(&run.places);
                let mut flows = meetings.iter().filter_map(|meeting| meeting.flow.as_ref());
                if flows.any(|flow| super::findings::add_flow(finding, flow, None, &mut stacks)) || judge.is_over() {
                    break;
                }
            }
        }
        Ok(())
    }

    fn plan(&self, stalls: Vec<Stall>) -> Plan {
        let patience = u32::try_from(self.stores / POLICY.patience_divisor)
            .unwrap_or(u32::MAX)
            .max(POLICY.shortest_patience_stores);
        let delays = self.wanted.delay_injection;
        let stalls = if delays { Vec::new() } else { stalls };
        Plan { threads: self.threads, patience, delays, stalls, ..self.lab.workload.launch(true).plan }
    }

    /// How long a forced run may take.
    fn timeout(&self) -> Duration {
        let longer = if self.wanted.delay_injection { 100 * POLICY.run_slack } else { POLICY.run_slack };
        self.traced * POLICY.run_slowdown + longer
    }
}
