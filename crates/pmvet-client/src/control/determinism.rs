//! Deterministic runs: the same time, random numbers and UUIDs in every run.
//!
//! Time is a counter that starts at a fixed date and advances by one microsecond with each query. Random bytes come from a
//! fixed generator, whether the target asks the kernel, a device file or the processor. The vdso is hidden from the target,
//! so that its C library asks the kernel for the time, where the client can answer.

use std::sync::atomic::{AtomicU64, Ordering};

use super::initial_stack;
use crate::dynamorio::{self, Syscall};
use crate::record::syscalls::pending::PendingSyscall;

/// 2020-01-01 00:00:00 UTC, in nanoseconds.
const EPOCH_NANOS: u64 = 1_577_836_800_000_000_000;

/// The time and random numbers of a deterministic run.
pub(crate) static FIXED_INPUTS: FixedInputs = FixedInputs::new();

#[derive(Debug)]
pub(crate) struct FixedInputs {
    time_queries: AtomicU64,
    random: AtomicU64,
}

impl FixedInputs {
    const fn new() -> Self {
        Self { time_queries: AtomicU64::new(0), random: AtomicU64::new(0) }
    }

    /// Nanoseconds since 1970.
    pub(crate) fn now(&self) -> u64 {
        EPOCH_NANOS + self.time_queries.fetch_add(1, Ordering::Relaxed) * 1000
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

/// After an instruction that reads the time stamp counter.
pub(crate) unsafe extern "C" fn time_stamp(_register: u32) {
    dynamorio::set_time_stamp(FIXED_INPUTS.now());
}

/// After an instruction that has put a random number into a register.
pub(crate) unsafe extern "C" fn random_number(register: u32) {
    dynamorio::set_random_number(register, FIXED_INPUTS.random());
}

/// Whether a call asks for the time.
pub(crate) fn is_answered(number: i64) -> bool {
    matches!(number, libc::SYS_clock_gettime | libc::SYS_gettimeofday | libc::SYS_time)
}

/// Answers a call in place of the kernel. Returns its result.
pub(crate) fn answer(call: &Syscall, number: i64) -> Option<i64> {
    let fixed = &FIXED_INPUTS;
    let two_words = |at: u64, first: u64, second: u64| {
        if at != 0 {
            dynamorio::write_memory(at, &[first.to_le_bytes(), second.to_le_bytes()].concat());
        }
    };
    let result = match number {
        libc::SYS_clock_gettime => {
            let now = fixed.now();
            two_words(call.get(1), now / 1_000_000_000, now % 1_000_000_000);
            0
        }
        libc::SYS_gettimeofday => {
            let now = fixed.now();
            two_words(call.get(0), now / 1_000_000_000, now % 1_000_000_000 / 1000);
            0
        }
        libc::SYS_time => {
            let seconds = fixed.now() / 1_000_000_000;
            if call.get(0) != 0 {
                dynamorio::write_memory(call.get(0), &seconds.to_le_bytes());
            }
            seconds
        }
        libc::SYS_getrandom => {
            let mut bytes = vec![0; call.get(1).min(1 << 25) as usize];
            fixed.fill(&mut bytes);
            dynamorio::write_memory(call.get(0), &bytes);
            bytes.len() as u64
        }
        _ => return None,
    };
    Some(result as i64)
}

/// A read from a device that gives random bytes, if the call is one.
pub(crate) fn random_read(call: &Syscall, number: i64) -> Option<PendingSyscall> {
    let uuid = (number == libc::SYS_read).then(|| random_source(call.fd(0)))??;
    Some(PendingSyscall::Random { buffer: call.get(1), uuid })
}

/// Replaces what such a read has returned.
pub(crate) fn replace_random_bytes(buffer: u64, uuid: bool, len: u64) {
    let mut bytes = vec![0; len as usize];
    if uuid {
        dynamorio::read_memory(buffer, &mut bytes);
        FIXED_INPUTS.fill_uuid(&mut bytes);
    } else {
        FIXED_INPUTS.fill(&mut bytes);
    }
    dynamorio::write_memory(buffer, &bytes);
}

/// Whether a descriptor gives random bytes (`Some(false)`) or a random UUID (`Some(true)`).
fn random_source(fd: i32) -> Option<bool> {
    let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    match path.to_str()? {
        "/dev/urandom" | "/dev/random" => Some(false),
        "/proc/sys/kernel/random/uuid" => Some(true),
        _ => None,
    }
}

/// Replaces the time stamps of files by the date at which every run starts.
pub(crate) fn fix_file_times(call: &Syscall, number: i64) {
    // Where the time stamps are, each 16 bytes: three of `stat`, four of `statx`.
    let (buffer, first, count) = match number {
        libc::SYS_stat | libc::SYS_fstat | libc::SYS_lstat => (call.get(1), 72, 3),
        libc::SYS_newfstatat => (call.get(2), 72, 3),
        libc::SYS_statx => (call.get(4), 64, 4),
        _ => return,
    };
    let mut stamp = [0; 16];
    stamp[..8].copy_from_slice(&(EPOCH_NANOS / 1_000_000_000).to_le_bytes());
    dynamorio::write_memory(buffer + first, &stamp.repeat(count));
}

/// Hides the vdso from the target and fixes the random bytes that its C library starts with. `stack` is where the
/// kernel put the arguments, the environment and the auxiliary vector.
pub(crate) fn fix_auxiliary_vector(stack: u64) {
    const AT_IGNORE: u64 = 1;
    const AT_SYSINFO_EHDR: u64 = 33;
    const AT_RANDOM: u64 = 25;
    let Some(aux) = initial_stack::auxiliary_vector(stack) else { return };
    let mut at = aux;
    while let (Some(kind), Some(value)) = (dynamorio::read_word(at), dynamorio::read_word(at + 8)) {
        match kind {
            0 => break,
            AT_SYSINFO_EHDR => dynamorio::write_memory(at, &AT_IGNORE.to_le_bytes()),
            AT_RANDOM => {
                let mut bytes = [0; 16];
                FixedInputs::new().fill(&mut bytes);
                dynamorio::write_memory(value, &bytes);
            }
            _ => {}
        }
        at += 16;
    }
}
