//! What the Rust programs of the zoo share: the command line, pool mapping, flushes and fences, random numbers and
//! checksums.
//!
//! All access to persistent memory goes through [`Pool`], a word at a time, so the programs hold no `unsafe` code and
//! every store in their source is one store instruction in their binary.

use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, _mm_clflush, _mm_sfence, _mm_stream_si64};
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::ptr;
use std::sync::atomic::{compiler_fence, AtomicU64, Ordering};
use std::thread;

/// The unit in which persistent memory is written back.
pub const LINE: usize = 64;
/// The unit of access.
pub const WORD: usize = 8;
/// So many bytes of input are looked at.
const MOST_INPUT: u64 = 1 << 12;

/// The bug to build in: the value of `ZOO_BUG` at compile time, 0 for the clean program.
pub const fn bug_number(env: Option<&str>) -> u32 {
    let Some(text) = env else { return 0 };
    let digits = text.as_bytes();
    let mut number = 0;
    let mut i = 0;
    while i < digits.len() {
        assert!(digits[i].is_ascii_digit(), "ZOO_BUG must be a number");
        number = number * 10 + (digits[i] - b'0') as u32;
        i += 1;
    }
    number
}

/// What every program accepts: `POOL [-n OPS] [-t THREADS] [-s SEED] [-m MIX] [-i]`.
#[derive(Debug)]
pub struct Opts {
    pub pool: PathBuf,
    pub ops: u64,
    pub threads: u64,
    pub seed: u64,
    /// Program specific: shares of its operations, as in `40/20/30/10`.
    pub mix: Option<String>,
    /// Random numbers are made of the bytes of standard input, one of each, so that a fuzzer can choose them.
    pub input: bool,
}

impl Opts {
    fn parse(mut args: impl Iterator<Item = String>) -> Option<Self> {
        let (mut pool, mut ops, mut threads, mut seed, mut mix, mut input) = (None, 100, 1, 1, None, false);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "-n" => ops = args.next()?.parse().ok()?,
                "-t" => threads = args.next()?.parse().ok()?,
                "-s" => seed = args.next()?.parse().ok()?,
                "-m" => mix = Some(args.next()?),
                "-i" => input = true,
                _ if arg.starts_with('-') || pool.is_some() => return None,
                _ => pool = Some(PathBuf::from(arg)),
            }
        }
        (1..=64).contains(&threads).then_some(Self { pool: pool?, ops, threads, seed, mix, input })
    }

    /// The shares of a program's operations: from the command line, or its defaults.
    pub fn shares<const N: usize>(&self, default: [u64; N]) -> Result<[u64; N], String> {
        let Some(mix) = &self.mix else { return Ok(default) };
        let shares: Vec<u64> = mix.split('/').filter_map(|share| share.parse().ok()).collect();
        match <[u64; N]>::try_from(shares) {
            Ok(shares) if shares.iter().any(|&share| share > 0) => Ok(shares),
            _ => Err(format!("-m {mix}: {N} shares are needed, as in {default:?}")),
        }
    }

    /// Splits the operations among the threads, calling `step` for each with the random numbers of its thread.
    pub fn run_ops(&self, step: impl Fn(&mut Rng) -> Result<(), String> + Sync) -> Result<(), String> {
        if self.input {
            // Read here and not earlier: the pool is open by now. Two bytes make an operation.
            let mut bytes = Vec::new();
            io::stdin().lock().take(MOST_INPUT).read_to_end(&mut bytes).map_err(|e| format!("standard input: {e}"))?;
            let ops = bytes.len() / 2;
            let mut rng = Rng::Input(bytes.into_iter());
            return (0..ops).try_for_each(|_| step(&mut rng));
        }
        let work = |id: u64| {
            let mut rng = Rng::new(self.seed + id);
            let ops = self.ops / self.threads + u64::from(id < self.ops % self.threads);
            (0..ops).try_for_each(|_| step(&mut rng))
        };
        thread::scope(|scope| {
            let work = &work;
            let others: Vec<_> = (1..self.threads).map(|id| scope.spawn(move || work(id))).collect();
            // The main thread takes a share, so that one thread means one.
            let first = work(0);
            others
                .into_iter()
                .map(|other| other.join().unwrap_or_else(|_| Err("a thread panicked".into())))
                .fold(first, Result::and)
        })
    }
}

/// A program's `main`: parses the command line and turns the outcome into output and exit code.
pub fn run(program: impl FnOnce(&Opts) -> Result<String, String>) -> ExitCode {
    let mut args = std::env::args();
    let name = args.next().unwrap_or_default();
    let Some(opts) = Opts::parse(args) else {
        eprintln!("usage: {name} POOL [-n OPS] [-t THREADS] [-s SEED] [-m MIX] [-i]");
        return ExitCode::from(2);
    };
    match program(&opts) {
        Ok(summary) => {
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Flush {
    Clwb,
    Clflushopt,
    Clflush,
}

impl Flush {
    /// The cheapest flush of this processor.
    fn of_this_cpu() -> Self {
        match __cpuid_count(7, 0).ebx {
            features if features & 1 << 24 != 0 => Self::Clwb,
            features if features & 1 << 23 != 0 => Self::Clflushopt,
            _ => Self::Clflush,
        }
    }
}

/// A mapped pool file. Offsets are in bytes and must be multiples of [`WORD`]; one outside of the pool panics.
#[derive(Debug)]
pub struct Pool {
    base: *mut u8,
    len: usize,
    flush: Flush,
}

// SAFETY: the mapping is never moved or unmapped, and all access to it is atomic.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// Maps `len` bytes of the pool file, creating or growing it.
    pub fn open(path: &Path, len: usize) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        if file.metadata()?.len() < len as u64 {
            file.set_len(len as u64)?;
        }
        let map = |flags| {
            // SAFETY: a new mapping of a file that is open, at an address the kernel picks.
            unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, file.as_raw_fd(), 0) }
        };
        let mut base = map(libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC);
        // Only DAX file systems grant MAP_SYNC; elsewhere the program still runs, for testing.
        if base == libc::MAP_FAILED {
            base = map(libc::MAP_SHARED);
        }
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base: base.cast(), len, flush: Flush::of_this_cpu() })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(WORD) && at < self.len, "offset {at} outside of the pool");
        // SAFETY: aligned and inside of the mapping, which outlives self and is only accessed atomically.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }
    }

    pub fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    /// A plain store, never torn, merged or moved ahead of earlier ones by the compiler.
    pub fn store(&self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::Release);
    }

    /// A non-temporal store: durable after the next [`fence`](Self::fence), without a flush.
    pub fn stream(&self, at: usize, value: u64) {
        let word = self.word(at).as_ptr();
        compiler_fence(Ordering::SeqCst);
        // SAFETY: `word` checked the address; the callers fence before another thread may look.
        unsafe { _mm_stream_si64(word.cast(), value as i64) };
        compiler_fence(Ordering::SeqCst);
    }

    /// Starts the write-back of every line that `[at, at + len)` touches; durable after the next fence.
    pub fn flush(&self, at: usize, len: usize) {
        for line in (at / LINE * LINE..at + len).step_by(LINE) {
            let addr = ptr::from_ref(self.word(line));
            compiler_fence(Ordering::SeqCst);
            // SAFETY: flushing a line of the mapping changes no value.
            unsafe {
                match self.flush {
                    Flush::Clwb => asm!("clwb [{}]", in(reg) addr, options(nostack, preserves_flags)),
                    Flush::Clflushopt => asm!("clflushopt [{}]", in(reg) addr, options(nostack, preserves_flags)),
                    Flush::Clflush => _mm_clflush(addr.cast()),
                }
            }
            compiler_fence(Ordering::SeqCst);
        }
    }

    /// Waits for the flushes and non-temporal stores issued before it.
    pub fn fence(&self) {
        compiler_fence(Ordering::SeqCst);
        // SAFETY: every x86-64 processor has it.
        unsafe { _mm_sfence() };
        compiler_fence(Ordering::SeqCst);
    }

    pub fn persist(&self, at: usize, len: usize) {
        self.flush(at, len);
        self.fence();
    }
}

/// Scrambles a word: the finaliser of splitmix64.
pub const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Random numbers.
#[derive(Debug)]
pub enum Rng {
    /// Deterministic ones (splitmix64).
    State(u64),
    /// Such as somebody has chosen, a byte each.
    Input(std::vec::IntoIter<u8>),
}

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self::State(mix(seed))
    }

    pub fn word(&mut self) -> u64 {
        match self {
            Self::State(state) => {
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                mix(*state)
            }
            Self::Input(bytes) => mix(bytes.next().unwrap_or(0).into()),
        }
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }

    /// An index, drawn in proportion to the shares.
    pub fn pick(&mut self, shares: &[u64]) -> usize {
        let mut left = self.below(shares.iter().sum());
        for (i, &share) in shares.iter().enumerate() {
            if left < share {
                return i;
            }
            left -= share;
        }
        unreachable!("the remainder is below the sum of the shares")
    }
}

/// CRC-32 (IEEE) of the words' bytes.
pub fn crc32(words: &[u64]) -> u32 {
    let mut crc = !0u32;
    for byte in words.iter().flat_map(|word| word.to_le_bytes()) {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_has_the_known_check_value() {
        assert_eq!(crc32(&[u64::from_le_bytes(*b"12345678")]), 0x9ae0_daaf);
    }

    #[test]
    fn a_missing_bug_is_the_clean_program() {
        assert_eq!(bug_number(None), 0);
        assert_eq!(bug_number(Some("13")), 13);
    }

    #[test]
    fn shares_are_picked_in_proportion() {
        let mut rng = Rng::new(1);
        let mut hits = [0; 3];
        (0..1000).for_each(|_| hits[rng.pick(&[3, 0, 1])] += 1);
        assert!(hits[1] == 0 && (650..850).contains(&hits[0]), "{hits:?}");
    }
}
