//! The run that this process is part of: pmvet's plan, and the memory shared with pmvet.

use std::ffi::CString;
use std::sync::atomic::{AtomicU32, Ordering};

use pmvet_events::plan::Plan;
use pmvet_events::shm::SharedMemory;

use crate::dynamorio::{self, Global};

pub(crate) struct ClientRun {
    pub(crate) shared: SharedMemory,
    pub(crate) plan: Plan,
    /// The target's own executable.
    pub(crate) executable: CString,
    /// pmvet's process id.
    pmvet: u32,
    /// The process that this memory belongs to. A child of vfork runs in it under another id.
    process: AtomicU32,
}

static RUN: Global<ClientRun> = Global::new();

pub(crate) fn run() -> &'static ClientRun {
    &RUN
}

pub(crate) fn set_up(shared: SharedMemory, plan: Plan, pmvet: u32) {
    let process = AtomicU32::new(dynamorio::process());
    RUN.set(ClientRun { shared, plan, executable: dynamorio::executable(), pmvet, process });
}

impl ClientRun {
    /// Whether operations on PM are counted for a fuzzer, and no events are reported.
    pub(crate) fn is_coverage_run(&self) -> bool {
        self.plan.forks.as_ref().is_some_and(|forks| forks.count)
    }

    pub(crate) fn process(&self) -> u32 {
        self.process.load(Ordering::Relaxed)
    }

    /// Notes that this is the child of a fork.
    pub(crate) fn update_process(&self) {
        self.process.store(dynamorio::process(), Ordering::Relaxed);
    }

    /// Whether the target has ever had more than one thread or process.
    pub(crate) fn many_threads(&self) -> bool {
        self.shared.header().many_threads.0.load(Ordering::Relaxed) != 0
    }

    /// Ends the target if pmvet is gone: nothing reads the events then, and a full ring would block forever.
    pub(crate) fn check_pmvet_lives(&self) {
        if !dynamorio::process_lives(self.pmvet) {
            dynamorio::fail("pmvet is gone; the target ends with it");
        }
    }
}
