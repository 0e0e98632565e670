//! The hot paths, as machine code.
//!
//! Instrumented code comes here (see [`super::sequences`]) with `rcx` = the [`Thread`], on the thread's private stack, with
//! every other register, the flags included, still the target's.
//!
//! A store is two calls: [`before_store`] checks that the address is PM, prepares a record and takes the line's stripe lock;
//! then the target's own instruction runs; then [`after_store`] copies the value, numbers the record, publishes it and releases
//! the lock. Number and store are thus under one lock, so numbers follow memory order. While the target has a single thread no
//! lock and no atomic instruction is needed.
//!
//! A locked read-modify-write of volatile memory ([`before_atomic`], then [`after_store`]) is the same with the stripe of its address.
//!
//! Everything else is one call and needs no lock: a load after its instruction, so that it comes after the store whose value
//! it read; a flush or fence before it, so that every store with a smaller number has been performed by then.
//!
//! Unusual cases (another mapping, two lines, a full ring, an unknown call path) are handled in Rust by
//! [`crate::record::slow_path`], at the price of saving the low halves of the vector registers, which is all that the client's
//! Rust code changes (`docs/decisions/0007-stubs-in-machine-code.md`). Only general registers are used here.

#[macro_use]
mod pieces;

mod accesses;
mod call_paths;
mod coverage;
mod locks;

pub(crate) use accesses::{
    after_store, before_atomic, before_store, fence, flush, load, lockstep_entry, lockstep_fence, random_delay,
    stall_after_store, stall_before,
};
pub(crate) use coverage::{count_fence, count_operation};
pub(crate) use locks::{function_entered, function_returns, lock_entered, unlock_entered};
