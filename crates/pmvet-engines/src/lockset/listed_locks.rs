//! Locks that no function call shows, listed for users by place and with the evidence, so that users can contradict.

use std::collections::BTreeSet;

use pmvet_events::ContextId;
use serde::Serialize;

use super::InferredLock;
use crate::stacks::{Stacks, user_frame};

/// An inferred lock as `locks.json` has it.
#[derive(Debug, Serialize)]
pub struct ListedLock {
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

impl ListedLock {
    /// The locks that are taken most often come first. Several instructions of a source line count as one place.
    pub fn list(locks: &[InferredLock], stacks: &mut dyn Stacks) -> Vec<Self> {
        let mut all: Vec<Self> = locks.iter().map(|lock| Self::new(lock, stacks)).collect();
        all.sort_by(|a, b| b.acquired.cmp(&a.acquired).then_with(|| a.place.cmp(&b.place)));
        // Each entry counts all acquisitions of its words, wherever they happened, so adding entries up would count
        // some twice.
        let mut seen = BTreeSet::new();
        all.retain(|lock| seen.insert((lock.shape, lock.place.clone(), lock.in_pm, lock.declared)));
        all
    }

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
}

impl std::fmt::Display for ListedLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { shape, place, words, acquired, returned, disturbed, threads, .. } = self;
        let how = if self.declared { "declared" } else { "inferred" };
        let memory = if self.in_pm { "PM" } else { "volatile memory" };
        write!(
            f,
            "{how} {shape} in {memory}, taken at {place}: {words} words, taken {acquired} times by {threads} threads, \
             given back {returned} times, disturbed {disturbed} times"
        )
    }
}
