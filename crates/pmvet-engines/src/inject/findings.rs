//! What fault injection found, in words.

use pmvet_findings::finding::CrashImage;
use pmvet_findings::{Evidence, Finding, Frame, Outcome, Place, PmRange, Role, Severity};
use pmvet_model::states::Reordering;

use super::points::FailurePoint;
use super::refine::{Culprit, EventPlace};
use super::scan::{FailurePointScan, PendingStore, ReorderedState};
use crate::causes::early_stores::Decisive;
use crate::causes::unflushed::{UnflushedStore, UnflushedStores};
use crate::causes::windows::{FailureMode, PointVerdict, Window, windows};
use crate::causes::words::{
    self, FindingText, expectation, function_of, rule_of, store_place, too_early, trouble, where_of,
};
use crate::causes::wrappers::Wrappers;
use crate::causes::{Cause, EARLY, Failures, Merged, SEVERAL, causes};
use crate::lab::evidence::{StackLookup, UsualRecovery, recovered};
use crate::lab::{TrialJournal, Tried};
use crate::stacks::{self, Stacks};

/// How many lost or pending stores one finding names.
const NAMED: usize = 8;

/// The verdict on each failure point.
pub(crate) fn verdicts(scan: &FailurePointScan, journal: &TrialJournal, usual: &Outcome) -> Vec<PointVerdict> {
    let verdict = |point: &FailurePoint| match journal.get(&point.image().name(&scan.versions)) {
        Some(tried) if tried.outcome == *usual => PointVerdict::Good,
        Some(_) => PointVerdict::Bad,
        None => PointVerdict::NotTried,
    };
    scan.points.iter().map(verdict).collect()
}

/// Windows of failing points, and what the recovery did at the first point of each.
pub(crate) fn failures<'a>(
    scan: &FailurePointScan,
    journal: &'a TrialJournal,
    usual: &Outcome,
) -> Vec<(Window, &'a Tried)> {
    let tried = |point: usize| journal.get(&scan.points[point].image().name(&scan.versions));
    let mode = |point: usize| tried(point).filter(|t| t.outcome != *usual).map(|t| FailureMode::from(&t.outcome));
    let windows = windows(&verdicts(scan, journal, usual)).into_iter().flat_map(|window| window.by_mode(mode));
    windows.filter_map(|window| Some((window, tried(window.first)?))).collect()
}

/// Whether a fatal reordering only prolongs a window of failures. The store that it loses closed the window and comes after the last
/// failure point, so nothing can have made it persistent yet. Only the store that opened the window is to blame.
pub(crate) fn prolongs_a_window(
    scan: &FailurePointScan,
    journal: &TrialJournal,
    usual: &Outcome,
    state: &ReorderedState,
    outcome: &Outcome,
) -> bool {
    let Some(previous) = state.point.checked_sub(1).map(|point| &scan.points[point]) else { return false };
    let fails_alike =
        |tried: &Tried| tried.outcome != *usual && FailureMode::from(&tried.outcome) == FailureMode::from(outcome);
    journal.get(&previous.image().name(&scan.versions)).is_some_and(fails_alike)
        && state.lost.iter().any(|lost| lost.seq >= previous.seq)
}

/// A finding for each window with a cause of its own; and for each window its causes, with the position of its finding if it was the
/// first of its cause.
pub(crate) fn of_windows(
    scan: &FailurePointScan,
    found: &[(Window, &Tried, Culprit)],
    setting: &UsualRecovery,
    names: &mut StackLookup<'_>,
) -> (Vec<Finding>, Vec<(Failures, Option<usize>)>) {
    let mut merged = Merged::default();
    let mut all = Vec::new();
    let wrappers = match found {
        [] => Wrappers::default(),
        _ => Wrappers::new(&scan.targets, names.stacks),
    };
    for (window, tried, culprit) in found {
        let first = &scan.points[window.first];
        let mut places = window_places(scan, window, tried, culprit, names);
        blame_caller(&mut places, &wrappers);
        let causes = causes(&places, &tried.outcome);
        let count = window.bad as u64;
        let failures = Failures { seq: first.seq, causes: causes.clone(), count, finding: None };
        let new = merged.add(causes, count, || {
            let FindingText { title, happened, fix } = if culprit.acknowledged.is_some() {
                acknowledged_early(&places, window, &tried.outcome)
            } else if window.follows_another() {
                unfinished(&places, window, &tried.outcome)
            } else {
                fatal_window(&places, window, &tried.outcome)
            };
            places.extend(recovery_place(tried, names));
            Finding {
                rule: rule_of(&tried.outcome, pmvet_findings::rules::RECOVERY_FAILURE),
                severity: Severity::Error,
                title,
                expected: expectation("After a crash at any moment", &tried.outcome, &setting.usual),
                happened,
                fix,
                caveat: None,
                evidence: evidence(
                    tried,
                    setting,
                    culprit,
                    first.seq,
                    &[],
                    "every store so far is in PM".into(),
                    names,
                ),
                places,
                count: 0,
                fingerprint: String::new(),
                replay: None,
            }
        });
        all.push((failures, new));
    }
    (merged.findings, all)
}

/// The places of a window of failures, the one to blame first.
fn window_places(
    scan: &FailurePointScan,
    window: &Window,
    tried: &Tried,
    culprit: &Culprit,
    names: &mut StackLookup<'_>,
) -> Vec<Place> {
    let first = &scan.points[window.first];
    let mut places = Vec::new();
    if let Some(acknowledged) = &culprit.acknowledged {
        if let Some(late) = &culprit.closing {
            places.push(place_of(Role::Store, late, words::TOO_LATE, names.stacks));
        }
        let EventPlace { seq, thread, site, context } = *acknowledged;
        places.push(Place {
            role: Role::SideEffect,
            stack: names.stacks.stack(site, context),
            thread: Some(thread.0),
            pm: None,
            seq: Some(seq),
            label: format!("acknowledged here; after a crash from here on recovery {}", tried.outcome),
        });
        return places;
    }
    if let Some(after) = window.after.filter(|_| window.follows_another()) {
        let label = format!("until this is done, recovery {}", tried.outcome);
        places.push(point_place(Role::FailurePoint, &scan.points[after], label, names.stacks));
        let since = "since here; before, it fails in another way";
        places.push(point_place(Role::LastGood, first, since.into(), names.stacks));
        return places;
    }
    if let Some(store) = &culprit.store {
        places.push(place_of(Role::Store, store, words::FATAL_AFTER, names.stacks));
    }
    let label = format!("a crash before this: recovery {}", tried.outcome);
    places.push(point_place(Role::FailurePoint, first, label, names.stacks));
    if let Some(after) = window.after {
        let label = match window.fails_on {
            true => "from here on recovery fails in another way",
            false => "from here on recovery works again",
        };
        places.push(point_place(Role::NextGood, &scan.points[after], label.into(), names.stacks));
    }
    places
}

/// Blames the caller if a function that only stores for its caller opens a window that another call closes.
fn blame_caller(places: &mut [Place], wrappers: &Wrappers) {
    let closing = places.iter().find(|place| place.role == Role::NextGood).map(|place| place.stack.clone());
    let Some(closing) = closing.filter(|_| places[0].role == Role::Store) else { return };
    let opening = places.iter_mut().filter(|place| matches!(place.role, Role::Store | Role::FailurePoint));
    opening.for_each(|place| wrappers.mark(&mut place.stack, &closing));
}

/// A window that opens with a store.
fn fatal_window(places: &[Place], window: &Window, outcome: &Outcome) -> FindingText {
    let where_ = where_of(&places[0]);
    let library = places[0].library_call().map(str::to_owned);
    let inside = library.as_ref().map_or(String::new(), |name| format!(", inside `{name}`"));
    let until = match places.iter().find(|p| p.role == Role::NextGood).map(where_of) {
        Some(next) if next == where_ => "There".to_owned(),
        Some(next) => format!("From there until the program is {next}"),
        None => "From there until the end of the run".into(),
    };
    FindingText {
        title: format!("{} after a crash in {}{inside}", trouble(outcome), function_of(&places[0])),
        happened: format!(
            "A crash {where_}{inside} leaves a state that recovery {}: it {outcome}. {until}, {}.",
            unhandled(outcome),
            failing_points(window)
        ),
        fix: match library.filter(|name| name.contains("create")) {
            Some(create) => format!(
                "Until `{create}` returns, the file is there and cannot be opened. Make it under another name and rename it when it \
                 is complete, or let recovery begin anew if it finds it unfinished."
            ),
            None if words::is_torn(outcome) => {
                format!("An operation must be there as a whole or not at all: {}.", words::AT_ONCE)
            }
            None => repair(places, &where_),
        },
    }
}

/// A window that opens with an answer: what the answer promises has not been stored yet.
fn acknowledged_early(places: &[Place], window: &Window, outcome: &Outcome) -> FindingText {
    let answer = places.iter().find(|p| p.role == Role::SideEffect).unwrap_or(&places[0]);
    let (answered, late) = (where_of(answer), places.first().filter(|p| p.role == Role::Store).map(where_of));
    FindingText {
        title: match late {
            Some(_) => format!("{}: what {} stores comes after the answer", trouble(outcome), function_of(&places[0])),
            None => format!("{}: nothing is stored before the answer in {}", trouble(outcome), function_of(answer)),
        },
        happened: match &late {
            Some(late) => format!(
                "The operation is acknowledged {answered}, and what it takes is stored only {late}. After a crash in between, \
                 recovery {outcome}; {}.",
                failing_points(window)
            ),
            None => format!(
                "The operation is acknowledged {answered}, and what it takes is never stored while the program runs. After a crash, \
                 recovery {outcome}; {}.",
                failing_points(window)
            ),
        },
        fix: match late {
            Some(late) => format!(
                "Store {} and make it persistent, as it is done {late}, before the operation is acknowledged {answered}.",
                Finding::DATA
            ),
            None => format!(
                "Store what the operation changes, and make it persistent, before it is acknowledged {answered}."
            ),
        },
    }
}

/// A window that opens where another one closes: something that recovery relies on has not been done yet.
fn unfinished(places: &[Place], window: &Window, outcome: &Outcome) -> FindingText {
    let (done, since) = (where_of(&places[0]), where_of(&places[1]));
    let what = match places[0].library_call() {
        Some(library) => format!("`{library}` in {}", function_of(&places[0])),
        None => function_of(&places[0]),
    };
    FindingText {
        title: format!("{} after a crash before {what} is done", trouble(outcome)),
        happened: format!(
            "From the moment that the program is {since} until it is {done}, a crash leaves a state that recovery {}: it \
             {outcome}. There, {}. What recovery relies on has not been stored yet.",
            unhandled(outcome),
            failing_points(window)
        ),
        fix: format!(
            "Make recovery cope without what is stored {done}, for example by doing that if it finds it undone; or let the file \
             count as complete only when that is done, too."
        ),
    }
}

/// How a recovery fails to handle a state.
fn unhandled(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Content { .. } => "accepts, though it must not",
        _ => "cannot handle",
    }
}

fn failing_points(window: &Window) -> String {
    match window.bad {
        1 => "one failure point fails".to_owned(),
        n => format!("{n} failure points fail one after the other"),
    }
}

/// What to change, given the store that opens a window of failures and the place that closes it.
fn repair(places: &[Place], opened: &str) -> String {
    let log = "persist a log entry that covers these stores before the first of them. If recovery is meant to repair such a state, \
               the fault is there";
    let closed = places.iter().find(|p| p.role == Role::NextGood).map(where_of).filter(|next| next != opened);
    match closed {
        Some(next) if places[0].role == Role::Store => format!(
            "Every state between the store of {} {opened} and what is done {next} must be one that recovery can handle: write and \
             persist what comes in between first, and {} last; or {log}.",
            Finding::DATA,
            Finding::DATA
        ),
        _ => format!(
            "Make every state between these lines one that recovery can handle: write and persist new data first and publish \
             it with one last store of at most 8 bytes, or {log}."
        ),
    }
}

/// A finding for each store whose loss is fatal, except for those that `known` tells of: if several are lost together, one that is
/// fatal alone is to blame.
pub(crate) fn of_states(
    scan: &FailurePointScan,
    found: &[(&ReorderedState, &Tried, Option<u64>, Option<Decisive>)],
    known: &[Finding],
    setting: &UsualRecovery,
    names: &mut StackLookup<'_>,
) -> Vec<Finding> {
    let known: Vec<&Place> = known.iter().filter_map(|finding| finding.places.first()).collect();
    // A function that never flushes what it stores may also lack a fence elsewhere.
    let is_known = |loss: &PendingStore, place: &Place| {
        let line = |place: &Place| place.frame().and_then(|frame| frame.line);
        let same = known.iter().filter(|known| function_name(known) == function_name(place));
        same.into_iter().any(|known| !loss.flushing || line(known) == line(place))
    };
    let mut merged = Merged::default();
    let mut unflushed = UnflushedStores::default();
    let is_before = |(.., decisive): &(_, _, _, Option<Decisive>)| matches!(decisive, Some(Decisive::Before(_)));
    let wrappers = match found.iter().any(is_before) {
        true => Wrappers::new(&scan.targets, names.stacks),
        false => Wrappers::default(),
    };
    let mut found = found.to_vec();
    // Whole stores that are fatal alone are blamed first.
    found.sort_by_key(|(state, ..)| match state.choice {
        Reordering::Behind(_) | Reordering::Partial(..) => 0,
        Reordering::Torn(..) => 1,
        Reordering::Ahead(_) | Reordering::Several(..) => 2,
    });
    for (state, tried, needed, decisive) in found {
        let torn = state.torn();
        let decisive = decisive.filter(|_| torn.is_none());
        let point = &scan.points[state.point];
        let mut place = |loss: &PendingStore| place_of(Role::Store, loss, &lost_label(loss), names.stacks);
        let cause = |place: &Place| Cause::at_place(place, &tried.outcome);
        let is_to_blame = |loss: &PendingStore, place: &Place| {
            is_known(loss, place) || cause(place).is_some_and(|cause| merged.knows(&cause))
        };
        let Some(latest) = state.last_needed(needed) else { continue };
        let last = torn.or_else(|| state.lost.iter().find(|loss| is_to_blame(loss, &place(loss)))).unwrap_or(latest);
        let lost = place(last);
        let early = decisive.and_then(|decisive| decisive.blamed(last.seq));
        if is_known(last, &lost) {
            continue;
        }
        let blamed = match (torn, early) {
            (Some(torn), _) => place_of(Role::Store, torn, words::TORN, names.stacks),
            (_, Some(early)) => store_place(&early, words::TOO_EARLY, names.stacks),
            _ => lost,
        };
        // Only the store counts as the cause, lost or too early, wherever the crash comes.
        let mut causes = Vec::from_iter(cause(&blamed));
        // One missing flush, however many lines of an object wait for it.
        if torn.is_none() && early.is_none() && !last.flushing && !last.is_non_temporal {
            let function = function_name(&blamed);
            let store = UnflushedStore { line: last.line, seq: last.seq };
            causes.extend(unflushed.beside(function.as_deref(), store));
            cause(&blamed).into_iter().for_each(|cause| unflushed.add(function.as_deref(), store, cause));
        }
        // One missing fence, however many lines wait for it.
        if let Some(Decisive::Later(later)) = decisive.filter(|_| last.flushing) {
            causes.extend(cause(&store_place(&later, words::LATER, names.stacks)));
        }
        let gone = if torn.is_some() { "torn" } else { "lost" };
        let label = format!("a crash before this, with that store {gone}: recovery {}", tried.outcome);
        let mut places = vec![blamed];
        match decisive {
            Some(Decisive::Together(_)) if early.is_some() => {
                places[0].label = words::BELONGS_TO.into();
                places.push(place_of(Role::Store, last, &lost_label(last), names.stacks));
            }
            Some(Decisive::Together(store)) => places.push(store_place(&store, words::BELONGS_TO, names.stacks)),
            Some(Decisive::Early(_)) => {
                places.push(place_of(Role::Store, last, words::LOST_AFTER, names.stacks));
            }
            Some(Decisive::Before(store)) => places.push(store_place(&store, words::BEFORE, names.stacks)),
            Some(Decisive::Later(later)) => places.push(store_place(&later, words::LATER, names.stacks)),
            None => {}
        }
        // A function that only stored for its caller, before the lost store was made, was called too early.
        if let Some(Decisive::Before(_)) = decisive {
            let (lost, before) = places.split_at_mut(1);
            before.iter_mut().for_each(|before| wrappers.mark(&mut before.stack, &lost[0].stack));
        }
        places.push(point_place(Role::FailurePoint, point, label, names.stacks));
        merged.add(causes, 1, || {
            let (store, crash) = (where_of(&places[0]), where_of(&places[places.len() - 1]));
            let FindingText { title, happened, fix } = match decisive {
                _ if torn.is_some() => words::torn(&places[0], &crash, &tried.outcome),
                Some(Decisive::Early(_)) => too_early(&places[0], &places[1], &crash, &tried.outcome),
                Some(Decisive::Together(_)) => words::together(&places[0], &places[1], &crash, &tried.outcome),
                _ => FindingText {
                    title: format!("{} if a store in {} is lost", trouble(&tried.outcome), function_of(&places[0])),
                    happened: format!(
                        "Nothing forces the store {store} into PM before the program goes on to where a crash comes {crash}. \
                         If the crash loses it, recovery {}.",
                        tried.outcome
                    ),
                    fix: progress(last).fix(&store, &words::before_later(&places), &words::or_after(&places)),
                },
            };
            places.extend(recovery_place(tried, names));
            Finding {
                rule: rule_of(&tried.outcome, pmvet_findings::rules::REORDERED_CRASH),
                severity: Severity::Error,
                title,
                expected: expectation(
                    "Whatever the processor has written back by the time of a crash",
                    &tried.outcome,
                    &setting.usual,
                ),
                happened,
                fix,
                caveat: None,
                evidence: evidence(tried, setting, &Culprit::default(), point.seq, &state.lost, choice(state), names),
                places,
                count: 0,
                fingerprint: String::new(),
                replay: None,
            }
        });
    }
    merged.findings
}

fn progress(loss: &PendingStore) -> words::Progress {
    words::Progress::new(loss.flushing, loss.is_non_temporal)
}

fn lost_label(loss: &PendingStore) -> String {
    progress(loss).label("this store")
}

fn choice(state: &ReorderedState) -> String {
    match state.choice {
        Reordering::Behind(_) => "one cache line has not been written back, everything else has".into(),
        Reordering::Ahead(_) => EARLY.into(),
        Reordering::Several(_, lines) => format!("{} {SEVERAL}", lines.count_ones()),
        Reordering::Partial(_, kept) => format!("one cache line was written back after {kept} of its pending stores"),
        Reordering::Torn(..) => "one cache line was written back in the middle of a store".into(),
    }
}

/// The user's function that a finding is about.
fn function_name(place: &Place) -> Option<String> {
    place.frame()?.function.clone()
}

fn place_of(role: Role, loss: &PendingStore, label: &str, stacks: &mut dyn Stacks) -> Place {
    Place {
        role,
        stack: stacks.stack(loss.site, loss.context),
        thread: Some(loss.thread.0),
        pm: Some(PmRange { file: stacks.file(loss.line.file), offset: loss.offset, len: loss.len, object: None }),
        seq: Some(loss.seq),
        label: label.into(),
    }
}

fn point_place(role: Role, point: &FailurePoint, label: String, stacks: &mut dyn Stacks) -> Place {
    let stack = stacks.stack(point.site, point.context);
    Place { role, stack, thread: Some(point.thread.0), pm: None, seq: Some(point.seq), label }
}

fn recovery_place(tried: &Tried, names: &mut StackLookup<'_>) -> Option<Place> {
    stacks::recovery_place(&names.natives.stack(&tried.stack), &tried.outcome)
}

fn evidence(
    tried: &Tried,
    setting: &UsualRecovery,
    culprit: &Culprit,
    seq: u64,
    lost: &[PendingStore],
    choice: String,
    names: &mut StackLookup<'_>,
) -> Evidence {
    let mut name = |losses: &[PendingStore], label: &str| -> Vec<Place> {
        losses.iter().take(NAMED).map(|loss| place_of(Role::Store, loss, label, names.stacks)).collect()
    };
    let unpersisted = name(&culprit.pending, "not yet forced into PM");
    let lost = name(lost, "lost in the crash");
    let stack: Vec<Frame> = names.natives.stack(&tried.stack);
    Evidence::Crash {
        image: CrashImage {
            seq,
            unpersisted,
            unpersisted_total: culprit.pending_total,
            lost,
            choice,
            hash: tried.image.clone(),
            diff: Vec::new(),
        },
        recovery: recovered(tried, setting, stack),
        timeline: Vec::new(),
    }
}

/// The evidence for a store that is never made persistent and whose loss recovery does not survive.
pub(crate) fn witnessed(
    tried: &Tried,
    setting: &UsualRecovery,
    scan: &FailurePointScan,
    timeline: Vec<pmvet_findings::TimelineStep>,
    names: &mut StackLookup<'_>,
) -> Evidence {
    let seq = scan.points.last().map_or(0, |point| point.seq);
    let choice = "the run has ended; this store is lost, and what was stored to its cache line later".to_owned();
    match evidence(tried, setting, &Culprit::default(), seq, &[], choice, names) {
        Evidence::Crash { image, recovery, .. } => Evidence::Crash { image, recovery, timeline },
        other => other,
    }
}
