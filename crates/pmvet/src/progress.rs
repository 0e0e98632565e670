//! Progress of a long phase: a bar on a terminal, a line now and then in a pipe, both on standard error.

use std::io::IsTerminal;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use pmvet_engines::lab::TrialProgress;
use pmvet_engines::verify::SearchProgress;

/// Intervals of updates, in a pipe and on a terminal.
const LINES: Duration = Duration::from_secs(10);
const SCREEN: Duration = Duration::from_millis(200);

/// Templates of indicatif for the terminal.
const CRASH_IMAGES: &str = "{bar:30} {pos}/{len} crash images, {msg} failed, {per_sec}, {eta} left";
const CRASHES: &str = "{bar:30} {pos}/{len} crashes, {msg}";
const TASKS: &str = "{bar:30} {pos}/{len} tasks, {msg}";
const ENDLESS: &str = "{msg}";

#[derive(Debug)]
pub(crate) struct ProgressReport {
    shown: Shown,
    started: Instant,
    last: Mutex<Instant>,
}

#[derive(Debug)]
enum Shown {
    Nothing,
    Bar(ProgressBar),
    Lines,
}

/// Where a phase stands.
#[derive(Debug, Default)]
pub(crate) struct PhaseProgress {
    pub(crate) done: u64,
    pub(crate) total: u64,
    /// The text beside the bar.
    pub(crate) message: String,
    /// The whole line for a pipe.
    pub(crate) line: String,
}

impl ProgressReport {
    /// For [`TrialProgress`].
    pub(crate) fn of_crash_images(quiet: bool) -> Self {
        Self::new(quiet, CRASH_IMAGES)
    }

    /// For [`SearchProgress`].
    pub(crate) fn of_crashes(quiet: bool) -> Self {
        Self::new(quiet, CRASHES)
    }

    /// For tasks on other machines.
    pub(crate) fn of_tasks(quiet: bool) -> Self {
        Self::new(quiet, TASKS)
    }

    /// For a phase of unknown length.
    pub(crate) fn endless(quiet: bool) -> Self {
        Self::new(quiet, ENDLESS)
    }

    fn new(quiet: bool, template: &str) -> Self {
        let shown = if quiet {
            Shown::Nothing
        } else if std::io::stderr().is_terminal() {
            let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            Shown::Bar(ProgressBar::no_length().with_style(style))
        } else {
            Shown::Lines
        };
        let now = Instant::now();
        Self { shown, started: now, last: Mutex::new(now) }
    }

    /// Shows the progress if an update is due. `stand` gets the seconds since the start.
    pub(crate) fn show(&self, stand: impl FnOnce(f64) -> PhaseProgress) {
        let interval = match self.shown {
            Shown::Nothing => return,
            Shown::Bar(_) => SCREEN,
            Shown::Lines => LINES,
        };
        let mut last = self.last();
        if last.elapsed() < interval {
            return;
        }
        *last = Instant::now();
        let stand = stand(self.started.elapsed().as_secs_f64());
        match &self.shown {
            Shown::Nothing => {}
            Shown::Bar(bar) => {
                bar.set_length(stand.total);
                bar.set_position(stand.done);
                bar.set_message(stand.message);
            }
            Shown::Lines => eprintln!("pmvet: {}", stand.line),
        }
    }

    /// Removes the bar at the end of the phase.
    pub(crate) fn finish(&self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }

    fn last(&self) -> MutexGuard<'_, Instant> {
        self.last.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Drop for ProgressReport {
    /// Removes the bar however the phase ended.
    fn drop(&mut self) {
        self.finish();
    }
}

impl TrialProgress for ProgressReport {
    fn done(&self, done: usize, total: usize, failed: usize) {
        self.show(|seconds| {
            let rate = done as f64 / seconds;
            let left = (total - done) as f64 / rate;
            PhaseProgress {
                done: done as u64,
                total: total as u64,
                message: failed.to_string(),
                line: format!("{done} of {total} crash images tried, {failed} failed, {rate:.1}/s, {left:.0} s left"),
            }
        });
    }
}

impl SearchProgress for ProgressReport {
    fn done(&self, crashes: usize, of: usize, executions: u64, failures: usize) {
        self.show(|seconds| {
            let rate = executions as f64 / seconds;
            let message = format!("{executions} executions ({rate:.1}/s), {failures} failed");
            let line = format!("{crashes} of {of} crashes, {message}");
            PhaseProgress { done: crashes as u64, total: of as u64, message, line }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_template_is_understood() {
        for template in [CRASH_IMAGES, CRASHES, TASKS, ENDLESS] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }

    #[test]
    fn nothing_is_asked_for_before_it_is_time() {
        for shown in [Shown::Nothing, Shown::Lines, Shown::Bar(ProgressBar::hidden())] {
            let now = Instant::now();
            let report = ProgressReport { shown, started: now, last: Mutex::new(now + LINES) };
            report.show(|_| panic!("asked too early"));
        }
    }

    #[test]
    fn a_bar_says_where_it_stands() {
        let bar = ProgressBar::hidden();
        let long_ago = Instant::now() - LINES;
        let report = ProgressReport { shown: Shown::Bar(bar.clone()), started: long_ago, last: Mutex::new(long_ago) };
        SearchProgress::done(&report, 2, 7, 100, 1);
        assert_eq!((bar.position(), bar.length()), (2, Some(7)));
        assert!(bar.message().starts_with("100 executions (") && bar.message().ends_with("/s), 1 failed"));
        report.finish();
        assert!(bar.is_finished());
    }
}
