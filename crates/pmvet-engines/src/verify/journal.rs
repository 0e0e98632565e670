//! What has been executed, kept on disk line by line, so that an interrupted search can go on.
//!
//! The search itself is not kept: it is deterministic, so it reaches the same point again, with executions from the
//! journal instead of new ones.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use pmvet_findings::Outcome;
use pmvet_target::sandbox::RawFrame;
use serde::{Deserialize, Serialize};

use super::campaign::NativeOutcome;
use super::explore::ImageChoice;
use super::reads::UncertainRead;
use super::traced::{Ended, Observed};
use crate::json_lines::JournalLines;
use crate::lab::ShownContent;

/// One execution.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExecutionEntry {
    crash: String,
    choice: Vec<(u32, u16)>,
    reads: Vec<(u32, u64)>,
    ended: (u8, i32),
    effects: Vec<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure: Option<Failed>,
    #[serde(default, skip_serializing_if = "ShownContent::is_nothing")]
    shown: ShownContent,
}

/// What is worth keeping of an execution that went wrong.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Failed {
    outcome: Outcome,
    output: String,
    stack: Vec<RawFrame>,
    seconds: f64,
    loads: Vec<Vec<RawFrame>>,
}

impl ExecutionEntry {
    pub(super) fn into_parts(self) -> (Observed, Option<NativeOutcome>, ShownContent) {
        let ended = match self.ended {
            (0, status) => Ended::Exit(status),
            (1, signal) => Ended::Signal(signal),
            (2, _) => Ended::Hang,
            (3, status) => Ended::Oracle(status),
            _ => Ended::Unseen,
        };
        let (mut stacks, mut verdict) = (Vec::new(), None);
        if let Some(Failed { outcome, output, stack, seconds, loads }) = self.failure {
            stacks = loads;
            verdict = Some(NativeOutcome { outcome, output, stack, seconds, shown: self.shown });
        }
        let reads = self.reads.into_iter().map(|(line, bytes)| UncertainRead { line, bytes }).collect();
        (Observed { reads, stacks, effects: self.effects, ..Observed::unseen(ended) }, verdict, self.shown)
    }
}

/// All executions of a search, in memory and on disk.
#[derive(Debug)]
pub struct SearchJournal {
    lines: Option<JournalLines>,
    entries: HashMap<(String, Vec<(u32, u16)>), ExecutionEntry>,
}

impl SearchJournal {
    /// Opens or makes it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (lines, known) = JournalLines::open::<ExecutionEntry>(path)?;
        let key = |entry: &ExecutionEntry| (entry.crash.clone(), entry.choice.clone());
        Ok(Self { lines: Some(lines), entries: known.into_iter().map(|entry| (key(&entry), entry)).collect() })
    }

    /// Why executions are missing on disk, if any are.
    pub(super) fn take_failure(&mut self) -> Option<io::Error> {
        self.lines.as_mut().and_then(JournalLines::take_failure)
    }

    /// Whether a kill cut off the last line. That execution has to be repeated.
    pub fn was_torn(&self) -> bool {
        self.lines.as_ref().is_some_and(JournalLines::was_torn)
    }

    /// A journal that remembers nothing.
    pub fn none() -> Self {
        Self { lines: None, entries: HashMap::new() }
    }

    pub(super) fn get(&self, crash: u128, choice: &ImageChoice) -> Option<&ExecutionEntry> {
        if self.entries.is_empty() {
            return None;
        }
        self.entries.get(&(name(crash), choice.iter().map(|(&line, &state)| (line, state)).collect()))
    }

    pub(super) fn add(
        &mut self,
        crash: u128,
        choice: &ImageChoice,
        observed: &Observed,
        verdict: Option<&NativeOutcome>,
        shown: ShownContent,
    ) -> io::Result<()> {
        let Some(lines) = &mut self.lines else { return Ok(()) };
        let entry = ExecutionEntry {
            crash: name(crash),
            choice: choice.iter().map(|(&line, &state)| (line, state)).collect(),
            reads: observed.reads.iter().map(|read| (read.line, read.bytes)).collect(),
            ended: match observed.ended {
                Ended::Exit(status) => (0, status),
                Ended::Signal(signal) => (1, signal),
                Ended::Hang => (2, 0),
                Ended::Oracle(status) => (3, status),
                Ended::Unseen => (4, 0),
            },
            effects: observed.effects.clone(),
            failure: verdict.map(|verdict| Failed {
                outcome: verdict.outcome.clone(),
                output: verdict.output.clone(),
                stack: verdict.stack.clone(),
                seconds: verdict.seconds,
                loads: observed.stacks.clone(),
            }),
            shown,
        };
        lines.add(&entry)
    }
}

fn name(crash: u128) -> String {
    format!("{crash:032x}")
}
