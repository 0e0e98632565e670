//! Finds the store that came too early.
//!
//! A crash loses a store, and recovery fails. Two bugs look like that: the lost store should have been persistent by then, or another one,
//! made before it, should have come after it. Experiments on images that lack one more store tell them apart. If recovery copes without a
//! store that was made after the lost one, the lost one should have been persistent by then. If it copes only without a store that was
//! made before, and the thread has not yet waited for the lost one, that other store is to blame. If it copes with both stores and with
//! neither, but not with one of them alone, no order of the two helps.
//!
//! The same experiments find the store to blame for a crash in program order: the last one without which recovery copes.

use std::collections::HashMap;

use pmvet_events::{ContextId, FileId, SiteId, ThreadId};
use pmvet_target::crash::{Patch, PmReplay, VersionId};
use pmvet_target::recording::Recording;
use pmvet_target::shutdown;

use super::recent_stores::{Candidate, RecentStores, Row};
use crate::lab::{ScanError, TrialImage, TrialJournal, TrialPool};
use crate::promises::PromiseId;

/// How many losses of the same store at the same failure point are examined.
const MOST_ALIKE: usize = 3;

/// A crash that recovery does not survive.
#[derive(Debug, Clone, Copy)]
pub struct FatalLoss<'a> {
    /// The crash comes before this.
    pub crash: EventSite,
    /// The content of PM just before `crash`, all stores included; `patches` remove what is lost.
    pub version: VersionId,
    /// What had been promised by then.
    pub promise: PromiseId,
    /// What undoes the lost stores. Empty: the crash is in program order.
    pub patches: &'a [Patch],
    /// The thread that made the lost stores, or whose event the crash precedes.
    pub thread: ThreadId,
    /// The first and the last lost store, if any.
    pub lost: Option<(EventSite, EventSite)>,
    /// All of them are flushed, and only a fence is missing: any fences came before the flushes, or were not for them.
    pub is_flushed: bool,
}

/// One event of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventSite {
    /// Its number in the run.
    pub seq: u64,
    /// The instruction.
    pub site: SiteId,
}

impl FatalLoss<'_> {
    fn first(&self) -> u64 {
        self.lost.map_or(self.crash.seq, |(first, _)| first.seq)
    }

    fn last(&self) -> u64 {
        self.lost.map_or(self.crash.seq, |(_, last)| last.seq)
    }
}

/// The store without which the loss would have done no harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decisive {
    /// A store made before the lost one, which may be in PM too early.
    Early(PmStore),
    /// The same, but its thread had waited for it before it made the lost one. It may have come too early, or only be what makes
    /// recovery look at the lost one at all: a crash in program order decides.
    Before(PmStore),
    /// A store made after the lost one, which should have been persistent by then.
    Later(PmStore),
    /// A store made after or before the lost one, with no order between them. Recovery copes without both of them, and with neither
    /// alone.
    Together(PmStore),
}

impl Decisive {
    /// The store to blame in place of the lost one, which has this number, if it is certain.
    pub fn blamed(self, lost: u64) -> Option<PmStore> {
        match self {
            Self::Early(store) => Some(store),
            Self::Together(store) => Some(store).filter(|store| store.seq < lost),
            Self::Before(_) | Self::Later(_) => None,
        }
    }
}

/// A store to PM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PmStore {
    /// Number of its event; of the first one, if several in a row by one instruction count as one.
    pub seq: u64,
    /// The thread that stored.
    pub thread: ThreadId,
    /// The instruction.
    pub site: SiteId,
    /// Its call path.
    pub context: ContextId,
    /// The PM file that it changed.
    pub file: FileId,
    /// Offset of its bytes in the file.
    pub offset: u64,
    /// How many bytes it stored.
    pub len: u64,
    /// How often its thread has waited for it, up to the lost store.
    pub(super) waits: u32,
}

/// The store that decides each of these crashes, if there is one. Of crashes that lose the same store at the same place, only some are
/// examined; the others count like the first.
pub fn find(
    recording: &Recording,
    losses: &[FatalLoss<'_>],
    pool: &TrialPool<'_>,
    journal: &mut TrialJournal,
) -> Result<Vec<Option<Decisive>>, ScanError> {
    let mut alike: HashMap<(Option<SiteId>, SiteId), Vec<usize>> = HashMap::new();
    for (i, loss) in losses.iter().enumerate() {
        alike.entry((loss.lost.map(|(_, last)| last.site), loss.crash.site)).or_default().push(i);
    }
    let mut looked_at: Vec<usize> = alike.values().flat_map(|like| like.iter().take(MOST_ALIKE).copied()).collect();
    looked_at.sort_unstable();
    if looked_at.is_empty() {
        return Ok(Vec::new());
    }
    let some: Vec<FatalLoss<'_>> = looked_at.iter().map(|&i| losses[i]).collect();
    let found = find_in_each(recording, &some, pool, journal)?;
    let found: HashMap<usize, Option<Decisive>> = looked_at.into_iter().zip(found).collect();
    let mut decisive = vec![None; losses.len()];
    for like in alike.into_values() {
        for &i in &like {
            decisive[i] = found.get(&i).or_else(|| found.get(&like[0])).copied().flatten();
        }
    }
    Ok(decisive)
}

fn find_in_each(
    recording: &Recording,
    losses: &[FatalLoss<'_>],
    pool: &TrialPool<'_>,
    journal: &mut TrialJournal,
) -> Result<Vec<Option<Decisive>>, ScanError> {
    let candidates = candidates(recording, losses)?;
    // The fatal images without each candidate.
    let without: Vec<Vec<Vec<Patch>>> = losses
        .iter()
        .zip(&candidates)
        .map(|(loss, candidates)| candidates.iter().map(|candidate| both(loss.patches, &candidate.before)).collect())
        .collect();
    let jobs: Vec<TrialImage<'_>> = losses
        .iter()
        .zip(&without)
        .flat_map(|(loss, images)| images.iter().map(|patches| image(loss, patches)))
        .collect();
    pool.run(&jobs, journal, &())?;
    let copes = |job: &TrialImage<'_>, journal: &TrialJournal| {
        journal.get(&job.name(pool.versions)).map(|tried| tried.outcome == *pool.usual)
    };
    let mut jobs = jobs.into_iter();
    let rescuing: Vec<Vec<&Candidate>> = candidates
        .iter()
        .map(|candidates| {
            candidates
                .iter()
                .zip(&mut jobs)
                .filter(|(_, job)| copes(job, journal) == Some(true))
                .map(|(c, _)| c)
                .collect()
        })
        .collect();
    // Images that lose nothing but the candidates.
    let jobs: Vec<TrialImage<'_>> = losses
        .iter()
        .zip(&rescuing)
        .filter(|(loss, _)| loss.lost.is_some())
        .flat_map(|(loss, rescuing)| rescuing.iter().map(move |candidate| image(loss, &candidate.before)))
        .collect();
    pool.run(&jobs, journal, &())?;
    let decide = |(loss, rescuing): (&FatalLoss<'_>, &Vec<&Candidate>)| {
        let rescuing = rescuing.iter().map(|candidate| Rescuing {
            store: candidate.store,
            is_several: candidate.is_several,
            is_harmless_alone: copes(&image(loss, &candidate.before), journal),
        });
        decide(loss.lost.map(|(_, last)| last.seq), &rescuing.collect::<Vec<_>>())
    };
    Ok(losses.iter().zip(&rescuing).map(decide).collect())
}

fn both(lost: &[Patch], more: &[Patch]) -> Vec<Patch> {
    lost.iter().chain(more).cloned().collect()
}

fn image<'a>(loss: &FatalLoss<'_>, patches: &'a [Patch]) -> TrialImage<'a> {
    TrialImage { version: loss.version, patches, promise: loss.promise }
}

/// A store without which recovery copes with the fatal image.
#[derive(Debug, Clone, Copy)]
struct Rescuing {
    store: PmStore,
    /// It is only one of several that the thread has not waited for: recovery copes without all of them.
    is_several: bool,
    /// Recovery also copes if only this store is lost. Nothing if there was no time to try.
    is_harmless_alone: Option<bool>,
}

/// Which store decides. `lost` is the last lost store, if any.
///
/// If recovery needs both or neither of two stores, such as data and its checksum, it does not help to make one of them persistent first.
fn decide(lost: Option<u64>, rescuing: &[Rescuing]) -> Option<Decisive> {
    let Some(lost) = lost else {
        return rescuing.iter().map(|rescuing| rescuing.store).max_by_key(|store| store.seq).map(Decisive::Early);
    };
    let (several, single): (Vec<Rescuing>, Vec<Rescuing>) = rescuing.iter().partition(|r| r.is_several);
    let (later, before): (Vec<Rescuing>, Vec<Rescuing>) = single.into_iter().partition(|r| r.store.seq > lost);
    let first_later = |is_harmless_alone: bool| {
        let stores = later.iter().filter(|r| r.is_harmless_alone == Some(is_harmless_alone)).map(|r| r.store);
        stores.min_by_key(|store| store.seq)
    };
    // The last one: without the first ones, such as a mark that the file is in use, recovery would not even look.
    let last_before = |waits: u32, counts: &dyn Fn(&Rescuing) -> bool| {
        let stores = before.iter().filter(|r| r.store.waits == waits && counts(r)).map(|r| r.store);
        stores.max_by_key(|store| store.seq)
    };
    first_later(true)
        .map(Decisive::Later)
        .or_else(|| last_before(1, &|_| true).map(Decisive::Before))
        .or_else(|| last_before(0, &|r| r.is_harmless_alone != Some(false)).map(Decisive::Early))
        .or_else(|| first_later(false).or_else(|| last_before(0, &|_| true)).map(Decisive::Together))
        .or_else(|| several.iter().find(|r| r.is_harmless_alone == Some(false)).map(|r| Decisive::Together(r.store)))
}

/// For each loss, the stores before and after it that may matter.
///
/// If a flush was forgotten and the thread has fenced since, it relied on the lost store being persistent, so no earlier store came too
/// early.
fn candidates(recording: &Recording, losses: &[FatalLoss<'_>]) -> Result<Vec<Vec<Candidate>>, ScanError> {
    let mut found: Vec<Vec<Candidate>> = vec![Vec::new(); losses.len()];
    // Sorted by moment: just before the last lost store, and at the crash.
    let mut stops: Vec<(u64, usize, bool)> = Vec::new();
    for (i, loss) in losses.iter().enumerate() {
        stops.extend([(loss.last(), i, false), (loss.crash.seq, i, true)]);
    }
    stops.sort_unstable();
    let mut stops = stops.into_iter().peekable();
    let mut recent = RecentStores::default();
    let mut waiting: HashMap<usize, Vec<Row>> = HashMap::new();
    let mut stop = |i: usize, at_crash: bool, recent: &RecentStores| {
        let loss = &losses[i];
        let thread = recent.of(loss.thread);
        if !at_crash {
            // Older stores are what the program relied on all the time: without a mark that the file is in use, recovery would not
            // even look.
            let rows = thread.into_iter().flat_map(|thread| thread.waited_at_most(1));
            waiting.insert(i, rows.cloned().collect());
            return;
        }
        let before = waiting.remove(&i).unwrap_or_default();
        let Some(thread) = thread else { return };
        let is_forgotten = !loss.is_flushed && thread.has_fenced_since(loss.first());
        let before = before.iter().filter(|_| !is_forgotten).filter_map(|row| row.undone(0, loss.patches));
        let later = thread.waited_at_most(u32::MAX).filter_map(|row| row.undone(loss.last(), loss.patches));
        let pending = thread.pending(loss.patches).filter(|_| loss.lost.is_some());
        found[i] = before.chain(later).chain(pending).collect();
    };
    let mut replay = PmReplay::new(recording);
    let mut reader = recording.read()?;
    let mut now = shutdown::ClockCheck::default();
    while stops.peek().is_some()
        && let Some(event) = reader.next()?
    {
        if now.is_due() && shutdown::is_over() {
            return Ok(vec![Vec::new(); losses.len()]);
        }
        if !event.what.is_numbered() {
            continue;
        }
        while let Some((_, i, at_crash)) = stops.next_if(|(moment, ..)| *moment <= event.seq) {
            stop(i, at_crash, &recent);
        }
        recent.event(&event, replay.spaces(), |file, offset, len| {
            let bytes = replay.bytes(file);
            let start = (offset as usize).min(bytes.len());
            bytes[start..bytes.len().min(start + len)].to_vec()
        });
        replay.apply(&event)?;
    }
    // Crashes at the end of the run.
    stops.for_each(|(_, i, at_crash)| stop(i, at_crash, &recent));
    Ok(found)
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    fn rescuing(seq: u64, waits: u32, is_harmless_alone: bool) -> Rescuing {
        let (thread, site, context, file) = (ThreadId(1), SiteId(seq as u32), ContextId(0), FileId(1));
        Rescuing {
            store: PmStore { seq, thread, site, context, file, offset: 0, len: 8, waits },
            is_several: false,
            is_harmless_alone: Some(is_harmless_alone),
        }
    }

    fn decided(rescuing: &[Rescuing]) -> Option<(&'static str, u64)> {
        decide(Some(50), rescuing).map(|decisive| match decisive {
            Decisive::Early(store) => ("early", store.seq),
            Decisive::Before(store) => ("before", store.seq),
            Decisive::Later(store) => ("later", store.seq),
            Decisive::Together(store) => ("together", store.seq),
        })
    }

    #[test]
    fn what_relies_on_the_lost_store_decides_first() {
        assert_eq!(
            decided(&[rescuing(10, 0, true), rescuing(70, 0, true), rescuing(60, 0, true)]),
            Some(("later", 60))
        );
        assert_eq!(decided(&[rescuing(10, 1, true), rescuing(20, 0, true)]), Some(("before", 10)));
        assert_eq!(decided(&[rescuing(10, 0, true), rescuing(20, 0, true)]), Some(("early", 20)));
        assert_eq!(decided(&[]), None);
    }

    #[test]
    fn where_no_order_helps_the_stores_belong_together() {
        assert_eq!(decided(&[rescuing(60, 0, false)]), Some(("together", 60)));
        assert_eq!(decided(&[rescuing(60, 0, false), rescuing(70, 0, true)]), Some(("later", 70)));
        assert_eq!(decided(&[rescuing(40, 0, false)]), Some(("together", 40)));
        assert_eq!(decided(&[rescuing(40, 0, false), rescuing(30, 0, true)]), Some(("early", 30)));
        let several = |alone| Rescuing { is_several: true, ..rescuing(60, 0, alone) };
        assert_eq!(decided(&[several(false), rescuing(30, 0, true)]), Some(("early", 30)));
        assert_eq!((decided(&[several(false)]), decided(&[several(true)])), (Some(("together", 60)), None));
        let blamed = |seq| Decisive::Together(rescuing(seq, 0, false).store).blamed(50).map(|store| store.seq);
        assert_eq!((blamed(40), blamed(60)), (Some(40), None), "the first of the two");
    }

    #[test]
    fn for_a_crash_in_program_order_the_last_store_decides() {
        let decisive = decide(None, &[rescuing(10, 0, false), rescuing(20, 5, false)]);
        assert!(matches!(decisive, Some(Decisive::Early(store)) if store.seq == 20));
    }
}
