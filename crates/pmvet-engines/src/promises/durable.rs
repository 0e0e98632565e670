//! `--durable`: what the program promised to keep, and the judge of whether a crash has kept it.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use pmvet_events::plan::OperationsFrom;
use pmvet_target::Workload;
use pmvet_target::sandbox::driver::Driver;

use super::connections::RequestedOperations;
use super::content::ContentMask;
use super::judge::{ContentJudge, ContentRules, DrivenCommand, OperationSource, ReferenceRuns};
use super::{Acknowledgement, Indistinct, OperationSigns, Promise, Promises};
use crate::lab::{LabError, PATIENCE, Promised};

/// How contents are shown and compared.
#[derive(Debug, Clone)]
pub struct DurablePlan {
    /// Shows what the files hold. Nothing: the recovery does, or the client of the recovered server.
    pub dump: Option<Vec<OsString>>,
    /// The questions that the dump answers, if it shows the content that way.
    pub asked: Vec<String>,
    /// How many more questions are not asked.
    pub not_asked: usize,
    /// A recovery runs before the dump.
    pub recovers_first: bool,
    /// How contents are compared.
    pub rules: ContentRules,
}

/// The operations of the recorded run, as seen from outside.
#[derive(Debug, Clone)]
pub enum OperationLog {
    /// The lines of its input.
    Lines(Vec<String>),
    /// It is a server: its operations are what this client asked before the event with this number.
    Requests {
        /// How the server is driven.
        server: Arc<Driver>,
        /// The first event after the client was done. Nothing: all requests come from it.
        client_done: Option<u64>,
    },
}

/// How a run was split into operations, for the report.
#[derive(Debug, Clone)]
pub struct OperationsSeen {
    /// How many operations there were.
    pub operations: usize,
    /// How to tell that one was done.
    pub acknowledged_by: Acknowledgement,
    /// Contents that crash images were compared with.
    pub contents: usize,
    /// Crash images that could not be judged: too many operations were under way, or some at the same time on one thing.
    pub not_judged: usize,
    /// How many questions show a content, if questions show it.
    pub questions: usize,
    /// How many more questions are not asked.
    pub questions_left: usize,
    /// Lines of the dump that differ between runs without a crash.
    pub masked: Vec<String>,
}

impl OperationsSeen {
    pub(crate) fn new(acknowledged_by: Acknowledgement, judge: &ContentJudge) -> Self {
        Self {
            operations: judge.operations().len(),
            acknowledged_by,
            contents: judge.contents(),
            not_judged: judge.not_judged(),
            questions: judge.asked.len(),
            questions_left: judge.not_asked,
            masked: judge.mask().masked(),
        }
    }
}

/// What the recorded run promised. `recovery` is how it recovers; `journal` caches contents.
pub(crate) fn promised(
    plan: &DurablePlan,
    recovery: DrivenCommand,
    workload: &Workload,
    signs: &OperationSigns,
    log: OperationLog,
    journal: &Path,
) -> Result<Result<(Promised, Acknowledgement), Indistinct>, LabError> {
    let (source, lines, several, told) = match log {
        OperationLog::Requests { server, client_done } => match signs.requested(client_done) {
            Ok(RequestedOperations { requests, texts, several, promises, how }) => {
                (OperationSource::Requests(requests, server), texts, several, (promises, how))
            }
            Err(why) => return Ok(Err(why)),
        },
        OperationLog::Lines(lines) => {
            let told = match signs.promises(&lines.iter().map(String::as_str).collect::<Vec<_>>()) {
                Ok(told) => told,
                Err(why) => return Ok(Err(why)),
            };
            (line_source(workload), lines, Default::default(), told)
        }
    };
    let (promises, how) = told;
    let references = plan.references(recovery, workload, source);
    let dump = plan.dump.clone().filter(|_| plan.recovers_first);
    let judge = ContentJudge::new(lines, plan.rules, ContentMask::default(), dump, Some(references), journal)
        .map_err(|source| LabError::Journal { path: journal.into(), source })?
        .with_several(several)
        .with_asked(plan.asked.clone(), plan.not_asked);
    Ok(Ok((Promised { promises: Arc::new(promises), judge: Arc::new(judge) }, how)))
}

/// Where a program other than a server reads its operations.
fn line_source(workload: &Workload) -> OperationSource {
    match &workload.operations {
        Some(OperationsFrom::File(path)) => OperationSource::File(path.clone()),
        _ => OperationSource::Input,
    }
}

impl DurablePlan {
    /// Native runs of a workload that recovers by this command.
    fn references(&self, recovery: DrivenCommand, workload: &Workload, source: OperationSource) -> ReferenceRuns {
        let shows = |dump: &[OsString]| DrivenCommand { command: dump.to_vec(), driver: None };
        let (first, last) = match &self.dump {
            Some(dump) if self.recovers_first => (Some(recovery), shows(dump)),
            Some(dump) => (None, shows(dump)),
            None => (None, recovery),
        };
        ReferenceRuns::new(workload, source, first, last, PATIENCE)
    }
}

/// How contents of an earlier run were compared.
#[derive(Debug, Clone)]
pub struct KeptComparison {
    /// Shows the content of a recovered image, if the recovery itself does not.
    pub dump: Option<Vec<OsString>>,
    /// The questions that the dump answers, if it shows the content that way.
    pub asked: Vec<String>,
    /// How they were compared.
    pub rules: ContentRules,
    /// What that run learned not to compare.
    pub mask: ContentMask,
    /// The operations of the run.
    pub lines: Vec<String>,
}

/// Asks of a crash image whether it keeps this promise of an earlier run, by the contents in that run's `journal`.
pub fn promised_again(kept: KeptComparison, promise: &Promise, journal: &Path) -> Result<Promised, LabError> {
    again(kept, promise, None, journal)
}

/// The same, also for other runs of this workload: native runs find what is not in the journal. `recovery` is how it recovers.
pub fn promised_by(
    workload: &Workload,
    recovery: Vec<OsString>,
    kept: KeptComparison,
    promise: &Promise,
    journal: &Path,
) -> Result<Promised, LabError> {
    let (dump, asked, rules) = (kept.dump.clone(), kept.asked.clone(), kept.rules);
    let plan = DurablePlan { recovers_first: dump.is_some(), dump, asked, not_asked: 0, rules };
    let recovery = DrivenCommand { command: recovery, driver: None };
    let references = plan.references(recovery, workload, line_source(workload));
    again(kept, promise, Some(references), journal)
}

fn again(
    kept: KeptComparison,
    promise: &Promise,
    references: Option<ReferenceRuns>,
    journal: &Path,
) -> Result<Promised, LabError> {
    let KeptComparison { dump, asked, rules, mask, lines } = kept;
    let judge = ContentJudge::new(lines, rules, mask, dump, references, journal)
        .map_err(|source| LabError::Journal { path: journal.into(), source })?
        .with_asked(asked, 0);
    Ok(Promised { promises: Arc::new(Promises::only(promise.clone())), judge: Arc::new(judge) })
}
