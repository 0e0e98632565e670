//! Keeps what a campaign finds, and shows its progress.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pmvet_engines::fuzz::campaign::{CampaignStats, CampaignWatcher, FailedCase};
use pmvet_engines::fuzz::case::{Case, file_name};
use pmvet_engines::fuzz::paths::Favour;
use pmvet_engines::fuzz::store::ImageStore;
use pmvet_findings::{Outcome, Severity};
use pmvet_target::forkserver::ForkedEnd;
use pmvet_target::sandbox::{Overlay, Unwinder};
use pmvet_target::shutdown::{budget, deadline, is_over};

use super::exchange::Exchange;
use super::failures::MOST;
use super::native::NativeRuns;
use super::start::FuzzStart;
use super::then::Checks;
use crate::cli;
use crate::exit::Error;
use crate::progress::{PhaseProgress, ProgressReport};
use crate::reporting::severity;

pub(super) struct FuzzWatch {
    corpus: PathBuf,
    /// The number of the next case.
    next: usize,
    /// Cases that have a file already.
    kept: HashSet<Case>,
    failures: Vec<FailedCase>,
    exchange: Option<Exchange>,
    checks: Option<Checks>,
    /// How long a run may take.
    limit: Duration,
    executions: Option<u64>,
    /// With `--until-finding`: which severity counts, and how a failure is confirmed.
    until: Option<(Severity, NativeRuns, Overlay)>,
    /// Such a finding was made.
    found: bool,
    started: Instant,
    fuzzing: Instant,
    last_kept: Instant,
    quiet: bool,
    progress: ProgressReport,
    last: CampaignStats,
}

impl FuzzWatch {
    pub(super) fn new(
        arguments: &cli::Fuzz,
        corpus: &Path,
        checks: Option<Checks>,
        start: &FuzzStart,
        started: Instant,
    ) -> Result<Self, Error> {
        let queue = corpus.join("queue");
        let names = std::fs::read_dir(&queue).map_err(|source| Error::Output {
            action: "read",
            what: queue.display().to_string(),
            source,
        })?;
        let mut kept = HashSet::new();
        let mut next = 0;
        for entry in names.flatten() {
            let parsed = entry.file_name().to_str().and_then(pmvet_engines::fuzz::case::parse_file_name);
            if let (Some((number, image)), Ok(input)) = (parsed, std::fs::read(entry.path())) {
                next = next.max(number + 1);
                kept.insert(Case { image, input });
            }
        }
        let now = Instant::now();
        let quiet = arguments.reporting.quiet || arguments.helper.is_some();
        Ok(Self {
            corpus: corpus.into(),
            next,
            kept,
            failures: Vec::new(),
            exchange: Exchange::from_arguments(arguments, corpus)?,
            checks,
            limit: start.target.limits.time,
            executions: arguments.executions,
            until: (arguments.until_finding && arguments.helper.is_none()).then(|| {
                (severity(arguments.reporting.fail_on), NativeRuns::from_start(start), start.target.overlay.clone())
            }),
            found: false,
            started,
            fuzzing: now,
            last_kept: now,
            quiet,
            progress: ProgressReport::endless(quiet),
            last: CampaignStats::default(),
        })
    }

    /// The last statistics of the campaign.
    pub(super) fn last(&self) -> CampaignStats {
        self.last
    }

    /// Writes a file in one step, so that it is there as a whole or not at all.
    fn write(&mut self, folder: &str, case: &Case, favour: Favour) -> io::Result<()> {
        let fresh = self.corpus.join(".fresh");
        std::fs::write(&fresh, &case.input)?;
        let name = file_name(self.next, case, favour);
        self.next += 1;
        std::fs::rename(fresh, self.corpus.join(folder).join(name))
    }

    fn say(&self, stats: &CampaignStats) {
        self.progress.show(|_| {
            let line = self.line(stats);
            PhaseProgress { message: line.clone(), line, ..PhaseProgress::default() }
        });
    }

    fn line(&self, stats: &CampaignStats) -> String {
        let seconds = self.fuzzing.elapsed().as_secs_f64().max(0.001);
        let stable = if stats.repeated == 0 { 100.0 } else { stats.stable as f64 * 100.0 / stats.repeated as f64 };
        let checks = self.checks.as_ref().map_or(String::new(), |checks| format!(", {checks}"));
        format!(
            "{:.0} s: {} runs ({:.0}/s), {} test cases, {} PM paths ({} transitions), {} images ({} of crashes), {:.1} % stable, \
             {} failures{checks}, last new {:.0} s ago",
            self.started.elapsed().as_secs_f64(),
            stats.runs,
            stats.runs as f64 / seconds,
            stats.cases,
            stats.paths,
            stats.transitions,
            stats.images,
            stats.crash_images,
            stable,
            stats.failures,
            self.last_kept.elapsed().as_secs_f64(),
        )
    }

    /// Time to reserve for repeating the failures without pmvet: as long as they may take, but at most half of the budget.
    fn time_to_confirm(&self) -> Duration {
        const CRASH: Duration = Duration::from_millis(50);
        let one = |failure: &FailedCase| if failure.end == ForkedEnd::Timeout { self.limit } else { CRASH };
        let all: Duration = self.failures.iter().take(MOST).map(one).sum();
        all.min(budget().map_or(Duration::MAX, |budget| budget.whole / 2))
    }

    /// Ends the progress display. Returns the checks under way, and the cases that failed.
    pub(super) fn finish(self, stats: &CampaignStats) -> (Option<Checks>, Vec<FailedCase>) {
        self.progress.finish();
        if !self.quiet {
            eprintln!("pmvet: {}", self.line(stats));
            if stats.repeated > 20 && stats.stable * 20 < stats.repeated * 19 {
                eprintln!(
                    "pmvet: the target is not stable: only {} of {} test cases did the same when they were run again",
                    stats.stable, stats.repeated
                );
            }
            if !stats.short {
                eprintln!(
                    "pmvet: every run opened its pool: starting from an open one gave other results, or cannot be done"
                );
            }
        }
        (self.checks, self.failures)
    }
}

impl CampaignWatcher for FuzzWatch {
    fn kept(&mut self, case: &Case, favour: Favour) -> io::Result<()> {
        self.last_kept = Instant::now();
        if self.kept.insert(case.clone()) {
            self.write("queue", case, favour)?;
        }
        if let Some(checks) = &mut self.checks
            && favour >= Favour::Count
        {
            checks.add(case, favour);
        }
        Ok(())
    }

    fn crashed(&mut self, case: &Case) {
        if let Some(checks) = &mut self.checks {
            checks.add_crash(case);
        }
    }

    fn failed(&mut self, failure: &FailedCase, store: &mut ImageStore) -> io::Result<()> {
        let folder = if failure.end == ForkedEnd::Timeout { "hangs" } else { "crashes" };
        self.write(folder, &failure.case, Favour::None)?;
        self.failures.push(failure.clone());
        if let Some((_, native, overlay)) = &self.until {
            let content = store.get(failure.case.image)?;
            let run = native.run(overlay, &content, &failure.case.input, &mut Unwinder::default())?;
            self.found |= !matches!(native.outcome(&run), None | Some(Outcome::Exit { .. }));
        }
        Ok(())
    }

    fn arrived(&mut self, store: &mut ImageStore) -> io::Result<Vec<Case>> {
        self.exchange.as_mut().map_or(Ok(Vec::new()), |exchange| exchange.fetch_new_cases(store))
    }

    fn goes_on(&mut self, stats: &CampaignStats, _: &mut ImageStore) -> bool {
        self.last = *stats;
        self.say(stats);
        if let Some(checks) = &mut self.checks {
            checks.look();
            self.found |= self.until.as_ref().is_some_and(|(least, ..)| checks.found(*least));
        }
        let over = self.found
            || is_over()
            || deadline().is_some_and(|at| at.saturating_duration_since(Instant::now()) < self.time_to_confirm())
            || self.executions.is_some_and(|most| stats.runs >= most);
        !over
    }
}
