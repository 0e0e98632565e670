//! Records in a ring: how one event looks in shared memory.
//!
//! A record is a whole number of 8-byte words:
//!
//! ```text
//! word 0   sequence number (48 bits) | kind (8 bits) | size (8 bits)
//! word 1   site (32 bits) | context (32 bits)
//! word 2   address, or the tag of a rare event
//! word 3…  data: the value of a store; old and new value of a read-modify-write; for bulk stores and rare events a
//!          length word and that many bytes
//! ```
//!
//! The common kinds are written by hand-made code in the client, so this layout is part of its contract. Rare events
//! share the kind [`RARE`] and carry four numbers and a text.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::event::{
    AtomicKind, Event, FenceKind, FlushKind, LockKind, MarkerKind, StoreKind, SyncKind, SyncOp, TransactionOp, What,
};
use crate::ids::{ContextId, FileId, ModuleId, SiteId, ThreadId};
use crate::paths;

/// A regular store of up to 64 bytes.
pub const STORE: u8 = 1;
/// As [`STORE`], non-temporal.
pub const STORE_NT: u8 = 2;
/// `size` is the number of bytes.
pub const LOAD: u8 = 3;
/// Old value, then new value, each padded to words.
pub const RMW: u8 = 4;
/// As [`RMW`], by a compare-and-exchange that found another value.
pub const RMW_FAILED: u8 = 5;
/// `size` is 1 if the line is in PM.
pub const CLFLUSH: u8 = 6;
/// As [`CLFLUSH`].
pub const CLFLUSHOPT: u8 = 7;
/// As [`CLFLUSH`].
pub const CLWB: u8 = 8;
/// [`FenceKind::Sfence`].
pub const SFENCE: u8 = 9;
/// [`FenceKind::Mfence`].
pub const MFENCE: u8 = 10;
/// [`FenceKind::Locked`].
pub const FENCE_LOCKED: u8 = 11;
/// [`FenceKind::Serializing`].
pub const FENCE_SERIALIZING: u8 = 12;
/// A store of any length; `size` is its [`StoreKind`].
pub const BULK: u8 = 13;
/// All kinds of events that have no record of their own: word 2 says which.
pub const RARE: u8 = 14;
/// Filler up to the end of the ring's buffer.
pub const PAD: u8 = 15;
/// `size` is the [`LockKind`].
pub const ACQUIRE: u8 = 16;
/// As [`ACQUIRE`].
pub const RELEASE: u8 = 17;
/// A load with the same number as the record before it in the ring. Its address takes the place of the number, so there
/// is no word 2: most records of a run with loads are of this kind.
pub const NEAR_LOAD: u8 = 18;
/// As [`RMW`], of volatile memory.
pub const ATOMIC: u8 = 19;
/// As [`ATOMIC`], by a compare-and-exchange that found another value.
pub const ATOMIC_FAILED: u8 = 20;
/// As [`ATOMIC`], of a word whose value is not the one that the thread had left there.
const ATOMIC_FOUND: u8 = 21;
/// As [`ATOMIC`], by an exchange whose old value the program does not use.
pub const ATOMIC_STORED: u8 = 22;
/// As [`RMW`], by an instruction whose old value the program does not use.
pub const RMW_DISCARDING: u8 = 23;
// The client subtracts 1 to turn a failed one into one that succeeded.
const _: () = assert!(RMW + 1 == RMW_FAILED && ATOMIC + 1 == ATOMIC_FAILED);

/// Bytes before the data.
pub const HEADER: usize = 24;
/// The longest data a single record carries; longer stores are split by the client.
pub const MAX_DATA: usize = 4096;
/// The longest record.
pub const MAX_RECORD: usize = HEADER + 8 + 32 + MAX_DATA;

const SEQ_BITS: u32 = 48;

/// The first word of a record.
pub const fn word0(seq: u64, kind: u8, size: u8) -> u64 {
    seq | (kind as u64) << SEQ_BITS | (size as u64) << 56
}

const fn padded(len: usize) -> usize {
    (len + 7) & !7
}

/// A ring holds something that no client writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed record of kind {kind} in a ring")]
pub struct BadRecord {
    /// The kind that the record claims; 0 if there is not even a word.
    pub kind: u8,
}

/// What stands at the front of a ring.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Front<'a> {
    /// Skip to the start of the buffer.
    Pad,
    /// An event.
    Record {
        /// The event. Its values are still in the ring.
        event: Event<'a>,
        /// How long the record is, in bytes.
        len: usize,
    },
}

/// The sequence number and kind of the record whose first word is `word`. A load that only says "the same number" has
/// number 0: a reader that has reached it in the ring has already seen that number.
#[inline]
pub fn peek(word: u64) -> (u64, u8) {
    match (word & ((1 << SEQ_BITS) - 1), (word >> SEQ_BITS) as u8) {
        (_, NEAR_LOAD) => (0, LOAD),
        other => other,
    }
}

/// Whether a record is of the kind that all rare events share.
pub fn is_rare(record: &[u8]) -> bool {
    record.get(6) == Some(&RARE)
}

/// Reads the record at the start of `bytes`, which ends where the ring's published part ends.
// Inlined, so that the event is made where the reader wants it: copying one takes longer than reading its record.
#[inline(always)]
pub fn read(bytes: &[u8], thread: ThreadId) -> Result<Front<'_>, BadRecord> {
    let mut input = Input(bytes);
    let word = input.word().ok_or(BadRecord { kind: 0 })?;
    let (seq, kind) = peek(word);
    let size = (word >> 56) as usize;
    if kind == PAD {
        return Ok(Front::Pad);
    }
    let mut parse = || -> Option<Event<'_>> {
        let place = input.word()?;
        let near = (word >> SEQ_BITS) as u8 == NEAR_LOAD;
        let addr = if near { word & ((1 << SEQ_BITS) - 1) } else { input.word()? };
        let what = match kind {
            STORE => What::Store { addr, value: input.data(size)?, how: StoreKind::Regular },
            STORE_NT => What::Store { addr, value: input.data(size)?, how: StoreKind::NonTemporal },
            LOAD => What::Load { addr, size: size as u32 },
            RMW | RMW_FAILED | RMW_DISCARDING => {
                let (old, new) = (input.data(size)?, input.data(size)?);
                What::Rmw { addr, old, new, stored: kind != RMW_FAILED, discards: kind == RMW_DISCARDING }
            }
            ATOMIC | ATOMIC_FAILED | ATOMIC_FOUND | ATOMIC_STORED => {
                let how = AtomicKind::from_number(kind - ATOMIC)?;
                What::Atomic { addr, old: input.data(size)?, new: input.data(size)?, how }
            }
            CLFLUSH => What::Flush { addr, how: FlushKind::Clflush, pm: size != 0 },
            CLFLUSHOPT => What::Flush { addr, how: FlushKind::Clflushopt, pm: size != 0 },
            CLWB => What::Flush { addr, how: FlushKind::Clwb, pm: size != 0 },
            SFENCE => What::Fence { how: FenceKind::Sfence },
            MFENCE => What::Fence { how: FenceKind::Mfence },
            FENCE_LOCKED => What::Fence { how: FenceKind::Locked },
            FENCE_SERIALIZING => What::Fence { how: FenceKind::Serializing },
            ACQUIRE => What::Acquire { lock: addr, how: LockKind::from_number(size as u8)? },
            RELEASE => What::Release { lock: addr, how: LockKind::from_number(size as u8)? },
            BULK => {
                let len = input.word()? as usize;
                What::Store { addr, value: input.data(len)?, how: StoreKind::from_number(size as u8)? }
            }
            RARE => read_rare(addr, &mut input)?,
            _ => return None,
        };
        Some(Event { seq, thread, site: SiteId(place as u32), context: ContextId((place >> 32) as u32), what })
    };
    let event = parse().ok_or(BadRecord { kind })?;
    Ok(Front::Record { event, len: bytes.len() - input.0.len() })
}

/// A record of a frequent kind without its values: enough to count it, at half the cost of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Brief {
    /// As in the record's first word, but [`LOAD`] for a [`NEAR_LOAD`].
    pub kind: u8,
    /// As in the record's first word.
    pub size: u8,
    /// The instruction.
    pub site: SiteId,
    /// Meaningless for a fence.
    pub addr: u64,
    /// Of the whole record.
    pub len: usize,
}

/// How many words the record of a frequent kind has before the data, and how many values of its size the data has.
const LAYOUT: [(u8, u8); 256] = {
    let mut layout = [(0, 0); 256];
    let mut kind = STORE as usize;
    while kind <= FENCE_SERIALIZING as usize {
        layout[kind] = (3, 0);
        kind += 1;
    }
    layout[STORE as usize].1 = 1;
    layout[STORE_NT as usize].1 = 1;
    layout[RMW as usize].1 = 2;
    layout[RMW_FAILED as usize].1 = 2;
    layout[RMW_DISCARDING as usize] = (3, 2);
    layout[NEAR_LOAD as usize] = (2, 0);
    layout
};

/// As [`read`], for accesses, flushes and fences. `None` for other kinds, and for what `read` refuses.
#[inline(always)]
pub fn brief(bytes: &[u8]) -> Option<Brief> {
    let word = |i: usize| Some(u64::from_le_bytes(*bytes.get(8 * i..)?.first_chunk()?));
    let first = word(0)?;
    let (kind, size) = ((first >> SEQ_BITS) as u8, (first >> 56) as u8);
    let (words, values) = LAYOUT[usize::from(kind)];
    if words == 0 {
        return None;
    }
    let len = 8 * usize::from(words) + padded(size.into()) * usize::from(values);
    let near = kind == NEAR_LOAD;
    let addr = if near { first & ((1 << SEQ_BITS) - 1) } else { word(2)? };
    let kind = if near { LOAD } else { kind };
    (len <= bytes.len()).then_some(Brief { kind, size, site: SiteId(word(1)? as u32), addr, len })
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    #[inline(always)]
    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    /// `len` bytes, padded to whole words.
    #[inline(always)]
    fn data(&mut self, len: usize) -> Option<&'a [u8]> {
        if len > MAX_DATA {
            return None;
        }
        let (data, rest) = self.0.split_at_checked(padded(len))?;
        self.0 = rest;
        Some(&data[..len])
    }
}

/// A rare event as four numbers and a text. `None` for the kinds that have a record of their own.
fn rare_parts<'a>(what: &What<'a>) -> Option<(u64, [u64; 4], &'a [u8])> {
    let text = |s: &'a str| s.as_bytes();
    let name = |path: &'a Path| path.as_os_str().as_bytes();
    Some(match *what {
        What::Unsupported { addr, size, why } => (1, [addr, size.into(), 0, 0], text(why)),
        What::File { file, size, device, inode, path } => (2, [file.0.into(), size, device, inode], name(path)),
        What::Map { file, addr, len, offset, writable } => {
            (if writable { 3 } else { 4 }, [file.0.into(), addr, len, offset], &[])
        }
        What::Unmap { addr, len } => (5, [addr, len, 0, 0], &[]),
        What::FileWrite { file, offset, data } => (6, [file.0.into(), offset, 0, 0], data),
        What::FileZero { file, offset, len } => (7, [file.0.into(), offset, len, 0], &[]),
        What::FileResize { file, size } => (8, [file.0.into(), size, 0, 0], &[]),
        What::FileSync { file, offset, len, how } => (9, [file.0.into(), offset, len, how as u64], &[]),
        What::FileRename { file, to } => (10, [file.0.into(), 0, 0, 0], name(to)),
        What::FileUnlink { file } => (11, [file.0.into(), 0, 0, 0], &[]),
        What::ThreadStart { process, os_thread } => (12, [process.into(), os_thread.into(), 0, 0], &[]),
        What::ThreadExit => (13, [0; 4], &[]),
        What::ThreadCreate { child } => (14, [child.0.into(), 0, 0, 0], &[]),
        What::ThreadJoin { child } => (15, [child.0.into(), 0, 0, 0], &[]),
        What::Sync { object, op } => (18, [object, op as u64, 0, 0], &[]),
        What::ProcessStart { process, parent, path } => (19, [process.into(), parent.into(), 0, 0], name(path)),
        What::ProcessExit { process } => (20, [process.into(), 0, 0, 0], &[]),
        What::Exec { path } => (21, [0; 4], name(path)),
        What::Module { module, base, size, path } => (22, [module.0.into(), base, size, 0], name(path)),
        What::Marker { how, addr, len, text: t } => (23, [how as u64, addr, len, 0], text(t)),
        What::Interrupted { addr, size } => (24, [addr, size.into(), 0, 0], &[]),
        What::ThreadDetach { child } => (26, [child.0.into(), 0, 0, 0], &[]),
        What::FileRead { file, offset, len } => (28, [file.0.into(), offset, len, 0], &[]),
        What::Input { len } => (31, [len, 0, 0, 0], &[]),
        What::Output { len, lines } => (32, [len, lines, 0, 0], &[]),
        What::Connection { connection, address } => (33, [connection.into(), 0, 0, 0], text(address)),
        What::Request { connection, data } => (34, [connection.into(), 0, 0, 0], data),
        What::Reply { connection, len, lines } => (35, [connection.into(), len, lines, 0], &[]),
        What::Step { addr, len, state } => (27, [addr, len, 0, 0], state),
        What::Allocate { addr, len } => (25, [addr, len, 0, 0], &[]),
        What::Transaction { op, addr, len } => (29, [op as u64, addr, len, 0], &[]),
        What::Store { .. }
        | What::Load { .. }
        | What::Rmw { .. }
        | What::Atomic { .. }
        | What::Flush { .. }
        | What::Fence { .. }
        | What::Acquire { .. }
        | What::Release { .. } => return None,
    })
}

fn read_rare<'a>(tag: u64, input: &mut Input<'a>) -> Option<What<'a>> {
    let len = input.word()? as usize;
    let [a, b, c, d] = [input.word()?, input.word()?, input.word()?, input.word()?];
    let data = input.data(len)?;
    // The client cuts texts at a byte limit, so a text may end in half a character.
    let text = || match std::str::from_utf8(data) {
        Ok(text) => text,
        Err(e) => std::str::from_utf8(&data[..e.valid_up_to()]).unwrap_or_default(),
    };
    let file = FileId(a as u32);
    Some(match tag {
        1 => What::Unsupported { addr: a, size: b as u32, why: text() },
        2 => What::File { file, size: b, device: c, inode: d, path: paths::of_bytes(data) },
        3 | 4 => What::Map { file, addr: b, len: c, offset: d, writable: tag == 3 },
        5 => What::Unmap { addr: a, len: b },
        6 => What::FileWrite { file, offset: b, data },
        7 => What::FileZero { file, offset: b, len: c },
        8 => What::FileResize { file, size: b },
        9 => What::FileSync { file, offset: b, len: c, how: SyncKind::from_number(d as u8)? },
        10 => What::FileRename { file, to: paths::of_bytes(data) },
        11 => What::FileUnlink { file },
        12 => What::ThreadStart { process: a as u32, os_thread: b as u32 },
        13 => What::ThreadExit,
        14 => What::ThreadCreate { child: ThreadId(a as u32) },
        15 => What::ThreadJoin { child: ThreadId(a as u32) },
        18 => What::Sync { object: a, op: SyncOp::from_number(b as u8)? },
        19 => What::ProcessStart { process: a as u32, parent: b as u32, path: paths::of_bytes(data) },
        20 => What::ProcessExit { process: a as u32 },
        21 => What::Exec { path: paths::of_bytes(data) },
        22 => What::Module { module: ModuleId(a as u32), base: b, size: c, path: paths::of_bytes(data) },
        23 => What::Marker { how: MarkerKind::from_number(a as u8)?, addr: b, len: c, text: text() },
        24 => What::Interrupted { addr: a, size: b as u32 },
        26 => What::ThreadDetach { child: ThreadId(a as u32) },
        28 => What::FileRead { file, offset: b, len: c },
        31 => What::Input { len: a },
        32 => What::Output { len: a, lines: b },
        33 => What::Connection { connection: a as u32, address: text() },
        34 => What::Request { connection: a as u32, data },
        35 => What::Reply { connection: a as u32, len: b, lines: c },
        27 => What::Step { addr: a, len: b, state: data },
        25 => What::Allocate { addr: a, len: b },
        29 => What::Transaction { op: TransactionOp::from_number(a as u8)?, addr: b, len: c },
        _ => return None,
    })
}

/// Appends `event` as a record to `out`. The client uses it for everything its fast paths do not write themselves.
pub fn write(event: &Event<'_>, out: &mut Vec<u8>) {
    let mut head = |kind: u8, size: usize, addr: u64| {
        debug_assert!(size <= usize::from(u8::MAX), "{size} bytes do not fit");
        out.extend_from_slice(&word0(event.seq, kind, size as u8).to_le_bytes());
        out.extend_from_slice(&(u64::from(event.site.0) | u64::from(event.context.0) << 32).to_le_bytes());
        out.extend_from_slice(&addr.to_le_bytes());
    };
    match event.what {
        What::Store { addr, value, how } if value.len() <= 64 && how != StoreKind::Kernel => {
            head(if how == StoreKind::NonTemporal { STORE_NT } else { STORE }, value.len(), addr);
            append(value, out);
        }
        What::Store { addr, value, how } => {
            head(BULK, how as usize, addr);
            out.extend_from_slice(&(value.len() as u64).to_le_bytes());
            append(value, out);
        }
        What::Load { addr, size } => head(LOAD, size as usize, addr),
        What::Rmw { addr, old, new, stored, discards } => {
            let kind = match (stored, discards) {
                (false, _) => RMW_FAILED,
                (true, true) => RMW_DISCARDING,
                (true, false) => RMW,
            };
            head(kind, new.len(), addr);
            append(old, out);
            append(new, out);
        }
        What::Atomic { addr, old, new, how } => {
            head(ATOMIC + how as u8, new.len(), addr);
            append(old, out);
            append(new, out);
        }
        What::Flush { addr, how, pm } => {
            let kind = match how {
                FlushKind::Clflush => CLFLUSH,
                FlushKind::Clflushopt => CLFLUSHOPT,
                FlushKind::Clwb => CLWB,
            };
            head(kind, pm.into(), addr);
        }
        What::Fence { how } => {
            let kind = match how {
                FenceKind::Sfence => SFENCE,
                FenceKind::Mfence => MFENCE,
                FenceKind::Locked => FENCE_LOCKED,
                FenceKind::Serializing => FENCE_SERIALIZING,
            };
            head(kind, 0, 0);
        }
        What::Acquire { lock, how } => head(ACQUIRE, how as usize, lock),
        What::Release { lock, how } => head(RELEASE, how as usize, lock),
        rare => {
            let Some((tag, numbers, data)) = rare_parts(&rare) else { return };
            let data = &data[..data.len().min(MAX_DATA)];
            head(RARE, 0, tag);
            out.extend_from_slice(&(data.len() as u64).to_le_bytes());
            for number in numbers {
                out.extend_from_slice(&number.to_le_bytes());
            }
            append(data, out);
        }
    }
}

fn append(data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(data);
    out.resize(out.len() + padded(data.len()) - data.len(), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(what: What<'_>) {
        let event = Event { seq: 77, thread: ThreadId(3), site: SiteId(5), context: ContextId(9), what };
        let mut bytes = Vec::new();
        write(&event, &mut bytes);
        assert_eq!(bytes.len() % 8, 0);
        let len = bytes.len();
        bytes.extend_from_slice(&[0xee; 16]);
        assert_eq!(read(&bytes, ThreadId(3)), Ok(Front::Record { event, len }));
        let (addr, size) = match what {
            What::Store { addr, value, how } if value.len() <= 64 && how != StoreKind::Kernel => (addr, value.len()),
            What::Load { addr, size } => (addr, size as usize),
            What::Rmw { addr, new, .. } => (addr, new.len()),
            What::Flush { addr, pm, .. } => (addr, pm.into()),
            What::Fence { .. } => (0, 0),
            _ => {
                assert_eq!(brief(&bytes), None, "{what:?}");
                return;
            }
        };
        let kind = bytes[6];
        let expected = Brief { kind, size: size as u8, site: SiteId(5), addr, len };
        assert_eq!(brief(&bytes), Some(expected), "{what:?}");
        for cut in 0..len / 8 {
            assert!(read(&bytes[..cut * 8], ThreadId(3)).is_err(), "{what:?} cut to {cut} words");
            assert_eq!(brief(&bytes[..cut * 8]), None, "{what:?} cut to {cut} words");
        }
    }

    #[test]
    fn every_kind_survives() {
        let long = vec![7u8; 4096];
        for &how in StoreKind::ALL {
            round_trip(What::Store { addr: 1 << 44, value: &[1, 2, 3], how });
            round_trip(What::Store { addr: 1 << 44, value: &long, how });
        }
        round_trip(What::Load { addr: 8, size: 64 });
        round_trip(What::Rmw { addr: 8, old: &[0; 16], new: &[1; 16], stored: true, discards: false });
        round_trip(What::Rmw { addr: 8, old: &[0; 8], new: &[1; 8], stored: true, discards: true });
        round_trip(What::Rmw { addr: 8, old: &[0; 4], new: &[0; 4], stored: false, discards: false });
        for &how in AtomicKind::ALL {
            round_trip(What::Atomic { addr: 8, old: &[0; 4], new: &[1; 4], how });
        }
        round_trip(What::Allocate { addr: 64, len: 4096 });
        for &op in TransactionOp::ALL {
            round_trip(What::Transaction { op, addr: 64, len: 8 });
        }
        round_trip(What::Step { addr: 64, len: 8, state: &long[..160] });
        for &how in FlushKind::ALL {
            round_trip(What::Flush { addr: 64, how, pm: true });
        }
        for &how in FenceKind::ALL {
            round_trip(What::Fence { how });
        }
        round_trip(What::Unsupported { addr: 1, size: 512, why: "xsave" });
        round_trip(What::File {
            file: FileId(1),
            size: 2,
            device: 3,
            inode: 4,
            path: paths::of_bytes(b"/dev/shm/\xff\xfe"),
        });
        round_trip(What::Map { file: FileId(1), addr: 4096, len: 8192, offset: 0, writable: true });
        round_trip(What::Map { file: FileId(1), addr: 4096, len: 8192, offset: 0, writable: false });
        round_trip(What::Unmap { addr: 4096, len: 8192 });
        round_trip(What::FileWrite { file: FileId(1), offset: 4096, data: &long });
        round_trip(What::FileZero { file: FileId(1), offset: 4096, len: 5 });
        round_trip(What::Input { len: 7 });
        round_trip(What::Output { len: 7, lines: 2 });
        round_trip(What::Connection { connection: 7, address: "127.0.0.1:7000" });
        round_trip(What::Request { connection: 7, data: b"put a 1\r\n\xff" });
        round_trip(What::Reply { connection: 7, len: 4, lines: 1 });
        round_trip(What::FileRead { file: FileId(1), offset: 3, len: 9 });
        round_trip(What::FileResize { file: FileId(1), size: 1 });
        for &how in SyncKind::ALL {
            round_trip(What::FileSync { file: FileId(1), offset: 0, len: 9, how });
        }
        round_trip(What::FileRename { file: FileId(1), to: "x".as_ref() });
        round_trip(What::FileUnlink { file: FileId(1) });
        round_trip(What::ThreadStart { process: 1, os_thread: 2 });
        round_trip(What::ThreadExit);
        round_trip(What::ThreadCreate { child: ThreadId(2) });
        round_trip(What::ThreadJoin { child: ThreadId(2) });
        round_trip(What::ThreadDetach { child: ThreadId(2) });
        for &how in LockKind::ALL {
            round_trip(What::Acquire { lock: 1, how });
            round_trip(What::Release { lock: 1, how });
        }
        for &op in SyncOp::ALL {
            round_trip(What::Sync { object: 1, op });
        }
        round_trip(What::ProcessStart { process: 1, parent: 2, path: "/bin/true".as_ref() });
        round_trip(What::ProcessExit { process: 1 });
        round_trip(What::Exec { path: "/bin/true".as_ref() });
        round_trip(What::Module { module: ModuleId(1), base: 2, size: 3, path: "/lib/x.so".as_ref() });
        for &how in MarkerKind::ALL {
            round_trip(What::Marker { how, addr: 1, len: 2, text: "op" });
        }
        round_trip(What::Interrupted { addr: 1, size: 2 });
    }

    #[test]
    fn a_near_load_has_its_address_for_a_number() {
        let mut bytes = word0(0x2000_0000_1234, NEAR_LOAD, 8).to_le_bytes().to_vec();
        bytes.extend_from_slice(&(7 | 9u64 << 32).to_le_bytes());
        let (word, _) = bytes.split_first_chunk().unwrap();
        assert_eq!(peek(u64::from_le_bytes(*word)), (0, LOAD));
        let event = Event {
            seq: 0,
            thread: ThreadId(3),
            site: SiteId(7),
            context: ContextId(9),
            what: What::Load { addr: 0x2000_0000_1234, size: 8 },
        };
        assert_eq!(read(&bytes, ThreadId(3)), Ok(Front::Record { event, len: 16 }));
    }

    #[test]
    fn garbage_is_refused() {
        for kind in 0..=255u8 {
            let mut bytes = word0(1, kind, 255).to_le_bytes().to_vec();
            bytes.extend_from_slice(&[0xff; 40]);
            let _ = read(&bytes, ThreadId(1));
        }
        assert!(read(&[], ThreadId(1)).is_err());
    }
}
