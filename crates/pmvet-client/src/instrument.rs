//! Turns a basic block of the target into one that reports what it does.
//!
//! An access to memory becomes
//!
//! ```text
//!         filter: is the upper half of the address one with PM in it?  ──yes──►  cold
//!         the target's instruction
//! back:
//!
//! cold:   stubs::before (of a store)
//!         the target's instruction, a second copy
//!         stubs::after, or stubs::load
//!         jump back
//! ```
//!
//! with all cold parts together before the block's last instruction, so that the ordinary path stays short. Since the
//! copy has the target's registers exactly as the original has, faults in either look alike.
//!
//! Not instrumented, because PM cannot be there: accesses relative to the stack pointer and to `fs`/`gs`. An access to
//! a constant address is instrumented if there is PM near it when the block is made; blocks are made again when PM
//! comes near code.

#![allow(non_upper_case_globals, reason = "DynamoRIO's names in patterns")]

use std::sync::atomic::{AtomicBool, Ordering};

use dynamorio_sys::*;

use pmvet_events::wire;

use crate::complex::{self, Complex};
use crate::emit::{Access, Address, Emitter, Instr, RCX};
use crate::ffi::*;
use crate::liveness::Live;
use crate::thread::{mode, slot};
use crate::{client, counts, determinism, follow, markers, stubs};

const LOCK_PREFIX: u32 = 1;

/// Code that is rarely run and stands away from the ordinary path.
struct Cold {
    entry: Instr,
    back: Instr,
    /// rcx was borrowed on the ordinary path; the target's is in its slot.
    rcx_saved: bool,
    body: Body,
    /// What becomes of the "waiting for a fence" flag.
    pending: Option<bool>,
}

/// What a cold part does.
enum Body {
    /// One stub, for an event without an instruction in its middle.
    Plain { stub: extern "C" fn(), access: Access },
    /// Both halves of a store, with the instruction between them.
    Store { access: Access, ea: opnd_t, instr: Instr },
    /// A load, after its instruction unless that follows by itself.
    Load { access: Access, ea: opnd_t, instr: Option<Instr> },
    /// An operation on PM to be counted.
    Count { access: Access, ea: opnd_t },
    /// An instruction of a thread that may be followed.
    Step { instr: Instr },
    /// An access that is taken apart in Rust.
    Complex { plan: Complex, instr: Instr },
}

struct Block {
    dc: *mut core::ffi::c_void,
    block: *mut instrlist_t,
    cold: Vec<Cold>,
}

pub(crate) unsafe extern "C" fn block_event(
    dc: *mut core::ffi::c_void,
    tag: *mut core::ffi::c_void,
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
            instr = markers::restore(dc, block, instr);
            instrs.push(instr);
            instr = instr_get_next_app(instr);
        }
        let Some(&last) = instrs.last() else { return dr_emit_flags_t::DR_EMIT_DEFAULT };
        let mut live = vec![Live::ALL; instrs.len() + 1];
        for (i, &instr) in instrs.iter().enumerate().rev() {
            live[i] = live[i + 1].before(instr);
        }
        let entry = dr_fragment_app_pc(tag) as u64;
        if let Some(forks) = client().forks.as_ref().filter(|_| translating == 0) {
            forks.translated(entry);
        }
        counts::branch(&this.emitter(instrs[0]), live[0], entry);
        if let Some((hook, stub, access)) = client().hooks.at(entry).filter(|_| !client().counts()) {
            let e = this.emitter(instrs[0]);
            if client().plan.in_step {
                e.call_stub(stubs::paced_entry, Access { kind: 0, size: 0, ..access }, Address::Known);
            }
            e.call_stub(stub, access, Address::Constant(hook.into()));
        }
        for (i, &instr) in instrs.iter().enumerate() {
            this.instruction(instr, live[i]);
        }
        this.place_cold(last);
    }
    dr_emit_flags_t::DR_EMIT_STORE_TRANSLATIONS
}

/// DynamoRIO keeps the upper vector registers of the target only once it has met an instruction that writes a whole one
/// or an opmask; it overlooks those that write a half. This client's C library uses them all, so the target's first block
/// gets an instruction that DynamoRIO notices: it copies an opmask, still 0, to itself.
unsafe fn announce_avx512(dc: *mut core::ffi::c_void, block: *mut instrlist_t) {
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
    fn emitter(&self, at: Instr) -> Emitter {
        Emitter { dc: self.dc, block: self.block, at }
    }

    fn site(&self, instr: Instr) -> u32 {
        // SAFETY: the instruction is of this block.
        client().sites.of(unsafe { instr_get_app_pc(instr) } as u64)
    }

    /// Whether threads may be stopped before or after this instruction.
    fn is_stall(&self, instr: Instr, before: bool) -> bool {
        // SAFETY: the instruction is of this block.
        client().schedule.at(unsafe { instr_get_app_pc(instr) } as u64, before).is_some()
    }

    fn instruction(&mut self, instr: Instr, live: Live) {
        // SAFETY: queries of a valid instruction.
        let (op, call, ret) =
            unsafe { (instr_get_opcode(instr) as u32, instr_is_call(instr) != 0, instr_is_return(instr) != 0) };
        if !client().watches_memory() {
            return self.without_memory(instr, op, live, call, ret);
        }
        if client().plan.follow > 0 {
            self.step(instr);
        }
        if self.is_stall(instr, true) {
            let access = self.access(instr, 0, 0, mode::NOTHING);
            self.emitter(instr).call_stub(stubs::reached, access, Address::Known);
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
        match Complex::of(instr, op, self.site(instr)) {
            Some(plan) if client().counts() => {
                if let Some(ea) = plan.start().filter(|_| plan.stores()) {
                    let access = self.access(instr, wire::STORE, 1, mode::NOTHING);
                    self.filtered(instr, live, ea, Body::Count { access, ea }, None);
                }
            }
            Some(plan) => self.complex(instr, live, plan),
            None => self.memory(instr, op, live),
        }
        // After what the instruction itself loads: that is still its caller's doing.
        self.without_memory(instr, op, live, call, ret);
    }

    /// What is reported whether there is PM or not.
    fn without_memory(&mut self, instr: Instr, op: u32, live: Live, call: bool, ret: bool) {
        if call {
            self.shadow_call(instr, live);
        } else if ret {
            self.shadow_return(instr, live);
        } else if markers::is_marker(instr, op) {
            markers::insert(&self.emitter(instr), instr);
        } else if client().plan.deterministic {
            determinism::replace(&self.emitter(instr), instr, op);
        }
    }

    fn memory(&mut self, instr: Instr, op: u32, live: Live) {
        // SAFETY: queries of a valid instruction, with indices in range.
        let (stores, loads): (Vec<opnd_t>, Vec<opnd_t>) = unsafe {
            (
                (0..instr_num_dsts(instr)).map(|i| instr_get_dst(instr, i as u32)).collect(),
                (0..instr_num_srcs(instr)).map(|i| instr_get_src(instr, i as u32)).collect(),
            )
        };
        let store = stores.iter().copied().find_map(effective_address);
        let constant = stores.iter().chain(&loads).copied().find_map(constant_address);
        let loads: Vec<(opnd_t, u32)> = match op {
            // These have a memory operand that they do not read.
            OP_lea | OP_prefetcht0 | OP_prefetcht1 | OP_prefetcht2 | OP_prefetchnta | OP_prefetchw | OP_prefetch
            | OP_nop_modrm | OP_cldemote => return,
            _ if client().plan.loads => loads.iter().copied().filter_map(effective_address).collect(),
            _ => Vec::new(),
        };
        // SAFETY: as above.
        let (locked, control) = unsafe {
            let locked = instr_get_prefix_flag(instr, LOCK_PREFIX) != 0 || op == OP_xchg;
            (locked && instr_writes_memory(instr) != 0, instr_is_cti(instr) != 0)
        };
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
            if client().counts() {
                let access = self.access(instr, wire::STORE, size.min(64), mode::NOTHING);
                let pending = if locked { Some(false) } else { is_non_temporal(op).then_some(true) };
                self.filtered(instr, live, ea, Body::Count { access, ea }, pending);
            } else if locked {
                let access = self.access(instr, rmw_kind(op), size, mode::RMW);
                self.filtered(instr, live, ea, Body::Store { access, ea, instr }, Some(false));
            } else if size <= 64 {
                let streaming = is_non_temporal(op);
                let kind = if streaming { wire::STORE_NT } else { wire::STORE };
                let todo = if streaming && streamed_register(instr).is_some() { mode::STREAM } else { mode::STORE };
                let access = self.access(instr, kind, size, todo);
                let body = Body::Store { access, ea, instr };
                self.filtered(instr, live, ea, body, streaming.then_some(true));
            }
        }
        if let Some((addr, size)) = constant
            && !control
            && client().pm.may_be_near(addr)
            && !client().counts()
        {
            return self.constant(instr, op, addr, size, locked);
        }
        if !locked {
            return;
        }
        // SAFETY: a query of an instruction of this block.
        let ours = client().plan.races && !client().hooks.is_library(unsafe { instr_get_app_pc(instr) } as u64);
        let at = store.map(|(ea, size)| (Address::Computed(ea), size));
        let at = at.or(constant.map(|(addr, size)| (Address::Constant(addr), size)));
        match at.filter(|&(_, size)| ours && !control && size <= 8) {
            Some((at, size)) => self.atomic(instr, op, at, size),
            None => self.fence_if_pending(instr, wire::FENCE_LOCKED),
        }
    }

    /// A read-modify-write that is not of PM, or whose way to the cold path was passed. What follows the instruction here is
    /// passed over by those who come back from there.
    fn atomic(&mut self, instr: Instr, op: u32, at: Address, size: u32) {
        let takes = matches!(op, OP_cmpxchg | OP_xchg | OP_bts | OP_or);
        let kind = if op == OP_cmpxchg { wire::ATOMIC_FAILED } else { wire::ATOMIC };
        let access = self.access(instr, kind, size, if takes { mode::TAKES } else { mode::RMW });
        let e = self.emitter(instr);
        if let Address::Computed(ea) = at {
            e.touch(ea, instr);
        }
        e.call_stub(stubs::atomic, access, at);
        // SAFETY: the instruction is of this block.
        self.emitter(unsafe { instr_get_next(instr) }).call_after(true);
    }

    /// An access to a constant address near PM: the stubs around the instruction, whether it hits or not.
    fn constant(&mut self, instr: Instr, op: u32, addr: u64, size: u32, locked: bool) {
        // SAFETY: a query of a valid instruction.
        let writes = unsafe { instr_writes_memory(instr) } != 0;
        let (kind, todo) = match (writes, locked) {
            (true, true) => (rmw_kind(op), mode::RMW),
            (true, false) if is_non_temporal(op) => (wire::STORE_NT, mode::STORE),
            (true, false) => (wire::STORE, mode::STORE),
            (false, _) if client().plan.loads => (wire::LOAD, mode::NOTHING),
            (false, _) => return,
        };
        if size > 64 {
            return;
        }
        let access = self.access(instr, kind, size, todo);
        // SAFETY: the instruction is of this block.
        let after = self.emitter(unsafe { instr_get_next(instr) });
        if kind == wire::LOAD {
            return after.call_stub(stubs::load, access, Address::Constant(addr));
        }
        self.emitter(instr).call_stub(stubs::before, access, Address::Constant(addr));
        after.call_after(true);
        if self.is_stall(instr, false) {
            after.call_again(stubs::stored, true);
        }
        if kind == wire::STORE_NT || locked {
            after.store_slot_imm(slot::PENDING, (!locked).into());
        }
    }

    fn complex(&mut self, instr: Instr, live: Live, plan: Complex) {
        match plan.start() {
            Some(ea) => self.filtered(instr, live, ea, Body::Complex { plan, instr }, None),
            None => {
                // SAFETY: the instruction is of this block.
                let next = self.emitter(unsafe { instr_get_next(instr) });
                let plan = plan.keep();
                complex::call_before(&self.emitter(instr), plan);
                complex::call_after(&next, plan);
            }
        }
    }

    fn access(&self, instr: Instr, kind: u8, size: u32, todo: u8) -> Access {
        Access { site: self.site(instr), kind, size: size as u8, todo }
    }

    /// Sends the access to the cold path if `ea` may be PM.
    fn filtered(&mut self, instr: Instr, live: Live, ea: opnd_t, body: Body, pending: Option<bool>) {
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
            // SAFETY: the label is new, the instruction of this block.
            unsafe { instrlist_meta_postinsert(self.block, instr, back) };
        } else {
            e.put(back);
        }
        self.cold.push(Cold { entry, back, rcx_saved, body, pending });
    }

    /// A flush is always reported, of whatever memory.
    fn flush(&mut self, instr: Instr, kind: u8) {
        // SAFETY: a flush has its line as its first source.
        let line = unsafe { instr_get_src(instr, 0) };
        let computed = any_address(line).map(|(ea, _)| Address::Computed(ea));
        let constant = || constant_address(line).map(|(addr, _)| Address::Constant(addr));
        let Some(at) = computed.or_else(constant) else { return };
        let e = self.emitter(instr);
        let stub = if client().counts() { stubs::counted } else { stubs::flush };
        e.call_stub(stub, self.access(instr, kind, 1, mode::NOTHING), at);
        if kind != wire::CLFLUSH {
            e.store_slot_imm(slot::PENDING, 1);
        }
    }

    fn fence(&mut self, instr: Instr, kind: u8) {
        let e = self.emitter(instr);
        if client().plan.in_step || client().plan.follow > 0 {
            e.call_stub(stubs::paced, self.access(instr, 0, 0, mode::NOTHING), Address::Known);
        }
        e.call_stub(fence_stub(), self.access(instr, kind, 0, mode::NOTHING), Address::Known);
        e.store_slot_imm(slot::PENDING, 0);
    }

    /// An instruction that also orders as a fence does: reported only if something waits for one.
    fn fence_if_pending(&mut self, instr: Instr, kind: u8) {
        let e = self.emitter(instr);
        let (entry, none, back) = (e.label(), e.label(), e.label());
        e.store_slot(slot::SAVED, RCX);
        e.load_slot(RCX, slot::PENDING);
        e.jump_if_rcx_zero(none);
        e.jump(OP_jmp, entry);
        e.put(none);
        e.load_slot(RCX, slot::SAVED);
        e.put(back);
        let body = Body::Plain { stub: fence_stub(), access: self.access(instr, kind, 0, mode::NOTHING) };
        self.cold.push(Cold { entry, back, rcx_saved: true, body, pending: Some(false) });
    }

    /// Reports the instruction if its thread is followed.
    fn step(&mut self, instr: Instr) {
        let e = self.emitter(instr);
        let (entry, none, back) = (e.label(), e.label(), e.label());
        e.store_slot(slot::SAVED, RCX);
        e.load_slot(RCX, slot::FOLLOW);
        e.jump_if_rcx_zero(none);
        e.jump(OP_jmp, entry);
        e.put(none);
        e.load_slot(RCX, slot::SAVED);
        e.put(back);
        self.cold.push(Cold { entry, back, rcx_saved: true, body: Body::Step { instr }, pending: None });
    }

    fn shadow_call(&mut self, instr: Instr, live: Live) {
        let e = self.emitter(instr);
        let site = self.site(instr);
        with_register(&e, live, |r| e.push_frame(r, site));
    }

    fn shadow_return(&mut self, instr: Instr, live: Live) {
        let e = self.emitter(instr);
        // SAFETY: the instruction is of this block.
        let hooked = client().hooks.watches(unsafe { instr_get_app_pc(instr) } as u64);
        if !hooked {
            return with_register(&e, live, |r| e.pop_frame(r));
        }
        let (entry, none, back) = (e.label(), e.label(), e.label());
        e.store_slot(slot::SAVED, RCX);
        e.pop_frame(RCX);
        e.load_slot(RCX, slot::RETURN);
        // SAFETY: builds a plain value.
        let sum = unsafe { opnd_create_base_disp(DR_REG_RSP as reg_id_t, RCX, 1, 0, OPSZ_lea as opnd_size_t) };
        e.lea(RCX, sum);
        let skip = e.label();
        e.jump_if_rcx_zero(skip);
        e.jump(OP_jmp, none);
        e.put(skip);
        e.jump(OP_jmp, entry);
        e.put(none);
        e.load_slot(RCX, slot::SAVED);
        e.put(back);
        let body = Body::Plain { stub: stubs::returns, access: Access { site: 0, kind: 0, size: 0, todo: 0 } };
        self.cold.push(Cold { entry, back, rcx_saved: true, body, pending: None });
    }

    /// Puts the cold parts before the last instruction if that one leaves the block, else after it.
    fn place_cold(&mut self, last: Instr) {
        if self.cold.is_empty() {
            return;
        }
        // SAFETY: `last` is of this block.
        let leaves = unsafe { instr_is_cti(last) != 0 || instr_is_syscall(last) != 0 || instr_is_interrupt(last) != 0 };
        let e = self.emitter(if leaves { self.first_of(last) } else { std::ptr::null_mut() });
        let over = e.label();
        e.jump(OP_jmp, over);
        for cold in std::mem::take(&mut self.cold) {
            e.put(cold.entry);
            let follows = client().plan.follow > 0;
            let delays = client().plan.delays && matches!(cold.body, Body::Store { .. } | Body::Load { .. });
            // Where the target's rcx is in its slot, it only comes back if somebody needs it.
            let restore_rcx = || e.load_slot(RCX, slot::SAVED);
            match cold.body {
                Body::Plain { stub, access } => e.call_stub_with_rcx_saved(stub, access, Address::Known),
                Body::Store { access, ea, instr } => {
                    if !cold.rcx_saved {
                        e.store_slot(slot::SAVED, RCX);
                    } else if uses(ea, RCX) || follows {
                        restore_rcx();
                    }
                    if follows {
                        e.keep_address(Address::Computed(ea));
                        if reads_memory(instr) {
                            follow::call_loading(&e, instr, access);
                        }
                        follow::call_storing(&e, instr, access);
                    }
                    e.call_stub_with_rcx_saved(stubs::before, access, Address::Computed(ea));
                    if let Some(register) = streamed_register(instr).filter(|_| access.todo == mode::STREAM) {
                        e.save_value(register);
                    }
                    e.copy_of(instr);
                    e.call_after(writes(instr, RCX));
                    if self.is_stall(instr, false) {
                        e.call_again(stubs::stored, true);
                    }
                }
                Body::Load { access, ea, instr } => {
                    let mut at = Address::Computed(ea);
                    let mut rcx_saved = cold.rcx_saved;
                    if rcx_saved && (instr.is_some() || uses(ea, RCX) || follows) {
                        restore_rcx();
                    }
                    if let Some(instr) = instr.filter(|_| follows) {
                        e.keep_address(at);
                        rcx_saved = true;
                        follow::call_loading(&e, instr, access);
                    }
                    if let Some(instr) = instr {
                        if changes_address(instr, ea) {
                            e.keep_address(at);
                            rcx_saved = true;
                            at = Address::Known;
                        }
                        e.copy_of(instr);
                        rcx_saved &= !writes(instr, RCX);
                    }
                    if !rcx_saved {
                        e.store_slot(slot::SAVED, RCX);
                    }
                    e.call_stub_with_rcx_saved(stubs::load, access, at);
                }
                Body::Count { access, ea } => {
                    if !cold.rcx_saved {
                        e.store_slot(slot::SAVED, RCX);
                    } else if uses(ea, RCX) {
                        restore_rcx();
                    }
                    e.call_stub_with_rcx_saved(stubs::counted, access, Address::Computed(ea));
                }
                Body::Step { instr } => {
                    restore_rcx();
                    follow::call_step(&e, instr);
                }
                Body::Complex { plan, instr } => {
                    if cold.rcx_saved {
                        restore_rcx();
                    }
                    let plan = plan.keep();
                    complex::call_before(&e, plan);
                    e.copy_of(instr);
                    complex::call_after(&e, plan);
                }
            }
            if delays {
                e.call_again(stubs::delayed, true);
            }
            if let Some(pending) = cold.pending {
                e.store_slot_imm(slot::PENDING, pending.into());
            }
            e.jump(OP_jmp, cold.back);
        }
        e.put(over);
    }

    /// The first instruction of ours that belongs to `instr`: where its instrumentation starts.
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

fn fence_stub() -> extern "C" fn() {
    if client().counts() { stubs::counted_fence } else { stubs::fence }
}

/// Runs `body` with a register it may change.
fn with_register(e: &Emitter, live: Live, body: impl FnOnce(reg_id_t)) {
    match live.dead_register() {
        Some(scratch) => body(scratch),
        None => {
            e.store_slot(slot::SAVED, RCX);
            body(RCX);
            e.load_slot(RCX, slot::SAVED);
        }
    }
}

/// Whether an instruction writes a register that an address is made of.
fn changes_address(instr: Instr, ea: opnd_t) -> bool {
    // SAFETY: queries of a value.
    unsafe { (0..opnd_num_regs_used(ea)).any(|i| writes(instr, opnd_get_reg_used(ea, i))) }
}

/// Whether an instruction may write any part of a register.
fn writes(instr: Instr, register: reg_id_t) -> bool {
    // SAFETY: a query of a valid instruction.
    unsafe { instr_writes_to_reg(instr, register, _dr_opnd_query_flags_t_DR_QUERY_INCLUDE_ALL) != 0 }
}

fn reads_memory(instr: Instr) -> bool {
    // SAFETY: a query of a valid instruction.
    unsafe { instr_reads_memory(instr) != 0 }
}

fn uses(operand: opnd_t, register: reg_id_t) -> bool {
    // SAFETY: a query of a value.
    unsafe { opnd_uses_reg(operand, register) != 0 }
}

/// A compare-and-exchange is taken for failed until its flags say otherwise.
fn rmw_kind(op: u32) -> u8 {
    if matches!(op, OP_cmpxchg | OP_cmpxchg8b) { wire::RMW_FAILED } else { wire::RMW }
}

/// A memory operand whose address is part of the instruction, and its size.
fn constant_address(operand: opnd_t) -> Option<(u64, u32)> {
    // SAFETY: plain queries of a value.
    unsafe {
        let constant = opnd_is_rel_addr(operand) != 0 || opnd_is_abs_addr(operand) != 0;
        let segment = constant.then(|| opnd_get_segment(operand))?;
        let local = segment == DR_SEG_FS as reg_id_t || segment == DR_SEG_GS as reg_id_t;
        let size = opnd_size_in_bytes(opnd_get_size(operand));
        (!local).then(|| (opnd_get_addr(operand) as u64, size))
    }
}

/// Address and size of a memory operand that may be PM.
fn effective_address(operand: opnd_t) -> Option<(opnd_t, u32)> {
    let found = any_address(operand)?;
    // SAFETY: plain queries of a value.
    unsafe {
        let stack = opnd_get_base(operand) == DR_REG_RSP as reg_id_t;
        (!stack).then_some(found)
    }
}

/// Address and size of a memory operand with a base or index register.
pub(crate) fn any_address(operand: opnd_t) -> Option<(opnd_t, u32)> {
    // SAFETY: plain queries of a value.
    unsafe {
        if opnd_is_base_disp(operand) == 0 {
            return None;
        }
        let segment = opnd_get_segment(operand);
        if segment == DR_SEG_FS as reg_id_t || segment == DR_SEG_GS as reg_id_t {
            return None;
        }
        let (base, index) = (opnd_get_base(operand), opnd_get_index(operand));
        let none = DR_REG_NULL as reg_id_t;
        if base == none && index == none {
            return None;
        }
        let size = opnd_size_in_bytes(opnd_get_size(operand));
        let ea = opnd_create_base_disp(
            base,
            index,
            opnd_get_scale(operand),
            opnd_get_disp(operand),
            OPSZ_lea as opnd_size_t,
        );
        Some((ea, size))
    }
}

/// The register that a non-temporal store takes its value from.
fn streamed_register(instr: Instr) -> Option<reg_id_t> {
    // SAFETY: queries of a valid instruction, which has at least one source.
    unsafe {
        let source = instr_get_src(instr, 0);
        let register = (opnd_is_reg(source) != 0).then(|| opnd_get_reg(source))?;
        (reg_is_gpr(register) != 0 || complex::reg_is_vector(register)).then_some(register)
    }
}

fn is_non_temporal(op: u32) -> bool {
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
