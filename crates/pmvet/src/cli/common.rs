//! Arguments of many commands: the workload, its recoveries, how findings are shown.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use pmvet_target::sandbox::driver::Ready;

use crate::driver::RunStart;

/// Where runs are kept by default.
pub(crate) const RUNS: &str = ".pmvet/runs";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SummaryFormat {
    Human,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

/// The target and the files it runs on, for every engine.
#[derive(Debug, Clone, Args)]
pub(crate) struct Workload {
    /// Files that are PM, beside /mnt/pmem*/**, /dev/shm/**, /dev/dax* and those mapped with MAP_SYNC.
    ///
    /// May be given several times. A folder stands for everything below it; a relative glob is relative to the
    /// current folder.
    #[arg(long, value_name = "GLOB", action = ArgAction::Append)]
    pub(crate) pm: Vec<OsString>,

    /// Let the program work on the files themselves instead of private copies, if they are too large to copy
    #[arg(long)]
    pub(crate) in_place: bool,

    /// Outputs that are wanted for real: what the set-up and the recorded run leave in files like this is copied out.
    ///
    /// May be given several times. A folder stands for everything below it. Recoveries and other runs stay private; what is removed
    /// stays in place.
    #[arg(long, value_name = "GLOB", action = ArgAction::Append)]
    pub(crate) keep: Vec<OsString>,

    /// Run this first, in a shell, to make the files that the program starts with
    #[arg(long, value_name = "CMD")]
    pub(crate) setup: Option<String>,

    /// For a server: run this, in a shell, once it is ready; its exit status counts
    #[arg(long, value_name = "CMD")]
    pub(crate) client: Option<String>,

    /// How to know that a server is ready: port:N, file:PATH or line:REGEX (something it prints)
    #[arg(long, value_name = "WHAT")]
    pub(crate) ready_when: Option<Ready>,

    /// Run this to end the server when its client is done [default: SIGTERM]
    #[arg(long, value_name = "CMD")]
    pub(crate) stop: Option<String>,

    /// Configuration [default: ./pmvet.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Where runs are kept
    #[arg(long, value_name = "DIR", default_value = RUNS)]
    pub(crate) runs: PathBuf,

    /// The program and its arguments, passed on untouched [default: `command` in the configuration]
    #[arg(last = true, value_name = "PROGRAM [ARGS]", num_args = 0..)]
    pub(crate) command: Vec<OsString>,
}

/// How findings are shown, for every engine.
#[derive(Debug, Args)]
pub(crate) struct Reporting {
    /// The gravest findings that may remain for exit code 0 are below this
    #[arg(long, value_enum, default_value_t = FailOn::Error)]
    pub(crate) fail_on: FailOn,

    /// Suppressions besides those in the configuration
    #[arg(long, value_name = "FILE")]
    pub(crate) suppressions: Option<PathBuf>,

    /// Count only findings that this file does not have (a findings.jsonl, or what --export-json wrote)
    #[arg(long, value_name = "FILE", visible_alias = "since")]
    pub(crate) baseline: Option<PathBuf>,

    /// Write all findings as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) export_json: Option<PathBuf>,

    /// Write all findings as SARIF 2.1.0
    #[arg(long, value_name = "FILE")]
    pub(crate) export_sarif: Option<PathBuf>,

    /// Write all findings as JUnit XML
    #[arg(long, value_name = "FILE")]
    pub(crate) export_junit: Option<PathBuf>,

    /// Write all findings as one HTML page
    #[arg(long, value_name = "FILE")]
    pub(crate) export_html: Option<PathBuf>,

    /// Format of what is printed
    #[arg(long, value_enum, default_value_t = SummaryFormat::Human)]
    pub(crate) format: SummaryFormat,

    /// Show rules that hold for correct programs too
    #[arg(long)]
    pub(crate) pedantic: bool,

    /// Show all that is known of each finding, as `pmvet show` does, with frames of libraries
    #[arg(long)]
    pub(crate) full_stacks: bool,

    #[arg(long, value_enum, default_value_t = Color::Auto)]
    pub(crate) color: Color,

    /// Print findings only
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

impl Reporting {
    /// For runs whose results a campaign reports: what decides what is found, and nothing about how it is shown.
    pub(crate) fn of_inner_runs(&self) -> Self {
        Self {
            fail_on: self.fail_on,
            pedantic: self.pedantic,
            quiet: true,
            suppressions: None,
            baseline: None,
            export_json: None,
            export_sarif: None,
            export_junit: None,
            export_html: None,
            format: self.format,
            full_stacks: self.full_stacks,
            color: self.color,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FailOn {
    Error,
    Warning,
    Performance,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Persistency {
    /// A crash loses what is in the caches
    Adr,
    /// Caches are persistent
    Eadr,
}

/// How a program recovers and how long that may take, for every engine that crashes it.
#[derive(Debug, Args)]
pub(crate) struct Recovering {
    /// How the program recovers, as a shell command [default: the program's own command line]
    #[arg(long, value_name = "CMD")]
    pub(crate) recover: Option<String>,

    /// Run after a recovery that succeeded, with the paths of the PM files as arguments; 0 means consistent
    #[arg(long, value_name = "CMD")]
    pub(crate) oracle: Option<String>,

    /// A recovery that takes longer hangs [default: 10 times a recovery without a crash, at least 5s]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) recover_timeout: Option<Duration>,

    /// What a crash loses
    #[arg(long, value_enum, default_value_t = Persistency::Adr)]
    pub(crate) persistency: Persistency,

    /// How many recoveries run at the same time [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) jobs: Option<u16>,

    /// Stop after this time, and say what was not tried
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) budget: Option<Duration>,

    /// Go on with the last run, which was interrupted; the command line must be the same
    #[arg(long)]
    pub(crate) resume: bool,

    /// The folder of a run whose recording is used instead of a new one, for tasks of `pmvet scatter`.
    #[arg(skip)]
    pub(crate) recording: Option<PathBuf>,
}

impl Recovering {
    pub(crate) fn start(&self) -> RunStart {
        match &self.recording {
            _ if self.resume => RunStart::Last,
            Some(folder) => RunStart::RecordedIn(folder.clone()),
            None => RunStart::New,
        }
    }
}

impl Default for Recovering {
    /// What the command line means that says nothing.
    fn default() -> Self {
        Self {
            recover: None,
            oracle: None,
            recover_timeout: None,
            persistency: Persistency::Adr,
            jobs: None,
            budget: None,
            resume: false,
            recording: None,
        }
    }
}

/// A run that has been made.
#[derive(Debug, Args)]
pub(crate) struct ChosenRun {
    /// Where runs are kept
    #[arg(long, value_name = "DIR", default_value = RUNS)]
    pub(crate) runs: PathBuf,

    /// Which run [default: the last one]
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<String>,
}

/// `90`, `90s`, `5m`, `1.5h`, `200ms`.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no time; write 200ms, 90s, 5m or 1.5h");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "ms" => number / 1e3,
        "s" | "" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(wrong()),
    };
    Duration::try_from_secs_f64(seconds).ok().filter(|t| !t.is_zero()).ok_or_else(wrong)
}

pub(super) fn parse_shard(text: &str) -> Result<(u32, u32), String> {
    let wrong = || format!("`{text}` is no shard; write 1/4 to 4/4");
    let (k, n) = text.split_once('/').ok_or_else(wrong)?;
    let (k, n) = (k.parse().map_err(|_| wrong())?, n.parse().map_err(|_| wrong())?);
    if k < 1 || k > n { Err(wrong()) } else { Ok((k, n)) }
}
