//! A check of one recorded run: the rules and fault injection together, as in `pmvet check` and `vet`.
//!
//! Both engines read the events in one pass (`recorded_run`). What [`rules`](crate::rules) suspects is tried like the crashes of
//! [`inject`](crate::inject) (`injection`), and a store that both blame is one finding. Then some of the recoveries are crashed
//! themselves (`recovery_crashes`). With `--durable`, contents are compared with what was promised. [`share`] is for runs whose crashes
//! are tried on several machines.
//!
//! A [`CrashCheck`] goes through these steps: it is [read](CrashCheck::read); contents are
//! [expected](CrashCheck::expect_durable), if wanted; the recovery is [proven](CrashCheck::prove) on what the undisturbed run left;
//! crashes are [tried](CrashCheck::run). The caller decides what to tell the user in between.

mod injection;
mod recorded_run;
mod recovery_crashes;
pub mod share;

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pmvet_findings::{FailurePointTree, Finding, Outcome, Sources, tree};
use pmvet_model::Mode;

use self::injection::{Injected, Injection, JOURNAL};
use self::recorded_run::RecordedRun;
use self::recovery_crashes::{CrashedRecoveries, RecoveryCrashes};
use self::share::Share;
use crate::causes;
use crate::inject::{InjectionPlan, known_paths};
use crate::lab::{
    Lab, LabError, ProvenRecovery, RecoveryCommand, RecoveryPlan, TrialJournal, TrialProgress, UnprovenRecovery,
    Witness,
};
use crate::promises::durable::{DurablePlan, OperationLog, OperationsSeen, promised};
use crate::promises::judge::{ContentJudge, DrivenCommand, Incomparable};
use crate::promises::{Acknowledgement, Indistinct};
use crate::transactions;

/// What is tried, and how much of it.
#[derive(Debug, Clone)]
pub struct CheckPlan {
    /// Where crashes are tried, and which states of each.
    pub injection: InjectionPlan,
    /// What a power failure loses, for the rules and the crash images alike.
    pub mode: Mode,
    /// The rules also report what is probably intended.
    pub pedantic: bool,
    /// How many recoveries are crashed, too.
    pub crashed_recoveries: usize,
    /// The file that lists call paths of failure points that need not be tried again.
    pub known_paths: Option<PathBuf>,
    /// Try only about this many failure points, evenly spread.
    pub sample: Option<usize>,
    /// The part of the crashes that is tried here, from 0, and how many parts there are.
    pub shard: Option<(usize, usize)>,
    /// How many recoveries run at a time.
    pub workers: usize,
}

/// Progress observer of a check.
pub trait CheckObserver {
    /// Follows the recoveries of one recording, and is dropped when they are done.
    fn trials(&self) -> Box<dyn TrialProgress + '_>;

    /// A journal lost its last line when an earlier run was killed. What that line was about is tried again.
    fn journal_was_torn(&self, path: &Path);
}

/// A check of a recorded run, under way.
#[derive(Debug)]
pub struct CrashCheck<'a> {
    lab: Lab<'a>,
    plan: &'a CheckPlan,
    recovery: &'a RecoveryPlan,
    run: RecordedRun,
    analysis_seconds: f64,
    /// The recovery of this run.
    command: RecoveryCommand,
    acknowledged_by: Option<Acknowledgement>,
    /// Call paths that earlier checks have tried.
    tried_before: HashSet<u64>,
}

/// What a check found, and what it did.
#[derive(Debug)]
pub struct Checked {
    /// One for each bug, whether a rule, a crash or both show it.
    pub findings: Vec<Finding>,
    /// What is needed to rebuild each failing image, by the hash of the image.
    pub witnesses: HashMap<String, Witness>,
    /// The failure points by their call paths.
    pub tree: FailurePointTree,
    /// The failure points of recoveries that were crashed.
    pub recovery_tree: FailurePointTree,
    /// How much was done, for the summary.
    pub counts: CheckCounts,
    /// How operations were told apart, if contents were expected.
    pub operations: Option<OperationsSeen>,
    /// What was found in each recording, if this is one of several shards.
    pub shares: Option<Vec<Share>>,
    /// What could not be saved, or not be done for that reason. The findings stand.
    pub unsaved: Vec<LabError>,
}

/// What a check did.
#[derive(Debug, Clone, Default)]
pub struct CheckCounts {
    /// Events of the recorded run that were read.
    pub events: u64,
    /// How many threads stored to PM.
    pub writers: usize,
    /// Time for the pass over the events, before any recovery.
    pub analysis_seconds: f64,
    /// Time that recoveries on the run's crash images took, several at a time. Narrowing failures down is not counted.
    pub recovery_seconds: f64,
    /// Mean time of a recovery that has the machine to itself, over a sample.
    pub mean_recovery_seconds: Option<f64>,
    /// Failure points passed, counting all visits.
    pub points_passed: u64,
    /// Writes by system calls, which count as durable at once.
    pub file_writes: u64,
    /// Failure points with different call paths.
    pub points: usize,
    /// Crash images with different content, in program order.
    pub images: usize,
    /// Crash images with lines written back in another order that were tried.
    pub reordered_images: usize,
    /// Further ones, skipped as less likely to fail; `reordered_images` does not count them.
    pub reordered_images_left: usize,
    /// Points with more orders of write-back than the plan allows.
    pub cut_short_points: usize,
    /// Points with too many pending lines: only one line at a time is early or late there.
    pub not_combined_points: usize,
    /// Points at which a store can be torn while other lines are pending: only one or the other is tried.
    pub torn_alone_points: usize,
    /// Recoveries that were recorded and crashed, too.
    pub recoveries_recorded: usize,
    /// Those of them that mapped PM.
    pub recoveries_that_mapped: usize,
    /// Failure points in these recoveries.
    pub points_in_recovery: usize,
    /// Recoveries that were run on crash images, those of crashed recoveries included.
    pub recoveries: usize,
    /// Recoveries that an earlier run has tried.
    pub recoveries_known: usize,
    /// Recoveries there was no time for.
    pub recoveries_left: usize,
}

impl<'a> CrashCheck<'a> {
    /// Reads the recorded run in the folder of `lab`.
    pub fn read(lab: Lab<'a>, plan: &'a CheckPlan, recovery: &'a RecoveryPlan) -> Result<Self, LabError> {
        let began = Instant::now();
        let tried_before = plan.known_paths.as_deref().map(known_paths::read).unwrap_or_default();
        let run = RecordedRun::read(&lab, plan, Arc::new(tried_before.clone()))?;
        let command = recovery.for_files(&run.scan.versions, run.scan.last);
        let analysis_seconds = began.elapsed().as_secs_f64();
        Ok(Self { lab, plan, recovery, run, analysis_seconds, command, acknowledged_by: None, tried_before })
    }

    /// Whether it has seen all events: pmvet was not asked to stop before.
    pub fn is_whole(&self) -> bool {
        self.run.is_whole
    }

    /// Whether the run mapped PM.
    pub fn saw_pm(&self) -> bool {
        self.run.saw_pm
    }

    /// Whether there is a moment to crash at.
    pub fn has_failure_points(&self) -> bool {
        self.run.scan.passed > 0
    }

    /// The oracle's command line, with the files it is to look at.
    pub fn oracle(&self) -> Option<&[OsString]> {
        self.command.oracle.as_deref()
    }

    /// Makes each crash keep what was promised by then. `contents` is the file that caches the contents that operations lead to.
    pub fn expect_durable(
        &mut self,
        durable: &DurablePlan,
        log: OperationLog,
        contents: &Path,
    ) -> Result<Result<(), Indistinct>, LabError> {
        let Self { lab, recovery, run, .. } = self;
        let recovers = DrivenCommand { command: recovery.command.clone(), driver: recovery.driver.clone() };
        match promised(durable, recovers, lab.workload, &run.signs, log, contents)? {
            Ok((promised, how)) => {
                run.scan.set_promises(&promised.promises);
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

    /// Checks whether the recovery works on what the undisturbed run left.
    pub fn prove(&self) -> Result<Result<ProvenRecovery, UnprovenRecovery>, LabError> {
        self.recovery.prove(&self.command, &self.run.scan.versions, self.run.scan.last)
    }

    /// Checks whether contents can be compared. `shown` is what the recovery showed of what the undisturbed run left, if that is
    /// known.
    pub fn calibrate(&self, shown: Option<&str>) -> Result<Result<(), Incomparable>, LabError> {
        let calibrated = self.content_judge().map_or(Ok(Ok(())), |judge| judge.calibrate(shown));
        calibrated.map_err(|e| LabError::output("run", "the dump", e))
    }

    /// Tries the crashes. `usual` is how the recovery ends when nothing was injected; it may take as long as `timeout`.
    pub fn run(
        self,
        usual: &Outcome,
        timeout: Duration,
        observer: &dyn CheckObserver,
        sources: &Sources,
    ) -> Result<Checked, LabError> {
        let Self { lab, plan, recovery, run, analysis_seconds, command, acknowledged_by, tried_before } = self;
        let journal = open_journal(lab.folder, observer)?;
        let promised = command.promised.clone();
        let injection = Injection::new(plan, &run, lab, command, (usual, timeout));
        let mut injected = injection.run(journal, plan.crashed_recoveries, observer.trials(), sources)?;
        let mut unsaved: Vec<LabError> = injected.unsaved.take().into_iter().collect();
        if let Some(file) = &plan.known_paths {
            unsaved.extend(known_paths::add(file, run.scan.paths.difference(&tried_before)).err());
        }
        let promised = promised.as_ref();
        let crashes = RecoveryCrashes { plan, recovery, lab, usual, timeout, promised, observer, sources };
        let mut crashed = match plan.crashed_recoveries {
            0 => CrashedRecoveries::default(),
            _ => crashes.run(&run, &injected),
        };
        unsaved.append(&mut crashed.errors);
        let counts = CheckCounts { analysis_seconds, ..CheckCounts::new(&run, &injected, &crashed) };
        let shares = plan.shard.map(|_| {
            let mut shares = vec![Share::new(None, &injected)];
            shares.append(&mut crashed.shares);
            shares
        });
        let mut tree = tree::Builder::default();
        run.add_points(&injected.verdicts, &mut tree);
        let Injected { mut findings, mut witnesses, .. } = injected;
        findings.extend(causes::without_known(&findings, crashed.findings));
        witnesses.extend(crashed.witnesses);
        Ok(Checked {
            findings: transactions::one_per_function(findings),
            witnesses,
            tree: tree.finish(),
            recovery_tree: crashed.tree.finish(),
            counts,
            operations: acknowledged_by.zip(promised).map(|(how, promised)| OperationsSeen::new(how, &promised.judge)),
            shares,
            unsaved,
        })
    }
}

impl CheckCounts {
    fn new(run: &RecordedRun, injected: &Injected, crashed: &CrashedRecoveries) -> Self {
        let scan = &run.scan;
        Self {
            events: run.events,
            writers: run.writers,
            analysis_seconds: 0.0,
            recovery_seconds: injected.recovery_seconds,
            mean_recovery_seconds: injected.mean_recovery_seconds,
            points_passed: scan.passed,
            file_writes: run.file_writes,
            points: scan.unique,
            images: injected.images,
            reordered_images: injected.states,
            reordered_images_left: scan.unlikely,
            cut_short_points: scan.cut_short,
            not_combined_points: scan.not_combined,
            torn_alone_points: scan.torn_alone,
            recoveries_recorded: crashed.recorded,
            recoveries_that_mapped: crashed.looked,
            points_in_recovery: crashed.points,
            recoveries: injected.done.tried + crashed.tried,
            recoveries_known: injected.done.known,
            recoveries_left: injected.done.left + crashed.left,
        }
    }
}

/// Opens the journal of earlier trials on the recording in this folder.
fn open_journal(folder: &Path, observer: &dyn CheckObserver) -> Result<TrialJournal, LabError> {
    let path = folder.join(JOURNAL);
    let damaged = |source: io::Error| LabError::Journal { path: path.clone(), source };
    let journal = TrialJournal::open(&path).map_err(damaged)?;
    if journal.was_torn() {
        observer.journal_was_torn(&path);
    }
    Ok(journal)
}
