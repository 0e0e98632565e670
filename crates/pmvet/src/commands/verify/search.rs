//! From a recorded run to findings: the crashes, the recovery on what each can leave, and words.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use glob::Pattern;
use pmvet_engines::causes;
use pmvet_engines::causes::early_stores::Decisive;
use pmvet_engines::lab::Bench;
use pmvet_engines::lab::native::NativeStacks;
use pmvet_engines::lab::{self, RecoveryCommand, TrialImage, TrialJournal, TrialPool};
use pmvet_engines::shards;
use pmvet_engines::stacks::Symbols;
use pmvet_engines::timeline;
use pmvet_engines::transactions::{self, EscapingLines, TransactionFacts, TransactionTracker};
use pmvet_engines::verify::blame;
use pmvet_engines::verify::findings::{self, SearchSetting};
use pmvet_engines::verify::{
    ConfirmNatively, Crash, CrashScan, CrashScanner, CrashSearch, Ended, NativeOutcome, SearchJournal, SearchResult,
    Traced,
};
use pmvet_events::file::Definitions;
use pmvet_events::paths;
use pmvet_events::plan::Plan;
use pmvet_events::spaces::AddressSpaces;
use pmvet_findings::{Finding, Outcome};
use pmvet_model::Unknown;
use pmvet_target::crash::{Patch, VersionId, Versions};
use pmvet_target::install::Install;
use pmvet_target::mapped::MappedFile;
use pmvet_target::recording::Recording;
use pmvet_target::shutdown;
use pmvet_target::symbols::Symbolizer;

use super::settings::VerifySettings;
use crate::exit::{Error, Exit};
use crate::progress::ProgressReport;
use crate::recovery::{self, Proven, failed};
use crate::run_folder::RunFolder;
use pmvet_engines::lab::Witness;
use pmvet_target::Workload;

/// Under DynamoRIO everything takes longer.
const TRACED_SLOW: u32 = 10;
/// In the folder of a run: what was executed.
pub(crate) const JOURNAL: &str = "executions.jsonl";
/// What was tried to find the stores to blame.
const EXPERIMENTS: &str = "blame.jsonl";

/// What one pass over the events gave.
pub(super) struct VerifyAnalysis {
    pub(super) scan: CrashScan,
    /// It has seen all events: all was not over before.
    pub(super) is_whole: bool,
    transactions: TransactionFacts,
    symbols: Symbols,
    places: Definitions,
}

impl VerifyAnalysis {
    pub(super) fn run(recording: &Recording, settings: &VerifySettings, folder: &RunFolder) -> Result<Self, Error> {
        let unread = |source| Error::Trace { path: recording.trace(), source };
        let store = folder.temporary().map_err(|e| failed("make", "a temporary file in the run's folder", e))?;
        let mut reader = recording.read().map_err(unread)?;
        let recorded = recording.trace().metadata().and_then(|m| m.modified()).unwrap_or_else(|_| SystemTime::now());
        let mut symbols = Symbols::new(Symbolizer::of_recording(recorded));
        let mut scanner = CrashScanner::new(recording, settings.recovering.mode, MappedFile::new(store));
        let (mut spaces, mut transactions) = (AddressSpaces::default(), TransactionTracker::default());
        let rebuilding = |e| failed("rebuild", "the content of PM", e);
        let (mut clock, mut is_whole) = (shutdown::ClockCheck::default(), true);
        while let Some(event) = reader.next().map_err(unread)? {
            if clock.is_due() && shutdown::is_over() {
                is_whole = false;
                break;
            }
            symbols.event(&event);
            spaces.update(&event);
            transactions.event(&event, &spaces, &Unknown);
            scanner.event(&event).map_err(rebuilding)?;
        }
        Ok(Self {
            scan: scanner.finish().map_err(rebuilding)?,
            is_whole,
            transactions: transactions.finish(),
            symbols,
            places: reader.into_places(),
        })
    }
}

pub(super) struct Search<'a> {
    settings: &'a VerifySettings,
    workload: &'a Workload,
    install: &'a Install,
    folder: &'a RunFolder,
    /// The PM files that there are at the end of the run.
    paths: Vec<OsString>,
    recovery: RecoveryCommand,
}

/// What the search gave.
pub(super) struct Searched {
    pub(super) findings: Vec<Finding>,
    pub(super) witnesses: HashMap<String, Witness>,
    pub(super) done: SearchResult,
    pub(super) seconds: f64,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        settings: &'a VerifySettings,
        workload: &'a Workload,
        install: &'a Install,
        folder: &'a RunFolder,
        scan: &CrashScan,
    ) -> Self {
        let recovery = settings.recovering.natively(workload, None, &scan.versions, scan.last);
        let paths = lab::files(&scan.versions, scan.last);
        Self { settings, workload, install, folder, paths, recovery }
    }

    /// Whether the oracle can be trusted; if not, how pmvet ends.
    pub(super) fn prove(&self, scan: &CrashScan) -> Result<Result<Proven, Exit>, Error> {
        self.settings.recovering.prove(&self.recovery, &scan.versions, scan.last)
    }

    pub(super) fn run(
        mut self,
        analysis: &mut VerifyAnalysis,
        usual: &Outcome,
        timeout: Duration,
        quiet: bool,
    ) -> Result<Searched, Error> {
        self.recovery.timeout = timeout;
        let scan = &analysis.scan;
        let traced = Traced {
            program: self.settings.recovering.program(self.workload)?,
            plan: self.plan(),
            install: self.install,
            files: &self.workload.left,
            input: self.workload.input.clone(),
            paths: self.paths.iter().map(PathBuf::from).collect(),
            most_bytes: self.recovery.most_bytes,
            timeout: timeout * TRACED_SLOW,
            oracle: self.recovery.oracle.clone(),
            variables: self.recovery.variables.clone(),
            nested: (self.settings.failures > 1).then_some(self.settings.recovering.mode),
            versions: &scan.versions,
            usual: Ended::Exit(0),
        };
        let natively = Natively { recovery: &self.recovery, versions: &scan.versions, usual };
        let campaign = CrashSearch {
            observe: &traced,
            confirm: &natively,
            usual: traced.usual,
            usual_outcome: usual,
            workers: self.settings.recovering.jobs,
            deadline: None,
            most: self.settings.most,
            patience: self.settings.patience,
            failures: self.settings.failures,
            keep_going: self.settings.keep_going,
            known_only: self.settings.gathered.is_some(),
        };
        for name in [JOURNAL, EXPERIMENTS] {
            self.join_journals(name)?;
        }
        let path = self.folder.file(JOURNAL);
        let journal = SearchJournal::open(&path).map_err(|e| recovery::journal_damaged(&path, e))?;
        if journal.was_torn() {
            recovery::say_torn(&path);
        }
        let started = Instant::now();
        let progress = ProgressReport::of_crashes(quiet);
        let done = campaign.run(&self.own_crashes(scan), journal, &progress);
        progress.finish();
        let mut done = done.map_err(|e| failed("run", "a recovery", io::Error::other(e)))?;
        self.folder.kept(done.unsaved.take().map_or(Ok(()), |e| Err(failed("write", JOURNAL, e))));
        let seconds = started.elapsed().as_secs_f64();
        if self.settings.checksums {
            done.doubtful = 0;
        }
        let decisive = self.decisive_stores(&done, scan, usual)?;
        let image = |version: VersionId, patches: &[Patch]| TrialImage::new(version, patches).image(&scan.versions);
        let setting = SearchSetting {
            recovery: self.recovery.command.iter().map(|w| w.to_string_lossy().into_owned()).collect(),
            usual: usual.clone(),
            image: &image,
        };
        let mut stacks = analysis.symbols.with(&analysis.places);
        let found =
            findings::one_per_cause(&done.failures, &decisive, &setting, &mut stacks, &mut NativeStacks::default());
        let (mut findings, mut witnesses) = (Vec::new(), HashMap::new());
        for found in found {
            let witness = Witness { recording: None, seq: found.before, patches: found.patches, promise: None };
            witnesses.insert(found.image, witness);
            findings.push(found.finding);
        }
        let mut findings = causes::count_lost_stores(findings);
        transactions::blame_transactions(&mut findings, &EscapingLines::new(&analysis.transactions, &mut stacks));
        let mut findings = transactions::one_per_function(findings);
        timeline::tell(&self.folder.recording(), &mut findings, &mut stacks)?;
        Ok(Searched { findings, witnesses, done, seconds })
    }

    /// The crashes of this shard, or all.
    fn own_crashes<'s>(&self, scan: &'s CrashScan) -> Cow<'s, [Crash]> {
        let Some((k, n)) = self.settings.shard else { return Cow::Borrowed(&scan.crashes) };
        let costs: Vec<u64> = scan.crashes.iter().map(Crash::expected_cost).collect();
        let owners = shards::balance(&costs, n);
        scan.crashes.iter().zip(owners).filter(|(_, owner)| *owner == k).map(|(crash, _)| crash.clone()).collect()
    }

    /// Brings what all shards have kept in files of this name into one.
    fn join_journals(&self, name: &str) -> Result<(), Error> {
        let Some(gathered) = &self.settings.gathered else { return Ok(()) };
        let mut joined = Vec::new();
        for path in gathered.iter().map(|folder| folder.join(name)) {
            let lines = match std::fs::read(&path) {
                Ok(lines) => lines,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(failed("read", &path.display().to_string(), e)),
            };
            // A kill may have torn the last line.
            let whole = lines.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
            joined.extend_from_slice(&lines[..whole]);
        }
        self.folder.write(name, &joined)
    }

    /// What is recorded of a recovery. The files of the run are PM, even if the recovery does not map them.
    fn plan(&self) -> Plan {
        let mut plan = Plan { loads: true, snapshots: false, ..self.workload.launch(true).plan };
        plan.pm.extend(self.paths.iter().map(|path| Pattern::escape(&paths::text(path))));
        plan
    }

    /// The store that decides each failure, as far as experiments tell.
    fn decisive_stores(
        &self,
        done: &SearchResult,
        scan: &CrashScan,
        usual: &Outcome,
    ) -> Result<Vec<Option<Decisive>>, Error> {
        let path = self.folder.file(EXPERIMENTS);
        let mut journal = TrialJournal::open(&path).map_err(|e| recovery::journal_damaged(&path, e))?;
        let pool = TrialPool {
            recovery: &self.recovery,
            versions: &scan.versions,
            usual,
            workers: self.settings.recovering.jobs,
            deadline: None,
        };
        Ok(blame::decisive_stores(&done.failures, &self.folder.recording(), &pool, &mut journal)?)
    }
}

/// The recovery without instrumentation.
struct Natively<'a> {
    recovery: &'a RecoveryCommand,
    versions: &'a Versions,
    usual: &'a Outcome,
}

impl ConfirmNatively for Natively<'_> {
    type Bench = Bench;

    fn confirm(&self, bench: &mut Bench, version: VersionId, patches: &[Patch]) -> io::Result<Option<NativeOutcome>> {
        let trial = self.recovery.run(bench, self.versions, TrialImage::new(version, patches), Some(self.usual))?;
        Ok(trial.map(|trial| NativeOutcome {
            outcome: trial.outcome,
            output: String::from_utf8_lossy(&trial.output).into_owned(),
            stack: trial.stack,
            seconds: trial.time.as_secs_f64(),
        }))
    }
}
