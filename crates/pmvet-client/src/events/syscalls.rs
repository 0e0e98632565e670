//! System calls, before and after they are made.

use core::ffi::c_void;

use crate::control::fork_server::FORK_SERVER;
use crate::control::lockstep::LOCKSTEP;
use crate::control::schedule::SCHEDULE;
use crate::control::signals::SIGNALS;
use crate::control::start_gate::{self, START_GATE};
use crate::control::{determinism, syscall_fixes};
use crate::coverage;
use crate::dynamorio::bindings::bool_;
use crate::dynamorio::{self, Syscall};
use crate::record::process_end;
use crate::record::syscalls;
use crate::record::syscalls::pending::PendingSyscall;
use crate::record::thread::Thread;
use crate::run::run;

/// What an event tells DynamoRIO.
const MAKE_CALL: bool_ = 1;
const SKIP_CALL: bool_ = 0;

/// Whether the events below are wanted for a call.
pub(crate) unsafe extern "C" fn is_interesting(_dc: *mut c_void, number: i32) -> bool_ {
    is_wanted(number.into()).into()
}

fn is_wanted(number: i64) -> bool {
    let plan = &run().plan;
    plan.forks.is_some()
        || plan.in_step && number != libc::SYS_sched_yield
        || number == start_gate::FIRST_CALL && start_gate::is_wanted(plan)
        || syscalls::is_recorded(number)
        || plan.deterministic && determinism::is_answered(number)
}

pub(crate) unsafe extern "C" fn before(dc: *mut c_void, number: i32) -> bool_ {
    let Some(mut thread) = Thread::try_current() else { return MAKE_CALL };
    // SAFETY: the context of this event.
    let call = unsafe { Syscall::new(dc) };
    let mut number = i64::from(number);
    // DynamoRIO also reports calls that the client has not asked for, among them the one that spinning threads make.
    if number == libc::SYS_sched_yield {
        SCHEDULE.rest_while_others_are_stopped();
    }
    if matches!(number, libc::SYS_exit_group | libc::SYS_execve | libc::SYS_execveat) {
        process_end::begin(thread);
    }
    if !run().plan.in_step && !is_wanted(number) {
        return MAKE_CALL;
    }
    thread.replaced_arguments.clear();
    let takes_lock = thread.awaited_lock.sp != 0;
    if !takes_lock {
        LOCKSTEP.leave(thread.id);
    }
    SIGNALS.target_started();
    match number {
        libc::SYS_clone | libc::SYS_clone3 => START_GATE.note_creation(thread.os_thread),
        start_gate::FIRST_CALL => START_GATE.wait_for_siblings(),
        libc::SYS_rt_sigaction => SIGNALS.before_sigaction(thread, &call),
        libc::SYS_rt_sigprocmask => SIGNALS.before_sigprocmask(thread, &call),
        libc::SYS_rt_sigsuspend => SIGNALS.before_sigsuspend(thread, &call),
        _ => {}
    }
    if let Some(server) = FORK_SERVER.get() {
        server.before(dc, &call, number);
        // In a child that the server has just made, this thread has another state.
        let Some(current) = Thread::try_current() else { return MAKE_CALL };
        thread = current;
        number = syscall_fixes::stat_by_descriptor(thread, &call, number);
    }
    if let Some(result) = answer(thread, &call, number) {
        call.set_result(result);
        return SKIP_CALL;
    }
    syscall_fixes::name_own_executable(thread, &call, number);
    if number == libc::SYS_close_range {
        syscall_fixes::close_open_descriptors(thread, &call);
    }
    if run().plan.races {
        syscalls::before::forget_spin_locks(&call, number);
    }
    syscalls::operations::limit(thread, &call, number);
    let random = if run().plan.deterministic { determinism::random_read(&call, number) } else { None };
    thread.syscall = random.unwrap_or_else(|| syscalls::before::prepare(thread, &call, number));
    MAKE_CALL
}

/// The result of a call that is not made.
fn answer(thread: &mut Thread, call: &Syscall, number: i64) -> Option<i64> {
    if run().plan.deterministic
        && let Some(result) = determinism::answer(call, number)
    {
        return Some(result);
    }
    if run().is_coverage_run() {
        if let Some(result) = coverage::syscalls::answer(call, number) {
            return Some(result);
        }
        coverage::syscalls::restore_own_pid(thread, call, number);
    }
    syscall_fixes::map_without_replacing(thread, call, number)
}

pub(crate) unsafe extern "C" fn after(dc: *mut c_void, number: i32) {
    let Some(thread) = Thread::try_current() else { return };
    let number = i64::from(number);
    LOCKSTEP.enter(thread);
    let _held = process_end::hold_off(thread);
    if matches!(number, libc::SYS_execve | libc::SYS_execveat) {
        process_end::cancel();
    }
    // SAFETY: the context of this event.
    let call = unsafe { Syscall::new(dc) };
    let result = call.result();
    let pending = std::mem::take(&mut thread.syscall);
    // The code below reads the arguments as the kernel saw them.
    let replaced = std::mem::take(&mut thread.replaced_arguments);
    let failed = (-4095..0).contains(&result);
    if failed {
        syscalls::after::undo(thread, pending);
    } else {
        finish(thread, &call, pending, result as u64);
        syscalls::operations::report(thread, &call, number, result as u64);
    }
    if run().is_coverage_run() {
        coverage::syscalls::after(&call, number, result);
    }
    if run().plan.deterministic && !failed {
        determinism::fix_file_times(&call, number);
    }
    for (index, value) in replaced {
        dynamorio::restore_argument(index, value);
    }
}

fn finish(thread: &mut Thread, call: &Syscall, pending: PendingSyscall, result: u64) {
    match pending {
        PendingSyscall::Random { buffer, uuid } => determinism::replace_random_bytes(buffer, uuid, result),
        PendingSyscall::Map { inode, .. } => {
            syscalls::after::finish(thread, call, pending, result);
            if let Some(server) = FORK_SERVER.get() {
                server.mapped(inode, call.fd(4));
            }
        }
        pending => syscalls::after::finish(thread, call, pending, result),
    }
}
