//! A spinning thread lets others run periodically, hopefully including the one that it waits for, and no thread waits for it to catch
//! up. See [`crate::record::spinning`] for what counts as spinning.

use super::lockstep::LOCKSTEP;
use super::schedule::SCHEDULE;
use crate::record::slow_path;
use crate::record::spinning::UNREPORTED;
use crate::record::thread::{Thread, mode};

/// The slow half of [`crate::instrument::stubs::after_store`].
pub(crate) unsafe extern "C" fn after_store(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    unsafe {
        match (*thread).mode {
            mode::SPINNING => (*thread).rest(),
            _ => slow_path::after_store(thread),
        }
    }
}

/// The slow form of [`crate::instrument::stubs::load`].
pub(crate) unsafe extern "C" fn load(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    unsafe {
        match (*thread).mode {
            mode::SPINNING => (*thread).rest(),
            _ => slow_path::load(thread),
        }
    }
}

impl Thread {
    /// Ends the access under way without a report, and lets other threads run.
    fn rest(&mut self) {
        self.finish_access();
        self.kind = UNREPORTED;
        LOCKSTEP.leave(self.id);
        SCHEDULE.rest_or_yield();
    }
}
