//! Picks the stores at which a run stops threads, and until when.
//!
//! The useful stores of the recorded run are those that another thread read later. If the writer stops there until that thread
//! has read, and the others go on as before, the value is read before it is persistent. Each such pair of a store and a read is
//! an *attempt*. A run makes as many attempts as fit in, the most promising first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use pmvet_events::plan::{self, MAX_STALLS, Stall};
use pmvet_events::{ContextId, ThreadId};

use super::chains::{Chain, Chains};
use super::instruction::Instruction;
use super::policy::POLICY;

/// How a run stops threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Way {
    /// Stops before the persist, not just after the store. By then the writer has done all that lets others in.
    late: bool,
    wait: Wait,
    /// At stores of predicted races, or at others.
    predicted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// Until one reader has read. That leaves time for many stops.
    Short,
    /// Until all other threads have finished, whichever reads. Of the many reads of a word, few may matter, as with a bucket and
    /// its keys.
    Long,
    /// Until a reader has seen a change. The two threads wait for each other to make that happen.
    Change,
    /// As long, but any thread that comes to the store is stopped. If something happens only a few times in a run, such as the resize of
    /// a table, chance may decide which thread does it.
    Anyone,
}

impl Way {
    const fn new(late: bool, wait: Wait, predicted: bool) -> Self {
        Self { late, wait, predicted }
    }

    /// Index of this way in an attempt's counts of tries.
    fn index(self) -> usize {
        usize::from(self.late) * WAITS + self.wait as usize
    }
}

/// How many kinds of [`Wait`] there are.
const WAITS: usize = 4;

/// The ways that runs take in turn.
const WAYS: [Way; 13] = [
    Way::new(true, Wait::Anyone, true),
    Way::new(true, Wait::Short, true),
    Way::new(true, Wait::Anyone, true),
    Way::new(true, Wait::Change, true),
    Way::new(true, Wait::Anyone, true),
    Way::new(true, Wait::Short, false),
    Way::new(true, Wait::Long, true),
    Way::new(true, Wait::Anyone, true),
    Way::new(true, Wait::Change, true),
    Way::new(false, Wait::Short, true),
    Way::new(true, Wait::Anyone, true),
    Way::new(true, Wait::Long, false),
    Way::new(true, Wait::Change, true),
];

/// The n-th time that a thread runs an instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// The instruction.
    pub at: Instruction,
    /// How often the thread has run it before.
    pub nth: u32,
}

/// What makes an attempt promising, the strongest reason first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prospect {
    /// The locksets predict a race of the store.
    pub store: bool,
    /// They predict a race of this store with this load.
    pub pair: bool,
    /// The reader has read the word before, so it can see the change.
    pub sees_change: bool,
    /// How closely the reader's operation is related to the writer's.
    pub similarity: u8,
}

/// A store that may be read too early, what makes it persistent, and its reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The thread that stores, and is stopped.
    pub thread: ThreadId,
    /// The store: an early stop is just after it.
    pub store: Arrival,
    /// What makes it persistent: a late stop is just before it. Nothing: nothing does.
    pub end: Option<Arrival>,
    /// The thread that the writer waits for. Nothing: no thread reads the store, and it waits for all others.
    pub reader: Option<ThreadId>,
    /// The instruction with which the reader reads the store; without a reader, that of the store.
    pub load: Instruction,
    /// All loads that are predicted to read the store too early.
    pub predicted_loads: Arc<[Instruction]>,
    /// The call path to the load.
    pub path: ContextId,
    /// In how many of its operations the reader reads the store, up to the load of interest.
    pub reads: u32,
    /// Number of the store in the recorded run.
    pub seq: u64,
    /// Number of the load in the recorded run; that of the store if the threads have to wait for each other.
    pub until: u64,
    /// What makes it promising.
    pub promise: Prospect,
    /// Where the threads wait for each other so that the reader sees the store as a change.
    pub change: Option<Chain>,
}

/// What a run does.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RunPlan {
    /// Where threads are stopped. Empty if everything was tried.
    pub(super) stalls: Vec<Stall>,
    /// Threads that are not stopped are kept in step. Where threads wait for each other, that is useless and takes time.
    pub(super) in_step: bool,
    /// The stores that it targets, if those are only a few.
    pub(super) about: BTreeSet<Instruction>,
}

/// Picks the attempts for one run after another.
pub(super) struct SchedulePicker {
    attempts: Vec<Attempt>,
    /// How often each was tried in each way.
    tried: Vec<[u8; 2 * WAITS]>,
    /// How often each pair of instructions was tried, per call path of the second: the path makes the difference.
    pairs: HashMap<(Instruction, Instruction, ContextId), usize>,
    /// How many threads may be stopped at a time.
    most: usize,
    threads: u32,
    /// The number of the last event of the recorded run that counts.
    last: u64,
    runs: usize,
}

impl SchedulePicker {
    pub(super) fn new(attempts: Vec<Attempt>, threads: u32) -> Self {
        Self {
            tried: vec![[0; 2 * WAITS]; attempts.len()],
            last: attempts.iter().map(|attempt| attempt.until).max().unwrap_or(0),
            attempts,
            pairs: HashMap::new(),
            most: (threads / POLICY.threads_per_stop).max(1) as usize,
            threads,
            runs: 0,
        }
    }

    pub(super) fn any_predicted(&self, open: impl Fn(&Attempt) -> bool) -> bool {
        self.attempts.iter().any(|attempt| attempt.promise.store && open(attempt))
    }

    /// Whether a thread reads any of the stores.
    pub(super) fn any_read(&self) -> bool {
        self.attempts.iter().any(|attempt| attempt.reader.is_some())
    }

    /// The plan of the next run.
    pub(super) fn next(&mut self, open: impl Fn(&Attempt) -> bool) -> RunPlan {
        let first = self.runs;
        self.runs += 1;
        let ways = (first..first + WAYS.len()).map(|run| WAYS[run % WAYS.len()]);
        let mut choices = ways.map(|way| match way.wait {
            Wait::Anyone => self.stop_anyone(way, &open),
            _ => self.choose(way, &open),
        });
        choices.find(|choice| !choice.stalls.is_empty()).unwrap_or_default()
    }

    /// Stops any thread that comes to a rare store, and makes a reader wait for that before it reads: once the writer is stopped, a reader
    /// that needs other threads to go on may be too late.
    fn stop_anyone(&mut self, way: Way, open: &impl Fn(&Attempt) -> bool) -> RunPlan {
        let mut stores: BTreeMap<&Instruction, RareStore<'_>> = BTreeMap::new();
        for (attempt, tried) in self.attempts.iter().zip(&self.tried) {
            let fits = attempt.change.is_none() && attempt.promise.store == way.predicted && open(attempt);
            if let Some(stop) = attempt.stop(way.late).filter(|_| fits) {
                let store = stores.entry(&attempt.store.at).or_default();
                store.tried = store.tried.max(tried[way.index()]);
                store.visits.insert((attempt.thread, attempt.store.nth));
                store.stops.insert(&stop.at);
                store.loads = &attempt.predicted_loads;
                store.readers.extend(attempt.reader);
            }
        }
        stores.retain(|_, store| store.tried < POLICY.tries_per_way && store.visits.len() <= POLICY.few_visits);
        let mut order: Vec<(&Instruction, RareStore<'_>)> = stores.into_iter().collect();
        order.sort_by_key(|(_, store)| store.turn());
        let (mut stalls, mut chosen) = (BTreeMap::<Instruction, Vec<plan::Stop>>::new(), BTreeSet::new());
        let mut waiting = BTreeSet::new();
        for (at, store) in order {
            let Some((reader, nth)) = store.next_reader(&waiting) else { continue };
            if waiting.len() == self.most {
                break;
            }
            if stalls.len() + store.stops.len() + store.loads.len() > MAX_STALLS {
                break;
            }
            waiting.insert(reader);
            chosen.insert(at.clone());
            let number = waiting.len() as u32;
            for stop in store.stops {
                let others = stops_of_anyone(self.threads, 0..POLICY.visits_of_anyone);
                let others = others.into_iter().filter(|stop| stop.thread != reader.0);
                stalls.entry(stop.clone()).or_default().extend(others.map(|stop| plan::Stop { number, ..stop }));
            }
            for load in store.loads {
                let gate = plan::Stop { thread: reader.0, nth, until: number, ..plan::Stop::default() };
                stalls.entry(load.clone()).or_default().push(gate);
            }
        }
        for (attempt, tried) in self.attempts.iter().zip(&mut self.tried) {
            tried[way.index()] += u8::from(chosen.contains(&attempt.store.at));
        }
        let stall = |(at, stops): (Instruction, Vec<plan::Stop>)| Stall {
            module: at.module,
            offset: at.offset,
            before: way.late,
            stops,
        };
        RunPlan { stalls: stalls.into_iter().map(stall).collect(), in_step: true, about: chosen }
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
        // Among equally promising attempts: all pairs in turn, the most similar operations first, then the shortest stops, which
        // disturb the run least.
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
                let Some(stops) = chains.add(attempt, chain, stop) else { continue };
                let new: BTreeSet<&Instruction> =
                    stops.iter().map(|(at, _)| at).filter(|at| !stalls.contains_key(*at)).collect();
                if stalls.len() + new.len() > MAX_STALLS {
                    break;
                }
                stops.into_iter().for_each(|(at, stop)| stalls.entry(at).or_default().push(stop));
            } else {
                let room = stalls.len() < MAX_STALLS || stalls.contains_key(&stop.at);
                if !room || !taken.add(attempt, way.wait) {
                    continue;
                }
                let (thread, nth) = (attempt.thread.0, stop.nth);
                let (reader, reads) = match way.wait {
                    Wait::Long => (0, u32::MAX),
                    Wait::Short | Wait::Change | Wait::Anyone => {
                        (attempt.reader.map_or(0, |reader| reader.0), attempt.reads)
                    }
                };
                let stop_there = plan::Stop { thread, nth, reader, reads, ..plan::Stop::default() };
                stalls.entry(stop.at.clone()).or_default().push(stop_there);
            }
            *self.pairs.entry(attempt.pair()).or_insert(0) += 1;
            // A long stop serves all readers.
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
        let (stalls, in_step) = (stalls.into_iter().map(stall).collect(), way.wait != Wait::Change);
        RunPlan { stalls, in_step, about: BTreeSet::new() }
    }
}

/// A store that happens a few times in a run.
#[derive(Debug, Default)]
struct RareStore<'a> {
    tried: u8,
    visits: BTreeSet<(ThreadId, u32)>,
    /// Where its threads stop.
    stops: BTreeSet<&'a Instruction>,
    /// The loads that are predicted to read it.
    loads: &'a [Instruction],
    readers: BTreeSet<ThreadId>,
}

impl RareStore<'_> {
    /// Sort key, the next store first: each store has turns in proportion to the places that read it.
    fn turn(&self) -> Reverse<usize> {
        Reverse(1000 * self.loads.len() / (usize::from(self.tried) + 1))
    }

    /// The reader that waits for it, and from which visit of each load: all readers in turn, first at the start, then later.
    /// `waiting` are those that already wait.
    fn next_reader(&self, waiting: &BTreeSet<ThreadId>) -> Option<(ThreadId, u32)> {
        let (tried, readers) = (usize::from(self.tried), self.readers.len());
        let mut in_turn = self.readers.iter().cycle().skip(tried).take(readers);
        let reader = in_turn.find(|reader| !waiting.contains(reader))?;
        Some((*reader, (tried / readers) as u32 * POLICY.visits_of_anyone))
    }
}

/// Stops each thread at some of its visits, until the others have finished.
pub(super) fn stops_of_anyone(threads: u32, visits: Range<u32>) -> Vec<plan::Stop> {
    let all = (1..=threads).flat_map(|thread| visits.clone().map(move |nth| (thread, nth)));
    all.map(|(thread, nth)| plan::Stop { thread, nth, reader: 0, reads: u32::MAX, ..plan::Stop::default() }).collect()
}

/// What a run does already.
#[derive(Debug, Default)]
struct Taken {
    /// Which threads are stopped for which readers, and when.
    spans: Vec<StopSpan>,
    /// How many threads may be stopped at a time.
    most: usize,
    /// How long a long stop lasts.
    length: u64,
}

#[derive(Debug)]
struct StopSpan {
    thread: ThreadId,
    reader: Option<ThreadId>,
    from: u64,
    until: u64,
}

impl Taken {
    /// Adds an attempt if it fits beside the others: its reader must run while the writer waits, and few threads may be stopped
    /// at a time.
    fn add(&mut self, attempt: &Attempt, wait: Wait) -> bool {
        let Attempt { thread, reader, seq, until, .. } = *attempt;
        let until = if wait == Wait::Long { until.max(seq + self.length) } else { until };
        let (from, until) = (seq, until + POLICY.reader_slack_events);
        let mut stopped = 0;
        for other in self.spans.iter().filter(|other| other.from <= until && from <= other.until) {
            if other.thread == thread || Some(other.thread) == reader || other.reader == Some(thread) {
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
            reader: Some(ThreadId(reader)),
            load: spot(20),
            predicted_loads: Arc::new([spot(20)]),
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
        // An attempt that had no turn yet comes first, with those that fit beside it.
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
        for way in
            WAYS.iter().cycle().take(2 * WAYS.len()).filter(|way| !matches!(way.wait, Wait::Change | Wait::Anyone))
        {
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
    fn what_happens_a_few_times_stops_whoever_does_it() {
        let mut rare = attempt(2, 3, 0, 100, 120);
        (rare.promise.store, rare.promise.pair, rare.store.at.offset) = (true, true, 9);
        let often = (0..100).map(|nth| {
            let end = Arrival { at: Instruction { module: "m".into(), offset: 12 }, nth };
            let promise = Prospect { store: true, pair: true, ..PROSPECT };
            Attempt { promise, end: Some(end), ..attempt(3, 2, nth, 100, 120) }
        });
        let mut picker = SchedulePicker::new(often.chain([rare]).collect(), 3);
        let way = Way::new(true, Wait::Anyone, true);
        for round in 0..u32::from(POLICY.tries_per_way) {
            let stalls = picker.stop_anyone(way, &|_| true).stalls;
            let [store, load] = &stalls[..] else { panic!("{stalls:?}") };
            assert_eq!((store.offset, load.offset), (11, 20));
            let visits = |thread| (0..POLICY.visits_of_anyone).map(move |nth| (thread, nth));
            assert_eq!(stops(&stalls[..1]), visits(1).chain(visits(2)).collect::<Vec<_>>(), "all but the reader");
            let gate =
                plan::Stop { thread: 3, nth: round * POLICY.visits_of_anyone, until: 1, ..plan::Stop::default() };
            assert_eq!(load.stops, [gate]);
            assert!(store.stops.iter().all(|stop| stop.number == 1));
        }
        assert_eq!(picker.stop_anyone(way, &|_| true).stalls, [], "that was often enough");
    }

    #[test]
    fn what_is_closed_is_left_out() {
        let mut picker = SchedulePicker::new(vec![attempt(2, 3, 0, 100, 120)], 3);
        assert_eq!(picker.next(|_| false).stalls, []);
        assert!(!picker.any_predicted(|_| true));
    }
}
