//! Lockstep: keeps the threads of the target close together, counted in fences.
//!
//! Before a fence or a hooked function, a thread that is too far ahead sleeps so that the others catch up, unless it holds a
//! lock. It does not wait for threads that are blocked in a system call, except for a lock, or that are stopped by the
//! schedule. And it never waits for long: the thread behind may be waiting for this one in a way that the client cannot see.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use pmvet_events::ThreadId;

use crate::dynamorio;
use crate::record::thread::{LockstepState, Thread};
use crate::run::run;

/// Where the threads of this process are.
pub(crate) static LOCKSTEP: Lockstep = Lockstep { places: [const { ThreadPlace::new() }; THREAD_PLACES] };

/// Threads beyond this number share the places of others.
const THREAD_PLACES: usize = 128;
/// How many fences a thread may be ahead of another before it waits.
const MAX_LEAD_FENCES: u64 = 3;
/// A thread that is further behind than this does other work, and no thread waits for it.
const UNRELATED_LAG_FENCES: u64 = 512;
/// A thread that is further behind than this was stopped. Others wait for it as long as it catches up.
const STOPPED_LAG_FENCES: u64 = 24;
/// How often a thread sleeps for others before it goes on anyway: fewer times if there are many threads.
const SLEEPS_PER_WAIT: RangeInclusive<u32> = 4..=20;
const SLEEPS_OF_ALL_THREADS: u32 = 100;
/// One such sleep. A thread that only yielded would, on a busy machine, yield to other programs.
const SLEEP_NANOS: u64 = 50_000;
/// A runnable thread that has used less processor time than this during a wait is starved: the machine is busy.
const STARVED_CPU_NANOS: u64 = 1_000_000;
/// How often all threads together wait once more for starved ones, in the whole run.
const STARVED_WAITS_OF_ALL_THREADS: u32 = 1200;
/// For how many fences a thread goes on after its first useless wait.
const MIN_FREE_FENCES: u64 = 4;

/// Where a thread is.
#[derive(Debug)]
struct ThreadPlace {
    /// The fences that it has made.
    fences_made: AtomicU64,
    /// No thread waits for it.
    away: AtomicBool,
    os_thread: AtomicU32,
}

impl ThreadPlace {
    const fn new() -> Self {
        Self { fences_made: AtomicU64::new(0), away: AtomicBool::new(true), os_thread: AtomicU32::new(0) }
    }

    /// The processor time that it has used, and the time now.
    fn cpu_and_wall_nanos(&self) -> (u64, u64) {
        (dynamorio::thread_cpu_nanos(self.os_thread.load(Ordering::Relaxed)), dynamorio::monotonic_nanos())
    }

    /// Whether it wants to run, but has hardly had a processor since `then`.
    fn is_starved(&self, then: (u64, u64)) -> bool {
        let now = self.cpu_and_wall_nanos();
        let (ran, time) = (now.0.saturating_sub(then.0), now.1.saturating_sub(then.1));
        ran < STARVED_CPU_NANOS
            && ran < time / 2
            && dynamorio::thread_is_runnable(self.os_thread.load(Ordering::Relaxed))
    }
}

#[derive(Debug)]
pub(crate) struct Lockstep {
    places: [ThreadPlace; THREAD_PLACES],
}

impl Lockstep {
    fn place(&self, thread: ThreadId) -> &ThreadPlace {
        &self.places[thread.0 as usize % THREAD_PLACES]
    }

    /// How many fences a new thread counts as having made: as many as the thread that has made most. So new threads wait for
    /// their creator until it has started all of them.
    pub(crate) fn fences_of_new_thread(&self) -> u64 {
        let most = self.places.iter().map(|place| place.fences_made.load(Ordering::Relaxed)).max();
        most.unwrap_or(0)
    }

    /// No thread waits for this one until it enters again.
    pub(crate) fn leave(&self, thread: ThreadId) {
        self.place(thread).away.store(true, Ordering::Relaxed);
    }

    /// Others wait for the thread from now on.
    pub(crate) fn enter(&self, thread: &Thread) {
        let place = self.place(thread.id);
        place.os_thread.store(thread.os_thread, Ordering::Relaxed);
        place.fences_made.store(thread.fences_made, Ordering::Relaxed);
        place.away.store(false, Ordering::Relaxed);
    }

    /// How many threads others wait for, at least 1.
    fn count_present(&self) -> u32 {
        let here = self.places.iter().filter(|place| !place.away.load(Ordering::Relaxed));
        here.count().max(1) as u32
    }

    /// The thread that is furthest behind one with `mine` fences, if any is too far behind.
    fn behind(&self, mine: u64) -> Option<(u64, &ThreadPlace)> {
        let others = self.places.iter().filter(|place| !place.away.load(Ordering::Relaxed));
        let others = others.map(|place| (place.fences_made.load(Ordering::Relaxed), place));
        others
            .filter(|(other, _)| other + MAX_LEAD_FENCES < mine && other + UNRELATED_LAG_FENCES >= mine)
            .min_by_key(|(other, _)| *other)
    }
}

impl LockstepState {
    /// The wait was useless: those behind may wait for this thread, for example on a spin lock that it holds. It goes on
    /// for some fences, and for more each time.
    fn go_on(&mut self, fences_made: u64) {
        self.free_fences = (self.free_fences * 2).clamp(MIN_FREE_FENCES, UNRELATED_LAG_FENCES);
        self.free_until = fences_made + self.free_fences;
    }
}

/// Before a fence.
pub(crate) unsafe extern "C" fn before_fence(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    let thread = unsafe { &mut *thread };
    if thread.is_spinning() {
        return;
    }
    thread.fences_made += 1;
    thread.trace.fenced();
    if run().plan.in_step {
        LOCKSTEP.enter(thread);
        thread.let_others_catch_up();
    }
}

/// Before a hooked function, which may take a lock.
pub(crate) unsafe extern "C" fn before_hooked_function(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    unsafe { &mut *thread }.let_others_catch_up();
}

impl Thread {
    /// Sleeps while others are too far behind, but not if they may wait for a lock of this thread.
    fn let_others_catch_up(&mut self) {
        if self.held_count > 0 || self.fences_made < self.lockstep.free_until {
            return;
        }
        let (mine, mut sleeps, mut seen, mut then) = (self.fences_made, 0, u64::MAX, (0, 0));
        let all = LOCKSTEP.count_present();
        let most = (SLEEPS_OF_ALL_THREADS / all).clamp(*SLEEPS_PER_WAIT.start(), *SLEEPS_PER_WAIT.end());
        loop {
            let Some((last, place)) = LOCKSTEP.behind(mine) else {
                self.lockstep.free_fences = 0;
                return;
            };
            let moved = last != seen;
            if moved {
                then = place.cpu_and_wall_nanos();
            }
            let catches_up = last + STOPPED_LAG_FENCES < mine && moved;
            (sleeps, seen) = (if catches_up { 0 } else { sleeps + 1 }, last);
            if sleeps > most {
                if self.lockstep.starved_waits >= STARVED_WAITS_OF_ALL_THREADS / all || !place.is_starved(then) {
                    return self.lockstep.go_on(self.fences_made);
                }
                self.lockstep.starved_waits += 1;
                sleeps = 0;
            }
            dynamorio::sleep_nanos(SLEEP_NANOS);
        }
    }
}
