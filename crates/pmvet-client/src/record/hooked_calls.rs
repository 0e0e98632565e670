//! Hooked functions at run time: what their entry and return mean.
//!
//! If a function's result matters, the stack pointer at which it will return is remembered, and every return instruction in
//! the module compares its own with that. This needs no change of the target's stack, and survives tail calls and frames
//! that are thrown away.
//!
//! The stubs handle by far the most common case, one lock taken and released at a time, without this code.

use pmvet_events::event::{LockKind, SyncOp, TransactionOp, What};
use pmvet_events::ids::{ContextId, SiteId};

use super::allocators::Request;
use super::lock_state::{AwaitedLock, HeldLock, PendingCall};
use super::pm::PM;
use super::sync_functions::{HOOKS, Success, SyncRole};
use super::thread::{Thread, slot};
use super::threads::threads;

/// The slow form of [`crate::instrument::stubs::function_entered`] and the entries of lock functions.
pub(crate) unsafe extern "C" fn function_entered(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    let thread = unsafe { &mut *thread };
    let Some(hook) = HOOKS.hook(thread.slot(slot::ADDR) as u32) else { return };
    let arguments = [thread.rdi, thread.rsi, thread.rdx, thread.slot(slot::SAVED)];
    let object = arguments[usize::from(hook.arg) % arguments.len()];
    let sp = thread.rsp;
    thread.queue_awaited_lock();
    // Calls with a lower stack pointer are over, however they ended.
    thread.pending_calls.retain(|p| p.sp >= sp);
    // C11's functions wrap those of pthread, and a lock of the user's may do so too. Only the outermost one counts.
    if hook.role.synchronises() && thread.pending_calls.iter().any(|p| p.object == object) {
        return;
    }
    let mut request = Request::default();
    match hook.role {
        SyncRole::Allocate(function) => request = function.request(&arguments),
        SyncRole::Transaction(call) => {
            if call.begins() {
                thread.pool = object;
            }
            request = call.request(&arguments, thread.pool);
        }
        _ => thread.report_released_spin_locks(),
    }
    let context = thread.context(sp);
    let site = SiteId(hook.site);
    // A reader-writer lock is released by the same function, however it was taken.
    let taken = if matches!(hook.role, SyncRole::Release(_)) { thread.remove_held_lock(object) } else { None };
    let mut emit = |what| thread.emit_at(site, context, what);
    match hook.role {
        SyncRole::Release(how) => {
            emit(What::Release { lock: object, how: taken.unwrap_or(how) });
        }
        SyncRole::Signal(op) => {
            emit(What::Sync { object, op });
        }
        SyncRole::SemPost => {
            emit(What::Sync { object, op: SyncOp::SemPost });
        }
        SyncRole::CondWait => {
            emit(What::Sync { object, op: SyncOp::CondWait });
            emit(What::Release { lock: arguments[1], how: LockKind::Exclusive });
        }
        SyncRole::Barrier => {
            emit(What::Sync { object, op: SyncOp::BarrierEnter });
        }
        SyncRole::Detach => {
            let child = threads().by_handle(object);
            if let Some(child) = child {
                emit(What::ThreadDetach { child });
            }
        }
        SyncRole::Transaction(call) => {
            if let Some(what) = call.at_entry(request) {
                emit(what);
            }
        }
        SyncRole::Acquire(..) | SyncRole::SemWait | SyncRole::Join | SyncRole::Allocate(_) => {}
    }
    let returns = match hook.role {
        SyncRole::Release(_) | SyncRole::Signal(_) | SyncRole::SemPost | SyncRole::Detach => false,
        SyncRole::Transaction(call) => call.tells_at_return(),
        _ => true,
    };
    if returns || hook.wrapper {
        thread.pending_calls.push(PendingCall {
            sp,
            role: hook.role,
            object,
            second: arguments[1],
            request,
            site,
            context,
        });
        thread.update_return_slot();
    }
}

/// The slow form of [`crate::instrument::stubs::function_returns`].
pub(crate) unsafe extern "C" fn function_returns(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    let thread = unsafe { &mut *thread };
    let result = i64::from(thread.rax as i32);
    thread.queue_awaited_lock();
    // A function that ends by calling another shares its return with it.
    while let Some(done) = thread.pending_calls.pop_if(|p| p.sp == thread.rsp) {
        let results = (thread.rax, thread.rdx);
        let mut emit = |what| thread.emit_at(done.site, done.context, what);
        match done.role {
            SyncRole::Allocate(function) => {
                if let Some((addr, len)) = function.result(done.request, results)
                    && let Some(mapping) = PM.find(addr, 1)
                {
                    emit(What::Allocate { addr, len: len.min(mapping.end.saturating_sub(addr)) });
                }
            }
            SyncRole::Transaction(call) => {
                let told = call.at_return(done.request, results);
                if let Some((addr, len)) = told.allocated
                    && let Some(mapping) = PM.find(addr, 1)
                {
                    let len = len.min(mapping.end.saturating_sub(addr));
                    emit(What::Transaction { op: TransactionOp::Allocate, addr, len });
                    if call.is_allocator() {
                        emit(What::Allocate { addr, len });
                    }
                }
                if told.aborted {
                    emit(What::Transaction { op: TransactionOp::Abort, addr: 0, len: 0 });
                }
            }
            SyncRole::Acquire(how, success) => {
                let acquired = match success {
                    Success::Always => true,
                    Success::Returns(value) => result == value,
                    Success::Mutex => result == 0 || result == i64::from(libc::EOWNERDEAD),
                };
                if acquired {
                    emit(What::Acquire { lock: done.object, how });
                    thread.add_held_lock(done.object, how);
                }
            }
            SyncRole::CondWait => {
                emit(What::Acquire { lock: done.second, how: LockKind::Exclusive });
                emit(What::Sync { object: done.object, op: SyncOp::CondWoken });
            }
            SyncRole::Barrier => {
                emit(What::Sync { object: done.object, op: SyncOp::BarrierLeave });
            }
            SyncRole::SemWait if result == 0 => {
                emit(What::Sync { object: done.object, op: SyncOp::SemAcquire });
            }
            SyncRole::Join if result == 0 => {
                let child = threads().by_handle(done.object);
                if let Some(child) = child {
                    emit(What::ThreadJoin { child });
                }
            }
            SyncRole::SemWait | SyncRole::Join => {}
            SyncRole::Release(_) | SyncRole::Signal(_) | SyncRole::SemPost | SyncRole::Detach => {}
        }
    }
    thread.update_return_slot();
}

impl Thread {
    /// Moves the lock that the stubs wait for to the other pending calls.
    fn queue_awaited_lock(&mut self) {
        let AwaitedLock { sp, object, place, kind } = std::mem::take(&mut self.awaited_lock);
        if sp != 0 {
            let how = LockKind::from_number((kind >> 8) as u8).unwrap_or(LockKind::Exclusive);
            let role = SyncRole::Acquire(how, Success::Mutex);
            let (site, context) = (SiteId(place as u32), ContextId((place >> 32) as u32));
            let request = Request::default();
            self.pending_calls.push(PendingCall { sp, role, object, second: 0, request, site, context });
        }
    }

    fn add_held_lock(&mut self, object: u64, how: LockKind) {
        let count = self.held_count as usize;
        if count == self.held.len() {
            self.held.resize((2 * count).max(16), HeldLock::default());
            self.held_at = self.held.as_ptr() as u64;
            self.held_room = self.held.len() as u64;
        }
        self.held[count] = HeldLock { object, how: how as u8 };
        self.held_count += 1;
    }

    /// A lock is released. Returns how it was taken, if that was seen.
    fn remove_held_lock(&mut self, object: u64) -> Option<LockKind> {
        let held = &mut self.held[..self.held_count as usize];
        let i = held.iter().rposition(|h| h.object == object)?;
        held[i..].rotate_left(1);
        self.held_count -= 1;
        LockKind::from_number(self.held[self.held_count as usize].how)
    }

    /// Sets the stack pointer at which the innermost pending call returns, for the return instructions.
    fn update_return_slot(&self) {
        let sp = self.pending_calls.last().map_or(0, |p| p.sp);
        self.set_slot(slot::RETURN_SP, sp.wrapping_neg());
    }
}
