//! How one event becomes bytes: the layout that [`encode`](super::encode) and [`decode`](super::decode) share.
//!
//! An instruction mostly does the same thing at the next address, and the same instruction mostly follows it. So both sides keep
//! a [`Predictor`](super::predictor::Predictor) of what comes next, and the file holds only what it got wrong:
//!
//! ```text
//! event = 1ccccccc  operands                                          all as predicted
//!       | 0tqkCCSS  [thread] [seq] [slot] [context] [kind [size]] [control]  operands
//! ```
//!
//! `t`, `q`, `k`: thread, sequence number, and kind of event with its size, follow. `SS`, `CC`: instruction (as a
//! *slot*, see there) and context are the first guess, the second guess, or follow. `SS` = 3 is a definition instead.
//! The control bits `ccccccc`, present only for events with an address, say how their operands are coded:
//!
//! ```text
//! control = b ll vvvv    b: address relative to the slot's next address or to the thread's last one
//!                        ll: the difference is 0, has 1 byte, has 2 bytes, is a varint
//!                        vvvv, up to 8 bytes: 0-8: so many low bytes of the value; 9-15: so many, less 9, low bytes
//!                              of the difference to the slot's last value
//!                        vvvv, more bytes: 0: as they are; 1: all zero
//! ```
//!
//! Numbers are LEB128 varints, differences wrap around and are zigzag coded.

use std::path::Path;

use crate::event::What;
use crate::paths;

pub(super) const PREDICTED: u8 = 0x80;
pub(super) const THREAD: u8 = 0x40;
pub(super) const SEQ: u8 = 0x20;
pub(super) const KIND: u8 = 0x10;
pub(super) const CONTEXT_SHIFT: u8 = 2;
/// Values of the two-bit fields `SS` and `CC`; 0 and 1 are the model's guesses.
pub(super) const EXPLICIT: u8 = 2;
pub(super) const DEFINITION: u8 = 3;

pub(super) const DEFINE_SITE: u8 = 0x03;
pub(super) const DEFINE_SLOT: u8 = 0x07;
pub(super) const DEFINE_CONTEXT: u8 = 0x0b;
pub(super) const DEFINE_THREAD: u8 = 0x0f;

pub(super) const BASE_SHIFT: u8 = 6;
pub(super) const LENGTH_SHIFT: u8 = 4;
/// Value code from which on the value is a difference.
pub(super) const DIFFERENCE: u8 = 9;
pub(super) const MAX_DIFFERENCE: usize = 6;
/// A value of at most this many bytes is coded as a number.
pub(super) const NUMBER: usize = 8;
/// Decoded values that are all zero borrow from this; longer ones are stored as they are.
pub(super) static ZEROS: [u8; 4096] = [0; 4096];

/// Kinds of event. Five bits: the other three of the byte are the kind's own `how` or flags.
pub(super) mod op {
    pub(in super::super) const STORE: u8 = 0;
    pub(in super::super) const LOAD: u8 = 1;
    pub(in super::super) const RMW: u8 = 2;
    pub(in super::super) const FLUSH: u8 = 3;
    pub(in super::super) const FENCE: u8 = 4;
    pub(in super::super) const UNSUPPORTED: u8 = 5;
    pub(in super::super) const FILE: u8 = 6;
    pub(in super::super) const MAP: u8 = 7;
    pub(in super::super) const UNMAP: u8 = 8;
    /// Bytes of a file, or of a stream, with their values: one of the `BYTES_` kinds below.
    pub(in super::super) const FILE_WRITE: u8 = 9;
    /// Bytes of a file, or of a stream, without their values: one of the `RANGE_` kinds below.
    pub(in super::super) const FILE_RANGE: u8 = 10;
    pub(in super::super) const FILE_RESIZE: u8 = 11;
    pub(in super::super) const FILE_SYNC: u8 = 12;
    pub(in super::super) const FILE_RENAME: u8 = 13;
    pub(in super::super) const FILE_UNLINK: u8 = 14;
    pub(in super::super) const THREAD_START: u8 = 15;
    pub(in super::super) const THREAD_EXIT: u8 = 16;
    pub(in super::super) const THREAD_CREATE: u8 = 17;
    pub(in super::super) const THREAD_JOIN: u8 = 18;
    pub(in super::super) const ACQUIRE: u8 = 19;
    pub(in super::super) const RELEASE: u8 = 20;
    pub(in super::super) const SYNC: u8 = 21;
    pub(in super::super) const PROCESS_START: u8 = 22;
    pub(in super::super) const PROCESS_EXIT: u8 = 23;
    pub(in super::super) const EXEC: u8 = 24;
    pub(in super::super) const MODULE: u8 = 25;
    pub(in super::super) const MARKER: u8 = 26;
    pub(in super::super) const INTERRUPTED: u8 = 27;
    pub(in super::super) const ATOMIC: u8 = 28;
    /// Also the calls about a transaction, see [`TRANSACTION`](super::TRANSACTION).
    pub(in super::super) const ALLOCATE: u8 = 29;
    pub(in super::super) const THREAD_DETACH: u8 = 30;
    pub(in super::super) const STEP: u8 = 31;
}

/// Kinds of [`op::FILE_RANGE`].
pub(super) const RANGE_ZEROED: u8 = 0;
pub(super) const RANGE_READ: u8 = 1;
pub(super) const RANGE_INPUT: u8 = 2;
pub(super) const RANGE_OUTPUT: u8 = 3;
pub(super) const RANGE_REPLY: u8 = 4;

/// Kinds of [`op::FILE_WRITE`].
pub(super) const BYTES_OF_FILE: u8 = 0;
pub(super) const BYTES_OF_REQUEST: u8 = 1;
pub(super) const BYTES_OF_ADDRESS: u8 = 2;

/// The kind of [`op::ALLOCATE`] that is a call about a transaction. Which one follows.
pub(super) const TRANSACTION: u8 = 1;

/// Flags of [`op::RMW`].
pub(super) const RMW_STORED: u8 = 1;
/// The old value is not used.
pub(super) const RMW_DISCARDS: u8 = 4;
/// `old` has a different length, which follows. No processor does that, but the vocabulary allows it.
pub(super) const RMW_UNEVEN: u8 = 2;
/// The same flag of [`op::ATOMIC`], beside its kind.
pub(super) const ATOMIC_UNEVEN: u8 = 4;

/// What an instruction tends to repeat: the kind of event it causes, and the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// `op << 3 | how`.
    pub(super) kind: u8,
    /// 0 for kinds without one.
    pub(super) size: u64,
}

impl Shape {
    pub(super) fn new(what: &What<'_>) -> Self {
        let (op, how, size) = match *what {
            What::Store { value, how, .. } => (op::STORE, how as u8, value.len() as u64),
            What::Load { size, .. } => (op::LOAD, 0, u64::from(size)),
            What::Rmw { old, new, stored, discards, .. } => {
                let flag = |set: bool, flag: u8| if set { flag } else { 0 };
                let uneven = flag(old.len() != new.len(), RMW_UNEVEN);
                (op::RMW, flag(stored, RMW_STORED) | flag(discards, RMW_DISCARDS) | uneven, new.len() as u64)
            }
            What::Atomic { old, new, how, .. } => {
                let uneven = if old.len() == new.len() { 0 } else { ATOMIC_UNEVEN };
                (op::ATOMIC, how as u8 | uneven, new.len() as u64)
            }
            What::Allocate { .. } => (op::ALLOCATE, 0, 0),
            What::Transaction { .. } => (op::ALLOCATE, TRANSACTION, 0),
            What::Flush { how, pm, .. } => (op::FLUSH, (how as u8) << 1 | u8::from(pm), 0),
            What::Fence { how } => (op::FENCE, how as u8, 0),
            What::Unsupported { size, .. } => (op::UNSUPPORTED, 0, u64::from(size)),
            What::File { .. } => (op::FILE, 0, 0),
            What::Map { writable, .. } => (op::MAP, u8::from(writable), 0),
            What::Unmap { .. } => (op::UNMAP, 0, 0),
            What::FileWrite { .. } => (op::FILE_WRITE, BYTES_OF_FILE, 0),
            What::Request { .. } => (op::FILE_WRITE, BYTES_OF_REQUEST, 0),
            What::Connection { .. } => (op::FILE_WRITE, BYTES_OF_ADDRESS, 0),
            What::FileZero { .. } => (op::FILE_RANGE, RANGE_ZEROED, 0),
            What::FileRead { .. } => (op::FILE_RANGE, RANGE_READ, 0),
            What::Input { .. } => (op::FILE_RANGE, RANGE_INPUT, 0),
            What::Output { .. } => (op::FILE_RANGE, RANGE_OUTPUT, 0),
            What::Reply { .. } => (op::FILE_RANGE, RANGE_REPLY, 0),
            What::FileResize { .. } => (op::FILE_RESIZE, 0, 0),
            What::FileSync { how, .. } => (op::FILE_SYNC, how as u8, 0),
            What::FileRename { .. } => (op::FILE_RENAME, 0, 0),
            What::FileUnlink { .. } => (op::FILE_UNLINK, 0, 0),
            What::ThreadStart { .. } => (op::THREAD_START, 0, 0),
            What::ThreadExit => (op::THREAD_EXIT, 0, 0),
            What::ThreadCreate { .. } => (op::THREAD_CREATE, 0, 0),
            What::ThreadJoin { .. } => (op::THREAD_JOIN, 0, 0),
            What::ThreadDetach { .. } => (op::THREAD_DETACH, 0, 0),
            What::Acquire { how, .. } => (op::ACQUIRE, how as u8, 0),
            What::Release { how, .. } => (op::RELEASE, how as u8, 0),
            What::Sync { op: how, .. } => (op::SYNC, how as u8, 0),
            What::ProcessStart { .. } => (op::PROCESS_START, 0, 0),
            What::ProcessExit { .. } => (op::PROCESS_EXIT, 0, 0),
            What::Exec { .. } => (op::EXEC, 0, 0),
            What::Module { .. } => (op::MODULE, 0, 0),
            What::Marker { how, .. } => (op::MARKER, how as u8, 0),
            What::Step { .. } => (op::STEP, 0, 0),
            What::Interrupted { size, .. } => (op::INTERRUPTED, 0, u64::from(size)),
        };
        Shape { kind: op << 3 | how, size }
    }

    pub(super) fn op(self) -> u8 {
        self.kind >> 3
    }

    pub(super) fn how(self) -> u8 {
        self.kind & 7
    }

    /// Whether the two values of an [`op::RMW`] or [`op::ATOMIC`] differ in length.
    pub(super) fn is_uneven(self) -> bool {
        self.how() & if self.op() == op::ATOMIC { ATOMIC_UNEVEN } else { RMW_UNEVEN } != 0
    }

    pub(super) fn has_size(self) -> bool {
        matches!(self.op(), op::STORE | op::LOAD | op::RMW | op::ATOMIC | op::UNSUPPORTED | op::INTERRUPTED)
    }

    /// Whether the thread's next access is likely to be near this one.
    pub(super) fn is_access(self) -> bool {
        self.has_size() && self.op() != op::ATOMIC || self.op() == op::FLUSH
    }

    pub(super) fn has_control(self) -> bool {
        use op::{ACQUIRE, ALLOCATE, ATOMIC, MARKER, RELEASE, SYNC};
        self.is_access() || matches!(self.op(), ACQUIRE | RELEASE | SYNC | MARKER | ATOMIC | ALLOCATE)
    }
}

pub(super) fn zigzag(difference: u64) -> u64 {
    difference << 1 ^ ((difference as i64) >> 63) as u64
}

pub(super) fn unzigzag(coded: u64) -> u64 {
    coded >> 1 ^ (coded & 1).wrapping_neg()
}

/// How many low bytes it takes to hold `n`.
pub(super) fn width(n: u64) -> usize {
    (64 - n.leading_zeros()).div_ceil(8) as usize
}

pub(super) fn put_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Appends the `len` low bytes of `n`.
pub(super) fn put_low(out: &mut Vec<u8>, n: u64, len: usize) {
    // Eight bytes, then cut: much cheaper than a copy of varying length.
    let end = out.len() + len;
    out.extend_from_slice(&n.to_le_bytes());
    out.truncate(end);
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// What is wrong with the bytes. The reader adds the place.
pub(super) type Damage = &'static str;

const TRUNCATED: Damage = "an event or field ends behind its block";

/// A position in bytes that may be damaged: every step is checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Input<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Input<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub(super) fn byte(&mut self) -> Result<u8, Damage> {
        let byte = *self.bytes.get(self.at).ok_or(TRUNCATED)?;
        self.at += 1;
        Ok(byte)
    }

    pub(super) fn varint(&mut self) -> Result<u64, Damage> {
        let mut n = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            n |= bits << shift;
            if byte < 0x80 {
                return Ok(n);
            }
        }
        Err("a number is too large")
    }

    pub(super) fn varint32(&mut self) -> Result<u32, Damage> {
        u32::try_from(self.varint()?).map_err(|_| "a number is too large")
    }

    /// A number of `len` low bytes, at most eight.
    pub(super) fn low(&mut self, len: usize) -> Result<u64, Damage> {
        // Mostly eight bytes can be read and the surplus masked: cheaper than a copy of varying length.
        if let Some(eight) = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<8>()) {
            self.at += len;
            let unused = 64 - 8 * len as u32;
            return Ok(u64::from_le_bytes(*eight) & u64::MAX.checked_shr(unused).unwrap_or(0));
        }
        let mut eight = [0; 8];
        eight[..len].copy_from_slice(self.next_bytes(len as u64)?);
        Ok(u64::from_le_bytes(eight))
    }

    pub(super) fn next_bytes(&mut self, len: u64) -> Result<&'a [u8], Damage> {
        let rest = self.bytes.get(self.at..).ok_or(TRUNCATED)?;
        let taken = usize::try_from(len).ok().and_then(|len| rest.get(..len)).ok_or(TRUNCATED)?;
        self.at += taken.len();
        Ok(taken)
    }

    pub(super) fn counted(&mut self) -> Result<&'a [u8], Damage> {
        let len = self.varint()?;
        self.next_bytes(len)
    }

    pub(super) fn path(&mut self) -> Result<&'a Path, Damage> {
        Ok(paths::of_bytes(self.counted()?))
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Damage> {
        std::str::from_utf8(self.counted()?).map_err(|_| "a text is not UTF-8")
    }
}
