//! Finds which locks in PM stay held after a restart if a crash leaves them held.

use std::collections::HashMap;
use std::path::PathBuf;

use pmvet_engines::confirm::held_locks::HeldLock;
use pmvet_engines::lab::LabError;
use pmvet_engines::lockset::findings::WordedLocks;
use pmvet_engines::lockset::pm_locks::LockLeftHeld;
use pmvet_engines::lockset::restarts::Restarts;
use pmvet_events::FileId;
use pmvet_findings::Finding;

/// What is known about such locks.
#[derive(Default)]
pub(super) struct LockFindings {
    pub(super) findings: Vec<Finding>,
    /// How many could not be tried.
    pub(super) unknown: usize,
}

/// Asks recoveries first, through `prove`, since that takes milliseconds. Then watches a restart for each lock that they cannot judge. Each
/// group is the locks that one line takes: one that stays held is enough.
pub(super) fn find(
    groups: Vec<WordedLocks>,
    restarts: &Restarts<'_>,
    paths: &HashMap<FileId, PathBuf>,
    prove: &mut dyn FnMut(&mut HeldLock) -> Result<bool, LabError>,
) -> Result<LockFindings, LabError> {
    let mut findings = Vec::new();
    let mut open = Vec::new();
    for group in groups {
        let mut proven = None;
        for (lock, finding) in &group {
            let mut held = held_lock(lock, finding, false);
            if prove(&mut held)? {
                proven = Some(held.finding);
                break;
            }
        }
        match proven {
            Some(finding) => findings.push(finding),
            None => open.push(group),
        }
    }
    // A restart takes long, so one moment of each call path has to do.
    let first = |(lock, _): &(LockLeftHeld, Finding)| (!lock.is_spare).then(|| lock.clone());
    let locks: Vec<Vec<LockLeftHeld>> = open.iter().map(|group| group.iter().filter_map(first).collect()).collect();
    let (left, unknown) = restarts.left_held(&locks, paths)?;
    for lock in left {
        let Some((_, finding)) = open.iter().flatten().find(|(known, _)| *known == lock) else { continue };
        let mut held = held_lock(&lock, finding, true);
        prove(&mut held)?;
        findings.push(held.finding);
    }
    Ok(LockFindings { findings, unknown })
}

fn held_lock(lock: &LockLeftHeld, finding: &Finding, stays_held: bool) -> HeldLock {
    let LockLeftHeld { crash_at, site, word, .. } = *lock;
    HeldLock { crash_at, site, file: word.file, offset: word.offset, stays_held, finding: finding.clone() }
}
