//! Counter maps: what a fuzzer is told about a run, in place of events; that of branches can be had beside them.
//!
//! An *operation* on PM is a store, flush or fence together with the calls that led to it: within libraries all of them,
//! since they say what the library was asked to do, and two of the program's own, so that a shared `persist` does not hide
//! its callers. Which operation follows which is counted (PMFuzz, algorithm 1). Branches are counted beside that.
//!
//! Numbers of instructions and call paths are hashes here, not positions in a table: they are the same in every run.

use std::sync::atomic::{AtomicU64, Ordering};

use dynamorio_sys::*;

use crate::client;
use crate::context::SPREAD;
use crate::emit::{Emitter, RCX, reg};
use crate::liveness::Live;
use crate::sites::Kind;
use crate::thread::{Thread, slot};

/// Marks the numbers of instructions outside the executable.
pub(crate) const LIBRARY: u32 = 1 << 30;

/// The factors of `mix`.
pub(crate) const MIX: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9];

fn mix(a: u32, b: u32) -> u32 {
    let mixed = (u64::from(a) << 32 | u64::from(b)).wrapping_mul(MIX[0]);
    (mixed ^ mixed >> 29).wrapping_mul(MIX[1]).rotate_right(32) as u32
}

pub(crate) fn text(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| mix(hash, byte.into()))
}

/// The number of the instruction at a distance from the start of a module.
pub(crate) fn site(module: u32, distance: u64, kind: Kind) -> u32 {
    let number = mix(module ^ (distance >> 32) as u32, distance as u32) & (LIBRARY - 1) | 1;
    if kind == Kind::Executable { number } else { number | LIBRARY }
}

/// The number of a call path: in its upper half the newest call, with those within libraries up to the first from outside;
/// in its lower half the call before. The stubs compute the same.
pub(crate) fn context(parent: u32, call: u32) -> u32 {
    let own = |seed: u32| (mix(seed, call) | 1) << 16;
    if call & LIBRARY != 0 { own(parent >> 16) | parent & 0xffff } else { own(0) | parent >> 16 }
}

impl Thread {
    /// Counts the operation under way, or ends the run if this is where it is to end.
    pub(crate) fn count(&mut self, fence: bool) {
        let Some(forks) = &client().forks else { return };
        let stop = &forks.stage().stop;
        // The stub may have numbered it already, but then this is the end.
        let is_end = |count: &AtomicU64, at: &AtomicU64| {
            let (now, end) = (count.load(Ordering::Relaxed), at.load(Ordering::Relaxed));
            if end != 0 && now == end {
                return true;
            }
            count.store(now + 1, Ordering::Relaxed);
            now + 1 == end
        };
        if is_end(&stop.operations, &stop.at_operation) || fence && is_end(&stop.fences, &stop.at_fence) {
            forks.crash();
        }
        let context = self.context(self.rsp).0;
        let operation = self.site.wrapping_mul(SPREAD) ^ context;
        let step = operation ^ std::mem::replace(&mut self.last_operation, operation >> 1);
        let place = (step ^ step >> 16) as u16;
        let count = &forks.stage().maps.pm[usize::from(place)];
        count.store(count.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
    }
}

/// Counts that the block at `entry` runs after the one that ran before it.
pub(crate) fn branch(e: &Emitter, live: Live, entry: u64) {
    let Some(stage) = client().branches() else { return };
    let (number, kind) = client().sites.stable(entry);
    if kind == Kind::System {
        return;
    }
    let counts = stage.maps.edges.as_ptr() as i32;
    let dead = if live.flags() { None } else { live.dead_register() };
    let register = dead.unwrap_or(RCX);
    let second = DR_REG_RDX as reg_id_t;
    if dead.is_none() {
        e.store_slot(slot::SAVED, RCX);
    }
    // SAFETY: builds plain values, and instructions that DynamoRIO frees with the block.
    unsafe {
        let none = DR_REG_NULL as reg_id_t;
        let at = |base, distance, size: u32| opnd_create_base_disp(base, none, 0, distance, size as opnd_size_t);
        let part = |register, size: u32| reg(crate::ffi::reg_resize_to_opsz(register, size as opnd_size_t));
        e.load_slot(register, slot::BLOCK);
        e.lea(register, at(register, (number & 0xffff) as i32, crate::ffi::OPSZ_lea));
        e.op11(OP_movzx, part(register, OPSZ_4), part(register, OPSZ_2));
        let count = at(register, counts, OPSZ_1);
        if !live.flags() {
            e.put(instr_create_1dst_1src(e.dc, OP_inc as i32, count, count));
        } else {
            // The same without touching a flag.
            e.store_slot(slot::VALUE, second);
            e.op11(OP_movzx, part(second, OPSZ_4), count);
            e.lea(second, at(second, 1, crate::ffi::OPSZ_lea));
            e.op11(OP_mov_st, count, part(second, OPSZ_1));
            e.load_slot(second, slot::VALUE);
        }
    }
    e.store_slot_imm(slot::BLOCK, ((number >> 3).wrapping_mul(SPREAD) >> 16) as i32);
    if dead.is_none() {
        e.load_slot(RCX, slot::SAVED);
    }
}
