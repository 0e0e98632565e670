//! The instruction trace of a thread that has read what another thread has stored and not fenced yet.
//!
//! From such a load on the client reports every instruction of the reader with its registers, up to a number that the plan
//! gives or until the thread has made some fences. pmvet computes from this where the value goes.

use pmvet_events::SiteId;
use pmvet_events::event::What;
use pmvet_events::thread_state::{CODE, ThreadState};

use super::sites::SITES;
use super::thread::{Thread, slot};
use super::unfenced_stores::UNFENCED_STORES;
use crate::dynamorio;
use crate::run::run;

/// How many fences after the load the trace goes on: what depends on the value has mostly happened by then.
const TRACED_FENCES: u64 = 2;
/// Upper bound for the instructions that one thread reports in a run, because of loops.
const MAX_TRACED_INSTRUCTIONS: u64 = 1 << 16;

/// Before an instruction, if its thread is traced.
pub(crate) unsafe extern "C" fn before_instruction(pc: u64, _size: u32) {
    let thread = Thread::current();
    let left = thread.slot(slot::TRACE).saturating_sub(1);
    let over = thread.fences_made >= thread.trace.until || thread.trace.reported >= MAX_TRACED_INSTRUCTIONS;
    thread.set_slot(slot::TRACE, if over { 0 } else { left });
    if !over {
        thread.report_step(pc, 0, 0);
    }
}

/// Before an instruction that loads from PM; the address is in its slot.
pub(crate) unsafe extern "C" fn before_load(pc: u64, size: u32) {
    let thread = Thread::current();
    let (addr, len) = (thread.slot(slot::ADDR), u64::from(size));
    if !UNFENCED_STORES.overlaps(thread.id, addr, len) || thread.trace.reported >= MAX_TRACED_INSTRUCTIONS {
        return;
    }
    thread.trace.until = thread.fences_made + TRACED_FENCES;
    thread.set_slot(slot::TRACE, run().plan.follow.into());
    thread.report_step(pc, addr, len);
}

/// Before a store to PM, so that no other thread reads it unnoticed; the address is in its slot.
pub(crate) unsafe extern "C" fn before_store(_pc: u64, size: u32) {
    let thread = Thread::current();
    let addr = thread.slot(slot::ADDR);
    thread.trace.note_store(thread.id, addr, size);
}

impl Thread {
    fn report_step(&mut self, pc: u64, addr: u64, len: u64) {
        self.trace.reported += 1;
        let mut code = [0; CODE];
        dynamorio::read_memory(pc, &mut code);
        let general = dynamorio::integer_registers(&mut self.trace.fs);
        let fs = self.trace.fs;
        let state = ThreadState { general, fs, pc, code }.to_bytes();
        let context = self.context(general[4]);
        let site = SiteId(SITES.id_at(pc));
        self.emit_at(site, context, What::Step { addr, len, state: &state });
    }
}
