//! The DynamoRIO client: runs inside the target, reports what it does, decides nothing.
//!
//! Each module uses only those above it:
//!
//! | module | purpose |
//! |---|---|
//! | [`dynamorio`] | the boundary to DynamoRIO and the kernel: FFI, as safe functions where possible |
//! | [`run`] | what pmvet asks of this process, and the memory that they share |
//! | [`record`] | threads and their rings, what is PM, where an event happened, what system calls and locks mean |
//! | [`control`] | schedules, lockstep, the fork server, determinism, signals |
//! | [`coverage`] | counters for a fuzzer in place of events |
//! | [`instrument`] | a basic block of the target becomes one that reports; the machine code of the hot paths |
//! | [`events`] | DynamoRIO's callbacks, which pass events on to the modules |
//!
//! At run time the target's code enters at [`instrument::stubs`], which call the Rust side in the modules above.
//!
//! No module owns the others: state of the process is in a static of the file that defines it, which [`dr_client_main`]
//! sets in the order of the modules. State that belongs to a thread is in [`record::thread::Thread`].
//!
//! Rust's `thread_local!` does not work under DynamoRIO's loader; thread state hangs on segment slots instead. A panic
//! cannot unwind here: [`dynamorio::fail`] reports what cannot be done.

mod control;
mod coverage;
mod dynamorio;
mod events;
mod instrument;
mod record;
mod run;

use core::ffi::{c_char, c_int};

use pmvet_events::plan::Plan;
use pmvet_events::shm::SharedMemory;

use crate::control::{determinism, initial_stack, lifecycle};
use crate::dynamorio::bindings::*;
use crate::dynamorio::{TLS, Tls};
use crate::record::thread::slot;
use crate::run::run;

#[unsafe(no_mangle)]
pub static _USES_DR_VERSION_: c_int = 1190;

#[unsafe(no_mangle)]
extern "C" fn dr_client_main(_id: client_id_t, argc: c_int, argv: *const *const c_char) {
    // SAFETY: DynamoRIO passes as many C strings as it says.
    let arguments: Vec<String> = (1..argc as usize)
        .map(|i| unsafe { std::ffi::CStr::from_ptr(*argv.add(i)) }.to_string_lossy().into_owned())
        .collect();
    std::panic::set_hook(Box::new(|panic| dynamorio::fail(&panic.to_string())));
    let [shared_memory, pmvet] = arguments.as_slice() else { dynamorio::fail("the client needs two arguments") };
    let shared = SharedMemory::attach(shared_memory.as_ref());
    let shared = shared.unwrap_or_else(|e| dynamorio::fail(&format!("cannot reach pmvet's shared memory: {e}")));
    let plan = shared.plan().and_then(|text| Ok(serde_json::from_slice::<Plan>(&text)?));
    let plan = plan.unwrap_or_else(|e| {
        let why = format!("pmvet's plan cannot be read: {e}");
        shared.header().fail(&why);
        dynamorio::fail(&why)
    });
    let pmvet = pmvet.parse().unwrap_or(0);
    run::set_up(shared, plan, pmvet);
    let plan = &run().plan;
    TLS.set(Tls::reserve(slot::COUNT));
    record::set_up(plan);
    control::set_up(plan);
    coverage::set_up(plan);
    dynamorio::report_failures_to(run().shared.header());
    if let Some(stack) = initial_stack::initial_stack() {
        initial_stack::hide_environment(stack);
        if plan.deterministic {
            determinism::fix_auxiliary_vector(stack);
        }
    }
    // SAFETY: callbacks of the types that DynamoRIO asks for.
    unsafe {
        dr_set_client_name(c"pmvet".as_ptr(), c"pmvet".as_ptr());
        dr_register_bb_event(Some(instrument::block_event));
        dr_register_thread_init_event(Some(lifecycle::thread_starts));
        dr_register_thread_exit_event(Some(lifecycle::thread_ends));
        dr_register_fork_init_event(Some(lifecycle::forked));
        dr_register_module_load_event(Some(events::module_loaded));
        dr_register_module_unload_event(Some(events::module_unloaded));
        dr_register_filter_syscall_event(Some(events::syscalls::is_interesting));
        dr_register_pre_syscall_event(Some(events::syscalls::before));
        dr_register_post_syscall_event(Some(events::syscalls::after));
        dr_register_signal_event(Some(events::signalled));
        dr_register_kernel_xfer_event(Some(events::kernel_transfers));
    }
}
