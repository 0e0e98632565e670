//! The target's registers, from within a clean call or an event that has them.

use super::bindings::*;

/// All of the target's registers.
pub(crate) fn registers() -> Box<dr_mcontext_t> {
    // SAFETY: all-zero is a valid value; size and flags are set as DynamoRIO wants them.
    unsafe {
        let mut context: Box<dr_mcontext_t> = Box::new(std::mem::zeroed());
        context.size = size_of::<dr_mcontext_t>();
        context.flags = dr_mcontext_flags_t::DR_MC_ALL;
        dr_get_mcontext(dr_get_current_drcontext(), &raw mut *context);
        context
    }
}

/// The general registers, in the order of `DR_REG_RAX`…. `fs_base` is filled in if it is still 0.
pub(crate) fn integer_registers(fs_base: &mut u64) -> [u64; 16] {
    // SAFETY: all-zero is a valid value; size and flags are set as DynamoRIO wants them, and this is within a clean call.
    unsafe {
        let mut context: dr_mcontext_t = std::mem::zeroed();
        context.size = size_of::<dr_mcontext_t>();
        context.flags =
            dr_mcontext_flags_t(dr_mcontext_flags_t::DR_MC_INTEGER.0 | dr_mcontext_flags_t::DR_MC_CONTROL.0);
        dr_get_mcontext(dr_get_current_drcontext(), &raw mut context);
        let general = std::array::from_fn(|i| reg_get_value(DR_REG_RAX as reg_id_t + i as reg_id_t, &raw mut context));
        if *fs_base == 0 {
            let none = DR_REG_NULL as reg_id_t;
            let segment = DR_SEG_FS as reg_id_t;
            let start = opnd_create_far_base_disp(segment, none, none, 0, 0, OPSZ_8 as opnd_size_t);
            *fs_base = opnd_compute_address(start, &raw mut context) as u64;
        }
        general
    }
}

fn set_registers(registers: &mut dr_mcontext_t) {
    // SAFETY: a full machine context, from within a clean call.
    unsafe { dr_set_mcontext(dr_get_current_drcontext(), registers) };
}

/// Gives an argument register of a system call the value that the target put there.
pub(crate) fn restore_argument(index: i32, value: u64) {
    let mut registers = registers();
    match index {
        0 => registers.__bindgen_anon_1.rdi = value,
        1 => registers.__bindgen_anon_2.rsi = value,
        3 => registers.r10 = value,
        _ => return,
    }
    set_registers(&mut registers);
}

/// Replaces the result of `rdtsc`.
pub(crate) fn set_time_stamp(now: u64) {
    let mut registers = registers();
    registers.__bindgen_anon_8.rax = now & 0xffff_ffff;
    registers.__bindgen_anon_6.rdx = now >> 32;
    set_registers(&mut registers);
}

/// Replaces the result of `rdrand` or `rdseed`, whose destination is `register`, and lets it succeed.
pub(crate) fn set_random_number(register: u32, random: u64) {
    const CARRY: u64 = 1;
    let mut registers = registers();
    let reg = register as reg_id_t;
    // SAFETY: `registers` is a full machine context.
    unsafe {
        let size = opnd_size_in_bytes(reg_get_size(reg));
        let full = reg_to_pointer_sized(reg);
        let old = reg_get_value(full, &raw mut *registers);
        let value = match size {
            2 => old & !0xffff | random & 0xffff,
            4 => random & 0xffff_ffff,
            _ => random,
        };
        reg_set_value(full, &raw mut *registers, value);
        registers.__bindgen_anon_9.rflags |= CARRY;
    }
    set_registers(&mut registers);
}
