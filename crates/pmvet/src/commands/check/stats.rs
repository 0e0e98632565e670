//! `stats.json`: what a check did and how long it took.

use std::time::Instant;

use pmvet_engines::check::Checked;
use pmvet_engines::promises::durable::OperationsSeen;
use pmvet_findings::{Coverage, Phase};
use pmvet_target::shutdown;
use serde::Serialize;

use super::OTHER_SHARDS;
use super::settings::CheckSettings;
use crate::budget;
use crate::durable;
use crate::recovery::note_file_writes;
use crate::run_folder::RunInfo;
use crate::system;

#[derive(Debug, Serialize)]
pub(super) struct CheckStats {
    wall_seconds: f64,
    /// The workload without pmvet.
    native_seconds: Option<f64>,
    /// The workload, recorded.
    traced_seconds: Option<f64>,
    analysis_seconds: f64,
    recovery_seconds: f64,
    events: u64,
    /// Failure points passed, all visits counted.
    failure_points_passed: u64,
    /// Failure points with different call paths.
    failure_points: usize,
    /// Crash images with different content, in program order.
    images: usize,
    /// Crash images with lines written back in another order.
    reordered_images: usize,
    /// Recoveries that were recorded and crashed, too, and the failure points in them.
    recoveries_recorded: usize,
    failure_points_in_recovery: usize,
    recoveries: usize,
    recoveries_known: usize,
    pub(super) recoveries_left: usize,
    /// Mean time of some recoveries that had the machine to themselves.
    mean_recovery_seconds: Option<f64>,
    jobs: usize,
    /// The least possible time for all recoveries, divided by the time taken.
    efficiency: Option<f64>,
    /// Reordered images that were left out as less likely to fail.
    reordered_images_left: usize,
    #[serde(skip)]
    cut_short: usize,
    #[serde(skip)]
    not_combined: usize,
    #[serde(skip)]
    torn_alone: usize,
    /// No recorded recovery mapped PM.
    #[serde(skip)]
    is_blind: bool,
    /// With `--durable`.
    #[serde(skip)]
    operations: Option<OperationsSeen>,
    #[serde(skip)]
    file_writes: u64,
    /// How many threads stored to PM.
    #[serde(skip)]
    writers: usize,
}

impl CheckStats {
    pub(super) fn new(info: &RunInfo, checked: &Checked, jobs: usize, started: Instant) -> Self {
        let counts = &checked.counts;
        let wall_seconds = started.elapsed().as_secs_f64();
        let cores = system::cores().min(jobs) as f64;
        let efficiency = match (info.native_seconds, counts.mean_recovery_seconds) {
            (Some(native), Some(mean)) => Some((native + counts.recoveries as f64 * mean / cores) / wall_seconds),
            _ => None,
        };
        Self {
            wall_seconds,
            native_seconds: info.native_seconds,
            traced_seconds: info.traced_seconds,
            analysis_seconds: counts.analysis_seconds,
            recovery_seconds: counts.recovery_seconds,
            events: counts.events,
            failure_points_passed: counts.points_passed,
            failure_points: counts.points,
            images: counts.images,
            reordered_images: counts.reordered_images,
            recoveries_recorded: counts.recoveries_recorded,
            failure_points_in_recovery: counts.points_in_recovery,
            recoveries: counts.recoveries,
            recoveries_known: counts.recoveries_known,
            recoveries_left: counts.recoveries_left,
            mean_recovery_seconds: counts.mean_recovery_seconds,
            jobs,
            efficiency,
            reordered_images_left: counts.reordered_images_left,
            cut_short: counts.cut_short_points,
            not_combined: counts.not_combined_points,
            torn_alone: counts.torn_alone_points,
            is_blind: counts.recoveries_recorded > 0 && counts.recoveries_that_mapped == 0,
            operations: checked.operations.clone(),
            file_writes: counts.file_writes,
            writers: counts.writers,
        }
    }

    pub(super) fn coverage(&self, settings: &CheckSettings) -> Coverage {
        let mut coverage = Coverage::default();
        coverage.count("failure points", self.failure_points as u64, None);
        if self.failure_points_in_recovery > 0 {
            coverage.count("failure points in recovery", self.failure_points_in_recovery as u64, None);
        }
        coverage.count("crash images", self.images as u64, None);
        if let Some(seen) = &self.operations {
            durable::count(seen, &mut coverage);
        }
        if settings.reorders() {
            coverage.count("reordered crash images", self.reordered_images as u64, None);
        }
        let all = self.recoveries + self.recoveries_known + self.recoveries_left;
        coverage.count("recoveries", (self.recoveries + self.recoveries_known) as u64, Some(all as u64));
        let mut not = |text: String| coverage.not_covered.push(text);
        if self.recoveries_left > 0 {
            not(format!("{} crash images that the budget left no time for", self.recoveries_left));
        } else {
            budget::note(&mut coverage);
        }
        if let Some(seen) = &self.operations {
            durable::note(seen, &mut coverage);
        }
        note_file_writes(self.file_writes, &mut coverage);
        let mut not = |text: String| coverage.not_covered.push(text);
        if !settings.reorders() {
            not("crashes in which lines were written back in another order".into());
        } else if self.reordered_images_left > 0 {
            not(format!("{} less likely orders of write-back (--reorder)", self.reordered_images_left));
        }
        if self.cut_short > 0 {
            not(format!("further orders of write-back at {} failure points (--reorder-states)", self.cut_short));
        }
        if self.not_combined > 0 {
            let points = self.not_combined;
            not(format!("several of many lines early or late together, at {points} failure points (pmvet verify)"));
        }
        if self.torn_alone > 0 {
            let points = self.torn_alone;
            not(format!("torn stores with other lines early or late, at {points} failure points (pmvet verify)"));
        }
        if self.is_blind {
            let recorded = self.recoveries_recorded;
            not(format!(
                "what crashes do to PM: in {recorded} recorded runs the recovery mapped none; is --recover right?"
            ));
        }
        if self.failure_points_passed > self.failure_points as u64 {
            not("further visits to the same call paths (--visits)".into());
        }
        if settings.alone && self.writers > 1 {
            not(format!("races between the {} threads that store to PM (pmvet race)", self.writers));
        }
        if settings.known_points.is_some() {
            not("failure points that earlier checks tried".into());
        }
        if let Some((k, n)) = settings.shard {
            not(format!("{OTHER_SHARDS} {n} (this was {})", k + 1));
        }
        if let Some(sample) = settings.sample {
            not(format!("all but a sample of {sample} failure points"));
        }
        coverage
    }

    pub(super) fn phases(&self) -> Vec<Phase> {
        let phase = |name: &str, seconds: f64| Phase { name: name.into(), seconds };
        vec![phase("analysis", self.analysis_seconds), phase("recoveries", self.recovery_seconds)]
    }

    /// Says so if the budget ended before the first recovery did.
    pub(super) fn no_recovery_ended(&self) -> bool {
        let judged = self.recoveries + self.recoveries_known;
        if judged > 0 || self.recoveries_left == 0 || shutdown::stopped_by().is_some() {
            return false;
        }
        eprintln!(
            "pmvet: no recovery ended within the budget, so nothing is known of crashes; give it more time (--budget)"
        );
        true
    }
}
