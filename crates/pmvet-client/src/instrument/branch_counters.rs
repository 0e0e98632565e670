//! Counts branches: which block runs after which, in the way of AFL.

use super::liveness::LiveRegisters;
use crate::coverage;
use crate::dynamorio::bindings::*;
use crate::dynamorio::emitter::{Emitter, RCX, mem, reg_part};
use crate::dynamorio::instructions::OPSZ_lea;
use crate::record::shadow_stack::HASH_FACTOR;
use crate::record::sites::{ModuleKind, SITES};
use crate::record::thread::slot;

/// Counts that the block at `entry` runs after the one that ran before it.
pub(super) fn count_branch(e: &Emitter, live: LiveRegisters, entry: u64) {
    let Some(stage) = coverage::branch_stage() else { return };
    let (number, kind) = SITES.stable_id(entry);
    if kind == ModuleKind::System {
        return;
    }
    let counts = stage.maps.edges.as_ptr() as i32;
    let dead = if live.flags() { None } else { live.dead_register() };
    let register = dead.unwrap_or(RCX);
    let second = DR_REG_RDX as reg_id_t;
    if dead.is_none() {
        e.store_slot(slot::SAVED, RCX);
    }
    e.load_slot(register, slot::PREVIOUS_BLOCK);
    e.lea(register, mem(register, (number & 0xffff) as i32, OPSZ_lea));
    e.op11(OP_movzx, reg_part(register, OPSZ_4), reg_part(register, OPSZ_2));
    let count = mem(register, counts, OPSZ_1);
    if !live.flags() {
        e.op11(OP_inc, count, count);
    } else {
        // The same without touching a flag.
        e.store_slot(slot::VALUE, second);
        e.op11(OP_movzx, reg_part(second, OPSZ_4), count);
        e.lea(second, mem(second, 1, OPSZ_lea));
        e.op11(OP_mov_st, count, reg_part(second, OPSZ_1));
        e.load_slot(second, slot::VALUE);
    }
    e.store_slot_imm(slot::PREVIOUS_BLOCK, ((number >> 3).wrapping_mul(HASH_FACTOR) >> 16) as i32);
    if dead.is_none() {
        e.load_slot(RCX, slot::SAVED);
    }
}
