//! Explains findings about crashes by stores that escape their transaction.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use pmvet_findings::{Evidence, Finding, Frame, Outcome, Place, Role, Severity, rules};

use super::tracker::{Escape, TransactionFacts};
use super::words;
use crate::account::{Account, account};
use crate::causes::words::{function_of, where_of};
use crate::stacks::{Owner, Stacks, owner, subject};
use crate::timeline::step::range;

/// One line of the program.
type SourceLine = (Option<String>, Option<PathBuf>, Option<u32>, u64);

/// The lines of the program whose stores escape their transactions, and the pools.
#[derive(Debug, Default)]
pub struct EscapingLines {
    lines: HashMap<SourceLine, EscapingLine>,
    /// Some of the stores, each with the range of crashes that find its transaction open.
    open: Vec<(u64, u64, Place)>,
    pools: HashSet<PathBuf>,
    has_transactions: bool,
}

/// A line of the program whose stores escape.
#[derive(Debug, Clone)]
struct EscapingLine {
    escape: Escape,
    /// All of them are made persistent by hand.
    persisted: bool,
    /// Description of the part of the store that is covered.
    part: Option<String>,
}

impl EscapingLines {
    /// Collects the stores that escaped in a run, without those of libraries.
    pub fn new(facts: &TransactionFacts, stacks: &mut dyn Stacks) -> Self {
        let (mut lines, mut open) = (HashMap::new(), Vec::new());
        for store in &facts.escaped {
            let stack = stacks.stack(store.place.site, store.place.context);
            if account(&stack) == Account::User {
                let known = lines.entry(line_of(subject(&stack))).or_insert_with(|| EscapingLine {
                    escape: store.escape,
                    persisted: true,
                    part: store.part.map(|part| {
                        let stack = stacks.stack(part.place.site, part.place.context);
                        let role = Role::Log;
                        let added = Place { role, stack, thread: None, pm: None, seq: None, label: String::new() };
                        words::part(&part, &where_of(&added))
                    }),
                });
                known.persisted &= store.persisted;
                let place = Place {
                    role: Role::Store,
                    stack,
                    thread: Some(store.place.thread.0),
                    pm: store.place.pm.map(|pm| range(pm, stacks)),
                    seq: Some(store.place.seq),
                    label: words::label(store.escape).into(),
                };
                open.extend(
                    store.spans.iter().map(|&(from, to)| (from, to, Place { seq: Some(from), ..place.clone() })),
                );
            }
        }
        let pools = facts.pools.iter().map(|&file| stacks.file(file)).collect();
        Self { lines, open, pools, has_transactions: facts.has_transactions }
    }

    /// The first store that escaped the transaction that is open in a crash before this event.
    fn escaped_before(&self, seq: u64, thread: Option<u32>) -> Option<&Place> {
        let of_thread = |place: &Place| thread.is_none() || place.thread == thread;
        let open = self.open.iter().filter(|(from, to, place)| *from < seq && seq <= *to && of_thread(place));
        open.min_by_key(|(from, ..)| *from).map(|(.., place)| place)
    }

    fn escape(&self, place: &Place) -> Option<&EscapingLine> {
        self.lines.get(&line_of(place.frame()?))
    }
}

fn line_of(frame: &Frame) -> SourceLine {
    let offset = if frame.has_line() { 0 } else { frame.offset };
    (frame.function.clone(), frame.file.clone(), frame.line, offset)
}

/// Notes in findings about crashes that the store to blame escapes its transaction, and adapts the advice for stores to a pool outside of
/// any transaction.
pub fn blame_transactions(findings: &mut [Finding], lines: &EscapingLines) {
    if lines.pools.is_empty() {
        return;
    }
    for finding in findings {
        blame_escaped(finding, lines);
        let Evidence::Crash { image, recovery, .. } = &finding.evidence else { continue };
        let Some(first) = finding.places.first().filter(|place| place.role == Role::Store) else { continue };
        if let Some(EscapingLine { escape, persisted, part }) = lines.escape(first) {
            if finding.rule == rules::TX_STORE_NOT_ADDED.id() {
                continue;
            }
            let here = spot(first);
            let crash = finding.places.iter().find(|place| place.role == Role::FailurePoint);
            let crash = crash.map_or_else(String::new, |place| format!(" {}", where_of(place)));
            let seen = format!(" After a crash{crash}, recovery {}.", recovery.outcome);
            // A rule about the contents says more.
            if !matches!(recovery.outcome, Outcome::Content { .. }) {
                finding.rule = rules::TX_STORE_NOT_ADDED.id();
            }
            finding.severity = Severity::Error;
            finding.title = words::title(*escape, &function_of(first));
            finding.expected = words::EXPECTED.into();
            finding.happened = words::happened(*escape, &here, *persisted, part.as_deref()) + &seen;
            finding.fix = words::fix(*escape, &here);
            finding.caveat = None;
            finding.places[0].label = words::label(*escape).into();
        } else if first.pm.as_ref().is_some_and(|pm| lines.pools.contains(&pm.file)) && !makes_pool(first) {
            let opened = where_of(first);
            let closed = finding.places.iter().find(|place| place.role == Role::NextGood).map(where_of);
            let closed = closed.filter(|closed| *closed != opened);
            // The store is in PM, and what should have come before it is not.
            let is_early = finding.rule == rules::RECOVERY_FAILURE.id() && image.lost.is_empty();
            finding.fix = match (first.stack.first().map(owner), closed) {
                (Some(Owner::PmLibrary), closed) => words::together_fix(&opened, closed, lines.has_transactions),
                (_, Some(closed)) if is_early && !lines.has_transactions => words::order_fix(&opened, &closed),
                _ => words::outside_fix(&opened, &first.stack, lines.has_transactions),
            };
        }
    }
}

/// A crash inside a transaction call, after a store has escaped that transaction: the library is not to blame. Engines blame it if there
/// was no time to try each store before the crash, or if several of them matter.
fn blame_escaped(finding: &mut Finding, lines: &EscapingLines) {
    let Evidence::Crash { image, .. } = &finding.evidence else { return };
    let Some(first) = finding.places.first().filter(|first| account(&first.stack) != Account::User) else { return };
    let in_transaction =
        first.stack.iter().filter_map(|frame| frame.function.as_deref()).any(|name| name.starts_with("pmemobj_tx_"));
    // Events of a recovery are numbered separately.
    let of_recovery = image.choice.contains("crashed too");
    if !in_transaction || of_recovery {
        return;
    }
    let Some(escaped) = lines.escaped_before(image.seq, first.thread).cloned() else { return };
    match first.role {
        Role::Store => finding.places[0] = escaped,
        Role::FailurePoint => finding.places.insert(0, escaped),
        _ => {}
    }
}

/// Whether the library is making the pool, or opening it: no transaction helps there.
fn makes_pool(place: &Place) -> bool {
    let makes = |name: &str| name.starts_with("pmemobj_create") || name.starts_with("pmemobj_open");
    place.stack.iter().filter_map(|frame| frame.function.as_deref()).any(makes)
}

/// `` `push` (queue.c:12) ``, or as much of that as is known.
fn spot(place: &Place) -> String {
    let function = function_of(place);
    match place.frame().filter(|frame| frame.has_line()) {
        Some(Frame { file: Some(file), line: Some(line), .. }) => {
            format!("{function} ({}:{line})", file.file_name().unwrap_or_default().display())
        }
        _ => function,
    }
}

/// A transaction that forgets to add an object loses all its fields, so this keeps one finding per function, the gravest.
pub fn one_per_function(findings: Vec<Finding>) -> Vec<Finding> {
    let mut known: HashMap<(Option<PathBuf>, Option<String>), usize> = HashMap::new();
    let mut left: Vec<Finding> = Vec::new();
    for finding in findings {
        let frame = finding.places.first().filter(|_| finding.rule == rules::TX_STORE_NOT_ADDED.id());
        let key = frame.and_then(Place::naming_frame).map(|frame| (frame.module.clone(), frame.function.clone()));
        match key.filter(|(_, function)| function.is_some()) {
            Some(key) => match known.get(&key) {
                Some(&at) => join(&mut left[at], finding),
                None => {
                    known.insert(key, left.len());
                    left.push(finding);
                }
            },
            None => left.push(finding),
        }
    }
    left
}

/// Further lines that a finding names.
const MOST_LINES: usize = 5;

fn join(kept: &mut Finding, mut other: Finding) {
    if other.severity > kept.severity {
        std::mem::swap(kept, &mut other);
    }
    kept.count += other.count;
    let mut seen: HashSet<SourceLine> = kept.places.iter().filter_map(Place::frame).map(line_of).collect();
    let stores = other.places.into_iter().filter(|place| place.role == Role::Store);
    let new = stores
        .filter(|place| place.label == words::label(Escape::NotAdded))
        .filter(|place| place.frame().is_some_and(|frame| seen.insert(line_of(frame))));
    let new: Vec<Place> = new.take(MOST_LINES).collect();
    // New stores go before the places of the failure.
    let at = kept.places.iter().rposition(|place| place.role == Role::Store).map_or(0, |last| last + 1);
    kept.places.splice(at..at, new);
}
