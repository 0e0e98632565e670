//! Turns a basic block of the target into one that reports what it does.
//!
//! An access to memory becomes
//!
//! ```text
//!         filter: is the upper half of the address one with PM in it?  ──yes──►  cold
//!         the target's instruction
//! back:
//!
//! cold:   stubs::before_store (of a store)
//!         the target's instruction, a second copy
//!         stubs::after_store, or stubs::load
//!         jump back
//! ```
//!
//! All cold parts are together before the block's last instruction, so that the ordinary path stays short. The copy runs
//! with exactly the registers of the original, so faults in either look alike.
//!
//! Not instrumented, because PM cannot be there: accesses relative to the stack pointer and to `fs`/`gs`. An access to
//! a constant address is instrumented if there is PM near it when the block is made; blocks are made again when PM
//! comes near code.

#![allow(non_upper_case_globals, reason = "DynamoRIO's names in patterns")]

use core::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use pmvet_events::wire;

use super::cold::{Body, Cold};
use super::liveness::LiveRegisters;
use super::runtime_ranges::RuntimeRanges;
use super::sequences::{Access, Address};
use super::{branch_counters, clean_calls, markers, stubs};
use crate::control::fork_server::FORK_SERVER;
use crate::control::schedule::SCHEDULE;
use crate::dynamorio::bindings::*;
use crate::dynamorio::emitter::{Emitter, RCX, RSP, sum};
use crate::dynamorio::instructions::{self, Instr, app_pc};
use crate::record::pm::PM;
use crate::record::sites::SITES;
use crate::record::sync_functions::{Entry, EntryKind, HOOKS};
use crate::record::thread::{mode, slot};
use crate::run::run;

/// A basic block under construction.
pub(super) struct Block {
    pub(super) dc: *mut c_void,
    block: *mut instrlist_t,
    pub(super) cold: Vec<Cold>,
}

pub(crate) unsafe extern "C" fn block_event(
    dc: *mut c_void,
    tag: *mut c_void,
    block: *mut instrlist_t,
    _for_trace: bool_,
    translating: bool_,
) -> dr_emit_flags_t {
    let mut this = Block { dc, block, cold: Vec::new() };
    // SAFETY: the list is DynamoRIO's and ours to change during this event.
    unsafe {
        announce_avx512(dc, block);
        let mut instrs = Vec::new();
        let mut instr = instrlist_first_app(block);
        while !instr.is_null() {
            instr = markers::restore_sequence(dc, block, instr);
            instrs.push(instr);
            instr = instr_get_next_app(instr);
        }
        let Some(&last) = instrs.last() else { return dr_emit_flags_t::DR_EMIT_DEFAULT };
        let mut live = vec![LiveRegisters::ALL; instrs.len() + 1];
        for (i, &instr) in instrs.iter().enumerate().rev() {
            live[i] = live[i + 1].before(instr);
        }
        let entry = dr_fragment_app_pc(tag) as u64;
        if let Some(forks) = FORK_SERVER.get().filter(|_| translating == 0) {
            forks.translated(entry);
        }
        branch_counters::count_branch(&this.emitter(instrs[0]), live[0], entry);
        if let Some(hook) = HOOKS.entry_at(entry).filter(|_| !run().is_coverage_run()) {
            this.hooked_entry(instrs[0], hook);
        }
        for (i, &instr) in instrs.iter().enumerate() {
            this.instruction(instr, live[i]);
        }
        this.place_cold(last);
    }
    dr_emit_flags_t::DR_EMIT_STORE_TRANSLATIONS
}

/// DynamoRIO saves the target's upper vector registers only after it has seen an instruction that writes a whole one or an
/// opmask. It overlooks those that write a half. The client's C library uses them all, so the target's first block gets an
/// instruction that DynamoRIO notices: it copies an opmask, still 0, to itself.
unsafe fn announce_avx512(dc: *mut c_void, block: *mut instrlist_t) {
    static FIRST: AtomicBool = AtomicBool::new(true);
    if !FIRST.swap(false, Ordering::Relaxed) || !std::is_x86_feature_detected!("avx512f") {
        return;
    }
    // SAFETY: the caller passes the block under construction; its first instruction has an address.
    unsafe {
        let first = instrlist_first_app(block);
        if !first.is_null() {
            let opmask = opnd_create_reg(DR_REG_K0 as reg_id_t);
            let copy = instr_create_1dst_1src(dc, OP_kmovw as i32, opmask, opmask);
            instr_set_translation(copy, instr_get_app_pc(first));
            instrlist_preinsert(block, first, copy);
        }
    }
}

impl Block {
    pub(super) fn emitter(&self, at: Instr) -> Emitter {
        Emitter { dc: self.dc, block: self.block, at }
    }

    pub(super) fn site(&self, instr: Instr) -> u32 {
        SITES.id_at(app_pc(instr))
    }

    /// Whether threads may be stopped before or after this instruction.
    pub(super) fn is_stall(&self, instr: Instr, before: bool) -> bool {
        SCHEDULE.stall_at(app_pc(instr), before).is_some()
    }

    /// The first instruction of a hooked function.
    fn hooked_entry(&self, instr: Instr, hook: Entry) {
        let (stub, kind, size): (extern "C" fn(), u8, u8) = match hook.kind {
            EntryKind::Lock(how) => (stubs::lock_entered, wire::ACQUIRE, how as u8),
            EntryKind::Unlock(how) => (stubs::unlock_entered, wire::RELEASE, how as u8),
            EntryKind::Other => (stubs::function_entered, 0, 0),
        };
        let access = Access { site: hook.site, kind, size, next_mode: 0 };
        let e = self.emitter(instr);
        if run().plan.in_step {
            e.call_stub(stubs::lockstep_entry, Access { kind: 0, size: 0, ..access }, Address::Known);
        }
        e.call_stub(stub, access, Address::Constant(hook.number.into()));
    }

    fn instruction(&mut self, instr: Instr, live: LiveRegisters) {
        let (op, call, ret) =
            (instructions::opcode(instr), instructions::is_call(instr), instructions::is_return(instr));
        if !PM.is_watched() {
            return self.without_memory(instr, op, live, call, ret);
        }
        if run().plan.follow > 0 {
            self.trace(instr);
        }
        if self.is_stall(instr, true) {
            let access = self.access(instr, 0, 0, mode::NOTHING);
            self.emitter(instr).call_stub(stubs::stall_before, access, Address::Known);
        }
        match op {
            OP_clflush => return self.flush(instr, wire::CLFLUSH),
            OP_clflushopt => return self.flush(instr, wire::CLFLUSHOPT),
            OP_clwb => return self.flush(instr, wire::CLWB),
            OP_sfence => return self.fence(instr, wire::SFENCE),
            OP_mfence => return self.fence(instr, wire::MFENCE),
            OP_cpuid | OP_serialize => self.fence_if_pending(instr, wire::FENCE_SERIALIZING),
            _ => {}
        }
        match RuntimeRanges::decode(instr, op, self.site(instr)) {
            Some(plan) if run().is_coverage_run() => {
                if let Some(ea) = plan.start().filter(|_| plan.stores()) {
                    let access = self.access(instr, wire::STORE, 1, mode::NOTHING);
                    self.filtered(instr, live, ea, Body::Count { access, ea }, None);
                }
            }
            Some(plan) => self.runtime_ranges(instr, live, plan),
            None => self.memory(instr, op, live),
        }
        // After the instruction's own loads, which still belong to the caller.
        self.without_memory(instr, op, live, call, ret);
    }

    /// Instruments what is reported whether there is PM or not.
    fn without_memory(&mut self, instr: Instr, op: u32, live: LiveRegisters, call: bool, ret: bool) {
        if call {
            self.shadow_call(instr, live);
        } else if ret {
            self.shadow_return(instr, live);
        } else if markers::is_marker(instr, op) {
            markers::insert(&self.emitter(instr), instr);
        } else if run().plan.deterministic {
            clean_calls::replace_result(&self.emitter(instructions::next(instr)), instr, op);
        }
    }

    pub(super) fn access(&self, instr: Instr, kind: u8, size: u32, next_mode: u8) -> Access {
        Access { site: self.site(instr), kind, size: size as u8, next_mode }
    }

    /// A flush is always reported, even of volatile memory.
    fn flush(&mut self, instr: Instr, kind: u8) {
        // SAFETY: a flush has its line as its first source.
        let line = unsafe { instr_get_src(instr, 0) };
        let computed = instructions::computed_address(line).map(|(ea, _)| Address::Computed(ea));
        let constant = || instructions::constant_address(line).map(|(addr, _)| Address::Constant(addr));
        let Some(at) = computed.or_else(constant) else { return };
        let e = self.emitter(instr);
        let stub = if run().is_coverage_run() { stubs::count_operation } else { stubs::flush };
        e.call_stub(stub, self.access(instr, kind, 1, mode::NOTHING), at);
        if kind != wire::CLFLUSH {
            e.store_slot_imm(slot::FENCE_PENDING, 1);
        }
    }

    fn fence(&mut self, instr: Instr, kind: u8) {
        let e = self.emitter(instr);
        if run().plan.in_step || run().plan.follow > 0 {
            e.call_stub(stubs::lockstep_fence, self.access(instr, 0, 0, mode::NOTHING), Address::Known);
        }
        e.call_stub(fence_stub(), self.access(instr, kind, 0, mode::NOTHING), Address::Known);
        e.store_slot_imm(slot::FENCE_PENDING, 0);
    }

    /// An instruction that also acts as a fence: reported only if a flush or non-temporal store waits for one.
    pub(super) fn fence_if_pending(&mut self, instr: Instr, kind: u8) {
        let e = self.emitter(instr);
        let (entry, none, back) = (e.label(), e.label(), e.label());
        e.store_slot(slot::SAVED, RCX);
        e.load_slot(RCX, slot::FENCE_PENDING);
        e.jump_if_rcx_zero(none);
        e.jump(OP_jmp, entry);
        e.put(none);
        e.load_slot(RCX, slot::SAVED);
        e.put(back);
        let body = Body::Plain { stub: fence_stub(), access: self.access(instr, kind, 0, mode::NOTHING) };
        self.cold.push(Cold { entry, back, rcx_saved: true, body, fence_pending: Some(false) });
    }

    /// Reports the instruction if its thread is traced.
    fn trace(&mut self, instr: Instr) {
        let e = self.emitter(instr);
        let (entry, none, back) = (e.label(), e.label(), e.label());
        e.store_slot(slot::SAVED, RCX);
        e.load_slot(RCX, slot::TRACE);
        e.jump_if_rcx_zero(none);
        e.jump(OP_jmp, entry);
        e.put(none);
        e.load_slot(RCX, slot::SAVED);
        e.put(back);
        self.cold.push(Cold { entry, back, rcx_saved: true, body: Body::Trace { instr }, fence_pending: None });
    }

    fn shadow_call(&mut self, instr: Instr, live: LiveRegisters) {
        let e = self.emitter(instr);
        let site = self.site(instr);
        with_register(&e, live, |r| e.push_frame(r, site));
    }

    fn shadow_return(&mut self, instr: Instr, live: LiveRegisters) {
        let e = self.emitter(instr);
        let hooked = HOOKS.may_return_at(app_pc(instr));
        if !hooked {
            return with_register(&e, live, |r| e.pop_frame(r));
        }
        let (entry, none, back) = (e.label(), e.label(), e.label());
        e.store_slot(slot::SAVED, RCX);
        e.pop_frame(RCX);
        e.load_slot(RCX, slot::RETURN_SP);
        e.lea(RCX, sum(RSP, RCX));
        let skip = e.label();
        e.jump_if_rcx_zero(skip);
        e.jump(OP_jmp, none);
        e.put(skip);
        e.jump(OP_jmp, entry);
        e.put(none);
        e.load_slot(RCX, slot::SAVED);
        e.put(back);
        let body =
            Body::Plain { stub: stubs::function_returns, access: Access { site: 0, kind: 0, size: 0, next_mode: 0 } };
        self.cold.push(Cold { entry, back, rcx_saved: true, body, fence_pending: None });
    }
}

fn fence_stub() -> extern "C" fn() {
    if run().is_coverage_run() { stubs::count_fence } else { stubs::fence }
}

/// Runs `body` with a register it may change.
fn with_register(e: &Emitter, live: LiveRegisters, body: impl FnOnce(reg_id_t)) {
    match live.dead_register() {
        Some(scratch) => body(scratch),
        None => {
            e.store_slot(slot::SAVED, RCX);
            body(RCX);
            e.load_slot(RCX, slot::SAVED);
        }
    }
}
