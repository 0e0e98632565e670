//! The same time, random numbers and UUIDs in every run.
//!
//! Time is a counter that starts at a fixed date and advances by one microsecond each time it is asked for. Random bytes
//! come from a fixed generator, whether the target asks the kernel, a device file or the processor. The vdso is hidden from
//! the target, so that its C library asks the kernel for the time, where it can be answered.

#![allow(non_upper_case_globals, reason = "DynamoRIO's names in patterns")]

use core::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use dynamorio_sys::*;

use crate::dr;
use crate::emit::{Emitter, Instr};
use crate::ffi::*;

/// 2020-01-01 00:00:00 UTC, in nanoseconds.
const EPOCH: u64 = 1_577_836_800_000_000_000;

#[derive(Debug, Default)]
pub(crate) struct Fixed {
    asked: AtomicU64,
    random: AtomicU64,
}

impl Fixed {
    /// Nanoseconds since 1970.
    pub(crate) fn now(&self) -> u64 {
        EPOCH + self.asked.fetch_add(1, Ordering::Relaxed) * 1000
    }

    /// The next random number (splitmix64).
    pub(crate) fn random(&self) -> u64 {
        let state = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.random().to_le_bytes()[..chunk.len()]);
        }
    }

    /// Replaces the hexadecimal digits of a UUID.
    pub(crate) fn fill_uuid(&self, text: &mut [u8]) {
        let mut bits = 0;
        for (i, digit) in text.iter_mut().filter(|b| b.is_ascii_hexdigit()).enumerate() {
            if i % 16 == 0 {
                bits = self.random();
            }
            *digit = b"0123456789abcdef"[(bits >> (i % 16 * 4)) as usize & 15];
        }
    }
}

/// Replaces instructions that no two runs agree on.
pub(crate) fn replace(e: &Emitter, instr: Instr, op: u32) {
    let callback: unsafe extern "C" fn(u32) = match op {
        OP_rdtsc | OP_rdtscp => time_stamp,
        OP_rdrand | OP_rdseed => random_number,
        _ => return,
    };
    // SAFETY: list and instruction are of the block under construction; the callback takes one word.
    unsafe {
        let target = if opnd_is_reg(instr_get_dst(instr, 0)) != 0 { opnd_get_reg(instr_get_dst(instr, 0)) } else { 0 };
        let argument = opnd_create_immed_int(target.into(), OPSZ_4 as opnd_size_t);
        let next = instr_get_next(instr);
        // The instruction still runs, for its other effects; then its result is replaced.
        dr_insert_clean_call(e.dc, e.block, next, callback as *mut c_void, 0, 1, argument);
    }
}

unsafe extern "C" fn time_stamp(_register: u32) {
    let mut registers = dr::registers();
    let now = crate::client().fixed.now();
    registers.__bindgen_anon_8.rax = now & 0xffff_ffff;
    registers.__bindgen_anon_6.rdx = now >> 32;
    dr::set_registers(&mut registers);
}

unsafe extern "C" fn random_number(register: u32) {
    const CARRY: u64 = 1;
    let mut registers = dr::registers();
    let reg = register as reg_id_t;
    // SAFETY: `registers` is a full machine context.
    unsafe {
        let size = opnd_size_in_bytes(reg_get_size(reg));
        let full = reg_to_pointer_sized(reg);
        let old = reg_get_value(full, &raw mut *registers);
        let random = crate::client().fixed.random();
        let value = match size {
            2 => old & !0xffff | random & 0xffff,
            4 => random & 0xffff_ffff,
            _ => random,
        };
        reg_set_value(full, &raw mut *registers, value);
        registers.__bindgen_anon_9.rflags |= CARRY;
    }
    dr::set_registers(&mut registers);
}

/// Gives files the time at which every run starts.
pub(crate) fn fix_file_times(number: i64, argument: &dyn Fn(i32) -> u64) {
    // Where the time stamps are, each 16 bytes: three of `stat`, four of `statx`.
    let (buffer, first, count) = match number {
        libc::SYS_stat | libc::SYS_fstat | libc::SYS_lstat => (argument(1), 72, 3),
        libc::SYS_newfstatat => (argument(2), 72, 3),
        libc::SYS_statx => (argument(4), 64, 4),
        _ => return,
    };
    let mut stamp = [0; 16];
    stamp[..8].copy_from_slice(&(EPOCH / 1_000_000_000).to_le_bytes());
    dr::write_memory(buffer + first, &stamp.repeat(count));
}

/// Hides the vdso from the target and fixes the random bytes that its C library starts with. `stack` is where the
/// kernel put the arguments, the environment and the auxiliary vector.
pub(crate) fn fix_start(stack: u64) {
    const AT_IGNORE: u64 = 1;
    const AT_SYSINFO_EHDR: u64 = 33;
    const AT_RANDOM: u64 = 25;
    let Some(aux) = crate::startup::auxiliary_vector(stack) else { return };
    let mut at = aux;
    while let (Some(kind), Some(value)) = (dr::read_word(at), dr::read_word(at + 8)) {
        match kind {
            0 => break,
            AT_SYSINFO_EHDR => dr::write_memory(at, &AT_IGNORE.to_le_bytes()),
            AT_RANDOM => {
                let mut bytes = [0; 16];
                Fixed::default().fill(&mut bytes);
                dr::write_memory(value, &bytes);
            }
            _ => {}
        }
        at += 16;
    }
}
