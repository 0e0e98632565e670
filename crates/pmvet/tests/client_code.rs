//! The client keeps only part of the target's registers while its own code runs: that code must leave the rest alone.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

use iced_x86::{Decoder, DecoderOptions, EncodingKind, Instruction};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

/// Chooses its instructions when it runs. Only the search for functions in a module uses it, outside of any stub.
const KNOWN: &str = "memchr";

/// Whether an instruction may change more than code for any x86-64 would.
fn goes_beyond(instruction: &Instruction) -> bool {
    let registers = || (0..instruction.op_count()).map(|i| instruction.op_register(i));
    let vectors = registers().any(|r| r.is_xmm() || r.is_ymm() || r.is_zmm() || r.is_k());
    vectors && instruction.encoding() != EncodingKind::Legacy || registers().any(|r| r.is_st() || r.is_mm())
}

#[test]
fn upper_halves_masks_and_floating_point_are_left_alone() {
    let client = Path::new(env!("CARGO_BIN_EXE_pmvet")).with_file_name("libpmvet_client.so");
    let bytes = std::fs::read(client).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let text = file.section_by_name(".text").unwrap();
    let (start, code) = (text.address(), text.data().unwrap());
    let mut functions = 0;
    for symbol in file.symbols().filter(|s| s.kind() == SymbolKind::Text && s.size() > 0) {
        let Some(at) = symbol.address().checked_sub(start).filter(|at| at + symbol.size() <= code.len() as u64) else {
            continue;
        };
        let name = symbol.name().unwrap();
        if name.contains(KNOWN) {
            continue;
        }
        functions += 1;
        let body = &code[at as usize..(at + symbol.size()) as usize];
        for instruction in Decoder::with_ip(64, body, symbol.address(), DecoderOptions::NONE) {
            assert!(!goes_beyond(&instruction), "{name} at {:#x}: {:?}", instruction.ip(), instruction.code());
        }
    }
    assert!(functions > 500, "only {functions} functions: the client has lost its symbols");
}

#[test]
fn no_function_of_the_c_library_moves_bytes() {
    let client = Path::new(env!("CARGO_BIN_EXE_pmvet")).with_file_name("libpmvet_client.so");
    let bytes = std::fs::read(client).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let foreign: Vec<_> = file.dynamic_symbols().filter(|s| s.is_undefined()).map(|s| s.name().unwrap()).collect();
    assert!(foreign.contains(&"dr_get_current_drcontext"));
    let moves =
        |name: &str| ["mem", "__mem", "str", "wcs", "bcmp", "bcopy", "bzero"].iter().any(|p| name.starts_with(p));
    let found: Vec<_> = foreign.into_iter().filter(|name| moves(name)).collect();
    assert!(found.is_empty(), "{found:?} may use registers that no stub keeps");
}
