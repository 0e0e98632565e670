//! A process does not end while one of its threads is publishing an event.
//!
//! When a thread ends the process, or replaces its program, the others die wherever they are. One that has taken a number and not yet
//! published its record would leave a hole in the trace. So the thread that is about to do it waits for them, and the others wait for
//! their end before they begin another event.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::ring_claim::wait_a_little;
use super::thread::Thread;
use crate::dynamorio;

/// A thread that takes longer than this to publish one event is stopped, and will not finish.
const PATIENCE: Duration = Duration::from_secs(1);

/// How many threads are publishing.
static PUBLISHING: AtomicU32 = AtomicU32::new(0);
/// The thread that is ending the process, or 0.
static ENDING: AtomicU32 = AtomicU32::new(0);

/// An event of `thread` is about to be published. Does not return if another thread is ending the process, but lets that one publish
/// the last events of all others.
pub(super) fn begin(thread: &Thread) {
    loop {
        PUBLISHING.fetch_add(1, Ordering::SeqCst);
        let ending = ENDING.load(Ordering::SeqCst);
        // A child of vfork is another process, which does not end with this one.
        if ending == 0 || ending == dynamorio::os_thread() || thread.is_vfork_child {
            return;
        }
        PUBLISHING.fetch_sub(1, Ordering::SeqCst);
        let mut waits = 0;
        while ENDING.load(Ordering::SeqCst) == ending {
            wait_a_little(&mut waits);
        }
    }
}

pub(super) fn end() {
    PUBLISHING.fetch_sub(1, Ordering::SeqCst);
}

/// The calling thread is about to end the process or to replace its program.
pub(crate) fn begin_process_end(thread: &Thread) {
    if thread.is_vfork_child {
        return;
    }
    ENDING.store(dynamorio::os_thread(), Ordering::SeqCst);
    let (begun, mut waits) = (Instant::now(), 0);
    while PUBLISHING.load(Ordering::SeqCst) != 0 && begun.elapsed() < PATIENCE {
        wait_a_little(&mut waits);
    }
}

/// The program could not be replaced.
pub(crate) fn cancel_process_end() {
    ENDING.store(0, Ordering::SeqCst);
}

/// In a new process, where only the calling thread lives on.
pub(crate) fn reset_after_fork() {
    PUBLISHING.store(0, Ordering::SeqCst);
    ENDING.store(0, Ordering::SeqCst);
}
