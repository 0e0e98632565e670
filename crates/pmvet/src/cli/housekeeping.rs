//! Arguments of commands that manage runs, findings and the configuration, and of those used to make packages.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};

use super::{ChosenRun, RUNS, SummaryFormat, parse_time};

#[derive(Debug, Args)]
pub(crate) struct Generate {
    /// What to write: pages of the manual, or completions for bash, zsh and fish
    #[arg(value_enum)]
    pub(crate) what: GenerateWhat,

    /// Where to; made if it does not exist
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GenerateWhat {
    Man,
    Completions,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("which").args(["keep", "older_than"]).multiple(true).requires("prune")))]
pub(crate) struct Runs {
    /// Remove runs: those that --keep and --older-than say, else the oldest until all are below `[runs] limit` of the configuration.
    ///
    /// The last run stays, and those that are pinned, that you renamed, that are shards, or that another pmvet is using.
    #[arg(long)]
    pub(crate) prune: bool,

    /// With --prune: the newest N runs stay
    #[arg(long, value_name = "N")]
    pub(crate) keep: Option<usize>,

    /// With --prune: only runs that were made longer ago, such as 12h or 30d
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    pub(crate) older_than: Option<Duration>,

    /// Never remove this run to make room
    #[arg(long, value_name = "RUN")]
    pub(crate) pin: Option<String>,

    /// Allow this run to be removed again
    #[arg(long, value_name = "RUN", conflicts_with = "pin")]
    pub(crate) unpin: Option<String>,

    /// Format of what is printed
    #[arg(long, value_enum, default_value_t = SummaryFormat::Human)]
    pub(crate) format: SummaryFormat,

    /// Configuration [default: ./pmvet.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Where runs are kept
    #[arg(long, value_name = "DIR", default_value = RUNS)]
    pub(crate) runs: PathBuf,
}

/// A duration as elsewhere, or a number of days.
fn parse_age(text: &str) -> Result<Duration, String> {
    const DAY_SECONDS: f64 = 86_400.0;
    match text.strip_suffix('d').map(str::parse::<f64>) {
        Some(Ok(days)) => Duration::try_from_secs_f64(days * DAY_SECONDS)
            .map_err(|_| format!("`{text}` is no time; write 12h or 30d")),
        _ => parse_time(text).map_err(|e| format!("{e}, or 30d")),
    }
}

#[derive(Debug, Args)]
pub(crate) struct Suppress {
    /// Which finding: its number, the start of its fingerprint, or its token
    pub(crate) id: String,

    /// Why it may be hidden, for whoever reads the configuration
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,

    /// The configuration that is added to [default: ./pmvet.toml]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) chosen: ChosenRun,
}

#[derive(Debug, Args)]
pub(crate) struct Baseline {
    #[command(subcommand)]
    pub(crate) action: BaselineAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BaselineAction {
    /// Take all findings of a run for known, in a new file
    Write(BaselineFile),
    /// Bring a baseline up to date: what a run found is added, what is gone is removed
    Update {
        #[command(flatten)]
        how: BaselineFile,

        /// Remove what is gone, and add nothing
        #[arg(long)]
        no_new: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct BaselineFile {
    /// The baseline, for --baseline of other commands
    #[arg(value_name = "FILE", default_value = "pmvet-baseline.json")]
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) chosen: ChosenRun,
}

#[derive(Debug, Args)]
pub(crate) struct Init {
    /// Write the proposal to the configuration instead of printing it; one that exists is never overwritten
    #[arg(long)]
    pub(crate) write: bool,

    /// Run this first, in a shell, to make the files that the program starts with
    #[arg(long, value_name = "CMD")]
    pub(crate) setup: Option<String>,

    /// The configuration to write [default: ./pmvet.toml]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// The program and its arguments, passed on untouched
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<OsString>,
}
