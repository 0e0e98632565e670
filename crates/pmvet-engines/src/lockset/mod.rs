//! Persistency-induced races, predicted with locksets: HawkSet (Oliveira, Gonçalves, Matos; EuroSys 2025).
pub(crate) mod clocks;
mod engine;
pub mod findings;
mod lines;
mod locksets;
mod memory;
mod options;
pub mod pm_locks;
mod races;
mod reader;
mod spin;

pub use engine::{Engine, Names, Outcome, Stats};
pub use lines::Fate;
pub use options::{Edges, Options};
pub use races::{Access, LockName, Moment, Race};
pub use spin::{InferredLock, LockShape, PmWord};
