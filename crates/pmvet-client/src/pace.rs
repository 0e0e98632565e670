//! Threads in step.
//!
//! A thread that is some fences ahead of another one lets it run first, before a fence or before it takes a lock, as long as it
//! holds none. Threads that are blocked in a system call, but for a lock, or stopped at a stall are not waited for, and nobody for
//! long: a thread may wait for one that is ahead in a way that is not known here.

use std::sync::atomic::{AtomicU64, Ordering};

use pmvet_events::ThreadId;
use pmvet_events::plan::{Lead, Plan};

use crate::thread::Thread;
use crate::{client, dr};

/// Threads share a place if there are more.
const PLACES: usize = 128;
/// How many fences a thread may be ahead.
const AHEAD: u64 = 3;
/// One that is so far behind does something else.
const FAR: u64 = 512;
/// How often, and how long in nanoseconds, a thread sleeps for the sake of others before it goes on all the same. It sleeps, since
/// one that only yields on a busy machine yields to strangers.
const SLEEPS: u32 = 20;
/// One that is so far behind was stopped. It is waited for as long as it catches up.
const STOPPED: u64 = 24;
const SLEEP: u64 = 50_000;
/// Where threads start: one that is to be ahead starts so much lower, so that the others wait for it.
const START: u64 = 1 << 32;
/// The thread is not waited for.
const AWAY: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Pace {
    /// Where each thread is, which grows with every fence; and where it was when others went on without it.
    places: [(AtomicU64, AtomicU64); PLACES],
    leads: Vec<Lead>,
}

impl Pace {
    pub(crate) fn new(plan: &Plan) -> Self {
        let place = |_| (AtomicU64::new(AWAY), AtomicU64::new(AWAY));
        Self { places: std::array::from_fn(place), leads: plan.leads.clone() }
    }

    fn place(&self, thread: ThreadId) -> &AtomicU64 {
        &self.places[thread.0 as usize % PLACES].0
    }

    fn of(&self, thread: &Thread) -> u64 {
        let lead = self.leads.iter().find(|lead| lead.thread == thread.id.0).map_or(0, |lead| lead.fences);
        START + thread.pace - u64::from(lead)
    }

    /// The thread is not waited for until it is back.
    pub(crate) fn leave(&self, thread: ThreadId) {
        self.place(thread).store(AWAY, Ordering::Relaxed);
    }

    pub(crate) fn enter(&self, thread: &Thread) {
        self.place(thread.id).store(self.of(thread), Ordering::Relaxed);
    }

    /// Those who are behind and may still move. One for whom others have waited in vain, and who has not moved since, may
    /// wait for them: for a lock that they hold and on which it spins, say.
    fn behind(&self, mine: u64) -> impl Iterator<Item = (u64, &AtomicU64)> {
        self.places.iter().filter_map(move |(other, passed)| {
            let other = other.load(Ordering::Relaxed);
            let behind = other.saturating_add(AHEAD) < mine && other.saturating_add(FAR) >= mine;
            (behind && passed.load(Ordering::Relaxed) != other).then_some((other, passed))
        })
    }
}

/// Before a fence.
pub(crate) unsafe extern "C" fn paced(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    let thread = unsafe { &mut *thread };
    thread.pace += 1;
    thread.follow.fenced();
    client().pace.enter(thread);
    thread.keep_pace();
}

/// Before a function that takes a lock, among others.
pub(crate) unsafe extern "C" fn paced_entry(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    unsafe { &*thread }.keep_pace();
}

impl Thread {
    /// Lets those run first that are behind; but not while they may wait for a lock of this thread.
    fn keep_pace(&self) {
        if self.held_count > 0 {
            return;
        }
        let pace = &client().pace;
        let (mine, mut sleeps, mut seen) = (pace.of(self), 0, u64::MAX);
        while sleeps < SLEEPS {
            let Some(last) = pace.behind(mine).map(|(other, _)| other).min() else { return };
            let catches_up = last + STOPPED < mine && last != seen;
            (sleeps, seen) = (if catches_up { 0 } else { sleeps + 1 }, last);
            dr::sleep(SLEEP);
        }
        pace.behind(mine).for_each(|(other, passed)| passed.store(other, Ordering::Relaxed));
    }
}
