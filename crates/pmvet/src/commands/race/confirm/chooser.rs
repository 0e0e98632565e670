//! Which stores threads are stopped at in a run, and until when.
//!
//! Of the stores of the recorded run those are of use that another thread read later. If the writer is stopped there until that
//! thread has come by, and the others go on as they did, the value is read before it is persistent. Each such pair of a store
//! and a read is an *attempt*. A run makes as many attempts as fit in, the most promising ones first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use pmvet_events::ThreadId;
use pmvet_events::plan::{self, MAX_STALLS, Stall};

use super::Spot;

/// One of so many threads may be stopped at a time.
const STOPPED: u32 = 2;
/// Every so many runs threads are stopped after the store, in the others before its persist.
const EARLY: usize = 4;
/// So many attempts are made in one run: each of them may take some milliseconds for nothing.
const MOST_ATTEMPTS: usize = 48;
/// So often an attempt is made: the reader may come too late the first time.
const TRIES: u8 = 6;
/// Every so many runs are for what was not predicted.
const OTHERS: usize = 3;
/// How much later than expected a reader may come.
const SLACK: u64 = 8;

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
}

/// A store that may be read too early, what makes it persistent at last, and who reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) thread: ThreadId,
    pub(crate) store: Stop,
    pub(crate) end: Option<Stop>,
    pub(crate) reader: ThreadId,
    pub(crate) load: Spot,
    /// In how many of its operations the reader reads the store up to the load that is of interest.
    pub(crate) reads: u32,
    /// The numbers of the store and of that load in the recorded run.
    pub(crate) seq: u64,
    pub(crate) until: u64,
    pub(crate) promise: Promise,
}

/// Chooses for one run after the other.
pub(super) struct Chooser {
    attempts: Vec<Attempt>,
    /// How often it was tried to stop after the store, and before the persist.
    tried: Vec<[u8; 2]>,
    /// How often each two instructions were tried.
    pairs: HashMap<(Spot, Spot), usize>,
    /// How many threads may be stopped at a time.
    most: usize,
    runs: usize,
}

impl Chooser {
    pub(super) fn new(attempts: Vec<Attempt>, threads: u32) -> Self {
        Self {
            tried: vec![[0; 2]; attempts.len()],
            attempts,
            pairs: HashMap::new(),
            most: (threads / STOPPED).max(1) as usize,
            runs: 0,
        }
    }

    pub(super) fn any_predicted(&self, open: impl Fn(&Attempt) -> bool) -> bool {
        self.attempts.iter().any(|attempt| attempt.promise.store && open(attempt))
    }

    /// Where threads are stopped in the next run. Mostly that is before the persist, since by then the writer has done all that
    /// lets others in; now and then it is after the store. Empty if everything was tried.
    pub(super) fn next(&mut self, open: impl Fn(&Attempt) -> bool) -> Vec<Stall> {
        self.runs += 1;
        let late = !self.runs.is_multiple_of(EARLY);
        let stalls = self.choose(late, &open);
        if stalls.is_empty() { self.choose(!late, &open) } else { stalls }
    }

    fn choose(&mut self, late: bool, open: &impl Fn(&Attempt) -> bool) -> Vec<Stall> {
        let side = usize::from(late);
        let mut order: Vec<usize> = (0..self.attempts.len())
            .filter(|&i| {
                self.tried[i][side] < TRIES && self.attempts[i].stop(late).is_some() && open(&self.attempts[i])
            })
            .collect();
        // Of many attempts that promise the same, those of pairs that had few; and the shortest, which disturb the run the least.
        order.sort_by_cached_key(|&i| {
            let Attempt { promise, seq, until, .. } = self.attempts[i];
            (
                self.tried[i][side],
                Reverse(promise),
                self.pairs.get(&self.attempts[i].pair()).copied().unwrap_or(0),
                until - seq,
            )
        });
        let wanted = !self.runs.is_multiple_of(OTHERS);
        if order.iter().any(|&i| self.attempts[i].promise.store == wanted) {
            order.retain(|&i| self.attempts[i].promise.store == wanted);
        }
        let mut taken: Vec<usize> = Vec::new();
        let mut stalls: BTreeMap<Spot, Vec<plan::Stop>> = BTreeMap::new();
        for i in order {
            if taken.len() == MOST_ATTEMPTS {
                break;
            }
            let attempt = &self.attempts[i];
            let Some(stop) = attempt.stop(late) else { continue };
            let fits = self.fits(attempt, &taken) && (stalls.len() < MAX_STALLS || stalls.contains_key(&stop.at));
            if !fits {
                continue;
            }
            let (thread, nth, reader, reads) = (attempt.thread.0, stop.nth, attempt.reader.0, attempt.reads);
            stalls.entry(stop.at.clone()).or_default().push(plan::Stop { thread, nth, reader, reads });
            *self.pairs.entry(attempt.pair()).or_insert(0) += 1;
            self.tried[i][side] += 1;
            taken.push(i);
        }
        let stall = |(at, stops): (Spot, Vec<plan::Stop>)| Stall {
            module: at.module.to_string_lossy().into_owned(),
            offset: at.offset,
            before: late,
            stops,
        };
        stalls.into_iter().map(stall).collect()
    }

    /// Whether an attempt can be made beside others: its reader runs while it waits, and few threads are stopped at a time.
    fn fits(&self, attempt: &Attempt, taken: &[usize]) -> bool {
        let at_the_same_time = taken
            .iter()
            .map(|&i| &self.attempts[i])
            .filter(|other| other.seq <= attempt.until + SLACK && attempt.seq <= other.until + SLACK);
        let mut stopped = 0;
        for other in at_the_same_time {
            if other.thread == attempt.thread || other.thread == attempt.reader || other.reader == attempt.thread {
                return false;
            }
            stopped += 1;
        }
        stopped < self.most
    }
}

impl Attempt {
    fn stop(&self, late: bool) -> Option<&Stop> {
        if late { self.end.as_ref() } else { Some(&self.store) }
    }

    fn pair(&self) -> (Spot, Spot) {
        (self.store.at.clone(), self.load.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMISE: Promise = Promise { store: false, pair: false, sees_change: false };

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
            reads: 1,
            seq,
            until,
            promise: PROMISE,
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
        let mut next = || stops(&chooser.next(|_| true));
        assert_eq!(next(), [(2, 0), (3, 1), (4, 0)]);
        // What had no turn comes first, with what goes with it.
        assert_eq!(next(), [(3, 0), (3, 1), (4, 0)]);
    }

    #[test]
    fn few_threads_are_stopped_at_a_time() {
        let attempts = (1..9).map(|n| attempt(2 * n, 2 * n + 1, 0, 100, 200)).collect();
        let mut chooser = Chooser::new(attempts, 6);
        assert_eq!(chooser.next(|_| true).iter().map(|stall| stall.stops.len()).sum::<usize>(), 3);
    }

    #[test]
    fn what_promises_most_comes_first() {
        let mut attempts: Vec<Attempt> = (0..3).map(|n| attempt(2, 3, n, 100, 200 - u64::from(n))).collect();
        attempts[0].promise.store = true;
        attempts[1].promise.sees_change = true;
        let mut chooser = Chooser::new(attempts, 2);
        assert!(chooser.any_predicted(|_| true));
        let mut next = || stops(&chooser.next(|_| true));
        // The third run is for what was not predicted.
        assert_eq!([next(), next(), next()], [[(2, 0)], [(2, 0)], [(2, 1)]]);
    }

    #[test]
    fn what_is_closed_is_left_out() {
        let mut chooser = Chooser::new(vec![attempt(2, 3, 0, 100, 120)], 3);
        assert_eq!(chooser.next(|_| false), []);
        assert!(!chooser.any_predicted(|_| true));
    }
}
