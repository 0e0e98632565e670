//! Threads in step.
//!
//! A thread that is some fences ahead of another one lets it run first, before a fence or before it takes a lock, as long as it
//! holds none. Threads that are blocked in a system call, but for a lock, or stopped at a stall are not waited for, and nobody for
//! long: a thread may wait for one that is ahead in a way that is not known here.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use pmvet_events::ThreadId;

use crate::dynamorio;
use crate::record::thread::{LockstepState, Thread};
use crate::run::run;

/// Where the threads of this process are.
pub(crate) static LOCKSTEP: Lockstep = Lockstep { places: [const { Place::new() }; THREAD_PLACES] };

/// Threads share a place if there are more.
const THREAD_PLACES: usize = 128;
/// How many fences a thread may be ahead.
const MAX_LEAD_FENCES: u64 = 3;
/// One that is so far behind does something else.
const UNRELATED_LAG_FENCES: u64 = 512;
/// How often, and how long in nanoseconds, a thread sleeps for the sake of others before it goes on all the same; less often if many
/// do so. It sleeps, since one that only yields on a busy machine yields to strangers.
const SLEEPS_PER_WAIT: RangeInclusive<u32> = 4..=20;
const SLEEPS_OF_ALL_THREADS: u32 = 100;
/// One that is so far behind was stopped. It is waited for as long as it catches up.
const STOPPED_LAG_FENCES: u64 = 24;
const SLEEP_NANOS: u64 = 50_000;
/// One that has run for less than this meanwhile, in nanoseconds, and would like to, waits for a processor. It is given so many times
/// as long, in the whole run and by all together.
const STARVED_CPU_NANOS: u64 = 1_000_000;
const STARVED_WAITS_OF_ALL_THREADS: u32 = 1200;
/// How many fences a thread goes on for at first if it has waited in vain.
const MIN_FREE_FENCES: u64 = 4;

/// Where a thread is.
#[derive(Debug)]
struct Place {
    /// Grows with every fence.
    at: AtomicU64,
    /// It is not waited for.
    away: AtomicBool,
    os_thread: AtomicU32,
}

impl Place {
    const fn new() -> Self {
        Self { at: AtomicU64::new(0), away: AtomicBool::new(true), os_thread: AtomicU32::new(0) }
    }

    /// How long it has run, and the time.
    fn cpu_and_wall_nanos(&self) -> (u64, u64) {
        (dynamorio::thread_cpu_nanos(self.os_thread.load(Ordering::Relaxed)), dynamorio::monotonic_nanos())
    }

    /// Whether it would run, but the machine is busy and has hardly let it since then.
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
    places: [Place; THREAD_PLACES],
}

impl Lockstep {
    fn place(&self, thread: ThreadId) -> &Place {
        &self.places[thread.0 as usize % THREAD_PLACES]
    }

    /// How many fences a new thread counts as having made: as many as those who were here before it. One of them is about to start
    /// others, and is waited for until it has.
    pub(crate) fn fences_of_new_thread(&self) -> u64 {
        let most = self.places.iter().map(|place| place.at.load(Ordering::Relaxed)).max();
        most.unwrap_or(0)
    }

    /// The thread is not waited for until it is back.
    pub(crate) fn leave(&self, thread: ThreadId) {
        self.place(thread).away.store(true, Ordering::Relaxed);
    }

    pub(crate) fn enter(&self, thread: &Thread) {
        let place = self.place(thread.id);
        place.os_thread.store(thread.os_thread, Ordering::Relaxed);
        place.at.store(thread.fences_made, Ordering::Relaxed);
        place.away.store(false, Ordering::Relaxed);
    }

    /// How many threads there are, at least this one.
    fn count_present(&self) -> u32 {
        let here = self.places.iter().filter(|place| !place.away.load(Ordering::Relaxed));
        here.count().max(1) as u32
    }

    /// The last of those who are behind.
    fn behind(&self, mine: u64) -> Option<(u64, &Place)> {
        let others = self.places.iter().filter(|place| !place.away.load(Ordering::Relaxed));
        let others = others.map(|place| (place.at.load(Ordering::Relaxed), place));
        others
            .filter(|(other, _)| other + MAX_LEAD_FENCES < mine && other + UNRELATED_LAG_FENCES >= mine)
            .min_by_key(|(other, _)| *other)
    }
}

/// A thread has waited in vain: those behind may wait for it, on a spin lock that it holds for example. It goes on for some
/// fences, and for more each time.
impl LockstepState {
    fn go_on(&mut self, pace: u64) {
        self.free_fences = (self.free_fences * 2).clamp(MIN_FREE_FENCES, UNRELATED_LAG_FENCES);
        self.free_until = pace + self.free_fences;
    }
}

/// Before a fence.
pub(crate) unsafe extern "C" fn before_fence(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    let thread = unsafe { &mut *thread };
    thread.fences_made += 1;
    thread.trace.fenced();
    if run().plan.in_step {
        LOCKSTEP.enter(thread);
        thread.let_others_catch_up();
    }
}

/// Before a function that takes a lock, among others.
pub(crate) unsafe extern "C" fn before_hooked_function(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    unsafe { &mut *thread }.let_others_catch_up();
}

impl Thread {
    /// Lets those run first that are behind; but not while they may wait for a lock of this thread.
    fn let_others_catch_up(&mut self) {
        if self.held_count > 0 || self.fences_made < self.lockstep.free_until {
            return;
        }
        let pace = &LOCKSTEP;
        let (mine, mut sleeps, mut seen, mut then) = (self.fences_made, 0, u64::MAX, (0, 0));
        let all = pace.count_present();
        let most = (SLEEPS_OF_ALL_THREADS / all).clamp(*SLEEPS_PER_WAIT.start(), *SLEEPS_PER_WAIT.end());
        loop {
            let Some((last, place)) = pace.behind(mine) else {
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
