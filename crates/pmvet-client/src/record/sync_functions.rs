//! The functions that are hooked: those that synchronise threads, allocators, and libpmemobj's transactions.
//!
//! A hooked function is recognised by the address of its first instruction. What happens at its entry and return is in
//! [`super::hooked_calls`].

use std::collections::HashMap;
use std::path::Path;
use std::sync::RwLock;

use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};
use pmvet_events::event::{LockKind, SyncOp};
use pmvet_events::plan::{Plan, SyncFunctionKind};

use super::allocators::{self, Allocator};
use super::sites::SITES;
use super::transactions::{self, TransactionCall};
use crate::dynamorio::Global;

/// The hooked functions of this process.
pub(crate) static HOOKS: Global<Hooks> = Global::new();

/// What a function does to the object that one of its arguments names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SyncRole {
    Acquire(LockKind, Success),
    Release(LockKind),
    /// Releases and re-acquires the mutex that is its second argument.
    CondWait,
    Signal(SyncOp),
    Barrier,
    SemPost,
    SemWait,
    Join,
    Detach,
    Allocate(Allocator),
    Transaction(TransactionCall),
}

impl SyncRole {
    /// Whether it is about an object that threads synchronise by.
    pub(super) fn synchronises(self) -> bool {
        !matches!(self, Self::Allocate(_) | Self::Transaction(_) | Self::Detach)
    }
}

/// How a function reports that it has acquired the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Success {
    Always,
    Returns(i64),
    /// 0, or `EOWNERDEAD`: the owner of a robust mutex died, and it is ours now.
    Mutex,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Hook {
    pub(super) role: SyncRole,
    pub(super) arg: u8,
    pub(super) site: u32,
    /// It may call another hooked function for the same object, which is not reported again.
    pub(super) wrapper: bool,
}

/// The entry of a hooked function, for the code that is put there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    /// The hook's number.
    pub(crate) number: u32,
    pub(crate) site: u32,
    pub(crate) kind: EntryKind,
}

/// How an entry is handled.
#[derive(Debug, Clone, Copy)]
pub(crate) enum EntryKind {
    /// It takes the lock that is its first argument. The stubs can handle it.
    Lock(LockKind),
    /// It releases the lock that is its first argument. The stubs can handle it.
    Unlock(LockKind),
    /// Only Rust can handle it.
    Other,
}

pub(crate) struct Hooks {
    names: HashMap<String, (SyncRole, u8)>,
    found: RwLock<Found>,
}

#[derive(Default)]
struct Found {
    hooks: Vec<Hook>,
    at: HashMap<u64, u32>,
    /// Address ranges of modules that have hooked functions.
    modules: Vec<(u64, u64)>,
    /// Address ranges of the C library and the loader. Their own atomics show nothing that the hooks do not.
    libraries: Vec<(u64, u64)>,
}

impl Hooks {
    pub(crate) fn new(plan: &Plan) -> Self {
        use LockKind::{Exclusive, Shared};
        use SyncRole::{Acquire, Barrier, CondWait, Join, Release, SemPost, SemWait, Signal};
        let zero = Success::Returns(0);
        let built_in: &[(&[&str], SyncRole)] = &[
            (
                &["pthread_mutex_lock", "pthread_mutex_trylock", "pthread_mutex_timedlock", "pthread_mutex_clocklock"],
                Acquire(Exclusive, Success::Mutex),
            ),
            (&["mtx_lock", "mtx_trylock", "mtx_timedlock"], Acquire(Exclusive, zero)),
            (&["pthread_mutex_unlock", "mtx_unlock"], Release(Exclusive)),
            (&["pthread_spin_lock", "pthread_spin_trylock"], Acquire(Exclusive, zero)),
            (&["pthread_spin_unlock"], Release(Exclusive)),
            (
                &[
                    "pthread_rwlock_rdlock",
                    "pthread_rwlock_tryrdlock",
                    "pthread_rwlock_timedrdlock",
                    "pthread_rwlock_clockrdlock",
                ],
                Acquire(Shared, zero),
            ),
            (
                &[
                    "pthread_rwlock_wrlock",
                    "pthread_rwlock_trywrlock",
                    "pthread_rwlock_timedwrlock",
                    "pthread_rwlock_clockwrlock",
                ],
                Acquire(Exclusive, zero),
            ),
            (&["pthread_rwlock_unlock"], Release(Exclusive)),
            (
                &["pthread_cond_wait", "pthread_cond_timedwait", "pthread_cond_clockwait", "cnd_wait", "cnd_timedwait"],
                CondWait,
            ),
            (&["pthread_cond_signal", "cnd_signal"], Signal(SyncOp::CondSignal)),
            (&["pthread_cond_broadcast", "cnd_broadcast"], Signal(SyncOp::CondBroadcast)),
            (&["pthread_barrier_wait"], Barrier),
            (&["sem_post"], SemPost),
            (&["sem_wait", "sem_trywait", "sem_timedwait", "sem_clockwait"], SemWait),
            (
                &["pthread_join", "pthread_tryjoin_np", "pthread_timedjoin_np", "pthread_clockjoin_np", "thrd_join"],
                Join,
            ),
        ];
        let mut names: HashMap<String, (SyncRole, u8)> =
            built_in.iter().flat_map(|(names, role)| names.iter().map(|n| (n.to_string(), (*role, 0)))).collect();
        for function in &plan.sync {
            let how = if function.shared { Shared } else { Exclusive };
            let role = match function.kind {
                SyncFunctionKind::Acquire => Acquire(how, function.success.map_or(Success::Always, Success::Returns)),
                SyncFunctionKind::Try => Acquire(how, Success::Returns(function.success.unwrap_or(0))),
                SyncFunctionKind::Release => Release(how),
            };
            names.insert(function.function.clone(), (role, function.arg));
        }
        if plan.races {
            names.extend(["pthread_detach", "thrd_detach"].map(|name| (name.into(), (SyncRole::Detach, 0))));
            names.extend(allocators::functions(plan).map(|(name, function)| (name, (SyncRole::Allocate(function), 0))));
        }
        names.extend(transactions::functions(plan.races).map(|(name, call)| (name, (SyncRole::Transaction(call), 0))));
        Self { names, found: RwLock::default() }
    }

    /// The hook of the function that starts at `pc`.
    pub(crate) fn entry_at(&self, pc: u64) -> Option<Entry> {
        let found = self.found.read().unwrap_or_else(|e| e.into_inner());
        let number = *found.at.get(&pc)?;
        let hook = found.hooks.get(number as usize)?;
        let simple = hook.arg == 0 && !hook.wrapper;
        let kind = match hook.role {
            SyncRole::Acquire(how, Success::Mutex | Success::Returns(0)) if simple => EntryKind::Lock(how),
            SyncRole::Release(how) if simple => EntryKind::Unlock(how),
            _ => EntryKind::Other,
        };
        Some(Entry { number, site: hook.site, kind })
    }

    /// Whether a return instruction at `pc` may be that of a hooked function.
    pub(crate) fn may_return_at(&self, pc: u64) -> bool {
        let found = self.found.read().unwrap_or_else(|e| e.into_inner());
        found.modules.iter().any(|&(start, end)| (start..end).contains(&pc))
    }

    /// Whether `pc` is in the C library or the loader.
    pub(crate) fn is_library(&self, pc: u64) -> bool {
        let found = self.found.read().unwrap_or_else(|e| e.into_inner());
        found.libraries.iter().any(|&(start, end)| (start..end).contains(&pc))
    }

    /// Finds the hooked functions of a module that was loaded.
    pub(crate) fn hook_module(&self, start: u64, end: u64, path: &Path) {
        let Ok(bytes) = std::fs::read(path) else { return };
        let Ok(file) = object::File::parse(&*bytes) else { return };
        let preferred = file.segments().map(|s| s.address() & !0xfff).min().unwrap_or(0);
        let mut found = self.found.write().unwrap_or_else(|e| e.into_inner());
        let before = found.hooks.len();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if ["libc.so", "libc-", "libpthread", "ld-linux", "ld-2", "ld-musl"].iter().any(|known| name.starts_with(known))
        {
            found.libraries.push((start, end));
        }
        for symbol in file.dynamic_symbols().chain(file.symbols()) {
            if symbol.kind() != SymbolKind::Text || symbol.is_undefined() {
                continue;
            }
            let Ok(name) = symbol.name() else { continue };
            let Some(&(role, arg)) = self.names.get(name) else { continue };
            let pc = symbol.address().wrapping_sub(preferred).wrapping_add(start);
            if found.at.contains_key(&pc) {
                continue;
            }
            let number = found.hooks.len() as u32;
            let known = name.starts_with("pthread_") || name.starts_with("sem_");
            let wrapper = !known && role.synchronises();
            found.hooks.push(Hook { role, arg, site: SITES.id_at(pc), wrapper });
            found.at.insert(pc, number);
        }
        if found.hooks.len() > before {
            found.modules.push((start, end));
        }
    }

    pub(crate) fn unhook_module(&self, start: u64, end: u64) {
        let mut found = self.found.write().unwrap_or_else(|e| e.into_inner());
        found.at.retain(|&pc, _| pc < start || pc >= end);
        found.modules.retain(|&(s, _)| s != start);
        found.libraries.retain(|&(s, _)| s != start);
    }

    pub(super) fn hook(&self, number: u32) -> Option<Hook> {
        self.found.read().unwrap_or_else(|e| e.into_inner()).hooks.get(number as usize).copied()
    }
}
