//! Crashes during recovery: some recoveries are recorded like the workload, and crashed where they run code that the workload
//! did not.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pmvet_events::file::TraceHeader;
use pmvet_findings::{Finding, Outcome};
use pmvet_target::crash::Scratch;
use pmvet_target::install::Install;
use pmvet_target::launch::TargetExit;
use pmvet_target::program::Program;
use pmvet_target::recording::Recording;
use pmvet_target::sandbox::Capture;
use pmvet_target::shutdown;

use super::analysis::CheckAnalysis;
use super::injection::{Injected, Injection};
use super::settings::CheckSettings;
use super::share::Share;
use crate::exit::Error;
use crate::run_folder::RunFolder;
use pmvet_engines::lab::{Promised, Witness};
use pmvet_target::Workload;

/// In how many recoveries a call path is crashed before it counts as known: whether a crash there does harm depends on what that
/// recovery had to repair.
const TRIES: u32 = 8;

/// How much longer a recovery may take while it is recorded.
const SLOWER: u32 = 20;

/// What every recovery has in common.
pub(super) struct Recoveries<'a> {
    pub(super) settings: &'a CheckSettings,
    pub(super) workload: &'a Workload,
    pub(super) folder: &'a RunFolder,
    pub(super) install: &'a Install,
    pub(super) usual: &'a Outcome,
    pub(super) timeout: Duration,
    pub(super) quiet: bool,
    pub(super) promised: Option<&'a Promised>,
}

/// What crashes during recovery gave.
#[derive(Default)]
pub(super) struct Twice {
    pub(super) findings: Vec<Finding>,
    /// For other shards.
    pub(super) shares: Vec<Share>,
    pub(super) witnesses: HashMap<String, Witness>,
    pub(super) recorded: usize,
    /// Of these, the recoveries that mapped PM.
    pub(super) looked: usize,
    pub(super) points: usize,
    pub(super) tried: usize,
    pub(super) left: usize,
}

/// Call paths, and in how many recoveries each was crashed.
struct TriedPaths {
    known: Arc<HashSet<u64>>,
    tries: HashMap<u64, u32>,
}

impl Recoveries<'_> {
    /// Crashes recoveries from images of the workload's run that recovery can handle. What cannot be done, for lack of room say, is
    /// left out and told after the findings.
    pub(super) fn run(&self, first: &CheckAnalysis, injected: &Injected) -> Twice {
        let mut twice = Twice::default();
        let mut seen = TriedPaths { known: Arc::new(first.scan.paths.clone()), tries: HashMap::new() };
        for &point in &injected.to_crash {
            if shutdown::is_over() {
                twice.left += 1;
                continue;
            }
            if !self.folder.kept(self.crash(first, point, &mut seen, &mut twice)) {
                twice.left += 1;
            }
        }
        twice
    }

    /// Records one recovery and crashes it.
    fn crash(
        &self,
        first: &CheckAnalysis,
        point: usize,
        seen: &mut TriedPaths,
        twice: &mut Twice,
    ) -> Result<(), Error> {
        let name = format!("recovery-{}", twice.recorded + 1);
        let Some(folder) = self.record(&name, first, point)? else {
            twice.left += usize::from(shutdown::is_over());
            return Ok(());
        };
        let mut analysis = CheckAnalysis::run(&folder.recording(), self.settings, &folder, Arc::clone(&seen.known))?;
        if !analysis.is_whole {
            twice.left += 1;
            return Ok(());
        }
        twice.recorded += 1;
        twice.looked += usize::from(analysis.saw_pm);
        for &path in &analysis.scan.paths {
            let times = seen.tries.entry(path).or_default();
            *times += 1;
            if *times == TRIES {
                Arc::make_mut(&mut seen.known).insert(path);
            }
        }
        if analysis.scan.points.is_empty() {
            return Ok(());
        }
        // What was promised before the first crash holds after the second one.
        let promised = self.promised.map(|promised| Promised {
            promises: Arc::new(promised.promises.fixed(first.scan.points[point].promise)),
            judge: Arc::clone(&promised.judge),
        });
        if let Some(promised) = &promised {
            analysis.scan.set_promises(&promised.promises);
        }
        let injection = Injection::new(self.settings, self.workload, &analysis, &folder, promised)?;
        let injected = injection.run(self.usual.clone(), self.timeout, 0, self.quiet)?;
        twice.points += analysis.scan.points.len();
        twice.tried += injected.done.tried + injected.done.known;
        twice.left += injected.done.left;
        twice.shares.extend(self.settings.shard.map(|_| Share::new(Some(&name), &injected)));
        twice.findings.extend(injected.findings);
        let of_this = |(image, witness)| (image, Witness { recording: Some(name.clone()), ..witness });
        twice.witnesses.extend(injected.witnesses.into_iter().map(of_this));
        Ok(())
    }

    /// Records the recovery from the image at a failure point. Nothing if it did not go as it should.
    fn record(&self, name: &str, first: &CheckAnalysis, point: usize) -> Result<Option<RunFolder>, Error> {
        let folder = self.folder.within(name);
        let failed = |source| Error::Output { action: "make", what: folder.path.display().to_string(), source };
        let _ = std::fs::remove_dir_all(&folder.path);
        std::fs::create_dir(&folder.path).map_err(failed)?;
        let command = self.settings.recovering.command(self.workload);
        let Ok(program) = Program::find(&command) else { return Ok(None) };
        let mut overlay = self.workload.left.above(Capture::Named);
        let mut scratch = Scratch::default();
        let version = first.scan.points[point].version;
        scratch.become_version(&first.scan.versions, version, &[], &mut overlay).map_err(failed)?;
        let mut how = self.workload.launch(false);
        how.plan.operations = None;
        how.program = program;
        match &mut how.sandbox {
            Some(private) => {
                private.overlay = Arc::new(Mutex::new(overlay));
                private.timeout = Some(self.timeout * SLOWER);
                // What is asked of the recovered server is not what made the files.
                private.driver = self.settings.driver.clone().or(private.driver.take());
            }
            None => return Ok(None),
        }
        let header =
            TraceHeader { command: command.clone(), pmvet_version: env!("CARGO_PKG_VERSION").into(), loads: false };
        let (_, ending) = Recording::make(&folder.path, &how, &header, self.install, None)?;
        Ok((ending.exit == TargetExit::Status(0) && ending.loss.is_none()).then_some(folder))
    }
}
