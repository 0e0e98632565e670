//! Rebuilds crash images from a recorded run instead of running the program again.
//!
//! * [`PmReplay`] — the PM files of a run while its events are applied to them one by one.
//! * [`Versions`] — their content at chosen moments, as pages that changed from one to the next. Equal contents are one version.
//! * [`Scratch`] — real files that can hold any version, for a recovery to work on.
//!
//! # What a crash would have left before and after a store
//!
//! ```
//! use pmvet_events::event::StoreKind;
//! use pmvet_events::{ContextId, Event, FileId, SiteId, ThreadId, What};
//! use pmvet_target::crash::{PmReplay, Versions};
//! use pmvet_target::{mapped::MappedFile, recording::Recording};
//!
//! # fn main() -> std::io::Result<()> {
//! let (file, path) = (FileId(1), "/mnt/pmem/pool".as_ref());
//! let folder = tempfile::tempdir()?;
//! let recording = Recording::open(folder.path());
//! std::fs::write(recording.base(file), [0; 4096])?;
//!
//! let (thread, site, context) = (ThreadId(1), SiteId(0), ContextId(0));
//! let mut replay = PmReplay::new(&recording);
//! let next = |replay: &mut PmReplay, what| replay.apply(&Event { seq: 1, thread, site, context, what });
//! next(&mut replay, What::ThreadStart { process: 100, os_thread: 100 })?;
//! next(&mut replay, What::File { file, size: 4096, device: 0, inode: 0, path })?;
//! next(&mut replay, What::Map { file, addr: 0x10000, len: 4096, offset: 0, writable: true })?;
//!
//! let mut versions = Versions::new(MappedFile::new(tempfile::tempfile()?));
//! let (before, _) = versions.snapshot(&mut replay)?;
//! next(&mut replay, What::Store { addr: 0x10008, value: &[1, 2], how: StoreKind::Regular })?;
//! assert_eq!(replay.bytes(file)[8..11], [1, 2, 0]);
//! assert_ne!(versions.snapshot(&mut replay)?.0, before);
//!
//! // The same content is the same version, however it came about.
//! next(&mut replay, What::Store { addr: 0x10008, value: &[0, 0], how: StoreKind::Regular })?;
//! assert_eq!(versions.snapshot(&mut replay)?, (before, false));
//! # Ok(())
//! # }
//! ```

mod replay;
mod scratch;
mod versions;

pub use replay::{FileState, PmReplay, data};
pub use scratch::{Patch, Scratch, restore};
pub use versions::{Version, VersionId, Versions};

/// The unit in which changes are kept.
pub const PAGE: usize = 4096;
