//! How findings tell of stores that made the difference, whichever engine found them.

use pmvet_findings::{Finding, Frame, Outcome, Place, PmRange, Role, Rule, RuleId, Violation};

use super::early_stores::PmStore;
use crate::stacks::Stacks;

/// The store that is blamed: it came too early, or a crash after it is fatal.
pub(crate) const TOO_EARLY: &str = "this store may be in PM too early";
pub(crate) const TOO_LATE: &str = "this store comes after the answer that promises it";
pub(crate) const FATAL_AFTER: &str = "a crash after this store is fatal";
/// Stores that made a difference, beside the one that is blamed.
pub(crate) const LOST_AFTER: &str = "this one, made after it, may be lost";
pub(crate) const LATER: &str = "this store, made after it, may be in PM first";
pub(crate) const BEFORE: &str = "this store is in PM already; without it, recovery would cope";

pub(crate) const BELONGS_TO: &str = "recovery needs this store, too, or neither of them";

/// A store as a place of a finding.
pub(crate) fn store_place(store: &PmStore, label: &str, stacks: &mut dyn Stacks) -> Place {
    Place {
        role: Role::Store,
        stack: stacks.stack(store.site, store.context),
        thread: Some(store.thread.0),
        pm: Some(PmRange { file: stacks.file(store.file), offset: store.offset, len: store.len, object: None }),
        seq: Some(store.seq),
        label: label.into(),
    }
}

/// What a finding says.
pub(crate) struct FindingText {
    pub(crate) title: String,
    pub(crate) happened: String,
    pub(crate) fix: String,
}

/// What is wrong after a crash, as the beginning of a title.
pub(crate) fn trouble(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Content { violation, .. } => violation.title(),
        _ => "recovery fails",
    }
}

/// The rule that an outcome breaks, if that is not the one of the experiment.
pub(crate) fn rule_of(outcome: &Outcome, experiment: &Rule) -> RuleId {
    match outcome {
        Outcome::Content { violation, .. } => violation.rule().id(),
        _ => experiment.id(),
    }
}

/// How several stores become one step.
pub(crate) const AT_ONCE: &str = "persist a log entry that covers all of its stores before the first of them, or write new data beside \
    the old and publish it with one store of at most 8 bytes";

/// Whether an operation is there in part.
pub(crate) fn is_torn(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Content { violation: Violation::Torn, .. })
}

/// What should have been the case: `when` there was a crash.
pub(crate) fn expectation(when: &str, outcome: &Outcome, usual: &Outcome) -> String {
    match outcome {
        Outcome::Content { .. } => format!(
            "{when}, every acknowledged operation is there, and one that was under way is there as a whole or not at all."
        ),
        _ => format!("{when}, recovery {usual}."),
    }
}

/// `early` is in PM while `lost`, made after it, is not, when a crash comes at `crash`.
pub(crate) fn too_early(early: &Place, lost: &Place, crash: &str, outcome: &Outcome) -> FindingText {
    let (store, lost) = (where_of(early), where_of(lost));
    FindingText {
        title: format!("{} if a store in {} is persistent before later ones", trouble(outcome), function_of(early)),
        happened: format!(
            "The store {store} may be in PM while the one {lost}, which is made after it, is not. If a crash comes {crash} then, \
             recovery {outcome}; without the first store it copes."
        ),
        fix: match is_torn(outcome) {
            true => format!(
                "No order of {} and what is stored {lost} helps, since an operation must be there as a whole or not at all: \
                 {AT_ONCE}.",
                Finding::DATA
            ),
            false => format!(
                "Make {} persistent last: store it after what is stored {lost} has been flushed and fenced.",
                Finding::DATA
            ),
        },
    }
}

/// A crash may leave only one of two stores that recovery needs both or neither of. `first` is blamed.
pub(crate) fn together(first: &Place, other: &Place, crash: &str, outcome: &Outcome) -> FindingText {
    let (store, other) = (where_of(first), where_of(other));
    let stores = match store == other {
        true => format!("What is stored {store} goes into several cache lines, and nothing keeps these together."),
        false => format!("Nothing keeps the store {store} and the one {other} together."),
    };
    FindingText {
        title: format!("{} if only one of two stores in {} is persistent", trouble(outcome), function_of(first)),
        happened: format!(
            "{stores} If a crash comes {crash} when only one of them is in PM, recovery {outcome}; with both or neither it copes."
        ),
        fix: format!("No order of these stores helps: {AT_ONCE}."),
    }
}

/// By when a lost store has to be persistent: before the store that experiments have shown to rely on it, if they have.
pub(crate) fn before_later(places: &[Place]) -> String {
    match places.iter().find(|place| place.label == LATER) {
        Some(later) => format!("before the store {}, which relies on it", where_of(later)),
        None => "before the program goes on to depend on it".into(),
    }
}

/// The function of the user that a place is in.
pub(crate) fn function_of(place: &Place) -> String {
    match place.naming_frame().and_then(Frame::short_function) {
        Some(function) => format!("`{function}`"),
        None => "code without a name".into(),
    }
}

/// `in f (list.c:42)`, or as much of that as is known.
pub(crate) fn where_of(place: &Place) -> String {
    place.frame().map_or_else(|| "at an unknown place".into(), |frame| format!("in {frame}"))
}
