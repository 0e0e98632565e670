//! Bytes to events; see [`codec`](super::codec) for the layout. Nothing here trusts the bytes: a checksum detects
//! damage, not malice.

use std::collections::{HashMap, HashSet};

use super::codec::*;
use super::predictor::{Predictor, Slot, Thread, expected_seq};
use crate::event::{
    AtomicKind, Event, FenceKind, FlushKind, LockKind, MarkerKind, StoreKind, SyncKind, SyncOp, TransactionOp, What,
};
use crate::ids::{ContextId, FileId, ModuleId, SiteId, ThreadId};
use crate::places::{Context, Places, Site};

/// The places that a trace has defined so far: at least those that its events so far refer to.
#[derive(Debug, Clone, Default)]
pub struct Definitions {
    pub(super) sites: HashMap<SiteId, Site>,
    pub(super) contexts: HashMap<ContextId, Context>,
}

impl Places for Definitions {
    fn site(&self, id: SiteId) -> Option<Site> {
        self.sites.get(&id).copied()
    }

    fn context(&self, id: ContextId) -> Option<Context> {
        self.contexts.get(&id).copied()
    }
}

const KIND_UNKNOWN: Damage = "an unknown kind of event";

/// What precedes the operands of an event. Thread, slot and context are known to the model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    seq: u64,
    thread: u32,
    slot: u32,
    context: u32,
    shape: Shape,
    control: u8,
}

impl Head {
    #[inline]
    pub(super) fn is_frequent(self) -> bool {
        matches!(self.shape.op(), op::STORE | op::LOAD | op::FLUSH | op::FENCE)
    }

    fn size(self) -> Result<u32, Damage> {
        u32::try_from(self.shape.size).map_err(|_| "an access is too large")
    }
}

/// Room for the values that are in the file as numbers: an event has at most two.
pub(super) type Numbers = [[u8; NUMBER]; 2];

#[derive(Debug)]
pub(super) struct Decoder {
    model: Predictor,
    pub(super) definitions: Definitions,
    defined: HashSet<(u8, u64)>,
    last_site: u32,
    last_pc: u64,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Decoder {
            model: Predictor::new(),
            definitions: Definitions::default(),
            defined: HashSet::new(),
            last_site: 0,
            last_pc: 0,
        }
    }

    /// Reads definitions up to the next event or the end of the block.
    pub(super) fn definitions(&mut self, input: &mut Input<'_>) -> Result<(), Damage> {
        while let Some(&head) = input.bytes.get(input.at)
            && head & PREDICTED == 0
            && head & 3 == DEFINITION
        {
            input.at += 1;
            self.definition(head, input)?;
        }
        Ok(())
    }

    #[cold]
    fn definition(&mut self, head: u8, input: &mut Input<'_>) -> Result<(), Damage> {
        let number = input.varint()?;
        let narrow = |number| u32::try_from(number).map_err(|_| "a definition has an impossible number");
        let number = match head {
            DEFINE_SITE => {
                let id = narrow(u64::from(self.last_site).wrapping_add(unzigzag(number)))?;
                let module = ModuleId(input.varint32()?);
                let pc = self.last_pc.wrapping_add(unzigzag(input.varint()?));
                self.last_site = id;
                self.last_pc = pc;
                self.definitions.sites.insert(SiteId(id), Site { pc, module });
                u64::from(id)
            }
            DEFINE_SLOT => {
                self.model.slots.push(Slot::new(SiteId(narrow(number >> 1)?), number & 1 != 0));
                number
            }
            DEFINE_CONTEXT => {
                let id = ContextId(narrow(number)?);
                self.model.contexts.push(id);
                if let Some(parent) = input.varint()?.checked_sub(1) {
                    let node = Context { parent: ContextId(narrow(parent)?), call: SiteId(input.varint32()?) };
                    self.definitions.contexts.insert(id, node);
                }
                number
            }
            DEFINE_THREAD => {
                self.model.threads.push(Thread::new(ThreadId(narrow(number)?)));
                number
            }
            _ => return Err("an unknown kind of definition"),
        };
        // Otherwise a small file could fill the memory by defining the same thing again and again.
        if self.defined.insert((head, number)) { Ok(()) } else { Err("something is defined twice") }
    }

    /// Reads all of an event but its operands. `input` must be at an event, not at its end or at a definition.
    #[inline]
    pub(super) fn head(&self, input: &mut Input<'_>) -> Result<Head, Damage> {
        let first = input.byte()?;
        let (head, mut control) = if first & PREDICTED != 0 { (0, first & !PREDICTED) } else { (first, 0) };

        let mut thread = self.model.thread;
        if head & THREAD != 0 {
            thread = known(input.varint()?, self.model.threads.len(), "an event of an unknown thread")?;
        }
        let gap = if head & SEQ != 0 { unzigzag(input.varint()?) } else { 0 };
        let slot = match head & 3 {
            EXPLICIT => known(input.varint()?, self.model.slots.len(), "an event of an unknown instruction")?,
            DEFINITION => return Err("a definition in place of an event"),
            guess => self.model.slot_guesses(thread)[usize::from(guess)],
        };
        let context = match head >> CONTEXT_SHIFT & 3 {
            EXPLICIT => known(input.varint()?, self.model.contexts.len(), "an event in an unknown context")?,
            DEFINITION => return Err("an unknown form of context"),
            guess => self.model.context_guesses(thread, slot)[usize::from(guess)],
        };
        let mut shape = self.model.slot(slot).shape;
        if head & KIND != 0 {
            shape = Shape { kind: input.byte()?, size: 0 };
            if shape.has_size() {
                shape.size = input.varint()?;
            }
        }
        if first & PREDICTED == 0 && shape.has_control() {
            control = input.byte()?;
        }
        let seq = expected_seq(self.model.seq, shape).wrapping_add(gap);
        Ok(Head { seq, thread, slot, context, shape, control })
    }

    /// Reads the operands of an event that [is frequent](Head::is_frequent).
    // Separate and inlined, so that the event is built where the caller wants it. Copying it, just after its fields
    // were written one by one, would take as long as all the rest.
    #[inline(always)]
    pub(super) fn frequent<'a>(
        &mut self,
        input: &mut Input<'a>,
        numbers: &'a mut Numbers,
        head: Head,
    ) -> Result<Event<'a>, Damage> {
        let how = head.shape.how();
        if head.shape.op() == op::FENCE {
            let how = FenceKind::from_number(how).ok_or(KIND_UNKNOWN)?;
            return Ok(self.happened(head, What::Fence { how }));
        }
        let addr = self.addr(input, head)?;
        match head.shape.op() {
            op::STORE => {
                let how = StoreKind::from_number(how).ok_or(KIND_UNKNOWN)?;
                let last = &mut self.model.slot_mut(head.slot).value;
                let value = value(input, &mut numbers[0], head.control & 15, head.shape.size, last)?;
                Ok(self.happened(head, What::Store { addr, value, how }))
            }
            op::LOAD => {
                let size = head.size()?;
                Ok(self.happened(head, What::Load { addr, size }))
            }
            _ => {
                let (how, pm) = (FlushKind::from_number(how >> 1).ok_or(KIND_UNKNOWN)?, how & 1 != 0);
                Ok(self.happened(head, What::Flush { addr, how, pm }))
            }
        }
    }

    /// Reads the operands of any other event.
    #[inline(never)]
    pub(super) fn infrequent<'a>(
        &mut self,
        input: &mut Input<'a>,
        numbers: &'a mut Numbers,
        head: Head,
    ) -> Result<Event<'a>, Damage> {
        let how = head.shape.how();
        if !head.shape.has_control() {
            let what = without_address(input, head.shape)?;
            return Ok(self.happened(head, what));
        }
        let addr = self.addr(input, head)?;
        let what = match head.shape.op() {
            op::RMW | op::ATOMIC => {
                let kind = AtomicKind::from_number(how & !ATOMIC_UNEVEN);
                if head.shape.op() == op::RMW && how > (RMW_STORED | RMW_UNEVEN | RMW_DISCARDS) {
                    return Err(KIND_UNKNOWN);
                }
                let size = head.shape.size;
                let old_size = if head.shape.is_uneven() { input.varint()? } else { size };
                let code = input.byte()?;
                let last = &mut self.model.slot_mut(head.slot).value;
                let mut number = *last;
                let [room, other_room] = numbers;
                let old = value(input, room, head.control & 15, old_size, &mut number)?;
                let new = value(input, other_room, code, size, &mut number)?;
                if size <= NUMBER as u64 {
                    *last = number;
                }
                match head.shape.op() {
                    op::RMW => {
                        let (stored, discards) = (how & RMW_STORED != 0, how & RMW_DISCARDS != 0);
                        What::Rmw { addr, old, new, stored, discards }
                    }
                    _ => What::Atomic { addr, old, new, how: kind.ok_or(KIND_UNKNOWN)? },
                }
            }
            op::ALLOCATE if how == TRANSACTION => {
                let len = input.varint()?;
                What::Transaction { op: TransactionOp::from_number(input.byte()?).ok_or(KIND_UNKNOWN)?, addr, len }
            }
            op::ALLOCATE => What::Allocate { addr, len: input.varint()? },
            op::UNSUPPORTED => What::Unsupported { addr, size: head.size()?, why: input.text()? },
            op::INTERRUPTED => What::Interrupted { addr, size: head.size()? },
            op::ACQUIRE => What::Acquire { lock: addr, how: LockKind::from_number(how).ok_or(KIND_UNKNOWN)? },
            op::RELEASE => What::Release { lock: addr, how: LockKind::from_number(how).ok_or(KIND_UNKNOWN)? },
            op::SYNC => What::Sync { object: addr, op: SyncOp::from_number(how).ok_or(KIND_UNKNOWN)? },
            op::MARKER => {
                let how = MarkerKind::from_number(how).ok_or(KIND_UNKNOWN)?;
                What::Marker { how, addr, len: input.varint()?, text: input.text()? }
            }
            _ => return Err(KIND_UNKNOWN),
        };
        Ok(self.happened(head, what))
    }

    #[inline(always)]
    fn happened<'a>(&mut self, head: Head, what: What<'a>) -> Event<'a> {
        let Head { seq, thread, slot, context, shape, .. } = head;
        self.model.happened(seq, thread, slot, context, shape);
        Event {
            seq,
            thread: self.model.threads[thread as usize].id,
            site: self.model.slot(slot).site,
            context: self.model.contexts[context as usize],
            what,
        }
    }

    #[inline]
    fn addr(&mut self, input: &mut Input<'_>, head: Head) -> Result<u64, Damage> {
        let Head { thread, slot, shape, control, .. } = head;
        let guess = self.model.addr_guesses(thread, slot)[usize::from(control >> BASE_SHIFT & 1)];
        let difference = match control >> LENGTH_SHIFT & 3 {
            3 => input.varint()?,
            length => input.low(usize::from(length))?,
        };
        let addr = guess.wrapping_add(unzigzag(difference));
        self.model.touched(thread, slot, shape, addr);
        Ok(addr)
    }
}

fn known(index: u64, len: usize, damage: Damage) -> Result<u32, Damage> {
    if index < len as u64 { u32::try_from(index).map_err(|_| damage) } else { Err(damage) }
}

/// Reads a value; a short one also becomes the `last`.
#[inline]
fn value<'a>(
    input: &mut Input<'a>,
    room: &'a mut [u8; NUMBER],
    code: u8,
    size: u64,
    last: &mut u64,
) -> Result<&'a [u8], Damage> {
    if size > NUMBER as u64 {
        return match code {
            0 => input.next_bytes(size),
            1 => usize::try_from(size).ok().and_then(|size| ZEROS.get(..size)).ok_or("a value of zeros is too large"),
            _ => Err("an unknown form of value"),
        };
    }
    let number = match code {
        0..DIFFERENCE => input.low(usize::from(code))?,
        DIFFERENCE..16 => last.wrapping_add(unzigzag(input.low(usize::from(code - DIFFERENCE))?)),
        _ => return Err("an unknown form of value"),
    };
    *last = number;
    *room = number.to_le_bytes();
    Ok(&room[..size as usize])
}

fn without_address<'a>(input: &mut Input<'a>, shape: Shape) -> Result<What<'a>, Damage> {
    let file = |input: &mut Input<'a>| input.varint32().map(FileId);
    // Rust evaluates, and so reads, the fields of an expression in the order in which they are written.
    Ok(match shape.op() {
        op::FILE => What::File {
            file: file(input)?,
            size: input.varint()?,
            device: input.varint()?,
            inode: input.varint()?,
            path: input.path()?,
        },
        op::MAP => What::Map {
            file: file(input)?,
            addr: input.varint()?,
            len: input.varint()?,
            offset: input.varint()?,
            writable: shape.how() != 0,
        },
        op::UNMAP => What::Unmap { addr: input.varint()?, len: input.varint()? },
        op::FILE_WRITE => {
            let (file, offset, data) = (file(input)?, input.varint()?, input.counted()?);
            match shape.how() {
                BYTES_OF_FILE => What::FileWrite { file, offset, data },
                BYTES_OF_REQUEST => What::Request { connection: file.0, data },
                BYTES_OF_ADDRESS => {
                    let address = std::str::from_utf8(data).map_err(|_| "an address that is no text")?;
                    What::Connection { connection: file.0, address }
                }
                _ => return Err(KIND_UNKNOWN),
            }
        }
        op::STEP => What::Step { addr: input.varint()?, len: input.varint()?, state: input.counted()? },
        op::FILE_RANGE => {
            let (file, offset, len) = (file(input)?, input.varint()?, input.varint()?);
            match shape.how() {
                RANGE_ZEROED => What::FileZero { file, offset, len },
                RANGE_READ => What::FileRead { file, offset, len },
                RANGE_INPUT => What::Input { len },
                RANGE_OUTPUT => What::Output { len, lines: offset },
                RANGE_REPLY => What::Reply { connection: file.0, len, lines: offset },
                _ => return Err(KIND_UNKNOWN),
            }
        }
        op::FILE_RESIZE => What::FileResize { file: file(input)?, size: input.varint()? },
        op::FILE_SYNC => What::FileSync {
            file: file(input)?,
            offset: input.varint()?,
            len: input.varint()?,
            how: SyncKind::from_number(shape.how()).ok_or(KIND_UNKNOWN)?,
        },
        op::FILE_RENAME => What::FileRename { file: file(input)?, to: input.path()? },
        op::FILE_UNLINK => What::FileUnlink { file: file(input)? },
        op::THREAD_START => What::ThreadStart { process: input.varint32()?, os_thread: input.varint32()? },
        op::THREAD_EXIT => What::ThreadExit,
        op::THREAD_CREATE => What::ThreadCreate { child: ThreadId(input.varint32()?) },
        op::THREAD_JOIN => What::ThreadJoin { child: ThreadId(input.varint32()?) },
        op::THREAD_DETACH => What::ThreadDetach { child: ThreadId(input.varint32()?) },
        op::PROCESS_START => {
            What::ProcessStart { process: input.varint32()?, parent: input.varint32()?, path: input.path()? }
        }
        op::PROCESS_EXIT => What::ProcessExit { process: input.varint32()? },
        op::EXEC => What::Exec { path: input.path()? },
        op::MODULE => What::Module {
            module: ModuleId(input.varint32()?),
            base: input.varint()?,
            size: input.varint()?,
            path: input.path()?,
        },
        _ => return Err(KIND_UNKNOWN),
    })
}
