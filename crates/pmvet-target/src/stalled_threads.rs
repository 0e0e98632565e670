//! Decides when a thread that was stopped after a store may go on.
//!
//! PMRace (Chen and others, ASPLOS 2022) lets readers wait for a writer and the writer sleep for a fixed time. Here only
//! writers wait, as long as other threads have something to do: any of them may meanwhile read what may still be lost.
//! The paper's three pitfalls:
//!
//! 1. *Too many stops, too long.* The plan stops a thread only where another one is known to read later, and says which. A
//!    stall ends when that one has read the store and gone on; a sync point that was useless [`MAX_USELESS_STALLS`] times in
//!    a row is dropped for this run.
//! 2. *All wait.* The thread that was stopped first is the privileged one and goes on.
//! 3. *Some wait for a stopped thread.* If the reader is blocked or spins, the stall is over. When no thread makes
//!    progress any more, the privileged thread goes on.
//!
//! Where the order of two threads matters, a stop can also wait for a stop of another thread, as the paper's readers wait for
//! the writer.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use pmvet_events::event::{Event, MarkerKind, What};
use pmvet_events::ids::{FileId, ThreadId};
use pmvet_events::plan::{Plan, Stop};
use pmvet_events::spaces::AddressSpaces;

use crate::thread_activity::{Activity, Kernel};

/// After this many fences since it read the store, a thread has done what it does with the value.
const FENCES_AFTER_READ: u32 = 2;
/// ... or after this many, if it should answer and does not.
const FENCES_WITHOUT_ANSWER: u32 = 8;
/// If any threads make this many reads more than the plan asks for, that is enough.
const SPARE_READS: u32 = 3;
/// A stall ends after this many stores by others, if the plan does not say.
const MAX_STORES_BY_OTHERS: u32 = 2000;
/// After this many stops in a row without a reader, the stall is dropped.
const MAX_USELESS_STALLS: u32 = 16;
/// Threads that run without progress count as spinning after this time, if they had a processor for some of it; blocked ones are
/// seen at once.
const ALL_SPINNING_TIME: Duration = Duration::from_millis(15);
const SPINNING_CPU_TIME: Duration = Duration::from_millis(3);
/// A thread spins if it has made this many accesses to the same few words, and nothing else.
const SPIN_ACCESSES: u32 = 200;
const SPIN_WORDS: usize = 4;
/// Fences with nothing to order belong to a waiting loop, once its thread has read the same few words this often.
const WAITING_LOOKS: u32 = 16;
/// If all threads are blocked in the kernel, or seen to spin, for this long, they wait for the stopped one. This is longer than
/// they sleep to keep in step.
const ALL_BLOCKED_TIME: Duration = Duration::from_millis(4);
/// A reader that is blocked or spins for this long waits for the stopped one.
const READER_BLOCKED_TIME: Duration = Duration::from_millis(10);
/// How many stores of a thread are watched for readers.
const MAX_WATCHED_STORES: usize = 256;
/// Longer patience while threads that are known to come have not started yet.
const START_PATIENCE: Duration = Duration::from_millis(300);
/// No stall lasts longer, whatever happens.
const MAX_STALL_TIME: Duration = Duration::from_secs(2);

/// Bytes of a PM file.
type Range = (FileId, u64, u64);

/// Follows a run and decides which stopped threads may go on.
#[derive(Debug, Default)]
pub(crate) struct Director {
    spaces: AddressSpaces,
    /// What each thread has stored since its last fence, the newest last.
    stored: HashMap<ThreadId, Vec<Range>>,
    /// Threads that have flushed something since their last fence.
    flushed: HashSet<ThreadId>,
    os_threads: HashMap<ThreadId, (u32, u32)>,
    /// In the order in which they were stopped.
    stalled: Vec<Stalled>,
    /// How often in a row each stall was useless.
    useless: HashMap<u32, u32>,
    progress: u64,
    /// Threads that have yet to start.
    expected: u32,
    /// What the stops of each thread at each stall wait for, in order.
    stops: HashMap<(u32, ThreadId), VecDeque<Stop>>,
    /// How many stores others may make while a thread is stopped; 0 for the usual number.
    patience: u32,
    /// Readers should also answer, so that what they have done is acknowledged.
    answers: bool,
    /// The numbers of the stops that threads have reached.
    reached: HashSet<u32>,
    /// How many events each thread has had.
    steps: HashMap<ThreadId, u64>,
    /// What each thread has read since it last did something else.
    looks: HashMap<ThreadId, Looks>,
}

/// The last few words that a thread has read, and how often it has read no others.
#[derive(Debug, Default)]
struct Looks {
    words: Vec<u64>,
    times: u32,
}

impl Looks {
    fn at(&mut self, word: u64) {
        if !self.words.contains(&word) {
            if self.words.len() == SPIN_WORDS {
                self.words.clear();
            }
            self.words.push(word);
            self.times = 0;
        }
        self.times += 1;
    }

    fn spins(&self) -> bool {
        self.times >= SPIN_ACCESSES
    }
}

#[derive(Debug)]
struct Stalled {
    thread: ThreadId,
    stall: u32,
    ranges: Vec<Range>,
    since: Instant,
    /// What it waits for.
    stop: Stop,
    readers: HashMap<ThreadId, Reader>,
    /// Stores by others.
    stores: u32,
    progress: u64,
    progressed: Instant,
    /// Processor time of the others, taken some time after that.
    ran: Option<Duration>,
    /// How many events the reader had, and since when.
    reader: (u64, Instant),
}

/// A thread that has read the store.
#[derive(Debug, Default)]
struct Reader {
    /// In how many of its operations it did.
    reads: u32,
    /// How many fences it has made since the last of them.
    fences: u32,
    /// The last read was in its current operation.
    now: bool,
    /// It has answered since the first of them.
    answered: bool,
}

impl Reader {
    /// Whether it has done what it does with the value. `answers`: it should also answer.
    fn is_done(&self, answers: bool) -> bool {
        let fences = if answers && !self.answered { FENCES_WITHOUT_ANSWER } else { FENCES_AFTER_READ };
        self.fences >= fences
    }
}

impl Stalled {
    /// It waits for another stop.
    fn is_gate(&self) -> bool {
        self.stop.until != 0 || self.stop.reads == 0
    }

    /// Whether the expected readers have read the store and acted on it.
    fn is_met(&self, reached: &HashSet<u32>, answers: bool) -> bool {
        if self.stop.until != 0 {
            return reached.contains(&self.stop.until);
        }
        let done = |reader: &Reader| reader.is_done(answers);
        let reader = ThreadId(self.stop.reader);
        let came = self.readers.get(&reader).is_some_and(|reader| reader.reads >= self.stop.reads && done(reader));
        // Other threads may have read in its place.
        let enough = self.stop.reads + if reader == ThreadId(0) { 0 } else { SPARE_READS };
        let reads: u32 = self.readers.values().map(|reader| reader.reads).sum();
        came || reads >= enough && self.readers.values().all(done)
    }
}

impl Director {
    pub(crate) fn new(plan: &Plan) -> Self {
        let mut stops: HashMap<(u32, ThreadId), VecDeque<Stop>> = HashMap::new();
        for (stall, number) in plan.stalls.iter().zip(1..) {
            for stop in &stall.stops {
                stops.entry((number, ThreadId(stop.thread))).or_default().push_back(*stop);
            }
        }
        stops.values_mut().for_each(|stops| stops.make_contiguous().sort_by_key(|stop| stop.nth));
        Self {
            expected: plan.threads,
            patience: plan.patience,
            answers: plan.operations.is_some(),
            stops,
            ..Self::default()
        }
    }

    pub(crate) fn event(&mut self, event: &Event<'_>) {
        self.spaces.update(event);
        let thread = event.thread;
        *self.steps.entry(thread).or_insert(0) += 1;
        match event.what {
            What::ThreadStart { process, os_thread } => {
                self.os_threads.insert(thread, (process, os_thread));
                self.expected = self.expected.saturating_sub(1);
                self.progress += 1;
            }
            What::ThreadExit => {
                self.os_threads.remove(&thread);
                self.progress += 1;
            }
            What::Load { addr, size } => {
                self.looks.entry(thread).or_default().at(addr);
                self.loaded(thread, addr, size.into());
            }
            What::Atomic { addr, .. } => self.looks.entry(thread).or_default().at(addr),
            What::Store { addr, value, .. } => self.stored(thread, addr, value.len() as u64),
            What::Rmw { addr, new, stored, .. } => {
                self.looks.entry(thread).or_default().at(addr);
                self.loaded(thread, addr, new.len() as u64);
                if stored {
                    self.stored.remove(&thread);
                    self.stored(thread, addr, new.len() as u64);
                }
            }
            What::Flush { .. } => {
                self.flushed.insert(thread);
            }
            What::Fence { .. } => {
                let stored = self.stored.remove(&thread).is_some();
                let orders = self.flushed.remove(&thread) || stored;
                if orders {
                    self.looks.remove(&thread);
                } else if self.looks.get(&thread).is_some_and(|looks| looks.times >= WAITING_LOOKS) {
                    return;
                }
                self.progress += 1;
                for stalled in &mut self.stalled {
                    if let Some(reader) = stalled.readers.get_mut(&thread) {
                        (reader.fences, reader.now) = (reader.fences + 1, false);
                    }
                }
            }
            What::Marker { how: MarkerKind::OpEnd, .. } => self.answered(Some(thread)),
            What::Output { .. } => self.answered(None),
            _ => {}
        }
    }

    /// A thread has answered; or the program has, for all of them.
    fn answered(&mut self, of: Option<ThreadId>) {
        for (thread, reader) in self.stalled.iter_mut().flat_map(|stalled| &mut stalled.readers) {
            reader.answered |= of.is_none_or(|of| of == *thread);
        }
    }

    fn stored(&mut self, thread: ThreadId, addr: u64, len: u64) {
        self.progress += 1;
        self.looks.remove(&thread);
        let stored = &mut self.stored;
        self.spaces.locate(thread, addr, len, |part| {
            let ranges = stored.entry(thread).or_default();
            if ranges.len() < MAX_WATCHED_STORES {
                ranges.push((part.file, part.offset, part.len as u64));
            }
        });
        for stalled in self.stalled.iter_mut().filter(|s| s.thread != thread) {
            stalled.stores += 1;
        }
    }

    fn loaded(&mut self, thread: ThreadId, addr: u64, len: u64) {
        if self.stalled.is_empty() {
            return;
        }
        let Self { spaces, stalled, .. } = self;
        spaces.locate(thread, addr, len, |part| {
            for stalled in stalled.iter_mut().filter(|s| s.thread != thread) {
                let overlaps = |&(file, offset, len): &Range| {
                    part.file == file && part.offset < offset + len && offset < part.offset + part.len as u64
                };
                if stalled.ranges.iter().any(overlaps) {
                    let reader = stalled.readers.entry(thread).or_default();
                    reader.reads += u32::from(!reader.now);
                    (reader.fences, reader.now) = (0, true);
                }
            }
        });
    }

    /// A thread was stopped; all its events have been seen.
    pub(crate) fn stopped(&mut self, thread: ThreadId, stall: u32, now: Instant) {
        if self.stalled.iter().any(|s| s.thread == thread) {
            return;
        }
        let ranges = self.stored.get(&thread).cloned().unwrap_or_default();
        let stop = self.stops.get_mut(&(stall, thread)).and_then(VecDeque::pop_front);
        let stop = stop.unwrap_or(Stop { thread: thread.0, reads: 1, ..Stop::default() });
        self.reached.insert(stop.number);
        self.stalled.push(Stalled {
            thread,
            stall,
            ranges,
            since: now,
            stop,
            reader: (self.steps_of(ThreadId(stop.reader)), now),
            readers: HashMap::new(),
            stores: 0,
            progress: self.progress,
            progressed: now,
            ran: None,
        });
    }

    fn steps_of(&self, thread: ThreadId) -> u64 {
        self.steps.get(&thread).copied().unwrap_or(0)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.stalled.is_empty()
    }

    /// The threads that may go on now, and the stalls that are over.
    pub(crate) fn release(&mut self, now: Instant, kernel: &dyn Kernel) -> (Vec<ThreadId>, Vec<u32>) {
        let progress = self.progress;
        for stalled in &mut self.stalled {
            if stalled.progress != progress {
                (stalled.progress, stalled.progressed, stalled.ran) = (progress, now, None);
            }
            let steps = self.steps.get(&ThreadId(stalled.stop.reader)).copied().unwrap_or(0);
            if stalled.reader.0 != steps && !self.looks.get(&ThreadId(stalled.stop.reader)).is_some_and(Looks::spins) {
                stalled.reader = (steps, now);
            }
        }
        let hopeless: Vec<bool> = self.stalled.iter().map(|s| self.is_hopeless(s, now, kernel)).collect();
        let all_wait = self.all_wait(kernel);
        let patience = match (all_wait, self.expected) {
            (true, _) => ALL_BLOCKED_TIME,
            (false, 0) => ALL_SPINNING_TIME,
            (false, _) => START_PATIENCE,
        };
        let spun = !all_wait && self.have_spun(now, kernel);
        let (mut free, mut over, mut left) = (Vec::new(), Vec::new(), Vec::new());
        for ((nth, stalled), hopeless) in std::mem::take(&mut self.stalled).into_iter().enumerate().zip(hopeless) {
            let stuck = nth == 0 && now - stalled.progressed >= patience && (all_wait || spun);
            let enough = if self.patience == 0 { MAX_STORES_BY_OTHERS } else { self.patience };
            let long = now - stalled.since >= MAX_STALL_TIME || stalled.stores >= enough && !stalled.is_gate();
            if stalled.is_met(&self.reached, self.answers) || hopeless || stuck || long {
                let useless = self.useless.entry(stalled.stall).or_insert(0);
                *useless = if stalled.readers.is_empty() && !stalled.is_gate() { *useless + 1 } else { 0 };
                if *useless == MAX_USELESS_STALLS {
                    over.push(stalled.stall);
                }
                free.push(stalled.thread);
                self.progress += 1;
            } else {
                left.push(stalled);
            }
        }
        self.stalled = left;
        (free, over)
    }

    /// Whether the other threads have run without progress for some time, rather than waited for a processor.
    fn have_spun(&mut self, now: Instant, kernel: &dyn Kernel) -> bool {
        let stopped: Vec<ThreadId> = self.stalled.iter().map(|s| s.thread).collect();
        let Some(first) = self.stalled.first_mut().filter(|s| now - s.progressed >= ALL_SPINNING_TIME / 3) else {
            return false;
        };
        let others = self.os_threads.iter().filter(|(thread, _)| !stopped.contains(thread));
        let ran: Vec<Duration> = others.map(|(_, &(process, os_thread))| kernel.ran(process, os_thread)).collect();
        let all = ran.iter().sum();
        let then = *first.ran.get_or_insert(all);
        ran.is_empty() || all.saturating_sub(then) >= SPINNING_CPU_TIME
    }

    /// Whether the reader that a thread was stopped for will not come: it has ended, or waits for something itself.
    fn is_hopeless(&self, stalled: &Stalled, now: Instant, kernel: &dyn Kernel) -> bool {
        let reader = ThreadId(stalled.stop.reader);
        if reader == ThreadId(0) || self.stalled.iter().any(|other| other.thread == reader) {
            return false;
        }
        let Some(&(process, os_thread)) = self.os_threads.get(&reader) else {
            // A reader that has yet to start has no events.
            return self.steps_of(reader) > 0;
        };
        now - stalled.reader.1 >= READER_BLOCKED_TIME
            && (self.looks.get(&reader).is_some_and(Looks::spins)
                || kernel.activity(process, os_thread) != Activity::Runs)
    }

    /// Whether no thread that is not stopped can do anything: all are blocked or spin, and none is just starting.
    fn all_wait(&self, kernel: &dyn Kernel) -> bool {
        let stopped: Vec<ThreadId> = self.stalled.iter().map(|s| s.thread).collect();
        let spins = |thread: &ThreadId| self.looks.get(thread).is_some_and(Looks::spins);
        let mut others = self.os_threads.iter().filter(|(thread, _)| !stopped.contains(thread));
        let waits = |(thread, &(process, os)): (&ThreadId, &(u32, u32))| {
            spins(thread) || kernel.activity(process, os) != Activity::Runs
        };
        let mut known: HashMap<u32, usize> = HashMap::new();
        self.os_threads.values().for_each(|&(process, _)| *known.entry(process).or_insert(0) += 1);
        others.all(waits) && known.into_iter().all(|(process, known)| kernel.threads(process) <= known)
    }
}

#[cfg(test)]
mod tests {
    use pmvet_events::event::{FenceKind, StoreKind};
    use pmvet_events::ids::{ContextId, SiteId};

    use super::*;

    const WRITER: ThreadId = ThreadId(1);
    const READER: ThreadId = ThreadId(2);
    const STALL: u32 = 1;
    const READS: u32 = 3;

    /// What all threads do, and for how long they have run.
    struct All(Activity, Duration);

    impl Kernel for All {
        fn activity(&self, _process: u32, _os_thread: u32) -> Activity {
            self.0
        }

        fn ran(&self, _process: u32, _os_thread: u32) -> Duration {
            self.1
        }

        fn threads(&self, _process: u32) -> usize {
            2
        }
    }

    /// A run of two threads with 4 KiB of PM at 0x1000.
    struct Play {
        director: Director,
        now: Instant,
        ran: Duration,
    }

    impl Play {
        fn new() -> Self {
            let mut play = Self { director: Director::default(), now: Instant::now(), ran: Duration::ZERO };
            for thread in [WRITER, READER] {
                play.event(thread, What::ThreadStart { process: 7, os_thread: thread.0 });
            }
            play.event(WRITER, What::Map { file: FileId(1), addr: 0x1000, len: 0x1000, offset: 0, writable: true });
            play
        }

        fn event(&mut self, thread: ThreadId, what: What<'_>) {
            self.director.event(&Event { seq: 1, thread, site: SiteId(1), context: ContextId(1), what });
        }

        fn store(&mut self, thread: ThreadId, addr: u64) {
            self.event(thread, What::Store { addr, value: &[1; 8], how: StoreKind::Regular });
        }

        fn fence(&mut self, thread: ThreadId) {
            self.event(thread, What::Fence { how: FenceKind::Sfence });
        }

        /// Until the reader, or anybody if that is 0, has read its store in so many operations.
        fn stop_writer_for(&mut self, reader: u32, reads: u32) {
            self.stop_writer_at(Stop { thread: WRITER.0, reader, reads, ..Stop::default() });
        }

        fn stop_writer_at(&mut self, stop: Stop) {
            self.director.stops.entry((STALL, WRITER)).or_default().push_back(stop);
            self.stop_writer();
        }

        fn stop_writer(&mut self) {
            self.store(WRITER, 0x1100);
            self.director.stopped(WRITER, STALL, self.now);
        }

        /// Who may go on, this much later, of which time threads have run all.
        fn later(&mut self, milliseconds: u64, others: Activity) -> Vec<ThreadId> {
            self.ran += Duration::from_millis(milliseconds);
            self.later_without_processors(milliseconds, others)
        }

        fn later_without_processors(&mut self, milliseconds: u64, others: Activity) -> Vec<ThreadId> {
            self.now += Duration::from_millis(milliseconds);
            self.director.release(self.now, &All(others, self.ran)).0
        }
    }

    #[test]
    fn enough_reads_and_acts_free_the_writer() {
        let mut play = Play::new();
        play.stop_writer_for(READER.0, READS);
        for turn in 0..READS {
            play.event(READER, What::Load { addr: 0x1104, size: 4 });
            // Within one operation it counts once.
            play.event(READER, What::Load { addr: 0x1104, size: 4 });
            assert_eq!(play.later(1, Activity::Runs), [], "{turn}");
            (0..FENCES_AFTER_READ).for_each(|_| play.fence(READER));
        }
        assert_eq!(play.later(1, Activity::Runs), [WRITER]);
        assert!(play.director.is_idle());
    }

    #[test]
    fn a_writer_waits_for_the_reader_it_was_stopped_for() {
        let mut play = Play::new();
        let third = ThreadId(3);
        play.event(third, What::ThreadStart { process: 7, os_thread: 3 });
        play.stop_writer_for(READER.0, 1);
        play.event(third, What::Load { addr: 0x1104, size: 4 });
        (0..FENCES_AFTER_READ).for_each(|_| play.fence(third));
        assert_eq!(play.later(1, Activity::Runs), []);
        // Not longer than until that one waits for something itself, or has ended.
        play.fence(third);
        assert_eq!(play.later(READER_BLOCKED_TIME.as_millis() as u64, Activity::Runs), []);
        assert_eq!(play.later(0, Activity::Waits), [WRITER]);
        play.stop_writer_for(READER.0, 1);
        play.event(READER, What::ThreadExit);
        assert_eq!(play.later(0, Activity::Runs), [WRITER]);
    }

    #[test]
    fn loads_of_other_bytes_do_not_count() {
        let mut play = Play::new();
        play.stop_writer_for(0, READS);
        for _ in 0..READS {
            play.event(READER, What::Load { addr: 0x1108, size: 8 });
            (0..FENCES_AFTER_READ).for_each(|_| play.fence(READER));
        }
        assert_eq!(play.later(1, Activity::Runs), []);
    }

    #[test]
    fn a_writer_whom_all_others_wait_for_goes_on_soon_and_one_whom_they_spin_for_later() {
        for (others, patience) in [(Activity::Waits, ALL_BLOCKED_TIME), (Activity::Runs, ALL_SPINNING_TIME)] {
            let mut play = Play::new();
            play.stop_writer();
            assert_eq!(play.later(0, others), []);
            // Progress starts the clock again.
            let patience = patience.as_millis() as u64;
            play.now += Duration::from_millis(patience - 1);
            play.store(READER, 0x1200);
            assert_eq!(play.later(1, others), []);
            let soon = patience * 2 / 5;
            assert_eq!(play.later_without_processors(soon, others), []);
            assert_eq!(play.later(patience - soon, others), [WRITER]);
        }
    }

    #[test]
    fn threads_that_have_no_processor_do_not_spin() {
        let mut play = Play::new();
        play.stop_writer();
        let patience = ALL_SPINNING_TIME.as_millis() as u64;
        for _ in 0..5 {
            assert_eq!(play.later_without_processors(patience, Activity::Runs), []);
        }
        assert_eq!(play.later(patience, Activity::Runs), [WRITER]);
    }

    #[test]
    fn a_stop_may_wait_for_a_stop_of_another_thread() {
        let mut play = Play::new();
        play.stop_writer_at(Stop { thread: WRITER.0, reader: READER.0, until: 7, number: 6, ..Stop::default() });
        play.event(READER, What::Load { addr: 0x1104, size: 4 });
        (0..MAX_STORES_BY_OTHERS).for_each(|_| play.store(READER, 0x1200));
        assert_eq!(play.later(1, Activity::Runs), []);
        // One that waits for nobody goes on at once, and so does who has waited for it.
        let stop = Stop { thread: READER.0, number: 7, ..Stop::default() };
        play.director.stops.entry((STALL, READER)).or_default().push_back(stop);
        play.director.stopped(READER, STALL, play.now);
        assert_eq!(play.later(0, Activity::Runs), [WRITER, READER]);
        // Nobody waits for one that has ended.
        play.stop_writer_at(Stop { thread: WRITER.0, reader: READER.0, until: 8, ..Stop::default() });
        play.event(READER, What::ThreadExit);
        assert_eq!(play.later(0, Activity::Runs), [WRITER]);
    }

    #[test]
    fn threads_that_have_yet_to_start_are_waited_for() {
        let mut play = Play::new();
        play.director.expected = 1;
        play.stop_writer();
        assert_eq!(play.later(100, Activity::Runs), []);
        play.event(ThreadId(3), What::ThreadStart { process: 7, os_thread: 3 });
        assert_eq!(play.later(1, Activity::Runs), []);
        assert_eq!(play.later(10, Activity::Runs), []);
        assert_eq!(play.later(10, Activity::Runs), [WRITER]);
        // A thread that the kernel has and that has not shown yet.
        play.event(READER, What::ThreadExit);
        play.event(ThreadId(3), What::ThreadExit);
        play.stop_writer();
        assert_eq!(play.later(5, Activity::Waits), []);
        assert_eq!(play.later(20, Activity::Waits), [WRITER]);
    }

    #[test]
    fn a_thread_that_looks_at_the_same_words_all_the_time_waits() {
        let mut play = Play::new();
        play.stop_writer();
        for turn in 0..=SPIN_ACCESSES {
            play.event(READER, What::Load { addr: 0x1200 + u64::from(turn % 2) * 64, size: 8 });
        }
        assert_eq!(play.later(ALL_BLOCKED_TIME.as_millis() as u64, Activity::Runs), [WRITER]);
        // One that looks at many words does not.
        play.stop_writer();
        for turn in 0..2 * SPIN_ACCESSES {
            play.event(READER, What::Load { addr: 0x1200 + u64::from(turn) * 8, size: 8 });
        }
        assert_eq!(play.later(1, Activity::Runs), []);
    }

    #[test]
    fn of_several_the_first_is_privileged() {
        let mut play = Play::new();
        play.stop_writer();
        play.store(READER, 0x1200);
        play.director.stopped(READER, STALL, play.now);
        let blocked = ALL_BLOCKED_TIME.as_millis() as u64;
        assert_eq!(play.later(0, Activity::Waits), []);
        assert_eq!(play.later(blocked, Activity::Waits), [WRITER]);
        assert_eq!(play.later(0, Activity::Waits), []);
        assert_eq!(play.later(blocked, Activity::Waits), [READER]);
        assert!(play.director.is_idle());
    }

    #[test]
    fn a_stall_that_nobody_reads_at_is_over() {
        for read in [false, true] {
            let mut play = Play::new();
            for turn in 1..=MAX_USELESS_STALLS {
                play.stop_writer_for(0, READS);
                if read {
                    play.event(READER, What::Load { addr: 0x1104, size: 4 });
                }
                (0..MAX_STORES_BY_OTHERS).for_each(|_| play.store(READER, 0x1800));
                let (free, over) = play.director.release(play.now, &All(Activity::Runs, play.ran));
                assert_eq!(free, [WRITER]);
                assert_eq!(over, if turn == MAX_USELESS_STALLS && !read { vec![STALL] } else { vec![] }, "{turn}");
            }
        }
    }

    #[test]
    fn no_stall_lasts_for_ever() {
        let mut play = Play::new();
        play.stop_writer();
        for _ in 0..200 {
            play.store(READER, 0x1800);
            if play.later(11, Activity::Runs) == [WRITER] {
                return;
            }
        }
        panic!("still stopped");
    }
}
