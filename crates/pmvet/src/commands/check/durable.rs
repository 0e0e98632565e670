//! `--durable`: what the program promised to keep, and how that is looked at.

use std::ffi::OsString;
use std::sync::Arc;

use pmvet_engines::lab::{PATIENCE, Promised};
use pmvet_engines::promises::connections::RequestedOperations;
use pmvet_engines::promises::content::ContentMask;
use pmvet_engines::promises::judge::{
    ContentJudge, ContentRules, DrivenCommand, Incomparable, OperationSource, ReferenceRuns,
};
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
/// The same: what the clients of a server asked.
const REQUESTS: &str = "requests.json";

/// What the command line says about it.
#[derive(Debug, Clone)]
pub(super) struct DurableSettings {
    /// Shows what the files hold. Nothing: whoever talks to the recovered server does.
    dump: Option<Vec<OsString>>,
    /// A recovery that the user named, or a server, runs before the dump.
    recovers_first: bool,
    sort: bool,
    buffered: bool,
}

impl DurableSettings {
    pub(super) fn new(arguments: &cli::Check) -> Option<Self> {
        let dump = arguments.dump.as_deref().map(sandbox::shell);
        let is_server = arguments.workload.client.is_some();
        arguments.durable.then(|| Self {
            recovers_first: dump.is_some() && (arguments.recovering.recover.is_some() || is_server),
            dump,
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
    recovery: DrivenCommand,
    workload: &Workload,
    analysis: &CheckAnalysis,
    folder: &RunFolder,
    client_done: Option<u64>,
) -> Result<Result<(Promised, OperationsSeen), Exit>, Error> {
    let (source, lines, unclear, told) = match workload.operations.as_ref().zip(workload.driver.as_ref()) {
        Some((OperationsFrom::Connections, server)) => match analysis.signs.requested(client_done) {
            Ok(RequestedOperations { requests, texts, several, spans, promises, how }) => {
                folder.write_json(REQUESTS, &texts)?;
                let source = OperationSource::Requests(requests, Arc::clone(server));
                (source, texts, (several, spans), (promises, how))
            }
            Err(why) => return Ok(Err(indistinct(why))),
        },
        _ => {
            let lines = kept_lines(folder)?;
            let told = match analysis.signs.promises(&lines.iter().map(String::as_str).collect::<Vec<_>>()) {
                Ok(told) => told,
                Err(why) => return Ok(Err(indistinct(why))),
            };
            let source = match &workload.operations {
                Some(OperationsFrom::File(path)) => OperationSource::File(path.clone()),
                _ => OperationSource::Input,
            };
            (source, lines, Default::default(), told)
        }
    };
    let (promises, how) = told;
    let rules = ContentRules { sort: settings.sort, buffered: settings.buffered };
    let shows = |dump: &[OsString]| DrivenCommand { command: dump.to_vec(), driver: None };
    let dump = settings.dump.clone().filter(|_| settings.recovers_first);
    let (first, last) = match &settings.dump {
        Some(dump) if settings.recovers_first => (Some(recovery), shows(dump)),
        Some(dump) => (None, shows(dump)),
        None => (None, recovery),
    };
    let references = ReferenceRuns::new(workload, source, first, last, PATIENCE);
    let journal = folder.file(CONTENTS);
    let count = lines.len();
    let judge = ContentJudge::new(lines, rules, ContentMask::default(), dump, Some(references), &journal)
        .map_err(|e| crate::recovery::journal_damaged(&journal, e))?
        .of_requests(unclear.0, unclear.1);
    let seen = OperationsSeen {
        operations: count,
        name: match how {
            Acknowledgement::Answer => "operations (acknowledged by an answer each)",
            Acknowledgement::Output => "operations (acknowledged by the next output)",
            Acknowledgement::NextRead => "operations (nothing is printed: acknowledged by the next read)",
            Acknowledgement::Marker => "operations (acknowledged by PMVET_OP_END)",
            Acknowledgement::Reply => "requests (acknowledged by a reply each)",
            Acknowledgement::WholeReply => "requests (acknowledged when all of a reply is written)",
        },
        ..OperationsSeen::default()
    };
    Ok(Ok((Promised { promises: Arc::new(promises), judge: Arc::new(judge) }, seen)))
}

/// The operations that the run has kept: a server's requests, or the lines of its input.
fn kept_lines(folder: &RunFolder) -> Result<Vec<String>, Error> {
    let failed = |e| failed("read", "the operations", e);
    if let Ok(requests) = std::fs::read(folder.file(REQUESTS)) {
        return serde_json::from_slice(&requests).map_err(|e| failed(e.into()));
    }
    let bytes = std::fs::read(folder.file("input")).map_err(failed)?;
    Ok(operations(&String::from_utf8_lossy(&bytes)).into_iter().map(str::to_owned).collect())
}

/// What a replay needs to know.
pub(super) fn describe(judge: &ContentJudge) -> DurableInfo {
    DurableInfo { dump: judge.dump.as_deref().map(texts), rules: judge.rules, mask: judge.mask().clone() }
}

/// Judges a crash image of an earlier run again, by the contents that the run has kept.
pub(crate) fn again(info: &DurableInfo, promise: &Promise, folder: &RunFolder) -> Result<Promised, Error> {
    let lines = kept_lines(folder)?;
    let DurableInfo { dump, rules, mask } = info.clone();
    let journal = folder.file(CONTENTS);
    let judge = ContentJudge::new(lines, rules, mask, dump.as_deref().map(words), None, &journal)
        .map_err(|e| crate::recovery::journal_damaged(&journal, e))?;
    Ok(Promised { promises: Arc::new(Promises::only(promise.clone())), judge: Arc::new(judge) })
}

/// What to say if operations cannot be told apart.
fn indistinct(why: Indistinct) -> Exit {
    // Markers say when an operation begins and ends, not what it is.
    let mut can_be_marked = true;
    let why = match why {
        Indistinct::NoOperations => "there are none on standard input".to_owned(),
        Indistinct::NotRead => "the program does not read them with `read`".into(),
        Indistinct::ReadAtOnce => "the program reads all of them before it changes anything in PM".into(),
        Indistinct::Markers(markers, lines) => format!(
            "{markers} of them begin by PMVET_OP_BEGIN, but the input has {lines} lines; each marker names its line, or nothing"
        ),
        Indistinct::NoReplies => "the server replies to nothing that it is asked".into(),
        Indistinct::NoRequests => {
            can_be_marked = false;
            "the server reads no request from a connection that it accepts, or not by `read` or `recv`".into()
        }
        Indistinct::NoLines => {
            can_be_marked = false;
            "what the server is asked are no lines of text".into()
        }
        Indistinct::TooManyRequests => {
            can_be_marked = false;
            "the client asks more than 64 MiB; make the workload smaller".into()
        }
    };
    let advice = match can_be_marked {
        true => "Mark them in the program: PMVET_OP_BEGIN(line) and PMVET_OP_END(line) of pmvet.h, around each",
        false => {
            "PMVET_OP_BEGIN and PMVET_OP_END would say when they begin and end, but pmvet has to send them once more: \
             docs/durable.md says what it understands"
        }
    };
    eprintln!("pmvet: nothing was analysed: operations cannot be told apart: {why}. {advice}");
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
