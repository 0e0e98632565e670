//! From a recorded run to findings: the crashes, the recovery on what each can leave, and words.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use pmvet_engines::inject::trial::Bench;
use pmvet_engines::inject::{Job, Recovery};
use pmvet_engines::native::NativeStacks;
use pmvet_engines::stacks::Symbols;
use pmvet_engines::story;
use pmvet_engines::verify::findings::{self, Setting};
use pmvet_engines::verify::{Campaign, Confirm, Done, Ended, Journal, Progress, Scan, Scanner, Traced, Verdict};
use pmvet_events::file::Definitions;
use pmvet_events::plan::Plan;
use pmvet_findings::{Finding, Outcome};
use pmvet_target::crash::{Patch, VersionId, Versions};
use pmvet_target::install::Install;
use pmvet_target::mapped::MappedFile;
use pmvet_target::over;
use pmvet_target::recording::Recording;
use pmvet_target::symbols::Symbolizer;

use super::settings::Settings;
use crate::exit::{Error, Exit};
use crate::recovery::{self, Proven, failed};
use crate::reporting::Witness;
use crate::run_folder::RunFolder;
use crate::workload::Workload;

/// Under DynamoRIO everything takes longer.
const TRACED_SLOW: u32 = 10;
/// In the folder of a run: what was executed.
const JOURNAL: &str = "executions.jsonl";

/// What one pass over the events gave.
pub(super) struct Analysis {
    pub(super) scan: Scan,
    /// It has seen all events: all was not over before.
    pub(super) is_whole: bool,
    symbols: Symbols,
    places: Definitions,
}

impl Analysis {
    pub(super) fn run(recording: &Recording, settings: &Settings, folder: &RunFolder) -> Result<Self, Error> {
        let unread = |source| Error::Trace { path: recording.trace(), source };
        let store = folder.temporary().map_err(|e| failed("make", "a temporary file in the run's folder", e))?;
        let mut reader = recording.read().map_err(unread)?;
        let recorded = recording.trace().metadata().and_then(|m| m.modified()).unwrap_or_else(|_| SystemTime::now());
        let mut symbols = Symbols::new(Symbolizer::of_recording(recorded));
        let mut scanner = Scanner::new(recording, settings.recovering.mode, MappedFile::new(store));
        let rebuilding = |e| failed("rebuild", "the content of PM", e);
        let (mut now, mut is_whole) = (over::Now::default(), true);
        while let Some(event) = reader.next().map_err(unread)? {
            if now.and_then() && over::is_over() {
                is_whole = false;
                break;
            }
            symbols.event(&event);
            scanner.event(&event).map_err(rebuilding)?;
        }
        Ok(Self { scan: scanner.finish().map_err(rebuilding)?, is_whole, symbols, places: reader.into_places() })
    }
}

pub(super) struct Search<'a> {
    settings: &'a Settings,
    workload: &'a Workload,
    install: &'a Install,
    folder: &'a RunFolder,
    /// The PM files that there are at the end of the run.
    paths: Vec<OsString>,
    recovery: Recovery,
}

/// What the search gave.
pub(super) struct Searched {
    pub(super) findings: Vec<Finding>,
    pub(super) witnesses: HashMap<String, Witness>,
    pub(super) done: Done,
    pub(super) seconds: f64,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        settings: &'a Settings,
        workload: &'a Workload,
        install: &'a Install,
        folder: &'a RunFolder,
        scan: &Scan,
    ) -> Self {
        let recovery = settings.recovering.natively(workload, None, &scan.versions, scan.last);
        let paths = recovery::files(&scan.versions, scan.last);
        Self { settings, workload, install, folder, paths, recovery }
    }

    /// Whether the oracle can be trusted; if not, how pmvet ends.
    pub(super) fn prove(&self, scan: &Scan) -> Result<Result<Proven, Exit>, Error> {
        self.settings.recovering.prove(&self.recovery, &scan.versions, scan.last)
    }

    pub(super) fn run(
        mut self,
        analysis: &mut Analysis,
        usual: &Outcome,
        timeout: Duration,
        quiet: bool,
    ) -> Result<Searched, Error> {
        self.recovery.timeout = timeout;
        let scan = &analysis.scan;
        let traced = Traced {
            program: self.settings.recovering.program(self.workload)?,
            plan: Plan { loads: true, snapshots: false, ..self.workload.launch(true).plan },
            install: self.install,
            files: &self.workload.left,
            input: self.workload.input.clone(),
            paths: self.paths.iter().map(PathBuf::from).collect(),
            most_bytes: self.recovery.most_bytes,
            timeout: timeout * TRACED_SLOW,
            oracle: self.recovery.oracle.clone(),
            variables: self.recovery.variables.clone(),
            nested: self.settings.failures > 1,
            versions: &scan.versions,
            usual: Ended::Exit(0),
        };
        let natively = Natively { recovery: &self.recovery, versions: &scan.versions, usual };
        let campaign = Campaign {
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
        };
        let path = self.folder.file(JOURNAL);
        let journal = Journal::open(&path).map_err(|e| recovery::journal_damaged(&path, e))?;
        if journal.was_torn() {
            recovery::say_torn(&path);
        }
        let started = Instant::now();
        let mut done = campaign
            .run(&scan.crashes, journal, &Lines::new(quiet))
            .map_err(|e| failed("run", "a recovery", io::Error::other(e)))?;
        self.folder.kept(done.unsaved.take().map_or(Ok(()), |e| Err(failed("write", JOURNAL, e))));
        let seconds = started.elapsed().as_secs_f64();
        if self.settings.checksums {
            done.doubtful = 0;
        }
        let image = |version: VersionId, patches: &[Patch]| Job { version, patches }.image(&scan.versions);
        let setting = Setting {
            recovery: self.recovery.command.iter().map(|w| w.to_string_lossy().into_owned()).collect(),
            usual: usual.clone(),
            image: &image,
        };
        let mut stacks = analysis.symbols.with(&analysis.places);
        let found = findings::of(&done.failures, &setting, &mut stacks, &mut NativeStacks::default());
        let (mut findings, mut witnesses) = (Vec::new(), HashMap::new());
        for found in found {
            let witness = Witness { recording: None, seq: found.before, patches: found.patches };
            witnesses.insert(found.image, witness);
            findings.push(found.finding);
        }
        story::tell(&self.folder.recording(), &mut findings, &mut stacks)?;
        Ok(Searched { findings, witnesses, done, seconds })
    }
}

/// The recovery without instrumentation.
struct Natively<'a> {
    recovery: &'a Recovery,
    versions: &'a Versions,
    usual: &'a Outcome,
}

impl Confirm for Natively<'_> {
    type Bench = Bench;

    fn confirm(&self, bench: &mut Bench, version: VersionId, patches: &[Patch]) -> io::Result<Option<Verdict>> {
        let trial = self.recovery.run(bench, self.versions, version, patches, Some(self.usual))?;
        Ok(trial.map(|trial| Verdict {
            outcome: trial.outcome,
            output: String::from_utf8_lossy(&trial.output).into_owned(),
            stack: trial.stack,
            seconds: trial.time.as_secs_f64(),
        }))
    }
}

/// How far it has come: one line that is written over on a terminal, a line now and then in a pipe.
struct Lines {
    quiet: bool,
    terminal: bool,
    started: Instant,
    last: Mutex<Instant>,
}

impl Lines {
    fn new(quiet: bool) -> Self {
        let now = Instant::now();
        Self { quiet, terminal: io::stderr().is_terminal(), started: now, last: Mutex::new(now) }
    }
}

impl Progress for Lines {
    fn done(&self, crashes: usize, of: usize, executions: u64, failures: usize) {
        let interval = Duration::from_millis(if self.terminal { 200 } else { 10_000 });
        let mut last = self.last.lock().unwrap_or_else(|e| e.into_inner());
        let is_last = self.terminal && crashes == of;
        if self.quiet || last.elapsed() < interval && !is_last {
            return;
        }
        *last = Instant::now();
        let rate = executions as f64 / self.started.elapsed().as_secs_f64();
        let text =
            format!("pmvet: {crashes} of {of} crashes, {executions} executions ({rate:.1}/s), {failures} failed");
        match (self.terminal, is_last) {
            (true, true) => eprint!("\r\x1b[K"),
            (true, false) => eprint!("\r\x1b[K{text}"),
            (false, _) => eprintln!("{text}"),
        }
    }
}
