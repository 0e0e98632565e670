//! Clean calls into other modules at single instructions: the instruction trace, and fixed time and random numbers.

#![allow(non_upper_case_globals, reason = "DynamoRIO's names in patterns")]

use core::ffi::c_void;

use super::sequences::Access;
use crate::control::determinism;
use crate::dynamorio::bindings::*;
use crate::dynamorio::emitter::{Emitter, immediate};
use crate::dynamorio::instructions::{self, Instr, app_pc};
use crate::record::instruction_trace;

/// Before an instruction whose thread is traced.
pub(super) fn trace_step(e: &Emitter, instr: Instr) {
    call(e, instruction_trace::before_instruction, instr, 0);
}

/// Before an instruction that loads from PM; the address is in its slot.
pub(super) fn trace_load(e: &Emitter, instr: Instr, access: Access) {
    call(e, instruction_trace::before_load, instr, access.size.into());
}

/// Before a store to PM, so that no other thread reads it unnoticed; the address is in its slot.
pub(super) fn trace_store(e: &Emitter, instr: Instr, access: Access) {
    call(e, instruction_trace::before_store, instr, access.size.into());
}

fn call(e: &Emitter, callback: unsafe extern "C" fn(u64, u32), instr: Instr, size: u32) {
    let (pc, size) = (immediate(app_pc(instr) as i64, OPSZ_8), immediate(size.into(), OPSZ_4));
    // SAFETY: the callback takes these two words.
    unsafe { e.clean_call_2(callback as *mut c_void, pc, size) };
}

/// Replaces the result of an instruction that differs from run to run. The emitter stands behind it: the instruction still
/// runs, for its other effects.
pub(super) fn replace_result(e: &Emitter, instr: Instr, op: u32) {
    let callback: unsafe extern "C" fn(u32) = match op {
        OP_rdtsc | OP_rdtscp => determinism::time_stamp,
        OP_rdrand | OP_rdseed => determinism::random_number,
        _ => return,
    };
    let target = instructions::destination_register(instr).unwrap_or(0);
    // SAFETY: the callback takes one word.
    unsafe { e.clean_call(callback as *mut c_void, immediate(target.into(), OPSZ_4)) };
}
