//! `--durable`: what the program promised to keep, and how pmvet looks at the content.

use std::ffi::OsString;

use pmvet_engines::check::CrashCheck;
use pmvet_engines::lab::{Lab, Promised};
use pmvet_engines::promises::durable::{
    DurablePlan, KeptComparison, OperationLog, OperationsSeen, promised_again, promised_by,
};
use pmvet_engines::promises::judge::{ContentJudge, ContentRules, Incomparable};
use pmvet_engines::promises::questions::Questions;
use pmvet_engines::promises::{Acknowledgement, Indistinct, Promise, operations};
use pmvet_events::plan::OperationsFrom;
use pmvet_findings::Coverage;
use pmvet_target::{Workload, sandbox};

use crate::budget;
use crate::cli::{self, Durability};
use crate::exit::{Error, Exit};
use crate::recovery::{Recovering, failed};
use crate::run_folder::{DurableInfo, RunFolder, texts, words};
use crate::shell_words;

/// File in the folder of a run: the contents that operations lead to.
pub(crate) const CONTENTS: &str = "contents.jsonl";
/// File in the folder of a run: the requests of a server's clients.
const REQUESTS: &str = "requests.json";
/// File in the folder of a run: the questions to a recovered program without a dump.
const QUESTIONS: &str = "questions";

/// What the command line says about it.
#[derive(Debug, Clone)]
pub(crate) struct DurableSettings {
    /// Shows the content of the files. Nothing: the client of the recovered server does, or the program itself.
    dump: Option<Vec<OsString>>,
    /// The program itself is asked. Its recorded run will show which questions.
    asks: bool,
    asked: Vec<String>,
    not_asked: usize,
    /// A recovery from the user, or a server, runs before the dump.
    recovers_first: bool,
    sort: bool,
    buffered: bool,
}

impl DurableSettings {
    /// `recovers`: something other than the dump recovers the files. `is_server`: it is a server.
    pub(crate) fn new(arguments: &cli::Durable, recovers: bool, is_server: bool) -> Option<Self> {
        let dump = arguments.dump.as_deref().map(sandbox::shell);
        let asks = dump.is_none() && !is_server;
        arguments.durable.then(|| Self {
            recovers_first: (dump.is_some() || asks) && recovers,
            dump,
            asks,
            asked: Vec::new(),
            not_asked: 0,
            sort: arguments.dump_sort,
            buffered: arguments.durability == Durability::Buffered,
        })
    }

    /// What the engines are to compare.
    pub(crate) fn plan(&self) -> DurablePlan {
        DurablePlan {
            dump: self.dump.clone(),
            asked: self.asked.clone(),
            not_asked: self.not_asked,
            recovers_first: self.recovers_first,
            rules: ContentRules { sort: self.sort, buffered: self.buffered },
        }
    }

    /// Finds the questions to ask in the recorded run, if nothing else shows the content of the files. Returns the shell command that asks
    /// them, or the exit code if there is no question.
    pub(crate) fn find_questions(
        &mut self,
        lab: Lab<'_>,
        folder: &RunFolder,
    ) -> Result<Result<Option<String>, Exit>, Error> {
        if !self.asks {
            return Ok(Ok(None));
        }
        let Questions { lines, left, .. } = match Questions::of_run(lab, &kept_lines(folder)?)? {
            Ok(questions) => questions,
            Err(why) => return Ok(Err(indistinct(why))),
        };
        if lines.is_empty() {
            eprintln!(
                "pmvet: nothing was analysed: no operation of the input only looks, so there is nothing to ask the recovered program. Add \
                 operations that show what was stored, or name a command that does: --dump"
            );
            return Ok(Err(Exit::NothingAnalysed));
        }
        folder.write(QUESTIONS, lines.iter().map(|line| format!("{line}\n")).collect::<String>().as_bytes())?;
        let file = folder.file(QUESTIONS).canonicalize().map_err(|e| failed("find", "the questions", e))?;
        let mut program = lab.workload.recovery_command(None);
        let from_file = match &lab.workload.operations {
            Some(OperationsFrom::File(path)) => program.iter_mut().find(|word| *word == path.as_os_str()),
            _ => None,
        };
        let reads_file = from_file.map(|word| *word = file.clone().into()).is_some();
        let words = program.iter().map(|word| word.to_str()).chain([file.to_str()]).collect::<Option<Vec<_>>>();
        let Some((file, program)) = words.as_deref().and_then(<[_]>::split_last) else {
            return Err(Error::Usage(
                "--durable: the program's arguments are no text; name a command with --dump".into(),
            ));
        };
        let program = shell_words::shown(program);
        let line = match reads_file {
            true => program,
            false => format!("{program} < {}", shell_words::quoted(file)),
        };
        (self.dump, self.asked, self.not_asked) = (Some(sandbox::shell(&line)), lines, left);
        Ok(Ok(Some(line)))
    }
}

/// If nothing shows the content of the files, finds the questions to ask in the recorded run, and lets the command that asks them recover
/// the files. Returns the exit code if there are none.
pub(crate) fn settle(
    durable: &mut Option<DurableSettings>,
    recovering: &mut Recovering,
    lab: Lab<'_>,
    folder: &RunFolder,
) -> Result<Result<(), Exit>, Error> {
    let Some(durable) = durable else { return Ok(Ok(())) };
    Ok(durable.find_questions(lab, folder)?.map(|asking| {
        if let Some(line) = asking {
            recovering.recover_by(&line);
        }
    }))
}

/// Has crashes judged by what the recorded run promised. Returns the exit code if its operations cannot be told apart.
pub(crate) fn expect(
    settings: &DurableSettings,
    check: &mut CrashCheck<'_>,
    workload: &Workload,
    folder: &RunFolder,
    client_done: Option<u64>,
) -> Result<Option<Exit>, Error> {
    let server = workload.driver.clone().filter(|_| workload.operations == Some(OperationsFrom::Connections));
    let is_server = server.is_some();
    let log = match server {
        Some(server) => OperationLog::Requests { server, client_done },
        None => OperationLog::Lines(kept_lines(folder)?),
    };
    if let Err(why) = check.expect_durable(&settings.plan(), log, &folder.file(CONTENTS))? {
        return Ok(Some(indistinct(why)));
    }
    if is_server && let Some(judge) = check.content_judge() {
        folder.write_json(REQUESTS, &judge.operations())?;
    }
    Ok(None)
}

/// Reports how the run was divided into operations.
pub(crate) fn count(seen: &OperationsSeen, coverage: &mut Coverage) {
    coverage.count(counted(seen.acknowledged_by), seen.operations as u64, None);
    coverage.count("contents compared with", seen.contents as u64, None);
}

/// Reports what could not be compared.
pub(crate) fn note(seen: &OperationsSeen, coverage: &mut Coverage) {
    let mut not = |text: String| coverage.not_covered.push(text);
    if seen.not_judged > 0 {
        not(format!("{} crash images with too many operations under way", seen.not_judged));
    }
    if seen.questions > 0 {
        let asked = format!("{} questions of the input were asked again", seen.questions);
        not(format!("what answers do not show: {asked}, since there is no --dump"));
    }
    if seen.questions_left > 0 {
        not(format!("what {} more questions of the input would show (--dump shows everything)", seen.questions_left));
    }
    for line in &seen.masked {
        not(format!("what the dump shows as `{line}`, which differs between runs without a crash"));
    }
}

/// The name of the counter for operations, which says how they were acknowledged.
fn counted(acknowledged_by: Acknowledgement) -> &'static str {
    match acknowledged_by {
        Acknowledgement::Answer => "operations (acknowledged by an answer each)",
        Acknowledgement::Output => "operations (acknowledged by the next output)",
        Acknowledgement::NextRead => "operations (nothing is printed: acknowledged by the next read)",
        Acknowledgement::Marker => "operations (acknowledged by PMVET_OP_END)",
        Acknowledgement::Reply => "requests (acknowledged by a reply each)",
        Acknowledgement::WholeReply => "requests (acknowledged when all of a reply is written)",
    }
}

/// The operations that the run has kept: a server's requests, or the lines of its input.
pub(crate) fn kept_lines(folder: &RunFolder) -> Result<Vec<String>, Error> {
    let failed = |e| failed("read", "the operations", e);
    if let Ok(requests) = std::fs::read(folder.file(REQUESTS)) {
        return serde_json::from_slice(&requests).map_err(|e| failed(e.into()));
    }
    let bytes = std::fs::read(folder.file("input")).map_err(failed)?;
    Ok(operations(&String::from_utf8_lossy(&bytes)).into_iter().map(str::to_owned).collect())
}

/// The settings that a replay needs.
pub(crate) fn describe(judge: &ContentJudge) -> DurableInfo {
    let (dump, asked) = (judge.dump.as_deref().map(texts), judge.asked.clone());
    DurableInfo { dump, asked, rules: judge.rules, mask: judge.mask().clone() }
}

/// Judges a crash image of an earlier run again, with the contents that the run has kept.
pub(crate) fn again(info: &DurableInfo, promise: &Promise, folder: &RunFolder) -> Result<Promised, Error> {
    Ok(promised_again(kept(info, folder)?, promise, &folder.file(CONTENTS))?)
}

/// The same for other runs of a workload that recovers by this command.
pub(crate) fn again_by(
    workload: &Workload,
    recovery: &[OsString],
    info: &DurableInfo,
    promise: &Promise,
    folder: &RunFolder,
) -> Result<Promised, Error> {
    Ok(promised_by(workload, recovery.to_vec(), kept(info, folder)?, promise, &folder.file(CONTENTS))?)
}

fn kept(info: &DurableInfo, folder: &RunFolder) -> Result<KeptComparison, Error> {
    let DurableInfo { dump, asked, rules, mask } = info.clone();
    Ok(KeptComparison { dump: dump.as_deref().map(words), asked, rules, mask, lines: kept_lines(folder)? })
}

/// Explains why operations cannot be told apart, and returns the exit code.
pub(crate) fn indistinct(why: Indistinct) -> Exit {
    // Markers mark where an operation begins and ends, not what it is.
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

/// Explains why contents cannot be compared, and returns the exit code.
pub(crate) fn incomparable(why: Incomparable) -> Exit {
    let (text, lines) = match why {
        Incomparable::Interrupted => {
            return budget::exit_if_cut_short("the first dumps").unwrap_or(Exit::Interrupted);
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
    Exit::TargetFailed
}
