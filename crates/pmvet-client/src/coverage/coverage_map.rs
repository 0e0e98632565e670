//! The coverage map of operations on PM: what a fuzzer learns about a run, in place of events.
//!
//! An *operation* on PM is a store, flush or fence together with the calls that led to it: all calls within libraries,
//! since they show what the library was asked to do, and two of the program's own, so that a shared `persist` does not
//! hide its callers. The map counts which operation follows which (PMFuzz, algorithm 1).
//!
//! The stubs count; this is the slow path for what they leave. Instructions and call paths have the numbers of
//! [`crate::record::stable_ids`].

use std::sync::atomic::{AtomicU64, Ordering};

use crate::control::fork_server::FORK_SERVER;
use crate::record::shadow_stack::HASH_FACTOR;
use crate::record::thread::{Thread, slot};

/// The slow form of [`crate::instrument::stubs::count_operation`].
pub(crate) unsafe extern "C" fn count_operation(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    let thread = unsafe { &mut *thread };
    if thread.hits_pm(thread.slot(slot::ADDR), thread.size.max(1).into()) {
        thread.count(false);
    }
}

/// The slow form of [`crate::instrument::stubs::count_fence`].
pub(crate) unsafe extern "C" fn count_fence(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    unsafe { &mut *thread }.count(true);
}

impl Thread {
    /// Counts the operation under way, or ends the run if pmvet wants it to crash here.
    pub(crate) fn count(&mut self, fence: bool) {
        let Some(server) = FORK_SERVER.get() else { return };
        let stop = &server.stage().stop;
        // The stub may have numbered it already, but only if the run ends here.
        let is_end = |count: &AtomicU64, at: &AtomicU64| {
            let (now, end) = (count.load(Ordering::Relaxed), at.load(Ordering::Relaxed));
            if end != 0 && now == end {
                return true;
            }
            count.store(now + 1, Ordering::Relaxed);
            now + 1 == end
        };
        if is_end(&stop.operations, &stop.at_operation) || fence && is_end(&stop.fences, &stop.at_fence) {
            server.simulate_crash();
        }
        let context = self.context(self.rsp).0;
        let operation = self.site.wrapping_mul(HASH_FACTOR) ^ context;
        let step = operation ^ std::mem::replace(&mut self.last_operation, operation >> 1);
        let place = (step ^ step >> 16) as u16;
        let count = &server.stage().maps.pm[usize::from(place)];
        count.store(count.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
    }
}
