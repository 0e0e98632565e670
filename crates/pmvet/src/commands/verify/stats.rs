//! `stats.json`: what a verification did, what it left untried, and how long it took.

use std::time::Duration;

use pmvet_engines::promises::durable::OperationsSeen;
use pmvet_engines::verify::Verified;
use pmvet_findings::{Coverage, Phase};
use serde::Serialize;

use super::settings::VerifySettings;
use crate::durable;
use crate::recovery::note_file_writes;
use crate::run_folder::RunInfo;

#[derive(Debug, Serialize)]
pub(super) struct VerifyStats {
    wall_seconds: f64,
    /// The workload, recorded.
    traced_seconds: Option<f64>,
    analysis_seconds: f64,
    search_seconds: f64,
    /// Failure points passed, including those that leave the same states as another.
    failure_points: u64,
    /// Crashes that leave different sets of states.
    crashes: usize,
    crashes_explored: usize,
    crashes_in_recovery: usize,
    executions: u64,
    executions_known: u64,
    executions_per_second: f64,
    /// The most executions that one crash took.
    most_after_one_crash: u64,
    /// How many images an eager search would try; text, since the number may be arbitrarily large.
    eager_executions: String,
    failures: usize,
    left: usize,
    crashes_left: usize,
    doubtful: usize,
    abandoned: usize,
    diverged: u64,
    unconfirmed: u64,
    jobs: usize,
    /// With `--durable`: executions whose content could not be judged.
    not_judged: u64,
    #[serde(skip)]
    operations: Option<OperationsSeen>,
    #[serde(skip)]
    inner_cut: u64,
    #[serde(skip)]
    file_writes: u64,
    #[serde(skip)]
    merged: u64,
    #[serde(skip)]
    unsupported: u64,
}

impl VerifyStats {
    pub(super) fn new(info: &RunInfo, verified: &Verified, jobs: usize, wall: Duration) -> Self {
        let (done, seconds) = (&verified.done, verified.search_seconds);
        Self {
            wall_seconds: wall.as_secs_f64(),
            traced_seconds: info.traced_seconds,
            analysis_seconds: verified.analysis_seconds,
            search_seconds: seconds,
            failure_points: verified.points_passed,
            crashes: verified.crashes,
            crashes_explored: done.crashes,
            crashes_in_recovery: done.inner_crashes,
            executions: done.executions,
            executions_known: done.known,
            executions_per_second: if seconds > 0.0 { done.executions as f64 / seconds } else { 0.0 },
            most_after_one_crash: done.most_after_one,
            eager_executions: match verified.eager_executions {
                u128::MAX => "more than 10^38".into(),
                n => n.to_string(),
            },
            failures: done.failures.len(),
            left: done.left,
            crashes_left: done.crashes_left,
            doubtful: done.doubtful,
            abandoned: done.abandoned,
            diverged: done.diverged,
            unconfirmed: done.unconfirmed,
            jobs,
            not_judged: done.not_judged,
            operations: verified.operations.clone(),
            inner_cut: done.inner_cut,
            file_writes: verified.file_writes,
            merged: verified.merged_states,
            unsupported: verified.unsupported_accesses,
        }
    }

    pub(super) fn coverage(&self, settings: &VerifySettings) -> Coverage {
        let mut coverage = Coverage::default();
        let all = self.crashes_explored + self.crashes_left;
        coverage.count("failure points", self.failure_points, None);
        coverage.count("different crashes", self.crashes_explored as u64, Some(all as u64));
        if settings.failures > 1 {
            coverage.count("crashes in recoveries", self.crashes_in_recovery as u64, None);
        }
        if let Some(seen) = &self.operations {
            durable::count(seen, &mut coverage);
        }
        coverage.count("executions of the recovery", self.executions + self.executions_known, None);
        let mut not = |count: u64, text: &str| {
            if count > 0 {
                coverage.not_covered.push(text.replace("{}", &count.to_string()));
            }
        };
        let why = match settings.gathered {
            Some(_) => "of tasks that are missing or did not end",
            None => "that there was no time for (--budget, --max-executions)",
        };
        not(self.crashes_left as u64, &format!("{{}} crashes {why}"));
        not(self.left as u64, &format!("at least {{}} executions {why}"));
        not(self.doubtful as u64, "{} choices that seemed to make no difference (--patience, --checksums)");
        not(self.abandoned as u64, "at least {} more executions after crashes that fail already (--keep-going)");
        not(self.diverged, "{} executions that did not depend on the crash image alone");
        not(self.unconfirmed, "{} failures that were seen under DynamoRIO only");
        not(self.inner_cut, "crashes of {} recoveries that change files by system calls");
        not(self.merged, "{} states of lines with very many pending stores");
        not(self.unsupported, "{} accesses to PM that pmvet cannot record");
        if let Some(seen) = &self.operations {
            durable::note(seen, &mut coverage);
        }
        note_file_writes(self.file_writes, &mut coverage);
        if settings.failures == 1 {
            coverage.not_covered.push("crashes of the recovery itself (--failures 2)".into());
        }
        coverage
    }

    pub(super) fn phases(&self) -> Vec<Phase> {
        let phase = |name: &str, seconds: f64| Phase { name: name.into(), seconds };
        vec![phase("analysis", self.analysis_seconds), phase("search", self.search_seconds)]
    }
}
