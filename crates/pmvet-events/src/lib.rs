//! What pmvet knows about a run: the event vocabulary, and the two ways events travel.
//!
//! * [`event`] — the vocabulary. Every engine reads [`Event`]s and nothing else.
//! * [`shm`] and [`wire`] — how events travel from the target to pmvet while the target runs: rings in shared memory.
//! * [`file`](mod@file) — how events rest: a versioned, checksummed trace file with an end record.
//! * [`paths`] — paths that are not UTF-8, as text.
//! * [`spaces`] — which file an address belongs to, in each process.
//! * [`plan`] — what the client is told before the target starts; [`stage`] — orders to fork servers, and counter maps;
//!   [`step`] — a followed thread before an instruction.
//!
//! This crate depends on no other crate of pmvet, since both sides of the process boundary link it.

pub mod event;
pub mod file;
pub mod ids;
pub mod paths;
pub mod places;
pub mod plan;
pub mod shm;
pub mod spaces;
pub mod stage;
pub mod step;
pub mod wire;

pub use event::{Event, What};
pub use ids::{ContextId, FileId, ModuleId, SiteId, ThreadId};
pub use places::{Context, Places, Site};
