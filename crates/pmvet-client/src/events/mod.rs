//! The callbacks for DynamoRIO: each passes an event of the target on to the modules that it concerns.

pub(crate) mod syscalls;

use core::ffi::c_void;

use crate::control::fork_server::FORK_SERVER;
use crate::control::schedule::SCHEDULE;
use crate::dynamorio::Module;
use crate::dynamorio::bindings::*;
use crate::record::module_events;
use crate::record::sites::SITES;
use crate::record::sync_functions::HOOKS;
use crate::record::thread::{Thread, mode};
use crate::run::run;

pub(crate) unsafe extern "C" fn module_loaded(_dc: *mut c_void, module: *const module_data_t, _loaded: bool_) {
    // SAFETY: valid during the event.
    let Module { start, end, path } = Module::new(unsafe { &*module });
    SCHEDULE.module_loaded(start, &path);
    module_events::module_loaded(start, end, &path);
    // A coverage run needs no hooks, the target does not call the client's functions, and reading a large library's symbols takes
    // time.
    let is_client = (start..end).contains(&(module_loaded as *const () as u64));
    if !run().is_coverage_run() && !is_client {
        HOOKS.hook_module(start, end, &path);
    }
}

pub(crate) unsafe extern "C" fn module_unloaded(_dc: *mut c_void, module: *const module_data_t) {
    // SAFETY: valid during the event.
    let Module { start, end, .. } = Module::new(unsafe { &*module });
    SITES.module_unloaded(start, end);
    HOOKS.unhook_module(start, end);
}

/// A signal reached the target. If it comes from an access under way, that access did not happen.
pub(crate) unsafe extern "C" fn signalled(_dc: *mut c_void, info: *mut dr_siginfo_t) -> dr_signal_action_t {
    if let Some(server) = FORK_SERVER.get() {
        // SAFETY: valid during the event.
        server.signalled(unsafe { (*info).sig });
    }
    if let Some(thread) = Thread::try_current()
        && thread.mode != mode::NOTHING
    {
        // SAFETY: valid during the event.
        let faulted = unsafe { (*info).raw_mcontext_valid != 0 && !(*info).raw_mcontext.is_null() };
        if faulted {
            if !thread.ranges.is_empty() {
                // SAFETY: as above; a plain integer out of a union of integers.
                let rdi = unsafe { (*(*info).mcontext).__bindgen_anon_1.rdi };
                thread.report_partial(rdi);
            }
            thread.finish_access();
        }
    }
    dr_signal_action_t_DR_SIGNAL_DELIVER
}

/// The kernel starts a signal handler, or the target returns from one.
#[allow(non_upper_case_globals, reason = "DynamoRIO's names")]
pub(crate) unsafe extern "C" fn kernel_transfers(_dc: *mut c_void, info: *const dr_kernel_xfer_info_t) {
    let Some(thread) = Thread::try_current() else { return };
    // SAFETY: valid during the event.
    let info = unsafe { &*info };
    match info.type_ {
        dr_kernel_xfer_type_t_DR_XFER_SIGNAL_DELIVERY => thread.enter_signal(info.target_xsp),
        dr_kernel_xfer_type_t_DR_XFER_SIGNAL_RETURN => thread.leave_signal(),
        _ => {}
    }
}
