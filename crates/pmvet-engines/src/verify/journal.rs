//! What has been executed, kept on disk line by line, so that an interrupted search can go on.
//!
//! The search itself is not kept: it is deterministic, so it comes to the same point again, with the executions of the journal instead of new ones.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use pmvet_findings::Outcome;
use pmvet_target::sandbox::RawFrame;
use serde::{Deserialize, Serialize};

use super::campaign::Verdict;
use super::explore::Choice;
use super::reads::Read;
use super::traced::{Ended, Observed};

/// One execution.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Entry {
    crash: String,
    choice: Vec<(u32, u16)>,
    reads: Vec<(u32, u64)>,
    ended: (u8, i32),
    effects: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure: Option<Failed>,
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

impl Entry {
    pub(super) fn into_parts(self) -> (Observed, Option<Verdict>) {
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
            verdict = Some(Verdict { outcome, output, stack, seconds });
        }
        let reads = self.reads.into_iter().map(|(line, bytes)| Read { line, bytes }).collect();
        (Observed { reads, stacks, effects: self.effects, ..Observed::unseen(ended) }, verdict)
    }
}

#[derive(Debug)]
pub struct Journal {
    file: Option<File>,
    entries: HashMap<(String, Vec<(u32, u16)>), Entry>,
}

impl Journal {
    /// Opens or makes it. A last line that was not written to its end does not count.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut entries = HashMap::new();
        let mut whole = 0;
        if let Ok(file) = File::open(path) {
            let mut reader = BufReader::new(file);
            let mut line = String::new();
            while let Ok(1..) = reader.read_line(&mut line)
                && let Some(text) = line.strip_suffix('\n')
                && let Ok(entry) = serde_json::from_str::<Entry>(text)
            {
                whole += line.len() as u64;
                entries.insert((entry.crash.clone(), entry.choice.clone()), entry);
                line.clear();
            }
        }
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        file.set_len(whole)?;
        Ok(Self { file: Some(file), entries })
    }

    /// One that remembers nothing.
    pub fn none() -> Self {
        Self { file: None, entries: HashMap::new() }
    }

    pub(super) fn get(&self, crash: u128, choice: &Choice) -> Option<&Entry> {
        if self.entries.is_empty() {
            return None;
        }
        self.entries.get(&(name(crash), choice.iter().map(|(&line, &state)| (line, state)).collect()))
    }

    pub(super) fn add(
        &mut self,
        crash: u128,
        choice: &Choice,
        observed: &Observed,
        verdict: Option<&Verdict>,
    ) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let entry = Entry {
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
            effects: observed.effects,
            failure: verdict.map(|verdict| Failed {
                outcome: verdict.outcome.clone(),
                output: verdict.output.clone(),
                stack: verdict.stack.clone(),
                seconds: verdict.seconds,
                loads: observed.stacks.clone(),
            }),
        };
        let mut line = serde_json::to_vec(&entry).map_err(io::Error::other)?;
        line.push(b'\n');
        file.write_all(&line)
    }
}

fn name(crash: u128) -> String {
    format!("{crash:032x}")
}
