//! Arguments of commands that share work among machines.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::{RUNS, Reporting};

/// Upper bound of the tasks, more than any scheduler accepts as one array.
const MOST_TASKS: i64 = 100_000;

#[derive(Debug, Args)]
pub(crate) struct Scatter {
    /// The command whose work is shared
    #[arg(long, value_enum, required_unless_present = "task")]
    pub(crate) engine: Option<ScatterEngine>,

    /// How many tasks share it
    #[arg(short = 'n', long, value_name = "N", required_unless_present = "task", value_parser = clap::value_parser!(u32).range(1..=MOST_TASKS))]
    pub(crate) tasks: Option<u32>,

    /// A new folder that all machines see under this path: the recording, the job script and the results of tasks
    #[arg(long, value_name = "DIR", default_value = ".pmvet/scatter")]
    pub(crate) shared: PathBuf,

    /// Record, write the job script, and show how to submit it
    #[arg(long, conflicts_with = "task")]
    pub(crate) dry_run: bool,

    /// An option for sbatch, such as --partition=pm; may be given several times
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true, conflicts_with_all = ["task", "kubernetes"])]
    pub(crate) sbatch: Vec<String>,

    /// Print a manifest for Kubernetes, an indexed Job, and submit nothing
    #[arg(long, conflicts_with_all = ["task", "dry_run"])]
    pub(crate) kubernetes: bool,

    /// For --kubernetes: the container image, which has pmvet and the program
    #[arg(long, value_name = "IMAGE", default_value = "pmvet:latest", requires = "kubernetes")]
    pub(crate) image: String,

    /// For --kubernetes: the claim of the volume that has the shared folder
    #[arg(long, value_name = "NAME", default_value = "pmvet", requires = "kubernetes")]
    pub(crate) claim: String,

    /// Do the part of this task, of work that was scattered; the job script does so. A task that was killed goes on where it was
    #[arg(long, value_name = "K", conflicts_with_all = ["engine", "tasks"], value_parser = clap::value_parser!(u32).range(1..=MOST_TASKS))]
    pub(crate) task: Option<u32>,

    /// Print nothing but what goes wrong, and what was asked for
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// What follows the command: the program and its arguments, or options, another --, and the program
    #[arg(last = true, value_name = "[OPTIONS --] PROGRAM [ARGS]", num_args = 0..)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ScatterEngine {
    Check,
    Verify,
    Fuzz,
}

impl ScatterEngine {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Verify => "verify",
            Self::Fuzz => "fuzz",
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Gather {
    /// The folder that the work was scattered to
    #[arg(value_name = "DIR", default_value = ".pmvet/scatter")]
    pub(crate) shared: PathBuf,

    /// Take what is there; without it, wait until every task is done or has failed
    #[arg(long)]
    pub(crate) no_wait: bool,

    /// Where the joined run is kept
    #[arg(long, value_name = "DIR", default_value = RUNS)]
    pub(crate) runs: PathBuf,

    /// For fuzz: where the test cases of all tasks are brought together [default: corpus in the shared folder]
    #[arg(long, short = 'o', value_name = "DIR")]
    pub(crate) corpus: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) reporting: Reporting,
}
