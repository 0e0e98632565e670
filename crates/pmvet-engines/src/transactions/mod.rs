//! Transactions of libpmemobj: what they cover, and which stores escape them.
//!
//! If a transaction does not commit, it rolls back the stores to the ranges that were added to it; if it commits, it makes them
//! persistent. The same holds for what it allocates. A store in it to anything else is neither rolled back nor made persistent: recovery
//! finds half of a change. This module follows the transactions of all threads ([`TransactionTracker`]), explains findings about crashes
//! by them ([`blame_transactions`]), and has the words for that.
//!
//! Nested transactions count as part of the outermost: libpmemobj commits them together.
//!
//! What it misses: atomic read-modify-write instructions, which count as locks; logs that a program writes through
//! `pmemobj_tx_log_append_buffer`; objects of other pools than that of the transaction.

mod blame;
mod fields;
mod ranges;
#[cfg(test)]
mod tests;
mod tracker;
pub(crate) mod words;

pub use blame::{EscapingLines, blame_transactions, one_per_function};
pub use fields::name_fields;
pub use tracker::{
    CoveredPart, Escape, EscapedStore, NeedlessAdd, NeedlessPersist, TransactionFacts, TransactionTracker, TxPlace,
};
