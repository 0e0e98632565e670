//! Runs recoveries to judge what happened in a run.

use std::borrow::Cow;
use std::collections::btree_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pmvet_events::{Event, SiteId};
use pmvet_findings::{Evidence, Outcome, Role};
use pmvet_target::crash::{Patch, VersionId, Versions};
use pmvet_target::launch::pm_variables;
use pmvet_target::sandbox;
use pmvet_target::shutdown;

use super::culprits::Culprit;
use super::failure_place::FailurePlace;
use super::findings::Proof;
use super::hanging_moments::HangingMoments;
use super::instruction::Instruction;
use super::judged_run::{JudgedRun, spots};
use super::overwritten::Overwritten;
use super::policy::POLICY;
use super::race_case::{RaceCase, RunCases, in_order};
use super::replay::Forced;
use super::search::{Confirmation, Confirmed};
use super::sync_variables::{Restarted, SyncVariable, Update};
use super::verdict::{self, Controls, RaceVerdict, RecoveryOutcome};
use super::{Meeting, Meetings, allowed, findings};
use crate::lab::restart::{Restart, RestartWatch};
use crate::lab::{
    self, Bench, Lab, LabError, NativeStacks, PATIENCE, RecoveryCommand, StackLookup, TrialImage, TrialJournal,
    TrialPool, Tried, UsualRecovery, Witness, files, room, usual_timeout, with_paths,
};
use crate::stacks::{Stacks, Symbols};

/// Runs recoveries on crash images and judges races by them.
pub(super) struct Judge<'a> {
    pub(super) lab: Lab<'a>,
    pub(super) recovery: RecoveryCommand,
    pub(super) usual: Outcome,
    pub(super) journal: TrialJournal,
    workers: Option<usize>,
    pub(super) deadline: Option<Instant>,
    /// How long everything may take, if the user says.
    budget: Option<Duration>,
    named_timeout: Option<Duration>,
    /// A recovery that takes longer than this counts as hanging, until a race would be blamed for it. Nothing: it gets the full timeout.
    screening: Option<Duration>,
    pub(super) natives: NativeStacks,
    /// The symbols of the program's files, unless a run has borrowed them.
    symbols: Option<Symbols>,
    /// How often recovery has failed for each pair even with nothing lost.
    fails_anyway: HashMap<(Instruction, Instruction), usize>,
    /// Where recovery fails with nothing lost.
    other_failures: HashSet<FailurePlace>,
    /// Instructions that take locks known to stay held.
    pub(super) held_locks: BTreeSet<Instruction>,
    /// How to watch a recovery. Nothing: not wanted.
    restart: Option<Restart<'a>>,
}

impl RestartWatch for Overwritten {
    fn event(&mut self, event: &Event<'_>) {
        Overwritten::event(self, event);
    }

    fn is_decided(&self) -> bool {
        Overwritten::is_decided(self)
    }
}

impl<'a> Judge<'a> {
    pub(super) fn new(confirm: &Confirmation<'a>, symbols: Symbols) -> Result<Self, LabError> {
        let (workload, wanted) = (confirm.lab.workload, confirm.wanted);
        // A command that only shows the content reads no operations.
        let plan = confirm.contents.as_ref().map(|contents| contents.plan);
        let dump = plan.filter(|plan| !plan.recovers_first).and_then(|plan| plan.dump.clone());
        let recovery = RecoveryCommand {
            input: workload.input.clone().filter(|_| dump.is_none()),
            command: dump.unwrap_or_else(|| workload.recovery_command(wanted.recover.as_deref())),
            variables: pm_variables().collect(),
            timeout: wanted.recover_timeout.unwrap_or(PATIENCE),
            oracle: wanted.oracle.as_deref().map(sandbox::shell),
            files: workload.left.clone(),
            most_bytes: 0,
            driver: workload.driver.clone(),
            promised: None,
            hangs: Arc::default(),
        };
        let journal = journal(confirm.lab.folder)?;
        Ok(Self {
            workers: wanted.jobs,
            deadline: Some(match shutdown::budget() {
                Some(budget) => budget.deadline - (budget.whole / POLICY.grace_divisor).min(POLICY.grace),
                None => Instant::now() + confirm.budget(),
            }),
            budget: Some(confirm.budget()),
            named_timeout: wanted.recover_timeout,
            symbols: Some(symbols),
            restart: Some(Restart { lab: confirm.lab, timeout: PATIENCE, deadline: None }),
            ..Self::with(confirm.lab, recovery, Outcome::Exit { status: 0 }, journal)
        })
    }

    /// A judge with a recovery that is known to work.
    pub(super) fn with(lab: Lab<'a>, recovery: RecoveryCommand, usual: Outcome, journal: TrialJournal) -> Self {
        let natives = NativeStacks::default();
        Self {
            lab,
            recovery,
            usual,
            journal,
            workers: None,
            deadline: None,
            budget: None,
            named_timeout: None,
            screening: None,
            natives,
            symbols: None,
            fails_anyway: HashMap::new(),
            other_failures: HashSet::new(),
            held_locks: BTreeSet::new(),
            restart: None,
        }
    }

    /// Checks that recovery works on what the undisturbed run left, and returns what it prints. If it fails, it cannot judge:
    /// returns why.
    pub(super) fn prove(&mut self, run: &JudgedRun) -> Result<Result<Vec<u8>, String>, LabError> {
        let Meetings { versions, last, .. } = &run.meetings;
        let paths = files(versions, *last);
        self.recovery.oracle = self.recovery.oracle.take().map(|oracle| with_paths(&oracle, &paths));
        let bytes = versions.get(*last).iter().flat_map(|v| &v.files).map(|f| f.size).sum();
        self.recovery.most_bytes = room(bytes);
        let (mut undisturbed, mut shown) = (Duration::MAX, Vec::new());
        for _ in 0..POLICY.undisturbed_tries {
            let trial = self.recovery.run(&mut Bench::default(), versions, TrialImage::new(*last, &[]), None);
            let Some(trial) = trial.map_err(|e| LabError::output("use", "the recovery", e))? else {
                return Ok(Err("there was no time to see whether recovery works".into()));
            };
            undisturbed = undisturbed.min(trial.time);
            if trial.outcome != self.usual {
                self.set_time_limits(undisturbed);
                return Ok(Err(format!("recovery {} though nothing was lost", trial.outcome)));
            }
            shown = trial.output;
            let is_fast = trial.time * POLICY.screening_slowdown <= POLICY.shortest_screening;
            if is_fast || trial.time >= POLICY.shortest_screening {
                break;
            }
        }
        self.set_time_limits(undisturbed);
        Ok(Ok(shown))
    }

    /// Measures how long a recovery takes on what a run left, unless that is known, and sets the screening limit by it. The full timeout,
    /// which decides before a race is blamed, stays as it is.
    pub(super) fn screen_like(&mut self, run: &JudgedRun, undisturbed: &mut Option<Duration>) -> Result<(), LabError> {
        if undisturbed.is_none() {
            let Meetings { versions, last, .. } = &run.meetings;
            let trial = self.recovery.run(&mut Bench::default(), versions, TrialImage::new(*last, &[]), None);
            let trial = trial.map_err(|e| LabError::output("use", "the recovery", e))?;
            *undisturbed = trial.filter(|trial| trial.outcome == self.usual).map(|trial| trial.time);
        }
        let timeout = self.recovery.timeout;
        let screening = |time: Duration| (time * POLICY.screening_slowdown).max(POLICY.shortest_screening);
        self.screening = undisturbed.map(screening).filter(|time| *time < timeout);
        Ok(())
    }

    /// Sets when a recovery hangs, by how long it takes without a crash. The user's timeout takes precedence.
    pub(super) fn set_time_limits(&mut self, undisturbed: Duration) {
        if let Some(timeout) = self.named_timeout {
            self.recovery.timeout = timeout;
            return;
        }
        let all = usual_timeout(undisturbed);
        let share = self.budget.map_or(all, |budget| budget / POLICY.hang_divisor);
        self.recovery.timeout = (undisturbed * POLICY.hang_slowdown).max(share).min(all);
        let screening = (undisturbed * POLICY.screening_slowdown).max(POLICY.shortest_screening);
        self.screening = Some(screening).filter(|time| *time < self.recovery.timeout);
    }

    /// Judges what happened in a run by recoveries, the most promising crashes first.
    pub(super) fn judge(
        &mut self,
        mut run: JudgedRun,
        forced: &Forced,
        confirmed: &mut Confirmed,
    ) -> Result<(), LabError> {
        self.lend_symbols(&mut run);
        let judged = self.judge_run(&mut run, forced, confirmed);
        self.symbols = Some(run.symbols);
        judged
    }

    /// Lends a run the known symbols, so that it need not read the program's files again.
    pub(super) fn lend_symbols(&mut self, run: &mut JudgedRun) {
        if let Some(known) = self.symbols.take() {
            let own = std::mem::replace(&mut run.symbols, known);
            run.symbols.go_on_with(own);
        }
    }

    fn judge_run(&mut self, run: &mut JudgedRun, forced: &Forced, confirmed: &mut Confirmed) -> Result<(), LabError> {
        confirmed.covered.add(std::mem::take(&mut run.covered));
        if shutdown::is_over() {
            return Ok(());
        }
        let meetings = std::mem::take(&mut run.meetings.meetings);
        let spots = spots(&meetings, run);
        let spot = |site: SiteId| spots.get(&site).cloned().flatten();
        let known = |m: &Meeting| Some((spot(m.store.site)?, spot(m.load.site)?));
        let mut meetings: Vec<(Meeting, (Instruction, Instruction))> =
            meetings.into_iter().filter_map(|m| known(&m).map(|pair| (m, pair))).collect();
        let mut stacks = run.symbols.with(&run.places);
        meetings.retain(|(meeting, _)| {
            let [store, load] = [meeting.store, meeting.load].map(|end| stacks.stack(end.site, end.context));
            let reason = allowed::reason(&store, &load);
            reason.map(|reason| *confirmed.allowed.entry(reason).or_default() += 1).is_none()
        });
        for (meeting, pair) in meetings.iter().filter(|(meeting, _)| meeting.read && !meeting.is_intra()) {
            let tally = confirmed.tallies.entry(pair.clone()).or_default();
            tally.meetings += 1;
            let Some(flow) = &meeting.flow else { continue };
            tally.followed += 1;
            tally.branched |= flow.branched;
            tally.output |= flow.effects.iter().any(|effect| effect.output);
            if let (None, Some(effect)) = (&tally.effect, flow.effects.first()) {
                let mut stacks = run.symbols.with(&run.places);
                let place = findings::side_effect(effect, &mut stacks);
                tally.effect = Some((place, findings::describe(effect, &mut stacks)));
            }
        }
        if confirmed.no_oracle.is_some() {
            return Ok(());
        }
        // One bug must not hide another.
        let free = self.free_locks(run);
        meetings.iter_mut().flat_map(|(meeting, _)| &mut meeting.crashes).for_each(|crash| crash.add_to_all(&free));
        let RunCases { worth_trying: mut cases, mut spare } = in_order(&meetings, &free, &forced.about, confirmed);
        self.note_promises(&run.signs, &mut cases);
        let mut left = POLICY.images_per_run;
        let mut cases = cases.into_iter();
        let mut hanging = HangingMoments::default();
        while left > 0 && !self.is_over() {
            let mut batch: Vec<RaceCase<'_>> = Vec::new();
            let open = |case: &RaceCase<'_>| !confirmed.is_settled(&case.pair.0);
            for case in cases.by_ref().filter(open) {
                if hanging.are_around(case.crash.seq) {
                    spare.push(case);
                    continue;
                }
                batch.push(case);
                if batch.len() == POLICY.images_per_batch.min(left) {
                    break;
                }
            }
            if batch.is_empty() {
                break;
            }
            left -= batch.len();
            self.judge_batch(&batch, run, forced, confirmed)?;
            for case in &batch {
                if let Some(tried) = self.journal.get(&case.whole().name(&run.meetings.versions)) {
                    hanging.note(case.crash.seq, matches!(tried.outcome, Outcome::Hang { .. }));
                }
            }
        }
        for case in cases.chain(spare) {
            confirmed.tallies.entry(case.pair.clone()).or_default().left_out += 1;
        }
        // A fault of the writer alone is reported only if the same run shows nothing better for that store.
        for (store, finding) in std::mem::take(&mut confirmed.alone) {
            if let Entry::Vacant(vacant) = confirmed.findings.entry(store) {
                confirmed.provisional.insert(vacant.key().clone());
                vacant.insert(finding);
            }
        }
        Ok(())
    }

    fn judge_batch(
        &mut self,
        batch: &[RaceCase<'_>],
        run: &mut JudgedRun,
        forced: &Forced,
        confirmed: &mut Confirmed,
    ) -> Result<(), LabError> {
        let versions = &run.meetings.versions;
        let hopeless = self.hopeless(batch, versions, confirmed)?;
        let hoped_for = batch.iter().filter(|case| !hopeless.contains(&case.id()));
        let jobs: Vec<TrialImage<'_>> = hoped_for.map(RaceCase::job).collect();
        confirmed.images += self.recover(versions, &jobs, self.deadline)?;
        let mut bad: Vec<&RaceCase<'_>> =
            batch.iter().filter(|case| self.went(versions, &case.job()) == RecoveryOutcome::Badly).collect();
        // Cases that can tell which side is to blame come first.
        bad.sort_by_key(|case| case.meeting.acted_before);
        bad.truncate(POLICY.failures_per_batch);
        // Failures are examined even if time has just run out: finding them is the purpose.
        let less: Vec<TrialImage<'_>> =
            bad.iter().flat_map(|case| [Some(case.whole()), case.others(), case.excused()]).flatten().collect();
        confirmed.images += self.recover(versions, &less, self.grace())?;
        let controls = self.controls(&bad, run, confirmed)?;
        let verdicts: Vec<RaceVerdict> = batch
            .iter()
            .map(|case| {
                let controls = controls.get(&case.id()).copied().unwrap_or(Controls::NOT_TRIED);
                match hopeless.contains(&case.id()) {
                    true => RaceVerdict::Elsewhere,
                    false => verdict::judge(self.went(&run.meetings.versions, &case.job()), controls),
                }
            })
            .collect();
        for (case, _) in batch.iter().zip(&verdicts).filter(|(_, verdict)| **verdict == RaceVerdict::Elsewhere) {
            let whole = &case.whole();
            if self.went(&run.meetings.versions, whole) == RecoveryOutcome::Badly {
                *self.fails_anyway.entry(case.pair.clone()).or_default() += 1;
                let tried = self.journal.get(&whole.name(&run.meetings.versions));
                let stack = tried.map(|tried| (&tried.outcome, self.natives.stack(&tried.stack)));
                self.other_failures.extend(stack.and_then(|(outcome, stack)| FailurePlace::new(outcome, &stack)));
            }
        }
        for (case, verdict) in batch.iter().zip(verdicts) {
            let versions = &run.meetings.versions;
            let tally = confirmed.tallies.entry(case.pair.clone()).or_default();
            tally.tries += 1;
            match verdict {
                RaceVerdict::Recovered => {
                    tally.images += 1;
                    if tally.inconsistent.is_none() && confirmed.predicted.contains(case.pair) {
                        tally.inconsistent = self.survivors(case, run)?;
                    }
                }
                // Recovery has failed, and it is not known which side is to blame.
                RaceVerdict::Elsewhere if case.meeting.acted_before => tally.left_out += 1,
                RaceVerdict::Elsewhere => tally.images += 1,
                RaceVerdict::Unfinished => tally.left_out += 1,
                RaceVerdict::Confirmed
                | RaceVerdict::OthersActed
                | RaceVerdict::WriterAlone
                | RaceVerdict::TakenBack => {
                    let mut proof = case.proof(verdict);
                    let is_alone = verdict == RaceVerdict::WriterAlone;
                    if is_alone && confirmed.provisional.contains(&case.pair.0) {
                        tally.images += 1;
                        continue;
                    }
                    if confirmed.is_settled(&case.pair.0) || !self.still_fails(versions, &proof)? {
                        continue;
                    }
                    let mut culprits = Vec::new();
                    if verdict != RaceVerdict::TakenBack {
                        culprits = self.culprits(case, run, confirmed)?;
                        let all = culprits.iter().map(|culprit| culprit.at.clone()).collect();
                        confirmed.culprits.insert(case.pair.0.clone(), all);
                    }
                    let versions = &run.meetings.versions;
                    let blamed = culprits.iter().find(|culprit| culprit.before.is_some());
                    if let Some(Culprit { at, patches, .. }) = blamed {
                        proof.patches = patches;
                        if confirmed.is_settled(at) || !self.still_fails(versions, &proof)? {
                            let tally = confirmed.tallies.entry(case.pair.clone()).or_default();
                            tally.images += 1;
                            continue;
                        }
                    }
                    let Some(tried) = self.journal.get(&proof.name(versions)) else { continue };
                    let setting = self.setting();
                    let RaceCase { meeting, crash, .. } = case;
                    let mut stacks = run.symbols.with(&run.places);
                    let how = Proof {
                        forced: forced.name.is_some(),
                        verdict,
                        frees_locks: !case.free.is_empty(),
                        culprit: blamed.and_then(|culprit| culprit.before),
                    };
                    let schedule =
                        forced.schedule(meeting, case.pair, &run.meetings.fences, &self.held_locks, &mut stacks);
                    let mut names = StackLookup { stacks: &mut stacks, natives: &mut self.natives };
                    let finding = findings::confirmed(meeting, crash, tried, how, &setting, &mut names);
                    let witness = Witness {
                        recording: forced.name.clone(),
                        seq: Some(crash.seq),
                        patches: proof.patches.to_vec(),
                        promise: self.recovery.promise(proof.promise),
                    };
                    confirmed.witnesses.insert(tried.image.clone(), witness);
                    confirmed.schedules.insert(tried.image.clone(), schedule);
                    let store = blamed.map_or(&case.pair.0, |culprit| &culprit.at).clone();
                    if is_alone {
                        confirmed.alone.entry(store).or_insert(finding);
                    } else {
                        confirmed.provisional.remove(&store);
                        confirmed.findings.insert(store, finding);
                    }
                }
            }
        }
        Ok(())
    }

    /// Ids of cases whose crash recovery does not survive even with nothing lost. This is tried first for pairs where it happened before:
    /// such recoveries tend to hang, and one decides about all losses at that moment.
    fn hopeless(
        &mut self,
        batch: &[RaceCase<'_>],
        versions: &Versions,
        confirmed: &mut Confirmed,
    ) -> Result<HashSet<usize>, LabError> {
        let all: usize = self.fails_anyway.values().sum();
        let doubtful = |case: &&RaceCase<'_>| match case.is_of_reader(confirmed) {
            true => self.fails_anyway.get(case.pair).is_some_and(|times| *times >= POLICY.failures_of_pair),
            false => all >= POLICY.failures_of_all,
        };
        let doubtful: Vec<&RaceCase<'_>> = batch.iter().filter(doubtful).collect();
        let jobs: Vec<TrialImage<'_>> = doubtful.iter().map(|case| case.whole()).collect();
        confirmed.images += self.recover(versions, &jobs, self.deadline)?;
        let fails = |case: &&&RaceCase<'_>| self.went(versions, &case.whole()) == RecoveryOutcome::Badly;
        Ok(doubtful.iter().filter(fails).map(|case| case.id()).collect())
    }

    /// Drops findings whose recovery fails in the same place as with nothing lost: that is another bug, even if a race
    /// led there.
    pub(super) fn drop_other_failures(&self, confirmed: &mut Confirmed) {
        confirmed.findings.retain(|_, finding| {
            let Evidence::Crash { recovery, .. } = &finding.evidence else { return true };
            let place = finding.places.iter().find(|place| place.role == Role::Recovery);
            let failure = place.and_then(|place| FailurePlace::new(&recovery.outcome, &place.stack));
            failure.is_none_or(|failure| !self.other_failures.contains(&failure))
        });
    }

    /// How to watch a recovery, within the time left.
    fn restart(&self) -> Option<Restart<'a>> {
        self.restart.map(|restart| Restart { deadline: self.grace(), ..restart })
    }

    /// How many bytes of a crash image depend on the lost value, and how many of those recovery leaves unchanged. Nothing if none
    /// are known, or time is up.
    fn survivors(&self, case: &RaceCase<'_>, run: &JudgedRun) -> Result<Option<(usize, usize)>, LabError> {
        let effects = case.meeting.flow.iter().flat_map(|flow| &flow.effects);
        let stores: Vec<_> = effects.filter(|e| !e.output && e.end.seq < case.crash.seq).map(|e| e.end).collect();
        let Some(restart) = self.restart().filter(|_| !stores.is_empty() && !self.is_over()) else {
            return Ok(None);
        };
        let ranges = stores.iter().map(|end| (run.symbols.path(end.line.file), end.offset, end.len));
        let mut watch = Overwritten::new(ranges);
        let image = (&run.meetings.versions, case.crash.version, &case.crash.patches[..]);
        let ended = restart.run(Some(&self.recovery.command), image, &mut watch)?;
        Ok(ended.filter(|_| !shutdown::is_over()).map(|_| watch.result()))
    }

    /// What a variable holds after a restart that relies on it and never resets it to its initial value.
    pub(super) fn left_in(
        &self,
        variable: &SyncVariable,
        update: &Update,
        run: &JudgedRun,
        image: (&Versions, VersionId, &[Patch]),
    ) -> Result<Option<u64>, LabError> {
        let Some(restart) = self.restart() else { return Ok(None) };
        let mut watch = Restarted::new(&run.symbols.path(update.end.line.file), variable, update);
        let ended = restart.run(Some(&self.recovery.command), image, &mut watch)?;
        Ok(ended.filter(|_| !shutdown::is_over()).and_then(|_| watch.kept()))
    }

    /// The controls for crashes that recovery does not survive, by the ids of the cases.
    fn controls(
        &mut self,
        bad: &[&RaceCase<'_>],
        run: &JudgedRun,
        confirmed: &mut Confirmed,
    ) -> Result<HashMap<usize, Controls>, LabError> {
        if bad.is_empty() {
            return Ok(HashMap::new());
        }
        let store = self.lab.temporary()?;
        let moments = bad.iter().flat_map(|case| [case.crash.control_at, case.meeting.store.seq]).collect();
        let (versions, found) = lab::versions_at(&run.recording, &[moments], store)?;
        let at = |moment: u64| found.iter().find(|(known, _)| *known == moment).map(|&(_, version)| version);
        let mut jobs = Vec::new();
        for case in bad {
            let moments = (at(case.crash.control_at), at(case.meeting.store.seq));
            let (Some(load), Some(store)) = moments else { continue };
            let promise = self.recovery.promise_at(case.crash.control_at);
            let lost = TrialImage { version: load, patches: &case.crash.control, promise };
            let none = TrialImage { patches: case.free, ..lost };
            let before = self.recovery.promise_at(case.meeting.store.seq);
            let before = TrialImage { version: store, patches: case.free, promise: before };
            let now = &run.meetings.versions;
            let whole = self.went(now, &case.whole());
            // Content that is wrong with nothing lost counts as the fault of one thread.
            let may_be_taken_back = whole == RecoveryOutcome::Badly && !self.misses_content(now, &case.whole());
            let none = Some(none).filter(|_| may_be_taken_back && case.is_of_reader(confirmed));
            let [others, excused] = [case.others(), case.excused()].map(|job| job.map(|job| self.went(now, &job)));
            jobs.push((*case, (whole, others, excused), lost, before, none));
        }
        let all: Vec<TrialImage<'_>> =
            jobs.iter().flat_map(|(_, _, lost, before, none)| [*lost, *before].into_iter().chain(*none)).collect();
        confirmed.images += self.recover(&versions, &all, self.grace())?;
        // Tries the image without the act only if the act may matter.
        let is_well =
            |none: &Option<TrialImage<'_>>| none.is_some_and(|job| self.went(&versions, &job) == RecoveryOutcome::Well);
        let unacted: HashMap<usize, TrialImage<'_>> = jobs
            .iter()
            .filter(|(.., none)| is_well(none))
            .filter_map(|(case, ..)| {
                Some((case.id(), TrialImage::new(case.crash.version, case.crash.unacted.as_ref()?)))
            })
            .collect();
        // Tries the loss of earlier stores alone only if they may be to blame.
        let beside: HashMap<usize, TrialImage<'_>> = jobs
            .iter()
            .filter(|(_, (whole, ..), lost, ..)| {
                *whole == RecoveryOutcome::Well && self.went(&versions, lost) == RecoveryOutcome::Badly
            })
            .filter_map(|(case, ..)| Some((case.id(), case.beside()?)))
            .collect();
        let all: Vec<TrialImage<'_>> = unacted.values().chain(beside.values()).copied().collect();
        confirmed.images += self.recover(&run.meetings.versions, &all, self.grace())?;
        let went = |job: &TrialImage<'_>| self.went(&versions, job);
        let controls = jobs.iter().map(|(case, (whole, others, excused), lost, before, none)| {
            let at_load = none.as_ref().map_or(RecoveryOutcome::NotTried, went);
            let unacted =
                unacted.get(&case.id()).map_or(RecoveryOutcome::NotTried, |job| self.went(&run.meetings.versions, job));
            let beside = beside.get(&case.id()).map(|job| self.went(&run.meetings.versions, job));
            let (lost_at_load, before) = (went(lost), went(before));
            let (whole, others, excused) = (*whole, *others, *excused);
            let controls = Controls {
                whole,
                others,
                beside,
                lost_at_load,
                at_load,
                unacted,
                before,
                excused,
                acted_before: case.meeting.acted_before,
                writer_idle: case.meeting.read && case.crash.writer_idle,
            };
            (case.id(), controls)
        });
        Ok(controls.collect())
    }

    /// Deadline for work that has already begun.
    pub(super) fn grace(&self) -> Option<Instant> {
        self.deadline.map(|deadline| deadline + POLICY.grace)
    }

    pub(super) fn is_over(&self) -> bool {
        self.left().is_zero() || shutdown::is_over()
    }

    /// Sets a deadline, unless the present one is earlier.
    pub(super) fn end_within(&mut self, time: Duration) {
        let earlier = Instant::now().checked_add(time);
        self.deadline = self.deadline.into_iter().chain(earlier).min();
    }

    /// How much time is left.
    pub(super) fn left(&self) -> Duration {
        self.deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()))
    }

    pub(super) fn recover(
        &mut self,
        versions: &Versions,
        jobs: &[TrialImage<'_>],
        deadline: Option<Instant>,
    ) -> Result<usize, LabError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut recovery = Cow::Borrowed(&self.recovery);
        if let Some(timeout) = self.screening {
            recovery.to_mut().timeout = timeout;
        }
        let campaign = TrialPool {
            recovery: &recovery,
            versions,
            usual: &self.usual,
            // Two servers cannot have one port.
            workers: if self.recovery.driver.is_some() { 1 } else { self.workers.unwrap_or(cores) },
            deadline,
        };
        Ok(campaign.run(jobs, &mut self.journal, &()).map_err(|e| LabError::output("use", "a recovery", e))?.tried)
    }

    /// Whether recovery fails on an image even with the full timeout.
    pub(super) fn still_fails(&mut self, versions: &Versions, image: &TrialImage<'_>) -> Result<bool, LabError> {
        let name = image.name(versions);
        let tried = self.journal.get(&name).filter(|tried| matches!(tried.outcome, Outcome::Hang { .. }));
        if tried.is_some() && self.screening.is_some() {
            let failed = |e| LabError::output("use", "a recovery", e);
            let trial =
                self.recovery.run(&mut Bench::default(), versions, *image, Some(&self.usual)).map_err(failed)?;
            let Some(trial) = trial else { return Ok(false) };
            let good = trial.outcome == self.usual;
            self.journal.add(Tried::new(name, trial, good)).map_err(failed)?;
        }
        Ok(self.went(versions, image) == RecoveryOutcome::Badly)
    }

    pub(super) fn went(&self, versions: &Versions, job: &TrialImage<'_>) -> RecoveryOutcome {
        match self.journal.get(&job.name(versions)) {
            Some(tried) if tried.outcome == self.usual => RecoveryOutcome::Well,
            Some(_) => RecoveryOutcome::Badly,
            None => RecoveryOutcome::NotTried,
        }
    }

    pub(super) fn setting(&self) -> UsualRecovery {
        UsualRecovery {
            recovery: self.recovery.command.iter().map(|w| w.to_string_lossy().into_owned()).collect(),
            usual: self.usual.clone(),
        }
    }
}

/// The outcomes of recoveries so far, in the folder of a run.
pub(super) fn journal(folder: &Path) -> Result<TrialJournal, LabError> {
    TrialJournal::open(&folder.join("tried.jsonl")).map_err(|e| LabError::output("use", "tried.jsonl", e))
}
