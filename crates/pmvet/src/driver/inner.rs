//! Inner runs, the parts of a campaign: a job for some engines whose results go to the campaign instead of the user.

use std::path::PathBuf;
use std::time::Instant;

use pmvet_findings::Finding;
use serde::{Deserialize, Serialize};

use super::{Engine, Job, Prepared, results, work};
use crate::exit::{Error, Exit};
use crate::reporting;

/// The result of an inner run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct InnerReport {
    pub(crate) end: InnerEnd,
    /// The run's folder, if one was made.
    #[serde(with = "pmvet_events::paths::as_text")]
    pub(crate) folder: Option<PathBuf>,
    pub(crate) findings: Vec<Finding>,
    /// What the engines left untried, in their words.
    pub(crate) not_covered: Vec<String>,
}

/// How far an inner run came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum InnerEnd {
    /// The engines tried everything that they were asked to try, or not.
    Analysed { complete: bool },
    /// There is nothing to report on, and the engines have said why.
    NothingAnalysed(Exit),
    /// pmvet failed.
    Failed(Exit, String),
}

impl InnerReport {
    /// There is nothing to report on, and the user has been told why.
    pub(crate) fn nothing(exit: Exit) -> Self {
        Self::without_results(InnerEnd::NothingAnalysed(exit))
    }

    fn without_results(end: InnerEnd) -> Self {
        Self { end, folder: None, findings: Vec::new(), not_covered: Vec::new() }
    }
}

impl From<&Error> for InnerReport {
    fn from(error: &Error) -> Self {
        Self::without_results(InnerEnd::Failed(error.exit(), error.to_string()))
    }
}

/// Records the workload and runs the engines on it, in a process that already has its sandbox and its budget. Findings are kept in the
/// run's folder, to which their tokens lead.
pub(crate) fn run(job: Job<'_>, started: Instant, engines: &mut [&mut dyn Engine]) -> InnerReport {
    tried(job, started, engines).unwrap_or_else(|error| InnerReport::from(&error))
}

fn tried(mut job: Job<'_>, started: Instant, engines: &mut [&mut dyn Engine]) -> Result<InnerReport, Error> {
    let prepared = Prepared::new(&job, engines)?;
    let (mut session, reports) = match work(&mut job, prepared, started, engines)? {
        Ok(done) => done,
        Err(exit) => return Ok(InnerReport::nothing(exit)),
    };
    let folder = session.folder.clone();
    let (results, least) = results(&mut session, reports);
    let complete = results.info.complete;
    let run = reporting::keep(results, job.reporting, &reporting::sources())?;
    let mut not_covered = run.coverage.not_covered;
    not_covered.extend(folder.take_unsaved().iter().map(ToString::to_string));
    let end = match least {
        Exit::Ok => InnerEnd::Analysed { complete },
        exit => InnerEnd::NothingAnalysed(exit),
    };
    Ok(InnerReport { end, folder: Some(folder.path), findings: run.findings, not_covered })
}
