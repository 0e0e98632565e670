//! The threads of this process: those that are alive and those that are about to start.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use pmvet_events::ids::ThreadId;

use super::thread::Thread;
use crate::dynamorio::Global;

static THREADS: Global<Mutex<Threads>> = Global::new();

pub(super) fn set_up() {
    THREADS.set(Mutex::default());
}

pub(crate) fn threads() -> MutexGuard<'static, Threads> {
    THREADS.lock().unwrap_or_else(|e| e.into_inner())
}

#[derive(Debug, Default)]
pub(crate) struct Threads {
    /// Addresses of [`Thread`]s.
    pub(crate) alive: Vec<usize>,
    /// Threads that were created and have not started, by their stack.
    pub(crate) expected: HashMap<u64, ThreadId>,
    /// By what `pthread_join` takes.
    handles: HashMap<u64, ThreadId>,
}

impl Threads {
    /// The target is about to create a thread.
    pub(crate) fn expect(&mut self, stack: u64, handle: Option<u64>, child: ThreadId) {
        self.expected.insert(stack, child);
        if let Some(handle) = handle {
            self.handles.insert(handle, child);
        }
    }

    pub(crate) fn by_handle(&self, handle: u64) -> Option<ThreadId> {
        self.handles.get(&handle).copied()
    }

    /// Mappings changed: no thread may rely on the one it remembers.
    pub(crate) fn forget_cached_mappings(&self) {
        for &thread in &self.alive {
            // SAFETY: threads in the list are alive; a word is written as a whole, and a thread that reads the old
            // value did its access before the change.
            unsafe { (&raw mut (*(thread as *mut Thread)).pm_span).write_volatile(0) };
        }
    }
}
