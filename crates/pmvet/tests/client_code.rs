//! The client keeps only part of the target's registers while its own code runs: that code must leave the rest alone.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{HashMap, HashSet};
use std::path::Path;

use iced_x86::{Decoder, DecoderOptions, EncodingKind, Instruction};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

/// Chooses its instructions when it runs. Only the search for functions in a module uses it, outside of any stub.
const KNOWN: &str = "memchr";
/// Wrappers of single instructions, which nothing but `KNOWN` may call if they go beyond.
const INTRINSICS: &str = "core_arch";

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
    let (mut functions, mut wrappers, mut called) = (0, HashSet::new(), HashMap::new());
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
            called.insert(instruction.near_branch_target(), name);
            if goes_beyond(&instruction) && name.contains(INTRINSICS) {
                wrappers.insert(symbol.address());
                break;
            }
            assert!(!goes_beyond(&instruction), "{name} at {:#x}: {:?}", instruction.ip(), instruction.code());
        }
    }
    let callers: Vec<&str> = wrappers.iter().filter_map(|wrapper| called.get(wrapper).copied()).collect();
    assert!(callers.is_empty(), "{callers:?} call what goes beyond");
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

/// The client's own versions of these functions, which this test then uses as the client does.
#[path = "../../pmvet-client/src/dynamorio/bytes.rs"]
mod bytes;

mod moved {
    use proptest::prelude::*;

    /// Somewhere in the middle, so that what must not be touched is there on both sides.
    fn room() -> impl Strategy<Value = (Vec<u8>, usize, usize, usize)> {
        (prop::collection::vec(any::<u8>(), 2048), 0..200usize, 0..200usize, prop_oneof![0..80usize, 0..1600usize])
    }

    proptest! {
        #[test]
        fn bytes_move((mut room, from, to, len) in room()) {
            let mut expected = room.clone();
            for (i, byte) in room[from..from + len].iter().enumerate() {
                expected[to + i] = *byte;
            }
            room.copy_within(from..from + len, to);
            prop_assert!(room.iter().eq(&expected));
            let mut other = vec![0; len];
            other.copy_from_slice(&room[to..to + len]);
            prop_assert!(other.iter().eq(&expected[to..to + len]));
        }

        #[test]
        fn bytes_are_filled((mut room, at, _, len) in room(), value: u8) {
            let before = room.clone();
            room[at..at + len].fill(value);
            let is_right = |(i, byte): (usize, &u8)| *byte == if (at..at + len).contains(&i) { value } else { before[i] };
            prop_assert!(room.iter().enumerate().all(is_right));
        }

        #[test]
        fn bytes_are_compared((room, at, _, len) in room(), difference: Option<(prop::sample::Index, u8)>) {
            let (one, mut other) = (&room[at..at + len], room[at..at + len].to_vec());
            if let Some((index, value)) = difference.filter(|_| len > 0) {
                other[index.index(len)] = value;
            }
            prop_assert_eq!(one == other, one.iter().eq(&other));
            prop_assert_eq!(one.cmp(&other), one.iter().cmp(&other));
        }

        #[test]
        fn strings_end_at_their_zero(text in "[a-z]{0,90}") {
            let text = std::ffi::CString::new(text).unwrap_or_default();
            #[allow(clippy::strlen_on_c_strings, reason = "it is what is tested")]
            // SAFETY: it ends with a zero.
            let len = unsafe { libc::strlen(text.as_ptr()) };
            prop_assert_eq!(len, text.as_bytes().len());
        }
    }
}
