//! Arguments of commands about earlier runs and their findings.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::common::{ChosenRun, Color, RUNS, Reporting};

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// Which finding: its number, the start of its fingerprint, or its token
    pub(crate) id: String,

    #[command(flatten)]
    pub(crate) chosen: ChosenRun,

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
    pub(crate) chosen: ChosenRun,

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
    #[arg(long, value_name = "DIR", default_value = RUNS)]
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
    #[arg(long, value_name = "DIR", default_value = RUNS)]
    pub(crate) runs: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// Which finding: its number, the start of its fingerprint, or its token
    pub(crate) id: String,

    #[command(flatten)]
    pub(crate) chosen: ChosenRun,

    /// Write the crash image to FILE (FILE.1, FILE.2, ... if there are several PM files)
    #[arg(long, value_name = "FILE")]
    pub(crate) keep_image: Option<PathBuf>,

    /// Stop in the recovery with the debugger
    #[arg(long)]
    pub(crate) gdb: bool,
}
