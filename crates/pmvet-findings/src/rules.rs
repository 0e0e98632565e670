//! The catalogue of rules. Ids are stable: suppressions, baselines and SARIF name them.

use serde::{Deserialize, Serialize};

use crate::finding::Severity;

/// A rule's id, as users write it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RuleId(pub String);

impl std::fmt::Display for RuleId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The fixed properties of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// As users write it; never changed, never used for another rule.
    pub id: &'static str,
    /// One line.
    pub summary: &'static str,
    /// How grave a finding of this rule is without a witness.
    pub severity: Severity,
    /// Which engine reports it.
    pub engine: &'static str,
    /// Holds for correct programs too, so often that it is shown only on request.
    pub pedantic: bool,
}

impl Rule {
    /// The id, as findings hold it.
    pub fn id(&self) -> RuleId {
        RuleId(self.id.into())
    }
}

/// The rule with this id.
pub fn find(id: &str) -> Option<&'static Rule> {
    ALL.iter().copied().find(|rule| rule.id == id)
}

macro_rules! rules {
    ($($name:ident $id:literal $severity:ident $engine:literal $($pedantic:ident)? : $summary:literal;)*) => {
        $(#[doc = concat!("`", $id, "`: ", $summary, ".")]
        pub const $name: &Rule = &Rule {
            id: $id,
            summary: $summary,
            severity: Severity::$severity,
            engine: $engine,
            pedantic: rules!(@pedantic $($pedantic)?),
        };)*
        /// All rules, in the order of the catalogue.
        pub const ALL: &[&Rule] = &[$($name),*];
    };
    (@pedantic) => { false };
    (@pedantic pedantic) => { true };
}

rules! {
    RECOVERY_FAILURE "recovery-failure" Error "inject":
        "recovery fails after a crash at this point";
    REORDERED_CRASH "reordered-crash" Error "reorder":
        "recovery fails if the processor writes cache lines back in another order";
    DURABLE_LOST "durable-lost" Error "durable":
        "an operation that was acknowledged is gone after a crash";
    DURABLE_TORN "durable-torn" Error "durable":
        "an operation is there in part after a crash";
    DURABLE_RESURRECTED "durable-resurrected" Error "durable":
        "what an operation removed is back after a crash";
    DURABLE_DUPLICATED "durable-duplicated" Error "durable":
        "something is there more often than it should be after a crash";
    DURABLE_WRONG_VALUE "durable-wrong-value" Error "durable":
        "something has a value after a crash that it should not have";
    UNPERSISTED_STORE "unpersisted-store" Warning "rules":
        "a store is never made persistent";
    TX_STORE_NOT_ADDED "tx-store-not-added" Warning "rules":
        "a store in a transaction of libpmemobj to memory that was not added to it";
    DIRTY_OVERWRITE "dirty-overwrite" Warning "rules":
        "a store overwrites another one that was not persistent yet";
    TRANSIENT_DATA "transient-data" Performance "rules":
        "data that is never flushed lives in PM";
    FLUSH_CLEAN "flush-clean" Performance "rules":
        "a flush of a line that was not written since its last flush";
    FLUSH_VOLATILE "flush-volatile" Performance "rules":
        "a flush of memory that is not PM";
    FLUSH_NONTEMPORAL "flush-nontemporal" Performance "rules":
        "a flush of data that was stored past the cache";
    FLUSH_COVERS_STORES "flush-covers-stores" Warning "rules" pedantic:
        "one flush persists several stores, which holds only as long as they share a line";
    REDUNDANT_FENCE "redundant-fence" Performance "rules":
        "a fence with nothing to wait for";
    TX_ADD_TWICE "tx-add-twice" Performance "rules":
        "a range is added to a transaction of libpmemobj that covers it already";
    TX_PERSIST "tx-persist" Performance "rules":
        "a flush inside a transaction of libpmemobj of what its commit flushes";
    FENCE_ORDERS_LINES "fence-orders-lines" Warning "rules" pedantic:
        "a fence waits for several lines, which may become persistent in any order";
    PERSISTENCY_RACE "persistency-race" Warning "race":
        "another thread may read a value before it is persistent, and act on it";
    LOCK_IN_PM "lock-in-pm" Warning "race":
        "a lock lives in PM, can be persisted while held, and nothing frees it after a crash";
    REACHABLE_FAILURE "reachable-failure" Error "verify":
        "recovery fails on a state of PM that a crash can leave";
    FAILING_CASE "failing-case" Error "fuzz":
        "the program dies, hangs or takes all memory on an input and an image that it made itself";
}
