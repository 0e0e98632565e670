//! System calls that make threads and processes.

use std::sync::atomic::Ordering;

use pmvet_events::event::What;
use pmvet_events::ids::ThreadId;

use crate::dynamorio;
use crate::record::thread::Thread;
use crate::record::threads::threads;
use crate::run::run;

/// A thread or process is about to be created. Its events must have later numbers than this one.
pub(crate) fn before_clone(thread: &mut Thread, number: i64, argument: &dyn Fn(i32) -> u64) {
    let header = run().shared.header();
    header.many_threads.0.store(1, Ordering::SeqCst);
    let (flags, stack, handle) = requested(number, argument);
    if flags & libc::CLONE_THREAD as u64 == 0 {
        return;
    }
    let child = ThreadId(header.next_thread.0.fetch_add(1, Ordering::AcqRel));
    let handle = (flags & libc::CLONE_SETTLS as u64 != 0).then_some(handle);
    threads().expect(stack, handle, child);
    thread.emit(What::ThreadCreate { child });
}

/// Whether a call creates a thread rather than a process.
pub(crate) fn makes_thread(number: i64, argument: &dyn Fn(i32) -> u64) -> bool {
    requested(number, argument).0 & libc::CLONE_THREAD as u64 != 0
}

/// The flags of a call that creates a thread or process, the end of the new stack, and where thread-local data is.
fn requested(number: i64, argument: &dyn Fn(i32) -> u64) -> (u64, u64, u64) {
    match number {
        libc::SYS_clone => (argument(0), argument(1), argument(4)),
        libc::SYS_clone3 => {
            let word = |i: u64| dynamorio::read_word(argument(0) + i * 8).unwrap_or(0);
            (word(0), word(5).wrapping_add(word(6)), word(7))
        }
        _ => (0, 0, 0),
    }
}
