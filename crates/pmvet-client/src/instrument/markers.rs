//! Markers: requests that a target sends on purpose, through `pmvet.h` or Valgrind's client requests.
//!
//! Both are the same instruction sequence, which does nothing when it runs on a processor: four rotations of `rdi` that
//! cancel out and `xchg rbx, rbx`, with `rax` pointing to six words. The first word is the request.

#![allow(non_upper_case_globals, reason = "DynamoRIO's names in patterns")]

use core::ffi::c_void;

use pmvet_events::event::{MarkerKind, What};
use pmvet_events::ids::SiteId;

use crate::dynamorio;
use crate::dynamorio::bindings::*;
use crate::dynamorio::emitter::{Emitter, immediate};
use crate::dynamorio::instructions::{Instr, app_pc};
use crate::record::sites::SITES;
use crate::record::thread::Thread;

/// `rol rdi, 3; rol rdi, 13; rol rdi, 61; rol rdi, 51` and `xchg rbx, rbx`.
const SEQUENCE: [u8; 19] =
    [0x48, 0xc1, 0xc7, 3, 0x48, 0xc1, 0xc7, 13, 0x48, 0xc1, 0xc7, 61, 0x48, 0xc1, 0xc7, 51, 0x48, 0x87, 0xdb];

/// The first request of `pmvet.h`: the tool "PV" and a number.
const PMVET: u64 = (b'P' as u64) << 24 | (b'V' as u64) << 16;
/// pmemcheck's request to log a text, which pmreorder reads its markers from.
const PMEMCHECK_LOG: u64 = ((b'P' as u64) << 24 | (b'C' as u64) << 16) + 30;

/// DynamoRIO takes the sequence for a Valgrind request. It replaces it by a label and a placeholder and answers it as
/// Valgrind would. The target must see what it would see alone, so this removes both. Returns the instruction that is at
/// the place of `instr` now.
pub(crate) fn restore_sequence(dc: *mut c_void, block: *mut instrlist_t, instr: Instr) -> Instr {
    // SAFETY: list and instruction are of the block under construction, and ours to change.
    unsafe {
        let pc = instr_get_app_pc(instr);
        let note = instr_get_note(instr);
        if note.is_null() || !follows_sequence(pc as u64) {
            return instr;
        }
        let label = instr_get_prev(instr);
        if !label.is_null() && instr_is_label(label) != 0 && instr_get_note(label) == note {
            instrlist_remove(block, label);
            instr_destroy(dc, label);
        }
        let nop = instr_create_0dst_0src(dc, OP_nop as i32);
        instr_set_translation(nop, pc);
        instrlist_replace(block, instr, nop);
        instr_destroy(dc, instr);
        nop
    }
}

fn follows_sequence(pc: u64) -> bool {
    let tail = 3;
    let mut code = [0; SEQUENCE.len()];
    let start = pc + tail - SEQUENCE.len() as u64;
    dynamorio::read_memory(start, &mut code) == code.len() && code == SEQUENCE
}

/// Whether the instruction is the end of a request.
pub(crate) fn is_marker(instr: Instr, op: u32) -> bool {
    matches!(op, OP_nop | OP_xchg) && follows_sequence(app_pc(instr))
}

/// Inserts the call that reports the request. The emitter stands at its instruction.
pub(crate) fn insert(e: &Emitter, instr: Instr) {
    let site = immediate(SITES.id_at(app_pc(instr)).into(), OPSZ_4);
    // SAFETY: the callback takes one word.
    unsafe { e.clean_call(marker as *mut c_void, site) };
}

unsafe extern "C" fn marker(site: u32) {
    let registers = dynamorio::registers();
    // SAFETY: reads plain integers out of unions of integers.
    let (at, sp) = unsafe { (registers.__bindgen_anon_8.rax, registers.__bindgen_anon_4.rsp) };
    let words: Vec<u64> = (0..4).map_while(|i| dynamorio::read_word(at + i * 8)).collect();
    let &[request, a, b, c] = words.as_slice() else { return };
    let (how, addr, len, text) = if request == PMEMCHECK_LOG {
        (MarkerKind::Log, 0, 0, a)
    } else if request & !0xffff == PMVET {
        let Some(how) = MarkerKind::from_number(request as u8) else { return };
        (how, a, b, c)
    } else {
        return;
    };
    let text = if text == 0 { Vec::new() } else { dynamorio::read_c_string(text).unwrap_or_default() };
    let text = String::from_utf8_lossy(&text);
    // pmreorder's convention.
    let (how, text) = match (how, text.strip_suffix(".BEGIN"), text.strip_suffix(".END")) {
        (MarkerKind::Log, Some(name), _) => (MarkerKind::Begin, name),
        (MarkerKind::Log, _, Some(name)) => (MarkerKind::End, name),
        _ => (how, &*text),
    };
    let thread = Thread::current();
    let context = thread.context(sp);
    thread.emit_at(SiteId(site), context, What::Marker { how, addr, len, text });
}
