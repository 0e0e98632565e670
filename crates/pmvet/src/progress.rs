//! How far a long phase has come: a bar on a terminal, a line now and then in a pipe.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use pmvet_engines::inject::Progress;

/// How often a line is printed if nobody watches a bar.
const INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) enum Report {
    Silent,
    Bar(ProgressBar),
    Lines { last: Mutex<Instant>, started: Instant },
}

impl Report {
    pub(crate) fn new(quiet: bool) -> Self {
        if quiet {
            Report::Silent
        } else if std::io::stderr().is_terminal() {
            let bar = ProgressBar::no_length();
            let template = "{bar:30} {pos}/{len} crash images, {msg} failed, {per_sec}, {eta} left";
            bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_message("0");
            Report::Bar(bar)
        } else {
            let now = Instant::now();
            Report::Lines { last: Mutex::new(now), started: now }
        }
    }

    pub(crate) fn finish(&self) {
        if let Report::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Report {
    fn done(&self, done: usize, total: usize, failed: usize) {
        match self {
            Report::Silent => {}
            Report::Bar(bar) => {
                bar.set_length(total as u64);
                bar.set_position(done as u64);
                bar.set_message(failed.to_string());
            }
            Report::Lines { last, started } => {
                let mut last = last.lock().unwrap_or_else(|e| e.into_inner());
                if last.elapsed() >= INTERVAL {
                    *last = Instant::now();
                    let rate = done as f64 / started.elapsed().as_secs_f64();
                    let left = (total - done) as f64 / rate;
                    eprintln!(
                        "pmvet: {done} of {total} crash images tried, {failed} failed, {rate:.1}/s, {left:.0} s left"
                    );
                }
            }
        }
    }
}
