//! Recording: what the target does becomes events in the ring of its thread.
//!
//! This module has the state of each thread, what counts as PM, where an event happened, and the Rust side of what the
//! machine code of [`crate::instrument`] leaves undone. It uses only [`crate::dynamorio`] and [`crate::run`]. Instrumented
//! code and the callbacks in [`crate::events`] call it.

pub(crate) mod allocators;
pub(crate) mod call_context;
pub(crate) mod held_spin_locks;
pub(crate) mod hooked_calls;
pub(crate) mod instruction_trace;
pub(crate) mod lock_state;
mod mapping;
pub(crate) mod module_events;
pub(crate) mod open_file;
pub(crate) mod pm;
pub(crate) mod process_end;
pub(crate) mod range_accesses;
mod ring;
mod ring_claim;
pub(crate) mod shadow_stack;
pub(crate) mod sites;
pub(crate) mod slow_path;
pub(crate) mod spinning;
pub(crate) mod stable_ids;
pub(crate) mod stripe_locks;
pub(crate) mod sync_functions;
pub(crate) mod syscalls;
pub(crate) mod thread;
pub(crate) mod threads;
mod transactions;
mod unfenced_stores;

use pmvet_events::plan::Plan;

/// Sets up what belongs to the process. Needs [`crate::run`].
pub(crate) fn set_up(plan: &Plan) {
    pm::PM.set(pm::Pm::new(plan));
    sync_functions::HOOKS.set(sync_functions::Hooks::new(plan));
    sites::SITES.set(Default::default());
    call_context::CALL_TREE.set(Default::default());
    threads::set_up();
}
