//! Crashes during recovery: some recoveries are recorded like the workload, and crashed where they run code that the workload
//! did not.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pmvet_events::file::TraceHeader;
use pmvet_findings::{Finding, Outcome, Sources, tree};
use pmvet_target::crash::Scratch;
use pmvet_target::launch::TargetExit;
use pmvet_target::program::Program;
use pmvet_target::recording::Recording;
use pmvet_target::sandbox::Capture;
use pmvet_target::shutdown;

use super::injection::{Injected, Injection};
use super::recorded_run::RecordedRun;
use super::share::Share;
use super::{CheckObserver, CheckPlan, open_journal};
use crate::lab::{Lab, LabError, Promised, RecoveryPlan, Witness};

/// In how many recoveries a call path is crashed before it counts as known: whether a crash there is harmful depends on what
/// that recovery had to repair.
const TRIED_RECOVERIES: u32 = 8;

/// How much longer a recovery may take while it is recorded.
const RECORDING_SLOWDOWN: u32 = 20;

/// What all recoveries share.
pub(super) struct RecoveryCrashes<'a> {
    pub(super) plan: &'a CheckPlan,
    pub(super) recovery: &'a RecoveryPlan,
    /// That of the run whose recoveries these are.
    pub(super) lab: Lab<'a>,
    pub(super) usual: &'a Outcome,
    pub(super) timeout: Duration,
    pub(super) promised: Option<&'a Promised>,
    pub(super) observer: &'a dyn CheckObserver,
    pub(super) sources: &'a Sources,
}

/// The results of crashes during recovery.
#[derive(Debug, Default)]
pub(super) struct CrashedRecoveries {
    pub(super) findings: Vec<Finding>,
    /// For other shards.
    pub(super) shares: Vec<Share>,
    pub(super) witnesses: HashMap<String, Witness>,
    /// The failure points of all of them.
    pub(super) tree: tree::Builder,
    pub(super) recorded: usize,
    /// Of these, the recoveries that mapped PM.
    pub(super) looked: usize,
    pub(super) points: usize,
    pub(super) tried: usize,
    pub(super) left: usize,
    /// What could not be done, or not be saved.
    pub(super) errors: Vec<LabError>,
}

/// Call paths, and in how many recoveries each was crashed.
struct TriedPaths {
    known: Arc<HashSet<u64>>,
    tries: HashMap<u64, u32>,
}

impl RecoveryCrashes<'_> {
    /// Crashes recoveries from images of the workload's run that recovery can handle. What cannot be done, for lack of room for
    /// instance, is skipped.
    pub(super) fn run(&self, first: &RecordedRun, injected: &Injected) -> CrashedRecoveries {
        let mut crashed = CrashedRecoveries::default();
        let mut seen = TriedPaths { known: Arc::new(first.scan.paths.clone()), tries: HashMap::new() };
        for &point in &injected.to_crash {
            if shutdown::is_over() {
                crashed.left += 1;
                continue;
            }
            if let Err(error) = self.crash(first, point, &mut seen, &mut crashed) {
                crashed.errors.push(error);
                crashed.left += 1;
            }
        }
        crashed
    }

    /// Records one recovery and crashes it.
    fn crash(
        &self,
        first: &RecordedRun,
        point: usize,
        seen: &mut TriedPaths,
        crashed: &mut CrashedRecoveries,
    ) -> Result<(), LabError> {
        let name = format!("recovery-{}", crashed.recorded + 1);
        let Some(folder) = self.record(&name, first, point)? else {
            crashed.left += usize::from(shutdown::is_over());
            return Ok(());
        };
        let lab = Lab { folder: &folder, ..self.lab };
        let mut run = RecordedRun::read(&lab, self.plan, Arc::clone(&seen.known))?;
        if !run.is_whole {
            crashed.left += 1;
            return Ok(());
        }
        crashed.recorded += 1;
        crashed.looked += usize::from(run.saw_pm);
        for &path in &run.scan.paths {
            let times = seen.tries.entry(path).or_default();
            *times += 1;
            if *times == TRIED_RECOVERIES {
                Arc::make_mut(&mut seen.known).insert(path);
            }
        }
        if run.scan.points.is_empty() {
            return Ok(());
        }
        let mut recovery = self.recovery.for_files(&run.scan.versions, run.scan.last);
        // What was promised before the first crash holds after the second one.
        recovery.promised = self.promised.map(|promised| Promised {
            promises: Arc::new(promised.promises.fixed(first.scan.points[point].promise)),
            judge: Arc::clone(&promised.judge),
        });
        if let Some(promised) = &recovery.promised {
            run.scan.set_promises(&promised.promises);
        }
        let journal = open_journal(&folder, self.observer)?;
        let injection = Injection::new(self.plan, &run, lab, recovery, (self.usual, self.timeout));
        let injected = injection.run(journal, 0, self.observer.trials(), self.sources)?;
        run.add_points(&injected.verdicts, &mut crashed.tree);
        crashed.points += run.scan.points.len();
        crashed.tried += injected.done.tried + injected.done.known;
        crashed.left += injected.done.left;
        crashed.shares.extend(self.plan.shard.map(|_| Share::new(Some(&name), &injected)));
        crashed.findings.extend(injected.findings);
        crashed.errors.extend(injected.unsaved);
        let of_this = |(image, witness)| (image, Witness { recording: Some(name.clone()), ..witness });
        crashed.witnesses.extend(injected.witnesses.into_iter().map(of_this));
        Ok(())
    }

    /// Records the recovery from the image at a failure point, in a separate folder. Nothing if it did not end as it should.
    fn record(&self, name: &str, first: &RecordedRun, point: usize) -> Result<Option<PathBuf>, LabError> {
        let folder = self.lab.folder.join(name);
        let failed = |e| LabError::output("make", &folder.display().to_string(), e);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).map_err(failed)?;
        let Ok(program) = Program::find(&self.recovery.command) else { return Ok(None) };
        let mut overlay = self.lab.workload.left.above(Capture::Named);
        let mut scratch = Scratch::default();
        let version = first.scan.points[point].version;
        scratch.become_version(&first.scan.versions, version, &[], &mut overlay).map_err(failed)?;
        let mut how = self.lab.workload.launch(false);
        how.plan.operations = None;
        how.program = program;
        match &mut how.sandbox {
            Some(private) => {
                private.overlay = Arc::new(Mutex::new(overlay));
                private.timeout = Some(self.timeout * RECORDING_SLOWDOWN);
                // The client of the recovered server is not the one of the workload.
                private.driver.clone_from(&self.recovery.driver);
            }
            None => return Ok(None),
        }
        let header = TraceHeader {
            command: self.recovery.command.clone(),
            pmvet_version: env!("CARGO_PKG_VERSION").into(),
            loads: false,
        };
        let (_, ending) = Recording::make(&folder, &how, &header, self.lab.install, None)?;
        Ok((ending.exit == TargetExit::Status(0) && ending.loss.is_none()).then_some(folder))
    }
}
