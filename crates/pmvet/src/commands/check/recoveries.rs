//! Crashes during recovery: some recoveries are recorded like the workload, and crashed where they run code that the workload
//! did not.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pmvet_engines::inject::windows::Verdict;
use pmvet_events::file::TraceHeader;
use pmvet_findings::{Finding, Outcome};
use pmvet_target::crash::Scratch;
use pmvet_target::install::Install;
use pmvet_target::launch::{self, Exit as TargetExit};
use pmvet_target::program::Program;
use pmvet_target::recording::Recording;
use pmvet_target::sandbox::Capture;

use super::analysis::Analysis;
use super::injection::{Injected, Injection};
use super::settings::Settings;
use crate::exit::Error;
use crate::reporting::Witness;
use crate::run_folder::RunFolder;
use crate::workload::Workload;

/// In how many recoveries a call path is crashed before it counts as known: whether a crash there does harm depends on what that
/// recovery had to repair.
const TRIES: u32 = 8;

/// What every recovery has in common.
pub(super) struct Recoveries<'a> {
    pub(super) settings: &'a Settings,
    pub(super) workload: &'a Workload,
    pub(super) folder: &'a RunFolder,
    pub(super) install: &'a Install,
    pub(super) usual: &'a Outcome,
    pub(super) timeout: Duration,
    pub(super) deadline: Option<Instant>,
    pub(super) quiet: bool,
}

/// What crashes during recovery gave.
#[derive(Default)]
pub(super) struct Twice {
    pub(super) findings: Vec<Finding>,
    pub(super) witnesses: HashMap<String, Witness>,
    pub(super) recorded: usize,
    pub(super) points: usize,
    pub(super) tried: usize,
    pub(super) left: usize,
}

impl Recoveries<'_> {
    /// Crashes recoveries from images of the workload's run that recovery can handle.
    pub(super) fn run(&self, first: &Analysis, injected: &Injected) -> Result<Twice, Error> {
        let mut twice = Twice::default();
        let good: Vec<usize> =
            (0..first.scan.points.len()).filter(|&i| injected.verdicts[i] == Verdict::Good).collect();
        let mut versions = HashSet::new();
        let good: Vec<usize> = good.into_iter().filter(|&i| versions.insert(first.scan.points[i].version)).collect();
        let mut known: Arc<HashSet<u64>> = Arc::new(first.scan.paths.clone());
        let mut tries: HashMap<u64, u32> = HashMap::new();
        for point in spread(&good, self.settings.recoveries) {
            if launch::stopped_by().is_some() || self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                twice.left += 1;
                continue;
            }
            let name = format!("recovery-{}", twice.recorded + 1);
            let Some(folder) = self.record(&name, first, point)? else { continue };
            twice.recorded += 1;
            let analysis = Analysis::run(&folder.recording(), self.settings, &folder, Arc::clone(&known))?;
            for &path in &analysis.scan.paths {
                let times = tries.entry(path).or_default();
                *times += 1;
                if *times == TRIES {
                    Arc::make_mut(&mut known).insert(path);
                }
            }
            if analysis.scan.points.is_empty() {
                continue;
            }
            let injection = Injection::new(self.settings, self.workload, &analysis, &folder, self.deadline)?;
            let injected = injection.run(self.usual.clone(), self.timeout, self.quiet)?;
            twice.points += analysis.scan.points.len();
            twice.tried += injected.done.tried + injected.done.known;
            twice.left += injected.done.left;
            twice.findings.extend(injected.findings);
            let of_this = |(image, witness)| (image, Witness { recording: Some(name.clone()), ..witness });
            twice.witnesses.extend(injected.witnesses.into_iter().map(of_this));
        }
        Ok(twice)
    }

    /// Records the recovery from the image at a failure point. Nothing if it did not go as it should.
    fn record(&self, name: &str, first: &Analysis, point: usize) -> Result<Option<RunFolder>, Error> {
        let folder = RunFolder { id: format!("{}/{name}", self.folder.id), path: self.folder.file(name) };
        let failed = |source| Error::Output { action: "make", what: folder.path.display().to_string(), source };
        let _ = std::fs::remove_dir_all(&folder.path);
        std::fs::create_dir(&folder.path).map_err(failed)?;
        let command = self.settings.recovering.command(self.workload);
        let Ok(program) = Program::find(&command) else { return Ok(None) };
        let mut overlay = self.workload.files.above(Capture::Mappable);
        let mut scratch = Scratch::default();
        let version = first.scan.points[point].version;
        scratch.become_version(&first.scan.versions, version, &[], &mut overlay).map_err(failed)?;
        let mut how = self.workload.launch(false);
        how.program = program;
        match &mut how.sandbox {
            Some(private) => private.overlay = Arc::new(Mutex::new(overlay)),
            None => return Ok(None),
        }
        let header = TraceHeader {
            command: command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            pmvet_version: env!("CARGO_PKG_VERSION").into(),
            loads: false,
        };
        let (_, ending) = Recording::make(&folder.path, &how, &header, self.install, None)?;
        Ok((ending.exit == TargetExit::Status(0) && ending.loss.is_none()).then_some(folder))
    }
}

/// Some of all items, from everywhere. Equal steps would hit the same place of every round of a workload's loop; steps of the
/// golden ratio do not.
fn spread(all: &[usize], wanted: usize) -> Vec<usize> {
    const STEP: f64 = 0.618_033_988_749_895;
    let mut taken = HashSet::new();
    let places = (0..wanted.min(all.len())).map(|i| ((i as f64 + 0.5) * STEP).fract());
    places.map(|place| all[(place * all.len() as f64) as usize]).filter(|&item| taken.insert(item)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::spread;

    #[test]
    fn no_place_of_a_loop_is_left_out() {
        let all: Vec<usize> = (0..140).collect();
        for period in 2..=12 {
            let places: HashSet<usize> = spread(&all, 24).iter().map(|item| item % period).collect();
            assert!(places.len() * 2 >= period, "{places:?} of {period}");
        }
        assert!(spread(&[], 6).is_empty());
        assert_eq!(spread(&[5], 6), [5]);
    }
}
