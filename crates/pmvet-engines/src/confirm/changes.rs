//! Readers that could see a store as a change, since they read the word before the store and again after it.
//!
//! In the recorded run, both reads may have come too early or too late. A forced run makes the two threads wait for each other in
//! between.

use std::cmp::Reverse;
use std::collections::HashMap;

use pmvet_events::event::Event;
use pmvet_events::{ContextId, FileId, SiteId, ThreadId};

use super::fences::{Fences, Gates};
use super::operation_similarity::OperationWords;

/// Bounds on memory: reads to remember per word, and words.
const MOST_VISITS: usize = 96;
const MOST_WORDS: usize = 1 << 20;
/// How many changes per store and call path are worth a try.
const MOST_CHANGES: usize = 4;
/// Two reads that are more operations apart are hardly related.
const MOST_APART: u32 = 256;

/// A reader that would see a store as a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The thread between whose two reads the store would fall.
    pub reader: ThreadId,
    /// The instruction of both reads.
    pub site: SiteId,
    /// The call path of both.
    pub context: ContextId,
    /// In how many of its operations the reader reads the word from the gate between the two reads up to the second read.
    pub reads: u32,
    /// Number of the writer's operation with the store. An operation ends with a fence.
    pub store: u32,
    /// Numbers of the reader's operations with the first and the second read.
    pub operations: [u32; 2],
    /// How closely these operations are related.
    pub similarity: u8,
    /// Where the two threads wait for each other.
    pub gates: Gates,
}

impl Change {
    /// For how many operations one thread has to wait for the other.
    pub fn distance(&self) -> u32 {
        self.store.abs_diff(self.gates.between.operation)
    }
}

/// A read of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Visit {
    thread: ThreadId,
    site: SiteId,
    context: ContextId,
    operation: u32,
}

/// All reads of all words.
#[derive(Debug, Default)]
pub(super) struct Visits(HashMap<(FileId, u64), Vec<Visit>>);

impl Visits {
    pub(super) fn read(&mut self, event: &Event<'_>, operation: u32, word: (FileId, u64)) {
        if self.0.len() >= MOST_WORDS && !self.0.contains_key(&word) {
            return;
        }
        let visits = self.0.entry(word).or_default();
        let Event { thread, site, context, .. } = *event;
        let visit = Visit { thread, site, context, operation };
        if visits.len() < MOST_VISITS && visits.last() != Some(&visit) {
            visits.push(visit);
        }
    }

    /// The readers that would see a store as a change. `operation` is the writer's; `previous` is that of its previous
    /// store to the word, if any.
    pub(super) fn changes(
        &self,
        word: (FileId, u64),
        (writer, operation): (ThreadId, u32),
        previous: Option<u32>,
        operations: &OperationWords,
        fences: &Fences,
    ) -> Vec<Change> {
        let visits = self.0.get(&word).map_or(&[][..], Vec::as_slice);
        let mut changes = Vec::new();
        for (at, second) in visits.iter().enumerate().filter(|(_, visit)| visit.thread != writer) {
            let mine = visits[..at].iter().rev().filter(|visit| visit.thread == second.thread);
            let earlier: Vec<&Visit> =
                mine.take_while(|visit| visit.operation + MOST_APART > second.operation).collect();
            let alike = |visit: &&&Visit| {
                visit.site == second.site && visit.context == second.context && visit.operation < second.operation
            };
            let Some(first) = earlier.iter().find(alike) else { continue };
            let reads = (second.thread, [first.operation, second.operation]);
            let Some(gates) = fences.gates((writer, operation), previous, reads) else { continue };
            let mut between: Vec<u32> = earlier.iter().map(|visit| visit.operation).collect();
            between.retain(|&between| between > gates.between.operation && between < second.operation);
            between.dedup();
            changes.push(Change {
                reader: second.thread,
                site: second.site,
                context: second.context,
                reads: between.len() as u32 + 1,
                store: operation,
                operations: [first.operation, second.operation],
                similarity: operations.similarity((writer, operation), (first.thread, first.operation)),
                gates,
            });
        }
        // Of similar ones, those with the shortest wait.
        changes.sort_by_key(|change| (Reverse(change.similarity), change.distance()));
        let mut alike: HashMap<ContextId, usize> = HashMap::new();
        changes.retain(|change| {
            let alike = alike.entry(change.context).or_insert(0);
            *alike += 1;
            *alike <= MOST_CHANGES
        });
        changes
    }
}

#[cfg(test)]
mod tests {
    use pmvet_events::event::{FenceKind, What};

    use super::super::shared::Nth;
    use super::*;

    const WORD: (FileId, u64) = (FileId(1), 7);
    const WRITER: ThreadId = ThreadId(1);
    const READER: ThreadId = ThreadId(2);

    /// What the writer's store in an operation is to those who read the word in these operations.
    fn changes(reads: &[(ThreadId, u32)], store: u32, previous: Option<u32>) -> Vec<Change> {
        let (mut visits, mut fences) = (Visits::default(), Fences::default());
        for &(thread, operation) in reads {
            let what = What::Load { addr: 56, size: 8 };
            let event = Event { seq: 1, thread, site: SiteId(1), context: ContextId(1), what };
            visits.read(&event, operation, WORD);
        }
        for nth in 0..60 {
            fences.made(WRITER, FenceKind::Sfence, Nth { site: SiteId(9), nth });
            fences.made(READER, FenceKind::Sfence, Nth { site: SiteId(9), nth });
        }
        visits.changes(WORD, (WRITER, store), previous, &OperationWords::default(), &fences)
    }

    #[test]
    fn a_store_is_a_change_to_one_who_reads_twice() {
        let found = changes(&[(READER, 10), (ThreadId(3), 11), (READER, 16), (READER, 20)], 50, None);
        let seen: Vec<_> = found.iter().map(|change| (change.operations, change.reads, change.distance())).collect();
        assert_eq!(seen, [([16, 20], 1, 32), ([10, 16], 1, 37)]);
        assert!(found.iter().all(|change| change.reader == READER && change.gates.writer.is_some()));
        // It is to come after the store before, which the first read would otherwise see.
        assert_eq!(found[0].gates.before, None);
        let before = changes(&[(READER, 10), (READER, 20)], 50, Some(45))[0].gates.before;
        assert_eq!(before.map(|gate| gate.operation), Some(9));
    }

    #[test]
    fn some_never_see_a_change() {
        // One read is not enough, nor are the writer's own, nor two reads of one operation.
        assert_eq!(changes(&[(WRITER, 10), (WRITER, 40), (READER, 10), (READER, 10)], 25, None), []);
    }
}
