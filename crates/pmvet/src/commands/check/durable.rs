//! `--durable`: what the program promised to keep, and how that is looked at.

use std::ffi::OsString;
use std::sync::Arc;

use pmvet_engines::lab::{PATIENCE, Promised};
use pmvet_engines::promises::content::ContentMask;
use pmvet_engines::promises::judge::{ContentJudge, ContentRules, Incomparable, ReferenceRuns};
use pmvet_engines::promises::{Acknowledgement, Indistinct, Promise, Promises, operations};
use pmvet_events::plan::OperationsFrom;
use pmvet_target::{Workload, sandbox};

use super::analysis::CheckAnalysis;
use crate::budget;
use crate::cli::{self, Durability};
use crate::exit::{Error, Exit};
use crate::recovery::failed;
use crate::run_folder::{DurableInfo, RunFolder, texts, words};

/// In the folder of a run: contents that operations lead to.
pub(crate) const CONTENTS: &str = "contents.jsonl";

/// What the command line says about it.
#[derive(Debug, Clone)]
pub(super) struct DurableSettings {
    dump: Vec<OsString>,
    /// The user named a recovery, which runs before the dump.
    recovers_first: bool,
    sort: bool,
    buffered: bool,
}

impl DurableSettings {
    pub(super) fn new(arguments: &cli::Check) -> Option<Self> {
        let dump = arguments.dump.as_deref().filter(|_| arguments.durable)?;
        Some(Self {
            dump: sandbox::shell(dump),
            recovers_first: arguments.recovering.recover.is_some(),
            sort: arguments.dump_sort,
            buffered: arguments.durability == Durability::Buffered,
        })
    }
}

/// How a run was cut into operations, for the report.
#[derive(Debug, Clone, Default)]
pub(super) struct OperationsSeen {
    pub(super) operations: usize,
    pub(super) contents: usize,
    /// What they are called: how it is known that one was acknowledged.
    pub(super) name: &'static str,
    pub(super) not_judged: usize,
    pub(super) masked: Vec<String>,
}

/// What the recorded run promised. If that cannot be told, how pmvet ends.
pub(super) fn promised(
    settings: &DurableSettings,
    recovery: Vec<OsString>,
    workload: &Workload,
    analysis: &CheckAnalysis,
    folder: &RunFolder,
) -> Result<Result<(Promised, OperationsSeen), Exit>, Error> {
    let input = kept_input(folder)?;
    let lines = operations(&input);
    let (promises, how) = match analysis.signs.promises(&lines) {
        Ok(promises) => promises,
        Err(why) => return Ok(Err(indistinct(why))),
    };
    let rules = ContentRules { sort: settings.sort, buffered: settings.buffered };
    let file = match &workload.operations {
        Some(OperationsFrom::File(path)) => Some(path.clone()),
        _ => None,
    };
    let first = settings.recovers_first.then_some(recovery);
    let references = ReferenceRuns::new(workload, file, first, settings.dump.clone(), PATIENCE);
    let dump = settings.recovers_first.then(|| settings.dump.clone());
    let operations = lines.iter().map(|line| (*line).to_owned()).collect();
    let journal = folder.file(CONTENTS);
    let judge = ContentJudge::new(operations, rules, ContentMask::default(), dump, Some(references), &journal)
        .map_err(|e| crate::recovery::journal_damaged(&journal, e))?;
    let seen = OperationsSeen {
        operations: lines.len(),
        name: match how {
            Acknowledgement::Answer => "operations (acknowledged by an answer each)",
            Acknowledgement::Output => "operations (acknowledged by the next output)",
            Acknowledgement::NextRead => "operations (nothing is printed: acknowledged by the next read)",
            Acknowledgement::Marker => "operations (acknowledged by PMVET_OP_END)",
        },
        ..OperationsSeen::default()
    };
    Ok(Ok((Promised { promises: Arc::new(promises), judge: Arc::new(judge) }, seen)))
}

/// The input that the run has kept.
fn kept_input(folder: &RunFolder) -> Result<String, Error> {
    let bytes = std::fs::read(folder.file("input")).map_err(|e| failed("read", "the operations", e))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What a replay needs to know.
pub(super) fn describe(judge: &ContentJudge) -> DurableInfo {
    DurableInfo { dump: judge.dump.as_deref().map(texts), rules: judge.rules, mask: judge.mask().clone() }
}

/// Judges a crash image of an earlier run again, by the contents that the run has kept.
pub(crate) fn again(info: &DurableInfo, promise: &Promise, folder: &RunFolder) -> Result<Promised, Error> {
    let input = kept_input(folder)?;
    let lines = operations(&input).into_iter().map(str::to_owned).collect();
    let DurableInfo { dump, rules, mask } = info.clone();
    let journal = folder.file(CONTENTS);
    let judge = ContentJudge::new(lines, rules, mask, dump.as_deref().map(words), None, &journal)
        .map_err(|e| crate::recovery::journal_damaged(&journal, e))?;
    Ok(Promised { promises: Arc::new(Promises::only(promise.clone())), judge: Arc::new(judge) })
}

/// What to say if operations cannot be told apart.
fn indistinct(why: Indistinct) -> Exit {
    let why = match why {
        Indistinct::NoOperations => "there are none on standard input".to_owned(),
        Indistinct::NotRead => "the program does not read them with `read`".into(),
        Indistinct::ReadAtOnce => "the program reads all of them before it changes anything in PM".into(),
        Indistinct::Markers(markers, lines) => format!(
            "{markers} of them begin by PMVET_OP_BEGIN, but the input has {lines} lines; each marker names its line, or nothing"
        ),
    };
    eprintln!(
        "pmvet: nothing was analysed: operations cannot be told apart: {why}. Mark them in the program: \
         PMVET_OP_BEGIN(line) and PMVET_OP_END(line) of pmvet.h, around each"
    );
    Exit::NothingAnalysed
}

/// Sees that contents can be compared. `recorded` is what the image shows that the recorded run left. If they cannot, how pmvet ends.
pub(super) fn calibrate(judge: &ContentJudge, recorded: Option<&str>) -> Result<Option<Exit>, Error> {
    let why = match judge.calibrate(recorded).map_err(|e| failed("run", "the dump", e))? {
        Ok(()) => return Ok(None),
        Err(why) => why,
    };
    let (text, lines) = match why {
        Incomparable::Interrupted => {
            return Ok(Some(budget::did_not_end("the first dumps").unwrap_or(Exit::Interrupted)));
        }
        Incomparable::Fails(operations, what, exit) => {
            (format!("with the first {operations} operations and no fault injected, {what} fails: {exit}"), Vec::new())
        }
        Incomparable::ChangedByRestart(lines) => {
            ("the dump shows another content when it is run again, although nothing was injected".into(), lines)
        }
        Incomparable::ChangedByRecording(lines) => (
            "the dump shows something else after the recorded run than after a native one of the same operations; \
             contents that depend on chance cannot be compared"
                .into(),
            lines,
        ),
    };
    eprintln!("pmvet: {text}");
    lines.iter().for_each(|line| eprintln!("  {line}"));
    Ok(Some(Exit::TargetFailed))
}
