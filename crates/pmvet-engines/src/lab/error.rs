//! Why an experiment could not be made.

use std::io;
use std::path::PathBuf;

use pmvet_events::file::TraceError;
use pmvet_target::launch::LaunchError;
use pmvet_target::program::ProgramError;
use pmvet_target::recording::RecordError;

use super::ScanError;

/// Why an experiment could not be made. That a program fails in it is an outcome, not an error.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Scan(#[from] ScanError),
    #[error("{}: {source}", .path.display())]
    Trace { path: PathBuf, source: TraceError },
    /// What an interrupted run has noted cannot be used.
    #[error("{}: {source}", .path.display())]
    Journal { path: PathBuf, source: io::Error },
    #[error("cannot {action} {what}: {source}")]
    Output { action: &'static str, what: String, source: io::Error },
}

impl LabError {
    /// Something that is needed could not be made or used.
    pub(crate) fn output(action: &'static str, what: &str, source: io::Error) -> Self {
        Self::Output { action, what: what.into(), source }
    }
}
