//! Follows a value that was read too early: byte-level data flow over the instructions of one thread.
//!
//! The client reports each instruction of a reader with its general registers ([`TracedInstruction`]); everything else happens here, so that
//! every instruction class can be tested without a process.
//!
//! What is exact, byte by byte: moves of every width, extensions, byte swaps, shifts and rotates by a known count, bitwise
//! operations (also with constants that clear or set bytes), exchanges, pushes, pops, calls, string operations, vector moves,
//! bitwise vector operations, vector shuffles with a constant and interleaves. Arithmetic carries upwards: a byte of the result
//! depends on the bytes of the operands at or below it. What is loaded from memory depends on the address, too.
//!
//! Everything else is overestimated: all that an instruction writes depends on all that it reads. Flags are one bit.
//!
//! Known gaps: a branch on the value carries no data ([`Taint::branched`] says that there was one); values that the kernel
//! passes on; instructions under a mask count as if nothing were masked; what the x87 unit and `gs` do is not followed.

mod classes;
mod state;

pub use state::{Mask, Taint};

/// The general registers in the order of their numbers, and the start of the thread's segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Registers {
    /// `rax rcx rdx rbx rsp rbp rsi rdi r8 .. r15`, before the instruction.
    pub general: [u64; 16],
    /// What addresses with the prefix `fs` are relative to.
    pub fs: u64,
}

/// An instruction that a thread is about to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TracedInstruction<'a> {
    /// Its address, which relative operands count from.
    pub pc: u64,
    /// Its bytes, perhaps followed by others.
    pub code: &'a [u8],
    /// The registers before it runs.
    pub registers: &'a Registers,
}

/// A write to memory, or by a system call, that depends on the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effect {
    /// Where it writes; for output, where the bytes come from.
    pub addr: u64,
    /// How many bytes it writes, whether all of them depend on the value or not.
    pub len: u64,
    /// What is written depends on the value.
    pub content: bool,
    /// Where it is written depends on the value.
    pub address: bool,
    /// It leaves the process.
    pub output: bool,
}
