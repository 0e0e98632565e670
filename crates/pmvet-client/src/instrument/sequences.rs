//! The instruction sequences that instrumentation is made of: calls of stubs, the shadow stack and the filter for PM.

use std::mem::offset_of;

use super::stubs;
use crate::dynamorio::bindings::*;
use crate::dynamorio::emitter::{Emitter, RCX, RSP, imm32, immediate, mem, reg, reg_part};
use crate::dynamorio::instructions::Instr;
use crate::dynamorio::instructions::OPSZ_lea;
use crate::record::pm::PM;
use crate::record::shadow_stack::ShadowFrame;
use crate::record::thread::{Thread, slot};

/// Where an access goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Address {
    /// Computed from registers.
    Computed(opnd_t),
    Constant(u64),
    /// In its slot already, or not needed.
    Known,
}

/// What a stub is told about an access.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    pub(crate) site: u32,
    pub(crate) kind: u8,
    pub(crate) size: u8,
    /// What is left to do after the instruction: a [`crate::record::thread::mode`].
    pub(crate) next_mode: u8,
}

/// A field of the thread, whose address is in rcx.
fn field(offset: usize, size: u32) -> opnd_t {
    mem(RCX, offset as i32, size)
}

fn filter_entry(index: reg_id_t) -> opnd_t {
    mem(index, PM.filter_table() as i32, OPSZ_1)
}

impl Emitter {
    /// `add reg, distance` in the low 16 bits only and without changing flags: the shadow stack is a ring of 64 KiB.
    fn step_frame(&self, r: reg_id_t, distance: i32) {
        self.op11(OP_lea, reg_part(r, OPSZ_2), mem(r, distance, OPSZ_lea));
    }

    pub(crate) fn push_frame(&self, r: reg_id_t, call_site: u32) {
        let size = size_of::<ShadowFrame>() as i32;
        self.load_slot(r, slot::FRAME);
        self.step_frame(r, size);
        self.op11(OP_mov_st, mem(r, 0, OPSZ_8), reg(RSP));
        // Sign-extended to 8 bytes: the call site, and 0 for the node. Site numbers stay below 2^31.
        self.op11(OP_mov_st, mem(r, 8, OPSZ_8), imm32(call_site as i32));
        self.store_slot(slot::FRAME, r);
    }

    pub(crate) fn pop_frame(&self, r: reg_id_t) {
        self.load_slot(r, slot::FRAME);
        self.step_frame(r, -(size_of::<ShadowFrame>() as i32));
        self.store_slot(slot::FRAME, r);
    }

    /// Leaves 0 in rcx unless `ea` may be PM. Flags stay as they are.
    pub(crate) fn filter_into_rcx(&self, ea: opnd_t) {
        self.lea(RCX, ea);
        let ecx = reg(DR_REG_ECX as reg_id_t);
        // Bits 32 to 47 of the address, without a shift, which would change the flags.
        if std::is_x86_feature_detected!("bmi2") {
            self.op12(OP_rorx, reg(RCX), reg(RCX), immediate(32, OPSZ_1));
            self.op11(OP_movzx, ecx, reg(DR_REG_CX as reg_id_t));
        } else {
            self.store_slot(slot::ADDR, RCX);
            self.load_slot_half_word(ecx, slot::ADDR, 4);
        }
        self.op11(OP_movzx, ecx, filter_entry(RCX));
    }

    /// Compares such that "not equal" means `ea` may be PM. Changes flags and `r`.
    pub(crate) fn filter_into_flags(&self, r: reg_id_t, ea: opnd_t) {
        self.lea(r, ea);
        self.op12(OP_shr, reg(r), immediate(32, OPSZ_1), reg(r));
        self.compare(filter_entry(r), immediate(0, OPSZ_1));
    }

    /// Puts an address into its slot by way of rcx.
    fn store_address(&self, at: Address) {
        match at {
            Address::Computed(ea) => self.lea(RCX, ea),
            Address::Constant(addr) => self.op11(OP_mov_imm, reg(RCX), immediate(addr as i64, OPSZ_8)),
            Address::Known => return,
        }
        self.store_slot(slot::ADDR, RCX);
    }

    /// Puts an address into its slot and leaves all registers as they are.
    pub(crate) fn save_address(&self, at: Address) {
        self.store_slot(slot::SAVED, RCX);
        self.store_address(at);
        self.load_slot(RCX, slot::SAVED);
    }

    /// Calls a stub with an address in its slot. All registers, rcx too, are the target's before and after.
    pub(crate) fn call_stub(&self, stub: extern "C" fn(), access: Access, at: Address) {
        self.store_slot(slot::SAVED, RCX);
        self.call_stub_with_rcx_saved(stub, access, at);
    }

    /// The same if the target's rcx is in its slot already. An address that uses rcx needs it in the register too.
    pub(crate) fn call_stub_with_rcx_saved(&self, stub: extern "C" fn(), access: Access, at: Address) {
        self.store_address(at);
        self.load_slot(RCX, slot::THREAD);
        self.op11(OP_mov_st, field(offset_of!(Thread, rsp), OPSZ_8), reg(RSP));
        self.op11(OP_mov_ld, reg(RSP), field(offset_of!(Thread, stack), OPSZ_8));
        self.op11(OP_mov_st, field(offset_of!(Thread, site), OPSZ_4), imm32(access.site as i32));
        let description = u32::from_le_bytes([access.kind, access.size, access.next_mode, 0]);
        self.op11(OP_mov_st, field(offset_of!(Thread, kind), OPSZ_4), imm32(description as i32));
        self.call(stub);
        self.op11(OP_mov_ld, reg(RSP), field(offset_of!(Thread, rsp), OPSZ_8));
        self.load_slot(RCX, slot::SAVED);
    }

    /// The second half of an access, after an instruction that may have changed rcx.
    pub(crate) fn call_after_store(&self, rcx_changed: bool) {
        self.call_stub_for_same_access(stubs::after_store, rcx_changed);
    }

    /// Calls a stub for the access that the thread knows already.
    pub(crate) fn call_stub_for_same_access(&self, stub: extern "C" fn(), rcx_changed: bool) {
        if rcx_changed {
            self.store_slot(slot::SAVED, RCX);
        }
        self.load_slot(RCX, slot::THREAD);
        self.op11(OP_mov_st, field(offset_of!(Thread, rsp), OPSZ_8), reg(RSP));
        self.op11(OP_mov_ld, reg(RSP), field(offset_of!(Thread, stack), OPSZ_8));
        self.call(stub);
        self.op11(OP_mov_ld, reg(RSP), field(offset_of!(Thread, rsp), OPSZ_8));
        self.load_slot(RCX, slot::SAVED);
    }

    /// Copies a register to the value slots.
    pub(crate) fn save_value(&self, register: reg_id_t) {
        self.store_slots(slot::VALUE, register);
    }

    /// Reads a byte at `ea`, so that a bad address faults here, at `instr`, and not in a stub.
    pub(crate) fn touch(&self, ea: opnd_t, instr: Instr) {
        self.store_slot(slot::SAVED, RCX);
        self.load_byte_for(instr, ea);
        self.load_slot(RCX, slot::SAVED);
    }
}
