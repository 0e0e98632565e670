//! The end of a command: when its budget is used up, or a signal asks for it.
//!
//! Code that waits polls [`shutdown`]. This module starts the clock, and reports what was cut short.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pmvet_findings::Coverage;
use pmvet_target::shutdown::{self, Over};

use crate::exit::Exit;
use crate::system;

/// When the process began. Start-up counts too: on a busy machine it takes seconds.
static STARTED: OnceLock<Instant> = OnceLock::new();

/// Starts the clock, first thing.
pub(crate) fn start_clock() {
    STARTED.get_or_init(Instant::now);
}

/// Gives the command its budget, and makes sure that it ends in time. Returns when the command began.
pub(crate) fn begin(budget: Option<Duration>) -> Instant {
    let started = *STARTED.get_or_init(Instant::now);
    if let Some(budget) = budget {
        shutdown::set_budget(started, budget);
    }
    system::handle_signals();
    watch_the_end();
    started
}

/// Runs a job of a worker process within this budget, and tells the job when it began.
pub(crate) fn for_job<T>(budget: Duration, job: impl FnOnce(Instant) -> T) -> T {
    let started = Instant::now();
    shutdown::set_budget(started, budget);
    let done = job(started);
    shutdown::clear_budget();
    done
}

/// Ends the process if it takes too long to end by itself.
pub(crate) fn watch_the_end() {
    // Without this thread, only a report that takes too long is not ended.
    let _ = std::thread::Builder::new().name("pmvet-end".into()).spawn(|| {
        while !shutdown::is_overdue() {
            std::thread::sleep(POLL_INTERVAL);
        }
        match shutdown::stopped_by() {
            Some(_) => system::end_at_once("pmvet: interrupted; the report was not finished\n", Exit::Interrupted),
            None if RECORDS.load(Ordering::Acquire) => {
                system::end_at_once(&format!("{}\n", did_not_end("the target")), Exit::TargetFailed)
            }
            None => system::end_at_once(
                "pmvet: the budget is used up, and the report was not finished; what was tried is kept in the run's folder\n",
                Exit::Incomplete,
            ),
        }
    });
}

/// The target runs and is recorded: nothing is analysed yet.
static RECORDS: AtomicBool = AtomicBool::new(false);

/// Runs the target to its end and records it. If pmvet has to end before that, it says that the target did not.
pub(crate) fn while_recording<T>(record: impl FnOnce() -> T) -> T {
    RECORDS.store(true, Ordering::Release);
    let recorded = record();
    RECORDS.store(false, Ordering::Release);
    recorded
}

/// Poll interval of the thread that ends pmvet.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The budget, if it is used up.
fn used_up() -> Option<Duration> {
    (shutdown::over() == Some(Over::Budget)).then(shutdown::budget).flatten().map(|budget| budget.whole)
}

/// The exit code if a step before the analysis was cut short, otherwise nothing.
pub(crate) fn exit_if_cut_short(what: &str) -> Option<Exit> {
    match shutdown::over()? {
        Over::Signal(_) => Some(Exit::Interrupted),
        Over::Budget => {
            eprintln!("{}", did_not_end(what));
            Some(Exit::TargetFailed)
        }
    }
}

fn did_not_end(what: &str) -> String {
    let budget = used_up().unwrap_or_default();
    // Only the target is traced.
    let slow = if what.starts_with("the target") { ", or be slow while it is traced" } else { "" };
    format!("pmvet: {what} did not end within the budget of {budget:?}, so nothing was analysed. It may hang{slow}")
}

/// The exit code if the analysis itself was cut short, otherwise nothing.
pub(crate) fn exit_before_analysis() -> Option<Exit> {
    match shutdown::over()? {
        Over::Signal(_) => Some(Exit::Interrupted),
        Over::Budget => {
            let budget = used_up().unwrap_or_default();
            eprintln!(
                "pmvet: nothing was analysed: the budget of {budget:?} was used up when the run had been recorded. Give it more \
                 time with --budget, or less to do"
            );
            Some(Exit::NothingAnalysed)
        }
    }
}

/// Says that the budget ended before all was done.
pub(crate) fn note(coverage: &mut Coverage) {
    if let Some(budget) = used_up() {
        coverage.not_covered.push(format!("what the budget of {budget:?} left no time for"));
    }
}
