//! Accesses to memory: which of an instruction's operands may be PM, and what is reported of them.

#![allow(non_upper_case_globals, reason = "DynamoRIO's names in patterns")]

use pmvet_events::wire;

use super::block::Block;
use super::cold::Body;
use super::liveness::LiveRegisters;
use super::runtime_ranges::RuntimeRanges;
use super::sequences::Address;
use super::stubs;
use crate::dynamorio::bindings::*;
use crate::dynamorio::instructions::{self, Instr, address_off_stack, app_pc, constant_address};
use crate::record::pm::PM;
use crate::record::sync_functions::HOOKS;
use crate::record::thread::{mode, slot};
use crate::run::run;

impl Block {
    /// Instruments the loads and stores of an instruction.
    pub(super) fn memory(&mut self, instr: Instr, op: u32, live: LiveRegisters) {
        let (stores, loads) = (instructions::destinations(instr), instructions::sources(instr));
        let store = stores.iter().copied().find_map(address_off_stack);
        let constant = stores.iter().chain(&loads).copied().find_map(constant_address);
        let loads: Vec<(opnd_t, u32)> = match op {
            // These have a memory operand that they do not read.
            OP_lea | OP_prefetcht0 | OP_prefetcht1 | OP_prefetcht2 | OP_prefetchnta | OP_prefetchw | OP_prefetch
            | OP_nop_modrm | OP_cldemote => return,
            _ if run().plan.loads => loads.iter().copied().filter_map(address_off_stack).collect(),
            _ => Vec::new(),
        };
        let locked = instructions::has_lock_prefix(instr) || op == OP_xchg;
        let locked = locked && instructions::writes_memory(instr);
        let discards = locked && op == OP_xchg && self.discards_old_value(instr);
        let control = instructions::is_control_transfer(instr);
        let single = loads.len() == 1;
        for (ea, size) in loads.into_iter().filter(|&(_, size)| !locked && size <= 64) {
            let access = self.access(instr, wire::LOAD, size, mode::NOTHING);
            // Where the instruction cannot be copied, or has more to report, the load comes first.
            let copy = (single && store.is_none() && !control).then_some(instr);
            self.filtered(instr, live, ea, Body::Load { access, ea, instr: copy }, None);
        }
        if let Some((ea, size)) = store
            && !control
        {
            if run().is_coverage_run() {
                let access = self.access(instr, wire::STORE, size.min(64), mode::NOTHING);
                let pending = if locked { Some(false) } else { is_non_temporal(op).then_some(true) };
                self.filtered(instr, live, ea, Body::Count { access, ea }, pending);
            } else if locked {
                let access = self.access(instr, rmw_kind(op, discards), size, mode::RMW);
                self.filtered(instr, live, ea, Body::Store { access, ea, instr }, Some(false));
            } else if size <= 64 {
                let streaming = is_non_temporal(op);
                let kind = if streaming { wire::STORE_NT } else { wire::STORE };
                let next_mode = if streaming && instructions::source_register(instr).is_some() {
                    mode::STREAM
                } else {
                    mode::STORE
                };
                let access = self.access(instr, kind, size, next_mode);
                let body = Body::Store { access, ea, instr };
                self.filtered(instr, live, ea, body, streaming.then_some(true));
            }
        }
        if let Some((addr, size)) = constant
            && !control
            && PM.may_be_near(addr)
            && !run().is_coverage_run()
        {
            return self.constant(instr, op, (addr, size), locked, discards);
        }
        if !locked {
            return;
        }
        let ours = run().plan.races && !HOOKS.is_library(app_pc(instr));
        let at = store.map(|(ea, size)| (Address::Computed(ea), size));
        let at = at.or(constant.map(|(addr, size)| (Address::Constant(addr), size)));
        match at.filter(|&(_, size)| ours && !control && size <= 8) {
            Some((at, size)) => self.atomic(instr, op, at, size, discards),
            None => self.fence_if_pending(instr, wire::FENCE_LOCKED),
        }
    }

    /// A read-modify-write of volatile memory. One of PM has gone to its cold part and skips what is inserted here.
    fn atomic(&mut self, instr: Instr, op: u32, at: Address, size: u32, discards: bool) {
        let takes = matches!(op, OP_cmpxchg | OP_xchg | OP_bts | OP_or) && !discards;
        let kind = match op {
            OP_cmpxchg => wire::ATOMIC_FAILED,
            _ if discards => wire::ATOMIC_STORED,
            _ => wire::ATOMIC,
        };
        let exchanged = instructions::register_written(instr).filter(|_| op == OP_xchg && takes);
        let bit = instructions::immediate(instr).filter(|bit| op == OP_bts && (0..31).contains(bit));
        let next_mode = match (exchanged, bit) {
            (Some(_), _) => mode::EXCHANGE,
            (_, Some(_)) => mode::BIT_SET,
            _ if takes => mode::LOCKING_RMW,
            _ => mode::RMW,
        };
        let access = self.access(instr, kind, size, next_mode);
        let e = self.emitter(instr);
        if let Address::Computed(ea) = at {
            e.touch(ea, instr);
        }
        e.call_stub(stubs::before_atomic, access, at);
        let after = self.emitter(instructions::next(instr));
        if let Some(register) = exchanged {
            after.store_slots(slot::VALUE, register);
        } else if let Some(bit) = bit {
            after.store_slot_imm(slot::VALUE, 1 << bit);
        }
        after.call_after_store(true);
    }

    /// An access to a constant address near PM: stubs around the instruction check whether it hits.
    fn constant(&mut self, instr: Instr, op: u32, (addr, size): (u64, u32), locked: bool, discards: bool) {
        let writes = instructions::writes_memory(instr);
        let (kind, next_mode) = match (writes, locked) {
            (true, true) => (rmw_kind(op, discards), mode::RMW),
            (true, false) if is_non_temporal(op) => (wire::STORE_NT, mode::STORE),
            (true, false) => (wire::STORE, mode::STORE),
            (false, _) if run().plan.loads => (wire::LOAD, mode::NOTHING),
            (false, _) => return,
        };
        if size > 64 {
            return;
        }
        let access = self.access(instr, kind, size, next_mode);
        let after = self.emitter(instructions::next(instr));
        if kind == wire::LOAD {
            return after.call_stub(stubs::load, access, Address::Constant(addr));
        }
        self.emitter(instr).call_stub(stubs::before_store, access, Address::Constant(addr));
        after.call_after_store(true);
        if self.is_stall(instr, false) {
            after.call_stub_for_same_access(stubs::stall_after_store, true);
        }
        if kind == wire::STORE_NT || locked {
            after.store_slot_imm(slot::FENCE_PENDING, (!locked).into());
        }
    }

    pub(super) fn runtime_ranges(&mut self, instr: Instr, live: LiveRegisters, plan: RuntimeRanges) {
        match plan.start() {
            Some(ea) => self.filtered(instr, live, ea, Body::RuntimeRanges { plan, instr }, None),
            None => {
                let next = self.emitter(instructions::next(instr));
                let plan = plan.keep();
                plan.call_before(&self.emitter(instr));
                plan.call_after(&next);
            }
        }
    }
}

/// A compare-and-exchange counts as failed until its flags say otherwise.
fn rmw_kind(op: u32, discards: bool) -> u8 {
    match op {
        OP_cmpxchg | OP_cmpxchg8b => wire::RMW_FAILED,
        _ if discards => wire::RMW_DISCARDING,
        _ => wire::RMW,
    }
}

pub(super) fn is_non_temporal(op: u32) -> bool {
    matches!(
        op,
        OP_movnti
            | OP_movntps
            | OP_movntpd
            | OP_movntdq
            | OP_movntq
            | OP_movntss
            | OP_movntsd
            | OP_vmovntps
            | OP_vmovntpd
            | OP_vmovntdq
            | OP_movdiri
    )
}
