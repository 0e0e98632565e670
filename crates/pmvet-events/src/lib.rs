//! What pmvet knows about a run: the event vocabulary, and the two ways events travel.
//!
//! * [`event`] — the vocabulary. Every engine reads [`Event`]s and nothing else.
//! * [`shm`] and [`wire`] — how events travel from the target to pmvet while the target runs: rings in shared memory.
//! * [`file`](mod@file) — how events are stored: a versioned, checksummed trace file with an end record.
//! * [`paths`] — paths that are not UTF-8, as text.
//! * [`spaces`] — which file an address belongs to, in each process.
//! * [`plan`] — what the client is told before the target starts; [`stage`] — orders to fork servers, and counter maps;
//!   [`thread_state`] — a followed thread before an instruction.
//!
//! This crate depends on no other crate of pmvet, since both sides of the process boundary link it.
//!
//! # An event goes into a trace and comes back
//!
//! ```
//! use pmvet_events::event::StoreKind;
//! use pmvet_events::file::{Definitions, TraceEnd, TraceError, TraceHeader, TraceReader, TraceWriter};
//! use pmvet_events::{ContextId, Event, SiteId, ThreadId, What};
//!
//! # fn main() -> Result<(), TraceError> {
//! let what = What::Store { addr: 0x7f00_0000_0040, value: &[1, 2, 3, 4], how: StoreKind::NonTemporal };
//! let event = Event { seq: 1, thread: ThreadId(1), site: SiteId(0), context: ContextId(0), what };
//!
//! let mut writer = TraceWriter::new(Vec::new(), &TraceHeader::default())?;
//! writer.write(&event, &Definitions::default())?;
//! let trace = writer.finish(&TraceEnd { complete: true, ..TraceEnd::default() })?;
//!
//! let mut reader = TraceReader::new(&trace[..])?;
//! assert_eq!(reader.next()?, Some(event));
//! assert_eq!(reader.next()?, None);
//!
//! // Without its end record a trace is cut short, however much of it can be read.
//! let mut reader = TraceReader::new(&trace[..trace.len() - 1])?;
//! reader.next()?;
//! assert!(matches!(reader.next(), Err(TraceError::Truncated { .. })));
//! # Ok(())
//! # }
//! ```

#![deny(missing_docs)]

pub mod event;
pub mod file;
pub mod ids;
pub mod paths;
pub mod places;
pub mod plan;
pub mod shm;
pub mod spaces;
pub mod stage;
pub mod thread_state;
pub mod wire;

pub use event::{Event, What};
pub use ids::{ContextId, FileId, ModuleId, SiteId, ThreadId};
pub use places::{Context, Places, Site};
