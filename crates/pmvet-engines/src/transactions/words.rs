//! How findings describe stores that escape a transaction.

use pmvet_findings::{Finding, Stack};

use super::tracker::{CoveredPart, Escape};
use crate::stacks::{Owner, owner, user_frame};

pub(crate) const EXPECTED: &str = "What a transaction changes is added to it first, or allocated in it: then a commit makes it persistent, and an \
     abort or a crash takes it back.";

pub(crate) fn title(escape: Escape, who: &str) -> String {
    match escape {
        Escape::NotAdded => format!("{who} stores to memory that its transaction has not added"),
        Escape::AddedLate => format!("{who} adds memory to its transaction after it has stored to it"),
        Escape::Freed => format!("{who} stores to an object that its transaction has freed"),
    }
}

/// The covered part of a store, and where that was done: `the first 8 of its 16 bytes in `add` (queue.c:7)`.
pub(super) fn part(part: &CoveredPart, where_: &str) -> String {
    let CoveredPart { first, len, of, .. } = *part;
    match first {
        0 => format!("the first {len} of its {of} bytes {where_}"),
        _ if first + len == of => format!("the last {len} of its {of} bytes {where_}"),
        _ => format!("{len} of its {of} bytes {where_}"),
    }
}

/// `here` is where the store is: `` `push` (queue.c:12) ``. `part` describes the part that is covered, if any.
pub(crate) fn happened(escape: Escape, here: &str, persisted: bool, part: Option<&str>) -> String {
    if let (Escape::NotAdded, false, Some(part)) = (escape, persisted, part) {
        return format!(
            "{here} stores to memory of which its transaction has added only {part}. The commit does not make the others persistent, and \
             nothing takes them back if the transaction does not commit."
        );
    }
    match (escape, persisted) {
        (Escape::NotAdded, true) => format!(
            "{here} stores to memory that its transaction neither added nor allocated, and makes it persistent by hand. Nothing takes \
             that back if the transaction does not commit."
        ),
        (Escape::NotAdded, false) => format!(
            "{here} stores to memory that its transaction neither added nor allocated. The commit does not make it persistent, and \
             nothing takes it back if the transaction does not commit."
        ),
        (Escape::AddedLate, _) => format!(
            "{here} stores to memory that is added to the transaction only afterwards. An abort or a recovery restores what was there when \
             it was added, which is the new value."
        ),
        (Escape::Freed, _) => format!(
            "{here} stores to an object after the transaction has freed it. If the transaction commits, the memory belongs to nobody, or \
             soon to another object."
        ),
    }
}

pub(crate) fn fix(escape: Escape, here: &str) -> String {
    match escape {
        Escape::NotAdded => {
            format!("Add {} to the transaction before the store in {here}: {}.", Finding::DATA, Finding::TX_ADD)
        }
        Escape::AddedLate => {
            format!("Add {} before the store in {here}, not after it: {}.", Finding::DATA, Finding::TX_ADD)
        }
        Escape::Freed => {
            format!("Store to {} in {here} before the object is freed, if at all.", Finding::DATA)
        }
    }
}

pub(crate) const CAVEAT: &str = "No crash of this run shows that recovery needs these bytes. If it does not, keep them in volatile memory, or mark them \
     with PMVET_IGNORE.";

pub(crate) fn label(escape: Escape) -> &'static str {
    match escape {
        Escape::NotAdded => "the transaction has not added what this stores to",
        Escape::AddedLate => "what this stores to is added only later",
        Escape::Freed => "the transaction has freed what this stores to",
    }
}

/// For stores to a pool outside of any transaction. `store` is the place: `in push (queue.c:12)`.
pub(crate) fn outside_fix(store: &str, stack: &Stack, has_transactions: bool) -> String {
    let data = Finding::DATA;
    if is_constructor(stack) {
        return format!(
            "Make {data} persistent (`pmemobj_persist`) after the store {store}, before the constructor returns: the library publishes \
             the object then, and does not persist what the constructor has stored."
        );
    }
    if has_transactions {
        let add = Finding::TX_ADD;
        return format!(
            "Store to {data} in a transaction, together with what belongs to it, and add it there before the store {store}: {add}. If it \
             stands for itself, `pmemobj_persist` after the store is enough, before anything relies on it."
        );
    }
    format!(
        "Make {data} persistent (`pmemobj_persist`) after the store {store}, before anything relies on it: an allocation that is published, \
         or another store. If it must change together with what belongs to it, set both with one `pmemobj_publish` (`pmemobj_set_value`, \
         `pmemobj_defer_free`), or in a transaction."
    )
}

/// For a store to a pool that is persistent too early. `opened` is its place, `closed` what should have been done before it.
pub(crate) fn order_fix(opened: &str, closed: &str) -> String {
    let data = Finding::DATA;
    format!(
        "The store of {data} {opened} comes too early: do what is done {closed} first and make it persistent (`pmemobj_persist`), and store \
         {data} last; or change both in one transaction, or with one `pmemobj_publish` (`pmemobj_set_value`)."
    )
}

/// For a crash between two steps of the library that are each complete by themselves.
pub(crate) fn together_fix(opened: &str, closed: Option<String>, has_transactions: bool) -> String {
    let with = closed.map_or("what belongs to it".to_owned(), |closed| format!("what is done {closed}"));
    if has_transactions {
        return format!(
            "Do what is done {opened} and {with} in one transaction: it commits both or neither. What changes there is added to it first \
             (`TX_ADD`, `TX_ADD_FIELD`)."
        );
    }
    format!(
        "Do what is done {opened} and {with} in one step, which happens as a whole or not at all: one `pmemobj_publish` of all its actions \
         (`pmemobj_reserve`, `pmemobj_set_value`, `pmemobj_defer_free`), or a transaction."
    )
}

/// Whether libpmemobj has called the program's function, to fill an object that it allocates.
fn is_constructor(stack: &Stack) -> bool {
    user_frame(stack).is_some_and(|at| stack[at..].iter().any(|frame| owner(frame) == Owner::PmLibrary))
}

#[cfg(test)]
mod unit_tests {
    use pmvet_findings::Frame;

    use super::*;

    fn stack(modules: &[&str]) -> Stack {
        modules.iter().map(|module| Frame { module: Some(module.into()), ..Frame::default() }).collect()
    }

    #[test]
    fn a_program_without_transactions_is_told_of_actions() {
        for has_transactions in [true, false] {
            let store = stack(&["/bin/app"]);
            let fixes = [outside_fix("in f", &store, has_transactions), together_fix("in f", None, has_transactions)];
            for fix in fixes {
                assert_eq!(fix.contains("pmemobj_publish"), !has_transactions, "{fix}");
            }
        }
        assert!(!outside_fix("in f", &stack(&["/bin/app"]), false).contains(Finding::TX_ADD));
    }

    #[test]
    fn an_object_is_persistent_before_its_constructor_returns() {
        for (modules, expected) in [
            (&["/bin/app", "/bin/app"][..], false),
            (&["/lib/libpmemobj.so.1", "/bin/app"], false),
            (&["/bin/app", "/bin/app", "/lib/libpmemobj.so.1", "/bin/app"], true),
        ] {
            let fix = outside_fix("in f", &stack(modules), true);
            assert_eq!(fix.contains("constructor") && !fix.contains(Finding::TX_ADD), expected, "{fix}");
        }
    }

    #[test]
    fn a_store_that_comes_too_early_is_stored_last() {
        let fix = order_fix("in `push` (queue.c:7)", "in `fill` (queue.c:9)");
        let (early, late) = (fix.find("queue.c:7"), fix.find("queue.c:9"));
        assert!(early < late && fix[late.unwrap()..].contains("first"), "{fix}");
        assert!(fix.contains("last"), "{fix}");
    }

    #[test]
    fn a_part_is_told_by_its_bytes() {
        let place = super::super::TxPlace {
            seq: 1,
            thread: pmvet_events::ThreadId(1),
            site: pmvet_events::SiteId(1),
            context: pmvet_events::ContextId(1),
            pm: None,
        };
        let told = |first, len| part(&CoveredPart { place, first, len, of: 16 }, "in g");
        assert_eq!(told(0, 8), "the first 8 of its 16 bytes in g");
        assert_eq!(told(8, 8), "the last 8 of its 16 bytes in g");
        assert_eq!(told(4, 8), "8 of its 16 bytes in g");
    }
}
