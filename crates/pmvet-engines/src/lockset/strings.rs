//! Functions of the C library that read strings. Their loads can depend only on the bytes up to the end of the string.
//!
//! They read up to 64 bytes at a time, including bytes after the terminator, which they ignore. If such a load and a store overlap only
//! after a terminator, that is no race. The engine knows where a string ends from what the run has stored: bytes that the run has not
//! stored are unknown and end no string. So a false alarm remains where the string was there before the run, and where the functions of
//! the C library have no names, as those for vector units have none without its debug information. `memchr`, whose arguments are unknown,
//! and functions of wide characters count as depending on all that they read.

use super::engine::{Code, LocksetEngine};
use super::lines::mask;
use super::stores::Part;

/// Loads of at most this many bytes count as depending on all of them.
pub(super) const WORD: u32 = 8;

/// What the run has stored to a line.
#[derive(Debug)]
pub(crate) struct LineContent {
    bytes: [u8; 64],
    /// A mask of the bytes that it has stored.
    known: u64,
}

impl Default for LineContent {
    fn default() -> Self {
        Self { bytes: [0; 64], known: 0 }
    }
}

impl LineContent {
    /// Returns whether the store has overwritten a terminator.
    pub(crate) fn store(&mut self, first: u64, value: &[u8]) -> bool {
        let first = (first & 63) as usize;
        let Some(known) = self.bytes.get_mut(first..first + value.len()) else { return false };
        let ended = known.iter().zip(value).any(|(&old, &new)| old == 0 && new != 0);
        known.copy_from_slice(value);
        self.known |= mask(first as u64, value.len() as u64);
        ended
    }

    /// The part of these bytes that belongs to a string beginning with the first of them, and whether the string ends
    /// there.
    fn text(&self, bytes: u64) -> (u64, bool) {
        let zeros = self.bytes.iter().rev().fold(0, |zeros, &byte| zeros << 1 | u64::from(byte == 0));
        match zeros & self.known & bytes {
            0 => (bytes, false),
            ends => (bytes & mask(0, u64::from(ends.trailing_zeros()) + 1), true),
        }
    }
}

impl LocksetEngine {
    /// The bytes of a part of a wide load that count if it reads a string, which may have `ended` in an earlier part.
    pub(super) fn text(&mut self, part: Part, ended: &mut bool) -> u64 {
        let bytes = mask(part.word.offset, part.len);
        if *ended {
            return 0;
        }
        let Some(id) = self.lines.find(part.word.file, part.word.offset) else { return bytes };
        let line = self.lines.get(id);
        line.holds_text = true;
        let (text, ends) = line.content.text(bytes);
        *ended = ends;
        text
    }
}

/// Whether the instruction belongs to a function that reads strings.
pub(super) fn reads_strings(code: &Code) -> bool {
    let is_libc = ["libc.so", "libc-"].iter().any(|name| code.module.starts_with(name));
    let names = || code.functions.iter().map(|function| function.trim_start_matches('_'));
    is_libc && names().any(|name| name.starts_with("str") || name.starts_with("stp"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_ends_with_the_first_terminator_that_was_stored() {
        let mut content = LineContent::default();
        assert_eq!(content.text(u64::MAX), (u64::MAX, false));
        content.store(8, b"key\0\0");
        assert_eq!(content.text(mask(8, 16)), (mask(8, 4), true));
        assert_eq!(content.text(mask(8, 3)), (mask(8, 3), false));
        assert_eq!(content.text(mask(0, 64)), (mask(0, 12), true));
        assert!(content.store(11, b"s"));
        assert!(!content.store(8, b"KEY"));
        assert_eq!(content.text(mask(8, 16)), (mask(8, 5), true));
    }

    #[test]
    fn string_functions_are_those_of_the_c_library() {
        let code = |function: &str, module: &str| Code { functions: vec![function.into()], module: module.into() };
        for (function, module, expected) in [
            ("__strcmp_evex", "libc.so.6", true),
            ("__stpcpy_avx2", "libc-2.31.so", true),
            ("strlen", "libc.so.6", true),
            ("__memcmp_evex_movbe", "libc.so.6", false),
            ("string_hash", "program", false),
            ("", "libc.so.6", false),
        ] {
            assert_eq!(reads_strings(&code(function, module)), expected, "{function}");
        }
    }
}
