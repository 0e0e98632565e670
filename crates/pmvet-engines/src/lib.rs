//! The engines, one folder each: they read events and return findings. No engine knows another; two folders combine
//! engines that read the same events: [`check`] runs [`rules`] and [`inject`], [`race`] runs [`lockset`] and
//! [`confirm`].
//!
//! What they share has folders of its own: [`lab`] runs recoveries on crash images, [`causes`] groups findings with the same cause,
//! [`timeline`] completes findings that have a crash image, [`transactions`] follows transactions of libpmemobj, [`stacks`] resolves
//! places to names, [`operations`] handles inputs made of operations, [`promises`] says what must survive a crash, [`alias_coverage`]
//! tells interleavings apart, and [`shards`] divides work among machines.
//!
//! To use an engine without a process, feed it scripted events: the docs of [`rules::Rules`], [`lockset::LocksetEngine`],
//! [`verify::Explorer`], [`confirm::taint::Taint`] and [`promises::OperationSigns`] each show such a run.

#![deny(missing_docs)]

mod account;
pub mod alias_coverage;
pub mod causes;
pub mod check;
pub mod confirm;
mod corpus_lock;
pub mod fuzz;
pub mod inject;
pub mod interleave;
mod json_lines;
pub mod lab;
pub mod lockset;
pub mod operations;
pub mod promises;
pub mod race;
pub mod rules;
pub mod shards;
pub mod stacks;
pub mod timeline;
pub mod transactions;
pub mod verify;
