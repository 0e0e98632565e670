//! Readers who could see a store as a change: some code of theirs reads the word before it and again after it.
//!
//! In the recorded run both reads may have come too early or too late. They need not in a run in which the writer is kept so
//! many fences ahead of the reader, or behind it.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::RangeInclusive;

use pmvet_events::event::Event;
use pmvet_events::{ContextId, FileId, SiteId, ThreadId};

use super::likeness::Operations;

/// How many reads of a word are remembered, and how many words: bounds on memory.
const MOST_VISITS: usize = 96;
const MOST_WORDS: usize = 1 << 20;
/// How many changes that one call path sees of a store are worth a try.
const MOST_CHANGES: usize = 4;
/// No thread is kept further ahead.
const FURTHEST: i64 = 256;

/// A reader to whom a store would be a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub reader: ThreadId,
    /// What reads it, before and after.
    pub site: SiteId,
    pub context: ContextId,
    /// In how many of its operations the reader reads the word after the first read, up to the second one.
    pub reads: u32,
    /// The operations with the two reads. An operation ends with a fence.
    pub operations: (u32, u32),
    /// How much the first of them has to do with the writer's operation.
    pub likeness: u8,
    /// By how many fences the writer must be ahead.
    pub leads: RangeInclusive<i64>,
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

    /// To whom a store would be a change: `operation` is its writer's, `previous` that of the writer's last store to the
    /// word before, if there is one.
    pub(super) fn changes(
        &self,
        word: (FileId, u64),
        (writer, operation): (ThreadId, u32),
        previous: Option<u32>,
        operations: &Operations,
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
            let mut between: Vec<u32> = earlier.iter().map(|visit| visit.operation).collect();
            between.retain(|&between| between > first.operation && between < second.operation);
            between.dedup();
            let leads = leads(i64::from(operation), previous, first.operation.into(), second.operation.into());
            if !leads.is_empty() && *leads.start() < FURTHEST && *leads.end() > -FURTHEST {
                changes.push(Change {
                    reader: second.thread,
                    site: second.site,
                    context: second.context,
                    reads: between.len() as u32 + 1,
                    operations: (first.operation, second.operation),
                    likeness: operations.likeness((writer, operation), (first.thread, first.operation)),
                    leads,
                });
            }
        }
        // Of those that are alike, the ones that take the least.
        changes.sort_by_key(|change| (Reverse(change.likeness), change.nearest().abs()));
        let mut alike: HashMap<ContextId, usize> = HashMap::new();
        changes.retain(|change| {
            let alike = alike.entry(change.context).or_insert(0);
            *alike += 1;
            *alike <= MOST_CHANGES
        });
        changes
    }
}

/// Two reads that are further apart have little to do with each other.
const MOST_APART: u32 = 256;
/// How exactly threads are kept in step.
const SLACK: i64 = 3;

/// By how many fences a writer must be ahead so that its store, and not the one before, is between two reads of another thread.
fn leads(store: i64, previous: Option<u32>, first: i64, second: i64) -> RangeInclusive<i64> {
    let after_previous = previous.map_or(i64::MIN, |previous| i64::from(previous) + 1 - first);
    after_previous.max(store + 1 - second)..=store - first - 1
}

impl Change {
    /// The lead that takes the least, with some room on both sides if there is any.
    pub fn nearest(&self) -> i64 {
        let (first, last) = (*self.leads.start(), *self.leads.end());
        let room = SLACK.min((last - first) / 2);
        0.clamp(first + room, last - room)
    }
}

#[cfg(test)]
mod tests {
    use pmvet_events::event::What;

    use super::*;

    const WORD: (FileId, u64) = (FileId(1), 7);

    fn visits(operations: &[(u32, u32)]) -> Visits {
        let mut visits = Visits::default();
        for &(thread, operation) in operations {
            let what = What::Load { addr: 56, size: 8 };
            let event = Event { seq: 1, thread: ThreadId(thread), site: SiteId(1), context: ContextId(1), what };
            visits.read(&event, operation, WORD);
        }
        visits
    }

    fn leads_of(changes: &[Change]) -> Vec<(i64, i64)> {
        changes.iter().map(|change| (*change.leads.start(), *change.leads.end())).collect()
    }

    #[test]
    fn a_writer_who_comes_too_late_must_be_ahead() {
        let found = visits(&[(2, 10), (3, 11), (2, 20)]).changes(WORD, (ThreadId(1), 50), None, &Operations::default());
        assert_eq!(leads_of(&found), [(31, 39)]);
        assert_eq!(found[0].nearest(), 34);
        assert_eq!((found[0].reader, found[0].operations, found[0].reads), (ThreadId(2), (10, 20), 1));
        // And after its store before, which the first read would otherwise see.
        let found = visits(&[(2, 10), (2, 20)]).changes(WORD, (ThreadId(1), 50), Some(45), &Operations::default());
        assert_eq!(leads_of(&found), [(36, 39)]);
    }

    #[test]
    fn one_who_comes_too_early_must_be_behind() {
        let found = visits(&[(2, 30), (2, 40)]).changes(WORD, (ThreadId(1), 5), None, &Operations::default());
        assert_eq!((leads_of(&found), found[0].nearest()), (vec![(-34, -26)], -29));
    }

    #[test]
    fn some_see_it_as_it_is_and_some_never_do() {
        let found = visits(&[(2, 10), (2, 40)]).changes(WORD, (ThreadId(1), 25), None, &Operations::default());
        assert_eq!(found[0].nearest(), 0);
        // One read is not enough, nor are the writer's own, nor two reads of one operation.
        let found = visits(&[(1, 10), (1, 40), (2, 10), (2, 10)]).changes(
            WORD,
            (ThreadId(1), 25),
            None,
            &Operations::default(),
        );
        assert_eq!(found, []);
    }
}
