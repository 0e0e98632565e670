//! Which stores threads are stopped at in a run, and until when.
//!
//! Of the stores of the recorded run those are of use that another thread read later. If the writer is stopped there until that
//! thread has come by, and the others go on as they did, the value is read before it is persistent. Each such pair of a store
//! and a read is an *attempt*. A run makes as many attempts as fit in, the most promising ones first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use pmvet_events::plan::{self, MAX_STALLS, Stall};
use pmvet_events::{ContextId, ThreadId};

use super::chains::{Chain, Chains};
use super::instruction::Instruction;
use super::policy::POLICY;

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
    /// Until a reader has come who sees a change. The two threads wait for each other to that end.
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
pub struct Arrival {
    pub at: Instruction,
    pub nth: u32,
}

/// What speaks for an attempt, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prospect {
    /// The locksets predict a race of the store, and of the two instructions.
    pub store: bool,
    pub pair: bool,
    /// The reader has read the word before, and so can tell that it has changed.
    pub sees_change: bool,
    /// How much the reader's operation has to do with the writer's.
    pub similarity: u8,
}

/// A store that may be read too early, what makes it persistent at last, and who reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    pub thread: ThreadId,
    pub store: Arrival,
    pub end: Option<Arrival>,
    pub reader: ThreadId,
    pub load: Instruction,
    /// The call path to the load.
    pub path: ContextId,
    /// In how many of its operations the reader reads the store up to the load that is of interest.
    pub reads: u32,
    /// The numbers of the store and of that load in the recorded run.
    pub seq: u64,
    pub until: u64,
    pub promise: Prospect,
    /// The reader sees the store as a change if the threads wait for each other there.
    pub change: Option<Chain>,
}

/// What a run does.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RunPlan {
    /// Where threads are stopped. None if everything was tried.
    pub(super) stalls: Vec<Stall>,
    /// The threads that are not stopped are kept in step. That is of no use, and takes time, where threads wait for each other.
    pub(super) in_step: bool,
}

/// Chooses for one run after the other.
pub(super) struct SchedulePicker {
    attempts: Vec<Attempt>,
    /// How often each was tried in each way.
    tried: Vec<[u8; 6]>,
    /// How often each two instructions were tried, the second of them on each call path: what leads there makes the difference.
    pairs: HashMap<(Instruction, Instruction, ContextId), usize>,
    /// How many threads may be stopped at a time.
    most: usize,
    /// The number of the last event of the recorded run that counts.
    last: u64,
    runs: usize,
}

impl SchedulePicker {
    pub(super) fn new(attempts: Vec<Attempt>, threads: u32) -> Self {
        Self {
            tried: vec![[0; 6]; attempts.len()],
            last: attempts.iter().map(|attempt| attempt.until).max().unwrap_or(0),
            attempts,
            pairs: HashMap::new(),
            most: (threads / POLICY.threads_per_stop).max(1) as usize,
            runs: 0,
        }
    }

    pub(super) fn any_predicted(&self, open: impl Fn(&Attempt) -> bool) -> bool {
        self.attempts.iter().any(|attempt| attempt.promise.store && open(attempt))
    }

    /// What is done in the next run.
    pub(super) fn next(&mut self, open: impl Fn(&Attempt) -> bool) -> RunPlan {
        let first = self.runs;
        self.runs += 1;
        let ways = (first..first + WAYS.len()).map(|run| WAYS[run % WAYS.len()]);
        ways.map(|way| self.choose(way, &open)).find(|choice| !choice.stalls.is_empty()).unwrap_or_default()
    }

    fn choose(&mut self, way: Way, open: &impl Fn(&Attempt) -> bool) -> RunPlan {
        let mut order: Vec<usize> = (0..self.attempts.len())
            .filter(|&i| {
                let attempt = &self.attempts[i];
                let fits = attempt.change.is_some() == (way.wait == Wait::Change);
                fits && self.tried[i][way.index()] < POLICY.tries_per_way
                    && attempt.stop(way.late).is_some()
                    && open(attempt)
            })
            .collect();
        if order.iter().any(|&i| self.attempts[i].promise.store == way.predicted) {
            order.retain(|&i| self.attempts[i].promise.store == way.predicted);
        }
        // Of many attempts that promise the same, the most alike, and the shortest, which disturb the run the least; all pairs in turn.
        order.sort_by_cached_key(|&i| {
            let attempt = &self.attempts[i];
            let length = attempt.change.as_ref().map_or(attempt.until - attempt.seq, |change| change.distance().into());
            (self.tried[i][way.index()], Reverse(attempt.promise), length)
        });
        let mut turns = self.pairs.clone();
        order.sort_by_cached_key(|&i| {
            let attempt = &self.attempts[i];
            let turn = turns.entry(attempt.pair()).or_insert(0);
            *turn += 1;
            (self.tried[i][way.index()], Reverse(Prospect { similarity: 0, ..attempt.promise }), *turn)
        });
        let mut taken = Taken { most: self.most, length: self.last / POLICY.long_stop_divisor, ..Taken::default() };
        let mut chains = Chains::default();
        let mut stalls: BTreeMap<Instruction, Vec<plan::Stop>> = BTreeMap::new();
        for i in order {
            if taken.spans.len() == POLICY.attempts_per_run || chains.len() == POLICY.chains_per_run {
                break;
            }
            let attempt = &self.attempts[i];
            let Some(stop) = attempt.stop(way.late) else { continue };
            if let Some(chain) = &attempt.change {
                let Some(stops) = chains.take(attempt, chain, stop) else { continue };
                let new: BTreeSet<&Instruction> =
                    stops.iter().map(|(at, _)| at).filter(|at| !stalls.contains_key(*at)).collect();
                if stalls.len() + new.len() > MAX_STALLS {
                    break;
                }
                stops.into_iter().for_each(|(at, stop)| stalls.entry(at).or_default().push(stop));
            } else {
                let room = stalls.len() < MAX_STALLS || stalls.contains_key(&stop.at);
                if !room || !taken.take(attempt, way.wait) {
                    continue;
                }
                let (thread, nth) = (attempt.thread.0, stop.nth);
                let (reader, reads) = match way.wait {
                    Wait::Long => (0, u32::MAX),
                    Wait::Short | Wait::Change => (attempt.reader.0, attempt.reads),
                };
                let stop_there = plan::Stop { thread, nth, reader, reads, ..plan::Stop::default() };
                stalls.entry(stop.at.clone()).or_default().push(stop_there);
            }
            *self.pairs.entry(attempt.pair()).or_insert(0) += 1;
            // A long stop is for all readers.
            let seq = attempt.seq;
            let alike = |(at, other): (usize, &Attempt)| at == i || way.wait == Wait::Long && other.seq == seq;
            let same: Vec<usize> =
                self.attempts.iter().enumerate().filter(|&other| alike(other)).map(|(at, _)| at).collect();
            same.into_iter().for_each(|at| self.tried[at][way.index()] += 1);
        }
        let stall = |(at, stops): (Instruction, Vec<plan::Stop>)| Stall {
            module: at.module.clone(),
            offset: at.offset,
            before: way.late,
            stops,
        };
        RunPlan { stalls: stalls.into_iter().map(stall).collect(), in_step: way.wait != Wait::Change }
    }
}

/// What a run does already.
#[derive(Debug, Default)]
struct Taken {
    /// Who is stopped for whom, and when.
    spans: Vec<StopSpan>,
    /// How many threads may be stopped at a time.
    most: usize,
    /// How long a long stop lasts.
    length: u64,
}

#[derive(Debug)]
struct StopSpan {
    thread: ThreadId,
    reader: ThreadId,
    from: u64,
    until: u64,
}

impl Taken {
    /// Takes an attempt in, if it can be made beside the others: its reader runs while it waits, and few threads are stopped at a
    /// time.
    fn take(&mut self, attempt: &Attempt, wait: Wait) -> bool {
        let Attempt { thread, reader, seq, until, .. } = *attempt;
        let until = if wait == Wait::Long { until.max(seq + self.length) } else { until };
        let (from, until) = (seq, until + POLICY.reader_slack_events);
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
        self.spans.push(StopSpan { thread, reader, from, until });
        true
    }
}

impl Attempt {
    fn stop(&self, late: bool) -> Option<&Arrival> {
        if late { self.end.as_ref() } else { Some(&self.store) }
    }

    fn pair(&self) -> (Instruction, Instruction, ContextId) {
        (self.store.at.clone(), self.load.clone(), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROSPECT: Prospect = Prospect { store: false, pair: false, sees_change: false, similarity: 0 };

    /// A store by a thread that another one reads.
    fn attempt(thread: u32, reader: u32, nth: u32, seq: u64, until: u64) -> Attempt {
        let spot = |offset| Instruction { module: "m".into(), offset };
        let stop = |offset| Arrival { at: spot(offset), nth };
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
            promise: PROSPECT,
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
        let mut picker = SchedulePicker::new(attempts, 4);
        let mut next = || stops(&picker.next(|_| true).stalls);
        assert_eq!(next(), [(2, 0), (3, 1), (4, 0)]);
        // What had no turn comes first, with what goes with it.
        assert_eq!(next(), [(3, 0), (3, 1), (4, 0)]);
    }

    #[test]
    fn few_threads_are_stopped_at_a_time() {
        let attempts = (1..9).map(|n| attempt(2 * n, 2 * n + 1, 0, 100, 200)).collect();
        let mut picker = SchedulePicker::new(attempts, 6);
        assert_eq!(picker.next(|_| true).stalls.iter().map(|stall| stall.stops.len()).sum::<usize>(), 3);
    }

    #[test]
    fn what_promises_most_comes_first() {
        let mut attempts: Vec<Attempt> = (0..3).map(|n| attempt(2, 3, n, 100, 200 - u64::from(n))).collect();
        attempts[0].promise.store = true;
        attempts[1].promise.sees_change = true;
        let mut picker = SchedulePicker::new(attempts, 2);
        assert!(picker.any_predicted(|_| true));
        // Some runs are for what was not predicted.
        for way in WAYS.iter().cycle().take(2 * WAYS.len()).filter(|way| way.wait != Wait::Change) {
            let stalls = picker.choose(*way, &|_| true).stalls;
            assert_eq!(stops(&stalls)[0].1 == 0, way.predicted, "{way:?}");
        }
    }

    #[test]
    fn a_long_stop_is_for_all_readers() {
        let mut picker = SchedulePicker::new(vec![attempt(2, 3, 0, 100, 120), attempt(2, 4, 0, 100, 130)], 2);
        let long = |stalls: &[Stall]| stalls.iter().flat_map(|stall| &stall.stops).any(|stop| stop.reader == 0);
        let runs: Vec<_> = (0..WAYS.len()).map(|_| picker.next(|_| true).stalls).collect();
        assert!(runs.iter().filter(|stalls| long(stalls)).all(|stalls| stops(stalls) == [(2, 0)]));
        assert!(runs.iter().any(|stalls| long(stalls)));
    }

    #[test]
    fn what_is_closed_is_left_out() {
        let mut picker = SchedulePicker::new(vec![attempt(2, 3, 0, 100, 120)], 3);
        assert_eq!(picker.next(|_| false).stalls, []);
        assert!(!picker.any_predicted(|_| true));
    }
}
