//! Locks that live in PM: what a restart makes of one that a crash left held.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pmvet_engines::inject::refine;
use pmvet_engines::lockset::pm_locks::{Aftermath, Afterwards, HeldLock};
use pmvet_engines::stacks::Symbols;
use pmvet_events::Event;
use pmvet_target::crash::{VersionId, Versions};
use pmvet_target::install::Install;
use pmvet_target::mapped::MappedFile;
use pmvet_target::over;
use pmvet_target::recording::Recording;

use super::restart::{Restart, Watch, failed};
use crate::exit::Error;
use crate::run_folder::RunFolder;
use crate::system;
use crate::workload::Workload;

/// A restart that hangs on a lock is given up after this time.
const PATIENCE: Duration = Duration::from_secs(10);

/// Restarts the program from crashes that leave a lock held.
pub(super) struct Restarts<'a> {
    pub(super) workload: &'a Workload,
    pub(super) folder: &'a RunFolder,
    pub(super) recording: &'a Recording,
    pub(super) install: &'a Install,
}

impl Restarts<'_> {
    /// The locks that stay held, and how many could not be tried.
    pub(super) fn left_held(&self, locks: &[HeldLock], symbols: &Symbols) -> Result<(Vec<HeldLock>, usize), Error> {
        let (mut held, mut unknown) = (Vec::new(), 0);
        if locks.is_empty() {
            return Ok((held, unknown));
        }
        let store = MappedFile::new(self.folder.temporary().map_err(failed)?);
        let moments = [locks.iter().map(|lock| lock.crash_at).collect()];
        let (versions, moments) = refine::versions_at(self.recording, &moments, store)?;
        let tries: Vec<_> = locks
            .iter()
            .map(|lock| {
                let found = moments.iter().find(|(moment, _)| *moment == lock.crash_at);
                Some((lock, symbols.path(lock.word.file), found?.1))
            })
            .collect();
        let next = AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            while let Some(one) = tries.get(next.fetch_add(1, Ordering::Relaxed)) {
                let tried = one.as_ref().filter(|_| !over::is_over());
                let outcome = tried.map(|(lock, path, version)| self.restart(lock, path, &versions, *version));
                done.push((one.as_ref().map(|(lock, ..)| *lock), outcome.transpose()?.flatten()));
            }
            Ok::<_, Error>(done)
        };
        // Two servers would want the same port.
        let alone = self.workload.driver.is_some();
        let cores = system::cores();
        let workers = if alone { 1 } else { cores.min(tries.len()) };
        let done: Vec<Result<_, Error>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            workers.into_iter().map(|w| w.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        for done in done {
            for (lock, outcome) in done? {
                match outcome {
                    Some(Afterwards::LeftHeld) => held.extend(lock.cloned()),
                    Some(Afterwards::Freed | Afterwards::Unused) => {}
                    None => unknown += 1,
                }
            }
        }
        held.sort_by_key(|lock| lock.crash_at);
        Ok((held, unknown))
    }

    fn restart(
        &self,
        lock: &HeldLock,
        path: &Path,
        versions: &Versions,
        version: VersionId,
    ) -> Result<Option<Afterwards>, Error> {
        let mut aftermath = Aftermath::new(lock, path);
        let restart = Restart { workload: self.workload, install: self.install, timeout: PATIENCE };
        let ended_well = restart.run(None, (versions, version, &[]), &mut aftermath)?;
        // One that was cut short hangs on nothing.
        Ok(ended_well.filter(|_| !over::is_over()).map(|ended_well| aftermath.verdict(!ended_well)))
    }
}

impl Watch for Aftermath {
    fn event(&mut self, event: &Event<'_>) {
        Aftermath::event(self, event);
    }

    fn is_decided(&self) -> bool {
        Aftermath::is_decided(self)
    }
}
