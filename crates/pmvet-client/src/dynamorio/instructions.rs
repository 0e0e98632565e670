//! Queries of instructions and operands, in DynamoRIO's representation.
//!
//! An [`Instr`] that is passed to a function here belongs to the basic block under construction.

use super::bindings::*;

/// The size that marks the operand of an address computation.
#[allow(non_upper_case_globals, reason = "DynamoRIO's name")]
pub(crate) const OPSZ_lea: u32 = OPSZ_0;

pub(crate) type Instr = *mut instr_t;

const LOCK_PREFIX: u32 = 1;

/// The address of an instruction in the target.
pub(crate) fn app_pc(instr: Instr) -> u64 {
    // SAFETY: a query of a valid instruction.
    unsafe { instr_get_app_pc(instr) as u64 }
}

/// The instruction after it in its block, or null.
pub(crate) fn next(instr: Instr) -> Instr {
    // SAFETY: a query of a valid instruction.
    unsafe { instr_get_next(instr) }
}

pub(crate) fn opcode(instr: Instr) -> u32 {
    // SAFETY: a query of a valid instruction.
    unsafe { instr_get_opcode(instr) as u32 }
}

pub(crate) fn is_call(instr: Instr) -> bool {
    // SAFETY: a query of a valid instruction.
    unsafe { instr_is_call(instr) != 0 }
}

pub(crate) fn is_return(instr: Instr) -> bool {
    // SAFETY: a query of a valid instruction.
    unsafe { instr_is_return(instr) != 0 }
}

/// Whether an instruction transfers control: a jump, call or return.
pub(crate) fn is_control_transfer(instr: Instr) -> bool {
    // SAFETY: a query of a valid instruction.
    unsafe { instr_is_cti(instr) != 0 }
}

/// Whether an instruction may leave its block.
pub(crate) fn leaves_block(instr: Instr) -> bool {
    // SAFETY: queries of a valid instruction.
    unsafe { instr_is_cti(instr) != 0 || instr_is_syscall(instr) != 0 || instr_is_interrupt(instr) != 0 }
}

pub(crate) fn has_lock_prefix(instr: Instr) -> bool {
    // SAFETY: a query of a valid instruction.
    unsafe { instr_get_prefix_flag(instr, LOCK_PREFIX) != 0 }
}

pub(crate) fn writes_memory(instr: Instr) -> bool {
    // SAFETY: a query of a valid instruction.
    unsafe { instr_writes_memory(instr) != 0 }
}

pub(crate) fn reads_memory(instr: Instr) -> bool {
    // SAFETY: a query of a valid instruction.
    unsafe { instr_reads_memory(instr) != 0 }
}

pub(crate) fn destinations(instr: Instr) -> Vec<opnd_t> {
    // SAFETY: queries of a valid instruction, with indices in range.
    unsafe { (0..instr_num_dsts(instr)).map(|i| instr_get_dst(instr, i as u32)).collect() }
}

pub(crate) fn sources(instr: Instr) -> Vec<opnd_t> {
    // SAFETY: queries of a valid instruction, with indices in range.
    unsafe { (0..instr_num_srcs(instr)).map(|i| instr_get_src(instr, i as u32)).collect() }
}

/// Whether an instruction may write any part of a register.
pub(crate) fn writes_register(instr: Instr, register: reg_id_t) -> bool {
    // SAFETY: a query of a valid instruction.
    unsafe { instr_writes_to_reg(instr, register, _dr_opnd_query_flags_t_DR_QUERY_INCLUDE_ALL) != 0 }
}

/// Whether an operand reads a register.
pub(crate) fn uses_register(operand: opnd_t, register: reg_id_t) -> bool {
    // SAFETY: a query of a value.
    unsafe { opnd_uses_reg(operand, register) != 0 }
}

/// Whether an instruction writes a register that an address is computed from.
pub(crate) fn changes_address(instr: Instr, address: opnd_t) -> bool {
    // SAFETY: queries of a value.
    unsafe { (0..opnd_num_regs_used(address)).any(|i| writes_register(instr, opnd_get_reg_used(address, i))) }
}

pub(crate) fn is_vector_register(register: reg_id_t) -> bool {
    // SAFETY: a query of a register number.
    unsafe {
        reg_is_strictly_xmm(register) != 0 || reg_is_strictly_ymm(register) != 0 || reg_is_strictly_zmm(register) != 0
    }
}

/// The register that an instruction takes its first source from, if it is a general or vector register.
pub(crate) fn source_register(instr: Instr) -> Option<reg_id_t> {
    // SAFETY: queries of a valid instruction, which has at least one source.
    unsafe {
        let source = instr_get_src(instr, 0);
        let register = (opnd_is_reg(source) != 0).then(|| opnd_get_reg(source))?;
        (reg_is_gpr(register) != 0 || is_vector_register(register)).then_some(register)
    }
}

/// The register that is an instruction's first destination, if it is one.
pub(crate) fn destination_register(instr: Instr) -> Option<reg_id_t> {
    // SAFETY: queries of a valid instruction, which has at least one destination.
    unsafe {
        let destination = instr_get_dst(instr, 0);
        (opnd_is_reg(destination) != 0).then(|| opnd_get_reg(destination))
    }
}

/// The register among an instruction's destinations, if there is one.
pub(crate) fn register_written(instr: Instr) -> Option<reg_id_t> {
    let operands = destinations(instr).into_iter();
    // SAFETY: plain queries of values.
    operands
        .filter(|&operand| unsafe { opnd_is_reg(operand) } != 0)
        .map(|operand| unsafe { opnd_get_reg(operand) })
        .next()
}

/// The number among an instruction's sources, if there is one.
pub(crate) fn immediate(instr: Instr) -> Option<i64> {
    let operands = sources(instr).into_iter();
    // SAFETY: plain queries of values.
    operands
        .filter(|&operand| unsafe { opnd_is_immed_int(operand) } != 0)
        .map(|operand| unsafe { opnd_get_immed_int(operand) } as i64)
        .next()
}

/// A memory operand whose address is part of the instruction, and its size.
pub(crate) fn constant_address(operand: opnd_t) -> Option<(u64, u32)> {
    // SAFETY: plain queries of a value.
    unsafe {
        let constant = opnd_is_rel_addr(operand) != 0 || opnd_is_abs_addr(operand) != 0;
        let segment = constant.then(|| opnd_get_segment(operand))?;
        let local = segment == DR_SEG_FS as reg_id_t || segment == DR_SEG_GS as reg_id_t;
        let size = opnd_size_in_bytes(opnd_get_size(operand));
        (!local).then(|| (opnd_get_addr(operand) as u64, size))
    }
}

/// Address and size of a memory operand with a base or index register, unless the stack pointer is the base.
pub(crate) fn address_off_stack(operand: opnd_t) -> Option<(opnd_t, u32)> {
    let found = computed_address(operand)?;
    // SAFETY: plain queries of a value.
    unsafe {
        let stack = opnd_get_base(operand) == DR_REG_RSP as reg_id_t;
        (!stack).then_some(found)
    }
}

/// Address and size of a memory operand with a base or index register.
pub(crate) fn computed_address(operand: opnd_t) -> Option<(opnd_t, u32)> {
    // SAFETY: plain queries of a value.
    unsafe {
        if opnd_is_base_disp(operand) == 0 {
            return None;
        }
        let segment = opnd_get_segment(operand);
        if segment == DR_SEG_FS as reg_id_t || segment == DR_SEG_GS as reg_id_t {
            return None;
        }
        let (base, index) = (opnd_get_base(operand), opnd_get_index(operand));
        let none = DR_REG_NULL as reg_id_t;
        if base == none && index == none {
            return None;
        }
        let size = opnd_size_in_bytes(opnd_get_size(operand));
        let ea = opnd_create_base_disp(
            base,
            index,
            opnd_get_scale(operand),
            opnd_get_disp(operand),
            OPSZ_lea as opnd_size_t,
        );
        Some((ea, size))
    }
}
