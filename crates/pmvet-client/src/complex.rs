//! Instructions whose addresses or lengths only show at run time: repeated string instructions, masked and scattered
//! vector accesses, bit strings. They are rare, so they take DynamoRIO's own (slow, complete) way into Rust, once
//! before and once after the target's instruction.

#![allow(non_upper_case_globals, reason = "DynamoRIO's names in patterns")]

use core::ffi::c_void;

use dynamorio_sys::*;

use pmvet_events::event::{LINE, StoreKind, What};
use pmvet_events::ids::SiteId;
use pmvet_events::wire::MAX_DATA;

use crate::emit::{Emitter, Instr};
use crate::ffi::*;
use crate::instrument::any_address;
use crate::thread::{Thread, mode, slot};
use crate::{client, dr};

/// How the ranges of an access are found.
#[derive(Debug, Clone, Copy)]
enum Shape {
    /// `rep movs`, `rep stos` and their like: count in rcx, direction in the flags.
    Repeated { size: u32, store: bool },
    /// An AVX-512 access with an opmask: elements whose bit is set.
    Masked { element: u32 },
    /// An AVX-512 compressing store: as many elements as bits are set.
    Compressed { element: u32 },
    /// Elements whose top bit is set in a vector register (`vmaskmov`, `maskmovdqu`).
    VectorMasked { element: u32, mask: reg_id_t },
    /// One element per index of a vector register, whose indices are 8 bytes wide or 4.
    Indexed { element: u32, wide: bool, lanes: u32, mask: Option<reg_id_t> },
    /// A bit test whose bit number, in a register, reaches beyond the operand.
    BitString { size: u32, number: reg_id_t },
    /// `movdir64b`: the destination is in a register.
    Direct { to: reg_id_t },
    /// State that only the machine understands.
    Opaque { why: &'static str },
}

/// What to do for one such instruction of the target.
#[derive(Debug)]
pub(crate) struct Complex {
    shape: Shape,
    memory: opnd_t,
    /// What `movdir64b` loads.
    source: Option<opnd_t>,
    /// Whether a repeated instruction reads by rsi, and by rdi.
    reads: [bool; 2],
    store: bool,
    load: bool,
    locked: bool,
    opmask: Option<u32>,
    size: u32,
    site: u32,
}

impl Complex {
    pub(crate) fn of(instr: Instr, op: u32, site: u32) -> Option<Self> {
        // SAFETY: queries of a valid instruction, indices in range.
        unsafe {
            let dsts: Vec<_> = (0..instr_num_dsts(instr)).map(|i| instr_get_dst(instr, i as u32)).collect();
            let srcs: Vec<_> = (0..instr_num_srcs(instr)).map(|i| instr_get_src(instr, i as u32)).collect();
            let is_memory = |o: &&opnd_t| opnd_is_base_disp(**o) != 0;
            let to = dsts.iter().find(is_memory).copied();
            let from = srcs.iter().find(is_memory).copied();
            let memory = to.or(from)?;
            let size = opnd_size_in_bytes(opnd_get_size(memory));
            let register = |o: &opnd_t| (opnd_is_reg(*o) != 0).then(|| opnd_get_reg(*o));
            let opmask = srcs.iter().filter_map(register).find(|&r| reg_is_opmask(r) != 0);
            let opmask = opmask.map(|r| u32::from(r) - DR_REG_K0).filter(|&k| k != 0);
            let name = std::ffi::CStr::from_ptr(decode_opcode_name(op as i32)).to_string_lossy();
            let repeated = |size, store| Some(Shape::Repeated { size, store });

            let shape = match op {
                OP_rep_stos => repeated(size, true),
                OP_rep_movs => repeated(size, true),
                OP_rep_lods | OP_rep_cmps | OP_repne_cmps | OP_rep_scas | OP_repne_scas => repeated(size, false),
                OP_maskmovdqu | OP_maskmovq | OP_vmaskmovdqu => {
                    let mask = srcs.iter().filter_map(register).filter(|&r| reg_is_gpr(r) == 0).nth(1)?;
                    Some(Shape::VectorMasked { element: 1, mask })
                }
                OP_vmaskmovps | OP_vmaskmovpd | OP_vpmaskmovd | OP_vpmaskmovq => {
                    let element = if matches!(op, OP_vmaskmovps | OP_vpmaskmovd) { 4 } else { 8 };
                    // DynamoRIO lists the mask of an integer store after its data, of others before.
                    let integer_store = matches!(op, OP_vpmaskmovd | OP_vpmaskmovq) && to.is_some();
                    let mask = srcs.iter().filter_map(register).nth(integer_store.into())?;
                    Some(Shape::VectorMasked { element, mask })
                }
                OP_bts | OP_btr | OP_btc | OP_bt => srcs
                    .iter()
                    .filter_map(register)
                    .find(|&r| reg_is_gpr(r) != 0 && opnd_uses_reg(memory, r) == 0)
                    .or_else(|| srcs.iter().filter_map(register).next())
                    .map(|number| Shape::BitString { size, number }),
                OP_movdir64b => Some(Shape::Direct { to: base_of(to?) }),
                OP_xsave32 | OP_xsave64 | OP_xsaveopt32 | OP_xsaveopt64 | OP_xsavec32 | OP_xsavec64 | OP_fxsave32
                | OP_fxsave64 | OP_fnsave => {
                    Some(Shape::Opaque { why: "saved processor state: which bytes are written is up to the machine" })
                }
                OP_enqcmd | OP_enqcmds => Some(Shape::Opaque { why: "enqueue stores go to devices" }),
                _ if reg_is_vector(opnd_get_index(memory)) => {
                    let vectors = dsts.iter().chain(&srcs).filter_map(register).filter(|&r| reg_is_vector(r));
                    indexed(&name, opnd_get_index(memory), vectors.collect(), opmask.is_none())
                }
                _ if opmask.is_some() && name.contains("compress") => {
                    Some(Shape::Compressed { element: element(&name) })
                }
                _ if opmask.is_some() => Some(Shape::Masked { element: element(&name) }),
                _ if size > 64 && to.is_some() => Some(Shape::Opaque { why: "wider than a vector register" }),
                _ => None,
            }?;
            let store = to.is_some();
            let locked = instr_get_prefix_flag(instr, 1) != 0;
            let load = client().plan.loads && from.is_some() && !locked;
            let memory = match shape {
                Shape::Repeated { store: false, .. } => from?,
                _ => memory,
            };
            let by = |r: u32| srcs.iter().filter(is_memory).any(|o| opnd_get_base(*o) == r as reg_id_t);
            let reads = [by(DR_REG_RSI), by(DR_REG_RDI)];
            let ignorable = !store && !load;
            (!ignorable).then_some(Self { shape, memory, source: from, reads, store, load, locked, opmask, size, site })
        }
    }

    /// The address where the access starts, if that alone tells whether it may be PM.
    pub(crate) fn start(&self) -> Option<opnd_t> {
        match self.shape {
            // Two addresses, each of which may be PM.
            Shape::Repeated { .. } if self.load => None,
            Shape::Repeated { .. } | Shape::Masked { .. } | Shape::Compressed { .. } | Shape::VectorMasked { .. } => {
                any_address(self.memory).map(|(ea, _)| ea)
            }
            Shape::Indexed { .. } | Shape::BitString { .. } | Shape::Direct { .. } | Shape::Opaque { .. } => None,
        }
    }

    /// Makes it live as long as the code cache may refer to it: for ever, as blocks come back.
    pub(crate) fn stores(&self) -> bool {
        self.store
    }

    pub(crate) fn keep(self) -> &'static Self {
        Box::leak(Box::new(self))
    }

    /// The ranges that the instruction is about to access.
    fn ranges(&self, registers: &dr_mcontext_t) -> Vec<(u64, u32)> {
        let registers = std::ptr::from_ref(registers).cast_mut();
        // SAFETY: `registers` is a full machine context; DynamoRIO only reads it here.
        unsafe {
            let at = opnd_compute_address(self.memory, registers) as u64;
            let value = |r: reg_id_t| reg_get_value(reg_to_pointer_sized(r), registers);
            match self.shape {
                Shape::Repeated { size, .. } => repeated_range(at, size, &*registers).into_iter().collect(),
                Shape::Masked { element } => {
                    let mask = (*registers).opmask[self.opmask.unwrap_or(0) as usize];
                    runs(at, element, self.size / element, |i| mask >> i & 1 != 0)
                }
                Shape::Compressed { element } => {
                    let lanes = self.size / element;
                    let mask = (*registers).opmask[self.opmask.unwrap_or(0) as usize];
                    let count = (mask & (u64::MAX >> (64 - lanes.min(64)))).count_ones();
                    vec![(at, count * element)]
                }
                Shape::VectorMasked { element, mask } => {
                    let mut bytes = [0u8; 64];
                    reg_get_value_ex(mask, registers, bytes.as_mut_ptr());
                    let top = |i: u32| bytes[((i + 1) * element - 1) as usize & 63] & 0x80 != 0;
                    runs(at, element, self.size.min(64) / element, top)
                }
                Shape::Indexed { element, wide, lanes, mask } => {
                    let mut index = [0u8; 64];
                    reg_get_value_ex(opnd_get_index(self.memory), registers, index.as_mut_ptr());
                    let mut signs = [0u8; 64];
                    if let Some(mask) = mask {
                        reg_get_value_ex(mask, registers, signs.as_mut_ptr());
                    }
                    let active = |lane: u32| match (self.opmask, mask) {
                        (Some(k), _) => (*registers).opmask[k as usize] >> lane & 1 != 0,
                        (None, Some(_)) => signs[((lane + 1) * element - 1) as usize & 63] & 0x80 != 0,
                        (None, None) => true,
                    };
                    let base = opnd_get_base(self.memory);
                    let base = if base == DR_REG_NULL as reg_id_t { 0 } else { value(base) };
                    let address = |lane: u32| {
                        let at = lane as usize * if wide { 8 } else { 4 };
                        let word = u64::from_le_bytes(index[at.min(56)..at.min(56) + 8].try_into().unwrap_or_default());
                        let number = match (wide, at > 56) {
                            (true, _) => word as i64,
                            (false, false) => i64::from(word as i32),
                            (false, true) => i64::from((word >> 32) as i32),
                        };
                        let scaled = number.wrapping_mul(opnd_get_scale(self.memory).into());
                        base.wrapping_add_signed(scaled.wrapping_add(opnd_get_disp(self.memory).into()))
                    };
                    (0..lanes).filter(|&i| active(i)).map(|i| (address(i), element)).collect()
                }
                Shape::BitString { size, number } => {
                    let bits = i64::from(size) * 8;
                    let number = match opnd_size_in_bytes(reg_get_size(number)) {
                        2 => i64::from(value(number) as i16),
                        4 => i64::from(value(number) as i32),
                        _ => value(number) as i64,
                    };
                    vec![(at.wrapping_add_signed(number.div_euclid(bits) * i64::from(size)), size)]
                }
                Shape::Direct { to } => vec![(value(to), 64)],
                Shape::Opaque { .. } => vec![(at, self.size.max(1))],
            }
        }
    }
}

fn base_of(operand: opnd_t) -> reg_id_t {
    // SAFETY: a query of a memory operand.
    unsafe { opnd_get_base(operand) }
}

pub(crate) fn reg_is_vector(reg: reg_id_t) -> bool {
    // SAFETY: a query of a register number.
    unsafe { reg_is_strictly_xmm(reg) != 0 || reg_is_strictly_ymm(reg) != 0 || reg_is_strictly_zmm(reg) != 0 }
}

/// The element size of a masked instruction, from its name: `vmovdqu16`, `vpmovqb`, `vmovapd`, `vextractf32x4`.
fn element(name: &str) -> u32 {
    let narrowing = name.starts_with("vpmov") && !name.starts_with("vpmovm");
    if let Some(kind) = name.strip_prefix("vpcompress") {
        return match kind {
            "b" => 1,
            "w" => 2,
            "d" => 4,
            _ => 8,
        };
    }
    if narrowing && name.ends_with('b') {
        return 1;
    }
    if narrowing && name.ends_with('d') {
        return 4;
    }
    if name.contains("64x") {
        return 8;
    }
    if name.contains("32x") {
        return 4;
    }
    match name {
        n if n.ends_with("2ph") => 2,
        n if n.ends_with("16") || n.ends_with('w') || n.ends_with("sh") => 2,
        n if n.ends_with("32") || n.ends_with("ps") || n.ends_with("ss") => 4,
        n if n.ends_with("64") || n.ends_with("pd") || n.ends_with("sd") || n.ends_with('q') => 8,
        n if n.ends_with('8') => 1,
        _ => 4,
    }
}

/// The shape of a gather or scatter: `vpscatterdq` stores q by indices of d, `vgatherqps` loads s by indices of q.
fn indexed(name: &str, index: reg_id_t, vectors: Vec<reg_id_t>, vector_masked: bool) -> Option<Shape> {
    let element = if name.ends_with('q') || name.ends_with("pd") { 8 } else { 4 };
    let kind = name.split("gather").nth(1).or_else(|| name.split("scatter").nth(1))?;
    let wide = kind.starts_with('q');
    // SAFETY: a query of a register number.
    let bytes = |r: reg_id_t| unsafe { opnd_size_in_bytes(reg_get_size(r)) };
    let data = vectors.iter().copied().find(|&r| r != index)?;
    let lanes = (bytes(data) / element).min(bytes(index) / if wide { 8 } else { 4 });
    // An AVX2 gather has its mask in a third vector register.
    let mask = vectors.iter().copied().find(|&r| vector_masked && r != index && r != data);
    Some(Shape::Indexed { element, wide, lanes, mask })
}

/// Neighbouring active elements, as ranges.
fn runs(at: u64, element: u32, lanes: u32, active: impl Fn(u32) -> bool) -> Vec<(u64, u32)> {
    let mut ranges: Vec<(u64, u32)> = Vec::new();
    for lane in (0..lanes).filter(|&i| active(i)) {
        let start = at + u64::from(lane * element);
        match ranges.last_mut() {
            Some((from, len)) if *from + u64::from(*len) == start => *len += element,
            _ => ranges.push((start, element)),
        }
    }
    ranges
}

fn repeated_range(at: u64, size: u32, registers: &dr_mcontext_t) -> Option<(u64, u32)> {
    const DIRECTION: u64 = 1 << 10;
    // SAFETY: reads plain integers out of unions of integers.
    let (count, flags) = unsafe { (registers.__bindgen_anon_7.rcx, registers.__bindgen_anon_9.rflags) };
    let len = u32::try_from(count.checked_mul(size.into())?).ok()?;
    let start = if flags & DIRECTION != 0 { at.wrapping_add(size.into()).wrapping_sub(len.into()) } else { at };
    (len != 0).then_some((start, len))
}

/// Inserts the call before the instruction.
pub(crate) fn call_before(e: &Emitter, plan: &'static Complex) {
    call(e, before, plan);
}

/// Inserts the call after it.
pub(crate) fn call_after(e: &Emitter, plan: &'static Complex) {
    if plan.store {
        call(e, after, plan);
    }
}

fn call(e: &Emitter, callback: unsafe extern "C" fn(*const Complex), plan: &'static Complex) {
    // SAFETY: the list is of the block under construction; the callback takes one pointer.
    unsafe {
        let argument = opnd_create_immed_int(std::ptr::from_ref(plan) as i64, OPSZ_8 as opnd_size_t);
        dr_insert_clean_call(e.dc, e.block, e.at, callback as *mut c_void, 0, 1, argument);
    }
}

unsafe extern "C" fn before(plan: *const Complex) {
    if client().pm.is_empty() {
        return;
    }
    // SAFETY: `insert` passes a plan that lives for ever.
    let plan = unsafe { &*plan };
    let registers = dr::registers();
    let thread = Thread::current();
    // SAFETY: reads a plain integer out of a union of integers.
    let sp = unsafe { registers.__bindgen_anon_4.rsp };
    thread.rsp = sp;
    let pm_parts = |ranges: Vec<(u64, u32)>| -> Vec<(u64, u32)> {
        let parts = ranges.into_iter().flat_map(|(at, len)| {
            let mut parts = client().pm.overlaps(at, len.into());
            parts.reverse();
            parts.into_iter().map(|m| (m.start, (m.end - m.start) as u32))
        });
        parts.collect()
    };
    if plan.load {
        let from = match plan.shape {
            Shape::Repeated { size, store: true, .. } => {
                // SAFETY: as above.
                let rsi = unsafe { registers.__bindgen_anon_2.rsi };
                repeated_range(rsi, size, &registers).into_iter().collect()
            }
            Shape::Direct { .. } => {
                let registers = std::ptr::from_ref(&*registers).cast_mut();
                // SAFETY: a full machine context, which is only read.
                let at = |from| unsafe { opnd_compute_address(from, registers) } as u64;
                plan.source.map(|from| (at(from), 64)).into_iter().collect()
            }
            Shape::Repeated { size, store: false } => {
                // SAFETY: as above.
                let (rsi, rdi) = unsafe { (registers.__bindgen_anon_2.rsi, registers.__bindgen_anon_1.rdi) };
                let starts = [rsi, rdi].into_iter().zip(plan.reads);
                let starts = starts.filter(|&(_, reads)| reads).map(|(at, _)| at);
                starts.filter_map(|at| repeated_range(at, size, &registers)).collect()
            }
            _ => plan.ranges(&registers),
        };
        let context = thread.context(sp);
        for (addr, size) in pm_parts(from) {
            // Line by line: a record has a byte for the size.
            let end = addr + u64::from(size);
            let mut at = addr;
            while at < end {
                let next = end.min((at | (LINE - 1)) + 1);
                thread.emit_at(SiteId(plan.site), context, What::Load { addr: at, size: (next - at) as u32 });
                at = next;
            }
        }
    }
    if !plan.store {
        return;
    }
    let ranges = pm_parts(plan.ranges(&registers));
    if ranges.is_empty() {
        return;
    }
    if let Shape::Opaque { why } = plan.shape {
        let context = thread.context(sp);
        for (addr, size) in ranges {
            thread.emit_at(SiteId(plan.site), context, What::Unsupported { addr, size, why });
        }
        return;
    }
    thread.lock_ranges(&ranges);
    let (first, len) = ranges[0];
    thread.note_in_flight(first, len.into());
    if plan.locked {
        dr::read_memory(first, &mut thread.old_value[..(len as usize).min(16)]);
    }
    thread.ranges = ranges;
    thread.site = plan.site;
    thread.mode = mode::SLOW;
}

unsafe extern "C" fn after(plan: *const Complex) {
    let thread = Thread::current();
    if thread.ranges.is_empty() {
        return;
    }
    // SAFETY: as in `before`.
    let plan = unsafe { &*plan };
    let streaming = matches!(plan.shape, Shape::Direct { .. } | Shape::VectorMasked { element: 1, .. });
    thread.report_ranges(if streaming { StoreKind::NonTemporal } else { StoreKind::Regular }, plan.locked);
    if streaming {
        thread.set_slot(slot::PENDING, 1);
    }
}

impl Thread {
    /// Reports the stores to `ranges`, with the values that are there now, and ends the access.
    fn report_ranges(&mut self, how: StoreKind, locked: bool) {
        let context = self.context(self.rsp);
        let site = SiteId(self.site);
        for (addr, len) in std::mem::take(&mut self.ranges) {
            if locked {
                let size = (len as usize).min(16);
                let (old, mut new) = (self.old_value, [0; 16]);
                dr::read_memory(addr, &mut new[..size]);
                self.emit_at(site, context, What::Rmw { addr, old: &old[..size], new: &new[..size], stored: true });
            } else {
                self.report_memory(site, context, addr, len.into(), how);
            }
        }
        self.finish_access();
    }

    /// Reports what `len` bytes at `addr` hold now as stored there.
    pub(crate) fn report_memory(
        &mut self,
        site: SiteId,
        context: pmvet_events::ids::ContextId,
        addr: u64,
        len: u64,
        how: StoreKind,
    ) {
        let mut value = [0; MAX_DATA];
        let mut done = 0;
        while done < len {
            // Chunks end at multiples of the chunk size, so that a line is never split.
            let at = addr + done;
            let room = MAX_DATA as u64 - at % MAX_DATA as u64;
            let chunk = (len - done).min(room) as usize;
            let read = dr::read_memory(at, &mut value[..chunk]);
            if read == 0 {
                return;
            }
            self.emit_at(site, context, What::Store { addr: at, value: &value[..read], how });
            done += read as u64;
        }
    }

    /// The target's instruction faulted after it had done a part: a repeated string instruction that came to `rdi`.
    pub(crate) fn report_partial(&mut self, rdi: u64) {
        for (start, len) in &mut self.ranges {
            *len = rdi.clamp(*start, *start + u64::from(*len)).wrapping_sub(*start) as u32;
        }
        self.ranges.retain(|r| r.1 != 0);
        if !self.ranges.is_empty() {
            self.report_ranges(StoreKind::Regular, false);
        }
    }
}
