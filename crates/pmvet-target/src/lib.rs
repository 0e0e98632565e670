//! Everything around a target process.
//!
//! * [`install`] — where DynamoRIO and the client are.
//! * [`program`] — what is to be run, and whether it can be.
//! * [`launch`](mod@launch) and [`guard`] — starting it, and making sure that nothing of it is left.
//! * [`collect`] — its events, in order, while it runs.
//! * [`image`] — PM files, rebuilt from events.
//! * [`symbols`] — from addresses to functions and lines.

pub mod collect;
pub mod guard;
pub mod image;
pub mod install;
pub mod launch;
pub mod program;
pub mod symbols;

pub use collect::Sink;
pub use launch::{Ending, Launch, launch};
