//! Experiments that engines share: recoveries on crash images, several at a time, and their outcomes.
//!
//! An engine decides which image to try and what the outcome means. The lab rebuilds the image ([`moments`]), runs the recovery on it
//! ([`recovery`], as [`recovery_plan`] says), several at a time ([`pool`]), and remembers every outcome ([`tried`]), so that equal images
//! are tried once and an interrupted run can go on.

mod error;
pub mod evidence;
pub(crate) mod lost_stores;
pub mod moments;
pub mod native;
pub mod pool;
pub mod recovery;
pub mod recovery_plan;
pub mod restart;
pub mod tried;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use std::{fs, io};

use pmvet_events::plan::Plan;
use pmvet_target::install::Install;
use pmvet_target::launch::Ending;
use pmvet_target::mapped::MappedFile;
use pmvet_target::recording::Recording;
use pmvet_target::{Workload, sparse};

pub use error::LabError;
pub use evidence::{StackLookup, UsualRecovery, Witness};
pub use moments::{Newest, ScanError, version_at, versions_at};
pub use native::NativeStacks;
pub use pool::{TrialCounts, TrialImage, TrialPool, TrialProgress};
pub use recovery::{
    Bench, PATIENCE, Promised, RecoveryCommand, ShownContent, Trial, files, room, usual_timeout, with_paths,
};
pub use recovery_plan::{ProvenRecovery, RecoveryPlan, UnprovenRecovery};
pub use tried::{TrialJournal, Tried};

/// What is needed to run a workload once more.
#[derive(Debug, Clone, Copy)]
pub struct Lab<'a> {
    /// The program, its arguments and its files.
    pub workload: &'a Workload,
    /// Where the client and DynamoRIO are.
    pub install: &'a Install,
    /// The folder of the run, for recordings and temporary files.
    pub folder: &'a Path,
}

impl Lab<'_> {
    /// The recorded run.
    pub fn recording(&self) -> Recording {
        Recording::open(self.folder)
    }

    /// An empty file without a name.
    pub fn temporary(&self) -> Result<MappedFile, LabError> {
        self.temporary_file().map_err(|e| LabError::output("use", "a temporary file", e))
    }

    pub(crate) fn temporary_file(&self) -> io::Result<MappedFile> {
        sparse::temporary(self.folder).map(MappedFile::new)
    }

    /// Runs the workload by a plan and records it. Ends it after `timeout`, or when `cancel` is set.
    pub fn record(
        &self,
        plan: &Plan,
        timeout: Duration,
        folder: &Path,
        cancel: Option<Arc<AtomicBool>>,
    ) -> Result<(Recording, Ending), LabError> {
        let made: io::Result<()> = fs::create_dir_all(folder);
        made.map_err(|e| LabError::output("use", &folder.display().to_string(), e))?;
        let mut how = self.workload.launch(true);
        how.plan = plan.clone();
        if let Some(private) = &mut how.sandbox {
            (private.timeout, private.by_the_clock, private.cancel) = (Some(timeout), true, cancel);
        }
        Ok(self.workload.record(folder, how, self.install, None)?)
    }
}
