//! Control: what pmvet changes about how the target runs.
//!
//! Threads begin together, are stopped by a schedule or kept in lockstep, a fork server makes children, deterministic runs get fixed
//! time and random numbers, and some signals and system calls are corrected. This module uses [`crate::record`], whose threads it
//! stops and starts, and what that uses.

pub(crate) mod determinism;
mod fork_point;
pub(crate) mod fork_server;
pub(crate) mod initial_stack;
pub(crate) mod lifecycle;
pub(crate) mod lockstep;
mod private_mappings;
pub(crate) mod schedule;
pub(crate) mod signals;
pub(crate) mod spinning;
pub(crate) mod start_gate;
pub(crate) mod syscall_fixes;

use pmvet_events::plan::Plan;

/// Sets up what belongs to the process. Needs [`crate::record`].
pub(crate) fn set_up(plan: &Plan) {
    schedule::SCHEDULE.set(schedule::Schedule::new(plan));
    signals::SIGNALS.set(signals::Signals::new());
    if let Some(forks) = &plan.forks {
        fork_server::FORK_SERVER.get_or_init(|| fork_server::ForkServerProcess::new(forks, lifecycle::forked));
    }
}
