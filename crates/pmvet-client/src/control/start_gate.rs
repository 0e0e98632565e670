//! Start gate: makes threads that are created one after another begin together.
//!
//! Creating a thread takes longer under DynamoRIO than the work that a short test gives it. Without the gate, the first thread
//! is often done before the second one begins, and all that it stored and persisted until then counts as initialisation: races
//! there go unseen, different ones in each run. So a new thread waits until its creator does something else than create more. It
//! never waits for long, and only up to `MAX_WAITS` threads do: the creator may wait for it in a way that the client cannot
//! see, and servers create threads all the time.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pmvet_events::plan::Plan;

use crate::dynamorio;
use crate::run::run;

/// The gate of this process.
pub(crate) static START_GATE: StartGate =
    StartGate { creator: AtomicU32::new(0), last_creation_nanos: AtomicU64::new(0), waits: AtomicU32::new(0) };

/// A thread that has created none for this long does other work. Creating one takes about a millisecond.
const CREATOR_BUSY_NANOS: u64 = 10_000_000;
/// The longest that one thread waits.
const MAX_WAIT_NANOS: u64 = 100_000_000;
/// How many threads of a process wait; later ones begin at once.
const MAX_WAITS: u32 = 64;
/// How long a waiting thread sleeps between two checks of its creator.
const SLEEP_NANOS: u64 = 200_000;

#[derive(Debug)]
pub(crate) struct StartGate {
    /// The thread that has created the last one, and when.
    creator: AtomicU32,
    last_creation_nanos: AtomicU64,
    /// How many threads have waited.
    waits: AtomicU32,
}

/// Whether this run has the gate: schedules and lockstep keep threads together in other ways.
pub(crate) fn is_wanted(plan: &Plan) -> bool {
    plan.races && !plan.in_step && !plan.delays && plan.stalls.is_empty() && plan.forks.is_none()
}

/// A new thread of the C library makes this call before it runs any code of the program.
pub(crate) const FIRST_CALL: i64 = libc::SYS_set_robust_list;

impl StartGate {
    /// The thread that runs now is about to create another, or a process.
    pub(crate) fn note_creation(&self, os_thread: u32) {
        self.last_creation_nanos.store(dynamorio::monotonic_nanos(), Ordering::Relaxed);
        self.creator.store(os_thread, Ordering::Relaxed);
    }

    /// A new thread is about to begin: it waits for those that come after it.
    pub(crate) fn wait_for_siblings(&self) {
        if !is_wanted(&run().plan) || self.creator.load(Ordering::Relaxed) == 0 {
            return;
        }
        if self.waits.fetch_add(1, Ordering::Relaxed) >= MAX_WAITS {
            return;
        }
        let begin = dynamorio::monotonic_nanos();
        let mut creator_was_idle = false;
        loop {
            dynamorio::sleep_nanos(SLEEP_NANOS);
            let now = dynamorio::monotonic_nanos();
            let busy_elsewhere =
                now.saturating_sub(self.last_creation_nanos.load(Ordering::Relaxed)) > CREATOR_BUSY_NANOS;
            // Idle at two checks in a row, since creating a thread may also sleep for a moment.
            let creator_is_idle = !dynamorio::thread_is_runnable(self.creator.load(Ordering::Relaxed));
            if busy_elsewhere || creator_is_idle && creator_was_idle || now - begin > MAX_WAIT_NANOS {
                return;
            }
            creator_was_idle = creator_is_idle;
        }
    }
}
