//! The trace file: how events are stored.
//!
//! ```text
//! trace    = preamble  header-block  event-block*  end-block        and nothing after it
//! preamble = magic[8]  version:u32  length:u8  pmvet-version[length]  crc:u32
//! block    = frame+                                                 all but the last say "continued"
//! frame    = kind:u8  flags:u8  raw-length:u32  stored-length:u32  crc:u32  stored[stored-length]
//! ```
//!
//! Numbers are little-endian. What the format promises:
//!
//! 1. The preamble never changes between versions, so that an old pmvet can name the pmvet that a new trace needs.
//! 2. Each checksum covers its frame and, as its starting value, the checksum before it: a damaged, lost, repeated or
//!    foreign frame is noticed, not only a damaged byte.
//! 3. A trace has an end record. Without it the recording was cut short, and reading it ends in
//!    [`TraceError::Truncated`], never in a clean end.
//! 4. A frame holds at most 128 KiB, so that a wrong length cannot make the reader allocate much. An
//!    event larger than that makes its block span several frames.
//! 5. Paths and arguments are bytes as the kernel has them, which need not be UTF-8; all other texts are UTF-8.
//! 6. Header and end record are lists of tagged fields; a reader skips the ones it does not know.
//!
//! Inside an event block each event is coded against a prediction, see `codec`. The prediction lives through the
//! whole file: a trace is read from the start, which gives smaller files than blocks that can be read on their own.

mod codec;
mod decode;
mod encode;
mod frame;
mod predictor;
mod reader;
mod writer;

pub use decode::Definitions;
pub use reader::TraceReader;
pub use writer::TraceWriter;

use std::ffi::OsString;
use std::io;

/// The version of the format that this pmvet writes, and the only one that it reads.
pub const VERSION: u32 = 4;

/// What is known before the first event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TraceHeader {
    /// The target and its arguments.
    pub command: Vec<OsString>,
    /// The pmvet that wrote the trace. At most 255 bytes of it are kept.
    pub pmvet_version: String,
    /// Whether loads were recorded. Without them some questions cannot be asked of the trace.
    pub loads: bool,
}

/// What is known after the last event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TraceEnd {
    /// How many events the trace holds. The writer counts them itself.
    pub events: u64,
    /// False if pmvet stopped recording before the target ended.
    pub complete: bool,
    /// How the target ended, in words.
    pub exit: String,
}

/// Why a trace cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file does not start as a trace does.
    #[error("not a pmvet trace: {found}")]
    NotATrace {
        /// What it is instead, in words.
        found: String,
    },

    /// A pmvet that writes another format wrote it.
    #[error(
        "the trace has format version {found}, but this pmvet reads version {supported}; \
         use pmvet {written_by}, which wrote it{}, or record it again",
        if found > supported { ", or a newer one" } else { "" }
    )]
    Version {
        /// The format of the trace.
        found: u32,
        /// [`VERSION`] of this pmvet.
        supported: u32,
        /// The version of the pmvet that wrote it.
        written_by: String,
    },

    /// The file ends before its end record.
    #[error(
        "the trace is cut short: it stops at byte {offset}, after {events_read} events, without an end record; \
         the recording was killed, the disk was full or the copy is incomplete: copy or record it again"
    )]
    Truncated {
        /// How many events could be read.
        events_read: u64,
        /// The size of the file in bytes.
        offset: u64,
    },

    /// A checksum is wrong, or what it covers makes no sense.
    #[error("the trace is damaged at byte {offset}: {what}; copy or record it again")]
    Corrupt {
        /// Where the damaged part of the file starts, in bytes.
        offset: u64,
        /// What is wrong there, in words.
        what: String,
    },

    /// The system cannot do what a reader or a writer wants.
    #[error("cannot {action} {file}: {source}")]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The path, or `the trace` for one that has none.
        file: String,
        /// What the system says.
        source: io::Error,
    },
}
