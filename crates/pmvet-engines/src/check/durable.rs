//! `--durable`: what the program promised to keep, and who says whether a crash has kept it.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use pmvet_events::plan::OperationsFrom;
use pmvet_target::Workload;
use pmvet_target::sandbox::driver::Driver;

use crate::lab::{LabError, PATIENCE, Promised, RecoveryPlan};
use crate::promises::connections::RequestedOperations;
use crate::promises::content::ContentMask;
use crate::promises::judge::{ContentJudge, ContentRules, DrivenCommand, OperationSource, ReferenceRuns};
use crate::promises::{Acknowledgement, Indistinct, OperationSigns, Promise, Promises};

/// How contents are shown and compared.
#[derive(Debug, Clone)]
pub struct DurablePlan {
    /// Shows what the files hold. Nothing: the recovery does, or whoever talks to the recovered server.
    pub dump: Option<Vec<OsString>>,
    /// A recovery runs before the dump.
    pub recovers_first: bool,
    pub rules: ContentRules,
}

/// The operations of the recorded run, as far as they are known from outside.
#[derive(Debug, Clone)]
pub enum OperationLog {
    /// The lines of its input.
    Lines(Vec<String>),
    /// It is a server: its operations are what this client asked before the event with this number.
    Requests { server: Arc<Driver>, client_done: Option<u64> },
}

/// How a run was cut into operations, for the report.
#[derive(Debug, Clone)]
pub struct OperationsSeen {
    pub operations: usize,
    /// How it is known that one was done.
    pub acknowledged_by: Acknowledgement,
    /// Contents that crash images were compared with.
    pub contents: usize,
    /// Crash images with too many operations under way.
    pub not_judged: usize,
    /// Lines of the dump that differ between runs without a crash.
    pub masked: Vec<String>,
}

impl OperationsSeen {
    pub(super) fn new(acknowledged_by: Acknowledgement, judge: &ContentJudge) -> Self {
        Self {
            operations: judge.operations().len(),
            acknowledged_by,
            contents: judge.contents(),
            not_judged: judge.not_judged(),
            masked: judge.mask().masked(),
        }
    }
}

/// What the recorded run promised. `journal` is where contents are kept.
pub(super) fn promised(
    plan: &DurablePlan,
    recovery: &RecoveryPlan,
    workload: &Workload,
    signs: &OperationSigns,
    log: OperationLog,
    journal: &Path,
) -> Result<Result<(Promised, Acknowledgement), Indistinct>, LabError> {
    let (source, lines, unclear, told) = match log {
        OperationLog::Requests { server, client_done } => match signs.requested(client_done) {
            Ok(RequestedOperations { requests, texts, several, spans, promises, how }) => {
                (OperationSource::Requests(requests, server), texts, (several, spans), (promises, how))
            }
            Err(why) => return Ok(Err(why)),
        },
        OperationLog::Lines(lines) => {
            let told = match signs.promises(&lines.iter().map(String::as_str).collect::<Vec<_>>()) {
                Ok(told) => told,
                Err(why) => return Ok(Err(why)),
            };
            let source = match &workload.operations {
                Some(OperationsFrom::File(path)) => OperationSource::File(path.clone()),
                _ => OperationSource::Input,
            };
            (source, lines, Default::default(), told)
        }
    };
    let (promises, how) = told;
    let shows = |dump: &[OsString]| DrivenCommand { command: dump.to_vec(), driver: None };
    let recovers = || DrivenCommand { command: recovery.command.clone(), driver: recovery.driver.clone() };
    let (first, last) = match &plan.dump {
        Some(dump) if plan.recovers_first => (Some(recovers()), shows(dump)),
        Some(dump) => (None, shows(dump)),
        None => (None, recovers()),
    };
    let references = ReferenceRuns::new(workload, source, first, last, PATIENCE);
    let dump = plan.dump.clone().filter(|_| plan.recovers_first);
    let judge = ContentJudge::new(lines, plan.rules, ContentMask::default(), dump, Some(references), journal)
        .map_err(|source| LabError::Journal { path: journal.into(), source })?
        .of_requests(unclear.0, unclear.1);
    Ok(Ok((Promised { promises: Arc::new(promises), judge: Arc::new(judge) }, how)))
}

/// How contents of an earlier run were compared.
#[derive(Debug, Clone)]
pub struct KeptComparison {
    /// Shows the content of a recovered image, if the recovery itself does not.
    pub dump: Option<Vec<OsString>>,
    pub rules: ContentRules,
    pub mask: ContentMask,
    /// The operations of the run.
    pub lines: Vec<String>,
}

/// Asks of a crash image whether it keeps this promise of an earlier run, by the contents in that run's `journal`.
pub fn promised_again(kept: KeptComparison, promise: &Promise, journal: &Path) -> Result<Promised, LabError> {
    let KeptComparison { dump, rules, mask, lines } = kept;
    let judge = ContentJudge::new(lines, rules, mask, dump, None, journal)
        .map_err(|source| LabError::Journal { path: journal.into(), source })?;
    Ok(Promised { promises: Arc::new(Promises::only(promise.clone())), judge: Arc::new(judge) })
}
