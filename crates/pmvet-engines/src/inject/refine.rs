//! From a failure point to the store that is to blame.
//!
//! Between the last good failure point and the first bad one the program made some stores. Crashes between these are tried, a few at
//! a time, until one store is left: before it recovery works, after it recovery fails.

use std::io;

use pmvet_events::event::{Event, LINE, What};
use pmvet_events::{ContextId, SiteId, ThreadId};
use pmvet_model::{LineId, Mode, Model, Unknown};
use pmvet_target::mapped::MappedFile;
use pmvet_target::recording::Recording;
use pmvet_target::shutdown;

use super::scan::PendingStore;
use crate::causes::windows::FailureMode;
use crate::lab::{ScanError, TrialImage, TrialJournal, TrialPool, versions_at};

/// How many crashes are tried for one window in one pass over the run.
const STEPS: u64 = 12;
/// Upper bound of passes over the run. Each divides what is left by [`STEPS`].
const ROUNDS: usize = 6;

/// Moments between which a crash turns from harmless to fatal, for one kind of failure. A moment is before the event of its
/// number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TurningPoint {
    pub(crate) good: u64,
    pub(crate) bad: u64,
    pub(crate) mode: FailureMode,
}

/// The store after which recovery fails.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Culprit {
    /// Nothing if it is not a store, or could not be found in time.
    pub(crate) store: Option<PendingStore>,
    /// The latest stores that were not guaranteed to be persistent at the crash.
    pub(crate) pending: Vec<PendingStore>,
    pub(crate) pending_total: u64,
    /// The answer that acknowledges an operation, if crashes are fatal from then on.
    pub(crate) acknowledged: Option<EventPlace>,
    /// The last store before recovery works again.
    pub(crate) closing: Option<PendingStore>,
}

/// Where something happens in the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventPlace {
    pub(crate) seq: u64,
    pub(crate) thread: ThreadId,
    pub(crate) site: SiteId,
    pub(crate) context: ContextId,
}

/// How many pending stores a finding names.
const NAMED: usize = 8;

/// Narrows down each span as far as possible.
pub(crate) fn narrow(
    recording: &Recording,
    spans: &mut [TurningPoint],
    campaign: &TrialPool<'_>,
    journal: &mut TrialJournal,
    mut store: impl FnMut() -> io::Result<MappedFile>,
) -> Result<(), ScanError> {
    for _ in 0..ROUNDS {
        if shutdown::is_over() || spans.iter().all(|span| span.bad - span.good <= 1) {
            return Ok(());
        }
        let moments: Vec<Vec<u64>> = spans.iter().map(|span| steps(*span)).collect();
        let (versions, found) = versions_at(recording, &moments, store()?)?;
        let image = |moment: u64, version| {
            let promise = campaign.recovery.promise_at(moment);
            TrialImage { version, patches: &[], promise }
        };
        let jobs: Vec<TrialImage<'_>> = found.iter().map(|&(moment, version)| image(moment, version)).collect();
        let campaign = TrialPool { versions: &versions, ..*campaign };
        campaign.run(&jobs, journal, &())?;
        let is_bad = |moment: u64, mode: FailureMode| {
            let at = found.partition_point(|(m, _)| *m < moment);
            let (_, version) = found.get(at).filter(|(m, _)| *m == moment)?;
            let tried = journal.get(&image(moment, *version).name(&versions))?;
            Some(tried.outcome != *campaign.usual && FailureMode::from(&tried.outcome) == mode)
        };
        let before: Vec<TurningPoint> = spans.to_vec();
        for (span, moments) in spans.iter_mut().zip(&moments) {
            for &moment in moments {
                match is_bad(moment, span.mode) {
                    Some(true) => {
                        span.bad = moment;
                        break;
                    }
                    Some(false) => span.good = moment,
                    None => {}
                }
            }
        }
        if spans == before {
            return Ok(());
        }
    }
    Ok(())
}

/// Moments within a span, evenly spread.
fn steps(span: TurningPoint) -> Vec<u64> {
    let width = span.bad - span.good;
    let count = STEPS.min(width.saturating_sub(1));
    (1..=count).map(|i| span.good + width * i / (count + 1)).filter(|m| (span.good + 1..span.bad).contains(m)).collect()
}

/// Finds the stores to blame in one last pass, if time allows. `closings` are the moments from which recovery works again.
pub(crate) fn blame(
    recording: &Recording,
    spans: &[TurningPoint],
    closings: &[Option<u64>],
    mode: Mode,
) -> Result<Vec<Culprit>, ScanError> {
    let mut culprits = vec![Culprit::default(); spans.len()];
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_unstable_by_key(|&i| spans[i].bad);
    let mut next = order.into_iter().peekable();
    let mut closings: Vec<(u64, usize)> = (0..).zip(closings).filter_map(|(i, at)| Some(((*at)?, i))).collect();
    closings.sort_unstable();
    let mut closings = closings.into_iter().peekable();
    let mut model = Model::new(mode);
    let mut reader = recording.read()?;
    let mut last: Option<PendingStore> = None;
    let mut last_store: Option<PendingStore> = None;
    let mut acknowledged: Option<EventPlace> = None;
    let mut clock = shutdown::ClockCheck::default();
    while (next.peek().is_some() || closings.peek().is_some())
        && let Some(event) = reader.next()?
    {
        if clock.is_due() && !shutdown::may_elaborate() {
            break;
        }
        if !event.what.is_numbered() {
            continue;
        }
        while let Some(i) = next.next_if(|&i| spans[i].bad <= event.seq) {
            let culprit = &mut culprits[i];
            culprit.store = last.filter(|store| store.seq + 1 == spans[i].bad);
            culprit.acknowledged = acknowledged.filter(|place| place.seq + 1 == spans[i].bad);
            let mut pending: Vec<PendingStore> = Vec::new();
            for line in model.pending() {
                pending.extend(line.stores().iter().map(|store| PendingStore::new(line, store)));
            }
            pending.sort_unstable_by_key(|loss| std::cmp::Reverse(loss.seq));
            culprit.pending_total = pending.len() as u64;
            pending.truncate(NAMED);
            culprit.pending = pending;
        }
        while let Some((_, i)) = closings.next_if(|&(seq, _)| seq <= event.seq) {
            culprits[i].closing = last_store.filter(|store| store.seq > spans[i].bad);
        }
        last = store_of(&event, &model);
        last_store = last.or(last_store);
        let Event { seq, thread, site, context, what } = event;
        if what.is_answer() {
            acknowledged = Some(EventPlace { seq, thread, site, context });
        }
        model.event(&event, &Unknown);
    }
    Ok(culprits)
}

/// The file and range that an event stores to.
fn store_of(event: &Event<'_>, model: &Model) -> Option<PendingStore> {
    let Event { seq, thread, site, context, .. } = *event;
    let place = |file, offset, len| {
        let line = LineId::containing(file, offset);
        PendingStore { line, seq, thread, site, context, offset, len, flushing: false, is_non_temporal: false }
    };
    match event.what {
        What::Store { addr, value, .. } | What::Rmw { addr, new: value, stored: true, .. } => {
            let mut found = None;
            model.spaces().locate(thread, addr, value.len() as u64, |part| {
                found.get_or_insert(place(part.file, part.offset, part.len as u64));
            });
            found
        }
        What::FileWrite { file, offset, data } => Some(place(file, offset, data.len() as u64)),
        What::FileZero { file, offset, len } => Some(place(file, offset, len)),
        What::FileResize { file, size } => Some(place(file, size, LINE)),
        _ => None,
    }
}
