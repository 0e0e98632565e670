//! The start and end of threads and processes.

use core::ffi::c_void;
use std::sync::atomic::Ordering;

use pmvet_events::event::What;
use pmvet_events::ids::ThreadId;
use pmvet_events::paths;

use super::fork_server::{FORK_SERVER, ForkServerProcess};
use super::lockstep::LOCKSTEP;
use super::signals::SIGNALS;
use crate::dynamorio;
use crate::record::module_events;
use crate::record::process_end;
use crate::record::thread::{Thread, mode, slot};
use crate::record::threads::threads;
use crate::run::run;

/// Prepares what a thread needs.
fn start_thread(id: ThreadId) -> *mut Thread {
    Thread::start(id, LOCKSTEP.fences_of_new_thread(), FORK_SERVER.get().map(ForkServerProcess::stage))
}

fn next_thread_id() -> ThreadId {
    ThreadId(run().shared.header().next_thread.0.fetch_add(1, Ordering::AcqRel))
}

/// Tells pmvet about this process. A forked one starts with what `parent` has mapped.
fn report_process(thread: &mut Thread, parent: u32) {
    let path = paths::of_bytes(run().executable.to_bytes());
    thread.emit(What::ProcessStart { process: run().process(), parent, path });
}

pub(crate) unsafe extern "C" fn thread_starts(dc: *mut c_void) {
    // SAFETY: an event of this thread.
    let sp = unsafe { dynamorio::registers().__bindgen_anon_4.rsp };
    let expected = threads().expected.get(&sp).copied();
    let first = threads().alive.is_empty();
    let id = expected.unwrap_or_else(next_thread_id);
    let pointer = start_thread(id);
    let mut all = threads();
    all.expected.remove(&sp);
    all.alive.push(pointer as usize);
    drop(all);
    // SAFETY: just made; the field is ours.
    let thread = unsafe {
        dynamorio::set_thread_field(dc, pointer.cast());
        &mut *pointer
    };
    if first {
        report_process(thread, 0);
        module_events::report_early_modules(thread);
    }
    thread.emit(What::ThreadStart { process: run().process(), os_thread: thread.os_thread });
}

pub(crate) unsafe extern "C" fn thread_ends(dc: *mut c_void) {
    // SAFETY: set by `thread_starts`.
    let pointer = unsafe { dynamorio::thread_field(dc) }.cast::<Thread>();
    if pointer.is_null() {
        return;
    }
    // SAFETY: alive until `end`.
    unsafe {
        dynamorio::set_thread_field(dc, std::ptr::null_mut());
        if (*pointer).is_fork_copy() {
            return;
        }
    }
    let _held = process_end::hold_off_without_waiting();
    let mut all = threads();
    all.alive.retain(|&t| t != pointer as usize);
    // Signals that only this thread blocked are no longer blocked.
    SIGNALS.update_actions(&all);
    drop(all);
    // SAFETY: as above.
    unsafe {
        if !(*pointer).is_vfork_child {
            if (*pointer).mode != mode::NOTHING {
                (*pointer).finish_access();
            }
            (*pointer).emit(What::ThreadExit);
            if threads().alive.is_empty() {
                (*pointer).emit(What::ProcessExit { process: run().process() });
            }
        }
        LOCKSTEP.leave((*pointer).id);
    }
    Thread::end(pointer);
}

/// In the child of a fork: only this thread exists, and its ring is its parent's. No lock of the client is held by a thread
/// that does not exist here, since DynamoRIO brings all threads out of the client before it lets one fork.
pub(crate) unsafe extern "C" fn forked(dc: *mut c_void) {
    // SAFETY: set by `thread_starts` in the parent.
    let pointer = unsafe { dynamorio::thread_field(dc) }.cast::<Thread>();
    // SAFETY: the copy of the parent's thread, which nothing else uses.
    let frame = match unsafe { pointer.as_mut() } {
        Some(thread) => thread.frame() as u64,
        None => 0,
    };
    run().update_process();
    process_end::reset_after_fork();
    let fresh = start_thread(next_thread_id());
    threads().alive = vec![fresh as usize];
    // SAFETY: both are valid; the old one is not used after this.
    unsafe {
        if !pointer.is_null() {
            // The child goes on in the middle of its parent's calls.
            std::mem::swap(&mut (*fresh).frames, &mut (*pointer).frames);
            (*fresh).blocked_signals = (*pointer).blocked_signals;
            (*fresh).set_slot(slot::FRAME, frame);
            Thread::abandon(pointer);
        }
        dynamorio::set_thread_field(dc, fresh.cast());
        report_process(&mut *fresh, dynamorio::parent_process());
        (*fresh).emit(What::ThreadStart { process: run().process(), os_thread: (*fresh).os_thread });
    }
}
