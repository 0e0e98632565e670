//! A store, or the part of it that is in one line.

use pmvet_events::event::StoreKind;
use pmvet_events::{ContextId, SiteId, ThreadId};

use crate::mask;

/// A store that a line has taken. Its bytes are kept by the line, see [`Line::value`](crate::Line::value).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Store {
    pub seq: u64,
    pub thread: ThreadId,
    pub site: SiteId,
    pub context: ContextId,
    pub kind: Kind,
    /// Stands for several stores that were merged, of which this was the first; they only come together.
    pub merged: bool,
    /// First byte in the line.
    pub(crate) offset: u8,
    pub(crate) len: u8,
    /// Where its bytes start among those of the line.
    pub(crate) data: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Regular,
    NonTemporal,
    /// By the kernel, on behalf of the target.
    Kernel,
    /// By a locked read-modify-write.
    Rmw,
}

impl From<StoreKind> for Kind {
    fn from(how: StoreKind) -> Self {
        match how {
            StoreKind::Regular => Kind::Regular,
            StoreKind::NonTemporal => Kind::NonTemporal,
            StoreKind::Kernel => Kind::Kernel,
        }
    }
}

impl Store {
    /// First byte in the line. For merged stores: of all they cover, with gaps.
    pub fn offset(&self) -> usize {
        self.offset.into()
    }

    #[allow(clippy::len_without_is_empty, reason = "a store is never empty")]
    pub fn len(&self) -> usize {
        self.len.into()
    }

    /// The bytes of the line it covers, one bit each. Too many for merged stores, see
    /// [`Line::covers`](crate::Line::covers).
    pub(crate) fn extent(&self) -> u64 {
        mask(self.offset(), self.len())
    }
}
