//! Runs an engine on one test case, in a worker process.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pmvet_engines::fuzz::case::Case;
use pmvet_engines::fuzz::runner::lay_out;
use pmvet_engines::fuzz::store::ImageStore;
use pmvet_target::sandbox::Overlay;
use pmvet_target::sparse;
use serde::{Deserialize, Serialize};

use crate::budget;
use crate::cli::{self, Then};
use crate::commands::check::{CheckEngine, CheckSettings};
use crate::commands::fuzz::base::BaseFiles;
use crate::commands::fuzz::start::INPUT;
use crate::commands::race::RaceEngine;
use crate::commands::verify::{VerifyEngine, VerifySettings};
use crate::config::Config;
use crate::driver::inner::{self, InnerReport};
use crate::driver::{Engine, Job, PreparedStart};
use crate::exit::Error;
use crate::recovery::{Recovering, failed};

/// Time limits of a run. Predictions come from a single recorded run, which may be slow and is worthless if it is cut short.
const BUDGET: Duration = Duration::from_secs(20);
const RACE_BUDGET: Duration = Duration::from_secs(40);

/// A test case for an engine.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CaseRun {
    pub(super) engine: Then,
    pub(super) case: Case,
    /// Where runs are kept for the campaign.
    #[serde(with = "pmvet_events::paths::as_text")]
    pub(super) folder: PathBuf,
    /// Where the image is.
    #[serde(with = "pmvet_events::paths::as_text")]
    pub(super) corpus: PathBuf,
    /// The PM files of the program.
    #[serde(with = "pmvet_events::paths::as_text")]
    pub(super) files: Vec<PathBuf>,
    /// Where the program finds its input, if not on standard input.
    #[serde(with = "pmvet_events::paths::as_text")]
    pub(super) input: Option<PathBuf>,
    /// The failure points that have been tried often enough, if they are to be left out.
    #[serde(with = "pmvet_events::paths::as_text")]
    pub(super) known_points: Option<PathBuf>,
}

/// What all runs of a worker share.
pub(super) struct CaseRuns<'a> {
    arguments: &'a cli::Fuzz,
    config: &'a Config,
    base: BaseFiles<'a>,
    reporting: cli::Reporting,
}

impl<'a> CaseRuns<'a> {
    /// In a worker process that has just begun.
    pub(super) fn new(arguments: &'a cli::Fuzz, config: &'a Config, pm: &[String]) -> Self {
        let base = BaseFiles::new(&arguments.workload, config, pm);
        Self { arguments, config, base, reporting: arguments.reporting.of_inner_runs() }
    }

    pub(super) fn make(&mut self, run: CaseRun) -> InnerReport {
        let budget = if run.engine == Then::Race { RACE_BUDGET } else { BUDGET };
        budget::for_job(budget, |started| match self.base.files() {
            Ok(files) => self.analyse(run, files, started).unwrap_or_else(|error| InnerReport::from(&error)),
            Err(nothing) => nothing,
        })
    }

    fn analyse(&self, run: CaseRun, mut files: Overlay, started: Instant) -> Result<InnerReport, Error> {
        lay_out_case(&run, &mut files).map_err(|e| failed("lay out", "a test case", e))?;
        // An input without a single operation promises nothing.
        let durable = match run.case.input.is_empty() {
            true => cli::Durable::default(),
            false => self.arguments.durable.clone(),
        };
        let word = |word: &OsString| match &run.input {
            // With `--durable`, the operations come from a file of the run.
            Some(path) if word == INPUT && !(durable.durable && run.engine != Then::Race) => path.clone().into(),
            _ => word.clone(),
        };
        let workload = cli::Workload {
            command: self.arguments.workload.command.iter().map(word).collect(),
            runs: run.folder,
            ..self.arguments.workload.clone()
        };
        // The campaign uses the other cores.
        let recovering = cli::Recovering { jobs: Some(1), ..cli::Recovering::default() };
        let recovering = Recovering::new(&recovering, &workload)?;
        let mut engine: Box<dyn Engine> = match run.engine {
            Then::Check => {
                let settings = CheckSettings::of_case(recovering, &durable, run.known_points, self.reporting.pedantic);
                Box::new(CheckEngine { settings })
            }
            Then::Race => Box::new(RaceEngine::predicting(&workload, self.config)),
            Then::Verify => {
                let settings = VerifySettings::by_default(recovering).with_contents(&durable);
                Box::new(VerifyEngine { settings })
            }
        };
        let job = Job {
            workload: &workload,
            reporting: &self.reporting,
            config: self.config.clone(),
            budget: None,
            require_complete: false,
            resumable: None,
            left_out: Vec::new(),
            given: Some(PreparedStart { files, input: run.case.input }),
        };
        Ok(inner::run(job, started, &mut [&mut *engine]))
    }
}

/// Puts the image and the input of a test case where the program looks for them.
fn lay_out_case(run: &CaseRun, files: &mut Overlay) -> io::Result<()> {
    let content = ImageStore::open_for_reading(&run.corpus)?.get(run.case.image)?;
    let input = Arc::new(sparse::input()?);
    input.write_all_at(&run.case.input, 0)?;
    lay_out(&run.files, run.input.as_deref(), files, &content, &input)
}
