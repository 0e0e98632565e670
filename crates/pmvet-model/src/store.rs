//! A store, or the part of it that is in one line.

use pmvet_events::event::StoreKind;
use pmvet_events::{ContextId, SiteId, ThreadId};

use crate::mask;

/// A store to a line. Its bytes are kept by the line, see [`Line::value`](crate::Line::value).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Store {
    /// Number of its event.
    pub seq: u64,
    /// The thread that stored.
    pub thread: ThreadId,
    /// The instruction.
    pub site: SiteId,
    /// Its call path.
    pub context: ContextId,
    /// How it was stored.
    pub kind: WriteKind,
    /// Stands for several merged stores, of which this was the first; a crash keeps or loses them together.
    pub merged: bool,
    /// First byte in the line.
    pub(crate) offset: u8,
    pub(crate) len: u8,
    /// Where its bytes start among those of the line.
    pub(crate) data: u32,
}

/// How a store reaches memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WriteKind {
    /// Through the caches.
    Regular,
    /// Past the caches, after the next fence at the latest.
    NonTemporal,
    /// By the kernel, on behalf of the target.
    Kernel,
    /// By a locked read-modify-write.
    Rmw,
}

impl From<StoreKind> for WriteKind {
    fn from(how: StoreKind) -> Self {
        match how {
            StoreKind::Regular => WriteKind::Regular,
            StoreKind::NonTemporal => WriteKind::NonTemporal,
            StoreKind::Kernel => WriteKind::Kernel,
        }
    }
}

impl Store {
    /// First byte in the line. Merged stores may cover their range with gaps.
    pub fn offset(&self) -> usize {
        self.offset.into()
    }

    /// Bytes in the line.
    #[allow(clippy::len_without_is_empty, reason = "a store is never empty")]
    pub fn len(&self) -> usize {
        self.len.into()
    }

    /// The bytes of the line it covers, one bit each. Includes the gaps of merged stores, see
    /// [`Line::covers`](crate::Line::covers).
    pub(crate) fn extent(&self) -> u64 {
        mask(self.offset(), self.len())
    }
}
