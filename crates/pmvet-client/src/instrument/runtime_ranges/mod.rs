//! Instructions whose memory ranges are known only at run time: repeated string instructions, masked and scattered vector
//! accesses, bit strings.
//!
//! They are rare, so they go through DynamoRIO's own clean calls, which are slow and complete, once before and once after the
//! target's instruction. This file has what is known when the block is made; [`ranges`] finds the ranges at run time,
//! and [`callbacks`] reports them.

#![allow(non_upper_case_globals, reason = "DynamoRIO's names in patterns")]

mod callbacks;
mod ranges;

use crate::dynamorio::bindings::*;
use crate::dynamorio::instructions::{self, Instr, computed_address, is_vector_register};
use crate::run::run;

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
pub(crate) struct RuntimeRanges {
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

impl RuntimeRanges {
    /// What an instruction accesses, if that is known only at run time and of interest.
    pub(crate) fn decode(instr: Instr, op: u32, site: u32) -> Option<Self> {
        // SAFETY: queries of a valid instruction, indices in range.
        unsafe {
            let (dsts, srcs) = (instructions::destinations(instr), instructions::sources(instr));
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
                _ if is_vector_register(opnd_get_index(memory)) => {
                    let vectors = dsts.iter().chain(&srcs).filter_map(register).filter(|&r| is_vector_register(r));
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
            let locked = instructions::has_lock_prefix(instr);
            let load = run().plan.loads && from.is_some() && !locked;
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
                computed_address(self.memory).map(|(ea, _)| ea)
            }
            Shape::Indexed { .. } | Shape::BitString { .. } | Shape::Direct { .. } | Shape::Opaque { .. } => None,
        }
    }

    /// Whether the instruction stores.
    pub(crate) fn stores(&self) -> bool {
        self.store
    }

    /// Makes it live as long as the code cache may refer to it: forever, as blocks come back.
    pub(crate) fn keep(self) -> &'static Self {
        Box::leak(Box::new(self))
    }
}

fn base_of(operand: opnd_t) -> reg_id_t {
    // SAFETY: a query of a memory operand.
    unsafe { opnd_get_base(operand) }
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
