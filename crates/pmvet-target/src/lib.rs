//! Everything around a target process.
//!
//! * [`install`] — where DynamoRIO and the client are.
//! * [`program`] — what is to be run, and whether it can be.
//! * [`launch`](mod@launch) and [`guard`] — starting it, and making sure that nothing of it is left; [`over`] — when all of it has to
//!   end.
//! * [`forkserver`] — a target that is started once and run many times.
//! * [`collect`] — its events, in order, while it runs.
//! * [`image`] — PM files, rebuilt from events; [`mapped`] and [`sparse`] — the files they are kept in.
//! * [`recording`] — a run at rest, and [`crash`] — the images that a crash would have left, rebuilt from it.
//! * [`sandbox`] — native runs that get other files under the same names: recoveries, oracles, private copies.
//! * `schedule` — when a thread that was stopped in its run may go on.
//! * [`symbols`] — from addresses to functions and lines.

pub mod collect;
pub mod crash;
pub mod forkserver;
pub mod guard;
pub mod image;
pub mod install;
pub mod launch;
pub mod live;
pub mod mapped;
pub mod over;
pub mod program;
pub mod recording;
pub mod sandbox;
pub(crate) mod schedule;
pub mod sparse;
pub mod symbols;

pub use collect::Sink;
pub use launch::{Ending, Launch, launch};
