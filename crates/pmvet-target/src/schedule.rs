//! When a thread that was stopped after a store may go on.
//!
//! PMRace (Chen and others, ASPLOS 2022) lets readers wait for a writer and the writer sleep for a fixed time. Here only the
//! writer waits, as long as it is of use and no longer: until somebody has read what it stored and has had the time to act on
//! it, or until it is clear that nobody will. The paper's three pitfalls:
//!
//! 1. *The wait is over as soon as it can be.* A reader that has fenced [`ENOUGH_FENCES`] times, or ended, has done what it will
//!    do; a few more may come while the others make [`SOME_STORES`] stores.
//! 2. *All wait.* At most a quarter of the threads is stopped at a time. If the others can do nothing, the thread that was stopped
//!    first is the privileged one and goes on.
//! 3. *Some wait for the stopped thread.* The others make no progress any more, because they are blocked in the kernel or spin:
//!    the stopped thread goes on. A stall that was of no use [`PATIENCE`] times in a row is over for this run.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use pmvet_events::event::{Event, What};
use pmvet_events::ids::{FileId, ThreadId};
use pmvet_events::spaces::AddressSpaces;

/// A reader that has fenced so often since its load has made its act persistent.
const ENOUGH_FENCES: u32 = 4;
/// ... and others have stored so often: the next reader may be the one that acts.
const SOME_STORES: u32 = 120;
/// So many stores by others without a reader: none will come soon.
const ENOUGH_STORES: u32 = 400;
/// So many stalls in a row without a reader, and the stall is over.
const PATIENCE: u32 = 24;
/// Threads that run without progress are taken to spin after this time; blocked ones are seen at once.
const SPINNING: Duration = Duration::from_millis(15);
/// Threads that are all blocked in the kernel for so long wait for the stopped one.
const BLOCKED: Duration = Duration::from_millis(2);
/// How many stores of a thread are watched for readers.
const MOST_RANGES: usize = 256;
/// ... unless threads that are known to come have not started yet.
const STARTING: Duration = Duration::from_millis(300);
/// No stall lasts longer, whatever happens.
const LONGEST: Duration = Duration::from_secs(2);

/// Bytes of a PM file.
type Range = (FileId, u64, u64);

/// Follows a run and says which stopped threads may go on.
#[derive(Debug, Default)]
pub(crate) struct Director {
    spaces: AddressSpaces,
    /// What each thread has stored since its last fence, the newest last.
    stored: HashMap<ThreadId, Vec<Range>>,
    os_threads: HashMap<ThreadId, (u32, u32)>,
    /// In the order in which they were stopped.
    stalled: Vec<Stalled>,
    /// How often in a row each stall was of no use.
    useless: HashMap<u32, u32>,
    progress: u64,
    /// Threads that are stopped though enough others are.
    passing: Vec<ThreadId>,
    /// Threads that have yet to start.
    expected: u32,
}

#[derive(Debug)]
struct Stalled {
    thread: ThreadId,
    stall: u32,
    ranges: Vec<Range>,
    since: Instant,
    /// Who has read the store, and how many fences it has made since.
    readers: HashMap<ThreadId, u32>,
    done: bool,
    /// Stores by others.
    stores: u32,
    progress: u64,
    progressed: Instant,
}

/// What a thread of the target is doing, as far as the kernel knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    Runs,
    Waits,
    Gone,
}

impl Director {
    /// For a target that is known to start so many threads.
    pub(crate) fn new(threads: u32) -> Self {
        Self { expected: threads, ..Self::default() }
    }

    pub(crate) fn event(&mut self, event: &Event<'_>) {
        self.spaces.update(event);
        let thread = event.thread;
        match event.what {
            What::ThreadStart { process, os_thread } => {
                self.os_threads.insert(thread, (process, os_thread));
                self.expected = self.expected.saturating_sub(1);
                self.progress += 1;
            }
            What::ThreadExit => {
                self.os_threads.remove(&thread);
                self.progress += 1;
                for stalled in &mut self.stalled {
                    stalled.done |= stalled.readers.contains_key(&thread);
                }
            }
            What::Load { addr, size } => self.loaded(thread, addr, size.into()),
            What::Store { addr, value, .. } => self.stored(thread, addr, value.len() as u64),
            What::Rmw { addr, new, stored, .. } => {
                self.loaded(thread, addr, new.len() as u64);
                if stored {
                    self.stored.remove(&thread);
                    self.stored(thread, addr, new.len() as u64);
                }
            }
            What::Fence { .. } => {
                self.progress += 1;
                self.stored.remove(&thread);
                for stalled in &mut self.stalled {
                    if let Some(fences) = stalled.readers.get_mut(&thread) {
                        *fences += 1;
                        stalled.done |= *fences >= ENOUGH_FENCES;
                    }
                }
            }
            _ => {}
        }
    }

    fn stored(&mut self, thread: ThreadId, addr: u64, len: u64) {
        self.progress += 1;
        let stored = &mut self.stored;
        self.spaces.locate(thread, addr, len, |part| {
            let ranges = stored.entry(thread).or_default();
            if ranges.len() < MOST_RANGES {
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
                    stalled.readers.entry(thread).or_insert(0);
                }
            }
        });
    }

    /// A thread was stopped; all its events have been seen.
    pub(crate) fn stopped(&mut self, thread: ThreadId, stall: u32, now: Instant) {
        if self.stalled.iter().any(|s| s.thread == thread) {
            return;
        }
        // Somebody has to be left to read: most threads pass while others are stopped.
        if self.stalled.len() >= (self.os_threads.len() / 4).max(1) {
            self.passing.push(thread);
            return;
        }
        let ranges = self.stored.get(&thread).cloned().unwrap_or_default();
        self.stalled.push(Stalled {
            thread,
            stall,
            ranges,
            since: now,
            readers: HashMap::new(),
            done: false,
            stores: 0,
            progress: self.progress,
            progressed: now,
        });
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.stalled.is_empty()
    }

    /// The threads that may go on now, and the stalls that are over.
    pub(crate) fn release(
        &mut self,
        now: Instant,
        activity: impl Fn(u32, u32) -> Activity,
    ) -> (Vec<ThreadId>, Vec<u32>) {
        let (mut free, mut over) = (std::mem::take(&mut self.passing), Vec::new());
        let progress = self.progress;
        for stalled in &mut self.stalled {
            if stalled.progress != progress {
                (stalled.progress, stalled.progressed) = (progress, now);
            }
        }
        let stopped: Vec<ThreadId> = self.stalled.iter().map(|s| s.thread).collect();
        let others = self.os_threads.iter().filter(|(thread, _)| !stopped.contains(thread));
        let all_wait = others.map(|(_, &(process, os))| activity(process, os)).all(|a| a != Activity::Runs);
        let mut privileged = true;
        let mut left = Vec::new();
        for stalled in std::mem::take(&mut self.stalled) {
            let still = now - stalled.progressed;
            let patience = match (self.expected, all_wait) {
                (1.., _) => STARTING,
                (0, true) => BLOCKED,
                (0, false) => SPINNING,
            };
            let stuck = privileged && still >= patience;
            let hopeless = stalled.readers.is_empty() && stalled.stores >= ENOUGH_STORES;
            let last = now - stalled.since >= LONGEST || stalled.stores >= 2 * ENOUGH_STORES;
            if stalled.done && stalled.stores >= SOME_STORES || stuck || hopeless || last {
                let useless = self.useless.entry(stalled.stall).or_insert(0);
                *useless = if stalled.readers.is_empty() { *useless + 1 } else { 0 };
                if *useless == PATIENCE {
                    over.push(stalled.stall);
                }
                free.push(stalled.thread);
                self.progress += 1;
            } else {
                left.push(stalled);
            }
            privileged = false;
        }
        self.stalled = left;
        (free, over)
    }
}

/// What the kernel says of a thread.
pub(crate) fn activity(process: u32, os_thread: u32) -> Activity {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{process}/task/{os_thread}/stat")) else {
        return Activity::Gone;
    };
    // The name of the program is in parentheses and may hold anything.
    match stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()) {
        Some('R') => Activity::Runs,
        Some('Z' | 'X') | None => Activity::Gone,
        Some(_) => Activity::Waits,
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

    /// A run of two threads with 4 KiB of PM at 0x1000.
    struct Play {
        director: Director,
        now: Instant,
    }

    impl Play {
        fn new() -> Self {
            let mut play = Self { director: Director::default(), now: Instant::now() };
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

        fn stop_writer(&mut self) {
            self.store(WRITER, 0x1100);
            self.director.stopped(WRITER, STALL, self.now);
        }

        /// Who may go on, this much later.
        fn later(&mut self, milliseconds: u64, others: Activity) -> Vec<ThreadId> {
            self.now += Duration::from_millis(milliseconds);
            self.director.release(self.now, |_, _| others).0
        }
    }

    #[test]
    fn a_reader_that_has_acted_frees_the_writer() {
        let mut play = Play::new();
        play.stop_writer();
        play.event(READER, What::Load { addr: 0x1104, size: 4 });
        for _ in 0..ENOUGH_FENCES {
            assert_eq!(play.later(1, Activity::Runs), []);
            play.fence(READER);
        }
        for _ in 0..SOME_STORES {
            assert_eq!(play.later(1, Activity::Runs), []);
            play.store(READER, 0x1800);
        }
        assert_eq!(play.later(1, Activity::Runs), [WRITER]);
        assert!(play.director.is_idle());
    }

    #[test]
    fn a_reader_that_ends_frees_the_writer() {
        let mut play = Play::new();
        play.stop_writer();
        play.event(READER, What::Load { addr: 0x1100, size: 8 });
        for _ in 0..SOME_STORES {
            play.store(READER, 0x1800);
        }
        play.event(READER, What::ThreadExit);
        assert_eq!(play.later(0, Activity::Runs), [WRITER]);
    }

    #[test]
    fn loads_of_other_bytes_do_not_count() {
        let mut play = Play::new();
        play.stop_writer();
        play.event(READER, What::Load { addr: 0x1108, size: 8 });
        for _ in 0..ENOUGH_FENCES {
            play.fence(READER);
        }
        assert_eq!(play.later(1, Activity::Runs), []);
    }

    #[test]
    fn a_writer_whom_all_others_wait_for_goes_on_soon_and_one_whom_they_spin_for_later() {
        for (others, patience) in [(Activity::Waits, BLOCKED), (Activity::Runs, SPINNING)] {
            let mut play = Play::new();
            play.stop_writer();
            assert_eq!(play.later(0, others), []);
            // Progress starts the clock again.
            let patience = patience.as_millis() as u64;
            play.now += Duration::from_millis(patience - 1);
            play.store(READER, 0x1200);
            assert_eq!(play.later(1, others), []);
            assert_eq!(play.later(patience, others), [WRITER]);
        }
    }

    #[test]
    fn threads_that_have_yet_to_start_are_waited_for() {
        let mut play = Play::new();
        play.director.expected = 1;
        play.stop_writer();
        assert_eq!(play.later(100, Activity::Waits), []);
        play.event(ThreadId(3), What::ThreadStart { process: 7, os_thread: 3 });
        assert_eq!(play.later(1, Activity::Waits), []);
        assert_eq!(play.later(5, Activity::Waits), [WRITER]);
    }

    #[test]
    fn somebody_is_always_left_to_read() {
        let mut play = Play::new();
        play.stop_writer();
        play.store(READER, 0x1200);
        play.director.stopped(READER, STALL, play.now);
        assert_eq!(play.later(0, Activity::Waits), [READER]);
        assert!(!play.director.is_idle());
        // With many threads several may be stopped; the first of them is the privileged one if all wait.
        for thread in 3..=8 {
            play.event(ThreadId(thread), What::ThreadStart { process: 7, os_thread: thread });
        }
        play.director.stopped(READER, STALL, play.now);
        assert_eq!(play.later(1, Activity::Waits), []);
        assert_eq!(play.later(10, Activity::Waits), [WRITER]);
        assert!(!play.director.is_idle());
    }

    #[test]
    fn nobody_waits_for_a_reader_who_does_not_come() {
        let mut play = Play::new();
        for turn in 1..=PATIENCE {
            play.stop_writer();
            for _ in 0..ENOUGH_STORES {
                play.store(READER, 0x1800);
            }
            play.now += Duration::from_millis(1);
            let (free, over) = play.director.release(play.now, |_, _| Activity::Runs);
            assert_eq!(free, [WRITER]);
            assert_eq!(over, if turn == PATIENCE { vec![STALL] } else { vec![] }, "{turn}");
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
