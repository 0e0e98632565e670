//! Schedules: threads stop at the stalls of the plan, instructions that pmvet has chosen, until pmvet lets them go on.
//!
//! pmvet decides where a thread stops and for how long; the client counts how often each thread comes to a stall. A stopped
//! thread holds no lock of the client, has published its store, and checks periodically that pmvet is still alive.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pmvet_events::plan::{MAX_STALLS, Plan, Stop};
use pmvet_events::{Places, SiteId, ThreadId, wire};

use super::lockstep::LOCKSTEP;
use crate::dynamorio::{self, Global};
use crate::record::pm::PM;
use crate::record::spinning::UNREPORTED;
use crate::record::thread::{Thread, slot};
use crate::run::run;

/// Where threads stop in this run.
pub(crate) static SCHEDULE: Global<Schedule> = Global::new();

/// The stalls of the plan, each with the address of its instruction once its module is loaded.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    stalls: Vec<ArmedStall>,
    /// How many threads are stopped.
    stopped: AtomicU32,
}

/// How long a thread that yields rests while others are stopped: long enough to leave the processors to those.
const YIELD_REST_NANOS: u64 = 200_000;

#[derive(Debug)]
struct ArmedStall {
    module: PathBuf,
    offset: u64,
    before: bool,
    stops: Vec<Stop>,
    /// 0 until the module is loaded.
    pc: AtomicU64,
}

impl Schedule {
    pub(crate) fn new(plan: &Plan) -> Self {
        let stall = |stall: &pmvet_events::plan::Stall| ArmedStall {
            module: stall.module.clone(),
            offset: stall.offset,
            before: stall.before,
            stops: stall.stops.clone(),
            pc: AtomicU64::new(0),
        };
        Self { stalls: plan.stalls.iter().take(MAX_STALLS).map(stall).collect(), stopped: AtomicU32::new(0) }
    }

    /// A thread yields. While others are stopped it probably spins on a lock that they hold. It rests, so that the threads
    /// they wait for get the processors.
    pub(crate) fn rest_while_others_are_stopped(&self) {
        if self.stopped.load(Ordering::Relaxed) > 0 {
            dynamorio::sleep_nanos(YIELD_REST_NANOS);
        }
    }

    /// A thread spins: it leaves the processor to others, and rests as one that yields if some are stopped.
    pub(crate) fn rest_or_yield(&self) {
        match self.stopped.load(Ordering::Relaxed) {
            0 => dynamorio::yield_thread(),
            _ => dynamorio::sleep_nanos(YIELD_REST_NANOS),
        }
    }

    pub(crate) fn module_loaded(&self, start: u64, path: &Path) {
        for stall in self.stalls.iter().filter(|stall| stall.module == path) {
            stall.pc.store(start + stall.offset, Ordering::Relaxed);
        }
    }

    /// The stall before or after an instruction.
    pub(crate) fn stall_at(&self, pc: u64, before: bool) -> Option<usize> {
        self.stalls.iter().position(|stall| stall.before == before && stall.pc.load(Ordering::Relaxed) == pc)
    }

    /// Whether a thread that has come to a stall `passed` times before stops there now.
    fn stops_here(&self, index: usize, thread: ThreadId, passed: u32) -> bool {
        let over = run().shared.header().stalls_over.0.load(Ordering::Relaxed) >> index & 1 != 0;
        let here = |stop: &Stop| stop.thread == thread.0 && stop.nth == passed;
        !over && self.stalls.get(index).is_some_and(|stall| stall.stops.iter().any(here))
    }
}

/// After a store to PM at a stall: the thread still has the store's address, kind and size.
pub(crate) unsafe extern "C" fn stall_after_store(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    let thread = unsafe { &mut *thread };
    // A compare-and-exchange that found another value has stored nothing, and pmvet does not count what was not reported.
    let failed = thread.kind == UNREPORTED || thread.kind == wire::RMW_FAILED && thread.flags & (1 << 14) == 0;
    if failed || PM.find(thread.slot(slot::ADDR), u64::from(thread.size)).is_none() {
        return;
    }
    thread.stall(false);
}

/// Before an instruction at a stall: the thread knows its site.
pub(crate) unsafe extern "C" fn stall_before(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    unsafe { &mut *thread }.stall(true);
}

/// After an access to PM, in a run with random delays.
pub(crate) unsafe extern "C" fn random_delay(_thread: *mut Thread) {
    /// Long enough for other threads to make several accesses.
    const MAX_DELAY_NANOS: u64 = 1_000_000;
    static STATE: AtomicU64 = AtomicU64::new(0x9e37_79b9_7f4a_7c15);
    // Splitmix64 (Steele): one addition and a scramble.
    let mut random = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    random = (random ^ random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    random = (random ^ random >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    dynamorio::sleep_nanos((random ^ random >> 31) % MAX_DELAY_NANOS);
}

impl Thread {
    fn stall(&mut self, before: bool) {
        let Some(site) = run().shared.site(SiteId(self.site)) else { return };
        let Some(index) = SCHEDULE.stall_at(site.pc, before) else { return };
        if self.stall_visits.len() <= index {
            self.stall_visits.resize(index + 1, 0);
        }
        let passed = self.stall_visits[index];
        self.stall_visits[index] = passed.wrapping_add(1);
        if !SCHEDULE.stops_here(index, self.id, passed) {
            return;
        }
        let control = run().shared.control(self.ring);
        let number = index as u32 + 1;
        LOCKSTEP.leave(self.id);
        SCHEDULE.stopped.fetch_add(1, Ordering::Relaxed);
        control.stalled.store(number, Ordering::Release);
        while !control.wait_at_stall(number) {
            run().check_pmvet_lives();
        }
        SCHEDULE.stopped.fetch_sub(1, Ordering::Relaxed);
        LOCKSTEP.enter(self);
    }
}
