//! A verification of one recorded run, from its events to findings: the crashes, the recovery on what each can leave, and the
//! words.
//!
//! A [`Verification`] is [read](Verification::read); contents are [expected](Verification::expect_durable), if wanted; its recovery is
//! [proven](Verification::prove) on what the undisturbed run left; and then everything is [tried](Verification::run). The caller
//! decides what to tell the user in between.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use glob::Pattern;
use pmvet_events::file::Definitions;
use pmvet_events::paths;
use pmvet_events::plan::Plan;
use pmvet_events::spaces::AddressSpaces;
use pmvet_findings::{Finding, Outcome};
use pmvet_model::{Mode, Unknown};
use pmvet_target::crash::{Patch, Versions};
use pmvet_target::program::Program;
use pmvet_target::shutdown;
use pmvet_target::symbols::Symbolizer;

use super::findings::{self, SearchSetting};
use super::{
    ConfirmNatively, Crash, CrashScan, CrashScanner, CrashSearch, Ended, NativeOutcome, SearchJournal, SearchProgress,
    SearchResult, Traced, blame,
};
use crate::causes;
use crate::causes::early_stores::Decisive;
use crate::lab::{
    self, Bench, Lab, LabError, NativeStacks, ProvenRecovery, RecoveryCommand, RecoveryPlan, TrialImage, TrialJournal,
    TrialPool, UnprovenRecovery, Witness,
};
use crate::promises::durable::{DurablePlan, OperationLog, OperationsSeen, promised};
use crate::promises::judge::{ContentJudge, DrivenCommand, Incomparable};
use crate::promises::{Acknowledgement, Indistinct, OperationSigns};
use crate::shards;
use crate::stacks::Symbols;
use crate::timeline;
use crate::transactions::{self, EscapingLines, TransactionFacts, TransactionTracker};

/// In the folder of a run: what was executed.
pub const JOURNAL: &str = "executions.jsonl";
/// In the folder of a run: what was tried to find the stores to blame.
pub const EXPERIMENTS: &str = "blame.jsonl";

/// What is tried, and how much of it.
#[derive(Debug, Clone)]
pub struct VerifyPlan {
    /// What a power failure loses.
    pub mode: Mode,
    /// Crashes in a row: that of the workload, then those of recoveries.
    pub failures: u8,
    /// A crash is explored to its end although an execution after it has failed.
    pub keep_going: bool,
    /// Upper bound of executions.
    pub most_executions: u64,
    /// Executions after one crash before doubtful choices are skipped.
    pub patience_executions: u64,
    /// Contents are compared with what was promised, see [`Verification::expect_durable`].
    pub compares_contents: bool,
    /// The recovery relies on checksums to see what is whole, so no choice is doubtful.
    pub checksums: bool,
    /// The part of the crashes that is tried here, from 0, and how many parts there are.
    pub shard: Option<(usize, usize)>,
    /// Nothing is executed: other machines have made all executions there are.
    pub known_only: bool,
    /// How many executions are under way at a time.
    pub workers: usize,
}

/// Progress observer of a verification.
pub trait VerifyObserver {
    /// Follows the search, and is dropped when that is over.
    fn search(&self) -> Box<dyn SearchProgress + '_>;

    /// A journal lost its last line when an earlier run was killed. What that line was about is tried again.
    fn journal_was_torn(&self, path: &Path);
}

/// A verification of a recorded run, under way.
#[derive(Debug)]
pub struct Verification<'a> {
    lab: Lab<'a>,
    plan: &'a VerifyPlan,
    recovery: &'a RecoveryPlan,
    /// The recovery of this run.
    command: RecoveryCommand,
    scan: CrashScan,
    is_whole: bool,
    /// What may begin and end operations, if contents are compared.
    signs: OperationSigns,
    acknowledged_by: Option<Acknowledgement>,
    transactions: TransactionFacts,
    symbols: Symbols,
    places: Definitions,
    analysis_seconds: f64,
}

/// What a verification found, and what it did.
#[derive(Debug)]
pub struct Verified {
    /// One for each cause.
    pub findings: Vec<Finding>,
    /// What is needed to rebuild each failing image, by the hash of the image.
    pub witnesses: HashMap<String, Witness>,
    /// How much was executed, and what was left.
    pub done: SearchResult,
    /// How operations were told apart, if contents were expected.
    pub operations: Option<OperationsSeen>,
    /// Failure points passed, those that leave the same as another one included.
    pub points_passed: u64,
    /// Writes by system calls, which count as durable at once.
    pub file_writes: u64,
    /// Crashes that leave different choices.
    pub crashes: usize,
    /// How many images an eager search would try.
    pub eager_executions: u128,
    /// Stores of lines with very many pending ones, whose states are not told apart.
    pub merged_states: u64,
    /// Accesses to PM that cannot be recorded.
    pub unsupported_accesses: u64,
    /// Time for the pass over the events, before any execution.
    pub analysis_seconds: f64,
    /// Time for all executions; several are under way at a time.
    pub search_seconds: f64,
    /// Why results could not be saved, if so. The findings stand.
    pub unsaved: Option<LabError>,
}

impl Verified {
    /// Nothing was left out, and nothing was assumed.
    pub fn is_complete(&self) -> bool {
        self.done.is_complete() && self.merged_states == 0 && self.unsupported_accesses == 0
    }

    /// The recovery looked at PM in no watched execution: nothing is known of it.
    pub fn is_blind(&self) -> bool {
        self.done.looked == 0 && self.done.watched > 0
    }
}

impl<'a> Verification<'a> {
    /// Reads the recorded run in the folder of `lab`.
    pub fn read(lab: Lab<'a>, plan: &'a VerifyPlan, recovery: &'a RecoveryPlan) -> Result<Self, LabError> {
        let began = Instant::now();
        let recording = lab.recording();
        let unread = |source| LabError::Trace { path: recording.trace(), source };
        let store = lab.temporary()?;
        let mut reader = recording.read().map_err(unread)?;
        let recorded = recording.trace().metadata().and_then(|m| m.modified()).unwrap_or_else(|_| SystemTime::now());
        let mut symbols = Symbols::new(Symbolizer::of_recording(recorded));
        let mut scanner = CrashScanner::new(&recording, plan.mode, plan.compares_contents, store);
        let (mut spaces, mut transactions) = (AddressSpaces::default(), TransactionTracker::default());
        let mut signs = OperationSigns::default();
        let rebuilding = |e| LabError::output("rebuild", "the content of PM", e);
        let (mut clock, mut is_whole) = (shutdown::ClockCheck::default(), true);
        while let Some(event) = reader.next().map_err(unread)? {
            if clock.is_due() && shutdown::is_over() {
                is_whole = false;
                break;
            }
            symbols.event(&event);
            spaces.update(&event);
            transactions.event(&event, &spaces, &Unknown);
            if plan.compares_contents {
                signs.event(&event);
            }
            scanner.event(&event).map_err(rebuilding)?;
        }
        let scan = scanner.finish().map_err(rebuilding)?;
        Ok(Self {
            lab,
            plan,
            recovery,
            command: recovery.for_files(&scan.versions, scan.last),
            scan,
            is_whole,
            signs,
            acknowledged_by: None,
            transactions: transactions.finish(),
            symbols,
            places: reader.into_places(),
            analysis_seconds: began.elapsed().as_secs_f64(),
        })
    }

    /// Whether it has seen all events: pmvet was not asked to stop before.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Whether the run mapped PM.
    pub fn saw_pm(&self) -> bool {
        self.scan.saw_pm
    }

    /// Makes each crash keep what was promised by then. `contents` is the file that caches the contents that operations lead to.
    pub fn expect_durable(
        &mut self,
        durable: &DurablePlan,
        log: OperationLog,
        contents: &Path,
    ) -> Result<Result<(), Indistinct>, LabError> {
        let recovers = DrivenCommand { command: self.recovery.command.clone(), driver: None };
        match promised(durable, recovers, self.lab.workload, &self.signs, log, contents)? {
            Ok((promised, how)) => {
                self.scan.set_promises(&promised.promises);
                (self.command.promised, self.acknowledged_by) = (Some(promised), Some(how));
                Ok(Ok(()))
            }
            Err(why) => Ok(Err(why)),
        }
    }

    /// The judge that compares contents, if any does.
    pub fn content_judge(&self) -> Option<&ContentJudge> {
        self.command.promised.as_ref().map(|promised| &*promised.judge)
    }

    /// Checks whether contents can be compared. `shown` is what the recovery showed of what the undisturbed run left, if that is
    /// known.
    pub fn calibrate(&self, shown: Option<&str>) -> Result<Result<(), Incomparable>, LabError> {
        let calibrated = self.content_judge().map_or(Ok(Ok(())), |judge| judge.calibrate(shown));
        calibrated.map_err(|e| LabError::output("run", "the dump", e))
    }

    /// Checks whether the recovery works on what the undisturbed run left.
    pub fn prove(&self) -> Result<Result<ProvenRecovery, UnprovenRecovery>, LabError> {
        self.recovery.prove(&self.command, &self.scan.versions, self.scan.last)
    }

    /// Explores the crashes. `program` is the recovery, to be run under DynamoRIO; `usual` is how it ends when nothing was injected; it
    /// may take as long as `timeout`.
    pub fn run(
        mut self,
        program: Program,
        usual: &Outcome,
        timeout: Duration,
        observer: &dyn VerifyObserver,
    ) -> Result<Verified, LabError> {
        self.command.timeout = timeout;
        let (scan, workload) = (&self.scan, self.lab.workload);
        let paths: Vec<PathBuf> = lab::files(&scan.versions, scan.last).into_iter().map(PathBuf::from).collect();
        let traced = Traced {
            program,
            plan: self.plan_recovery(&paths),
            install: self.lab.install,
            files: &workload.left,
            input: self.recovery.input.clone(),
            paths,
            most_bytes: self.command.most_bytes,
            timeout,
            oracle: self.command.oracle.clone(),
            dump: self.content_judge().and_then(|judge| judge.dump.clone()),
            variables: self.command.variables.clone(),
            nested: (self.plan.failures > 1).then_some(self.plan.mode),
            versions: &scan.versions,
            usual: Ended::Exit(0),
        };
        let natively = Natively { recovery: &self.command, versions: &scan.versions, usual };
        let search = CrashSearch {
            observe: &traced,
            confirm: &natively,
            usual: traced.usual,
            usual_outcome: usual,
            workers: self.plan.workers,
            deadline: None,
            most: self.plan.most_executions,
            patience: self.plan.patience_executions,
            failures: self.plan.failures,
            keep_going: self.plan.keep_going,
            compares_contents: self.plan.compares_contents,
            known_only: self.plan.known_only,
        };
        let path = self.lab.folder.join(JOURNAL);
        let journal = SearchJournal::open(&path).map_err(|source| LabError::Journal { path: path.clone(), source })?;
        if journal.was_torn() {
            observer.journal_was_torn(&path);
        }
        let started = Instant::now();
        let progress = observer.search();
        let done = search.run(&self.own_crashes(), journal, &*progress);
        drop(progress);
        let mut done = done.map_err(|e| LabError::output("run", "a recovery", io::Error::other(e)))?;
        let unsaved = done.unsaved.take().map(|e| LabError::output("write", JOURNAL, e));
        let search_seconds = started.elapsed().as_secs_f64();
        if self.plan.checksums {
            done.doubtful = 0;
        }
        let decisive = self.decisive_stores(&done, usual)?;
        let image = |crash: &Crash, patches: &[Patch]| trial_image(crash, patches).name(&scan.versions);
        let setting = SearchSetting {
            recovery: self.command.command.iter().map(|w| w.to_string_lossy().into_owned()).collect(),
            usual: usual.clone(),
            moments: self.own_crashes().iter().map(|crash| crash.moment.before.unwrap_or(u64::MAX)).collect(),
            image: &image,
        };
        let mut stacks = self.symbols.with(&self.places);
        let found =
            findings::one_per_cause(&done.failures, &decisive, &setting, &mut stacks, &mut NativeStacks::default());
        let (mut findings, mut witnesses) = (Vec::new(), HashMap::new());
        for found in found {
            let promise = self.command.promise(found.promise);
            let witness = Witness { recording: None, seq: found.before, patches: found.patches, promise };
            witnesses.insert(found.image, witness);
            findings.push(found.finding);
        }
        let mut findings = causes::count_lost_stores(findings);
        transactions::blame_transactions(&mut findings, &EscapingLines::new(&self.transactions, &mut stacks));
        let mut findings = transactions::one_per_function(findings);
        timeline::tell(&self.lab.recording(), &mut findings, &mut stacks)?;
        let seen = self.acknowledged_by.zip(self.content_judge()).map(|(how, judge)| OperationsSeen::new(how, judge));
        // Counts what earlier parts of this search could not judge, too, but not the experiments to find a store.
        let operations = seen.map(|seen| OperationsSeen { not_judged: done.not_judged as usize, ..seen });
        Ok(Verified {
            findings,
            witnesses,
            done,
            operations,
            points_passed: scan.passed,
            file_writes: scan.file_writes,
            crashes: scan.crashes.len(),
            eager_executions: scan.eager,
            merged_states: scan.merged,
            unsupported_accesses: scan.unsupported,
            analysis_seconds: self.analysis_seconds,
            search_seconds,
            unsaved,
        })
    }

    /// The crashes of this shard, or all.
    fn own_crashes(&self) -> Cow<'_, [Crash]> {
        let crashes = &self.scan.crashes;
        let Some((k, n)) = self.plan.shard else { return Cow::Borrowed(crashes) };
        let costs: Vec<u64> = crashes.iter().map(Crash::expected_cost).collect();
        let owners = shards::balance(&costs, n);
        crashes.iter().zip(owners).filter(|(_, owner)| *owner == k).map(|(crash, _)| crash.clone()).collect()
    }

    /// What to record of a recovery. The files of the run count as PM, even if the recovery does not map them.
    fn plan_recovery(&self, files: &[PathBuf]) -> Plan {
        let mut plan = Plan { loads: true, snapshots: false, ..self.lab.workload.launch(true).plan };
        plan.pm.extend(files.iter().map(|path| Pattern::escape(&paths::text(path))));
        plan
    }

    /// The store that decides each failure, as far as experiments tell.
    fn decisive_stores(&self, done: &SearchResult, usual: &Outcome) -> Result<Vec<Option<Decisive>>, LabError> {
        let path = self.lab.folder.join(EXPERIMENTS);
        let mut journal = TrialJournal::open(&path).map_err(|source| LabError::Journal { path, source })?;
        let pool = TrialPool {
            recovery: &self.command,
            versions: &self.scan.versions,
            usual,
            workers: self.plan.workers,
            deadline: None,
        };
        Ok(blame::decisive_stores(&done.failures, &self.lab.recording(), &pool, &mut journal)?)
    }
}

/// Runs the recovery without instrumentation.
struct Natively<'a> {
    recovery: &'a RecoveryCommand,
    versions: &'a Versions,
    usual: &'a Outcome,
}

impl ConfirmNatively for Natively<'_> {
    type Bench = Bench;

    fn confirm(&self, bench: &mut Bench, crash: &Crash, patches: &[Patch]) -> io::Result<Option<NativeOutcome>> {
        let trial = self.recovery.run(bench, self.versions, trial_image(crash, patches), Some(self.usual))?;
        Ok(trial.map(|trial| NativeOutcome {
            outcome: trial.outcome,
            output: String::from_utf8_lossy(&trial.output).into_owned(),
            stack: trial.stack,
            seconds: trial.time.as_secs_f64(),
            shown: trial.shown,
        }))
    }
}

/// What a crash leaves, and what that must show.
fn trial_image<'a>(crash: &Crash, patches: &'a [Patch]) -> TrialImage<'a> {
    TrialImage { version: crash.version, patches, promise: crash.promise }
}
