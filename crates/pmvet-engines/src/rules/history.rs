//! Recent events, for timelines.
//!
//! One ring for all lines: cheap to write at each event, and searched only at the first occurrence of a finding.

use pmvet_events::event::Event;
use pmvet_events::{ContextId, SiteId, ThreadId};
use pmvet_findings::Role;
use pmvet_model::{LineId, Store};

use super::raw::{MAX_STEPS, RawPlace};
use crate::timeline::step::{PmExtent, RawStep, StepKind};

const ROOM: usize = 1 << 14;

#[derive(Debug, Default)]
pub(super) struct LineHistory {
    ring: Vec<Entry>,
    next: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Nothing for a fence.
    line: Option<LineId>,
    seq: u64,
    thread: ThreadId,
    site: SiteId,
    context: ContextId,
    what: StepKind,
    offset: u8,
    len: u8,
}

impl LineHistory {
    #[inline]
    fn push(&mut self, entry: Entry) {
        if self.ring.len() < ROOM {
            self.ring.push(entry);
        } else {
            self.ring[self.next] = entry;
            self.next = (self.next + 1) % ROOM;
        }
    }

    #[inline]
    pub(super) fn stored(&mut self, line: LineId, store: &Store) {
        let Store { seq, thread, site, context, .. } = *store;
        let (offset, len) = (store.offset() as u8, store.len() as u8);
        self.push(Entry { line: Some(line), seq, thread, site, context, what: StepKind::Stored, offset, len });
    }

    pub(super) fn flushed(&mut self, line: LineId, event: &Event<'_>) {
        let Event { seq, thread, site, context, .. } = *event;
        self.push(Entry { line: Some(line), seq, thread, site, context, what: StepKind::Flushed, offset: 0, len: 64 });
    }

    pub(super) fn fenced(&mut self, event: &Event<'_>) {
        let Event { seq, thread, site, context, .. } = *event;
        self.push(Entry { line: None, seq, thread, site, context, what: StepKind::Fenced, offset: 0, len: 0 });
    }

    /// The last steps of a line, oldest first. Fences count if their thread had a flush of the line under way.
    pub(super) fn steps_of(&self, line: LineId) -> Vec<RawStep> {
        let (new, old) = self.ring.split_at(self.next);
        let mut waiting: Vec<ThreadId> = Vec::new();
        let mut steps = Vec::new();
        for entry in old.iter().chain(new) {
            match entry.line {
                Some(id) if id == line => {
                    if entry.what == StepKind::Flushed {
                        waiting.push(entry.thread);
                    }
                    steps.push(entry.step());
                }
                None if waiting.contains(&entry.thread) => {
                    waiting.retain(|thread| *thread != entry.thread);
                    steps.push(entry.step());
                }
                _ => {}
            }
        }
        steps.drain(..steps.len().saturating_sub(MAX_STEPS));
        steps
    }

    /// The last flush of a line before the event with this number.
    pub(super) fn last_flush(&self, line: LineId, before: u64) -> Option<RawPlace> {
        let (new, old) = self.ring.split_at(self.next);
        let mut newest_first = new.iter().rev().chain(old.iter().rev());
        let is_flush = |e: &&Entry| e.what == StepKind::Flushed && e.line == Some(line) && e.seq < before;
        let RawStep { seq, thread, site, context, pm, .. } = newest_first.find(is_flush)?.step();
        Some(RawPlace { role: Role::Flush, site, context, thread, seq, pm })
    }
}

impl Entry {
    fn step(&self) -> RawStep {
        let Entry { line, seq, thread, site, context, what, offset, len } = *self;
        let pm = line.map(|l| PmExtent { file: l.file, offset: l.offset() + u64::from(offset), len: len.into() });
        RawStep { seq, thread, site, context, what, pm }
    }
}
