//! Which stores threads are stopped at in a run, and until when.
//!
//! Of the stores of the recorded run those are of use that another thread read later. If the writer is stopped there until that
//! thread has come by, and the others go on as they did, the value is read before it is persistent. Each such pair of a store
//! and a read is an *attempt*. A run makes as many attempts as fit in, the most promising ones first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use pmvet_engines::confirm::changes::Change;
use pmvet_events::plan::{self, Lead, MAX_STALLS, Stall};
use pmvet_events::{ContextId, ThreadId};

use super::Spot;

/// One of so many threads may be stopped at a time.
const STOPPED: u32 = 2;
/// So many attempts are made in one run: each of them may take some milliseconds for nothing.
const MOST_ATTEMPTS: usize = 48;
/// So often an attempt is made in each way: the reader may come too late the first time.
const TRIES: u8 = 6;
/// A long stop lasts for such a part of the run.
const LONG: u64 = 2;
/// How much later than expected a reader may come.
const SLACK: u64 = 8;

/// In which way a run stops threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Way {
    /// Before the persist, or just after the store. By the former the writer has done all that lets others in.
    late: bool,
    wait: Wait,
    /// At stores of predicted races, or at others.
    predicted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// Until one reader has come. That leaves time for many stops.
    Short,
    /// Until all others have done what they do, whoever comes by. Of the many who read a word few may be those whom it matters to,
    /// as with a bucket and its keys.
    Long,
    /// Until a reader has come who sees a change, with some threads ahead of others to that end.
    Change,
}

impl Way {
    const fn new(late: bool, wait: Wait, predicted: bool) -> Self {
        Self { late, wait, predicted }
    }

    /// Where an attempt counts how often it was made in this way.
    fn index(self) -> usize {
        usize::from(self.late) * 3 + self.wait as usize
    }
}

/// The ways of runs, in turn.
const WAYS: [Way; 8] = [
    Way::new(true, Wait::Short, true),
    Way::new(true, Wait::Change, true),
    Way::new(true, Wait::Short, false),
    Way::new(true, Wait::Long, true),
    Way::new(true, Wait::Change, true),
    Way::new(false, Wait::Short, true),
    Way::new(true, Wait::Long, false),
    Way::new(true, Wait::Change, true),
];

/// The n-th time that a thread comes to an instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stop {
    pub(crate) at: Spot,
    pub(crate) nth: u32,
}

/// What speaks for an attempt, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Promise {
    /// The locksets predict a race of the store, and of the two instructions.
    pub(crate) store: bool,
    pub(crate) pair: bool,
    /// The reader has read the word before, and so can tell that it has changed.
    pub(crate) sees_change: bool,
    /// How much the reader's operation has to do with the writer's.
    pub(crate) likeness: u8,
}

/// A store that may be read too early, what makes it persistent at last, and who reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) thread: ThreadId,
    pub(crate) store: Stop,
    pub(crate) end: Option<Stop>,
    pub(crate) reader: ThreadId,
    pub(crate) load: Spot,
    /// The call path to the load.
    pub(crate) path: ContextId,
    /// In how many of its operations the reader reads the store up to the load that is of interest.
    pub(crate) reads: u32,
    /// The numbers of the store and of that load in the recorded run.
    pub(crate) seq: u64,
    pub(crate) until: u64,
    pub(crate) promise: Promise,
    /// The reader sees the store as a change if its thread is so far ahead.
    pub(crate) change: Option<Change>,
}

/// Chooses for one run after the other.
pub(super) struct Chooser {
    attempts: Vec<Attempt>,
    /// How often each was tried in each way.
    tried: Vec<[u8; 6]>,
    /// How often each two instructions were tried, the second of them on each call path: what leads there makes the difference.
    pairs: HashMap<(Spot, Spot, ContextId), usize>,
    /// How many threads may be stopped at a time.
    most: usize,
    /// The number of the last event of the recorded run that counts.
    last: u64,
    runs: usize,
}

impl Chooser {
    pub(super) fn new(attempts: Vec<Attempt>, threads: u32) -> Self {
        Self {
            tried: vec![[0; 6]; attempts.len()],
            last: attempts.iter().map(|attempt| attempt.until).max().unwrap_or(0),
            attempts,
            pairs: HashMap::new(),
            most: (threads / STOPPED).max(1) as usize,
            runs: 0,
        }
    }

    pub(super) fn any_predicted(&self, open: impl Fn(&Attempt) -> bool) -> bool {
        self.attempts.iter().any(|attempt| attempt.promise.store && open(attempt))
    }

    /// Where threads are stopped in the next run, and who is ahead. No stalls if everything was tried.
    pub(super) fn next(&mut self, open: impl Fn(&Attempt) -> bool) -> (Vec<Stall>, Vec<Lead>) {
        let first = self.runs;
        self.runs += 1;
        let ways = (first..first + WAYS.len()).map(|run| WAYS[run % WAYS.len()]);
        ways.map(|way| self.choose(way, &open)).find(|(stalls, _)| !stalls.is_empty()).unwrap_or_default()
    }

    fn choose(&mut self, way: Way, open: &impl Fn(&Attempt) -> bool) -> (Vec<Stall>, Vec<Lead>) {
        let mut order: Vec<usize> = (0..self.attempts.len())
            .filter(|&i| {
                let attempt = &self.attempts[i];
                let fits = attempt.change.is_some() == (way.wait == Wait::Change);
                fits && self.tried[i][way.index()] < TRIES && attempt.stop(way.late).is_some() && open(attempt)
            })
            .collect();
        if order.iter().any(|&i| self.attempts[i].promise.store == way.predicted) {
            order.retain(|&i| self.attempts[i].promise.store == way.predicted);
        }
        // Of many attempts that promise the same, those of pairs that had few; and the shortest, which disturb the run the least.
        order.sort_by_cached_key(|&i| {
            let attempt = &self.attempts[i];
            let pair = self.pairs.get(&attempt.pair()).copied().unwrap_or(0);
            (self.tried[i][way.index()], Reverse(attempt.promise), pair, attempt.until - attempt.seq)
        });
        let mut taken = Taken { most: self.most, length: self.last / LONG, ..Taken::default() };
        let mut stalls: BTreeMap<Spot, Vec<plan::Stop>> = BTreeMap::new();
        for i in order {
            if taken.spans.len() == MOST_ATTEMPTS {
                break;
            }
            let attempt = &self.attempts[i];
            let Some(stop) = attempt.stop(way.late) else { continue };
            let room = stalls.len() < MAX_STALLS || stalls.contains_key(&stop.at);
            if !room || !taken.take(attempt, way.wait) {
                continue;
            }
            let (thread, nth) = (attempt.thread.0, stop.nth);
            let (reader, reads) = match way.wait {
                Wait::Long => (0, u32::MAX),
                Wait::Short | Wait::Change => (attempt.reader.0, attempt.reads),
            };
            stalls.entry(stop.at.clone()).or_default().push(plan::Stop { thread, nth, reader, reads });
            *self.pairs.entry(attempt.pair()).or_insert(0) += 1;
            // A long stop is for all readers.
            let seq = attempt.seq;
            let alike = |(at, other): (usize, &Attempt)| at == i || way.wait == Wait::Long && other.seq == seq;
            let same: Vec<usize> =
                self.attempts.iter().enumerate().filter(|&other| alike(other)).map(|(at, _)| at).collect();
            same.into_iter().for_each(|at| self.tried[at][way.index()] += 1);
        }
        let stall = |(at, stops): (Spot, Vec<plan::Stop>)| Stall {
            module: at.module.to_string_lossy().into_owned(),
            offset: at.offset,
            before: way.late,
            stops,
        };
        (stalls.into_iter().map(stall).collect(), taken.leads())
    }
}

/// What a run does already.
#[derive(Debug, Default)]
struct Taken {
    /// Who is stopped for whom, and when.
    spans: Vec<Span>,
    /// By how much threads are ahead.
    leads: HashMap<ThreadId, i64>,
    /// How many threads may be stopped at a time.
    most: usize,
    /// How long a long stop lasts.
    length: u64,
}

#[derive(Debug)]
struct Span {
    thread: ThreadId,
    reader: ThreadId,
    from: i64,
    until: i64,
}

impl Taken {
    /// Takes an attempt in, if it can be made beside the others: its reader runs while it waits, and few threads are stopped at a
    /// time.
    fn take(&mut self, attempt: &Attempt, wait: Wait) -> bool {
        let Attempt { thread, reader, seq, until, .. } = *attempt;
        let (leads, from, until) = match &attempt.change {
            Some(change) => {
                let Some((lead, of_reader)) = self.lead(thread, reader, change) else { return false };
                let (first, second) = change.operations;
                let base = |operation: u32| i64::from(operation) - of_reader;
                (Some((lead, of_reader)), base(first), base(second))
            }
            None => {
                let until = if wait == Wait::Long { until.max(seq + self.length) } else { until };
                (None, seq as i64, (until + SLACK) as i64)
            }
        };
        let mut stopped = 0;
        for other in self.spans.iter().filter(|other| other.from <= until && from <= other.until) {
            if other.thread == thread || other.thread == reader || other.reader == thread {
                return false;
            }
            stopped += 1;
        }
        if stopped >= self.most {
            return false;
        }
        if let Some((lead, of_reader)) = leads {
            self.leads.extend([(thread, lead), (reader, of_reader)]);
        }
        self.spans.push(Span { thread, reader, from, until });
        true
    }

    /// By how much the writer and the reader have to be ahead of those who are not.
    fn lead(&self, thread: ThreadId, reader: ThreadId, change: &Change) -> Option<(i64, i64)> {
        let wanted = change.nearest();
        let (lead, of_reader) = match (self.leads.get(&thread), self.leads.get(&reader)) {
            (None, None) => (wanted.max(0), (-wanted).max(0)),
            (Some(&lead), None) => (lead, lead - wanted),
            (None, Some(&of_reader)) => (of_reader + wanted, of_reader),
            (Some(&lead), Some(&of_reader)) => (lead, of_reader),
        };
        (lead >= 0 && of_reader >= 0 && change.leads.contains(&(lead - of_reader))).then_some((lead, of_reader))
    }

    fn leads(self) -> Vec<Lead> {
        let lead = |(thread, fences): (ThreadId, i64)| Lead { thread: thread.0, fences: fences.max(0) as u32 };
        self.leads.into_iter().map(lead).filter(|lead| lead.fences > 0).collect()
    }
}

impl Attempt {
    fn stop(&self, late: bool) -> Option<&Stop> {
        if late { self.end.as_ref() } else { Some(&self.store) }
    }

    fn pair(&self) -> (Spot, Spot, ContextId) {
        (self.store.at.clone(), self.load.clone(), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMISE: Promise = Promise { store: false, pair: false, sees_change: false, likeness: 0 };

    /// A store by a thread that another one reads.
    fn attempt(thread: u32, reader: u32, nth: u32, seq: u64, until: u64) -> Attempt {
        let spot = |offset| Spot { module: "m".into(), offset };
        let stop = |offset| Stop { at: spot(offset), nth };
        Attempt {
            thread: ThreadId(thread),
            store: stop(10),
            end: Some(stop(11)),
            reader: ThreadId(reader),
            load: spot(20),
            path: ContextId(1),
            reads: 1,
            seq,
            until,
            promise: PROMISE,
            change: None,
        }
    }

    /// Whom a run stops, and at which time.
    fn stops(stalls: &[Stall]) -> Vec<(u32, u32)> {
        let mut stops: Vec<_> =
            stalls.iter().flat_map(|stall| stall.stops.iter().map(|stop| (stop.thread, stop.nth))).collect();
        stops.sort_unstable();
        stops
    }

    #[test]
    fn a_reader_is_not_stopped_while_it_is_waited_for() {
        let attempts = vec![
            attempt(2, 3, 0, 100, 120),
            attempt(3, 2, 0, 110, 150),
            attempt(4, 5, 0, 110, 160),
            attempt(3, 2, 1, 300, 400),
        ];
        let mut chooser = Chooser::new(attempts, 4);
        let mut next = || stops(&chooser.next(|_| true).0);
        assert_eq!(next(), [(2, 0), (3, 1), (4, 0)]);
        // What had no turn comes first, with what goes with it.
        assert_eq!(next(), [(3, 0), (3, 1), (4, 0)]);
    }

    #[test]
    fn few_threads_are_stopped_at_a_time() {
        let attempts = (1..9).map(|n| attempt(2 * n, 2 * n + 1, 0, 100, 200)).collect();
        let mut chooser = Chooser::new(attempts, 6);
        assert_eq!(chooser.next(|_| true).0.iter().map(|stall| stall.stops.len()).sum::<usize>(), 3);
    }

    #[test]
    fn what_promises_most_comes_first() {
        let mut attempts: Vec<Attempt> = (0..3).map(|n| attempt(2, 3, n, 100, 200 - u64::from(n))).collect();
        attempts[0].promise.store = true;
        attempts[1].promise.sees_change = true;
        let mut chooser = Chooser::new(attempts, 2);
        assert!(chooser.any_predicted(|_| true));
        // Some runs are for what was not predicted.
        for way in WAYS.iter().cycle().take(2 * WAYS.len()).filter(|way| way.wait != Wait::Change) {
            let (stalls, _) = chooser.choose(*way, &|_| true);
            assert_eq!(stops(&stalls)[0].1 == 0, way.predicted, "{way:?}");
        }
    }

    #[test]
    fn of_two_threads_one_is_ahead_if_that_shows_a_change() {
        let change = |reader, operations, leads| Change {
            reader: ThreadId(reader),
            site: pmvet_events::SiteId(1),
            context: ContextId(1),
            reads: 1,
            likeness: 0,
            operations,
            leads,
        };
        let mut attempts: Vec<Attempt> =
            [(2, 3), (4, 5), (2, 5)].iter().map(|&(thread, reader)| attempt(thread, reader, 0, 10, 20)).collect();
        attempts[0].change = Some(change(3, (10, 20), 20..=40));
        attempts[1].change = Some(change(5, (10, 20), -40..=-20));
        // The second reader is ahead already, too far for this one.
        attempts[2].change = Some(change(5, (50, 60), 30..=40));
        let mut chooser = Chooser::new(attempts, 4);
        let (stalls, leads) = chooser.next(|_| true);
        assert_eq!(stops(&stalls), [(2, 0), (4, 0)]);
        let mut leads: Vec<_> = leads.iter().map(|lead| (lead.thread, lead.fences)).collect();
        leads.sort_unstable();
        assert_eq!(leads, [(2, 23), (5, 23)]);
    }

    #[test]
    fn a_long_stop_is_for_all_readers() {
        let mut chooser = Chooser::new(vec![attempt(2, 3, 0, 100, 120), attempt(2, 4, 0, 100, 130)], 2);
        let long = |stalls: &[Stall]| stalls.iter().flat_map(|stall| &stall.stops).any(|stop| stop.reader == 0);
        let runs: Vec<_> = (0..WAYS.len()).map(|_| chooser.next(|_| true).0).collect();
        assert!(runs.iter().filter(|stalls| long(stalls)).all(|stalls| stops(stalls) == [(2, 0)]));
        assert!(runs.iter().any(|stalls| long(stalls)));
    }

    #[test]
    fn what_is_closed_is_left_out() {
        let mut chooser = Chooser::new(vec![attempt(2, 3, 0, 100, 120)], 3);
        assert_eq!(chooser.next(|_| false).0, []);
        assert!(!chooser.any_predicted(|_| true));
    }
}
