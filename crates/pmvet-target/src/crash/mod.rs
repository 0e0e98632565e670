//! Crash images, rebuilt from a recorded run instead of running the program again.
//!
//! * [`PmReplay`] — the PM files of a run while its events are applied to them one by one.
//! * [`Versions`] — their content at chosen moments, as pages that changed from one to the next. Equal contents are one version.
//! * [`Scratch`] — real files that become any version, for a recovery to work on.

mod replay;
mod scratch;
mod versions;

pub use replay::{FileState, PmReplay, data};
pub use scratch::{Patch, Scratch, restore};
pub use versions::{Version, VersionId, Versions};

/// The unit in which changes are kept.
pub const PAGE: usize = 4096;
