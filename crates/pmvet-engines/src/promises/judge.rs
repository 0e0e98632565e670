//! Whether a recovered image holds what was promised.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock, RwLockReadGuard};
use std::time::Duration;

use pmvet_findings::Outcome;
use pmvet_target::launch::{TargetExit, pm_variables};
use pmvet_target::sandbox::driver::Driver;
use pmvet_target::sandbox::requests::{self, Request};
use pmvet_target::sandbox::{self, Capture, Output, Overlay, SandboxedEnd, SandboxedProgram, SandboxedRun, Unwinder};
use pmvet_target::{Workload, sparse};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::content::{self, Content, ContentMask, Step};
use super::questions::Questions;
use super::{OperationSpan, Promise};
use crate::json_lines::JournalLines;

/// How many bytes of a content are read. Of a longer one, only the end is compared.
const MOST_CONTENT: usize = 64 << 20;
/// Up to this many concurrent operations are tried in all combinations. Of more, only prefixes are tried, and a content that
/// matches none of them is not judged.
const COMBINED: usize = 6;

/// How a content is to be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ContentRules {
    /// The order of its lines means nothing.
    pub sort: bool,
    /// A crash may lose the last operations, acknowledged or not.
    pub buffered: bool,
}

/// Runs of the program without a crash, which show what some of the operations lead to.
#[derive(Debug)]
pub struct ReferenceRuns {
    executable: PathBuf,
    arguments: Vec<OsString>,
    files: Overlay,
    operations: OperationSource,
    recovery: Option<DrivenCommand>,
    dump: DrivenCommand,
    /// How long the recovery, or the dump, may take.
    timeout: Duration,
}

/// Where the program gets its operations.
#[derive(Debug)]
pub enum OperationSource {
    /// On standard input, a line each.
    Input,
    /// In this file, a line each.
    File(PathBuf),
    /// The requests of a server's clients.
    Requests(Vec<Request>, Arc<Driver>),
}

/// A command, and its client if it is a server.
#[derive(Debug, Clone)]
pub struct DrivenCommand {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The client, and how it is run beside the server. Nothing: it is no server.
    pub driver: Option<Arc<Driver>>,
}

/// The result of a reference run.
enum ReferenceEnd {
    Shows(String),
    /// What failed, and how.
    Failed(&'static str, TargetExit),
    Interrupted,
}

/// How much of the output of a dump is kept.
pub(crate) const DUMP_OUTPUT: Output = Output::Standard(MOST_CONTENT);

impl ReferenceRuns {
    /// `recovery` runs after the operations, and `dump` after it; each may take as long as `timeout`.
    pub fn new(
        workload: &Workload,
        operations: OperationSource,
        recovery: Option<DrivenCommand>,
        dump: DrivenCommand,
        timeout: Duration,
    ) -> Self {
        Self {
            executable: workload.program.executable.clone(),
            arguments: workload.program.arguments.clone(),
            files: workload.files.clone(),
            operations,
            recovery,
            dump,
            timeout,
        }
    }

    /// Whether a run may fail for lack of time.
    fn depend_on_time(&self) -> bool {
        matches!(self.operations, OperationSource::Requests(..))
    }

    /// Executes some of the operations in `lines`, and shows the content `dumps` times.
    fn run(&self, operations: &[u32], lines: &[String], dumps: usize) -> io::Result<(ReferenceEnd, Option<String>)> {
        let mut overlay = self.files.above(Capture::Named);
        let text = || operations.iter().map(|&o| format!("{}\n", lines[o as usize])).collect::<String>();
        let (mut input, mut driver) = (None, None);
        match &self.operations {
            OperationSource::Input => input = Some(file_of(Path::new("operations"), &text())?),
            OperationSource::File(path) => overlay.put(path.clone(), Arc::new(file_of(path, &text())?)),
            OperationSource::Requests(all, server) => {
                let requests = requests::input(operations.iter().map(|&o| &all[o as usize]))?;
                let (client, input) = (requests::command(), Some(Arc::new(requests)));
                driver = Some(Driver { client, input, ..Driver::clone(server) });
            }
        }
        let overlay = Mutex::new(overlay);
        let variables: Vec<_> = pm_variables().collect();
        let run = |job: SandboxedProgram<'_>| {
            let job = SandboxedProgram { variables: &variables, usual_status: Some(0), ..job };
            sandbox::run(&job, &overlay, &mut Unwinder::default())
        };
        let worked = run(SandboxedProgram {
            executable: self.executable.as_os_str(),
            input: input.as_ref(),
            driver: driver.as_ref(),
            ..SandboxedProgram::new(&self.arguments)
        })?;
        if let Some(failed) = failed(self.what_failed(&worked), &worked) {
            return Ok((failed, None));
        }
        let then = |step: &DrivenCommand, output| {
            let driver = step.driver.as_deref();
            let (output, client_output) = if driver.is_some() { (Output::Tail(0), output) } else { (output, output) };
            let timeout = Some(self.timeout);
            run(SandboxedProgram { driver, output, client_output, timeout, ..SandboxedProgram::new(&step.command) })
        };
        if let Some(recovery) = &self.recovery {
            let recovered = then(recovery, Output::Tail(0))?;
            if let Some(failed) = failed("the recovery", &recovered) {
                return Ok((failed, None));
            }
        }
        let mut contents = Vec::new();
        for _ in 0..dumps {
            let dumped = then(&self.dump, DUMP_OUTPUT)?;
            if let Some(failed) = failed("the dump", &dumped) {
                return Ok((failed, None));
            }
            let shown = if self.dump.driver.is_some() { &dumped.client_output } else { &dumped.output };
            contents.push(String::from_utf8_lossy(shown).into_owned());
        }
        let mut contents = contents.into_iter();
        let first = contents.next().unwrap_or_default();
        Ok((ReferenceEnd::Shows(first), contents.next()))
    }

    /// How to describe a failure of the program itself.
    fn what_failed(&self, run: &SandboxedRun) -> &'static str {
        match (self.depend_on_time(), run.end) {
            (true, SandboxedEnd::Exit(requests::NOT_CONNECTED)) => {
                "sending the requests once more (the server does not listen where it did in the recorded run)"
            }
            (true, SandboxedEnd::Exit(requests::CLOSED)) => {
                "sending the requests once more (the server closes the connection before it replies)"
            }
            (true, SandboxedEnd::Exit(requests::NO_REPLY)) => {
                "sending the requests once more (the server does not reply)"
            }
            _ => "the target",
        }
    }
}

/// An unnamed file that holds a text.
fn file_of(label: &Path, text: &str) -> io::Result<File> {
    let file = sparse::unnamed(label)?;
    file.write_all_at(text.as_bytes(), 0)?;
    Ok(file)
}

fn failed(what: &'static str, run: &SandboxedRun) -> Option<ReferenceEnd> {
    match run.end {
        SandboxedEnd::Exit(0) => None,
        SandboxedEnd::Interrupted => Some(ReferenceEnd::Interrupted),
        end => Some(ReferenceEnd::Failed(what, end.exit())),
    }
}

/// A line of the journal.
#[derive(Debug, Serialize, Deserialize)]
struct KnownContent {
    operations: String,
    content: String,
}

/// The verdict on a recovered image.
#[derive(Debug, Clone, PartialEq)]
pub enum ContentVerdict {
    /// The content is one that the promise allows, or it cannot be judged.
    Kept,
    /// The promise does not allow it: an [`Outcome::Content`] that says what is wrong.
    Broken(Outcome),
    /// It matches no content that was tried, but others may be right, too.
    NotJudged,
    /// pmvet was asked to stop.
    Unknown,
}

/// Why contents cannot be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incomparable {
    /// A native run of this many operations fails: what failed, and how.
    Fails(usize, &'static str, TargetExit),
    /// A restart without a crash changes the content.
    ChangedByRestart(Vec<String>),
    /// The recorded run left another content than a native run of the same operations.
    ChangedByRecording(Vec<String>),
    /// pmvet was asked to stop.
    Interrupted,
}

/// Compares contents with what was promised. Native runs find the contents that operations lead to, once each.
#[derive(Debug)]
pub struct ContentJudge {
    operations: Vec<String>,
    /// Requests that may be several operations in a row: what they leave half-way is unknown.
    several: BTreeSet<u32>,
    /// How contents are compared.
    pub rules: ContentRules,
    mask: RwLock<ContentMask>,
    /// Shows the content of a recovered image, if the recovery itself does not.
    pub dump: Option<Vec<OsString>>,
    /// The questions that the dump answers, if it shows the content that way.
    pub asked: Vec<String>,
    /// How many more questions are not asked.
    pub not_asked: usize,
    /// Nothing: only contents in the journal are known.
    references: Option<ReferenceRuns>,
    known: Mutex<(HashMap<String, Arc<str>>, JournalLines)>,
    /// Native runs under way, by their operations, so that no other thread begins the same one.
    under_way: Mutex<HashSet<String>>,
    one_ended: Condvar,
    not_judged: AtomicUsize,
}

impl ContentJudge {
    /// `journal` keeps contents for `--resume` and `replay`.
    pub fn new(
        operations: Vec<String>,
        rules: ContentRules,
        mask: ContentMask,
        dump: Option<Vec<OsString>>,
        references: Option<ReferenceRuns>,
        journal: &Path,
    ) -> io::Result<Self> {
        let (lines, known) = JournalLines::open::<KnownContent>(journal)?;
        let known = known.into_iter().map(|known| (known.operations, known.content.into())).collect();
        let mask = RwLock::new(mask);
        Ok(Self {
            operations,
            several: BTreeSet::new(),
            rules,
            mask,
            dump,
            asked: Vec::new(),
            not_asked: 0,
            references,
            known: Mutex::new((known, lines)),
            under_way: Mutex::default(),
            one_ended: Condvar::new(),
            not_judged: AtomicUsize::new(0),
        })
    }

    /// The same, where some operations may be `several` in a row.
    pub fn with_several(self, several: BTreeSet<u32>) -> Self {
        Self { several, ..self }
    }

    /// The same, where contents are answers to questions.
    pub fn with_asked(self, asked: Vec<String>, not_asked: usize) -> Self {
        Self { asked, not_asked, ..self }
    }

    /// Learns what differs between runs without a crash. `recorded` is the content of the image that the recorded run left, if that is
    /// to be compared, too.
    pub fn calibrate(&self, recorded: Option<&str>) -> io::Result<Result<(), Incomparable>> {
        let all: Vec<u32> = (0..self.operations.len() as u32).collect();
        for part in [&all[..], &all[..all.len() / 2], &all[..0]] {
            let Some(references) = &self.references else { return Ok(Ok(())) };
            let mut shown = Vec::new();
            for round in 0..2 {
                let (end, again) = references.run(part, &self.operations, if round == 0 { 2 } else { 1 })?;
                let first = match end {
                    ReferenceEnd::Shows(first) => first,
                    ReferenceEnd::Interrupted => return Ok(Err(Incomparable::Interrupted)),
                    ReferenceEnd::Failed(what, exit) => {
                        return Ok(Err(Incomparable::Fails(part.len(), what, exit)));
                    }
                };
                if let Some(again) = again
                    && let Some(lines) = self.differ(&first, &again)
                {
                    // Contents may depend on the time, which is no change by the restart.
                    let mut mask = self.mask().clone();
                    mask.learn(&self.told(&first), &self.told(&again));
                    if mask.masked().iter().any(|line| !line.contains('*')) {
                        return Ok(Err(Incomparable::ChangedByRestart(lines)));
                    }
                    self.learn(&first, &again);
                }
                shown.push(first);
            }
            self.learn(&shown[0], &shown[1]);
            self.keep(key(part), &shown[0])?;
        }
        let Ok(native) = self.reference(&all)? else { return Ok(Err(Incomparable::Interrupted)) };
        let lines = recorded.and_then(|recorded| self.differ(&native, recorded));
        Ok(lines.map_or(Ok(()), |lines| Err(Incomparable::ChangedByRecording(lines))))
    }

    /// The operations, a line each.
    pub fn operations(&self) -> &[String] {
        &self.operations
    }

    /// What it has learned not to compare.
    pub fn mask(&self) -> RwLockReadGuard<'_, ContentMask> {
        self.mask.read().unwrap_or_else(|e| e.into_inner())
    }

    fn learn(&self, first: &str, second: &str) {
        let (first, second) = (self.told(first), self.told(second));
        self.mask.write().unwrap_or_else(|e| e.into_inner()).learn(&first, &second);
    }

    /// How many contents are known.
    pub fn contents(&self) -> usize {
        self.known.lock().unwrap_or_else(|e| e.into_inner()).0.len()
    }

    /// How many images had too many operations under way.
    pub fn not_judged(&self) -> usize {
        self.not_judged.load(Ordering::Relaxed)
    }

    fn content(&self, text: &str) -> Content {
        Content::new(&self.told(text), &self.mask(), self.rules.sort)
    }

    /// What a dump says, with the questions if there are any.
    fn told<'t>(&self, text: &'t str) -> Cow<'t, str> {
        Questions::answers(&self.asked, self.known(&key(&[])).as_deref(), text)
    }

    /// Equal for texts that compare as equal.
    pub fn content_hash(&self, text: &str) -> u64 {
        let mut hash = Xxh3::new();
        self.content(text).lines().for_each(|line| {
            hash.update(line.as_bytes());
            hash.update(b"\n");
        });
        hash.digest()
    }

    fn differ(&self, expected: &str, found: &str) -> Option<Vec<String>> {
        let (expected, found) = (self.content(expected), self.content(found));
        (expected != found).then(|| content::shown(&expected, &found))
    }

    /// For a recovery that is also the dump: its output without messages about recovering, which are lines that do not appear when it
    /// runs again, and that no content has. Nothing if there are none.
    pub fn without_messages(&self, shown: &str, shown_again: &str) -> Option<String> {
        let plain = |text: &str| Content::new(text, &self.mask(), self.rules.sort);
        let (first, again) = (plain(shown), plain(shown_again));
        let mut messages = first.lines_not_in(&again);
        for content in self.known.lock().unwrap_or_else(|e| e.into_inner()).0.values() {
            if messages.is_empty() {
                return None;
            }
            let content = plain(content);
            messages.retain(|line| !content.lines().any(|other| other == *line));
        }
        let rest = first.lines().filter(|line| !messages.contains(line));
        (!messages.is_empty()).then(|| rest.map(|line| format!("{line}\n")).collect())
    }

    /// Whether the promise allows this content. `spans`: when operations were under way, if several may have been at a time.
    pub fn judge(&self, promise: &Promise, spans: &[OperationSpan], found: &str) -> io::Result<ContentVerdict> {
        let found = self.content(found);
        let mut is_sure = !promise.groups().any(|group| group.len() > COMBINED)
            && !promise.open.iter().any(|operation| self.several.contains(operation));
        let mut candidates = self.candidates(promise);
        // Known contents cost no run, so they come first.
        candidates.sort_by_cached_key(|candidate| self.known(&key(candidate)).is_none());
        for candidate in candidates {
            match self.reference(&candidate)? {
                Ok(text) if self.content(&text) == found => return Ok(ContentVerdict::Kept),
                Ok(_) => {}
                Err(ReferenceEnd::Interrupted) => return Ok(ContentVerdict::Unknown),
                // Operations that fail without the others are no candidate.
                Err(_) => is_sure &= !self.references.as_ref().is_some_and(ReferenceRuns::depend_on_time),
            }
        }
        let broken = match is_sure {
            true => match self.broken(promise, &found)? {
                Some((outcome, names)) => Some(outcome).filter(|_| self.is_order_known(promise, spans, &names)),
                None => return Ok(ContentVerdict::Unknown),
            },
            false => None,
        };
        Ok(broken.map_or_else(
            || {
                self.not_judged.fetch_add(1, Ordering::Relaxed);
                ContentVerdict::NotJudged
            },
            ContentVerdict::Broken,
        ))
    }

    /// Which operations may have happened, the likely ones first.
    fn candidates(&self, promise: &Promise) -> Vec<Vec<u32>> {
        let acknowledged = promise.acknowledged();
        let mut candidates: Vec<Vec<u32>> = parts(promise).iter().map(|open| together(&acknowledged, open)).collect();
        if self.rules.buffered {
            candidates.extend((0..acknowledged.len()).rev().map(|n| acknowledged[..n].to_vec()));
        }
        candidates
    }

    /// Whether it is known which operation on the things with these names came last.
    fn is_order_known(&self, promise: &Promise, spans: &[OperationSpan], names: &[String]) -> bool {
        let span = |operation: u32| spans.get(operation as usize);
        let overlap = |one, other| span(one).zip(span(other)).is_some_and(|(one, other)| one.overlaps(other));
        let acknowledged = promise.acknowledged();
        names.iter().all(|name| {
            let is_about = |o: &&u32| self.operations.get(**o as usize).is_some_and(|line| content::names(line, name));
            let about: Vec<u32> = acknowledged.iter().chain(&promise.open).filter(is_about).copied().collect();
            let last = acknowledged.iter().rfind(is_about);
            let mut recent = last.into_iter().chain(promise.open.iter().filter(is_about));
            recent.all(|&one| about.iter().all(|&other| one == other || !overlap(one, other)))
        })
    }

    /// What is wrong, and the names of the things concerned; nothing if pmvet was asked to stop.
    fn broken(&self, promise: &Promise, found: &Content) -> io::Result<Option<(Outcome, Vec<String>)>> {
        let acknowledged = promise.acknowledged();
        let line = |operation: u32| self.operations.get(operation as usize).map_or("", String::as_str);
        let mut parts = parts(promise);
        parts.sort_unstable_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
        let mut right = Vec::new();
        for open in &parts {
            match self.reference(&together(&acknowledged, open))? {
                Ok(text) => right.push((open, self.content(&text))),
                Err(ReferenceEnd::Interrupted) => return Ok(None),
                Err(_) => {}
            }
        }
        let content = |open: &[u32]| right.iter().find(|(known, _)| **known == open).map(|(_, content)| content);
        let mut without_last = None;
        if let Some(last) = promise.last_done() {
            let others: Vec<u32> = acknowledged.iter().copied().filter(|&o| o != last).collect();
            match self.reference(&others)? {
                Ok(text) => without_last = Some((last, self.content(&text))),
                Err(ReferenceEnd::Interrupted) => return Ok(None),
                Err(_) => {}
            }
        }
        let mut steps: Vec<(u32, Step<'_>)> = Vec::new();
        for (open, before) in &right {
            for &next in promise.open.iter().filter(|next| !open.contains(next)).take(COMBINED) {
                let after = content(&together(open, &[next]));
                steps.extend(after.map(|after| (next, Step { operation: line(next), before, after })));
            }
        }
        if let (Some((last, before)), Some(after)) = (&without_last, content(&[])) {
            steps.push((*last, Step { operation: line(*last), before, after }));
        }
        let done: Vec<&str> = acknowledged.iter().chain(&promise.open).map(|&o| line(o)).collect();
        let step_list: Vec<Step<'_>> = steps.iter().map(|(_, step)| *step).collect();
        let right: Vec<&Content> = right.iter().map(|(_, content)| content).collect();
        let difference = content::difference(&step_list, &right, &done, found);
        // The last operation that should be there and names something that differs.
        let about = |operation: &&u32| difference.names.iter().any(|name| content::names(line(**operation), name));
        let named = acknowledged.iter().rfind(about).or(promise.open.iter().rfind(about));
        let fallback = promise.last_done().or(promise.open.first().copied());
        let operation = difference.step.map(|step| steps[step].0).or(named.copied()).or(fallback);
        let acknowledged = operation.is_some_and(|o| acknowledged.contains(&o));
        let outcome = Outcome::Content {
            violation: difference.violation,
            operation: operation.map(|o| line(o).to_owned()).unwrap_or_default(),
            acknowledged,
            difference: difference.lines,
        };
        Ok(Some((outcome, difference.names)))
    }

    /// The content that some of the operations lead to.
    fn reference(&self, operations: &[u32]) -> io::Result<Result<Arc<str>, ReferenceEnd>> {
        let key = key(operations);
        if let Some(known) = self.known(&key) {
            return Ok(Ok(known));
        }
        let Some(references) = &self.references else {
            return Err(io::Error::other("the content to compare with is not among those that the run has kept"));
        };
        let mut under_way = self.under_way.lock().unwrap_or_else(|e| e.into_inner());
        while !under_way.insert(key.clone()) {
            under_way = self.one_ended.wait(under_way).unwrap_or_else(|e| e.into_inner());
        }
        drop(under_way);
        let end = self.known(&key).map_or_else(|| self.run(references, operations, &key), |known| Ok(Ok(known)));
        self.under_way.lock().unwrap_or_else(|e| e.into_inner()).remove(&key);
        self.one_ended.notify_all();
        end
    }

    fn run(
        &self,
        references: &ReferenceRuns,
        operations: &[u32],
        key: &str,
    ) -> io::Result<Result<Arc<str>, ReferenceEnd>> {
        match references.run(operations, &self.operations, 1)?.0 {
            ReferenceEnd::Shows(content) => {
                self.keep(key.to_owned(), &content)?;
                Ok(Ok(content.into()))
            }
            other => Ok(Err(other)),
        }
    }

    fn known(&self, key: &str) -> Option<Arc<str>> {
        self.known.lock().unwrap_or_else(|e| e.into_inner()).0.get(key).cloned()
    }

    fn keep(&self, operations: String, content: &str) -> io::Result<()> {
        let mut known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        if known.0.insert(operations.clone(), content.into()).is_none() {
            known.1.add(&KnownContent { operations, content: content.into() })?;
        }
        Ok(())
    }
}

/// Which operations under way may have happened, the likely ones first: mostly all but the last are there.
fn parts(promise: &Promise) -> Vec<Vec<u32>> {
    let open = &promise.open;
    let mut parts: Vec<Vec<u32>> = (0..=open.len()).rev().map(|n| open[..n].to_vec()).collect();
    let mut first = 0;
    for group in promise.groups() {
        let is_prefix = |set: u32| (set + 1).is_power_of_two();
        let sets = if group.len() > COMBINED { 0 } else { 1u32 << group.len() };
        parts.extend((0..sets).filter(|&set| !is_prefix(set)).map(|set| {
            let chosen = group.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1).map(|(_, o)| o);
            open[..first].iter().chain(chosen).copied().collect()
        }));
        first += group.len();
    }
    parts
}

/// All of these, in the order of the input.
fn together(some: &[u32], others: &[u32]) -> Vec<u32> {
    let all: BTreeSet<u32> = some.iter().chain(others).copied().collect();
    all.into_iter().collect()
}

/// Operations as text: `0-11,14`.
fn key(operations: &[u32]) -> String {
    let mut text = String::new();
    let mut rest = operations;
    while let Some(&first) = rest.first() {
        let run = rest.iter().enumerate().take_while(|(i, o)| **o == first + *i as u32).count();
        let comma = if text.is_empty() { "" } else { "," };
        text.push_str(&match run {
            1 => format!("{comma}{first}"),
            _ => format!("{comma}{first}-{}", rest[run - 1]),
        });
        rest = &rest[run..];
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    fn judge(rules: ContentRules) -> (ContentJudge, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let operations = ["put 1 a", "put 2 b", "put 3 c"].map(String::from).into();
        let file = folder.path().join("contents.jsonl");
        let judge = ContentJudge::new(operations, rules, ContentMask::default(), None, None, &file).unwrap();
        let content = |set: &[u32]| -> String {
            set.iter().map(|o| format!("{} {}\n", o + 1, ["a", "b", "c"][*o as usize])).collect()
        };
        for set in [&[][..], &[0], &[0, 1], &[0, 1, 2], &[0, 2], &[1], &[2], &[1, 2]] {
            judge.keep(key(set), &content(set)).unwrap();
        }
        (judge, folder)
    }

    fn lost(operation: &str) -> ContentVerdict {
        ContentVerdict::Broken(Outcome::Content {
            violation: pmvet_findings::Violation::Lost,
            operation: operation.into(),
            acknowledged: true,
            difference: vec!["- 1 a".into()],
        })
    }

    #[test]
    fn of_what_is_under_way_anything_may_be_missing() {
        let promise = Promise { done: 1, open: vec![1, 2], ..Promise::default() };
        let (judge, _folder) = judge(ContentRules::default());
        for kept in ["1 a\n", "1 a\n2 b\n", "1 a\n3 c\n", "1 a\n2 b\n3 c\n"] {
            assert_eq!(judge.judge(&promise, &[], kept).unwrap(), ContentVerdict::Kept, "{kept}");
        }
        assert_eq!(judge.judge(&promise, &[], "").unwrap(), lost("put 1 a"));
        assert!(matches!(judge.judge(&promise, &[], "2 b\n").unwrap(), ContentVerdict::Broken(_)));
    }

    #[test]
    fn one_of_several_under_way_is_half_done() {
        let folder = tempfile::tempdir().unwrap();
        let operations = ["put 1 a", "put 2 b", "both 1 x 2 y", "del 3"].map(String::from).into();
        let (rules, mask) = (ContentRules::default(), ContentMask::default());
        let file = folder.path().join("contents.jsonl");
        let judge = ContentJudge::new(operations, rules, mask, None, None, &file).unwrap();
        let known = [
            (&[0, 1][..], "1 a\n2 b\n3 c\n"),
            (&[0, 1, 2], "1 x\n2 y\n3 c\n"),
            (&[0, 1, 3], "1 a\n2 b\n"),
            (&[0, 1, 2, 3], "1 x\n2 y\n"),
            (&[0], "1 a\n3 c\n"),
        ];
        known.iter().for_each(|(set, content)| judge.keep(key(set), content).unwrap());
        let promise = Promise { done: 2, open: vec![2, 3], ..Promise::default() };
        for found in ["1 x\n2 b\n3 c\n", "1 x\n2 b\n", "1 a\n2 y\n"] {
            let verdict = judge.judge(&promise, &[], found).unwrap();
            let ContentVerdict::Broken(Outcome::Content { violation, operation, .. }) = verdict else {
                panic!("{found}: {verdict:?}")
            };
            assert_eq!((violation, &*operation), (pmvet_findings::Violation::Torn, "both 1 x 2 y"), "{found}");
        }
    }

    #[test]
    fn what_one_thread_does_in_order_is_there_in_order() {
        let (judge, _folder) = judge(ContentRules::default());
        let promise = Promise { open: vec![0, 1, 2], in_order: vec![2], ..Promise::default() };
        for kept in ["", "1 a\n", "2 b\n", "1 a\n2 b\n", "1 a\n2 b\n3 c\n"] {
            assert_eq!(judge.judge(&promise, &[], kept).unwrap(), ContentVerdict::Kept, "{kept}");
        }
        assert!(matches!(judge.judge(&promise, &[], "1 a\n3 c\n").unwrap(), ContentVerdict::Broken(_)));
        let promise = Promise { open: (0..50).collect(), in_order: (1..50).collect(), ..Promise::default() };
        assert_eq!(judge.candidates(&promise).len(), 51, "nothing, and the first ones");
    }

    #[test]
    fn what_a_recovery_says_is_no_content() {
        let (judge, _folder) = judge(ContentRules::default());
        let shown = "repaired 1\n1 a\n2 b\n";
        assert_eq!(judge.without_messages(shown, "1 a\n2 b\n").unwrap(), "1 a\n2 b\n");
        assert_eq!(judge.without_messages(shown, shown), None, "it stays");
        assert_eq!(judge.without_messages("1 a\n2 b\n", "1 a\n"), None, "a thing that is gone is no message");
    }

    #[test]
    fn with_too_many_under_way_nothing_is_said() {
        let (judge, _folder) = judge(ContentRules::default());
        let promise = Promise { open: (0..3).chain([0; COMBINED]).collect(), ..Promise::default() };
        assert_eq!(judge.judge(&promise, &[], "nonsense").unwrap(), ContentVerdict::NotJudged);
        assert_eq!(judge.not_judged(), 1);
    }

    #[test]
    fn buffered_programs_may_lose_the_last_operations() {
        let promise = Promise { done: 2, ..Promise::default() };
        let (judge, _folder) = judge(ContentRules { buffered: true, sort: false });
        for kept in ["", "1 a\n", "1 a\n2 b\n"] {
            assert_eq!(judge.judge(&promise, &[], kept).unwrap(), ContentVerdict::Kept, "{kept}");
        }
        assert!(matches!(judge.judge(&promise, &[], "2 b\n").unwrap(), ContentVerdict::Broken(_)), "no prefix");
    }

    #[test]
    fn where_the_order_of_operations_is_not_known_nothing_is_said() {
        let promise = Promise { done: 3, ..Promise::default() };
        let judged = |spans: [(u64, u64); 3], found| {
            let (mut judge, _folder) = judge(ContentRules::default());
            judge.operations[1] = "put 1 b".into();
            let spans = spans.map(|(began, ended)| OperationSpan { began, ended, thread: None });
            judge.judge(&promise, &spans, found).unwrap()
        };
        let wrong = "1 x\n2 b\n3 c\n";
        assert!(matches!(judged([(1, 2), (3, 4), (5, 6)], wrong), ContentVerdict::Broken(_)));
        assert_eq!(judged([(1, 4), (3, 5), (6, 7)], wrong), ContentVerdict::NotJudged, "two on the same key at a time");
        assert!(matches!(judged([(1, 4), (5, 7), (6, 8)], wrong), ContentVerdict::Broken(_)), "on another key");
    }

    #[test]
    fn sets_of_operations_have_short_names() {
        assert_eq!(key(&[]), "");
        assert_eq!(key(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }
}
