//! Arguments of `fuzz`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::common::{Reporting, Workload, parse_time};
use super::crashes::Durable;

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("instead").args(["rebuild", "paths_of", "cmin", "tmin"])))]
// Options only for campaigns with a fork server: turns of --interleave are runs of `pmvet race`, and the "instead" options make no test
// cases.
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

    #[command(flatten)]
    pub(crate) durable: Durable,

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
