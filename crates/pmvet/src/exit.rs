//! How pmvet ends: every error maps to one documented exit code.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use pmvet_engines::fuzz::campaign::FuzzError;
use pmvet_engines::fuzz::runner::RunError;
use pmvet_engines::lab::{LabError, ScanError};
use pmvet_events::file::TraceError;
use pmvet_target::forkserver::ForkError;
use pmvet_target::install::InstallError;
use pmvet_target::launch::LaunchError;
use pmvet_target::program::ProgramError;
use pmvet_target::recording::RecordError;
use serde::{Deserialize, Serialize};

use crate::config::ConfigError;
use crate::recovery;

/// Exit codes, least grave first: if several apply, the gravest wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Exit {
    Ok,
    NothingAnalysed,
    Incomplete,
    TargetFailed,
    Findings,
    Usage,
    Internal,
    Interrupted,
}

impl Exit {
    pub(crate) const ALL: [Exit; 8] = [
        Exit::Ok,
        Exit::Findings,
        Exit::Usage,
        Exit::TargetFailed,
        Exit::NothingAnalysed,
        Exit::Incomplete,
        Exit::Internal,
        Exit::Interrupted,
    ];

    pub(crate) fn code(self) -> u8 {
        match self {
            Exit::Ok => 0,
            Exit::Findings => 1,
            Exit::Usage => 2,
            Exit::TargetFailed => 3,
            Exit::NothingAnalysed => 4,
            Exit::Incomplete => 5,
            Exit::Internal => 70,
            Exit::Interrupted => 130,
        }
    }

    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Exit::Ok => "all is well",
            Exit::Findings => {
                "findings, also if they could not all be saved; for `trace --check-image`: an image differs from its file"
            }
            Exit::Usage => "wrong usage or configuration, or the program cannot be run or the file not be read",
            Exit::TargetFailed => {
                "the target, its recovery or the oracle fails, or does not end in the budget, with no fault injected"
            }
            Exit::NothingAnalysed => {
                "nothing was analysed: no PM file was mapped, there was no failure point, or no time"
            }
            Exit::Incomplete => {
                "the budget ended early (with --require-complete), `verify` left something out (`not covered` says what), a part of a `fuzz` \
                 campaign failed, or a task of `scatter` is missing"
            }
            Exit::Internal => {
                "internal error: events lost or damaged, an output that could not be written and no findings"
            }
            Exit::Interrupted => "interrupted by SIGINT, SIGTERM or SIGHUP",
        }
    }

    /// The part of the help that explains exit codes.
    pub(crate) fn help() -> String {
        let mut help = String::from("Exit codes:");
        for exit in Self::ALL {
            help.push_str(&format!("\n  {:>3}  {}", exit.code(), exit.meaning()));
        }
        help
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

/// Why a command could not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Install(#[from] InstallError),
    #[error("{0}{advice}", advice = advice(.0))]
    Launch(LaunchError),
    /// Programs cannot get private files.
    #[error("nothing was run, since the sandbox cannot be used here: {0}; `pmvet doctor` says more")]
    Sandbox(String),
    /// A trace that cannot be read.
    #[error("{}", trace_error(.path, .source))]
    Trace { path: PathBuf, source: TraceError },
    /// A trace that cannot be saved.
    #[error("{0}; no trace is kept. Free some space or give --save-trace another place, then run again")]
    Save(TraceError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Fuzz(#[from] FuzzError),
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// The files of an earlier run cannot be used.
    #[error("{0}")]
    Run(String),
    #[error("cannot {action} {what}: {source}")]
    Output { action: &'static str, what: String, source: io::Error },
}

impl From<LabError> for Error {
    fn from(error: LabError) -> Self {
        match error {
            LabError::Program(error) => error.into(),
            LabError::Launch(error) => Error::Launch(error),
            LabError::Record(error) => error.into(),
            LabError::Scan(error) => error.into(),
            LabError::Trace { path, source } => Error::Trace { path, source },
            LabError::Journal { path, source } => recovery::journal_damaged(&path, source),
            LabError::Output { action, what, source } => Error::Output { action, what, source },
        }
    }
}

/// Errors of the file system name the file themselves.
fn trace_error(path: &Path, error: &TraceError) -> String {
    match error {
        TraceError::Io { .. } => error.to_string(),
        _ => format!("{}: {error}", path.display()),
    }
}

fn unreadable(error: &TraceError) -> Exit {
    match error {
        TraceError::NotATrace { .. } | TraceError::Version { .. } => Exit::Usage,
        TraceError::Io { action: "open", .. } => Exit::Usage,
        TraceError::Io { source, .. } if source.kind() == io::ErrorKind::IsADirectory => Exit::Usage,
        TraceError::Truncated { .. } | TraceError::Corrupt { .. } | TraceError::Io { .. } => Exit::Internal,
    }
}

fn advice(error: &LaunchError) -> &'static str {
    match error {
        LaunchError::SharedMemory(e) if e.kind() == io::ErrorKind::FileTooLarge => {
            "; the limit of file sizes is too small for it: `ulimit -f unlimited`"
        }
        LaunchError::SharedMemory(_) => "; `pmvet doctor` checks this machine",
        _ => "",
    }
}

impl Error {
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Error::Usage(_)
            | Error::Config(_)
            | Error::Program(_)
            | Error::Install(_)
            | Error::Sandbox(_)
            | Error::Run(_) => Exit::Usage,
            Error::Trace { source, .. } | Error::Scan(ScanError::Trace(source)) => unreadable(source),
            Error::Fuzz(FuzzError::Run(RunError::Fork(ForkError::Interrupted))) => Exit::NothingAnalysed,
            Error::Fuzz(_)
            | Error::Launch(_)
            | Error::Record(_)
            | Error::Scan(_)
            | Error::Save(_)
            | Error::Output { .. } => Exit::Internal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gravest_wins() {
        let by_weight = [
            Exit::Ok,
            Exit::NothingAnalysed,
            Exit::Incomplete,
            Exit::TargetFailed,
            Exit::Findings,
            Exit::Usage,
            Exit::Internal,
            Exit::Interrupted,
        ];
        assert!(by_weight.is_sorted());
        assert_eq!(Exit::TargetFailed.max(Exit::Findings), Exit::Findings);
    }

    #[test]
    fn codes_are_distinct_and_all_in_the_help() {
        let codes: std::collections::BTreeSet<u8> = Exit::ALL.into_iter().map(Exit::code).collect();
        assert_eq!(codes.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 70, 130]);
        let help = Exit::help();
        assert!(Exit::ALL.into_iter().all(|e| help.contains(&format!("\n  {:>3}  {}", e.code(), e.meaning()))));
    }

    #[test]
    fn errors_of_reading_a_trace() {
        let exit = |source| Error::Trace { path: "t".into(), source }.exit();
        assert_eq!(exit(TraceError::NotATrace { found: "text".into() }), Exit::Usage);
        assert_eq!(exit(TraceError::Truncated { events_read: 0, offset: 1 }), Exit::Internal);
        let io = |action| TraceError::Io { action, file: "t".into(), source: io::ErrorKind::NotFound.into() };
        assert_eq!(exit(io("open")), Exit::Usage);
        assert_eq!(exit(io("read")), Exit::Internal);
        // The run of another build of pmvet, which `replay` and `--resume` refuse.
        let version = TraceError::Version { found: 1, supported: 2, written_by: "0.1.0".into() };
        assert_eq!(Error::Scan(version.into()).exit(), Exit::Usage);
    }
}
