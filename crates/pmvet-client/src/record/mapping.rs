//! Mappings of PM files.

use pmvet_events::event::LINE;
use pmvet_events::ids::FileId;
use pmvet_events::shm::STRIPES;

/// A shared mapping of a PM file, or a part of one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) file: FileId,
    pub(crate) inode: u64,
    pub(crate) offset: u64,
}

impl Mapping {
    /// A number for the mapping's first byte such that the same byte of the same file has the same number in every
    /// mapping and every process.
    pub(crate) fn key(&self) -> u64 {
        self.offset.wrapping_add(self.inode.wrapping_mul(0x9e37_79b9 * LINE))
    }

    /// The stripe lock of the line at `addr`.
    pub(crate) fn stripe(&self, addr: u64) -> usize {
        (addr.wrapping_sub(self.start).wrapping_add(self.key()) / LINE) as usize % STRIPES
    }

    /// The part of the mapping within an address range.
    pub(super) fn clip(&self, start: u64, end: u64) -> Option<Self> {
        let (from, to) = (self.start.max(start), self.end.min(end));
        (from < to).then(|| Self { start: from, end: to, offset: self.offset + (from - self.start), ..*self })
    }
}
