//! What a thread knows about the locks that it holds or waits for.

use pmvet_events::ids::{ContextId, SiteId};

use super::allocators::Request;
use super::sync_functions::SyncRole;

/// A hooked function that has not returned yet.
#[derive(Debug)]
pub(crate) struct PendingCall {
    pub(super) sp: u64,
    pub(super) role: SyncRole,
    pub(super) object: u64,
    pub(super) second: u64,
    pub(super) request: Request,
    pub(super) site: SiteId,
    pub(super) context: ContextId,
}

/// A lock that a function entered through the stubs is about to take: a [`PendingCall`] in a form that they can use. There
/// is none if the stack pointer is 0.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct AwaitedLock {
    pub(crate) sp: u64,
    pub(crate) object: u64,
    /// Site and context, as in a record.
    pub(crate) place: u64,
    /// Kind and size of the record, as in its first word.
    pub(crate) kind: u32,
}

/// A lock that a thread holds.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct HeldLock {
    pub(crate) object: u64,
    /// A [`LockKind`].
    pub(crate) how: u8,
}

/// How many locks a thread remembers, the newest ones: programs rarely hold more. The release of an older one shows only
/// when another thread takes it.
pub(crate) const MAX_HELD_SPIN_LOCKS: usize = 4;

/// A word that a thread has changed in the way a lock is taken. Stubs read it.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct HeldSpinLock {
    /// The address of the aligned 8 bytes that the lock is in.
    pub(super) word: u64,
    /// Which bits of these are the lock.
    pub(super) mask: u64,
    /// Their value when the lock was taken.
    pub(super) value: u64,
}
