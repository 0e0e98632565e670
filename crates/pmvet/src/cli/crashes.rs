//! Arguments of the commands that crash the program: `check`, `verify` and `vet`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::common::{Recovering, Reporting, Workload, parse_shard};

/// Reordered crashes to try at one failure point, by `check` by default and by `vet`.
pub(crate) const REORDER_STATES: u32 = 256;

/// Recoveries to record and crash, by `check` by default and by `vet`.
pub(crate) const CRASHED_RECOVERIES: u32 = 6;

/// Executions after one crash before choices that seem to make no difference are left out, by `verify` by default and by `vet`.
pub(crate) const PATIENCE_EXECUTIONS: u64 = 1000;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Durability {
    /// Nothing: each is there after the crash
    #[default]
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

/// How contents are compared with what was acknowledged.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Durable {
    /// Ask of each crash whether the operations that were acknowledged by then are still there. Operations are the lines of
    /// standard input; the program may also read them from a file, which @@ stands for in its arguments. Those of a server are
    /// what its --client asks (`check` only)
    #[arg(long, conflicts_with = "in_place")]
    pub(crate) durable: bool,

    /// For --durable: prints what the recovered files hold, a line for each thing [default: the program itself is asked once
    /// more what the input asks, as far as that changes nothing]
    #[arg(long, value_name = "CMD", requires = "durable")]
    pub(crate) dump: Option<String>,

    /// The order of the dump's lines means nothing
    #[arg(long, requires = "durable")]
    pub(crate) dump_sort: bool,

    /// What a crash may do to acknowledged operations
    #[arg(long, value_enum, default_value_t, requires = "durable")]
    pub(crate) durability: Durability,
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

    #[command(flatten)]
    pub(crate) durable: Durable,

    /// For --durable and a server: prints what the recovered server holds, a line for each thing, by asking it
    #[arg(
        long,
        value_name = "CMD",
        requires = "durable",
        requires = "client",
        conflicts_with_all = ["recover_client", "dump"]
    )]
    pub(crate) dump_client: Option<String>,

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
pub(crate) struct Verify {
    #[command(flatten)]
    pub(crate) workload: Workload,

    #[command(flatten)]
    pub(crate) recovering: Recovering,

    #[command(flatten)]
    pub(crate) durable: Durable,

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
