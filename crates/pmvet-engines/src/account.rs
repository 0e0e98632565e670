//! On whose account an event is: the program's, or a library's.
//!
//! A library's own stores, flushes and fences are nobody's business but the library's; those that it makes because the
//! program asked for exactly that (`pmem_persist`, `pmemobj_memcpy`) are the program's.

use pmvet_findings::{Frame, Stack};

use crate::stacks::{Owner, owner};

/// On whose account an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Account {
    User,
    /// Somebody else's, and why it need not be reported.
    Library(&'static str),
}

/// Functions of PMDK that do to PM exactly what their name and arguments say.
const ON_BEHALF: &[&str] = &[
    "pmem_persist",
    "pmem_flush",
    "pmem_deep_",
    "pmem_drain",
    "pmem_msync",
    "pmem_memcpy",
    "pmem_memmove",
    "pmem_memset",
    "pmem2_",
    "pmemobj_persist",
    "pmemobj_flush",
    "pmemobj_drain",
    "pmemobj_xpersist",
    "pmemobj_xflush",
    "pmemobj_memcpy",
    "pmemobj_memmove",
    "pmemobj_memset",
    "pmemblk_",
    "pmemlog_",
];

/// Of the C library: its locks hold volatile state wherever they are, as pthreads has no locks that survive a crash.
/// libpmemobj's locks are these, with a number that tells after a restart that they are stale.
const LOCKS: &[&str] =
    &["pthread_", "__pthread_", "___pthread_", "__lll_", "__GI___pthread", "lll_", "sem_", "__new_sem"];

pub(crate) fn account(stack: &Stack) -> Account {
    let inside = stack.iter().take_while(|f| owner(f) != Owner::User).count();
    let library = &stack[..inside];
    let named = |names: &[&str], f: &Frame| {
        f.function.as_deref().is_some_and(|function| names.iter().any(|name| function.starts_with(name)))
    };
    if library.iter().any(|f| owner(f) == Owner::Runtime && named(LOCKS, f)) {
        return Account::Library("the state of a lock of the C library, which is volatile by design");
    }
    if inside == stack.len() {
        return Account::Library("no code of the program is involved: a library starts up or shuts down");
    }
    // The function that the user called is the outermost of the library's.
    match library.iter().rfind(|f| owner(f) == Owner::PmLibrary) {
        Some(entry) if !named(ON_BEHALF, entry) => Account::Library(
            "PMDK's own heap, logs and run-time state: checksums, redo and undo logs protect what it keeps, and part of a pool's \
             header and of its lanes is volatile by design and set up anew when the pool is opened",
        ),
        _ => Account::User,
    }
}
