//! Words that a program may compare its input with: strings of the binary, and dictionaries as AFL++ has them.

use std::collections::BTreeSet;

/// The printable strings of a binary that could be keywords.
pub fn of_binary(bytes: &[u8]) -> Vec<Vec<u8>> {
    const MOST: usize = 256;
    let words: BTreeSet<&[u8]> = bytes
        .split(|b| !b.is_ascii_graphic())
        .filter(|word| (2..=16).contains(&word.len()) && word.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_'))
        .filter(|word| !word.starts_with(b"_"))
        .collect();
    // With too many, the right one would come up too rarely.
    let step = words.len().div_ceil(MOST).max(1);
    words.into_iter().step_by(step).map(<[u8]>::to_vec).collect()
}

/// A dictionary: lines `name="value"`, with `\xNN`, `\\` and `\"`.
pub fn of_dictionary(text: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut words = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let value = line.split_once('"').and_then(|(_, rest)| rest.rsplit_once('"')).map(|(value, _)| value);
        let word = value.and_then(unescape);
        words.push(word.ok_or_else(|| format!("line {}: not like name=\"value\"", number + 1))?);
    }
    Ok(words)
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'\\' {
            bytes.push(first);
            continue;
        }
        match *rest.first()? {
            b'x' => {
                let digits = std::str::from_utf8(rest.get(1..3)?).ok()?;
                bytes.push(u8::from_str_radix(digits, 16).ok()?);
                rest = &rest[3..];
            }
            other => {
                bytes.push(other);
                rest = &rest[1..];
            }
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_both_kinds() {
        assert_eq!(of_binary(b"\0insert\0\x01ab\0x\0_init\0"), [b"ab".to_vec(), b"insert".to_vec()]);
        assert_eq!(of_dictionary("# a\nkw=\"a\\x0ab\\\\\"\n").unwrap(), [b"a\nb\\".to_vec()]);
        assert!(of_dictionary("kw=a").is_err());
        assert!(of_dictionary("kw=\"\\x1\"").is_err());
    }
}
