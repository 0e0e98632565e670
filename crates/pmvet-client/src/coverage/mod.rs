//! Coverage: counters for a fuzzer in place of events, and what makes coverage runs reproducible and fast.
//!
//! This module uses [`crate::control`], because coverage runs are children of the fork server, and [`crate::record`]
//! for threads and call paths. The machine code that counts is in [`crate::instrument`].

pub(crate) mod coverage_map;
pub(crate) mod syscalls;

use std::sync::OnceLock;

use pmvet_events::plan::Plan;
use pmvet_events::stage::Stage;

use crate::control::fork_server::{FORK_SERVER, ForkServerProcess};
use crate::dynamorio;
use crate::run::run;

/// Where branches are counted in a run that reports events, too.
static BRANCHES_BESIDE_EVENTS: OnceLock<&Stage> = OnceLock::new();

pub(crate) fn set_up(plan: &Plan) {
    if let Some(path) = plan.branches.as_deref() {
        BRANCHES_BESIDE_EVENTS.get_or_init(|| dynamorio::map_stage(path));
    }
}

/// Where branches are counted, if they are.
pub(crate) fn branch_stage() -> Option<&'static Stage> {
    let server = FORK_SERVER.get().filter(|_| run().is_coverage_run());
    server.map(ForkServerProcess::stage).or(BRANCHES_BESIDE_EVENTS.get().copied())
}
