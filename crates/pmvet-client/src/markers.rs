//! Markers: requests that a target sends on purpose, through `pmvet.h` or Valgrind's client requests.
//!
//! Both are the same instruction sequence, which does nothing when it runs on a processor: four rotations of `rdi` that
//! cancel out and `xchg rbx, rbx`, with `rax` pointing to six words. The first word says what is asked for.

use core::ffi::c_void;

use dynamorio_sys::*;
use pmvet_events::event::{MarkerKind, What};
use pmvet_events::ids::SiteId;

use crate::emit::{Emitter, Instr};
use crate::thread::Thread;
use crate::{client, dr};

/// `rol rdi, 3; rol rdi, 13; rol rdi, 61; rol rdi, 51` and `xchg rbx, rbx`.
const SEQUENCE: [u8; 19] = [
    0x48, 0xc1, 0xc7, 3, 0x48, 0xc1, 0xc7, 13, 0x48, 0xc1, 0xc7, 61, 0x48, 0xc1, 0xc7, 51, 0x48, 0x87, 0xdb,
];

/// The first request of `pmvet.h`: the tool "PV" and a number.
const PMVET: u64 = (b'P' as u64) << 24 | (b'V' as u64) << 16;
/// pmemcheck's request to log a text, which pmreorder reads its markers from.
const PMEMCHECK_LOG: u64 = ((b'P' as u64) << 24 | (b'C' as u64) << 16) + 11;

pub(crate) fn is_marker(instr: Instr, op: u32) -> bool {
    if op != OP_xchg {
        return false;
    }
    // SAFETY: a query of a valid instruction.
    let end = unsafe { instr_get_app_pc(instr) } as u64 + 3;
    let mut code = [0; SEQUENCE.len()];
    dr::read_memory(end - SEQUENCE.len() as u64, &mut code) == code.len() && code == SEQUENCE
}

pub(crate) fn insert(e: &Emitter, instr: Instr) {
    // SAFETY: list and instruction are of the block under construction; the callback takes one word.
    unsafe {
        let site = client().sites.of(instr_get_app_pc(instr) as u64);
        let site = opnd_create_immed_int(site.into(), OPSZ_4 as opnd_size_t);
        dr_insert_clean_call(e.dc, e.block, instr, marker as *mut c_void, 0, 1, site);
    }
}

unsafe extern "C" fn marker(site: u32) {
    let registers = dr::registers();
    // SAFETY: reads plain integers out of unions of integers.
    let (at, sp) = unsafe { (registers.__bindgen_anon_8.rax, registers.__bindgen_anon_4.rsp) };
    let words: Vec<u64> = (0..4).map_while(|i| dr::read_word(at + i * 8)).collect();
    let &[request, a, b, c] = words.as_slice() else { return };
    let (how, addr, len, text) = if request == PMEMCHECK_LOG {
        (MarkerKind::Log, 0, 0, a)
    } else if request & !0xffff == PMVET {
        let Some(how) = MarkerKind::from_number(request as u8) else { return };
        (how, a, b, c)
    } else {
        return;
    };
    let text = if text == 0 { Vec::new() } else { dr::read_c_string(text).unwrap_or_default() };
    let text = String::from_utf8_lossy(&text);
    let thread = Thread::current();
    let context = thread.context(sp);
    thread.emit_at(SiteId(site), context, What::Marker { how, addr, len, text: &text });
}
