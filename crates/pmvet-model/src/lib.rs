//! What the hardware may do to the stores of a program: cache lines, flush buffers, crash states.
//!
//! * [`Model`] — follows the events of a run and knows, at every moment, which stores are not guaranteed to be in PM
//!   yet.
//! * [`Line`] — one cache line with such stores: its guaranteed content and what may have been added to it.
//! * [`states`] — what PM may hold if the power fails now, and which states to try first.
//! * [`LineWatch`] — lets a rule see each step of a line's life without tracking lines itself.
//! * [`Shadow`] — the newest content of PM, as far as events show it.
//!
//! The semantics are those of Px86 as in section 4 of Jaaru (Gorjiara, Xu and Demsky, ASPLOS 2021). Each 64-byte line
//! has its stores in the order in which memory took them, and a bound: what is guaranteed to be in PM. After a crash
//! each line, independently of the others, holds some prefix of its stores at or after its bound.
//!
//! | event | effect |
//! |---|---|
//! | store | one more pending store of its line; a store across lines is one store in each |
//! | `clflush` | raises the bound to the newest store, at once |
//! | `clwb`, `clflushopt` | the same, but only with the thread's next `sfence`, `mfence`, locked or serialising instruction |
//! | non-temporal store | a store, and a pending flush of its line up to and including itself |
//! | locked read-modify-write | a fence of its thread, then a store if it stored |
//! | `msync`, `fsync` and relatives | raise the bounds of all lines in their range |
//! | `write`, `fallocate`, `ftruncate` on the file | durable at once with all that their lines held before, since file systems order their own changes |
//! | unmapping, exit of a thread or process | persists nothing; a flush that no fence of its thread can follow any more stays pending |
//!
//! With [`Mode::Eadr`] the caches are persistent: a regular store is durable at once, and with it what its line held
//! before. Only non-temporal stores that no fence has followed are pending.
//!
//! Deviations and what it misses:
//!
//! * Store buffers are not modelled: events come in the order in which memory took the stores, and stores still in a
//!   store buffer do not exist yet.
//! * A store of more than 8 bytes is torn at multiples of 8, its first part before its last, in one line at a time. Hardware promises no
//!   order of the parts.
//! * Bytes that were written in a way the client does not record (`Unsupported`, `Interrupted`) are not pending.
//! * A line with more than [`MAX_PENDING`] pending stores merges its oldest ones: this loses states but adds no wrong
//!   ones.
//!
//! # A line with pending stores
//!
//! ```
//! use pmvet_events::event::{FenceKind, FlushKind, StoreKind};
//! use pmvet_events::{ContextId, Event, FileId, SiteId, ThreadId, What};
//! use pmvet_model::{LineId, Mode, Model, Unknown};
//!
//! fn run(model: &mut Model, first: u64, events: &[What<'_>]) {
//!     for (seq, &what) in (first..).zip(events) {
//!         let event = Event { seq, thread: ThreadId(1), site: SiteId(0), context: ContextId(0), what };
//!         model.event(&event, &Unknown);
//!     }
//! }
//!
//! let pool = FileId(1);
//! let mut model = Model::new(Mode::Adr);
//! run(&mut model, 1, &[
//!     What::ProcessStart { process: 1, parent: 0, path: "list".as_ref() },
//!     What::Map { file: pool, addr: 0x1000, len: 4096, offset: 0, writable: true },
//!     What::Store { addr: 0x1000, value: &[1], how: StoreKind::Regular },
//!     What::Store { addr: 0x1008, value: &[2], how: StoreKind::Regular },
//! ]);
//! // A crash keeps none of the two, the first, or both.
//! let line = model.line(LineId::containing(pool, 0)).expect("a line with pending stores");
//! assert_eq!((line.stores().len(), line.states().len()), (2, 3));
//!
//! run(&mut model, 5, &[
//!     What::Flush { addr: 0x1000, how: FlushKind::Clwb, pm: true },
//!     What::Fence { how: FenceKind::Sfence },
//! ]);
//! assert!(model.line(LineId::containing(pool, 0)).is_none(), "both are in PM");
//! ```

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod buffer;
mod line;
mod lines;
mod model;
mod shadow;
pub mod states;
mod store;
mod watch;

use pmvet_events::FileId;
use pmvet_events::event::LINE;

pub use line::{Line, MAX_PENDING};
pub use model::Model;
pub use shadow::Shadow;
pub use store::{Store, WriteKind};
pub use watch::{LineWatch, Persisted};

/// Bytes in a cache line, as an array length.
pub const LINE_BYTES: usize = LINE as usize;

/// What a power failure loses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// The content of caches: data is safe once the memory controller has it.
    #[default]
    Adr,
    /// Only what has not reached a cache.
    Eadr,
}

/// A cache line of a PM file. Lines belong to files, so two mappings or two processes share them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineId {
    /// The PM file.
    pub file: FileId,
    /// Offset in the file divided by the size of a line.
    pub index: u64,
}

impl LineId {
    /// The line that holds this byte.
    pub fn containing(file: FileId, offset: u64) -> Self {
        Self { file, index: offset / LINE }
    }

    /// Offset of its first byte in the file.
    pub fn offset(self) -> u64 {
        self.index * LINE
    }
}

/// The known content of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LineContent {
    /// Zero where not known.
    pub bytes: [u8; LINE_BYTES],
    /// A bit for each byte, the first one lowest.
    pub known: u64,
}

impl LineContent {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self { bytes: [0; LINE_BYTES], known: 0 };

    /// All of it is known.
    pub fn new(bytes: [u8; LINE_BYTES]) -> Self {
        Self { bytes, known: u64::MAX }
    }
}

/// Gives the model the content of a line that becomes pending: that of the newest image of PM, before the event.
pub trait LineSource {
    /// The content of one line.
    fn line(&self, line: LineId) -> LineContent;
}

/// A source for models that need no contents.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unknown;

impl LineSource for Unknown {
    fn line(&self, _line: LineId) -> LineContent {
        LineContent::UNKNOWN
    }
}

/// Bits `first..first + len` of a line's 64.
pub(crate) fn mask(first: usize, len: usize) -> u64 {
    let bits = if len >= LINE_BYTES { u64::MAX } else { (1 << len) - 1 };
    bits << first
}
