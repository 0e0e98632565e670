//! Races as findings: both ends, what lies between them, and what to change.

use pmvet_findings::{Evidence, Finding, Frame, Place, PmRange, Role, Sources, Stack, TimelineStep, rules};

use super::engine::LocksetAnalysis;
use super::lines::Fate;
use super::lock_words::LockWords;
use super::pm_locks::LockLeftHeld;
use super::race_paths::{self, Ends, RaceGroup, RaceReader};
use super::races::{PredictedRace, RaceAccess, WindowEnd};
use super::recordings::PredictedFinding;
use crate::stacks::{Stacks, user_frame};
use rustc_hash::{FxHashMap as FastMap, FxHashSet as FastSet};

/// One finding per source line of the program that stores, with all its readers: to the user, several instructions of a
/// line are one place.
pub fn findings(outcome: &LocksetAnalysis, stacks: &mut dyn Stacks, sources: &Sources) -> Vec<PredictedFinding> {
    let mut words = LockWords::new(&outcome.takers, sources);
    let groups = race_paths::group(&outcome.races, stacks);
    let predicted = |group: RaceGroup<'_>| {
        let finding = describe(&group, stacks, &mut words)?;
        Some(PredictedFinding { by_chance: group.is_chance(), place: group.place, finding })
    };
    groups.into_iter().filter_map(predicted).collect()
}

/// Locks that a crash can leave held, each with the finding to report if it stays held.
pub type WordedLocks = Vec<(LockLeftHeld, Finding)>;

/// Describes locks, grouped by the line of the program's own code that takes them.
pub fn held_locks(all: &[LockLeftHeld], stacks: &mut dyn Stacks, sources: &Sources) -> Vec<WordedLocks> {
    let mut groups: Vec<(Option<Frame>, WordedLocks)> = Vec::new();
    for lock in all {
        let Some(finding) = held_lock(lock, stacks, sources) else { continue };
        let stack = &finding.places[0].stack;
        let at = user_frame(stack).and_then(|i| stack.get(i)).cloned();
        let is_same = |known: &Option<Frame>| match (known, &at) {
            (Some(known), Some(at)) if at.line.is_some() => (&known.file, known.line) == (&at.file, at.line),
            (known, at) => known.as_ref().map(|f| f.offset) == at.as_ref().map(|f| f.offset),
        };
        match groups.iter_mut().find(|(known, _)| is_same(known)) {
            Some((_, group)) => group.push((lock.clone(), finding)),
            None => groups.push((at, vec![(lock.clone(), finding)])),
        }
    }
    groups.into_iter().map(|(_, group)| in_turn(group)).collect()
}

/// Reorders locks so that one of each caller comes first: a function that takes locks may be called for several kinds
/// of locks.
fn in_turn(group: WordedLocks) -> WordedLocks {
    let caller = |finding: &Finding| {
        let stack = &finding.places[0].stack;
        let frame = stack.iter().skip(user_frame(stack)? + 1).find(|frame| frame.is_user())?;
        Some((frame.file.clone(), frame.line, if frame.line.is_some() { 0 } else { frame.offset }))
    };
    let mut seen: FastMap<_, usize> = FastMap::default();
    let mut turns: Vec<_> = Vec::new();
    for lock in group {
        let turn = seen.entry(caller(&lock.1)).or_default();
        *turn += 1;
        turns.push((*turn, lock));
    }
    turns.sort_by_key(|(turn, _)| *turn);
    turns.into_iter().map(|(_, lock)| lock).collect()
}

/// A lock that a crash left held and that the restart did not free.
fn held_lock(held: &LockLeftHeld, stacks: &mut dyn Stacks, sources: &Sources) -> Option<Finding> {
    let stack = stacks.stack(held.site, held.context);
    // PMDK numbers the runs of a pool and treats a lock of an earlier run as free.
    if stack.iter().filter_map(|f| f.function.as_deref()).any(|f| f.starts_with("pmemobj_")) {
        return None;
    }
    let taker = name(&stack);
    let saved = if held.flushed {
        "A flush of its cache line makes it persistent while it is held"
    } else {
        "Its cache line may be written back while it is held"
    };
    let pm = PmRange {
        file: stacks.file(held.word.file),
        offset: held.word.offset,
        len: if held.values.is_some() { 8 } else { 40 },
        object: user_frame(&stack).and_then(|i| sources.locked_at(stack.get(i)?)),
    };
    Some(Finding {
        rule: rules::LOCK_IN_PM.id(),
        severity: rules::LOCK_IN_PM.severity,
        title: format!("the lock that {taker} takes stays held after a crash"),
        places: vec![Place {
            role: Role::Lock,
            thread: Some(held.thread.0),
            pm: Some(pm.clone()),
            seq: Some(held.seq),
            label: "this lock lives in persistent memory".into(),
            stack,
        }],
        expected: "A lock in persistent memory is free again when the program starts after a crash.".into(),
        happened: format!(
            "The lock that {taker} takes is part of the pool. {saved}, so that a crash leaves it held by a thread that no \
             longer exists. The restart does not free it, and whoever needs it waits for ever."
        ),
        fix: "Set the lock to its free value when the pool is opened, before any thread can take it, or keep the lock in \
              ordinary memory."
            .into(),
        caveat: None,
        evidence: Evidence::Trace {
            timeline: vec![TimelineStep {
                seq: held.seq,
                thread: held.thread.0,
                what: "locked".into(),
                pm: Some(pm),
                at: None,
            }],
        },
        count: 1,
        fingerprint: String::new(),
        replay: None,
    })
}

/// The user's function of a stack, as it reads in a sentence.
fn name(stack: &Stack) -> String {
    let frame = user_frame(stack).or(Some(0)).and_then(|i| stack.get(i));
    match frame.and_then(Frame::short_function) {
        Some(function) => format!("`{function}`"),
        None => "code without a name".into(),
    }
}

fn describe(group: &RaceGroup<'_>, stacks: &mut dyn Stacks, words: &mut LockWords<'_>) -> Option<Finding> {
    let (RaceReader { race, ends, .. }, others) = group.readers.split_first()?;
    let (writer, reader) = (name(&ends.store), name(&ends.load));
    let others = &others[..others.len().min(MAX_READERS - 1)];
    let (cause, fix) = explain(race, ends);
    let caveat = if race.observed {
        "The load was seen between the store and its persist in this run. Whether recovery can live with the result was \
         not tried."
    } else {
        "Predicted from the locks that were held: in this run the load did not come between the store and its persist. \
         Something that leaves no trace in persistent memory, such as an atomic variable elsewhere, may keep the two apart."
    };
    let file = stacks.file(race.store.file);
    let place = |role: Role, access: &RaceAccess, stack: &Stack, label: String| Place {
        role,
        stack: stack.clone(),
        thread: Some(access.thread.0),
        pm: Some(PmRange { file: file.clone(), offset: access.offset, len: access.len, object: None }),
        seq: Some(access.seq),
        label,
    };
    let mut places = vec![
        place(Role::Store, &race.store, &ends.store, "stores the value".into()),
        place(Role::Load, &race.load, &ends.load, "another thread may read it here before it is persistent".into()),
    ];
    if let (Some(end), Some(stack)) = (race.ended_by, &ends.end) {
        let (role, label) = match race.fate {
            Fate::Overwritten => (Role::Store, "overwrites it before it is persistent"),
            _ => (Role::Fence, "only here is it persistent"),
        };
        let WindowEnd { thread, seq, .. } = end;
        places.push(Place {
            role,
            stack: stack.clone(),
            thread: Some(thread.0),
            pm: None,
            seq: Some(seq),
            label: label.into(),
        });
    }
    places.extend(others.iter().map(|other| {
        let seen = if other.race.observed { "another thread has read it here" } else { "or here," };
        place(Role::Load, &other.race.load, &other.ends.load, format!("{seen} before it is persistent"))
    }));
    let what = |fate| if fate == Fate::Overwritten { "overwritten" } else { "persisted" };
    let mut timeline = vec![(&race.store, "stored", &ends.store), (&race.load, "loaded", &ends.load)]
        .into_iter()
        .map(|(access, what, stack)| step(access.seq, access.thread.0, what, stack))
        .collect::<Vec<_>>();
    timeline.extend(race.ended_by.zip(ends.end.as_ref()).map(|(m, s)| step(m.seq, m.thread.0, what(race.fate), s)));
    timeline.sort_by_key(|step| step.seq);
    let ([store_locks, load_locks], lock_spans) = words.names([&race.store, &race.load], stacks);
    Some(Finding {
        rule: rules::PERSISTENCY_RACE.id(),
        severity: rules::PERSISTENCY_RACE.severity,
        title: format!("{} may act on what {writer} has stored but not persisted", readers(group)),
        places,
        expected: "A value is persistent before another thread can read it and act on it.".into(),
        happened: format!(
            "{writer} stores a value, and {reader} reads it in another thread. {cause} If the machine fails in between, \
             what the reader did may survive while the value it relied on is lost.{}",
            group.others(1 + others.len()),
        ),
        fix,
        caveat: Some(caveat.into()),
        evidence: Evidence::Race {
            observed: race.observed,
            by_chance: false,
            store_locks,
            load_locks,
            lock_spans,
            timeline,
        },
        count: group.count(),
        fingerprint: String::new(),
        replay: None,
    })
}

/// Readers to show in full. The others are only named.
const MAX_READERS: usize = 8;

/// The readers, for a title: one name, or two, or how many there are.
fn readers(group: &RaceGroup<'_>) -> String {
    let mut names: Vec<String> = group.readers.iter().map(|reader| name(&reader.ends.load)).collect();
    let mut seen = FastSet::default();
    names.retain(|name| seen.insert(name.clone()));
    match &names[..] {
        [] => "another thread".into(),
        [one] => one.clone(),
        [one, two] => format!("{one} or {two}"),
        [one, others @ ..] => format!("{one}, or {} other functions,", others.len()),
    }
}

/// Why nothing keeps the two apart, and what would.
fn explain(race: &PredictedRace, ends: &Ends) -> (String, String) {
    let (writer, reader) = (name(&ends.store), name(&ends.load));
    let persister = ends.end.as_ref().map_or_else(|| writer.clone(), name);
    let given_back = race.store.locks.iter().any(|lock| !race.kept.contains(lock) && race.load.locks.contains(lock));
    if race.fate == Fate::Persisted && ends.end.as_ref().is_some_and(commits) {
        return explain_commit(race, (&writer, &reader, &persister), given_back);
    }
    let helped = format!("let {reader} flush and fence what it has read before it acts on it");
    match race.fate {
        Fate::LeftInCache => (
            "Nothing in this run makes the value persistent.".into(),
            format!("Flush and fence the value in {writer} before another thread can read it, or {helped}."),
        ),
        _ if given_back => (
            format!(
                "Both hold the same lock, but {writer} gives it back before {persister} has made the value persistent."
            ),
            format!("Flush and fence the value in {writer} before the lock is given back."),
        ),
        Fate::Overwritten => (
            format!(
                "The value is overwritten by {persister} without having been persistent, and no lock keeps the reader out until then."
            ),
            format!("Flush and fence the value in {writer} before another thread can read it, or {helped}."),
        ),
        Fate::Persisted if race.kept.is_empty() => (
            format!("No lock keeps the reader out until {persister} has made the value persistent."),
            format!(
                "Flush and fence the value before it is published, hold a lock around the store and its persist in {writer} \
                 and around the load, or {helped}."
            ),
        ),
        Fate::Persisted if race.load.locks.is_empty() => (
            format!("{writer} holds a lock until the value is persistent, but {reader} does not take that lock."),
            format!("Take the lock of {writer} in {reader} before the value is used, or {helped}."),
        ),
        Fate::Persisted => (
            format!(
                "Each holds a lock, but not the same one: the reader in {reader} does not wait for the lock that the writer in {writer} \
                 keeps until the value is persistent."
            ),
            format!("Guard the value by one lock, which both take, or {helped}."),
        ),
    }
}

/// The same for a value that a transaction makes persistent. It does not help if the reader flushes it: recovery takes back what is not
/// committed.
fn explain_commit(
    race: &PredictedRace,
    (writer, reader, persister): (&str, &str, &str),
    given_back: bool,
) -> (String, String) {
    if given_back {
        (
            format!(
                "Both hold the same lock, but {writer} gives it back before {persister} has committed the transaction."
            ),
            "Hold the lock until the transaction is committed, as `pmemobj_tx_lock` does.".into(),
        )
    } else if race.kept.is_empty() {
        (
            format!("No lock keeps the reader out until {persister} has committed the transaction."),
            "Hold a lock until the transaction is committed, as `pmemobj_tx_lock` does, and take it for the load."
                .into(),
        )
    } else if race.load.locks.is_empty() {
        (
            format!("{writer} holds a lock until the transaction is committed, but {reader} does not take that lock."),
            format!("Take the lock of {writer} in {reader} before the value is used."),
        )
    } else {
        (
            format!(
                "Each holds a lock, but not the same one: the reader in {reader} does not wait for the lock that the writer in \
                 {writer} keeps until the transaction is committed."
            ),
            "Guard the value by one lock, which both take.".into(),
        )
    }
}

/// Whether the value becomes persistent because libpmemobj commits a transaction.
fn commits(end: &Stack) -> bool {
    let mut functions = end.iter().filter_map(|frame| frame.function.as_deref());
    functions.any(|function| function == "pmemobj_tx_commit" || function == "pmemobj_tx_end")
}

fn step(seq: u64, thread: u32, what: &str, stack: &Stack) -> TimelineStep {
    let at = user_frame(stack).and_then(|i| stack.get(i)).cloned();
    TimelineStep { seq, thread, what: what.into(), pm: None, at }
}
