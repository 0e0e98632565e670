//! The command line. Its types hold what the user typed; `config` and the commands turn them into plain settings.

mod housekeeping;
mod machines;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, ArgGroup, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use pmvet_target::sandbox::driver::Ready;
use serde::{Deserialize, Serialize};

pub(crate) use self::housekeeping::{
    Baseline, BaselineAction, BaselineFile, Generate, GenerateWhat, Init, Runs, Suppress,
};
pub(crate) use self::machines::{Gather, Scatter, ScatterEngine};
use crate::driver::RunStart;
use crate::exit::Exit;
use crate::kinds;
use crate::printing::filter::{FilterSpan, parse_address_span, parse_offset_span};

/// Crashes with lines in another order, at one failure point: the default of `check`, and what `vet` tries.
pub(crate) const REORDER_STATES: u32 = 256;
/// Recoveries that are recorded and crashed, too: the default of `check`, and what `vet` does.
pub(crate) const CRASHED_RECOVERIES: u32 = 6;
/// Executions after one crash before `verify` leaves out choices that seem to make no difference: its default, and what `vet` does.
pub(crate) const PATIENCE_EXECUTIONS: u64 = 1000;

/// What `--version` says; `-V` has the number only.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("PMVET_BUILT_FROM"),
    ", DynamoRIO ",
    env!("PMVET_DYNAMORIO"),
    ")"
);

/// Finds crash-consistency, performance and concurrency bugs in programs that use persistent memory (PM).
#[derive(Debug, Parser)]
#[command(name = "pmvet", version, long_version = LONG_VERSION, after_help = Exit::help(), subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// For each command with many options, those that most users need. The help shows them first.
const FIRST: [(&str, [&str; 5]); 6] = [
    ("vet", ["pm", "setup", "recover", "oracle", "budget"]),
    ("check", ["pm", "setup", "recover", "oracle", "budget"]),
    ("verify", ["pm", "setup", "recover", "oracle", "budget"]),
    ("race", ["pm", "setup", "confirm", "recover", "budget"]),
    ("fuzz", ["corpus", "seeds", "then", "budget", "jobs"]),
    ("trace", ["pm", "save_trace", "check_image", "format", "summary"]),
];

/// The definition of the command line, with the options of each command in the order of the help.
pub(crate) fn definition() -> clap::Command {
    let mut definition = Cli::command();
    for (command, first) in FIRST {
        let others = |arg: clap::Arg| match arg.is_positional() || first.contains(&arg.get_id().as_str()) {
            true => arg,
            false => arg.help_heading("More options"),
        };
        definition = definition.mut_subcommand(command, |command| command.mut_args(others));
    }
    definition
}

/// What the user typed. Ends the process with a message if it is wrong, or asks for help.
pub(crate) fn parse() -> Cli {
    let matches = definition().get_matches();
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Look for every kind of bug: one recorded run, then all engines in shares of one budget [default: 2m]
    #[command(after_help = Exit::help())]
    Vet(Box<Vet>),
    /// Find out whether a program survives a crash at every point of a workload
    #[command(after_help = Exit::help())]
    Check(Box<Check>),
    /// Try every state of PM that a crash of a workload can leave and its recovery can tell apart
    #[command(after_help = Exit::help())]
    Verify(Box<Verify>),
    /// Predict races in which a thread acts on data that a crash may still take back
    #[command(after_help = Exit::help())]
    Race(Box<Race>),
    /// Make test cases, inputs and PM images, that reach the code that works on PM
    #[command(after_help = Exit::help())]
    Fuzz(Box<Fuzz>),
    /// Show one finding in full
    Show(Show),
    /// Say what a rule means, with an example and the fix; without a rule, list them all
    Explain(Explain),
    /// Run a finding's crash image and recovery again
    #[command(after_help = Exit::help())]
    Replay(Replay),
    /// Write a run's findings as HTML, SARIF, JSON or JUnit
    Report(Report),
    /// Compare the findings of two runs
    Diff(Diff),
    /// Join the results of shards
    #[command(after_help = Exit::help())]
    Merge(Merge),
    /// Share the work of check, verify or fuzz among many machines: an array job of Slurm, or a Job of Kubernetes
    #[command(after_help = Exit::help())]
    Scatter(Box<Scatter>),
    /// Join what the machines of `pmvet scatter` have found
    #[command(after_help = Exit::help())]
    Gather(Box<Gather>),
    /// List the runs that are kept, and remove those that nobody needs
    #[command(after_help = Exit::help())]
    Runs(Runs),
    /// Write findings that are known already to a file, for --baseline
    #[command(after_help = Exit::help())]
    Baseline(Baseline),
    /// Write the configuration's entry that hides a finding
    #[command(after_help = Exit::help())]
    Suppress(Suppress),
    /// Run a program once, privately, and propose a pmvet.toml for it
    #[command(after_help = Exit::help())]
    Init(Init),
    /// Run a program, on the files themselves, and record what it does to PM.
    ///
    /// The program works in place: what it does to files is real. The other commands keep it private.
    #[command(after_help = Exit::help())]
    Trace(Box<Trace>),
    /// Print the events of a saved trace
    #[command(after_help = Exit::help())]
    Events(Events),
    /// Check whether this machine can run pmvet, and say what to install or set
    #[command(after_help = Exit::help())]
    Doctor(Doctor),
    /// Write pages of the manual or shell completions, for packages
    #[command(hide = true)]
    Generate(Generate),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SummaryFormat {
    Human,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EventFormat {
    Text,
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
    #[arg(long, value_name = "DIR", default_value = ".pmvet/runs")]
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
    #[arg(long, value_name = "FILE")]
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

    /// Show frames of libraries too
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Durability {
    /// Nothing: each is there after the crash
    Strict,
    /// Lose the last ones: what is left is the content after some operation
    Buffered,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CrashAt {
    /// Before flushes and fences
    Persist,
    /// Before every store, too
    Store,
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

#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) workload: Workload,

    #[command(flatten)]
    pub(crate) recovering: Recovering,

    /// For a server: run this against the recovered server [default: --client again; nothing with --durable]
    #[arg(long, value_name = "CMD", requires = "client")]
    pub(crate) recover_client: Option<String>,

    /// Ask of each crash whether the operations that were acknowledged by then are still there. Operations are the lines of
    /// standard input; the program may also read them from a file, which @@ stands for in its arguments. Those of a server are
    /// what its --client asks
    #[arg(long, requires = "shows", conflicts_with = "in_place")]
    pub(crate) durable: bool,

    /// For --durable: prints what the recovered files hold, a line for each thing
    #[arg(long, value_name = "CMD", requires = "durable", group = "shows")]
    pub(crate) dump: Option<String>,

    /// For --durable and a server: prints what the recovered server holds, a line for each thing, by asking it
    #[arg(
        long,
        value_name = "CMD",
        requires = "durable",
        requires = "client",
        group = "shows",
        conflicts_with = "recover_client"
    )]
    pub(crate) dump_client: Option<String>,

    /// The order of the dump's lines means nothing
    #[arg(long, requires = "durable")]
    pub(crate) dump_sort: bool,

    /// What a crash may do to acknowledged operations
    #[arg(long, value_enum, default_value_t = Durability::Strict, requires = "durable")]
    pub(crate) durability: Durability,

    /// Where crashes are tried
    #[arg(long, value_enum, default_value_t = CrashAt::Persist)]
    pub(crate) at: CrashAt,

    /// How many visits to the same failure point, same call path and same stores before it, are tried
    /// [default: 64 in a short run, 1 in a long one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) visits: Option<u32>,

    /// How many recoveries are recorded and crashed, too, where they run code that the workload did not
    #[arg(long, value_name = "N", default_value_t = CRASHED_RECOVERIES, conflicts_with = "in_place")]
    pub(crate) crash_recoveries: u32,

    /// Try all crashes in which one line was written back earlier or later than the others, not only the most likely ones
    #[arg(long)]
    pub(crate) reorder: bool,

    /// How many such crashes are tried at one failure point; 0 for none
    #[arg(long, value_name = "N", default_value_t = REORDER_STATES)]
    pub(crate) reorder_states: u32,

    /// Exit with 5 if the budget ended before everything was tried
    #[arg(long)]
    pub(crate) require_complete: bool,

    /// Try only so many failure points, evenly spread
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) sample: Option<u32>,

    /// Do only this part of the work, as in 2/5
    #[arg(long, value_name = "K/N", value_parser = parse_shard)]
    pub(crate) shard: Option<(u32, u32)>,

    #[command(flatten)]
    pub(crate) reporting: Reporting,
}

#[derive(Debug, Args)]
pub(crate) struct Vet {
    #[command(flatten)]
    pub(crate) workload: Workload,

    #[command(flatten)]
    pub(crate) recovering: Recovering,

    /// Exit with 5 if the budget ended before everything was tried
    #[arg(long)]
    pub(crate) require_complete: bool,

    #[command(flatten)]
    pub(crate) reporting: Reporting,
}

#[derive(Debug, Args)]
pub(crate) struct Race {
    #[command(flatten)]
    pub(crate) workload: Workload,

    #[command(flatten)]
    pub(crate) confirm: Confirm,

    /// Do without one of the choices that docs/race.md describes; may be given several times
    #[arg(long, value_enum, value_name = "CHOICE", action = ArgAction::Append)]
    pub(crate) without: Vec<RaceSwitch>,

    /// Predict races of lock-free stores too, most of which cannot happen
    #[arg(long)]
    pub(crate) lock_free: bool,

    /// Atomic operations in this function take no lock
    #[arg(long, value_name = "FUNCTION", action = ArgAction::Append)]
    pub(crate) deny_lock: Vec<String>,

    /// Atomic operations in this function take a lock
    #[arg(long, value_name = "FUNCTION", action = ArgAction::Append)]
    pub(crate) declare_lock: Vec<String>,

    #[command(flatten)]
    pub(crate) reporting: Reporting,
}

/// How predicted races are tried.
#[derive(Debug, Clone, Args)]
pub(crate) struct Confirm {
    /// Force each predicted race, crash where it would do harm, and let recovery judge
    #[arg(long)]
    pub(crate) confirm: bool,

    /// With --confirm: how many runs are made to force races
    #[arg(long, value_name = "N", default_value_t = Self::ROUNDS, requires = "confirm")]
    pub(crate) rounds: u32,

    /// With --confirm: stop as soon as a race is proven, or that a lock stays held
    #[arg(long, requires = "confirm")]
    pub(crate) until_finding: bool,

    /// With --confirm: instead of stopping writers, let each access to PM wait for a random time (a baseline to compare with)
    #[arg(long, requires = "confirm")]
    pub(crate) delay_injection: bool,

    /// How the program recovers, as a shell command: judges locks in PM, with --confirm also races [default: the program's own
    /// command line]
    #[arg(long, value_name = "CMD")]
    pub(crate) recover: Option<String>,

    /// With --confirm: run after a recovery that succeeded, with the paths of the PM files as arguments; 0 means consistent
    #[arg(long, value_name = "CMD", requires = "confirm")]
    pub(crate) oracle: Option<String>,

    /// With --confirm: a recovery that takes longer hangs [default: 10 times a recovery without a crash, at least 5s]
    #[arg(long, value_name = "TIME", value_parser = parse_time, requires = "confirm")]
    pub(crate) recover_timeout: Option<Duration>,

    /// With --confirm: how many recoveries run at the same time [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), requires = "confirm")]
    pub(crate) jobs: Option<u16>,

    /// With --confirm: stop after this time, the recorded run included, and say what was not tried
    #[arg(long, value_name = "TIME", value_parser = parse_time, requires = "confirm")]
    pub(crate) budget: Option<Duration>,
}

impl Default for Confirm {
    /// Without `--confirm`.
    fn default() -> Self {
        Self {
            confirm: false,
            rounds: Self::ROUNDS,
            until_finding: false,
            delay_injection: false,
            recover: None,
            oracle: None,
            recover_timeout: None,
            jobs: None,
            budget: None,
        }
    }
}

impl Confirm {
    /// How many runs are made to force races, unless the user says otherwise.
    const ROUNDS: u32 = 100;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RaceSwitch {
    InitRemoval,
    InferLocks,
    Allocators,
    ReaderWindow,
    Edges,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("instead").args(["rebuild", "paths_of", "cmin", "tmin"])))]
// What only a campaign with a fork server does. Turns of --interleave are runs of `pmvet race`, and the others make no test cases.
#[command(group(ArgGroup::new("campaign").args(["dict", "then", "crash_images", "crash_anywhere"]).multiple(true)
    .conflicts_with_all(["instead", "interleave"])))]
#[command(group(ArgGroup::new("server").args(["timeout", "memory", "whole_runs", "exchange"]).multiple(true)
    .conflicts_with("interleave")))]
#[command(group(ArgGroup::new("search").args(["ops", "budget", "executions", "until_finding", "longest"]).multiple(true)
    .conflicts_with("instead")))]
pub(crate) struct Fuzz {
    #[command(flatten)]
    pub(crate) workload: Workload,

    /// Where test cases are kept; a campaign goes on with what is there [default: .pmvet/fuzz/PROGRAM]
    #[arg(long, short = 'o', value_name = "DIR")]
    pub(crate) corpus: Option<PathBuf>,

    /// Inputs to start from: a file, or all files in a folder [default: standard input]
    #[arg(long, short = 'i', value_name = "PATH")]
    pub(crate) seeds: Option<PathBuf>,

    /// What inputs are made of: operations and their parameters [default: the lines of the seeds]
    #[arg(long, value_name = "FILE")]
    pub(crate) ops: Option<PathBuf>,

    /// A dictionary in AFL's format, besides the words found in the program
    #[arg(long, short = 'x', value_name = "FILE")]
    pub(crate) dict: Option<PathBuf>,

    /// Run these engines on new test cases in the background
    #[arg(long, value_enum, value_name = "ENGINE,…", value_delimiter = ',')]
    pub(crate) then: Vec<Then>,

    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) budget: Option<Duration>,

    /// Stop after this many runs
    #[arg(long, value_name = "N")]
    pub(crate) executions: Option<u64>,

    /// How many processes fuzz; the others keep what they find in folders of the corpus
    #[arg(long, short, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) jobs: u16,

    /// Take over test cases of other campaigns, whose corpora are in this folder, as they come
    #[arg(long, value_name = "DIR")]
    pub(crate) exchange: Option<PathBuf>,

    /// The number of a process that another one started
    #[arg(long, value_name = "N", hide = true)]
    pub(crate) helper: Option<u16>,

    /// Explore thread schedules too: make values be read before they are persistent, crash, and let recovery judge.
    ///
    /// Each input has a turn of what `pmvet race --confirm` does, so what is only for runs of a fork server has no meaning here.
    #[arg(long, conflicts_with = "instead")]
    pub(crate) interleave: bool,

    /// With --interleave: instead of stopping writers, let each access to PM wait for a random time (a baseline to compare with)
    #[arg(long, requires = "interleave")]
    pub(crate) delay_injection: bool,

    /// With --interleave: how the program recovers, as a shell command [default: the program's own command line]
    #[arg(long, value_name = "CMD", requires = "interleave")]
    pub(crate) recover: Option<String>,

    /// With --interleave: run after a recovery that succeeded, with the paths of the PM files as arguments; 0 means consistent
    #[arg(long, value_name = "CMD", requires = "interleave")]
    pub(crate) oracle: Option<String>,

    /// Stop at the first finding that counts (see --fail-on)
    #[arg(long)]
    pub(crate) until_finding: bool,

    /// Start the random choices here
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// A run that takes longer hangs
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "2s")]
    pub(crate) timeout: Duration,

    /// A run that takes more memory is ended
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    pub(crate) memory: u64,

    /// How many crash images are made from a test case that takes a new PM path
    #[arg(long, value_name = "N", default_value_t = 6)]
    pub(crate) crash_images: u64,

    /// Of a hundred crash images, how many crash anywhere instead of before a fence
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u8).range(..=100))]
    pub(crate) crash_anywhere: u8,

    /// No input gets longer than this many bytes
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) longest: u32,

    /// Let every run open its pool, even if the short way gives the same results
    #[arg(long)]
    pub(crate) whole_runs: bool,

    /// Instead of fuzzing: make N random test cases of the corpus again from the start, and compare
    #[arg(long, value_name = "N")]
    pub(crate) rebuild: Option<usize>,

    /// Instead of fuzzing: run the inputs in a folder on the first image, or the test cases if it is the corpus, and count PM paths and transitions
    #[arg(long, value_name = "DIR")]
    pub(crate) paths_of: Option<PathBuf>,

    /// Instead of fuzzing: copy to a new corpus as few test cases as cover the same
    #[arg(long, value_name = "DIR")]
    pub(crate) cmin: Option<PathBuf>,

    /// Instead of fuzzing: make the input of this test case smaller while the program fails in the same way, or takes the same PM paths
    #[arg(long, value_name = "FILE")]
    pub(crate) tmin: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) reporting: Reporting,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Then {
    Check,
    Race,
    Verify,
}

/// A run that has been made.
#[derive(Debug, Args)]
pub(crate) struct Made {
    /// Where runs are kept
    #[arg(long, value_name = "DIR", default_value = ".pmvet/runs")]
    pub(crate) runs: PathBuf,

    /// Which run [default: the last one]
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// Which finding: its number, the start of its fingerprint, or its token
    pub(crate) id: String,

    #[command(flatten)]
    pub(crate) made: Made,

    #[arg(long, value_enum, default_value_t = Color::Auto)]
    pub(crate) color: Color,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// The rule, as findings name it
    pub(crate) rule: Option<String>,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("levels").args(["sarif", "junit"]).multiple(true)))]
pub(crate) struct Report {
    #[command(flatten)]
    pub(crate) made: Made,

    /// Show the HTML page in the browser
    #[arg(long)]
    pub(crate) open: bool,

    /// Write the HTML page to FILE [default: report.html in the run's folder]
    #[arg(long = "export-html", alias = "html", value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Write all findings as JSON, for other tools and as a baseline
    #[arg(long = "export-json", alias = "json", value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Write SARIF 2.1.0, for code scanning
    #[arg(long = "export-sarif", alias = "sarif", value_name = "FILE")]
    pub(crate) sarif: Option<PathBuf>,

    /// Write JUnit XML, for CI systems
    #[arg(long = "export-junit", alias = "junit", value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,

    /// With --export-sarif or --export-junit: rules that hold for correct programs too, which the others always have
    #[arg(long, requires = "levels")]
    pub(crate) pedantic: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Merge {
    /// The runs of all shards, by name or by folder
    #[arg(required = true, value_name = "RUN")]
    pub(crate) shards: Vec<String>,

    /// Where runs are kept; the joined one is put there too
    #[arg(long, value_name = "DIR", default_value = ".pmvet/runs")]
    pub(crate) runs: PathBuf,

    #[command(flatten)]
    pub(crate) reporting: Reporting,
}

#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// The earlier run
    pub(crate) before: String,

    /// The later run [default: the last one]
    pub(crate) after: Option<String>,

    /// Where runs are kept
    #[arg(long, value_name = "DIR", default_value = ".pmvet/runs")]
    pub(crate) runs: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    pub(crate) workload: Workload,

    #[command(flatten)]
    pub(crate) recovering: Recovering,

    /// How many crashes may follow each other: with 2, recoveries are crashed too
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub(crate) failures: u8,

    /// Find all executions that fail after a crash, not just the first
    #[arg(long)]
    pub(crate) keep_going: bool,

    /// How many executions of the recovery are made, at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_executions: Option<u64>,

    /// How many executions after one crash are made before choices that seem to make no difference are left out
    #[arg(long, value_name = "N", default_value_t = PATIENCE_EXECUTIONS, conflicts_with = "checksums")]
    pub(crate) patience: u64,

    /// Take choices that seem to make no difference for what they seem: the recovery only sums data up, or frees locks.
    ///
    /// They are not made at all then, and do not count as left.
    #[arg(long)]
    pub(crate) checksums: bool,

    /// The part of the work that a task of `pmvet scatter` does.
    #[arg(skip)]
    pub(crate) shard: Option<(u32, u32)>,

    /// The runs of all tasks, for `pmvet gather`.
    #[arg(skip)]
    pub(crate) gathered: Option<Vec<PathBuf>>,

    #[command(flatten)]
    pub(crate) reporting: Reporting,
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// Which finding: its number, the start of its fingerprint, or its token
    pub(crate) id: String,

    #[command(flatten)]
    pub(crate) made: Made,

    /// Write the crash image to FILE (FILE.1, FILE.2, ... if there are several PM files)
    #[arg(long, value_name = "FILE")]
    pub(crate) keep_image: Option<PathBuf>,

    /// Stop in the recovery with the debugger
    #[arg(long)]
    pub(crate) gdb: bool,
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

fn parse_shard(text: &str) -> Result<(u32, u32), String> {
    let wrong = || format!("`{text}` is no shard; write 1/4 to 4/4");
    let (k, n) = text.split_once('/').ok_or_else(wrong)?;
    let (k, n) = (k.parse().map_err(|_| wrong())?, n.parse().map_err(|_| wrong())?);
    if k < 1 || k > n { Err(wrong()) } else { Ok((k, n)) }
}

#[derive(Debug, Args)]
pub(crate) struct Trace {
    /// Files that are PM, beside /mnt/pmem*/**, /dev/shm/**, /dev/dax* and those mapped with MAP_SYNC.
    ///
    /// May be given several times. A folder stands for everything below it; a relative glob is relative to the
    /// current folder.
    #[arg(long, value_name = "GLOB", action = ArgAction::Append)]
    pub(crate) pm: Vec<OsString>,

    /// Record loads of PM too
    #[arg(long)]
    pub(crate) loads: bool,

    /// Record what `pmvet race` looks at: loads of PM, atomic operations on volatile memory, allocations
    #[arg(long)]
    pub(crate) races: bool,

    /// Save all events to FILE, for `pmvet events`
    #[arg(long, value_name = "FILE")]
    pub(crate) save_trace: Option<PathBuf>,

    /// Rebuild each PM file from the events and compare it with the file at the end
    #[arg(long)]
    pub(crate) check_image: bool,

    /// Give every run the same addresses, time, random numbers and UUIDs
    #[arg(long)]
    pub(crate) deterministic: bool,

    /// Trace the processes that the program starts as well (the default)
    #[arg(long, overrides_with = "no_follow_forks")]
    pub(crate) follow_forks: bool,

    /// Trace the first process only
    #[arg(long, overrides_with = "follow_forks")]
    pub(crate) no_follow_forks: bool,

    /// Configuration [default: ./pmvet.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Format of the summary
    #[arg(long, value_enum, default_value_t = SummaryFormat::Human)]
    pub(crate) format: SummaryFormat,

    /// Write the summary to FILE instead of standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) summary: Option<PathBuf>,

    /// How many of the hottest sites the summary shows
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) top: usize,

    /// Run the program once more without pmvet, after the traced run, and print the slowdown.
    ///
    /// The program runs twice then, and its PM files see two runs. The second run reads the same standard input if that
    /// is a file, nothing otherwise, and its output is thrown away.
    #[arg(long)]
    pub(crate) measure_native: bool,

    /// Colours in the summary
    #[arg(long, value_enum, default_value_t = Color::Auto)]
    pub(crate) color: Color,

    /// Print nothing but errors of pmvet itself
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// Run under DynamoRIO alone, for benchmarks; prints only the time
    #[arg(long, hide = true)]
    pub(crate) bare: bool,

    /// The program and its arguments, passed on untouched
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Events {
    /// A trace saved by `pmvet trace --save-trace`
    pub(crate) file: PathBuf,

    /// Only events of these kinds, such as store,clwb,sfence
    #[arg(long, value_name = "KIND,..", value_delimiter = ',', value_parser = kinds::parse)]
    pub(crate) kind: Vec<usize>,

    /// Only events of these threads, by pmvet's numbers
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    pub(crate) thread: Vec<u32>,

    /// Only events that touch these addresses: hexadecimal, from A up to but not including B
    #[arg(long, value_name = "A..B", value_parser = parse_address_span)]
    pub(crate) range: Option<FilterSpan>,

    /// Only events on PM files whose path or name matches
    #[arg(long = "file", value_name = "GLOB", value_parser = parse_glob)]
    pub(crate) file_glob: Option<glob::Pattern>,

    /// Only events that touch these bytes of a PM file: decimal, or hexadecimal with 0x
    #[arg(long, value_name = "A..B", value_parser = parse_offset_span)]
    pub(crate) offset: Option<FilterSpan>,

    #[arg(long, value_enum, default_value_t = EventFormat::Text)]
    pub(crate) format: EventFormat,

    /// Stop after N events
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,

    /// Print the call stack of each event
    #[arg(long)]
    pub(crate) stacks: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    #[arg(long, value_enum, default_value_t = Color::Auto)]
    pub(crate) color: Color,
}

fn parse_glob(text: &str) -> Result<glob::Pattern, String> {
    glob::Pattern::new(text).map_err(|e| format!("bad glob `{text}`: {} at character {}", e.msg, e.pos))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    fn trace(arguments: &[&str]) -> Result<Trace, clap::Error> {
        let start = ["pmvet", "trace"].into_iter().chain(arguments.iter().copied());
        match Cli::try_parse_from(start)?.command {
            Command::Trace(trace) => Ok(*trace),
            other => panic!("{other:?}"),
        }
    }

    fn events(arguments: &[&str]) -> Result<Events, clap::Error> {
        match Cli::try_parse_from(["pmvet", "events", "t"].into_iter().chain(arguments.iter().copied()))?.command {
            Command::Events(events) => Ok(events),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        definition().debug_assert();
    }

    #[test]
    fn the_five_options_that_matter_come_first() {
        for (command, first) in FIRST {
            let mut definition = definition();
            let help = definition.find_subcommand_mut(command).unwrap().render_help().to_string();
            let (important, others) = help.split_once("More options:").unwrap();
            for option in first {
                let flag = format!("--{}", option.replace('_', "-"));
                let is_first = important.lines().any(|line| line.contains(&flag));
                assert!(is_first && !others.contains(&format!(" {flag} ")), "{command} {flag}: {help}");
            }
            assert!(important.matches("\n      --").count() + important.matches("\n  -").count() <= 6, "{important}");
        }
    }

    #[test]
    fn what_follows_the_dashes_is_untouched() {
        let mut words: Vec<OsString> = ["pmvet", "trace", "--loads", "--"].map(OsString::from).into();
        let target: Vec<OsString> = ["./p", "--help", "-j", "", "--", "--loads", "-V", "--pm=x", "a b"]
            .map(OsString::from)
            .into_iter()
            .chain([OsString::from_vec(vec![0xff, b'x', 0xfe])])
            .collect();
        words.extend(target.iter().cloned());
        let Command::Trace(trace) = Cli::try_parse_from(words).unwrap().command else { panic!() };
        assert_eq!(trace.command, target);
        assert!(trace.loads && trace.pm.is_empty());
    }

    #[test]
    fn a_program_is_needed() {
        assert!(trace(&[]).is_err());
        assert!(trace(&["--"]).is_err());
        assert!(trace(&["prog"]).is_err(), "the program follows --");
    }

    #[test]
    fn forks_are_followed_unless_told_otherwise() {
        assert!(!trace(&["--", "p"]).unwrap().no_follow_forks);
        assert!(trace(&["--no-follow-forks", "--", "p"]).unwrap().no_follow_forks);
        assert!(!trace(&["--no-follow-forks", "--follow-forks", "--", "p"]).unwrap().no_follow_forks);
    }

    #[test]
    fn repeated_globs_add_up() {
        assert_eq!(trace(&["--pm", "a", "--pm=b", "--", "p"]).unwrap().pm, ["a", "b"]);
    }

    #[test]
    fn filters_of_events() {
        let all =
            events(&["--kind", "store,clwb", "--kind", "load", "--thread", "1,3", "--range", "0x10..20"]).unwrap();
        let kinds = ["store", "clwb", "load"].map(|k| kinds::parse(k).unwrap());
        assert_eq!((all.kind, all.thread), (kinds.to_vec(), vec![1, 3]));
        assert!(all.range.is_some());
        for wrong in [["--kind", "x"], ["--range", "5"], ["--range", "9..1"], ["--file", "[a"], ["--thread", "x"]] {
            let error = events(&wrong).unwrap_err();
            assert_eq!(error.exit_code(), i32::from(Exit::Usage.code()), "{error}");
        }
    }

    #[test]
    fn help_and_version() {
        let help = Cli::try_parse_from(["pmvet", "trace", "--help"]).unwrap_err();
        assert!(help.to_string().contains("Exit codes:") && help.exit_code() == 0);
        let version = |flag| Cli::try_parse_from(["pmvet", flag]).unwrap_err().to_string();
        assert_eq!(version("-V"), format!("pmvet {}\n", env!("CARGO_PKG_VERSION")));
        let long = version("--version");
        assert!(long.starts_with(&format!("pmvet {} (commit ", env!("CARGO_PKG_VERSION"))), "{long}");
        let number = long.split("DynamoRIO ").nth(1).unwrap_or_default();
        assert!(number.starts_with(|c: char| c.is_ascii_digit()) && long.lines().count() == 1, "{long}");
    }
}
