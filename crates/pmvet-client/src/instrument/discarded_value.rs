//! Exchanges whose old value the program does not use.
//!
//! An exchange is technically a read-modify-write, but most are only stores: `std::atomic` stores in this way unless
//! told otherwise. The code after it shows which of the two it is: it reads the register with the old value before
//! overwriting it, or not. The search follows jumps, goes into called functions that could take the register as an
//! argument, and back to the caller where the register could be the result.
//!
//! If in doubt, the value counts as used, with one exception: a function that is not known yet, such as one of a library
//! that is bound at its first call, is assumed to use its first argument only. A function that returns the old value is
//! judged by the caller that comes first.

#![allow(non_upper_case_globals, reason = "DynamoRIO's names in patterns")]

use core::ffi::c_void;

use super::block::Block;
use super::liveness::LiveRegisters;
use crate::dynamorio::bindings::*;
use crate::dynamorio::instructions::{self, Instr, app_pc, constant_address};
use crate::dynamorio::{read_memory, read_word};
use crate::record::thread::Thread;

/// Far more than lies between an exchange and the next use of its register; bounds the search.
const MAX_INSTRUCTIONS: usize = 256;
/// The longest instruction that there is.
const MAX_INSTRUCTION_BYTES: usize = 15;

impl Block {
    /// Whether the program does not use what an exchange has found in memory.
    pub(super) fn discards_old_value(&self, instr: Instr) -> bool {
        let Some(register) = instructions::register_written(instr) else { return false };
        // SAFETY: a query of a register number.
        let register = unsafe { reg_to_pointer_sized(register) };
        let returns = Thread::try_current().map(|thread| thread.return_addresses(MAX_RETURNS)).unwrap_or_default();
        let mut search = Search { dc: self.dc, register, seen: Vec::new() };
        let Some(behind) = Code::at(self.dc, app_pc(instr)).map(|code| code.next) else { return false };
        !search.is_used(behind, Some(&returns))
    }
}

/// How many callers may pass a result on to theirs.
const MAX_RETURNS: usize = 4;

/// The search for a use of a register.
struct Search {
    dc: *mut c_void,
    register: reg_id_t,
    /// Instructions that were visited.
    seen: Vec<u64>,
}

impl Search {
    /// Whether the register is read from `pc` on, before it is overwritten. `returns`: where the function and its callers
    /// return to, unless the register is dead by then.
    fn is_used(&mut self, mut pc: u64, mut returns: Option<&[u64]>) -> bool {
        loop {
            if self.seen.contains(&pc) {
                return false;
            }
            self.seen.push(pc);
            let Some(code) = Code::at(self.dc, pc).filter(|_| self.seen.len() < MAX_INSTRUCTIONS) else { return true };
            if code.is_nop() {
                pc = code.next;
                continue;
            }
            if code.clears(self.register) {
                return false;
            }
            if code.reads(self.register) || code.is_system_call() {
                return true;
            }
            if code.is_call() {
                match self.register as u32 {
                    DR_REG_RBX | DR_REG_RBP | DR_REG_R12 | DR_REG_R13 | DR_REG_R14 | DR_REG_R15 => pc = code.next,
                    DR_REG_RAX | DR_REG_R10 | DR_REG_R11 => return false,
                    _ => {
                        return match self.function(&code) {
                            Some(function) => self.is_used(function, None),
                            None => self.is_first_argument(),
                        };
                    }
                }
            } else if code.is_return() {
                let result = matches!(self.register as u32, DR_REG_RAX | DR_REG_RDX);
                let Some((&caller, rest)) = returns.filter(|_| result).map(|r| r.split_first()).unwrap_or_default()
                else {
                    return result && returns.is_some();
                };
                (pc, returns) = (caller, Some(rest));
            } else if code.is_jump() {
                match code.target() {
                    Some(target) if code.is_conditional() => {
                        if self.is_used(target, returns) {
                            return true;
                        }
                        pc = code.next;
                    }
                    Some(target) => pc = target,
                    None => match self.function(&code) {
                        Some(function) => pc = function,
                        None => return code.table_entry().is_none() || self.is_first_argument(),
                    },
                }
            } else if code.overwrites(self.register) {
                return false;
            } else {
                pc = code.next;
            }
        }
    }

    fn is_first_argument(&self) -> bool {
        self.register as u32 == DR_REG_RDI
    }

    /// The function that is called or jumped to, by way of a table of imported functions if need be. None if it is not known,
    /// or not yet.
    fn function(&self, code: &Code) -> Option<u64> {
        if let Some(entry) = code.table_entry() {
            let target = read_word(entry)?;
            // Until the first call the entry leads to code that asks the loader for the function by its number.
            return self.first_at(target).filter(|first| !first.is_push_of_number()).map(|_| target);
        }
        let target = code.target()?;
        let first = self.first_at(target)?;
        let imported = first.is_jump() && first.table_entry().is_some();
        if imported { self.function(&first) } else { Some(target) }
    }

    /// The first instruction there that does something: functions may begin with a mark for indirect jumps.
    fn first_at(&self, pc: u64) -> Option<Code> {
        let first = Code::at(self.dc, pc)?;
        if first.is_nop() { Code::at(self.dc, first.next) } else { Some(first) }
    }
}

/// An instruction of the target that need not belong to a block.
struct Code {
    dc: *mut c_void,
    instr: Instr,
    next: u64,
}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: made in `at`, and owned by this.
        unsafe { instr_destroy(self.dc, self.instr) };
    }
}

impl Code {
    fn at(dc: *mut c_void, pc: u64) -> Option<Self> {
        let mut bytes = [0; MAX_INSTRUCTION_BYTES + 1];
        if read_memory(pc, &mut bytes[..MAX_INSTRUCTION_BYTES]) == 0 {
            return None;
        }
        // SAFETY: the copy is longer than any instruction; the instruction is freed by `drop`.
        unsafe {
            let mut code = Self { dc, instr: instr_create(dc), next: 0 };
            let next = decode_from_copy(dc, bytes.as_mut_ptr(), pc as *mut u8, code.instr);
            code.next = next as u64;
            (!next.is_null()).then_some(code)
        }
    }

    /// It does nothing, whatever its operands are.
    fn is_nop(&self) -> bool {
        match instructions::opcode(self.instr) {
            OP_nop | OP_nop_modrm => true,
            OP_xchg => self.is_of_one_register(),
            _ => false,
        }
    }

    fn is_of_one_register(&self) -> bool {
        let registers = instructions::sources(self.instr);
        // SAFETY: plain queries of values.
        unsafe {
            registers.len() == 2
                && registers.iter().all(|&operand| opnd_is_reg(operand) != 0)
                && opnd_same(registers[0], registers[1]) != 0
        }
    }

    /// It sets the register to 0 by an operation that formally reads it.
    fn clears(&self, register: reg_id_t) -> bool {
        matches!(instructions::opcode(self.instr), OP_xor | OP_sub)
            && self.is_of_one_register()
            && self.overwrites(register)
    }

    fn reads(&self, register: reg_id_t) -> bool {
        LiveRegisters::NONE.before(self.instr).has(register)
    }

    fn overwrites(&self, register: reg_id_t) -> bool {
        instructions::destinations(self.instr).into_iter().any(|operand| {
            // SAFETY: plain queries of a value.
            unsafe {
                opnd_is_reg(operand) != 0
                    && opnd_size_in_bytes(reg_get_size(opnd_get_reg(operand))) >= 4
                    && reg_to_pointer_sized(opnd_get_reg(operand)) == register
                    && instr_is_predicated(self.instr) == 0
            }
        })
    }

    fn is_call(&self) -> bool {
        instructions::is_call(self.instr)
    }

    fn is_return(&self) -> bool {
        instructions::is_return(self.instr)
    }

    fn is_jump(&self) -> bool {
        instructions::is_control_transfer(self.instr)
    }

    fn is_conditional(&self) -> bool {
        // SAFETY: a query of a valid instruction.
        unsafe { instr_is_cbr(self.instr) != 0 }
    }

    fn is_system_call(&self) -> bool {
        // SAFETY: queries of a valid instruction.
        unsafe { instr_is_syscall(self.instr) != 0 || instr_is_interrupt(self.instr) != 0 }
    }

    fn is_push_of_number(&self) -> bool {
        instructions::opcode(self.instr) == OP_push_imm
    }

    /// Where a direct jump or call leads.
    fn target(&self) -> Option<u64> {
        // SAFETY: queries of a valid instruction; a control transfer has its target as its first source.
        unsafe {
            let target = instr_get_src(self.instr, 0);
            (opnd_is_pc(target) != 0).then(|| opnd_get_pc(target) as u64)
        }
    }

    /// The place of the address that a call or jump of an imported function reads.
    fn table_entry(&self) -> Option<u64> {
        constant_address(*instructions::sources(self.instr).first()?).map(|(entry, _)| entry)
    }
}
