//! Spinning: a thread that waits for a lock or a flag makes the same access over and over.
//!
//! Millions of failed attempts at one lock say no more than a few, and recording them costs as much as any other access. So only the
//! first [`SPINS_REPORTED`] of a row are reported. A row consists of accesses by one instruction on one call path to one address that
//! find the same value and change nothing, with nothing else of the thread in between but fences, which have nothing to order there. The
//! first access that finds another value ends the row and is reported again.

use super::thread::Thread;

/// How many accesses of a row are reported: enough for pmvet to see that the thread spins.
pub(crate) const SPINS_REPORTED: u32 = 256;
/// How many accesses a spinning thread makes between two rests, a power of two. They take a few microseconds.
pub(crate) const SPINS_PER_REST: u32 = 64;

/// The kind of an access that was not reported. No record has it.
pub(crate) const UNREPORTED: u8 = 0;

/// The last access of a thread that has changed nothing. Stubs read and write it.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Spin {
    /// The ring's head after its record: another head means that something else was reported since.
    pub(crate) head: u64,
    /// Site and context, as in a record.
    pub(crate) place: u64,
    pub(crate) addr: u64,
    pub(crate) found: u64,
    /// How often it was made again in a row.
    pub(crate) count: u32,
}

impl Thread {
    /// Whether its last access was one of a row, and was not reported.
    pub(crate) fn is_spinning(&self) -> bool {
        let Spin { head, addr, count, .. } = self.spin;
        head == self.head && addr != 0 && count >= SPINS_REPORTED
    }
}
