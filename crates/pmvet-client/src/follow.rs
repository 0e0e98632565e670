//! Data flow: the instructions of a thread that has read what another has stored and not fenced.
//!
//! From such a load on every instruction of the reader is reported with its registers, up to a number that the plan gives or until
//! the thread has fenced some times. What the value does on its way is worked out in pmvet.

use core::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dynamorio_sys::*;
use pmvet_events::event::What;
use pmvet_events::step::{CODE, State};
use pmvet_events::{SiteId, ThreadId};

use crate::emit::{Access, Emitter, Instr};
use crate::ffi::reg_get_value;
use crate::thread::{Thread, slot};
use crate::{client, dr};

/// So many threads can be read from, and so many of the last stores of each.
const PLACES: usize = 16;
const STORES: usize = 16;
/// A thread that has fenced so often since the load has done what it will do.
const FENCES: u64 = 2;
/// So many instructions of a thread are reported in one run: a bound on what a loop can cause.
const MOST: u64 = 1 << 16;

/// What a thread knows for this.
#[derive(Debug, Default)]
pub(crate) struct Follow {
    /// Its place among what is at risk, from its first store on.
    place: Option<&'static Place>,
    /// Where its next store goes there.
    next: usize,
    /// How many fences it may make before it is followed no more.
    until: u64,
    /// How many instructions were reported in all.
    reported: u64,
    /// Where the thread's segment starts, once that is known.
    fs: u64,
}

impl Follow {
    /// What it has stored so far is not at risk any more, or soon will not be.
    pub(crate) fn fenced(&mut self) {
        if let Some(place) = self.place {
            place.clear();
        }
    }

    /// Its thread ends.
    pub(crate) fn end(&mut self) {
        if let Some(place) = self.place.take() {
            place.clear();
            place.thread.store(0, Ordering::Release);
        }
    }
}

/// What threads have stored and not fenced: readers of these bytes are followed.
#[derive(Debug, Default)]
pub(crate) struct AtRisk([Place; PLACES]);

#[derive(Debug, Default)]
struct Place {
    /// 0 if the place is free.
    thread: AtomicU32,
    /// Address and size of stores to PM, in a ring.
    stores: [(AtomicU64, AtomicU64); STORES],
}

impl Place {
    fn clear(&self) {
        self.stores.iter().for_each(|(_, len)| len.store(0, Ordering::Relaxed));
    }
}

impl AtRisk {
    /// A place for the stores of a thread, if one is free.
    fn claim(&self, thread: ThreadId) -> Option<&Place> {
        let free =
            |place: &&Place| place.thread.compare_exchange(0, thread.0, Ordering::Acquire, Ordering::Relaxed).is_ok();
        self.0.iter().find(free)
    }

    /// Whether another thread has stored any of these bytes, or is about to. A place that changes just now may give a wrong answer:
    /// then a thread is followed for nothing, or not.
    fn has(&self, reader: ThreadId, addr: u64, len: u64) -> bool {
        let others = self.0.iter().filter(|place| place.thread.load(Ordering::Acquire) != 0);
        others.filter(|place| place.thread.load(Ordering::Relaxed) != reader.0).any(|place| {
            place.stores.iter().any(|(start, size)| {
                let size = size.load(Ordering::Acquire);
                let start = start.load(Ordering::Relaxed);
                size > 0 && start < addr + len && addr < start + size
            })
        })
    }
}

/// Before an instruction, if its thread is followed.
pub(crate) fn call_step(e: &Emitter, instr: Instr) {
    call(e, step as *mut c_void, instr, 0);
}

/// Before an instruction that loads from PM; the address is in its slot.
pub(crate) fn call_loading(e: &Emitter, instr: Instr, access: Access) {
    call(e, loading as *mut c_void, instr, access.size.into());
}

/// Before a store to PM, so that nobody reads it unnoticed; the address is in its slot.
pub(crate) fn call_storing(e: &Emitter, instr: Instr, access: Access) {
    call(e, storing as *mut c_void, instr, access.size.into());
}

fn call(e: &Emitter, callback: *mut c_void, instr: Instr, size: u32) {
    // SAFETY: list and instruction are of the block under construction; the callbacks take these two words.
    unsafe {
        let pc = opnd_create_immed_int(instr_get_app_pc(instr) as i64, OPSZ_8 as opnd_size_t);
        let size = opnd_create_immed_int(size.into(), OPSZ_4 as opnd_size_t);
        dr_insert_clean_call(e.dc, e.block, e.at, callback, 0, 2, pc, size);
    }
}

unsafe extern "C" fn step(pc: u64, _size: u32) {
    let thread = Thread::current();
    let left = thread.slot(slot::FOLLOW).saturating_sub(1);
    let over = thread.pace >= thread.follow.until || thread.follow.reported >= MOST;
    thread.set_slot(slot::FOLLOW, if over { 0 } else { left });
    if !over {
        thread.report_step(pc, 0, 0);
    }
}

unsafe extern "C" fn loading(pc: u64, size: u32) {
    let thread = Thread::current();
    let (addr, len) = (thread.slot(slot::ADDR), u64::from(size));
    if !client().at_risk.has(thread.id, addr, len) || thread.follow.reported >= MOST {
        return;
    }
    thread.follow.until = thread.pace + FENCES;
    thread.set_slot(slot::FOLLOW, client().plan.follow.into());
    thread.report_step(pc, addr, len);
}

unsafe extern "C" fn storing(_pc: u64, size: u32) {
    let thread = Thread::current();
    let at = thread.slot(slot::ADDR);
    let follow = &mut thread.follow;
    let Some(place) = follow.place.or_else(|| client().at_risk.claim(thread.id)) else { return };
    follow.place = Some(place);
    let (addr, len) = &place.stores[follow.next % STORES];
    // A reader must not see the address of one store with the size of another.
    len.store(0, Ordering::Relaxed);
    addr.store(at, Ordering::Release);
    len.store(size.into(), Ordering::Release);
    follow.next = follow.next.wrapping_add(1);
}

impl Thread {
    fn report_step(&mut self, pc: u64, addr: u64, len: u64) {
        self.follow.reported += 1;
        let mut code = [0; CODE];
        dr::read_memory(pc, &mut code);
        // SAFETY: all-zero is a valid value; size and flags are set as DynamoRIO wants them, and this is within a clean call.
        let (general, fs) = unsafe {
            let mut context: dr_mcontext_t = std::mem::zeroed();
            context.size = size_of::<dr_mcontext_t>();
            context.flags =
                dr_mcontext_flags_t(dr_mcontext_flags_t::DR_MC_INTEGER.0 | dr_mcontext_flags_t::DR_MC_CONTROL.0);
            dr_get_mcontext(dr_get_current_drcontext(), &raw mut context);
            let general: [u64; 16] =
                std::array::from_fn(|i| reg_get_value(DR_REG_RAX as reg_id_t + i as reg_id_t, &raw mut context));
            if self.follow.fs == 0 {
                let none = DR_REG_NULL as reg_id_t;
                let segment = DR_SEG_FS as reg_id_t;
                let start = opnd_create_far_base_disp(segment, none, none, 0, 0, OPSZ_8 as opnd_size_t);
                self.follow.fs = opnd_compute_address(start, &raw mut context) as u64;
            }
            (general, self.follow.fs)
        };
        let state = State { general, fs, pc, code }.to_bytes();
        let context = self.context(general[4]);
        let site = SiteId(client().sites.of(pc));
        self.emit_at(site, context, What::Step { addr, len, state: &state });
    }
}
