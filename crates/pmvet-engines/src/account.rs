//! Whether the program or a library is responsible for an event.
//!
//! A library is responsible for its own stores, flushes and fences; the program is for those that it asked the library
//! to make (`pmem_persist`, `pmemobj_memcpy`).

use pmvet_findings::{Frame, Stack};

use crate::stacks::{Owner, owner};

/// Who is responsible for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Account {
    User,
    /// A library, and why the event need not be reported.
    Library(&'static str),
}

/// Functions of PMDK that do to PM exactly what name and arguments say.
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

/// Lock functions of the C library: locks hold volatile state wherever they are, as pthreads has none that survive a
/// crash. libpmemobj uses the same locks, with a number that shows after a restart that they are stale.
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
    // The user called the outermost of the library's functions.
    match library.iter().rfind(|f| owner(f) == Owner::PmLibrary) {
        Some(entry) if !named(ON_BEHALF, entry) => Account::Library(
            "PMDK's own heap, logs and run-time state: checksums, redo and undo logs protect what it keeps, and part of a pool's \
             header and of its lanes is volatile by design and set up anew when the pool is opened",
        ),
        _ => Account::User,
    }
}
