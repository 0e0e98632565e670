//! Threads that wait for each other, so that what one stores falls between two reads of another.
//!
//! Four stops make a *chain*: the reader, before its first read, waits until the writer is past its previous store; the writer,
//! before its store, until the reader has read; the reader until the writer has stored; and the writer, before the store becomes
//! persistent, until the reader has read again and acted on it. A run has as many chains as agree on an order.

use std::ops::RangeInclusive;

use super::changes::Change;
use super::fences::Gate;
use super::shared::Nth;
use pmvet_events::ThreadId;
use pmvet_events::plan;

use super::instruction::Instruction;
use super::schedule_picker::{Arrival, Attempt};

/// Where a writer and a reader wait for each other; the reader does so before its first read, between its reads, and after
/// both. The numbers are those of the operations that end there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    writer: Option<(u32, Arrival)>,
    before: Option<(u32, Arrival)>,
    between: (u32, Arrival),
    after: Option<(u32, Arrival)>,
    /// The operations with the store and with the second read.
    store: u32,
    second: u32,
}

impl Chain {
    /// Nothing if a fence cannot be located.
    pub fn new(change: &Change, mut spot: impl FnMut(Nth) -> Option<Arrival>) -> Option<Self> {
        let mut stop = |gate: Gate| Some((gate.operation, spot(gate.fence)?));
        Some(Self {
            writer: change.gates.writer.and_then(&mut stop),
            before: change.gates.before.and_then(&mut stop),
            between: stop(change.gates.between)?,
            after: change.gates.after.and_then(&mut stop),
            store: change.store,
            second: change.operations[1],
        })
    }

    /// For how many operations one thread has to wait for the other.
    pub(super) fn distance(&self) -> u32 {
        self.store.abs_diff(self.between.0)
    }

    /// The operations in which the chain binds the writer.
    fn of_writer(&self) -> RangeInclusive<u32> {
        self.writer.as_ref().map_or(self.store, |(at, _)| *at)..=self.store
    }

    fn of_reader(&self) -> RangeInclusive<u32> {
        let first = self.before.as_ref().unwrap_or(&self.between).0;
        first..=self.after.as_ref().map_or(self.second, |(at, _)| *at)
    }
}

/// Which operations of two threads a chain is about.
#[derive(Debug)]
struct Link([(ThreadId, RangeInclusive<u32>); 2]);

impl Link {
    /// Whether it must come before another link. Nothing if the order does not matter; an error if neither order works.
    fn order(&self, other: &Self) -> Result<Option<bool>, ()> {
        let mut order = None;
        for (thread, mine) in &self.0 {
            for (_, theirs) in other.0.iter().filter(|(of, _)| of == thread) {
                let before = mine.end() < theirs.start();
                let after = mine.start() > theirs.end();
                if before == after || order.is_some_and(|order| order != before) {
                    return Err(());
                }
                order = Some(before);
            }
        }
        Ok(order)
    }
}

/// The chains of a run, in an order in which they can happen.
#[derive(Debug, Default)]
pub(super) struct Chains(Vec<Link>);

impl Chains {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds an attempt if it agrees with the others, and returns where threads stop for it; `end` is where the writer stops after
    /// its store.
    pub(super) fn add(
        &mut self,
        attempt: &Attempt,
        chain: &Chain,
        end: &Arrival,
    ) -> Option<Vec<(Instruction, plan::Stop)>> {
        let Attempt { thread: writer, reader, reads, .. } = *attempt;
        let reader = reader?;
        let link = Link([(writer, chain.of_writer()), (reader, chain.of_reader())]);
        let (mut first, mut last) = (0, self.0.len());
        for (at, other) in self.0.iter().enumerate() {
            match link.order(other).ok()? {
                Some(true) => last = last.min(at),
                Some(false) => first = at + 1,
                None => {}
            }
        }
        if first > last {
            return None;
        }
        let base = 4 * self.0.len() as u32;
        self.0.insert(first, link);
        let [at_writer, at_between, at_end, at_after] = [1, 2, 3, 4].map(|n| base + n);
        let stop = |thread: ThreadId, at: &Arrival, waits_for: ThreadId, until, number| {
            let (thread, reader) = (thread.0, waits_for.0);
            (at.at.clone(), plan::Stop { thread, nth: at.nth, reader, reads: 0, until, number })
        };
        let mut stops = vec![stop(reader, &chain.between.1, writer, at_end, at_between)];
        if let Some((_, at)) = &chain.writer {
            stops.push(stop(writer, at, reader, at_between, at_writer));
            stops.extend(chain.before.iter().map(|(_, at)| stop(reader, at, writer, at_writer, 0)));
        }
        let (at, mut last) = stop(writer, end, reader, at_after, at_end);
        match &chain.after {
            Some((_, at)) => stops.push(stop(reader, at, ThreadId(0), 0, at_after)),
            None => (last.until, last.reads) = (0, reads),
        }
        stops.push((at, last));
        Some(stops)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pmvet_events::ContextId;

    use super::super::schedule_picker::Prospect;
    use super::*;

    const PROSPECT: Prospect = Prospect { store: true, pair: true, sees_change: true, similarity: 0 };

    fn stop(offset: u64, nth: u32) -> Arrival {
        Arrival { at: Instruction { module: "m".into(), offset }, nth }
    }

    /// The writer stores in one operation, the reader reads before and after another one.
    fn attempt(writer: u32, store: u32, reader: u32, between: u32) -> Attempt {
        let chain = Chain {
            writer: Some((store - 1, stop(1, store - 1))),
            before: Some((between - 3, stop(1, between - 3))),
            between: (between, stop(1, between)),
            after: Some((between + 3, stop(1, between + 3))),
            store,
            second: between + 2,
        };
        Attempt {
            thread: ThreadId(writer),
            store: stop(10, store),
            end: Some(stop(2, store)),
            reader: Some(ThreadId(reader)),
            load: Instruction { module: "m".into(), offset: 20 },
            predicted_loads: Arc::default(),
            path: ContextId(1),
            reads: 1,
            seq: 1,
            until: 1,
            promise: PROSPECT,
            change: Some(chain),
        }
    }

    fn add(chains: &mut Chains, attempt: &Attempt) -> Option<Vec<(Instruction, plan::Stop)>> {
        chains.add(attempt, attempt.change.as_ref()?, attempt.end.as_ref()?)
    }

    #[test]
    fn each_stop_waits_for_the_next_one() {
        let mut chains = Chains::default();
        let stops = add(&mut chains, &attempt(2, 50, 3, 20)).unwrap();
        let mut steps = Vec::new();
        let mut next = stops.iter().find(|(_, stop)| stop.number == 0);
        while let Some((at, stop)) = next {
            steps.push((at.offset, stop.thread, stop.nth));
            next = stops.iter().find(|(_, other)| stop.until != 0 && other.number == stop.until);
            assert!(next.is_none_or(|(_, next)| next.thread == stop.reader));
        }
        assert_eq!(steps, [(1, 3, 17), (1, 2, 49), (1, 3, 20), (2, 2, 50), (1, 3, 23)]);
    }

    #[test]
    fn chains_agree_on_an_order() {
        let mut chains = Chains::default();
        let mut fits =
            |writer, store, reader, between| add(&mut chains, &attempt(writer, store, reader, between)).is_some();
        assert!(fits(2, 50, 3, 20));
        // At the same time, in the wrong order, and in the wrong order by way of a third thread.
        assert!(!fits(2, 50, 3, 20));
        assert!(!fits(2, 40, 3, 30));
        assert!(fits(2, 60, 3, 30));
        assert!(fits(4, 10, 3, 10));
        assert!(!fits(2, 70, 4, 5));
        assert!(fits(4, 60, 2, 70));
        assert_eq!(chains.len(), 4);
    }
}
