//! Delays the end of a process until its threads have recorded what their system calls did, and their own ends.
//!
//! A thread that dies after it has taken a number and before it has published its record leaves a hole in the trace. When a
//! thread ends the process, DynamoRIO lets most others leave the client first. It does not wait for threads that have just
//! returned from a system call, which it believes to be still in the call, nor for those that are ending. So the thread that
//! is about to end the process waits for them, and no other thread returns from a system call any more.
//!
//! A thread that replaces the program does the same. In that case the kernel ends the other threads wherever they are, so
//! what they record elsewhere may still get lost.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::ring_claim::wait_a_little;
use super::thread::Thread;
use crate::dynamorio;

/// A thread that takes longer than this to record a call was stopped and will not finish.
const PATIENCE: Duration = Duration::from_secs(1);

/// How many threads are recording what a system call did, or that they end.
static RECORDING: AtomicU32 = AtomicU32::new(0);
/// The thread that is ending the process, or 0.
static ENDING: AtomicU32 = AtomicU32::new(0);

/// While it exists, another thread that wants to end the process waits.
pub(crate) struct HeldOff(());

impl Drop for HeldOff {
    fn drop(&mut self) {
        RECORDING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Lets no other thread end the process, unless one is ending it already. For a thread that is ending itself: DynamoRIO may wait for
/// it, so it must not wait.
pub(crate) fn hold_off_without_waiting() -> HeldOff {
    RECORDING.fetch_add(1, Ordering::SeqCst);
    HeldOff(())
}

/// Lets no other thread end the process. Does not return if one is ending it already.
pub(crate) fn hold_off(thread: &Thread) -> HeldOff {
    loop {
        let held = hold_off_without_waiting();
        let ending = ENDING.load(Ordering::SeqCst);
        // A child of vfork is a separate process, which does not end with this one.
        if ending == 0 || ending == dynamorio::os_thread() || thread.is_vfork_child {
            return held;
        }
        drop(held);
        wait_while_ending(ending);
    }
}

fn wait_while_ending(ending: u32) {
    dynamorio::while_safe_to_suspend(|| {
        let mut waits = 0;
        while ENDING.load(Ordering::SeqCst) == ending {
            wait_a_little(&mut waits);
        }
    });
}

/// The calling thread is about to end the process or to replace its program. Does not return if another thread does so.
pub(crate) fn begin(thread: &Thread) {
    if thread.is_vfork_child {
        return;
    }
    while let Err(ending) = ENDING.compare_exchange(0, dynamorio::os_thread(), Ordering::SeqCst, Ordering::SeqCst) {
        wait_while_ending(ending);
    }
    let (begun, mut waits) = (Instant::now(), 0);
    while RECORDING.load(Ordering::SeqCst) != 0 && begun.elapsed() < PATIENCE {
        wait_a_little(&mut waits);
    }
}

/// The calling thread could not replace the program.
pub(crate) fn cancel() {
    // A child of vfork never began, and must not cancel what a thread of its parent has begun.
    let _ = ENDING.compare_exchange(dynamorio::os_thread(), 0, Ordering::SeqCst, Ordering::SeqCst);
}

/// In a new process, where only the calling thread lives on.
pub(crate) fn reset_after_fork() {
    RECORDING.store(0, Ordering::SeqCst);
    ENDING.store(0, Ordering::SeqCst);
}
