//! When pmvet has to end: a signal asked for it, or the budget of the command is used up.
//!
//! There is one such moment for the whole process, so that all waits, in whichever thread, can check whether it has come, and then
//! kill what they wait for. What was cut short like this gives no result, and never looks like a failure of the target.

use std::sync::RwLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Why pmvet has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// It got this signal.
    Signal(i32),
    /// Its time, or its engine's share of it, is used up.
    Budget,
}

/// The signal that asked pmvet to stop, and whether the target got it too.
static STOP: AtomicU32 = AtomicU32::new(0);
const TARGET_HAS_IT: u32 = 1 << 16;

/// When that was, by [`now`].
static STOPPED: AtomicU64 = AtomicU64::new(0);

/// The budget of the command, or of the current job of a worker process.
static BUDGET: RwLock<Option<Budget>> = RwLock::new(None);

/// The current engine's share of it.
static ENGINE_SHARE: RwLock<Option<Budget>> = RwLock::new(None);

/// How long the command, or an engine, may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// The whole time, including time for reports.
    pub whole: Duration,
    /// When it is used up.
    pub end: Instant,
    /// When work ends, so that there is time to report.
    pub deadline: Instant,
}

impl Budget {
    /// Time reserved for reports: a share of the budget, up to a bound.
    const REPORT_DIVISOR: u32 = 6;
    const MAX_REPORT_TIME: Duration = Duration::from_secs(6);

    /// The budget of a command that began at `started`. Nothing for a time that no clock reaches.
    fn new(started: Instant, whole: Duration) -> Option<Self> {
        let kept = (whole / Self::REPORT_DIVISOR).min(Self::MAX_REPORT_TIME);
        Some(Self { whole, end: started.checked_add(whole)?, deadline: started.checked_add(whole - kept)? })
    }
}

/// Asks the run under way to end. Safe to call from a signal handler. A terminal sends its signals to the target as well,
/// which must not get them twice.
pub fn stop(signal: i32, from_terminal: bool) {
    STOPPED.store(now(), Ordering::Relaxed);
    STOP.store(signal as u32 | if from_terminal { TARGET_HAS_IT } else { 0 }, Ordering::Relaxed);
}

/// The signal that asked pmvet to stop, if one did. Safe to call from a signal handler.
pub fn stopped_by() -> Option<i32> {
    match STOP.load(Ordering::Relaxed) & !TARGET_HAS_IT {
        0 => None,
        signal => Some(signal as i32),
    }
}

pub(crate) fn target_has_signal() -> bool {
    STOP.load(Ordering::Relaxed) & TARGET_HAS_IT != 0
}

/// Milliseconds of a clock that never goes back. Safe to call from a signal handler, which `Instant` does not promise.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// Sets the budget of the command, or the job, that began at `started`.
pub fn set_budget(started: Instant, whole: Duration) {
    *BUDGET.write().unwrap_or_else(|e| e.into_inner()) = Budget::new(started, whole);
}

/// Removes the budget: a worker waits for its next job.
pub fn clear_budget() {
    *BUDGET.write().unwrap_or_else(|e| e.into_inner()) = None;
}

/// The budget of the command, whatever the current engine's share.
fn whole_budget() -> Option<Budget> {
    *BUDGET.read().unwrap_or_else(|e| e.into_inner())
}

/// Sets an engine's share of the command's budget; nothing: all that is left.
pub fn set_share(share: Option<Duration>) {
    let now = Instant::now();
    let share = share.and_then(|whole| Some(Budget { whole, end: now.checked_add(whole)?, deadline: now + whole }));
    *ENGINE_SHARE.write().unwrap_or_else(|e| e.into_inner()) = share;
}

/// The budget of the current engine, or of the command, if there is one.
pub fn budget() -> Option<Budget> {
    let share = *ENGINE_SHARE.read().unwrap_or_else(|e| e.into_inner());
    share.into_iter().chain(whole_budget()).min_by_key(|budget| budget.deadline)
}

/// When work has to end, if the command has a budget.
pub fn deadline() -> Option<Instant> {
    budget().map(|budget| budget.deadline)
}

/// Why everything under way has to end now. Nothing if it has not.
pub fn over() -> Option<Over> {
    if let Some(signal) = stopped_by() {
        return Some(Over::Signal(signal));
    }
    deadline().is_some_and(|at| Instant::now() >= at).then_some(Over::Budget)
}

/// Whether everything under way has to end now.
pub fn is_over() -> bool {
    over().is_some()
}

/// How long to work on a report after a signal, and after the end of the budget. After that, optional parts are skipped.
const REPORT_AFTER_SIGNAL: Duration = Duration::from_millis(600);
const REPORT_AFTER_BUDGET: Duration = Duration::from_millis(1500);

/// How long pmvet may take to end by itself after a signal, and after the end of the budget. It has to be gone two seconds after a
/// signal: if 20 others wait for a processor, its exit alone takes half a second of that.
const END_AFTER_SIGNAL: Duration = Duration::from_millis(1250);
const END_AFTER_BUDGET: Duration = Duration::from_millis(2800);

/// Whether this much time has passed since the signal, or since the end of the budget.
fn is_over_for(after_signal: Duration, after_budget: Duration) -> bool {
    match over() {
        None => false,
        Some(Over::Signal(_)) => {
            Duration::from_millis(now().saturating_sub(STOPPED.load(Ordering::Relaxed))) >= after_signal
        }
        // The end of a share does not end the command.
        Some(Over::Budget) => whole_budget().is_some_and(|budget| Instant::now() >= budget.end + after_budget),
    }
}

/// Whether there is time to make a report better.
pub fn may_elaborate() -> bool {
    !is_over_for(REPORT_AFTER_SIGNAL, REPORT_AFTER_BUDGET)
}

/// Whether pmvet has used up the time that it may take to end.
pub fn is_overdue() -> bool {
    is_over_for(END_AFTER_SIGNAL, END_AFTER_BUDGET)
}

/// For loops with short steps: checks the clock only once in many steps.
#[derive(Debug, Default)]
pub struct ClockCheck(u32);

impl ClockCheck {
    const STEPS_PER_LOOK: u32 = 2048;

    /// True once in `STEPS_PER_LOOK` calls.
    pub fn is_due(&mut self) -> bool {
        self.0 = (self.0 + 1) % Self::STEPS_PER_LOOK;
        self.0 == 0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn a_small_part_of_the_budget_is_for_reports() {
        let now = Instant::now();
        let kept = |whole| {
            let budget = Budget::new(now, whole).unwrap();
            assert_eq!(budget.end, now + whole);
            budget.end - budget.deadline
        };
        assert_eq!(kept(Duration::from_secs(6)), Duration::from_secs(1));
        assert_eq!(kept(Duration::from_secs(3600)), Duration::from_secs(6));
        assert_eq!(Budget::new(now, Duration::MAX), None);
    }

    #[test]
    fn the_end_of_a_share_ends_no_more_than_that() {
        set_share(Some(Duration::ZERO));
        assert_eq!(over(), Some(Over::Budget));
        assert!(may_elaborate() && !is_overdue());
        set_share(None);
        assert_eq!(over(), None);
    }
}
