//! Liveness: which registers and flags a block still needs at each instruction, so that instrumentation need not save the
//! others.
//!
//! Only what is overwritten within the block before it is read counts as dead; at the end everything is alive.

#![allow(non_upper_case_globals, reason = "DynamoRIO's names in patterns")]

use super::markers;
use crate::dynamorio::bindings::*;
use crate::dynamorio::instructions::Instr;

/// What the target needs just before an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LiveRegisters {
    /// Bit n: general register n, in the order of `DR_REG_RAX`….
    registers: u16,
    flags: u32,
}

const FLAGS_READ: u32 = 0x11f;
const FLAGS_WRITE: u32 = 0x8f800;
const WRITE_SHIFT: u32 = 11;

impl LiveRegisters {
    pub(crate) const ALL: Self = Self { registers: u16::MAX, flags: FLAGS_READ };
    pub(crate) const NONE: Self = Self { registers: 0, flags: 0 };

    pub(crate) fn flags(self) -> bool {
        self.flags != 0
    }

    pub(crate) fn has(self, reg: reg_id_t) -> bool {
        bit(reg).is_none_or(|bit| self.registers & bit != 0)
    }

    /// A register that is not needed, preferably one with a short encoding.
    pub(crate) fn dead_register(self) -> Option<reg_id_t> {
        const ORDER: [u32; 8] =
            [DR_REG_RCX, DR_REG_RAX, DR_REG_RDX, DR_REG_RSI, DR_REG_RDI, DR_REG_R8, DR_REG_R9, DR_REG_R11];
        ORDER.into_iter().map(|r| r as reg_id_t).find(|&r| !self.has(r))
    }

    /// What is needed before `instr`, if `self` is needed after it.
    pub(crate) fn before(self, instr: Instr) -> Self {
        let mut live = self;
        // SAFETY: `instr` belongs to the block under construction; operand indices are in range.
        unsafe {
            let flags = instr_get_arith_flags(instr, _dr_opnd_query_flags_t_DR_QUERY_DEFAULT);
            if !may_leave_flags(instr) {
                live.flags &= !((flags & FLAGS_WRITE) >> WRITE_SHIFT);
            }
            live.flags |= flags & FLAGS_READ;

            let conditional = instr_is_predicated(instr) != 0;
            for i in 0..instr_num_dsts(instr) {
                let operand = instr_get_dst(instr, i as u32);
                if opnd_is_reg(operand) != 0 {
                    let reg = opnd_get_reg(operand);
                    // A 32-bit write clears the upper half too; a narrower one keeps the rest.
                    let whole = reg_is_gpr(reg) != 0 && opnd_size_in_bytes(reg_get_size(reg)) >= 4;
                    if whole && !conditional {
                        live.registers &= !bit(reg_to_pointer_sized(reg)).unwrap_or(0);
                    }
                }
            }
            for i in 0..instr_num_dsts(instr) {
                let operand = instr_get_dst(instr, i as u32);
                let partial = opnd_is_reg(operand) != 0
                    && (conditional || opnd_size_in_bytes(reg_get_size(opnd_get_reg(operand))) < 4);
                if partial || opnd_is_memory_reference(operand) != 0 {
                    live.use_operand(operand);
                }
            }
            for i in 0..instr_num_srcs(instr) {
                live.use_operand(instr_get_src(instr, i as u32));
            }
            // A marker is read through rax, which no later instruction of the program may need.
            if markers::is_marker(instr, instr_get_opcode(instr) as u32) {
                live.registers |= bit(DR_REG_RAX as reg_id_t).unwrap_or(0);
            }
        }
        live
    }

    fn use_operand(&mut self, operand: opnd_t) {
        // SAFETY: plain queries of a value.
        unsafe {
            for i in 0..opnd_num_regs_used(operand) {
                let reg = opnd_get_reg_used(operand, i);
                if reg_is_gpr(reg) != 0 {
                    self.registers |= bit(reg_to_pointer_sized(reg)).unwrap_or(0);
                }
            }
        }
    }
}

fn bit(reg: reg_id_t) -> Option<u16> {
    let first = DR_REG_RAX as reg_id_t;
    (reg >= first && reg < first + 16).then(|| 1 << (reg - first))
}

/// A shift or rotate by a variable count that happens to be 0 changes no flag; a repeated string instruction with a
/// count of 0 neither.
fn may_leave_flags(instr: Instr) -> bool {
    // SAFETY: queries of a valid instruction.
    unsafe {
        let op = instr_get_opcode(instr) as u32;
        let shift = matches!(op, OP_shl | OP_shr | OP_sar | OP_rol | OP_ror | OP_rcl | OP_rcr | OP_shld | OP_shrd);
        let variable = shift && opnd_is_immed_int(instr_get_src(instr, 0)) == 0;
        variable || matches!(op, OP_rep_cmps | OP_repne_cmps | OP_rep_scas | OP_repne_scas)
    }
}
