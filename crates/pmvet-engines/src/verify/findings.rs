//! What the search found, in words: which loads could see something else, what they saw, and what would prevent it.

use std::collections::HashMap;

use pmvet_events::{ContextId, SiteId};
use pmvet_findings::finding::CrashImage;
use pmvet_findings::{
    Evidence, Finding, Frame, Outcome, Place, PmRange, Recovery, Role, Severity, TimelineStep, rules,
};
use pmvet_target::crash::Patch;
use pmvet_target::sandbox::RawFrame;

use super::broken_states::{BrokenState, BrokenStates};
use super::campaign::FailedExecution;
use super::explore::{Feasible, Split, state_of, walk};
use super::line::{Uncertain, Writer};
use super::scan::Crash;
use crate::causes::early_stores::Decisive;
use crate::causes::unflushed::{UnflushedStore, UnflushedStores};
use crate::causes::words::{self, FindingText, function_of};
use crate::lab::native::NativeStacks;
use crate::promises::PromiseId;
use crate::stacks::{self, Stacks};

/// How many loads and stores one finding names.
const NAMED: usize = 8;

/// What to do about a state that a crash leaves although it loses nothing.
const UNFINISHED_STATE: &str = "Make every state between two of its stores one that recovery can handle: write and persist new data \
    first and publish it with one last store of at most 8 bytes, or persist a log entry that covers these stores before the first of \
    them. If recovery is meant to repair such a state, the fault is there.";

/// The same, if it is a recovery that was interrupted.
const UNFINISHED_RECOVERY: &str = "Make every state between two stores of the recovery one from which it can begin again: what it relies on, \
    such as a log, must stay until all that it repairs is persistent.";

/// What all findings of a run share.
pub struct SearchSetting<'a> {
    /// The recovery's command line, as findings print it.
    pub recovery: Vec<String>,
    /// How it ends when nothing was injected.
    pub usual: Outcome,
    /// The events before which the run was crashed, in order.
    pub moments: Vec<u64>,
    /// The name of an image, as a replay knows it.
    pub image: &'a dyn Fn(&Crash, &[Patch]) -> String,
}

impl std::fmt::Debug for SearchSetting<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SearchSetting").field("recovery", &self.recovery).finish_non_exhaustive()
    }
}

/// A finding, and what is needed to rebuild its image.
#[derive(Debug)]
pub struct ReplayableFinding {
    /// In words, with its evidence.
    pub finding: Finding,
    /// The crash comes before this event of the run; nothing: at its end.
    pub before: Option<u64>,
    /// What differs in the image from the content of PM at that moment.
    pub patches: Vec<Patch>,
    /// The name of the image, as in the finding's evidence.
    pub image: String,
    /// What the image must show.
    pub promise: PromiseId,
}

/// A load of a failing execution that missed a store.
struct Missed {
    split: Split,
    /// The store that the load would have seen and did not.
    lost: Writer,
    /// The first bytes of that store survive.
    torn: bool,
}

impl Missed {
    /// Whether no flush has followed the store, which needs one.
    fn is_unflushed(&self) -> bool {
        !self.torn && !self.lost.flushing && !self.lost.is_non_temporal
    }
}

/// One finding for each cause. `decisive` has the store that decides each failure, as far as that is known.
pub fn one_per_cause(
    failures: &[FailedExecution],
    decisive: &[Option<Decisive>],
    setting: &SearchSetting<'_>,
    stacks: &mut dyn Stacks,
    natives: &mut NativeStacks,
) -> Vec<ReplayableFinding> {
    let mut described: Vec<(Vec<Missed>, &FailedExecution, Option<Decisive>)> =
        failures.iter().zip(decisive).map(|(failure, decisive)| (missed(failure), failure, *decisive)).collect();
    // What an earlier crash has lost is not to blame: the recovery coped with it when it was not interrupted.
    for (missed, failure, _) in &mut described {
        missed.retain(|m| m.lost.level == failure.crash.level);
    }
    // The simplest first: a failure that loses more may have the same cause.
    described.sort_by_key(|(missed, failure, _)| {
        (failure.crash.level, missed.len(), missed.first().map_or(0, |m| m.lost.seq))
    });
    let mut found: Vec<ReplayableFinding> = Vec::new();
    let mut causes: HashMap<(CauseKey, Option<u8>), usize> = HashMap::new();
    let losing_nothing = described.iter().filter(|(missed, ..)| missed.is_empty()).map(|(_, failure, _)| *failure);
    let mut unflushed = UnflushedStores::default();
    let states = BrokenStates::new(losing_nothing, &setting.moments);
    let mut broken: HashMap<BrokenState<'_>, usize> = HashMap::new();
    // The moment from which an interrupted recovery leaves what the next one cannot handle, although nothing is lost.
    let mut interrupted: HashMap<(u8, u8), (u64, usize)> = HashMap::new();
    for (missed, failure, decisive) in described {
        // A recovery's runs on different images are alike, so the number of an event says how far it has come.
        let of_recovery = (failure.crash.level > 0).then(|| (failure.crash.level, kind(&failure.verdict.outcome)));
        let begun = of_recovery.as_ref().and_then(|recovery| interrupted.get(recovery)).filter(|_| !missed.is_empty());
        if let Some(&(_, same)) = begun.filter(|(from, _)| *from < failure.crash.moment.before.unwrap_or(u64::MAX)) {
            found[same].finding.count += 1;
            continue;
        }
        // What is wrong with nothing lost stays wrong for a while, whatever the program does meanwhile.
        let shown = states.of(failure);
        if let Some(&same) = shown.iter().find_map(|state| broken.get(state)) {
            found[same].finding.count += 1;
            continue;
        }
        let mut note_broken = |finding: usize| {
            if missed.is_empty() {
                let now = failure.crash.moment.before.unwrap_or(u64::MAX);
                if let Some(recovery) = of_recovery {
                    let first = interrupted.entry(recovery).or_insert((now, finding));
                    *first = (*first).min((now, finding));
                }
                broken.extend(shown.iter().map(|state| (*state, finding)));
            }
        };
        // What is lost is the cause, however recovery fails. If nothing is lost, only the kinds of failure tell causes apart.
        let fails = kind(&failure.verdict.outcome);
        let kind = missed.is_empty().then_some(fails);
        let crash_place = crash_place(failure, stacks, natives);
        let mut places: Vec<Place> = missed.iter().map(|m| store_place(failure, m, stacks, natives)).collect();
        let mut keys: Vec<CauseKey> = Vec::new();
        if let Some(Decisive::Before(store)) = decisive {
            // Crashes after that store are fatal although nothing is lost: it came too early.
            let blamed = cause(&words::store_place(&store, words::BEFORE, stacks));
            if let Some(&same) = causes.get(&(blamed, Some(fails))) {
                found[same].finding.count += 1;
                continue;
            }
        }
        match decisive {
            Some(Decisive::Early(early)) => {
                let label = if missed.is_empty() { words::FATAL_AFTER } else { words::TOO_EARLY };
                places.iter_mut().for_each(|place| place.label = words::LOST_AFTER.into());
                places.insert(0, words::store_place(&early, label, stacks));
                keys.push(cause(&places[0]));
                if missed.is_empty() {
                    keys.push(cause(&crash_place));
                }
            }
            Some(Decisive::Together(other)) => {
                let mut other = words::store_place(&other, words::BELONGS_TO, stacks);
                keys.push(cause(&other));
                keys.extend(missed.iter().map(|m| cause(&oldest_place(failure, m, stacks, natives))));
                keys.extend(places.iter().map(cause));
                // The first of the two is blamed.
                if let Some(lost) = places.first_mut().filter(|lost| other.seq < lost.seq) {
                    std::mem::swap(&mut other, lost);
                }
                places.insert(places.len().min(1), other);
            }
            Some(Decisive::Later(later)) if missed.first().is_some_and(|m| m.lost.flushing) => {
                // One missing fence, however many lines wait for it.
                let later = words::store_place(&later, words::LATER, stacks);
                keys.push(cause(&later));
                keys.extend(places.iter().map(cause));
                places.insert(1, later);
            }
            _ => {
                // All stores since the last flush of a line are lost for one reason, whichever of them an execution misses.
                keys.extend(missed.iter().map(|m| cause(&oldest_place(failure, m, stacks, natives))));
                keys.extend(places.iter().map(cause));
                // One missing flush, however many lines of an object wait for it.
                for (m, place) in missed.iter().zip(&places).filter(|(m, _)| m.is_unflushed()) {
                    let Some(line) = failure.crash.lines.get(m.split.line as usize) else { continue };
                    let function = place.frame().and_then(|frame| frame.function.as_deref());
                    let store = UnflushedStore { line: line.id(), seq: m.lost.seq };
                    keys.extend(unflushed.beside(function, store));
                    unflushed.add(function, store, cause(place));
                }
                let other = match decisive {
                    Some(Decisive::Before(store)) => Some((store, words::BEFORE)),
                    Some(Decisive::Later(store)) => Some((store, words::LATER)),
                    _ => None,
                };
                if let Some((store, label)) = other {
                    places.push(words::store_place(&store, label, stacks));
                }
                if missed.is_empty() {
                    places.extend(last_store_place(failure, stacks, natives));
                    keys.extend(places.iter().map(cause));
                    keys.push(cause(&crash_place));
                    if places.is_empty() {
                        places.push(crash_place.clone());
                    }
                }
            }
        }
        if let Some(same) = keys.iter().find_map(|key| causes.get(&(key.clone(), kind)).copied()) {
            note_broken(same);
            found[same].finding.count += 1;
            continue;
        }
        note_broken(found.len());
        for key in keys {
            causes.entry((key, kind)).or_insert(found.len());
        }
        found.push(finding(failure, &missed, decisive, places, crash_place, setting, stacks, natives));
    }
    found
}

/// The loads that missed a store, the last one first: it is the nearest to the failure.
fn missed(failure: &FailedExecution) -> Vec<Missed> {
    let lines = &failure.crash.lines;
    let splits = walk(lines, &mut Feasible::new(), &failure.choice, &failure.reads);
    let mut missed: Vec<Missed> = Vec::new();
    for split in splits.into_iter().rev() {
        let Some(line) = lines.get(split.line as usize) else { continue };
        let state = state_of(line, &failure.choice, split.line);
        if state == line.newest() || missed.iter().any(|m| m.split.line == split.line) {
            continue;
        }
        if let Some((at, lost)) = lost_store(line, state, split.bytes) {
            let torn = line.content(state).is_some_and(|content| content.torn == Some(at));
            missed.push(Missed { split, lost, torn });
        }
    }
    missed
}

/// The store that a load of these bytes misses in this state, wholly or in part, and its position: the newest missing one, unless the
/// load sees the first bytes of an older one.
fn lost_store(line: &Uncertain, state: u16, bytes: u64) -> Option<(u16, Writer)> {
    let content = line.content(state)?;
    let is_missing = |i: u16| content.missing.iter().any(|lost| lost.contains(&i));
    let mut lost = (0..).zip(line.stores()).filter(|(i, store)| store.covers & bytes != 0 && is_missing(*i));
    let torn = lost.clone().next().filter(|(i, _)| content.torn == Some(*i));
    torn.or_else(|| lost.by_ref().last()).map(|(i, store)| (i, *store))
}

#[allow(clippy::too_many_arguments, reason = "all it takes to word one finding")]
fn finding(
    failure: &FailedExecution,
    missed: &[Missed],
    decisive: Option<Decisive>,
    mut places: Vec<Place>,
    crash_place: Place,
    setting: &SearchSetting<'_>,
    stacks: &mut dyn Stacks,
    natives: &mut NativeStacks,
) -> ReplayableFinding {
    let outcome = &failure.verdict.outcome;
    let crash = &failure.crash;
    let first = places[0].clone();
    places.truncate(NAMED);
    for m in missed.iter().take(NAMED) {
        places.extend(load_place(failure, m, natives));
    }
    if first.role != Role::FailurePoint {
        places.push(crash_place.clone());
    }
    let stack = natives.stack(&failure.verdict.stack);
    places.extend(stacks::recovery_place(&stack, outcome));
    let (where_, at) = (where_of(&first), where_of(&crash_place));
    let whose = if crash.level == 0 { "a crash" } else { "a crash of the recovery" };
    let trouble = words::trouble(outcome);
    let FindingText { title, happened, fix } = match (missed.first(), decisive) {
        (Some(_), Some(Decisive::Early(_))) => words::too_early(&first, &places[1], &at, outcome),
        (Some(_), Some(Decisive::Together(_))) => words::together(&first, &places[1], &at, outcome),
        (Some(m), _) if m.torn => FindingText {
            title: format!("{trouble} if a store in {} is torn", function_of(&first)),
            happened: format!(
                "The store {where_} has more than 8 bytes, so that {whose} {at} may leave a part of it in PM. A load of the recovery \
                 sees such a part, and recovery {outcome}."
            ),
            fix: fix(m, &where_, missed.len(), &places),
        },
        (Some(m), _) => FindingText {
            title: format!("{trouble} if a store in {} is lost", function_of(&first)),
            happened: format!(
                "Nothing forces the store {where_} into PM before {whose} {at}. A load of the recovery sees what was there \
                 before it, {}, and recovery {outcome}.",
                seen_instead(failure, m, stacks, natives)
            ),
            fix: fix(m, &where_, missed.len(), &places),
        },
        (None, None) if crash.moment.is_after_answer => FindingText {
            title: format!("{trouble}: the answer in {} comes too early", function_of(&first)),
            happened: format!(
                "The operation is acknowledged {at}. After {whose} right then, with every store so far in PM, recovery {outcome}."
            ),
            fix: format!(
                "Store what the operation changes, and make it persistent, before it is acknowledged {at}. If it is stored by \
                 then, recovery does not find it."
            ),
        },
        (None, _) if crash.level > 0 => FindingText {
            title: format!("{trouble} after a crash of the recovery in {}", function_of(&first)),
            happened: format!(
                "After {whose} {at}, with all that it has stored so far in PM, the next recovery {outcome}. It copes if the first one \
                 is not interrupted."
            ),
            fix: UNFINISHED_RECOVERY.into(),
        },
        (None, _) => FindingText {
            title: format!("{trouble} after a crash in {}", function_of(&first)),
            happened: format!("After {whose} {at}, with every store so far in PM, recovery {outcome}."),
            fix: UNFINISHED_STATE.into(),
        },
    };
    let patches = crash.image(&failure.choice);
    let image = (setting.image)(crash, &patches);
    let lost: Vec<Place> = missed.iter().take(NAMED).map(|m| store_place(failure, m, stacks, natives)).collect();
    let pending: usize = crash.lines.iter().map(|line| line.stores().len()).sum();
    let finding = Finding {
        rule: words::rule_of(outcome, rules::REACHABLE_FAILURE),
        severity: Severity::Error,
        title,
        expected: words::expectation(
            "Whatever the processor has written back by the time of a crash",
            outcome,
            &setting.usual,
        ),
        happened,
        fix,
        caveat: None,
        evidence: Evidence::Crash {
            image: CrashImage {
                seq: crash.moment.before.unwrap_or(0),
                unpersisted: Vec::new(),
                unpersisted_total: pending as u64,
                lost,
                choice: choice_text(failure, missed),
                hash: image.clone(),
                diff: Vec::new(),
            },
            recovery: Recovery {
                command: setting.recovery.clone(),
                outcome: outcome.clone(),
                expected: setting.usual.clone(),
                stack,
                output: failure.verdict.output.clone(),
                seconds: failure.verdict.seconds,
            },
            timeline: timeline(failure, stacks, natives),
        },
        places,
        count: 1,
        fingerprint: String::new(),
        replay: None,
    };
    ReplayableFinding { finding, before: crash.origin, patches, image, promise: crash.promise }
}

fn fix(missed: &Missed, where_: &str, lines: usize, places: &[Place]) -> String {
    let before = words::before_later(places);
    let more = if lines > 1 { " The same holds for the other stores named here." } else { "" };
    if missed.torn {
        words::torn_fix(where_) + more
    } else {
        let or = words::or_after(places) + "; or make recovery independent of whether it is there";
        progress(&missed.lost).fix(where_, &before, &or) + more
    }
}

fn progress(lost: &Writer) -> words::Progress {
    words::Progress::new(lost.flushing, lost.is_non_temporal)
}

fn choice_text(failure: &FailedExecution, missed: &[Missed]) -> String {
    let crashes = match failure.crash.level {
        0 => String::new(),
        1 => "the recovery crashed too; ".into(),
        n => format!("{n} recoveries crashed too; "),
    };
    let lost = match missed.len() {
        0 if failure.crash.level > 0 => "all that it stored is in PM".into(),
        0 => "every store so far is in PM".into(),
        1 => "one cache line that the recovery reads lacks its latest stores".into(),
        n => format!("{n} cache lines that the recovery reads lack their latest stores"),
    };
    crashes + &lost
}

/// `which is that of the store in f (a.c:3)`, or what was there before the run.
fn seen_instead(
    failure: &FailedExecution,
    missed: &Missed,
    stacks: &mut dyn Stacks,
    natives: &mut NativeStacks,
) -> String {
    let line = &failure.crash.lines[missed.split.line as usize];
    let state = state_of(line, &failure.choice, missed.split.line);
    match line.read_from(state, missed.split.bytes) {
        Some(writer) => {
            let stack = writer_stack(failure, writer, stacks, natives);
            let place = Place { role: Role::Store, stack, thread: None, pm: None, seq: None, label: String::new() };
            format!("which is what was stored {}", where_of(&place))
        }
        None => "which was persistent already".into(),
    }
}

fn store_place(
    failure: &FailedExecution,
    missed: &Missed,
    stacks: &mut dyn Stacks,
    natives: &mut NativeStacks,
) -> Place {
    let lost = &missed.lost;
    let line = &failure.crash.lines[missed.split.line as usize];
    let label = match lost.level {
        _ if missed.torn => words::TORN.into(),
        0 => progress(lost).label("this store"),
        _ => progress(lost).label("this store of the recovery"),
    };
    let stack = writer_stack(failure, lost, stacks, natives);
    let first = lost.covers.trailing_zeros();
    let pm = PmRange {
        file: stacks.file(line.id().file),
        offset: line.id().offset() + u64::from(first),
        len: u64::from(lost.covers.count_ones()),
        object: None,
    };
    // Events and threads of a recovery are numbered separately.
    let of_workload = lost.level == 0;
    let (thread, seq) = (of_workload.then_some(lost.thread.0), of_workload.then_some(lost.seq));
    Place { role: Role::Store, stack, thread, pm: Some(pm), seq, label }
}

/// The oldest pending store of the line in which a load missed a store.
fn oldest_place(
    failure: &FailedExecution,
    missed: &Missed,
    stacks: &mut dyn Stacks,
    natives: &mut NativeStacks,
) -> Place {
    let line = &failure.crash.lines[missed.split.line as usize];
    let oldest = line.stores().iter().find(|store| store.level == missed.lost.level).unwrap_or(&missed.lost);
    let oldest = Missed { split: missed.split.clone(), lost: *oldest, torn: missed.torn };
    store_place(failure, &oldest, stacks, natives)
}

fn load_place(failure: &FailedExecution, missed: &Missed, natives: &mut NativeStacks) -> Option<Place> {
    let stack = natives.stack(failure.stacks.get(missed.split.read)?);
    let label = match missed.split.classes.len() {
        2 => "this load of the recovery may see it or not".into(),
        n => format!("this load of the recovery may see any of {n} values"),
    };
    (!stack.is_empty()).then_some(Place { role: Role::Load, stack, thread: None, pm: None, seq: None, label })
}

fn crash_place(failure: &FailedExecution, stacks: &mut dyn Stacks, natives: &mut NativeStacks) -> Place {
    let moment = &failure.crash.moment;
    let whose = if failure.crash.level == 0 { "a crash" } else { "a crash of the recovery" };
    let when = if moment.is_after_answer { "after" } else { "before" };
    let label = format!("{whose} {when} this: recovery {}", failure.verdict.outcome);
    let stack = match moment.before {
        Some(_) => stack_of(failure, failure.crash.level, moment.site, moment.context, stacks, natives),
        None => vec![Frame::default()],
    };
    let thread = (failure.crash.level == 0).then_some(moment.thread.0);
    Place { role: Role::FailurePoint, stack, thread, pm: None, seq: moment.before, label }
}

/// The last store of a recovery before it crashes.
fn last_store_place(failure: &FailedExecution, stacks: &mut dyn Stacks, natives: &mut NativeStacks) -> Option<Place> {
    let (site, context) = failure.crash.moment.last_store.filter(|_| failure.crash.level > 0)?;
    let stack = stack_of(failure, failure.crash.level, site, context, stacks, natives);
    let label = "a crash after this store of the recovery is fatal".into();
    Some(Place { role: Role::Store, stack, thread: None, pm: None, seq: None, label })
}

fn writer_stack(
    failure: &FailedExecution,
    writer: &Writer,
    stacks: &mut dyn Stacks,
    natives: &mut NativeStacks,
) -> Vec<Frame> {
    stack_of(failure, writer.level, writer.site, writer.context, stacks, natives)
}

/// Never empty. Events of a recovery are numbered separately.
fn stack_of(
    failure: &FailedExecution,
    level: u8,
    site: SiteId,
    context: ContextId,
    stacks: &mut dyn Stacks,
    natives: &mut NativeStacks,
) -> Vec<Frame> {
    if level == 0 {
        return stacks.stack(site, context);
    }
    let raw = failure.crash.names.get(&(level, site, context)).map_or(&[][..], Vec::as_slice);
    let stack = natives.stack(raw);
    if stack.is_empty() { vec![Frame::default()] } else { stack }
}

/// Every load that could have seen something else, with the stores it could have seen and the one it did.
fn timeline(failure: &FailedExecution, stacks: &mut dyn Stacks, natives: &mut NativeStacks) -> Vec<TimelineStep> {
    let lines = &failure.crash.lines;
    let mut timeline = Vec::new();
    for split in walk(lines, &mut Feasible::new(), &failure.choice, &failure.reads).into_iter().take(NAMED) {
        let line = &lines[split.line as usize];
        let pm = PmRange {
            file: stacks.file(line.id().file),
            offset: line.id().offset() + u64::from(split.bytes.trailing_zeros()),
            len: u64::from(split.bytes.count_ones()),
            object: None,
        };
        for (i, class) in split.classes.iter().enumerate() {
            let writer = class.first().and_then(|&state| line.read_from(state, split.bytes));
            let what = if i == 0 { "stored (this is what the load sees)" } else { "stored (the load could see this)" };
            let at = writer.filter(|w| w.level == 0).and_then(|w| place_frame(stacks.stack(w.site, w.context)));
            let (seq, thread) = writer.map_or((0, 0), |w| (w.seq, w.thread.0));
            let what = if writer.is_none() { what.replace("stored", "persistent before") } else { what.into() };
            timeline.push(TimelineStep { seq, thread, what, pm: Some(pm.clone()), at });
        }
        let none: &[RawFrame] = &[];
        let raw = failure.stacks.get(split.read).map_or(none, Vec::as_slice);
        let seq = failure.crash.moment.before.unwrap_or(0);
        timeline.push(TimelineStep {
            seq,
            thread: 0,
            what: "loaded".into(),
            pm: Some(pm),
            at: place_frame(natives.stack(raw)),
        });
    }
    timeline
}

fn place_frame(stack: Vec<Frame>) -> Option<Frame> {
    let place = Place { role: Role::Store, stack, thread: None, pm: None, seq: None, label: String::new() };
    place.frame().cloned()
}

/// What makes two failures one finding: the user's line.
type CauseKey = (Option<String>, Option<std::path::PathBuf>, Option<u32>, u64);

fn cause(place: &Place) -> CauseKey {
    place.frame().map_or((None, None, None, 0), |frame| {
        let offset = if frame.has_line() { 0 } else { frame.offset };
        (frame.function.clone(), frame.file.clone(), frame.line, offset)
    })
}

fn kind(outcome: &Outcome) -> u8 {
    match outcome {
        Outcome::Exit { .. } => 0,
        Outcome::Signal { .. } => 1,
        Outcome::Hang { .. } => 2,
        Outcome::Oracle { .. } => 3,
        Outcome::Content { .. } => 4,
    }
}

fn where_of(place: &Place) -> String {
    match place.frame() {
        Some(frame) if frame.function.is_some() || frame.module.is_some() => format!("in {frame}"),
        _ => "at the end of the run".into(),
    }
}
