//! Inserts instructions into a basic block under construction.

use core::ffi::c_void;

use super::TLS;
use super::bindings::*;
use super::instructions::{Instr, OPSZ_lea};

pub(crate) const RCX: reg_id_t = DR_REG_RCX as reg_id_t;
pub(crate) const RSP: reg_id_t = DR_REG_RSP as reg_id_t;

/// Inserts instructions of ours before a given instruction of the target, or at the end if that is null.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Emitter {
    pub(crate) dc: *mut c_void,
    pub(crate) block: *mut instrlist_t,
    pub(crate) at: Instr,
}

pub(crate) fn reg(r: reg_id_t) -> opnd_t {
    // SAFETY: builds a plain value.
    unsafe { opnd_create_reg(r) }
}

/// The part of a register that has this size.
pub(crate) fn reg_part(r: reg_id_t, size: u32) -> opnd_t {
    // SAFETY: a query of a register number.
    reg(unsafe { reg_resize_to_opsz(r, size as opnd_size_t) })
}

/// Memory at a distance from a register.
pub(crate) fn mem(base: reg_id_t, disp: i32, size: u32) -> opnd_t {
    // SAFETY: builds a plain value.
    unsafe { opnd_create_base_disp(base, DR_REG_NULL as reg_id_t, 0, disp, size as opnd_size_t) }
}

/// The sum of two registers, as `lea` computes it.
pub(crate) fn sum(base: reg_id_t, index: reg_id_t) -> opnd_t {
    // SAFETY: builds a plain value.
    unsafe { opnd_create_base_disp(base, index, 1, 0, OPSZ_lea as opnd_size_t) }
}

pub(crate) fn imm32(value: i32) -> opnd_t {
    immediate(value.into(), OPSZ_4)
}

pub(crate) fn immediate(value: i64, size: u32) -> opnd_t {
    // SAFETY: builds a plain value.
    unsafe { opnd_create_immed_int(value, size as opnd_size_t) }
}

/// Whether only AVX-512 instructions reach the vector register.
fn needs_evex(register: reg_id_t) -> bool {
    let upper = |first: u32| (first + 16..first + 32).contains(&register.into());
    // SAFETY: a query of a register number.
    unsafe { reg_is_strictly_zmm(register) != 0 || upper(DR_REG_XMM0) || upper(DR_REG_YMM0) }
}

impl Emitter {
    /// Inserts an instruction of ours.
    pub(crate) fn put(&self, instr: Instr) -> Instr {
        // SAFETY: `block` and `at` come from DynamoRIO and belong together; `instr` is new.
        unsafe {
            if self.at.is_null() {
                instrlist_meta_append(self.block, instr);
            } else {
                instrlist_meta_preinsert(self.block, self.at, instr);
            }
        }
        instr
    }

    /// Inserts an instruction of ours that names no place in the code. DynamoRIO encodes an instruction each time it asks for
    /// its length, unless it knows the bytes; so this one is encoded here, once.
    fn put_encoded(&self, instr: Instr) {
        let mut bytes = [0; 32];
        // SAFETY: `instr` is new and complete, no instruction is longer than 17 bytes, and it gets room for as many bytes as
        // are copied. If DynamoRIO cannot encode it, it says so when it wants to.
        unsafe {
            let end = instr_encode(self.dc, instr, bytes.as_mut_ptr());
            if let Some(len) = (end as usize).checked_sub(bytes.as_ptr() as usize) {
                instr_allocate_raw_bits(self.dc, instr, len as u32);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), instr_get_raw_bits(instr), len);
                instr_set_operands_valid(instr, 1);
            }
        }
        self.put(instr);
    }

    /// Inserts a label of ours behind the instruction, so that its own instrumentation comes before it.
    pub(crate) fn put_behind(&self, instr: Instr, label: Instr) {
        // SAFETY: the label is new, the instruction of this block.
        unsafe { instrlist_meta_postinsert(self.block, instr, label) };
    }

    /// A thread-local slot.
    pub(crate) fn slot(&self, index: usize) -> opnd_t {
        TLS.operand(self.dc, index)
    }

    /// `op dst, src`
    pub(crate) fn op11(&self, op: u32, dst: opnd_t, src: opnd_t) {
        // SAFETY: creates an instruction; DynamoRIO frees it with the block.
        self.put_encoded(unsafe { instr_create_1dst_1src(self.dc, op as i32, dst, src) });
    }

    /// An operation on one operand and a constant or another operand, in this order of sources.
    pub(crate) fn op12(&self, op: u32, dst: opnd_t, first: opnd_t, second: opnd_t) {
        // SAFETY: creates an instruction; DynamoRIO frees it with the block.
        self.put_encoded(unsafe { instr_create_1dst_2src(self.dc, op as i32, dst, first, second) });
    }

    /// `cmp first, second`
    pub(crate) fn compare(&self, first: opnd_t, second: opnd_t) {
        // SAFETY: creates an instruction; DynamoRIO frees it with the block.
        self.put_encoded(unsafe { instr_create_0dst_2src(self.dc, OP_cmp as i32, first, second) });
    }

    pub(crate) fn load_slot(&self, r: reg_id_t, index: usize) {
        self.op11(OP_mov_ld, reg(r), self.slot(index));
    }

    pub(crate) fn store_slot(&self, index: usize, r: reg_id_t) {
        self.op11(OP_mov_st, self.slot(index), reg(r));
    }

    pub(crate) fn store_slot_imm(&self, index: usize, value: i32) {
        self.op11(OP_mov_st, self.slot(index), imm32(value));
    }

    pub(crate) fn lea(&self, r: reg_id_t, ea: opnd_t) {
        self.op11(OP_lea, reg(r), ea);
    }

    /// Loads two bytes of a slot, from a byte of it on.
    pub(crate) fn load_slot_half_word(&self, to: opnd_t, index: usize, byte: i32) {
        let mut part = self.slot(index);
        // SAFETY: changes a plain value.
        unsafe {
            opnd_set_disp(&raw mut part, opnd_get_disp(part) + byte);
            opnd_set_size(&raw mut part, OPSZ_2 as opnd_size_t);
        }
        self.op11(OP_movzx, to, part);
    }

    pub(crate) fn label(&self) -> Instr {
        // SAFETY: creates a label, to be inserted by `put`.
        unsafe { instr_create_0dst_0src(self.dc, OP_LABEL as i32) }
    }

    pub(crate) fn jump(&self, op: u32, target: Instr) {
        // SAFETY: `target` is a label of this block.
        self.put(unsafe { instr_create_0dst_1src(self.dc, op as i32, opnd_create_instr(target)) });
    }

    /// Jumps if rcx is 0, without reading flags. The target must be near.
    pub(crate) fn jump_if_rcx_zero(&self, target: Instr) {
        // SAFETY: as in `jump`.
        self.put(unsafe {
            instr_create_0dst_2src(self.dc, OP_jecxz as i32, opnd_create_instr(target), opnd_create_reg(RCX))
        });
    }

    /// Calls machine code of the client, which follows no calling convention.
    pub(crate) fn call(&self, stub: extern "C" fn()) {
        // SAFETY: a call with its implicit operands; the client library is within reach of the code cache.
        unsafe {
            let target = opnd_create_pc(stub as *mut u8);
            let below = mem(RSP, -8, OPSZ_8);
            self.put(instr_create_2dst_2src(self.dc, OP_call as i32, reg(RSP), below, target, reg(RSP)));
        }
    }

    /// Calls Rust by DynamoRIO's clean call, which saves all registers. That is slow, for rare instructions only.
    ///
    /// # Safety
    ///
    /// `callback` is an `extern "C"` function that takes one integer or pointer.
    pub(crate) unsafe fn clean_call(&self, callback: *mut c_void, argument: opnd_t) {
        // SAFETY: the list is of the block under construction; the caller vouches for the callback.
        unsafe { dr_insert_clean_call(self.dc, self.block, self.at, callback, 0, 1, argument) };
    }

    /// The same with two arguments.
    ///
    /// # Safety
    ///
    /// `callback` is an `extern "C"` function that takes two integers of the sizes of the arguments.
    pub(crate) unsafe fn clean_call_2(&self, callback: *mut c_void, first: opnd_t, second: opnd_t) {
        // SAFETY: as in `clean_call`.
        unsafe { dr_insert_clean_call(self.dc, self.block, self.at, callback, 0, 2, first, second) };
    }

    /// Copies a general or vector register to a slot and those after it.
    pub(crate) fn store_slots(&self, index: usize, register: reg_id_t) {
        let mut to = self.slot(index);
        // SAFETY: queries of a register number, and a change of a plain value.
        let (general, wide) = unsafe {
            opnd_set_size(&raw mut to, reg_get_size(register));
            (reg_is_gpr(register) != 0, reg_is_strictly_ymm(register) != 0)
        };
        if general {
            self.op11(OP_mov_st, to, reg(register));
        } else if needs_evex(register) {
            self.op12(OP_vmovups, to, reg(DR_REG_K0 as reg_id_t), reg(register));
        } else {
            self.op11(if wide { OP_vmovups } else { OP_movups }, to, reg(register));
        }
    }

    /// Reads a byte at `ea` into ecx. If it faults, the target sees the fault at `instr`.
    pub(crate) fn load_byte_for(&self, instr: Instr, ea: opnd_t) {
        // SAFETY: a new instruction and plain values; `instr` belongs to this block.
        unsafe {
            let mut byte = ea;
            opnd_set_size(&raw mut byte, OPSZ_1 as opnd_size_t);
            let ecx = reg(DR_REG_ECX as reg_id_t);
            let read = instr_create_1dst_1src(self.dc, OP_movzx as i32, ecx, byte);
            instr_set_meta_may_fault(read, 1);
            instr_set_translation(read, instr_get_app_pc(instr));
            self.put(read);
        }
    }

    /// A second copy of an instruction of the target, which may fault as the first may.
    pub(crate) fn copy_instruction(&self, instr: Instr) {
        // SAFETY: `instr` belongs to this block.
        unsafe {
            let copy = instr_clone(self.dc, instr);
            instr_set_meta_may_fault(copy, 1);
            instr_set_translation(copy, instr_get_app_pc(instr));
            self.put(copy);
        }
    }
}
