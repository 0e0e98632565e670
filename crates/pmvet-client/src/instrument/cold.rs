//! The cold parts of a block: what runs when an access may be to PM.

use super::block::Block;
use super::liveness::LiveRegisters;
use super::runtime_ranges::RuntimeRanges;
use super::sequences::{Access, Address};
use super::{clean_calls, stubs};
use crate::dynamorio::bindings::*;
use crate::dynamorio::emitter::RCX;
use crate::dynamorio::instructions::{self, Instr, changes_address, uses_register, writes_register};
use crate::record::thread::{mode, slot};
use crate::run::run;

/// Code that rarely runs and stands away from the ordinary path.
pub(super) struct Cold {
    pub(super) entry: Instr,
    pub(super) back: Instr,
    /// The ordinary path uses rcx; the target's value is in its slot.
    pub(super) rcx_saved: bool,
    pub(super) body: Body,
    /// The value that `slot::FENCE_PENDING` gets, if it changes.
    pub(super) fence_pending: Option<bool>,
}

/// What a cold part does.
pub(super) enum Body {
    /// One stub, before the instruction.
    Plain { stub: extern "C" fn(), access: Access },
    /// Both halves of a store, with the instruction between them.
    Store { access: Access, ea: opnd_t, instr: Instr },
    /// A load, reported after a copy of its instruction, or before the instruction if that is not given.
    Load { access: Access, ea: opnd_t, instr: Option<Instr> },
    /// An operation on PM that a coverage run counts.
    Count { access: Access, ea: opnd_t },
    /// An instruction of a thread that may be traced.
    Trace { instr: Instr },
    /// An access whose ranges are known only at run time.
    RuntimeRanges { plan: RuntimeRanges, instr: Instr },
}

impl Block {
    /// Sends the access to the cold path if `ea` may be PM.
    pub(super) fn filtered(
        &mut self,
        instr: Instr,
        live: LiveRegisters,
        ea: opnd_t,
        body: Body,
        fence_pending: Option<bool>,
    ) {
        let e = self.emitter(instr);
        let entry = e.label();
        let rcx_saved;
        if !live.flags() {
            match live.dead_register() {
                Some(scratch) => e.filter_into_flags(scratch, ea),
                None => {
                    e.store_slot(slot::SAVED, RCX);
                    e.filter_into_flags(RCX, ea);
                    e.load_slot(RCX, slot::SAVED);
                }
            }
            e.jump(OP_jnz, entry);
            rcx_saved = false;
        } else {
            rcx_saved = live.has(RCX);
            if rcx_saved {
                e.store_slot(slot::SAVED, RCX);
            }
            e.filter_into_rcx(ea);
            let miss = e.label();
            e.jump_if_rcx_zero(miss);
            e.jump(OP_jmp, entry);
            e.put(miss);
            if rcx_saved {
                e.load_slot(RCX, slot::SAVED);
            }
        }
        let back = e.label();
        let instruction_too = !matches!(body, Body::Load { instr: None, .. } | Body::Count { .. });
        if instruction_too {
            e.put_behind(instr, back);
        } else {
            e.put(back);
        }
        self.cold.push(Cold { entry, back, rcx_saved, body, fence_pending });
    }

    /// Puts the cold parts before the last instruction if that one leaves the block, else after it.
    pub(super) fn place_cold(&mut self, last: Instr) {
        if self.cold.is_empty() {
            return;
        }
        let leaves = instructions::leaves_block(last);
        let e = self.emitter(if leaves { self.first_of(last) } else { std::ptr::null_mut() });
        let over = e.label();
        e.jump(OP_jmp, over);
        for cold in std::mem::take(&mut self.cold) {
            e.put(cold.entry);
            let follows = run().plan.follow > 0;
            let delays = run().plan.delays && matches!(cold.body, Body::Store { .. } | Body::Load { .. });
            // The target's rcx is loaded from its slot only where it is needed.
            let restore_rcx = || e.load_slot(RCX, slot::SAVED);
            match cold.body {
                Body::Plain { stub, access } => e.call_stub_with_rcx_saved(stub, access, Address::Known),
                Body::Store { access, ea, instr } => {
                    if !cold.rcx_saved {
                        e.store_slot(slot::SAVED, RCX);
                    } else if uses_register(ea, RCX) || follows {
                        restore_rcx();
                    }
                    if follows {
                        e.save_address(Address::Computed(ea));
                        if instructions::reads_memory(instr) {
                            clean_calls::trace_load(&e, instr, access);
                        }
                        clean_calls::trace_store(&e, instr, access);
                    }
                    e.call_stub_with_rcx_saved(stubs::before_store, access, Address::Computed(ea));
                    if let Some(register) =
                        instructions::source_register(instr).filter(|_| access.next_mode == mode::STREAM)
                    {
                        e.save_value(register);
                    }
                    e.copy_instruction(instr);
                    e.call_after_store(writes_register(instr, RCX));
                    if self.is_stall(instr, false) {
                        e.call_stub_for_same_access(stubs::stall_after_store, true);
                    }
                }
                Body::Load { access, ea, instr } => {
                    let mut at = Address::Computed(ea);
                    let mut rcx_saved = cold.rcx_saved;
                    if rcx_saved && (instr.is_some() || uses_register(ea, RCX) || follows) {
                        restore_rcx();
                    }
                    if let Some(instr) = instr.filter(|_| follows) {
                        e.save_address(at);
                        rcx_saved = true;
                        clean_calls::trace_load(&e, instr, access);
                    }
                    if let Some(instr) = instr {
                        if changes_address(instr, ea) {
                            e.save_address(at);
                            rcx_saved = true;
                            at = Address::Known;
                        }
                        e.copy_instruction(instr);
                        rcx_saved &= !writes_register(instr, RCX);
                    }
                    if !rcx_saved {
                        e.store_slot(slot::SAVED, RCX);
                    }
                    e.call_stub_with_rcx_saved(stubs::load, access, at);
                }
                Body::Count { access, ea } => {
                    if !cold.rcx_saved {
                        e.store_slot(slot::SAVED, RCX);
                    } else if uses_register(ea, RCX) {
                        restore_rcx();
                    }
                    e.call_stub_with_rcx_saved(stubs::count_operation, access, Address::Computed(ea));
                }
                Body::Trace { instr } => {
                    restore_rcx();
                    clean_calls::trace_step(&e, instr);
                }
                Body::RuntimeRanges { plan, instr } => {
                    if cold.rcx_saved {
                        restore_rcx();
                    }
                    let plan = plan.keep();
                    plan.call_before(&e);
                    e.copy_instruction(instr);
                    plan.call_after(&e);
                }
            }
            if delays {
                e.call_stub_for_same_access(stubs::random_delay, true);
            }
            if let Some(pending) = cold.fence_pending {
                e.store_slot_imm(slot::FENCE_PENDING, pending.into());
            }
            e.jump(OP_jmp, cold.back);
        }
        e.put(over);
    }

    /// Where the instrumentation of `instr` starts.
    fn first_of(&self, instr: Instr) -> Instr {
        // SAFETY: walks the list of this block.
        unsafe {
            let mut at = instr;
            loop {
                let previous = instr_get_prev(at);
                if previous.is_null() || instr_is_app(previous) != 0 {
                    return at;
                }
                at = previous;
            }
        }
    }
}
