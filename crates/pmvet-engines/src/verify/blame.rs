//! Which store to blame for each failing execution: the search says which stores were missed, experiments say which one decides.

use pmvet_target::crash::Patch;
use pmvet_target::recording::Recording;

use super::campaign::FailedExecution;
use super::explore::state_of;
use super::line::Writer;
use crate::causes::early_stores::{self, Decisive, EventSite, FatalLoss};
use crate::lab::{ScanError, TrialJournal, TrialPool};

/// For each failure the store that decides, if experiments find one. Crashes of the recovery itself are left out: what it stored is not in
/// the recording.
pub fn decisive_stores(
    failures: &[FailedExecution],
    recording: &Recording,
    pool: &TrialPool<'_>,
    journal: &mut TrialJournal,
) -> Result<Vec<Option<Decisive>>, ScanError> {
    let patches: Vec<Vec<Patch>> = failures.iter().map(|failure| failure.crash.image(&failure.choice)).collect();
    let losses: Vec<Option<FatalLoss<'_>>> =
        failures.iter().zip(&patches).map(|(f, patches)| loss(f, patches)).collect();
    let of_workload: Vec<FatalLoss<'_>> = losses.iter().flatten().copied().collect();
    let mut found = early_stores::find(recording, &of_workload, pool, journal)?.into_iter();
    Ok(losses.iter().map(|loss| loss.and_then(|_| found.next()?)).collect())
}

fn loss<'a>(failure: &FailedExecution, patches: &'a [Patch]) -> Option<FatalLoss<'a>> {
    let crash = &failure.crash;
    let lost = lost_stores(failure);
    let first = lost.iter().min_by_key(|store| store.seq);
    let last = lost.iter().max_by_key(|store| store.seq);
    if crash.level > 0 || first.is_none() != patches.is_empty() {
        return None;
    }
    let site = |store: &Writer| EventSite { seq: store.seq, site: store.site };
    Some(FatalLoss {
        crash: EventSite { seq: crash.moment.before.unwrap_or(u64::MAX), site: crash.moment.site },
        version: crash.version,
        promise: crash.promise,
        patches,
        thread: last.map_or(crash.moment.thread, |store| store.thread),
        lost: first.zip(last).map(|(first, last)| (site(first), site(last))),
        is_flushed: lost.iter().all(|store| store.flushing),
    })
}

/// All stores that the image lacks.
fn lost_stores(failure: &FailedExecution) -> Vec<Writer> {
    let mut lost = Vec::new();
    for &index in failure.choice.keys() {
        let Some(line) = failure.crash.lines.get(index as usize) else { continue };
        let Some(content) = line.content(state_of(line, &failure.choice, index)) else { continue };
        let is_missing = |i: usize| content.missing.iter().any(|stores| stores.contains(&(i as u16)));
        lost.extend(line.stores().iter().enumerate().filter(|(i, _)| is_missing(*i)).map(|(_, store)| *store));
    }
    lost
}
