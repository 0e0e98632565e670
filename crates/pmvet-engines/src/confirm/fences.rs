//! The fences of all threads: the places where one thread can wait for another.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use pmvet_events::ThreadId;
use pmvet_events::event::{Event, FenceKind, What};

use super::shared::Nth;

/// Fences to remember per thread; a bound on memory.
const MOST_FENCES: usize = 1 << 18;
/// How many operations before a read to search for a place to wait.
const FURTHEST: u32 = 16;

/// A fence of a thread, which ends its operation of that number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gate {
    /// The operation that it ends, counted from 0 in its thread.
    pub operation: u32,
    /// The instruction, and which of the thread's runs of it.
    pub fence: Nth,
}

/// Where two threads wait for each other so that a store falls between two reads of a word. In this order: the writer is past its
/// previous store to the word; the reader reads; the writer stores; the reader reads again, and acts on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gates {
    /// The writer, before its store. Nothing: it has made no fence yet.
    pub writer: Option<Gate>,
    /// The reader, before its first read. Nothing: that read may come at any time.
    pub before: Option<Gate>,
    /// The reader, between its two reads.
    pub between: Gate,
    /// The reader, after what it does with the second read. Nothing: it ends before.
    pub after: Option<Gate>,
}

/// Fed with the events of a run.
#[derive(Debug, Default)]
pub(super) struct Fences(HashMap<ThreadId, Made>);

/// How well a thread can wait at a fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// An instruction that is not always a fence, and so cannot be counted.
    No,
    /// The thread holds a lock that others may need.
    Poor,
    Good,
}

/// The fences and locks of a thread.
#[derive(Debug, Default)]
struct Made {
    fences: Vec<(Nth, Fit)>,
    count: u32,
    /// Locks that it holds, and words that it has changed atomically and not changed since: they may be locks, too.
    held: HashSet<u64>,
}

impl Made {
    /// A word was changed atomically: perhaps a lock was taken or released.
    fn changed(&mut self, addr: u64) {
        if !self.held.remove(&addr) {
            self.held.insert(addr);
        }
    }

    /// The best fence of the operations in this range: without locks if possible, then the highest `rank`.
    fn best(&self, operations: Range<u32>, rank: impl Fn(u32) -> u32) -> Option<Gate> {
        let known = operations.start..operations.end.min(self.fences.len() as u32);
        let fit = |operation: u32| self.fences[operation as usize].1;
        let best = known.filter(|&at| fit(at) != Fit::No).max_by_key(|&at| (fit(at), rank(at)))?;
        Some(Gate { operation: best, fence: self.fences[best as usize].0 })
    }
}

impl Fences {
    /// How many fences a thread has made: the number of the operation that it is in.
    pub(super) fn made_by(&self, thread: ThreadId) -> u32 {
        self.0.get(&thread).map_or(0, |made| made.count)
    }

    pub(super) fn event(&mut self, event: &Event<'_>) {
        let made = self.0.entry(event.thread).or_default();
        match event.what {
            What::Acquire { lock, .. } => {
                made.held.insert(lock);
            }
            What::Release { lock, .. } => {
                made.held.remove(&lock);
            }
            What::Rmw { addr, old, new, stored: true, .. } | What::Atomic { addr, old, new, .. } if old != new => {
                made.changed(addr);
            }
            What::Store { addr, .. } => {
                made.held.remove(&addr);
            }
            _ => {}
        }
    }

    pub(super) fn made(&mut self, thread: ThreadId, how: FenceKind, fence: Nth) {
        let made = self.0.entry(thread).or_default();
        made.count += 1;
        if made.fences.len() < MOST_FENCES {
            let fit = match how {
                FenceKind::Sfence | FenceKind::Mfence if made.held.is_empty() => Fit::Good,
                FenceKind::Sfence | FenceKind::Mfence => Fit::Poor,
                FenceKind::Locked | FenceKind::Serializing => Fit::No,
            };
            made.fences.push((fence, fit));
        }
    }

    /// The gates for a store in a writer's operation, after its `previous` store to the same word if any, and for two operations of a
    /// reader. Nothing if the threads cannot wait there.
    pub(super) fn gates(
        &self,
        (writer, store): (ThreadId, u32),
        previous: Option<u32>,
        (reader, [first, second]): (ThreadId, [u32; 2]),
    ) -> Option<Gates> {
        let (writer, reader) = (self.0.get(&writer)?, self.0.get(&reader)?);
        if previous == Some(store) {
            return None;
        }
        let latest = |operation| operation;
        let middle = u32::midpoint(first, second);
        let near = |operation: u32| u32::MAX - operation.abs_diff(middle);
        Some(Gates {
            writer: writer.best(previous.unwrap_or(store.saturating_sub(FURTHEST))..store, latest),
            before: previous.and_then(|_| reader.best(first.saturating_sub(FURTHEST)..first, latest)),
            between: reader.best(first..second, near)?,
            after: reader.best(second + 1..second + 2, latest),
        })
    }
}

#[cfg(test)]
mod tests {
    use pmvet_events::event::LockKind;
    use pmvet_events::{ContextId, SiteId};

    use super::*;

    const READER: ThreadId = ThreadId(1);
    const WRITER: ThreadId = ThreadId(2);

    /// Two threads with ten fences each. The reader holds a lock at every second one.
    fn fences() -> Fences {
        let mut fences = Fences::default();
        let lock = |fences: &mut Fences, what| {
            fences.event(&Event { seq: 1, thread: READER, site: SiteId(1), context: ContextId(1), what });
        };
        for nth in 0..10 {
            fences.made(WRITER, FenceKind::Sfence, Nth { site: SiteId(2), nth });
            fences.made(READER, FenceKind::Sfence, Nth { site: SiteId(1), nth: 2 * nth });
            lock(&mut fences, What::Acquire { lock: 64, how: LockKind::Exclusive });
            fences.made(READER, FenceKind::Mfence, Nth { site: SiteId(1), nth: 2 * nth + 1 });
            lock(&mut fences, What::Release { lock: 64, how: LockKind::Exclusive });
        }
        fences
    }

    #[test]
    fn threads_wait_between_what_is_to_be_in_order_and_without_locks_if_they_can() {
        let at = |gate: Gate| gate.operation;
        let gates = fences().gates((WRITER, 6), Some(2), (READER, [8, 15])).unwrap();
        assert_eq!((gates.writer.map(at), gates.before.map(at)), (Some(5), Some(6)));
        assert_eq!((at(gates.between), gates.after.map(at)), (12, Some(16)));
        let gates = fences().gates((WRITER, 0), None, (READER, [9, 10])).unwrap();
        assert_eq!((gates.writer, gates.before, at(gates.between)), (None, None, 9));
        assert_eq!(gates.between.fence, Nth { site: SiteId(1), nth: 9 });
        // At its end a reader does not wait.
        assert_eq!(fences().gates((WRITER, 1), None, (READER, [10, 19])).unwrap().after, None);
        // Two stores of one operation cannot be told apart.
        assert_eq!(fences().gates((WRITER, 6), Some(6), (READER, [8, 15])), None);
    }

    #[test]
    fn a_word_that_is_changed_and_changed_back_is_a_lock_meanwhile() {
        let mut fences = Fences::default();
        let event = |what| Event { seq: 1, thread: READER, site: SiteId(1), context: ContextId(1), what };
        let rmw = |old: &'static [u8], new: &'static [u8]| {
            event(What::Rmw { addr: 64, old, new, stored: true, discards: false })
        };
        let mut fit = Vec::new();
        for what in [rmw(&[0], &[1]), rmw(&[1], &[0]), rmw(&[0], &[2])] {
            fences.event(&what);
            fences.made(READER, FenceKind::Sfence, Nth { site: SiteId(1), nth: 0 });
            fit.push(fences.0[&READER].fences.last().unwrap().1);
        }
        assert_eq!(fit, [Fit::Poor, Fit::Good, Fit::Poor]);
    }

    #[test]
    fn nobody_waits_where_a_fence_cannot_be_counted() {
        let mut fences = Fences::default();
        (0..4).for_each(|nth| fences.made(READER, FenceKind::Locked, Nth { site: SiteId(1), nth }));
        fences.made(WRITER, FenceKind::Sfence, Nth { site: SiteId(2), nth: 0 });
        assert_eq!(fences.gates((WRITER, 1), None, (READER, [0, 3])), None);
    }
}
