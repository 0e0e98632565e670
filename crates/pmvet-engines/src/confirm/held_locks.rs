//! Locks in PM that a restart does not free. Recovery fails after any crash that leaves one of them held, whatever else is lost: that is
//! one bug, separate from the races in which it shows.

use std::collections::{BTreeMap, BTreeSet};

use pmvet_events::event::{Event, What};
use pmvet_events::spaces::AddressSpaces;
use pmvet_events::{FileId, SiteId};
use pmvet_findings::Finding;
use pmvet_target::crash::{Patch, VersionId, Versions};

use super::findings;
use super::instruction::Instruction;
use super::judge::Judge;
use super::judged_run::JudgedRun;
use super::search::Confirmed;
use super::verdict::RecoveryOutcome;
use crate::lab::{LabError, TrialImage, Witness};

/// Words to remember for each instruction.
const MOST_WORDS: usize = 1 << 12;

/// A lock that a crash may leave held.
#[derive(Debug)]
pub struct HeldLock {
    /// A crash before the event with this number leaves it held.
    pub crash_at: u64,
    /// The instruction that took it.
    pub site: SiteId,
    /// The PM file with the lock.
    pub file: FileId,
    /// Offset of its word in the file.
    pub offset: u64,
    /// A watched restart has shown that it stays held.
    pub stays_held: bool,
    /// What is suspected; an error if recovery proves it.
    pub finding: Finding,
}

/// The content of PM at the moments when a crash leaves a lock held.
pub(super) struct LockCrashes {
    pub(super) versions: Versions,
    pub(super) moments: Vec<(u64, VersionId)>,
}

/// Words of PM that each instruction has changed atomically, as taking a lock does, with their content before the first time.
#[derive(Debug, Default)]
pub(super) struct TakenWords {
    spaces: AddressSpaces,
    words: BTreeMap<SiteId, BTreeMap<(FileId, u64), Vec<u8>>>,
}

impl TakenWords {
    pub(super) fn event(&mut self, event: &Event<'_>) {
        self.spaces.update(event);
        let What::Rmw { addr, old, new, stored: true, .. } = event.what else { return };
        if old == new {
            return;
        }
        let words = self.words.entry(event.site).or_default();
        self.spaces.locate(event.thread, addr, old.len() as u64, |part| {
            if words.len() < MOST_WORDS {
                let free = &old[part.first..part.first + part.len];
                words.entry((part.file, part.offset)).or_insert_with(|| free.to_vec());
            }
        });
    }

    /// The patch that frees a lock.
    fn free(&self, lock: &HeldLock) -> Option<Patch> {
        let bytes = self.words.get(&lock.site)?.get(&(lock.file, lock.offset))?;
        Some(Patch { file: lock.file, offset: lock.offset, bytes: bytes.clone() })
    }

    /// The patches that free all locks taken by matching instructions.
    fn free_all(&self, is: impl Fn(SiteId) -> bool) -> Vec<Patch> {
        let mut free = BTreeMap::new();
        for (_, words) in self.words.iter().filter(|(site, _)| is(**site)) {
            for (&at, bytes) in words {
                free.entry(at).or_insert(bytes);
            }
        }
        free.into_iter().map(|((file, offset), bytes)| Patch { file, offset, bytes: bytes.clone() }).collect()
    }
}

impl Judge<'_> {
    /// Whether recovery, or what runs after it, fails because a crash left a lock in PM held, and works on the same image with the lock
    /// free. If so, turns the finding into an error.
    pub(super) fn held_lock(
        &mut self,
        lock: &mut HeldLock,
        crashes: &LockCrashes,
        run: &mut JudgedRun,
        confirmed: &mut Confirmed,
    ) -> Result<bool, LabError> {
        let LockCrashes { versions, moments } = crashes;
        let at = moments.iter().find(|(moment, _)| *moment == lock.crash_at);
        let Some(&(_, version)) = at else { return Ok(false) };
        let free: Vec<Patch> = run.taken.free(lock).into_iter().collect();
        let (held, freed) = (TrialImage::new(version, &[]), TrialImage::new(version, &free));
        confirmed.images += self.recover(versions, &[held, freed], self.deadline)?;
        let is_cause = match free.is_empty() {
            true => lock.stays_held,
            false => self.went(versions, &freed) == RecoveryOutcome::Well,
        };
        if !is_cause || !self.still_fails(versions, &held)? {
            return Ok(false);
        }
        let setting = self.setting();
        let Some(tried) = self.journal.get(&held.name(versions)) else { return Ok(false) };
        findings::lock_left_held(&mut lock.finding, lock.crash_at, tried, &setting, &mut self.natives);
        let witness = Witness { recording: None, seq: Some(lock.crash_at), patches: Vec::new(), promise: None };
        confirmed.witnesses.insert(tried.image.clone(), witness);
        self.held_locks.extend(Instruction::at(lock.site, &mut run.symbols.with(&run.places)));
        Ok(true)
    }

    /// The patches that free all locks of a run that are known to stay held.
    pub(super) fn free_locks(&self, run: &mut JudgedRun) -> Vec<Patch> {
        if self.held_locks.is_empty() {
            return Vec::new();
        }
        let mut stacks = run.symbols.with(&run.places);
        let sites = run.taken.words.keys().copied();
        let takers: BTreeSet<SiteId> = sites
            .filter(|&site| Instruction::at(site, &mut stacks).is_some_and(|at| self.held_locks.contains(&at)))
            .collect();
        run.taken.free_all(|site| takers.contains(&site))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use pmvet_events::{ContextId, ThreadId};

    use super::*;

    /// Two instructions that take the same word, one of which another time, too.
    #[test]
    fn what_was_there_before_the_first_time_is_the_free_value() {
        let mut taken = TakenWords::default();
        let mut seq = 0;
        let mut happens = |site, what| {
            seq += 1;
            let (thread, context) = (ThreadId(1), ContextId(0));
            taken.event(&Event { seq, thread, site: SiteId(site), context, what });
        };
        happens(0, What::ThreadStart { process: 1, os_thread: 1 });
        happens(0, What::Map { file: FileId(2), addr: 0x1000, len: 4096, offset: 0, writable: true });
        let swap = |addr, old, new, stored| What::Rmw { addr, old, new, stored, discards: false };
        happens(3, swap(0x1040, &[0], &[7], true));
        happens(3, swap(0x1040, &[7], &[8], true));
        happens(3, swap(0x1080, &[5], &[6], false));
        happens(4, swap(0x1040, &[9], &[1], true));
        happens(4, swap(0x10c0, &[4, 4], &[1, 4], true));
        let patch = |offset, bytes: &[u8]| Patch { file: FileId(2), offset, bytes: bytes.to_vec() };
        assert_eq!(taken.free_all(|site| site == SiteId(3)), [patch(0x40, &[0])]);
        assert_eq!(taken.free_all(|_| true), [patch(0x40, &[0]), patch(0xc0, &[4, 4])]);
        assert_eq!(taken.free_all(|_| false), []);
    }
}
