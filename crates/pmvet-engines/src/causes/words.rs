//! How findings describe the stores that made the difference, whichever engine found them.

use pmvet_events::event::LINE;
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
pub(crate) const TORN: &str = "only the first bytes of this store may be in PM: 8 bytes at a time get there";
pub(crate) const BEFORE: &str = "this store is in PM already; without it, recovery would cope";
pub(crate) const BELONGS_TO: &str = "recovery needs this store, too, or neither of them";

/// How far a lost store got on its way to PM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Cached,
    Flushed,
    NonTemporal,
}

impl Progress {
    pub(crate) fn new(is_flushed: bool, is_non_temporal: bool) -> Self {
        match (is_non_temporal, is_flushed) {
            (true, _) => Self::NonTemporal,
            (false, true) => Self::Flushed,
            (false, false) => Self::Cached,
        }
    }

    /// The label beside the line of the store. `store` is its name in the sentence: `this store`.
    pub(crate) fn label(self, store: &str) -> String {
        match self {
            Self::Cached => format!("{store} may still be in the cache"),
            Self::Flushed => format!("{store} is flushed, but no fence waits for it"),
            Self::NonTemporal => format!("{store} is non-temporal, and no fence waits for it"),
        }
    }

    /// What to do about a store. `before` says by when; `or` is an alternative, if there is one.
    pub(crate) fn fix(self, store: &str, before: &str, or: &str) -> String {
        let data = Finding::DATA;
        match self {
            Self::Cached => format!("Flush {data} after the store {store}, and fence, {before}{or}."),
            Self::Flushed => {
                format!("Put a fence (`sfence`) after the flush that follows the store {store}, {before}.")
            }
            Self::NonTemporal => format!("Put a fence (`sfence`) after the store {store}, {before}."),
        }
    }
}

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

/// The rule that an outcome breaks: that of the experiment, unless the contents are wrong.
pub(crate) fn rule_of(outcome: &Outcome, experiment: &Rule) -> RuleId {
    match outcome {
        Outcome::Content { violation, .. } => violation.rule().id(),
        _ => experiment.id(),
    }
}

/// How to make several stores one step.
pub(crate) const AT_ONCE: &str = "persist a log entry that covers all of its stores before the first of them, or write new data beside \
    the old and publish it with one store of at most 8 bytes";

/// Whether an operation is only partly there.
pub(crate) fn is_torn(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Content { violation: Violation::Torn, .. })
}

/// What recovery should do; `when` says after which crash.
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
    let is_one_line = share_a_line(early, lost);
    let (store, lost) = apart(early, lost);
    FindingText {
        title: format!("{} if a store in {} is persistent before later ones", trouble(outcome), function_of(early)),
        happened: format!(
            "The store {store} may be in PM while the one {lost}, which is made after it, is not. If a crash comes {crash} then, \
             recovery {outcome}; without the first store it copes."
        ),
        fix: match is_torn(outcome) {
            false if is_one_line => format!(
                "Store {} after what is stored {lost}. Both are in one cache line, which keeps the order of its stores, so neither a flush \
                 nor a fence is needed in between.",
                Finding::DATA
            ),
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

/// A store that a crash keeps only in part. `crash`: where it comes.
pub(crate) fn torn(store: &Place, crash: &str, outcome: &Outcome) -> FindingText {
    let where_ = where_of(store);
    FindingText {
        title: format!("{} if a store in {} is torn", trouble(outcome), function_of(store)),
        happened: format!(
            "The store {where_} has more than 8 bytes, so that a crash {crash} may leave a part of it in PM. If it does, recovery {outcome}."
        ),
        fix: torn_fix(&where_),
    }
}

/// What to do about a store that may be torn. `where_`: its place.
pub(crate) fn torn_fix(where_: &str) -> String {
    format!(
        "Do not rely on {}, which is stored {where_}, as a whole: let it count only if a later store of at most 8 bytes says so, made \
         when it has been flushed and fenced; or give it a checksum.",
        Finding::DATA
    )
}

/// The places of two stores. If they read the same, the bytes tell them apart.
fn apart(one: &Place, other: &Place) -> (String, String) {
    let places = (where_of(one), where_of(other));
    if places.0 != places.1 {
        return places;
    }
    let with_bytes = |place: &Place, text: String| match &place.pm {
        Some(PmRange { offset, len, .. }) => format!("{text} ({len} bytes at {offset:#x})"),
        None => text,
    };
    (with_bytes(one, places.0), with_bytes(other, places.1))
}

/// Whether two stores go to one cache line, which never has the second without the first.
fn share_a_line(one: &Place, other: &Place) -> bool {
    let line = |place: &Place| {
        let pm = place.pm.as_ref()?;
        let line = pm.offset / LINE;
        ((pm.offset + pm.len.max(1) - 1) / LINE == line).then_some((pm.file.clone(), line))
    };
    line(one).is_some() && line(one) == line(other)
}

/// A crash may leave only one of two stores, and recovery needs both or neither. `first` is blamed.
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

/// Another way out, if recovery would cope without a store that was persistent before.
pub(crate) fn or_after(places: &[Place]) -> String {
    match places.iter().find(|place| place.label == BEFORE) {
        Some(before) => format!(
            "; or, if the store {} is what makes recovery look at this data, make that store only when this one is persistent",
            where_of(before)
        ),
        None => String::new(),
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

#[cfg(test)]
mod unit_tests {
    use super::*;

    fn place(line: u32, offset: u64) -> Place {
        let (function, file) = (Some("f".into()), Some("/src/f.c".into()));
        let pm = Some(PmRange { file: "/pm/pool".into(), offset, len: 8, object: None });
        let stack = vec![Frame { function, file, line: Some(line), ..Frame::default() }];
        Place { role: Role::Store, stack, thread: None, pm, seq: None, label: String::new() }
    }

    fn told(early: &Place, lost: &Place) -> FindingText {
        too_early(early, lost, "in g", &Outcome::Exit { status: 1 })
    }

    #[test]
    fn stores_of_one_line_of_the_source_are_told_apart_by_their_bytes() {
        let text = told(&place(7, 0), &place(7, 64)).happened;
        assert!(text.contains("(8 bytes at 0x0)") && text.contains("(8 bytes at 0x40)"), "{text}");
        assert!(!told(&place(7, 0), &place(8, 64)).happened.contains("bytes"));
    }

    #[test]
    fn stores_of_one_cache_line_need_no_fence_between_them() {
        assert!(told(&place(7, 0), &place(8, 8)).fix.contains("neither a flush nor a fence"));
        assert!(told(&place(7, 0), &place(8, 64)).fix.contains("has been flushed and fenced"));
        assert!(told(&place(7, 60), &place(8, 64)).fix.contains("has been flushed and fenced"), "one is in both lines");
    }

    #[test]
    fn a_store_that_bypasses_the_cache_has_no_flush() {
        let told = |is_flushed, is_non_temporal| {
            let progress = Progress::new(is_flushed, is_non_temporal);
            progress.label("this store") + &progress.fix("in f", "before that", "")
        };
        assert!(!told(true, true).contains("flush") && told(true, true).contains("fence"));
        assert!(told(true, false).contains("after the flush") && told(false, false).contains("Flush"));
    }
}
