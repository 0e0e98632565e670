//! How a workload recovers, before its run has left any files, and whether recovery works without a crash.

use std::ffi::OsString;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use pmvet_findings::Outcome;
use pmvet_target::crash::{VersionId, Versions};
use pmvet_target::launch::pm_variables;
use pmvet_target::sandbox::Overlay;
use pmvet_target::sandbox::driver::Driver;

use super::pool::TrialImage;
use super::recovery::{Bench, PATIENCE, RecoveryCommand, files, room, usual_timeout, with_paths};
use super::{LabError, Trial};

/// How a workload recovers from any of its runs.
#[derive(Debug, Clone)]
pub struct RecoveryPlan {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Standard input, if it reads any.
    pub input: Option<Arc<File>>,
    /// How long it may take. Nothing: a multiple of the time without a crash.
    pub timeout: Option<Duration>,
    /// A shell command that looks at the recovered files, whose paths it gets; 0 means consistent.
    pub oracle: Option<Vec<OsString>>,
    /// The files beside PM, as the recorded run left them.
    pub files: Overlay,
    /// For servers: the client that talks to it.
    pub driver: Option<Arc<Driver>>,
}

/// How a recovery ends on what the undisturbed run left, and how long one may take after a crash.
#[derive(Debug, Clone)]
pub struct ProvenRecovery {
    /// Status 0: any other end is [`UnprovenRecovery::Fails`].
    pub usual: Outcome,
    /// The user's limit, or a multiple of what this recovery took.
    pub timeout: Duration,
    /// What it printed, or what was shown of the content.
    pub output: Vec<u8>,
}

/// Why a recovery cannot judge crash images.
#[derive(Debug, Clone)]
pub enum UnprovenRecovery {
    /// pmvet was asked to stop before it ended.
    Interrupted,
    /// It fails although nothing was injected.
    Fails {
        /// How it ended.
        outcome: Outcome,
        /// The end of what it printed.
        output: Vec<u8>,
    },
}

impl RecoveryPlan {
    /// The native recovery from a run that leaves the files of this version.
    pub fn for_files(&self, versions: &Versions, last: VersionId) -> RecoveryCommand {
        let bytes: u64 = versions.get(last).iter().flat_map(|v| &v.files).map(|f| f.size).sum();
        RecoveryCommand {
            command: self.command.clone(),
            input: self.input.clone(),
            variables: pm_variables().collect(),
            timeout: self.timeout.unwrap_or(PATIENCE),
            oracle: self.oracle.as_deref().map(|oracle| with_paths(oracle, &files(versions, last))),
            files: self.files.clone(),
            most_bytes: room(bytes),
            driver: self.driver.clone(),
            promised: None,
            hangs: Arc::default(),
        }
    }

    /// Runs the recovery, and the oracle, on what the undisturbed run left.
    pub fn prove(
        &self,
        recovery: &RecoveryCommand,
        versions: &Versions,
        last: VersionId,
    ) -> Result<Result<ProvenRecovery, UnprovenRecovery>, LabError> {
        let trial = recovery.run(&mut Bench::default(), versions, TrialImage::new(last, &[]), None);
        Ok(match trial.map_err(|e| LabError::output("run", "the recovery", e))? {
            None => Err(UnprovenRecovery::Interrupted),
            Some(Trial { outcome: usual @ Outcome::Exit { status: 0 }, output, time, .. }) => {
                Ok(ProvenRecovery { usual, timeout: self.timeout.unwrap_or(usual_timeout(time)), output })
            }
            Some(Trial { outcome, output, .. }) => Err(UnprovenRecovery::Fails { outcome, output }),
        })
    }
}
