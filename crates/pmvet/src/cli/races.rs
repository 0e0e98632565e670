//! Arguments of `race`.

use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};

use super::common::{Reporting, Workload, parse_time};
use super::crashes::Durable;

#[derive(Debug, Args)]
pub(crate) struct Race {
    #[command(flatten)]
    pub(crate) workload: Workload,

    #[command(flatten)]
    pub(crate) confirm: Confirm,

    #[command(flatten)]
    pub(crate) durable: Durable,

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
