//! `stats.json`: what a verification did, what it left, and how long it took.

use pmvet_engines::verify::{CrashScan, SearchResult};
use pmvet_findings::{Coverage, Phase};
use serde::Serialize;

use super::settings::VerifySettings;
use crate::run_folder::RunInfo;

#[derive(Debug, Default, Serialize)]
pub(super) struct VerifyStats {
    pub(super) wall_seconds: f64,
    /// The workload, recorded.
    pub(super) traced_seconds: Option<f64>,
    pub(super) analysis_seconds: f64,
    pub(super) search_seconds: f64,
    /// Failure points passed, those that leave the same as another one included.
    pub(super) failure_points: u64,
    /// Crashes that leave different choices.
    pub(super) crashes: usize,
    pub(super) crashes_explored: usize,
    pub(super) crashes_in_recovery: usize,
    pub(super) executions: u64,
    pub(super) executions_known: u64,
    pub(super) executions_per_second: f64,
    /// The most executions that one crash took.
    pub(super) most_after_one_crash: u64,
    /// How many images an eager search would try; a text, since it may be any number.
    pub(super) eager_executions: String,
    pub(super) failures: usize,
    pub(super) left: usize,
    pub(super) crashes_left: usize,
    pub(super) doubtful: usize,
    pub(super) abandoned: usize,
    pub(super) diverged: u64,
    pub(super) unconfirmed: u64,
    pub(super) jobs: usize,
    #[serde(skip)]
    inner_cut: u64,
    #[serde(skip)]
    merged: u64,
    #[serde(skip)]
    unsupported: u64,
}

impl VerifyStats {
    pub(super) fn take(&mut self, info: &RunInfo, scan: &CrashScan, done: &SearchResult, seconds: f64, jobs: usize) {
        self.traced_seconds = info.traced_seconds;
        self.search_seconds = seconds;
        self.failure_points = scan.passed;
        self.crashes = scan.crashes.len();
        self.crashes_explored = done.crashes;
        self.crashes_in_recovery = done.inner_crashes;
        self.executions = done.executions;
        self.executions_known = done.known;
        self.executions_per_second = if seconds > 0.0 { done.executions as f64 / seconds } else { 0.0 };
        self.most_after_one_crash = done.most_after_one;
        self.eager_executions = match scan.eager {
            u128::MAX => "more than 10^38".into(),
            n => n.to_string(),
        };
        self.failures = done.failures.len();
        self.left = done.left;
        self.crashes_left = done.crashes_left;
        self.doubtful = done.doubtful;
        self.abandoned = done.abandoned;
        self.diverged = done.diverged;
        self.unconfirmed = done.unconfirmed;
        self.jobs = jobs;
        self.inner_cut = done.inner_cut;
        self.merged = scan.merged;
        self.unsupported = scan.unsupported;
    }

    pub(super) fn coverage(&self, settings: &VerifySettings) -> Coverage {
        let mut coverage = Coverage::default();
        let all = self.crashes_explored + self.crashes_left;
        coverage.count("failure points", self.failure_points, None);
        coverage.count("different crashes", self.crashes_explored as u64, Some(all as u64));
        if settings.failures > 1 {
            coverage.count("crashes in recoveries", self.crashes_in_recovery as u64, None);
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
