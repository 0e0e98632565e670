//! Many trials, several at a time.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use pmvet_findings::Outcome;
use pmvet_target::crash::{Patch, VersionId, Versions};
use pmvet_target::shutdown::is_over;
use xxhash_rust::xxh3::Xxh3;

use super::recovery::{Bench, RecoveryCommand};
use super::tried::{TrialJournal, Tried};
use crate::promises::PromiseId;

/// An image to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrialImage<'a> {
    /// The content of PM at the moment of the crash.
    pub version: VersionId,
    /// Bytes to write over it: what the crash loses.
    pub patches: &'a [Patch],
    /// What it must show, which depends on the moment of the crash.
    pub promise: PromiseId,
}

impl<'a> TrialImage<'a> {
    /// An image whose content is not compared.
    pub fn new(version: VersionId, patches: &'a [Patch]) -> Self {
        Self { version, patches, promise: PromiseId::NONE }
    }

    /// A name for the image and what it must show: the same in every run.
    pub fn name(&self, versions: &Versions) -> String {
        let mut hash = Xxh3::new();
        hash.update(&versions.get(self.version).map_or(0, |v| v.hash).to_le_bytes());
        for patch in self.patches {
            hash.update(&patch.file.0.to_le_bytes());
            hash.update(&patch.offset.to_le_bytes());
            hash.update(&patch.bytes);
        }
        if self.promise != PromiseId::NONE {
            hash.update(&self.promise.0.to_le_bytes());
        }
        format!("{:032x}", hash.digest128())
    }
}

/// Progress observer.
pub trait TrialProgress: Sync {
    /// Called by the workers after each trial: `done` of `total` are over, and `failed` of them did not end as usual.
    fn done(&self, done: usize, total: usize, failed: usize);
}

impl TrialProgress for () {
    fn done(&self, _done: usize, _total: usize, _failed: usize) {}
}

/// Runs the recovery on many crash images.
#[derive(Debug)]
pub struct TrialPool<'a> {
    /// What is run on each image.
    pub recovery: &'a RecoveryCommand,
    /// The contents that the images are made of.
    pub versions: &'a Versions,
    /// What the recovery does when nothing was injected.
    pub usual: &'a Outcome,
    /// How many recoveries run at a time; never more than there are images, and at least one.
    pub workers: usize,
    /// No recovery starts after this.
    pub deadline: Option<Instant>,
}

/// What became of the jobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrialCounts {
    /// Recoveries that ran to an outcome.
    pub tried: usize,
    /// Those known from an earlier run.
    pub known: usize,
    /// Those that did not run: the deadline passed, or pmvet was asked to stop.
    pub left: usize,
}

impl TrialPool<'_> {
    /// Tries all jobs that are not in the journal yet, and adds the outcomes to it.
    pub fn run(
        &self,
        jobs: &[TrialImage<'_>],
        journal: &mut TrialJournal,
        progress: &dyn TrialProgress,
    ) -> io::Result<TrialCounts> {
        let named: Vec<(String, &TrialImage<'_>)> = jobs.iter().map(|job| (job.name(self.versions), job)).collect();
        let mut open: Vec<&(String, &TrialImage<'_>)> = Vec::new();
        let mut names = std::collections::HashSet::new();
        for job in &named {
            if journal.get(&job.0).is_none() && names.insert(&job.0) {
                open.push(job);
            }
        }
        let total = open.len();
        let (next, done, failed) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let journal = Mutex::new(journal);
        let work = || -> io::Result<()> {
            let mut bench = Bench::default();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
                let Some((name, job)) = open.get(at).filter(|_| !late && !is_over()) else {
                    return Ok(());
                };
                let trial = self.recovery.run(&mut bench, self.versions, **job, Some(self.usual))?;
                let Some(trial) = trial else { return Ok(()) };
                let good = trial.outcome == *self.usual;
                let tried = Tried::new(name.clone(), trial, good);
                journal.lock().unwrap_or_else(|e| e.into_inner()).add(tried)?;
                let failed = failed.fetch_add(usize::from(!good), Ordering::Relaxed) + usize::from(!good);
                progress.done(done.fetch_add(1, Ordering::Relaxed) + 1, total, failed);
            }
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.workers.clamp(1, total.max(1))).map(|_| scope.spawn(work)).collect();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or_else(|_| Err(io::Error::other("a worker of pmvet died"))))
                .collect::<io::Result<Vec<()>>>()
        })?;
        let tried = done.into_inner();
        Ok(TrialCounts { tried, known: named.len() - total, left: total - tried })
    }
}
