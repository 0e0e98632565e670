//! Everything around a target process.
//!
//! * [`install`] — where DynamoRIO and the client are.
//! * [`program`] — what to run, and whether it can be traced; [`workload`] — a program with its input and its files.
//! * [`launch`](mod@launch) and [`guard`] — starting it, and making sure that nothing of it is left; [`shutdown`] — when everything has
//!   to end.
//! * [`forkserver`] — a target that is started once and run many times.
//! * [`collect`] — its events, in order, while it runs.
//! * [`image`] — PM files, rebuilt from events; [`mapped`] and [`sparse`] — the files they are kept in.
//! * [`recording`] — a run at rest, and [`crash`] — the images that a crash would have left, rebuilt from it.
//! * [`sandbox`] — native runs that get other files under the same names: recoveries, oracles, private copies.
//! * `stalled_threads` — when a thread that was stopped in its run may go on.
//! * [`symbols`] — from addresses to functions and lines.
//!
//! # An image of PM is a file in memory
//!
//! ```
//! use pmvet_target::mapped::MappedFile;
//! use pmvet_target::sparse;
//!
//! # fn main() -> std::io::Result<()> {
//! let mut image = MappedFile::new(sparse::unnamed("/mnt/pmem/pool".as_ref())?);
//! image.resize(4096)?;
//! image.store(8, &[1, 2, 3]);
//! // Stores behind the end of a file do not reach it; writes make it longer.
//! image.store(4095, &[7, 7]);
//! image.write(5000, b"end")?;
//! assert_eq!((image.size(), &image.bytes()[8..12], image.bytes()[4095]), (5003, &[1, 2, 3, 0][..], 7));
//! image.zero(0, 16)?;
//! assert!(image.bytes()[..16].iter().all(|&byte| byte == 0));
//! # Ok(())
//! # }
//! ```

#![deny(missing_docs)]

pub mod collect;
pub mod crash;
pub mod forkserver;
pub mod guard;
pub mod image;
pub mod install;
pub mod launch;
pub mod live_events;
pub mod mapped;
pub mod program;
pub mod recording;
pub mod sandbox;
pub mod shutdown;
pub mod sparse;
pub(crate) mod stalled_threads;
pub mod symbols;
mod thread_activity;
pub mod workload;

pub use collect::Sink;
pub use launch::{Ending, Launch, launch};
pub use workload::Workload;
