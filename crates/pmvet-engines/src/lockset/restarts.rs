//! Locks that live in PM: what a restart makes of one that a crash left held.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pmvet_events::{Event, FileId};
use pmvet_target::crash::{VersionId, Versions};
use pmvet_target::shutdown;

use super::pm_locks::{Aftermath, Afterwards, LockLeftHeld};
use crate::lab::restart::{Restart, RestartWatch};
use crate::lab::{self, Lab, LabError};

/// A restart hangs on a lock if it takes so many times as long as the recorded run, and a second; never more than ten.
const SLOWDOWN: u32 = 4;
const SLACK: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(10);

/// Restarts the program from crashes that leave a lock held.
#[derive(Debug)]
pub struct Restarts<'a> {
    /// The workload, and the folder with its recorded run.
    pub lab: Lab<'a>,
    /// What runs after a crash before the program does. Nothing: the program itself.
    pub recover: Option<Vec<OsString>>,
    /// How long the recorded run took.
    pub traced: Duration,
    /// How long they may take together.
    pub most_time: Option<Duration>,
}

impl Restarts<'_> {
    /// The locks that stay held, and how many could not be tried. `paths`: what their files are called. Each of the groups is done with as soon as one of it stays held.
    pub fn left_held(
        &self,
        groups: &[Vec<LockLeftHeld>],
        paths: &HashMap<FileId, PathBuf>,
    ) -> Result<(Vec<LockLeftHeld>, usize), LabError> {
        let (mut held, mut unknown) = (Vec::new(), 0);
        if groups.is_empty() {
            return Ok((held, unknown));
        }
        let store = self.lab.temporary()?;
        let moments = [groups.iter().flatten().map(|lock| lock.crash_at).collect()];
        let (versions, moments) = lab::versions_at(&self.lab.recording(), &moments, store)?;
        let at = |lock: &LockLeftHeld| moments.iter().find(|(moment, _)| *moment == lock.crash_at).map(|found| found.1);
        let tries: Vec<Vec<_>> = groups
            .iter()
            .map(|group| group.iter().map(|lock| (lock, paths.get(&lock.word.file), at(lock))).collect())
            .collect();
        let deadline = self.most_time.and_then(|time| Instant::now().checked_add(time));
        let timeout = (self.traced * SLOWDOWN + SLACK).min(LONGEST);
        let restart = Restart { lab: self.lab, timeout, deadline };
        let next = AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            while let Some(group) = tries.get(next.fetch_add(1, Ordering::Relaxed)) {
                for (lock, path, version) in group {
                    let in_time = !shutdown::is_over() && !restart.is_late();
                    let known = path.zip(*version).filter(|_| in_time);
                    let tried = known.map(|(path, version)| self.restart(restart, lock, path, (&versions, version)));
                    let outcome = tried.transpose()?.flatten();
                    done.push((*lock, outcome));
                    if outcome == Some(Afterwards::LeftHeld) {
                        break;
                    }
                }
            }
            Ok::<_, LabError>(done)
        };
        // Two servers would want the same port.
        let alone = self.lab.workload.driver.is_some();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = if alone { 1 } else { cores.min(tries.len()) };
        let done: Vec<Result<_, LabError>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            workers.into_iter().map(|w| w.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        for done in done {
            for (lock, outcome) in done? {
                match outcome {
                    Some(Afterwards::LeftHeld) => held.push(lock.clone()),
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
        restart: Restart<'_>,
        lock: &LockLeftHeld,
        path: &Path,
        (versions, version): (&Versions, VersionId),
    ) -> Result<Option<Afterwards>, LabError> {
        let run = |command: Option<&[OsString]>| {
            let mut aftermath = Aftermath::new(lock, path);
            let ended_well = restart.run(command, (versions, version, &[]), &mut aftermath)?;
            // One that was cut short hangs on nothing.
            Ok::<_, LabError>(ended_well.filter(|_| !shutdown::is_over()).map(|well| aftermath.verdict(!well)))
        };
        if let Some(command) = &self.recover {
            let judged = run(Some(command))?;
            // A recovery that has nothing to do with the lock leaves it to the program.
            if judged != Some(Afterwards::Unused) {
                return Ok(judged);
            }
        }
        run(None)
    }
}

impl RestartWatch for Aftermath {
    fn event(&mut self, event: &Event<'_>) {
        Aftermath::event(self, event);
    }

    fn is_decided(&self) -> bool {
        Aftermath::is_decided(self)
    }

    fn is_spinning(&self) -> bool {
        Aftermath::is_spinning(self)
    }
}
