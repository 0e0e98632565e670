//! Events to bytes; see [`codec`](super::codec) for the layout and [`decode`](super::decode) for the other direction.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::os::unix::ffi::OsStrExt;

use super::codec::*;
use super::decode::Definitions;
use super::predictor::{Predictor, Slot, Thread, expected_seq};
use crate::event::{Event, What};
use crate::ids::{ContextId, SiteId, ThreadId};
use crate::places::Places;

/// Ids are small numbers that pmvet itself assigns: mixing them cheaply is enough.
#[derive(Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

#[derive(Debug)]
pub(super) struct Encoder {
    model: Predictor,
    threads: IdMap<ThreadId, u32>,
    contexts: IdMap<ContextId, u32>,
    /// By site, and one bit for loads.
    slots: IdMap<u64, u32>,
    sites: IdMap<SiteId, ()>,
    pub(super) definitions: Definitions,
    /// The last site defined, and its instruction: the next one is often close.
    last_site: u32,
    last_pc: u64,
}

impl Encoder {
    pub(super) fn new() -> Self {
        Encoder {
            model: Predictor::new(),
            threads: IdMap::from_iter([(ThreadId(0), 0)]),
            contexts: IdMap::from_iter([(ContextId(0), 0)]),
            slots: IdMap::from_iter([(0, 0)]),
            sites: IdMap::from_iter([(SiteId(0), ())]),
            definitions: Definitions::default(),
            last_site: 0,
            last_pc: 0,
        }
    }

    pub(super) fn event(&mut self, out: &mut Vec<u8>, event: &Event<'_>, places: &dyn Places) {
        let shape = Shape::new(&event.what);
        let mut head = 0;

        let thread = self.thread(out, event.thread);
        if thread != self.model.thread {
            head |= THREAD;
        }
        let (slot, slot_mode) = self.slot(out, thread, event.site, shape.op() == op::LOAD, places);
        let (context, context_mode) = self.context(out, thread, slot, event.context, places);
        head |= slot_mode | context_mode << CONTEXT_SHIFT;
        let gap = event.seq.wrapping_sub(expected_seq(self.model.seq, shape));
        if gap != 0 {
            head |= SEQ;
        }
        if shape != self.model.slot(slot).shape {
            head |= KIND;
        }

        if head == 0 {
            out.push(PREDICTED);
        } else {
            out.push(head);
            if head & THREAD != 0 {
                put_varint(out, u64::from(thread));
            }
            if head & SEQ != 0 {
                put_varint(out, zigzag(gap));
            }
            if slot_mode == EXPLICIT {
                put_varint(out, u64::from(slot));
            }
            if context_mode == EXPLICIT {
                put_varint(out, u64::from(context));
            }
            if head & KIND != 0 {
                out.push(shape.kind);
                if shape.has_size() {
                    put_varint(out, shape.size);
                }
            }
            if shape.has_control() {
                out.push(0);
            }
        }
        // Where the control bits go, if there are any: the byte just written in either form.
        let control = out.len() - 1;
        self.operands(out, control, thread, slot, shape, &event.what);
        self.model.happened(event.seq, thread, slot, context, shape);
    }

    fn operands(&mut self, out: &mut Vec<u8>, control: usize, thread: u32, slot: u32, shape: Shape, what: &What<'_>) {
        match *what {
            What::Store { addr, value, .. } => {
                self.addr(out, control, thread, slot, shape, addr);
                let (code, number) = put_value(out, value, self.model.slot(slot).value);
                out[control] |= code;
                if let Some(number) = number {
                    self.model.slot_mut(slot).value = number;
                }
            }
            What::Load { addr, .. } | What::Flush { addr, .. } | What::Interrupted { addr, .. } => {
                self.addr(out, control, thread, slot, shape, addr);
            }
            What::Rmw { addr, old, new, .. } | What::Atomic { addr, old, new, .. } => {
                self.addr(out, control, thread, slot, shape, addr);
                if shape.is_uneven() {
                    put_varint(out, old.len() as u64);
                }
                // A counter finds the value it left, and leaves one near it. The code of the second value needs a
                // separate byte, ahead of the values.
                let codes = out.len();
                out.push(0);
                let last = self.model.slot(slot).value;
                let (code, number) = put_value(out, old, last);
                out[control] |= code;
                let (code, number) = put_value(out, new, number.unwrap_or(last));
                out[codes] = code;
                if let Some(number) = number {
                    self.model.slot_mut(slot).value = number;
                }
            }
            What::Acquire { lock: addr, .. } | What::Release { lock: addr, .. } | What::Sync { object: addr, .. } => {
                self.addr(out, control, thread, slot, shape, addr);
            }
            What::Allocate { addr, len } => {
                self.addr(out, control, thread, slot, shape, addr);
                put_varint(out, len);
            }
            What::Transaction { op, addr, len } => {
                self.addr(out, control, thread, slot, shape, addr);
                put_varint(out, len);
                out.push(op as u8);
            }
            What::Unsupported { addr, why, .. } => {
                self.addr(out, control, thread, slot, shape, addr);
                put_bytes(out, why.as_bytes());
            }
            What::Marker { addr, len, text, .. } => {
                self.addr(out, control, thread, slot, shape, addr);
                put_varint(out, len);
                put_bytes(out, text.as_bytes());
            }
            What::Fence { .. } | What::ThreadExit => {}
            _ => put_rare(out, what),
        }
    }

    fn addr(&mut self, out: &mut Vec<u8>, control: usize, thread: u32, slot: u32, shape: Shape, addr: u64) {
        let [near_slot, near_thread] =
            self.model.addr_guesses(thread, slot).map(|guess| zigzag(addr.wrapping_sub(guess)));
        let base = u8::from(near_thread < near_slot);
        let difference = near_slot.min(near_thread);
        let length = width(difference).min(3);
        out[control] |= base << BASE_SHIFT | (length as u8) << LENGTH_SHIFT;
        match length {
            3 => put_varint(out, difference),
            _ => put_low(out, difference, length),
        }
        self.model.touched(thread, slot, shape, addr);
    }

    fn thread(&mut self, out: &mut Vec<u8>, id: ThreadId) -> u32 {
        if self.model.threads[self.model.thread as usize].id == id {
            return self.model.thread;
        }
        *self.threads.entry(id).or_insert_with(|| {
            out.push(DEFINE_THREAD);
            put_varint(out, u64::from(id.0));
            self.model.threads.push(Thread::new(id));
            self.model.threads.len() as u32 - 1
        })
    }

    fn slot(&mut self, out: &mut Vec<u8>, thread: u32, site: SiteId, load: bool, places: &dyn Places) -> (u32, u8) {
        let guesses = self.model.slot_guesses(thread);
        for (mode, guess) in (0..).zip(guesses) {
            let slot = self.model.slot(guess);
            if slot.site == site && slot.load == load {
                return (guess, mode);
            }
        }
        let key = u64::from(site.0) << 1 | u64::from(load);
        if let Some(&slot) = self.slots.get(&key) {
            return (slot, EXPLICIT);
        }
        self.define_site(out, site, places);
        out.push(DEFINE_SLOT);
        put_varint(out, key);
        let slot = self.model.slots.len() as u32;
        self.model.slots.push(Slot::new(site, load));
        self.slots.insert(key, slot);
        (slot, EXPLICIT)
    }

    fn context(&mut self, out: &mut Vec<u8>, thread: u32, slot: u32, id: ContextId, places: &dyn Places) -> (u32, u8) {
        let guesses = self.model.context_guesses(thread, slot);
        for (mode, guess) in (0..).zip(guesses) {
            if self.model.contexts[guess as usize] == id {
                return (guess, mode);
            }
        }
        if !self.contexts.contains_key(&id) {
            self.define_context(out, id, places);
        }
        (self.contexts[&id], EXPLICIT)
    }

    fn define_site(&mut self, out: &mut Vec<u8>, id: SiteId, places: &dyn Places) {
        if self.sites.insert(id, ()).is_some() {
            return;
        }
        // A site that cannot be resolved needs no definition: it stays unknown to the reader as well.
        let Some(site) = places.site(id) else { return };
        self.definitions.sites.insert(id, site);
        out.push(DEFINE_SITE);
        put_varint(out, zigzag(u64::from(id.0).wrapping_sub(u64::from(self.last_site))));
        put_varint(out, u64::from(site.module.0));
        put_varint(out, zigzag(site.pc.wrapping_sub(self.last_pc)));
        self.last_site = id.0;
        self.last_pc = site.pc;
    }

    /// Defines the whole path, outermost call first.
    fn define_context(&mut self, out: &mut Vec<u8>, id: ContextId, places: &dyn Places) {
        let mut path = Vec::new();
        let mut id = id;
        while !self.contexts.contains_key(&id) {
            let node = places.context(id);
            path.push((id, node));
            match node {
                // As in `Places::calls`: even a damaged tree has an end.
                Some(node) if node.parent < id => id = node.parent,
                _ => break,
            }
        }
        for (id, node) in path.into_iter().rev() {
            if let Some(node) = node {
                self.define_site(out, node.call, places);
            }
            out.push(DEFINE_CONTEXT);
            put_varint(out, u64::from(id.0));
            // 0 means that the context cannot be resolved; it still gets a number.
            put_varint(out, node.map_or(0, |node| u64::from(node.parent.0) + 1));
            if let Some(node) = node {
                put_varint(out, u64::from(node.call.0));
                self.definitions.contexts.insert(id, node);
            }
            self.contexts.insert(id, self.model.contexts.len() as u32);
            self.model.contexts.push(id);
        }
    }
}

/// Appends a value and returns its code and, if it is short enough to be one, its number.
fn put_value(out: &mut Vec<u8>, value: &[u8], last: u64) -> (u8, Option<u64>) {
    if value.len() > NUMBER {
        if value.len() <= ZEROS.len() && value.iter().all(|&byte| byte == 0) {
            return (1, None);
        }
        out.extend_from_slice(value);
        return (0, None);
    }
    let number = match <[u8; 8]>::try_from(value) {
        Ok(eight) => u64::from_le_bytes(eight),
        Err(_) => value.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)),
    };
    let difference = zigzag(number.wrapping_sub(last));
    let (plain, relative) = (width(number), width(difference));
    if relative < plain && relative <= MAX_DIFFERENCE {
        put_low(out, difference, relative);
        (DIFFERENCE + relative as u8, Some(number))
    } else {
        put_low(out, number, plain);
        (plain as u8, Some(number))
    }
}

/// Encodes rare kinds of events, without any attempt at brevity.
#[cold]
fn put_rare(out: &mut Vec<u8>, what: &What<'_>) {
    let mut numbers = |numbers: &[u64]| numbers.iter().for_each(|&number| put_varint(out, number));
    match *what {
        What::File { file, size, device, inode, path } => {
            numbers(&[file.0.into(), size, device, inode]);
            put_bytes(out, path.as_os_str().as_bytes());
        }
        What::Map { file, addr, len, offset, .. } => numbers(&[file.0.into(), addr, len, offset]),
        What::Unmap { addr, len } => numbers(&[addr, len]),
        What::Step { addr, len, state } => {
            put_varint(out, addr);
            put_varint(out, len);
            put_bytes(out, state);
        }
        What::FileWrite { file, offset, data } => {
            numbers(&[file.0.into(), offset]);
            put_bytes(out, data);
        }
        What::FileZero { file, offset, len }
        | What::FileRead { file, offset, len }
        | What::FileSync { file, offset, len, .. } => {
            numbers(&[file.0.into(), offset, len]);
        }
        What::Input { len } => numbers(&[0, 0, len]),
        What::Output { len, lines } => numbers(&[0, lines, len]),
        What::Reply { connection, len, lines } => numbers(&[connection.into(), lines, len]),
        What::Request { connection, data } => {
            numbers(&[connection.into(), 0]);
            put_bytes(out, data);
        }
        What::Connection { connection, address } => {
            numbers(&[connection.into(), 0]);
            put_bytes(out, address.as_bytes());
        }
        What::FileResize { file, size } => numbers(&[file.0.into(), size]),
        What::FileRename { file, to } => {
            numbers(&[file.0.into()]);
            put_bytes(out, to.as_os_str().as_bytes());
        }
        What::FileUnlink { file } => numbers(&[file.0.into()]),
        What::ThreadStart { process, os_thread } => numbers(&[process.into(), os_thread.into()]),
        What::ThreadCreate { child } | What::ThreadJoin { child } | What::ThreadDetach { child } => {
            numbers(&[child.0.into()]);
        }
        What::ProcessStart { process, parent, path } => {
            numbers(&[process.into(), parent.into()]);
            put_bytes(out, path.as_os_str().as_bytes());
        }
        What::ProcessExit { process } => numbers(&[process.into()]),
        What::Exec { path } => put_bytes(out, path.as_os_str().as_bytes()),
        What::Module { module, base, size, path } => {
            numbers(&[module.0.into(), base, size]);
            put_bytes(out, path.as_os_str().as_bytes());
        }
        // These never come here; they are listed so that the compiler demands every new kind.
        What::Store { .. }
        | What::Load { .. }
        | What::Rmw { .. }
        | What::Atomic { .. }
        | What::Allocate { .. }
        | What::Transaction { .. }
        | What::Flush { .. }
        | What::Fence { .. }
        | What::Unsupported { .. }
        | What::ThreadExit
        | What::Acquire { .. }
        | What::Release { .. }
        | What::Sync { .. }
        | What::Marker { .. }
        | What::Interrupted { .. } => {}
    }
}
