//! One turn of an input, in a worker process: a run is recorded, schedules are forced, and recovery judges.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pmvet_engines::alias_coverage::Covered;
use pmvet_target::sandbox::Overlay;
use serde::{Deserialize, Serialize};

use crate::budget;
use crate::cli;
use crate::commands::fuzz::base::BaseFiles;
use crate::commands::fuzz::start::INPUT;
use crate::commands::race::{Explored, RaceEngine};
use crate::config::Config;
use crate::driver::inner::{self, InnerReport};
use crate::driver::{Job, PreparedStart};

/// How many runs are forced in one turn, at most.
const ROUNDS: u32 = 8;

/// One turn: an input, and what the worker needs for it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Turn {
    /// The folder for all that the turn writes. Holds the input, if the program reads it from a file.
    #[serde(with = "pmvet_events::paths::as_text")]
    pub(super) folder: PathBuf,
    pub(super) input: Vec<u8>,
    pub(super) time: Duration,
    /// What the campaign has covered since the worker's last turn.
    pub(super) news: Covered,
}

/// The result of a turn.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TurnReport {
    /// What its runs have covered. Nothing if none was forced.
    pub(super) explored: Option<Explored>,
    pub(super) run: InnerReport,
}

/// What all turns of a worker share.
pub(super) struct Turns<'a> {
    arguments: &'a cli::Fuzz,
    config: &'a Config,
    base: BaseFiles<'a>,
    reporting: cli::Reporting,
    /// What the campaign has covered, as far as this worker knows.
    known: Covered,
}

impl<'a> Turns<'a> {
    /// In a worker process that has just begun.
    pub(super) fn new(arguments: &'a cli::Fuzz, config: &'a Config, pm: &[String]) -> Self {
        let base = BaseFiles::new(&arguments.workload, config, pm);
        Self { arguments, config, base, reporting: arguments.reporting.of_inner_runs(), known: Covered::default() }
    }

    pub(super) fn make(&mut self, mut turn: Turn) -> TurnReport {
        self.known.add(std::mem::take(&mut turn.news));
        budget::for_job(turn.time, |started| match self.base.files() {
            Ok(files) => self.explore(turn, files, started),
            Err(run) => TurnReport { explored: None, run },
        })
    }

    fn explore(&self, turn: Turn, files: Overlay, started: Instant) -> TurnReport {
        let arguments = self.arguments;
        let file = turn.folder.join("input");
        // An input without a single operation promises nothing. Otherwise the operations come from a file of the run.
        let durable = match turn.input.is_empty() {
            true => cli::Durable::default(),
            false => arguments.durable.clone(),
        };
        let word = |word: &OsString| if word == INPUT && !durable.durable { file.clone().into() } else { word.clone() };
        let workload = cli::Workload {
            command: arguments.workload.command.iter().map(word).collect(),
            runs: turn.folder.join("runs"),
            ..arguments.workload.clone()
        };
        let confirm = cli::Confirm {
            confirm: true,
            rounds: ROUNDS,
            delay_injection: arguments.delay_injection,
            recover: arguments.recover.clone(),
            oracle: arguments.oracle.clone(),
            // Other workers have the other cores.
            jobs: (arguments.jobs > 1).then_some(1),
            budget: Some(turn.time),
            ..cli::Confirm::default()
        };
        let races = RaceEngine::exploring(confirm, self.known.clone(), &workload, self.config);
        let mut races = races.with_contents(&durable);
        let job = Job {
            workload: &workload,
            reporting: &self.reporting,
            config: self.config.clone(),
            budget: Some(turn.time),
            require_complete: false,
            resumable: None,
            left_out: Vec::new(),
            given: Some(PreparedStart { files, input: turn.input }),
        };
        let run = inner::run(job, started, &mut [&mut races]);
        TurnReport { explored: races.take_explored(), run }
    }
}
