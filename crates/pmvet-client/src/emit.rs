//! Writes instrumentation into a basic block: a thin layer over DynamoRIO's instruction representation.

use std::mem::offset_of;

use dynamorio_sys::*;

use crate::ffi::*;
use crate::thread::{Thread, slot};
use crate::{client, stubs};

pub(crate) type Instr = *mut instr_t;

pub(crate) const RCX: reg_id_t = DR_REG_RCX as reg_id_t;
const RSP: reg_id_t = DR_REG_RSP as reg_id_t;

/// Inserts instructions of ours before a given instruction of the target (or at the end, if that is null).
#[derive(Clone, Copy)]
pub(crate) struct Emitter {
    pub(crate) dc: *mut core::ffi::c_void,
    pub(crate) block: *mut instrlist_t,
    pub(crate) at: Instr,
}

/// Where an access goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Address {
    /// To be computed from registers.
    Computed(opnd_t),
    Constant(u64),
    /// In its slot already, or of no interest.
    Known,
}

/// What a stub is told about an access.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    pub(crate) site: u32,
    pub(crate) kind: u8,
    pub(crate) size: u8,
    pub(crate) todo: u8,
}

pub(crate) fn reg(r: reg_id_t) -> opnd_t {
    // SAFETY: builds a plain value.
    unsafe { opnd_create_reg(r) }
}

fn mem(base: reg_id_t, disp: usize, size: u32) -> opnd_t {
    // SAFETY: builds a plain value.
    unsafe { opnd_create_base_disp(base, DR_REG_NULL as reg_id_t, 0, disp as i32, size as opnd_size_t) }
}

fn imm32(value: i32) -> opnd_t {
    // SAFETY: builds a plain value.
    unsafe { opnd_create_immed_int(value.into(), OPSZ_4 as opnd_size_t) }
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

    fn slot(&self, index: usize) -> opnd_t {
        client().tls.operand(self.dc, index)
    }

    /// `op dst, src`
    pub(crate) fn op11(&self, op: u32, dst: opnd_t, src: opnd_t) {
        // SAFETY: creates an instruction; DynamoRIO frees it with the block.
        self.put(unsafe { instr_create_1dst_1src(self.dc, op as i32, dst, src) });
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

    pub(crate) fn label(&self) -> Instr {
        // SAFETY: creates a label, to be inserted by `put`.
        unsafe { instr_create_0dst_0src(self.dc, OP_LABEL as i32) }
    }

    pub(crate) fn jump(&self, op: u32, target: Instr) {
        // SAFETY: `target` is a label of this block.
        self.put(unsafe { instr_create_0dst_1src(self.dc, op as i32, opnd_create_instr(target)) });
    }

    /// Jumps if rcx is 0, without looking at flags. The target must be near.
    pub(crate) fn jump_if_rcx_zero(&self, target: Instr) {
        // SAFETY: as in `jump`.
        self.put(unsafe {
            instr_create_0dst_2src(self.dc, OP_jecxz as i32, opnd_create_instr(target), opnd_create_reg(RCX))
        });
    }

    /// `add reg, distance` within the low 16 bits and without flags, as the shadow stack wants it.
    fn step_frame(&self, r: reg_id_t, distance: i32) {
        // SAFETY: builds plain values.
        unsafe {
            let low = reg_resize_to_opsz(r, OPSZ_2 as opnd_size_t);
            let ea = opnd_create_base_disp(r, DR_REG_NULL as reg_id_t, 0, distance, OPSZ_lea as opnd_size_t);
            self.op11(OP_lea, reg(low), ea);
        }
    }

    pub(crate) fn push_frame(&self, r: reg_id_t, call_site: u32) {
        let size = size_of::<crate::context::Frame>() as i32;
        self.load_slot(r, slot::FRAME);
        self.step_frame(r, size);
        self.op11(OP_mov_st, mem(r, 0, OPSZ_8), reg(RSP));
        // Sign-extended to 8 bytes: the call site, and 0 for the node. Site numbers stay below 2^31.
        self.op11(OP_mov_st, mem(r, 8, OPSZ_8), imm32(call_site as i32));
        self.store_slot(slot::FRAME, r);
    }

    pub(crate) fn pop_frame(&self, r: reg_id_t) {
        self.load_slot(r, slot::FRAME);
        self.step_frame(r, -(size_of::<crate::context::Frame>() as i32));
        self.store_slot(slot::FRAME, r);
    }

    /// Leaves 0 in rcx unless `ea` may be PM. Flags stay as they are.
    pub(crate) fn filter_into_rcx(&self, ea: opnd_t) {
        self.lea(RCX, ea);
        let ecx = reg(DR_REG_ECX as reg_id_t);
        // Bits 32 to 47 of the address, without a shift, which would change the flags.
        // SAFETY: creates an instruction and builds plain values.
        unsafe {
            if std::is_x86_feature_detected!("bmi2") {
                let count = opnd_create_immed_int(32, OPSZ_1 as opnd_size_t);
                self.put(instr_create_1dst_2src(self.dc, OP_rorx as i32, reg(RCX), reg(RCX), count));
                self.op11(OP_movzx, ecx, reg(DR_REG_CX as reg_id_t));
            } else {
                self.store_slot(slot::ADDR, RCX);
                let mut high = self.slot(slot::ADDR);
                opnd_set_disp(&raw mut high, opnd_get_disp(high) + 4);
                opnd_set_size(&raw mut high, OPSZ_2 as opnd_size_t);
                self.op11(OP_movzx, ecx, high);
            }
        }
        self.op11(OP_movzx, ecx, self.filter_entry(RCX));
    }

    /// Compares such that "not equal" means `ea` may be PM. Changes flags and `r`.
    pub(crate) fn filter_into_flags(&self, r: reg_id_t, ea: opnd_t) {
        self.lea(r, ea);
        // SAFETY: creates instructions.
        unsafe {
            let count = opnd_create_immed_int(32, OPSZ_1 as opnd_size_t);
            self.put(instr_create_1dst_2src(self.dc, OP_shr as i32, reg(r), count, reg(r)));
            let zero = opnd_create_immed_int(0, OPSZ_1 as opnd_size_t);
            self.put(instr_create_0dst_2src(self.dc, OP_cmp as i32, self.filter_entry(r), zero));
        }
    }

    fn filter_entry(&self, index: reg_id_t) -> opnd_t {
        mem(index, client().pm.filter_table() as usize, OPSZ_1)
    }

    /// Puts an address into its slot by way of rcx.
    fn store_address(&self, at: Address) {
        match at {
            Address::Computed(ea) => self.lea(RCX, ea),
            Address::Constant(addr) => {
                // SAFETY: builds a plain value.
                let value = unsafe { opnd_create_immed_int(addr as i64, OPSZ_8 as opnd_size_t) };
                self.op11(OP_mov_imm, reg(RCX), value);
            }
            Address::Known => return,
        }
        self.store_slot(slot::ADDR, RCX);
    }

    /// Puts an address into its slot and leaves all registers as they are.
    pub(crate) fn keep_address(&self, at: Address) {
        self.store_slot(slot::SAVED, RCX);
        self.store_address(at);
        self.load_slot(RCX, slot::SAVED);
    }

    /// Calls a stub with an address in its slot. All registers, rcx too, are the target's before and after.
    pub(crate) fn call_stub(&self, stub: extern "C" fn(), access: Access, at: Address) {
        self.store_slot(slot::SAVED, RCX);
        self.call_stub_with_rcx_saved(stub, access, at);
    }

    /// The same if the target's rcx is in its slot; an address that is made of it needs it in the register too.
    pub(crate) fn call_stub_with_rcx_saved(&self, stub: extern "C" fn(), access: Access, at: Address) {
        self.store_address(at);
        self.load_slot(RCX, slot::THREAD);
        self.op11(OP_mov_st, mem(RCX, offset_of!(Thread, rsp), OPSZ_8), reg(RSP));
        self.op11(OP_mov_ld, reg(RSP), mem(RCX, offset_of!(Thread, stack), OPSZ_8));
        self.op11(OP_mov_st, mem(RCX, offset_of!(Thread, site), OPSZ_4), imm32(access.site as i32));
        let description = u32::from_le_bytes([access.kind, access.size, access.todo, 0]);
        self.op11(OP_mov_st, mem(RCX, offset_of!(Thread, kind), OPSZ_4), imm32(description as i32));
        self.call(stub);
        self.op11(OP_mov_ld, reg(RSP), mem(RCX, offset_of!(Thread, rsp), OPSZ_8));
        self.load_slot(RCX, slot::SAVED);
    }

    /// The second half of an access, after an instruction that may have changed rcx.
    pub(crate) fn call_after(&self, rcx_changed: bool) {
        self.call_again(stubs::after, rcx_changed);
    }

    /// Calls a stub for the access that the thread knows already.
    pub(crate) fn call_again(&self, stub: extern "C" fn(), rcx_changed: bool) {
        if rcx_changed {
            self.store_slot(slot::SAVED, RCX);
        }
        self.load_slot(RCX, slot::THREAD);
        self.op11(OP_mov_st, mem(RCX, offset_of!(Thread, rsp), OPSZ_8), reg(RSP));
        self.op11(OP_mov_ld, reg(RSP), mem(RCX, offset_of!(Thread, stack), OPSZ_8));
        self.call(stub);
        self.op11(OP_mov_ld, reg(RSP), mem(RCX, offset_of!(Thread, rsp), OPSZ_8));
        self.load_slot(RCX, slot::SAVED);
    }

    fn call(&self, stub: extern "C" fn()) {
        // SAFETY: a call with its implicit operands; the client library is within reach of the code cache.
        unsafe {
            let below = opnd_create_base_disp(RSP, DR_REG_NULL as reg_id_t, 0, -8, OPSZ_8 as opnd_size_t);
            let target = opnd_create_pc(stub as *mut u8);
            self.put(instr_create_2dst_2src(self.dc, OP_call as i32, reg(RSP), below, target, reg(RSP)));
        }
    }

    /// Copies a register to the value slots.
    pub(crate) fn save_value(&self, register: reg_id_t) {
        // SAFETY: plain values, and an instruction that DynamoRIO frees with the block.
        unsafe {
            let size = reg_get_size(register);
            let mut to = self.slot(slot::VALUE);
            opnd_set_size(&raw mut to, size);
            if reg_is_gpr(register) != 0 {
                self.op11(OP_mov_st, to, reg(register));
            } else if needs_evex(register) {
                let all = reg(DR_REG_K0 as reg_id_t);
                self.put(instr_create_1dst_2src(self.dc, OP_vmovups as i32, to, all, reg(register)));
            } else {
                let wide = reg_is_strictly_ymm(register) != 0;
                self.op11(if wide { OP_vmovups } else { OP_movups }, to, reg(register));
            }
        }
    }

    /// Reads a byte at `ea`, so that an address that is not there faults here, at `instr`, and not in a stub.
    pub(crate) fn touch(&self, ea: opnd_t, instr: Instr) {
        self.store_slot(slot::SAVED, RCX);
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
        self.load_slot(RCX, slot::SAVED);
    }

    /// A second copy of an instruction of the target, which may fault as the first may.
    pub(crate) fn copy_of(&self, instr: Instr) {
        // SAFETY: `instr` belongs to this block.
        unsafe {
            let copy = instr_clone(self.dc, instr);
            instr_set_meta_may_fault(copy, 1);
            instr_set_translation(copy, instr_get_app_pc(instr));
            self.put(copy);
        }
    }
}
