//! What the kernel knows about the threads of a target: whether they run or wait, and how long they have run.

use std::time::Duration;

use crate::sandbox::waiting;

/// What a thread of the target is doing, as far as the kernel knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    Runs,
    Waits,
    Gone,
}

/// What is asked of the kernel.
pub(crate) trait Kernel {
    fn activity(&self, process: u32, os_thread: u32) -> Activity;
    /// How long a thread has run.
    fn ran(&self, process: u32, os_thread: u32) -> Duration;
    /// How many threads a process has, known or not.
    fn threads(&self, process: u32) -> usize;
}

/// The kernel that runs here.
#[derive(Debug)]
pub(crate) struct ThisKernel;

impl Kernel for ThisKernel {
    fn activity(&self, process: u32, os_thread: u32) -> Activity {
        activity(process, os_thread)
    }

    fn ran(&self, process: u32, os_thread: u32) -> Duration {
        waiting::ran(process, os_thread)
    }

    fn threads(&self, process: u32) -> usize {
        std::fs::read_dir(format!("/proc/{process}/task")).map_or(0, Iterator::count)
    }
}

/// What the kernel says of a thread.
fn activity(process: u32, os_thread: u32) -> Activity {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{process}/task/{os_thread}/stat")) else {
        return Activity::Gone;
    };
    // The name of the program is in parentheses and may hold anything.
    match stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()) {
        Some('R') => Activity::Runs,
        Some('Z' | 'X') | None => Activity::Gone,
        Some(_) => Activity::Waits,
    }
}
