//! Instrumentation: a basic block of the target becomes one that reports what it does.
//!
//! The code that this module puts into a block calls the stubs, which are machine code, and those call Rust for unusual
//! cases. So this module uses all others, and only DynamoRIO calls it.

mod block;
mod branch_counters;
mod clean_calls;
mod cold;
mod discarded_value;
mod liveness;
mod markers;
mod memory;
mod runtime_ranges;
mod sequences;
mod stubs;

pub(crate) use block::block_event;
