//! The command line. Its types hold what the user typed; `config` and the commands turn them into plain settings.
//!
//! This file has the commands; their arguments are in one file per kind of command.

mod common;
mod crashes;
mod findings;
mod fuzzing;
mod housekeeping;
mod machines;
mod races;
mod tracing;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub(crate) use self::common::{
    ChosenRun, Color, FailOn, Persistency, RUNS, Recovering, Reporting, SummaryFormat, Workload, parse_time,
};
pub(crate) use self::crashes::{
    CRASHED_RECOVERIES, Check, CrashAt, Durability, Durable, PATIENCE_EXECUTIONS, REORDER_STATES, Verify, Vet,
};
pub(crate) use self::findings::{Diff, Explain, Merge, Replay, Report, Show};
pub(crate) use self::fuzzing::{Fuzz, Then};
pub(crate) use self::housekeeping::{
    Baseline, BaselineAction, BaselineFile, Generate, GenerateWhat, Init, Runs, Suppress,
};
pub(crate) use self::machines::{Gather, Scatter, ScatterEngine};
pub(crate) use self::races::{Confirm, Race, RaceSwitch};
pub(crate) use self::tracing::{Doctor, EventFormat, Events, Trace};
use crate::exit::Exit;

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

/// Parses what the user typed. Ends the process with a message if it is wrong or asks for help.
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

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use super::*;
    use crate::kinds;

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
