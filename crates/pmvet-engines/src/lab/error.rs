//! Why an experiment could not be made.

use std::io;
use std::path::PathBuf;

use pmvet_events::file::TraceError;
use pmvet_target::launch::LaunchError;
use pmvet_target::program::ProgramError;
use pmvet_target::recording::RecordError;

use super::ScanError;

/// Why an experiment could not be made. If a program fails in one, that is an outcome, not an error.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// There is no such program, or it cannot be run.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The target could not be started or followed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A run could not be recorded.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// PM cannot be rebuilt from a recorded run.
    #[error(transparent)]
    Scan(#[from] ScanError),
    #[error("{}: {source}", .path.display())]
    /// A recorded trace cannot be read.
    Trace {
        /// The trace file.
        path: PathBuf,
        /// What is wrong with it.
        source: TraceError,
    },
    /// The journal of an interrupted run cannot be used.
    #[error("{}: {source}", .path.display())]
    Journal {
        /// The journal's file.
        path: PathBuf,
        /// Why it cannot be opened, or where it is damaged.
        source: io::Error,
    },
    #[error("cannot {action} {what}: {source}")]
    /// Something that an experiment needs could not be made or used.
    Output {
        /// A verb, such as "make" or "run".
        action: &'static str,
        /// What it was to be done to.
        what: String,
        /// Why it could not be done.
        source: io::Error,
    },
}

impl LabError {
    /// Something that is needed could not be made or used.
    pub(crate) fn output(action: &'static str, what: &str, source: io::Error) -> Self {
        Self::Output { action, what: what.into(), source }
    }
}
