//! Claims a ring for a new thread, and waits for pmvet or for other threads.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pmvet_events::ids::ThreadId;
use pmvet_events::shm::MAX_RINGS;

use crate::dynamorio;
use crate::run::run;

/// How long a new thread waits for a ring while no other thread gets one either. Threads that end free theirs sooner.
const RING_PATIENCE: Duration = Duration::from_secs(10);

/// Claims a free ring. If there is none, it waits for a thread to end, but not forever: the others may wait for this one.
pub(super) fn claim_ring(id: ThreadId) -> usize {
    let shared = &run().shared;
    let mut waits = 0;
    let mut waiting = None;
    loop {
        if let Some(ring) = shared.claim_ring(id) {
            return ring;
        }
        let claims = shared.header().rings_claimed.load(Ordering::Relaxed);
        let (_, since) = *waiting.get_or_insert((claims, Instant::now()));
        if waiting.is_some_and(|(before, _)| before != claims) {
            waiting = Some((claims, Instant::now()));
        } else if since.elapsed() > RING_PATIENCE {
            dynamorio::fail(&format!(
                "the target has more than {MAX_RINGS} threads at a time, and pmvet cannot follow more; run it with fewer"
            ));
        }
        wait_a_little(&mut waits);
    }
}

/// Sleep per step of a wait that has gone on for long: short against the time that pmvet takes to empty a ring.
const WAIT_SLEEP_NANOS: u64 = 50_000;

/// Waits a little, longer as waiting goes on: spins at first, then yields, then sleeps.
pub(crate) fn wait_a_little(waits: &mut u32) {
    *waits += 1;
    if *waits < 64 {
        std::hint::spin_loop();
    } else if *waits < 256 {
        dynamorio::yield_thread();
    } else {
        dynamorio::sleep_nanos(WAIT_SLEEP_NANOS);
        run().check_pmvet_lives();
    }
}
