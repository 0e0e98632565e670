//! Transactions of libpmemobj: what they cover, and which stores escape them.
//!
//! A transaction takes back what was stored to the ranges that were added to it if it does not commit, and makes them persistent if it does.
//! So does it with what it allocates. A store in it to anything else is neither taken back nor made persistent: recovery finds half of a
//! change. This room follows the transactions of all threads ([`TransactionTracker`]), says it of findings about crashes
//! ([`blame_transactions`]), and has the words for it.
//!
//! Nested transactions are one with the outermost: libpmemobj commits them together.
//!
//! What it misses: atomic read-modify-write instructions, which are taken for locks; logs that a program writes through
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
