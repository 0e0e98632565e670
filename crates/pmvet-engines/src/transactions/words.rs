//! How findings tell of stores that escape a transaction.

use pmvet_findings::Finding;

use super::tracker::Escape;

pub(crate) const EXPECTED: &str = "What a transaction changes is added to it first, or allocated in it: then a commit makes it persistent, and an \
     abort or a crash takes it back.";

pub(crate) fn title(escape: Escape, who: &str) -> String {
    match escape {
        Escape::NotAdded => format!("{who} stores to memory that its transaction has not added"),
        Escape::AddedLate => format!("{who} adds memory to its transaction after it has stored to it"),
        Escape::Freed => format!("{who} stores to an object that its transaction has freed"),
    }
}

/// `here` is where the store is: `` `push` (queue.c:12) ``.
pub(crate) fn happened(escape: Escape, here: &str, persisted: bool) -> String {
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

/// For stores to a pool outside of any transaction. `store` is where: `in push (queue.c:12)`.
pub(crate) fn outside_fix(store: &str) -> String {
    format!(
        "Store to {data} in a transaction, together with what belongs to it, and add it there before the store {store}: {add}. If it \
         stands for itself, `pmemobj_persist` after the store is enough, before anything relies on it.",
        data = Finding::DATA,
        add = Finding::TX_ADD
    )
}

/// For a crash between two steps of the library, of which each is complete by itself.
pub(crate) fn together_fix(opened: &str, closed: Option<String>) -> String {
    let with = closed.map_or("what belongs to it".to_owned(), |closed| format!("what is done {closed}"));
    format!(
        "Do what is done {opened} and {with} in one transaction: it commits both or neither. What changes there is added to it first \
         (`TX_ADD`, `TX_ADD_FIELD`)."
    )
}
