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
pub(crate) static LOCKSTEP: Lockstep = Lockstep { places: [const { Place::new() }; PLACES] };

/// Threads share a place if there are more.
const PLACES: usize = 128;
/// How many fences a thread may be ahead.
const AHEAD: u64 = 3;
/// One that is so far behind does something else.
const FAR: u64 = 512;
/// How often, and how long in nanoseconds, a thread sleeps for the sake of others before it goes on all the same; less often if many
/// do so. It sleeps, since one that only yields on a busy machine yields to strangers.
const SLEEPS: RangeInclusive<u32> = 4..=20;
const ALL_SLEEPS: u32 = 100;
/// One that is so far behind was stopped. It is waited for as long as it catches up.
const STOPPED: u64 = 24;
const SLEEP: u64 = 50_000;
/// One that has run for less than this meanwhile, in nanoseconds, and would like to, waits for a processor. It is given so many times
/// as long, in the whole run and by all together.
const SCARCELY: u64 = 1_000_000;
const ALL_WAITS: u32 = 1200;
/// How many fences a thread goes on for at first if it has waited in vain.
const FEWEST: u64 = 4;

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
    fn clocks(&self) -> (u64, u64) {
        (dynamorio::thread_cpu_nanos(self.os_thread.load(Ordering::Relaxed)), dynamorio::monotonic_nanos())
    }

    /// Whether it would run, but the machine is busy and has hardly let it since then.
    fn is_starved(&self, then: (u64, u64)) -> bool {
        let now = self.clocks();
        let (ran, time) = (now.0.saturating_sub(then.0), now.1.saturating_sub(then.1));
        ran < SCARCELY && ran < time / 2 && dynamorio::thread_is_runnable(self.os_thread.load(Ordering::Relaxed))
    }
}

#[derive(Debug)]
pub(crate) struct Lockstep {
    places: [Place; PLACES],
}

impl Lockstep {
    fn place(&self, thread: ThreadId) -> &Place {
        &self.places[thread.0 as usize % PLACES]
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
        place.at.store(thread.pace, Ordering::Relaxed);
        place.away.store(false, Ordering::Relaxed);
    }

    /// How many threads there are, at least this one.
    fn present(&self) -> u32 {
        let here = self.places.iter().filter(|place| !place.away.load(Ordering::Relaxed));
        here.count().max(1) as u32
    }

    /// The last of those who are behind.
    fn behind(&self, mine: u64) -> Option<(u64, &Place)> {
        let others = self.places.iter().filter(|place| !place.away.load(Ordering::Relaxed));
        let others = others.map(|place| (place.at.load(Ordering::Relaxed), place));
        others.filter(|(other, _)| other + AHEAD < mine && other + FAR >= mine).min_by_key(|(other, _)| *other)
    }
}

/// A thread has waited in vain: those behind may wait for it, on a spin lock that it holds for example. It goes on for some
/// fences, and for more each time.
impl LockstepState {
    fn go_on(&mut self, pace: u64) {
        self.fences = (self.fences * 2).clamp(FEWEST, FAR);
        self.until = pace + self.fences;
    }
}

/// Before a fence.
pub(crate) unsafe extern "C" fn paced(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    let thread = unsafe { &mut *thread };
    thread.pace += 1;
    thread.follow.fenced();
    if run().plan.in_step {
        LOCKSTEP.enter(thread);
        thread.keep_pace();
    }
}

/// Before a function that takes a lock, among others.
pub(crate) unsafe extern "C" fn paced_entry(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    unsafe { &mut *thread }.keep_pace();
}

impl Thread {
    /// Lets those run first that are behind; but not while they may wait for a lock of this thread.
    fn keep_pace(&mut self) {
        if self.held_count > 0 || self.pace < self.ahead.until {
            return;
        }
        let pace = &LOCKSTEP;
        let (mine, mut sleeps, mut seen, mut then) = (self.pace, 0, u64::MAX, (0, 0));
        let all = pace.present();
        let most = (ALL_SLEEPS / all).clamp(*SLEEPS.start(), *SLEEPS.end());
        loop {
            let Some((last, place)) = pace.behind(mine) else {
                self.ahead.fences = 0;
                return;
            };
            let moved = last != seen;
            if moved {
                then = place.clocks();
            }
            let catches_up = last + STOPPED < mine && moved;
            (sleeps, seen) = (if catches_up { 0 } else { sleeps + 1 }, last);
            if sleeps > most {
                if self.ahead.waits >= ALL_WAITS / all || !place.is_starved(then) {
                    return self.ahead.go_on(self.pace);
                }
                self.ahead.waits += 1;
                sleeps = 0;
            }
            dynamorio::sleep_nanos(SLEEP);
        }
    }
}
