//! Locks that no function call shows: listed with the evidence for them, so that the user can contradict.

use pmvet_engines::lockset::InferredLock;
use pmvet_engines::stacks::{Stacks, user_frame};
use pmvet_events::ContextId;
use serde::Serialize;

/// An inferred lock as `locks.json` has it.
#[derive(Debug, Serialize)]
pub(super) struct Listed {
    shape: &'static str,
    /// What `--deny-lock` takes.
    function: Option<String>,
    /// Source file and line, or module and offset, of the instruction that takes it.
    place: String,
    words: u64,
    in_pm: bool,
    acquired: u64,
    returned: u64,
    disturbed: u64,
    threads: usize,
    declared: bool,
}

/// Lines to show; the rest is in the run's folder.
const SHOWN: usize = 8;

/// Those that are taken most often first.
pub(super) fn list(locks: &[InferredLock], stacks: &mut dyn Stacks) -> Vec<Listed> {
    let mut all: Vec<Listed> = locks.iter().map(|lock| Listed::new(lock, stacks)).collect();
    all.sort_by(|a, b| b.acquired.cmp(&a.acquired).then_with(|| a.place.cmp(&b.place)));
    all
}

/// What to print of them.
pub(super) fn lines(locks: &[Listed]) -> Vec<String> {
    let mut lines: Vec<String> = locks.iter().take(SHOWN).map(Listed::line).collect();
    if locks.len() > SHOWN {
        lines.push(format!("and {} more inferred locks, listed in locks.json", locks.len() - SHOWN));
    }
    lines
}

impl Listed {
    fn new(lock: &InferredLock, stacks: &mut dyn Stacks) -> Self {
        let stack = stacks.stack(lock.site, ContextId::default());
        let frame = user_frame(&stack).or(Some(0)).and_then(|i| stack.get(i)).cloned().unwrap_or_default();
        Self {
            shape: lock.shape.name(),
            function: frame.function.clone(),
            place: frame.to_string(),
            words: lock.words,
            in_pm: lock.example.is_some(),
            acquired: lock.acquired,
            returned: lock.returned,
            disturbed: lock.disturbed,
            threads: lock.threads,
            declared: lock.declared,
        }
    }

    fn line(&self) -> String {
        let Self { shape, place, words, acquired, returned, disturbed, threads, .. } = self;
        let how = if self.declared { "declared" } else { "inferred" };
        let memory = if self.in_pm { "PM" } else { "volatile memory" };
        format!(
            "{how} {shape} in {memory}, taken at {place}: {words} words, taken {acquired} times by {threads} threads, \
             given back {returned} times, disturbed {disturbed} times"
        )
    }
}
