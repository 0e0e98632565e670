//! Synchronisation functions: which there are, and what they mean when they are entered and when they return.
//!
//! A hooked function is recognised by the address of its first instruction. If its result matters, the stack pointer
//! at which it will return is remembered, and every return instruction in the module compares its own with that. This
//! needs no change of the target's stack, and survives tail calls and frames that are thrown away.
//!
//! Taking and giving back one lock at a time, by far the most common, is done by the stubs without coming here.

use std::collections::HashMap;
use std::path::Path;
use std::sync::RwLock;

use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};
use pmvet_events::event::{LockKind, SyncOp, What};
use pmvet_events::ids::{ContextId, SiteId};
use pmvet_events::plan::{Plan, SyncFunctionKind};
use pmvet_events::wire;

use crate::alloc::{self, Allocator, Request};
use crate::emit::Access;
use crate::thread::{Thread, slot};
use crate::{client, stubs};

/// What a function does, by the argument that names its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
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
    /// Begins a transaction of the pool that is its first argument.
    Begin,
}

/// When an acquisition has worked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Success {
    Always,
    Returns(i64),
    /// 0, or `EOWNERDEAD`: the owner of a robust mutex died, and it is ours now.
    Mutex,
}

#[derive(Debug, Clone, Copy)]
struct Hook {
    role: Role,
    arg: u8,
    site: u32,
    /// It may call another hooked function for the same object, which is then not reported again.
    wrapper: bool,
}

/// A hooked function that has not returned yet.
#[derive(Debug)]
pub(crate) struct Pending {
    sp: u64,
    role: Role,
    object: u64,
    second: u64,
    request: Request,
    site: SiteId,
    context: ContextId,
}

/// A lock whose taking the stubs saw begin: a [`Pending`] in a form they can read. At stack pointer 0 there is none.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Lock {
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
pub(crate) struct Held {
    pub(crate) object: u64,
    /// A [`LockKind`].
    pub(crate) how: u8,
}

pub(crate) struct Hooks {
    names: HashMap<String, (Role, u8)>,
    found: RwLock<Found>,
}

#[derive(Default)]
struct Found {
    hooks: Vec<Hook>,
    at: HashMap<u64, u32>,
    /// Address ranges of modules that have hooked functions.
    modules: Vec<(u64, u64)>,
    /// Those of the C library and the loader, whose own atomics say nothing that the hooks do not say.
    libraries: Vec<(u64, u64)>,
}

impl Hooks {
    pub(crate) fn new(plan: &Plan) -> Self {
        use LockKind::{Exclusive, Shared};
        use Role::{Acquire, Barrier, CondWait, Join, Release, SemPost, SemWait, Signal};
        let zero = Success::Returns(0);
        let built_in: &[(&[&str], Role)] = &[
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
        let mut names: HashMap<String, (Role, u8)> =
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
            names.extend(["pthread_detach", "thrd_detach"].map(|name| (name.into(), (Role::Detach, 0))));
            names.extend(alloc::functions(plan).map(|(name, function)| (name, (Role::Allocate(function), 0))));
            names.insert("pmemobj_tx_begin".into(), (Role::Begin, 0));
        }
        Self { names, found: RwLock::default() }
    }

    /// The hook of the function that starts at `pc`: its number, the stub that is told, and what else that is told.
    pub(crate) fn at(&self, pc: u64) -> Option<(u32, extern "C" fn(), Access)> {
        let found = self.found.read().unwrap_or_else(|e| e.into_inner());
        let number = *found.at.get(&pc)?;
        let hook = found.hooks.get(number as usize)?;
        let simple = hook.arg == 0 && !hook.wrapper;
        let (stub, kind, size): (extern "C" fn(), u8, u8) = match hook.role {
            Role::Acquire(how, Success::Mutex | Success::Returns(0)) if simple => {
                (stubs::lock_entered, wire::ACQUIRE, how as u8)
            }
            Role::Release(how) if simple => (stubs::unlock_entered, wire::RELEASE, how as u8),
            _ => (stubs::entered, 0, 0),
        };
        Some((number, stub, Access { site: hook.site, kind, size, todo: 0 }))
    }

    /// Whether a return instruction at `pc` may be that of a hooked function.
    pub(crate) fn watches(&self, pc: u64) -> bool {
        let found = self.found.read().unwrap_or_else(|e| e.into_inner());
        found.modules.iter().any(|&(start, end)| (start..end).contains(&pc))
    }

    /// Whether `pc` is in the C library or the loader.
    pub(crate) fn is_library(&self, pc: u64) -> bool {
        let found = self.found.read().unwrap_or_else(|e| e.into_inner());
        found.libraries.iter().any(|&(start, end)| (start..end).contains(&pc))
    }

    /// Finds the hooked functions of a module that was loaded.
    pub(crate) fn search(&self, start: u64, end: u64, path: &Path) {
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
            let wrapper = !known && !matches!(role, Role::Allocate(_) | Role::Begin | Role::Detach);
            found.hooks.push(Hook { role, arg, site: client().sites.of(pc), wrapper });
            found.at.insert(pc, number);
        }
        if found.hooks.len() > before {
            found.modules.push((start, end));
        }
    }

    pub(crate) fn forget(&self, start: u64, end: u64) {
        let mut found = self.found.write().unwrap_or_else(|e| e.into_inner());
        found.at.retain(|&pc, _| pc < start || pc >= end);
        found.modules.retain(|&(s, _)| s != start);
        found.libraries.retain(|&(s, _)| s != start);
    }

    fn hook(&self, number: u32) -> Option<Hook> {
        self.found.read().unwrap_or_else(|e| e.into_inner()).hooks.get(number as usize).copied()
    }
}

/// A hooked function was entered, and the stubs could not deal with it.
pub(crate) unsafe extern "C" fn entered(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    let thread = unsafe { &mut *thread };
    let Some(hook) = client().hooks.hook(thread.slot(slot::ADDR) as u32) else { return };
    let arguments = [thread.rdi, thread.rsi, thread.rdx, thread.slot(slot::SAVED)];
    let object = arguments[usize::from(hook.arg) % arguments.len()];
    let sp = thread.rsp;
    thread.remember_lock();
    // Frames below this one are gone, however they were left.
    thread.pending.retain(|p| p.sp >= sp);
    // C11's functions are wrappers around those of pthread, and a lock of the user's may be one too: the outermost counts.
    let synchronises = !matches!(hook.role, Role::Allocate(_) | Role::Begin | Role::Detach);
    if synchronises && thread.pending.iter().any(|p| p.object == object) {
        return;
    }
    let mut request = Request::default();
    match hook.role {
        Role::Allocate(function) => request = function.request(&arguments, thread.pool),
        Role::Begin => thread.pool = object,
        _ => thread.look_at_taken(),
    }
    let context = thread.context(sp);
    let site = SiteId(hook.site);
    // A reader-writer lock is given back by the same function, however it was taken.
    let taken = if matches!(hook.role, Role::Release(_)) { thread.no_longer_held(object) } else { None };
    let mut emit = |what| thread.emit_at(site, context, what);
    match hook.role {
        Role::Release(how) => {
            emit(What::Release { lock: object, how: taken.unwrap_or(how) });
        }
        Role::Signal(op) => {
            emit(What::Sync { object, op });
        }
        Role::SemPost => {
            emit(What::Sync { object, op: SyncOp::SemPost });
        }
        Role::CondWait => {
            emit(What::Sync { object, op: SyncOp::CondWait });
            emit(What::Release { lock: arguments[1], how: LockKind::Exclusive });
        }
        Role::Barrier => {
            emit(What::Sync { object, op: SyncOp::BarrierEnter });
        }
        Role::Detach => {
            if let Some(child) = client().thread_by_handle(object) {
                emit(What::ThreadDetach { child });
            }
        }
        Role::Acquire(..) | Role::SemWait | Role::Join | Role::Allocate(_) | Role::Begin => {}
    }
    let returns = !matches!(hook.role, Role::Release(_) | Role::Signal(_) | Role::SemPost | Role::Detach | Role::Begin);
    if returns || hook.wrapper {
        thread.pending.push(Pending { sp, role: hook.role, object, second: arguments[1], request, site, context });
        thread.watch_return();
    }
}

/// A hooked function is about to return, and [`stubs::returns`] could not deal with it.
pub(crate) unsafe extern "C" fn returns(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    let thread = unsafe { &mut *thread };
    let result = i64::from(thread.rax as i32);
    thread.remember_lock();
    // A function that ends by calling another shares its return with it.
    while let Some(done) = thread.pending.pop_if(|p| p.sp == thread.rsp) {
        let results = (thread.rax, thread.rdx);
        let mut emit = |what| thread.emit_at(done.site, done.context, what);
        match done.role {
            Role::Allocate(function) => {
                if let Some((addr, len)) = function.result(done.request, results) {
                    emit(What::Allocate { addr, len });
                }
            }
            Role::Acquire(how, success) => {
                let acquired = match success {
                    Success::Always => true,
                    Success::Returns(value) => result == value,
                    Success::Mutex => result == 0 || result == i64::from(libc::EOWNERDEAD),
                };
                if acquired {
                    emit(What::Acquire { lock: done.object, how });
                    thread.hold(done.object, how);
                }
            }
            Role::CondWait => {
                emit(What::Acquire { lock: done.second, how: LockKind::Exclusive });
                emit(What::Sync { object: done.object, op: SyncOp::CondWoken });
            }
            Role::Barrier => {
                emit(What::Sync { object: done.object, op: SyncOp::BarrierLeave });
            }
            Role::SemWait if result == 0 => {
                emit(What::Sync { object: done.object, op: SyncOp::SemAcquire });
            }
            Role::Join if result == 0 => {
                if let Some(child) = client().thread_by_handle(done.object) {
                    emit(What::ThreadJoin { child });
                }
            }
            Role::SemWait | Role::Join => {}
            Role::Release(_) | Role::Signal(_) | Role::SemPost | Role::Detach | Role::Begin => {}
        }
    }
    thread.watch_return();
}

impl Thread {
    /// Puts what the stubs wait for with the rest.
    fn remember_lock(&mut self) {
        let Lock { sp, object, place, kind } = std::mem::take(&mut self.waits);
        if sp != 0 {
            let how = LockKind::from_number((kind >> 8) as u8).unwrap_or(LockKind::Exclusive);
            let role = Role::Acquire(how, Success::Mutex);
            let (site, context) = (SiteId(place as u32), ContextId((place >> 32) as u32));
            let request = Request::default();
            self.pending.push(Pending { sp, role, object, second: 0, request, site, context });
        }
    }

    fn hold(&mut self, object: u64, how: LockKind) {
        let count = self.held_count as usize;
        if count == self.held.len() {
            self.held.resize((2 * count).max(16), Held::default());
            self.held_at = self.held.as_ptr() as u64;
            self.held_room = self.held.len() as u64;
        }
        self.held[count] = Held { object, how: how as u8 };
        self.held_count += 1;
    }

    /// A lock is given back. Returns how it was taken, if that was seen.
    fn no_longer_held(&mut self, object: u64) -> Option<LockKind> {
        let held = &mut self.held[..self.held_count as usize];
        let i = held.iter().rposition(|h| h.object == object)?;
        held[i..].rotate_left(1);
        self.held_count -= 1;
        LockKind::from_number(self.held[self.held_count as usize].how)
    }

    fn watch_return(&self) {
        let sp = self.pending.last().map_or(0, |p| p.sp);
        self.set_slot(slot::RETURN, sp.wrapping_neg());
    }
}
