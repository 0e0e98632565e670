//! From a failure point to the store that is to blame.
//!
//! Between the last good failure point and the first bad one the program made some stores. Crashes between these are tried, a few at
//! a time, until one store is left: before it recovery works, after it recovery fails.

use std::io;

use pmvet_events::event::{Event, LINE, What};
use pmvet_model::{Model, Unknown};
use pmvet_target::crash::{Replay, VersionId, Versions};
use pmvet_target::mapped::MappedFile;
use pmvet_target::over;
use pmvet_target::recording::Recording;

use super::campaign::{Campaign, Job};
use super::journal::Journal;
use super::scan::{Loss, ScanError};
use pmvet_model::{LineId, Mode};

/// How many crashes are tried for one window in one pass over the run.
const STEPS: u64 = 12;
/// Passes over the run, at most. Each divides what is left by [`STEPS`].
const ROUNDS: usize = 6;

/// Moments between which a crash turns from harmless to fatal. A moment is before the event of its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub good: u64,
    pub bad: u64,
}

/// The store after which recovery fails.
#[derive(Debug, Clone, PartialEq)]
pub struct Culprit {
    pub span: Span,
    /// Nothing if it is not a store, or could not be found in time.
    pub store: Option<Loss>,
    /// Stores that nothing had forced into PM when the crash came: the latest of them, and how many there were.
    pub pending: Vec<Loss>,
    pub pending_total: u64,
}

/// How many pending stores a finding names.
const NAMED: usize = 8;

/// Narrows down each span as far as possible.
pub fn narrow(
    recording: &Recording,
    spans: &mut [Span],
    campaign: &Campaign<'_>,
    journal: &mut Journal,
    mut store: impl FnMut() -> io::Result<MappedFile>,
) -> Result<(), ScanError> {
    for _ in 0..ROUNDS {
        if over::is_over() || spans.iter().all(|span| span.bad - span.good <= 1) {
            return Ok(());
        }
        let moments: Vec<Vec<u64>> = spans.iter().map(|span| steps(*span)).collect();
        let (versions, found) = versions_at(recording, &moments, store()?)?;
        let jobs: Vec<Job<'_>> = found.iter().map(|(_, version)| Job { version: *version, patches: &[] }).collect();
        let campaign = Campaign { versions: &versions, ..*campaign };
        campaign.run(&jobs, journal, &())?;
        let is_bad = |moment: u64| {
            let at = found.partition_point(|(m, _)| *m < moment);
            let (_, version) = found.get(at).filter(|(m, _)| *m == moment)?;
            let tried = journal.get(&Job { version: *version, patches: &[] }.image(&versions))?;
            Some(tried.outcome != *campaign.usual)
        };
        let before: Vec<Span> = spans.to_vec();
        for (span, moments) in spans.iter_mut().zip(&moments) {
            for &moment in moments {
                match is_bad(moment) {
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
fn steps(span: Span) -> Vec<u64> {
    let width = span.bad - span.good;
    let count = STEPS.min(width.saturating_sub(1));
    (1..=count).map(|i| span.good + width * i / (count + 1)).filter(|m| (span.good + 1..span.bad).contains(m)).collect()
}

/// The content of PM at some moments, sorted by moment. The later ones are missing if all is over before.
pub fn versions_at(
    recording: &Recording,
    moments: &[Vec<u64>],
    store: MappedFile,
) -> Result<(Versions, Vec<(u64, VersionId)>), ScanError> {
    let mut wanted: Vec<u64> = moments.iter().flatten().copied().collect();
    wanted.sort_unstable();
    wanted.dedup();
    let (mut versions, mut found) = (Versions::new(store), Vec::with_capacity(wanted.len()));
    let mut replay = Replay::new(recording);
    let mut next = wanted.iter().copied().peekable();
    let mut reader = recording.read()?;
    let mut now = over::Now::default();
    while next.peek().is_some()
        && let Some(event) = reader.next()?
    {
        if now.and_then() && over::is_over() {
            return Ok((versions, found));
        }
        if !event.what.is_numbered() {
            continue;
        }
        while let Some(moment) = next.next_if(|moment| *moment <= event.seq) {
            found.push((moment, versions.take(&mut replay)?.0));
        }
        replay.apply(&event)?;
    }
    // What is left comes after the last event.
    for moment in next {
        found.push((moment, versions.take(&mut replay)?.0));
    }
    Ok((versions, found))
}

/// The content of PM before the event with this number, or at the end.
pub fn version_at(
    recording: &Recording,
    moment: Option<u64>,
    store: MappedFile,
) -> Result<(Versions, VersionId), ScanError> {
    let moment = moment.unwrap_or(u64::MAX);
    let (versions, found) = versions_at(recording, &[vec![moment]], store)?;
    match found.first() {
        Some(&(_, version)) => Ok((versions, version)),
        None => Err(io::Error::from(io::ErrorKind::Interrupted).into()),
    }
}

/// Names the stores to blame, in one last pass, as far as there is time.
pub fn blame(recording: &Recording, spans: &[Span], mode: Mode) -> Result<Vec<Culprit>, ScanError> {
    let mut culprits: Vec<Culprit> =
        spans.iter().map(|&span| Culprit { span, store: None, pending: Vec::new(), pending_total: 0 }).collect();
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_unstable_by_key(|&i| spans[i].bad);
    let mut next = order.into_iter().peekable();
    let mut model = Model::new(mode);
    let mut reader = recording.read()?;
    let mut last: Option<Loss> = None;
    let mut now = over::Now::default();
    while next.peek().is_some()
        && let Some(event) = reader.next()?
    {
        if now.and_then() && !over::may_elaborate() {
            break;
        }
        if !event.what.is_numbered() {
            continue;
        }
        while let Some(i) = next.next_if(|&i| spans[i].bad <= event.seq) {
            let culprit = &mut culprits[i];
            culprit.store = last.filter(|store| store.seq + 1 == spans[i].bad);
            let mut pending: Vec<Loss> = Vec::new();
            for line in model.pending() {
                pending.extend(line.stores().iter().map(|store| Loss::new(line, store)));
            }
            pending.sort_unstable_by_key(|loss| std::cmp::Reverse(loss.seq));
            culprit.pending_total = pending.len() as u64;
            pending.truncate(NAMED);
            culprit.pending = pending;
        }
        last = store_of(&event, &model);
        model.event(&event, &Unknown);
    }
    Ok(culprits)
}

/// Where in which file an event stores to.
fn store_of(event: &Event<'_>, model: &Model) -> Option<Loss> {
    let Event { seq, thread, site, context, .. } = *event;
    let place = |file, offset, len| {
        let line = LineId::of(file, offset);
        Loss { line, seq, thread, site, context, offset, len, flushing: false }
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
