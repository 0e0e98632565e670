//! Text from the target, made harmless, and text for people, broken into lines.

use std::fmt::Write;

/// One line without anything that a terminal obeys or that hides what is written: control characters and those that
/// change the direction of writing are spelled out.
pub(crate) fn clean(text: &str) -> String {
    // Nearly all text is.
    if text.bytes().all(|b| (0x20..0x7f).contains(&b)) {
        return text.to_owned();
    }
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        push_clean(&mut clean, c);
    }
    clean
}

fn push_clean(to: &mut String, c: char) {
    // Writing to a string cannot fail.
    let _ = match c {
        '\t' => write!(to, "    "),
        '\n' => write!(to, " "),
        '\r' => Ok(()),
        c if is_invisible(c) => write!(to, "{}", c.escape_unicode()),
        c if c.is_control() => write!(to, "\\x{:02x}", u32::from(c)),
        c => write!(to, "{c}"),
    };
}

fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// The last lines of an output, cleaned one by one, without empty ones at the end.
pub(crate) fn tail(output: &str, lines: usize) -> (Vec<String>, usize) {
    let all: Vec<&str> = output.trim_end().lines().collect();
    let left_out = all.len().saturating_sub(lines);
    (all[left_out..].iter().map(|line| clean(line)).collect(), left_out)
}

/// At most `limit` characters, the last of them an ellipsis if something is missing.
pub(crate) fn shorten(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        None => text.to_owned(),
        Some(_) => text.chars().take(limit.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Breaks at spaces, but not at [`GLUE`]. A word that is longer than a line stays whole, so that it can be copied.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split(char::is_whitespace).filter(|word| !word.is_empty()) {
        let word = word.replace(GLUE, " ");
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            lines.push(String::new());
            used = 0;
        }
        if let Some(line) = lines.last_mut() {
            if used > 0 {
                line.push(' ');
                used += 1;
            }
            line.push_str(&word);
        }
        used += length;
    }
    lines
}

/// A space that keeps a number and its unit together, until [`wrap`] makes an ordinary one of it. No text from the
/// target has it: [`clean`] spells it out.
const GLUE: char = '\u{1f}';

/// `1 image`, `2 images`.
pub(crate) fn plural(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// As a shell would need it.
pub(crate) fn command_line(words: &[String]) -> String {
    let quoted = words.iter().map(|word| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", clean(word).replace('\'', r"'\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// For text that goes through [`wrap`].
pub(crate) fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 90.0 => format!("{}{GLUE}min {}{GLUE}s", (s / 60.0) as u64, (s % 60.0) as u64),
        s if s >= 10.0 => format!("{s:.0}{GLUE}s"),
        s => format!("{s:.2}{GLUE}s"),
    }
}

/// Whether it is like `2026-01-31T12:00:00`.
pub(crate) fn is_timestamp(text: &str) -> bool {
    let shape = "0000-00-00T00:00:00";
    let fits = text.len() == shape.len()
        && text.bytes().zip(shape.bytes()).all(|(c, s)| if s == b'0' { c.is_ascii_digit() } else { c == s });
    let number = |from: usize| text.get(from..from + 2).and_then(|digits| digits.parse::<u32>().ok()).unwrap_or(99);
    fits && (1..=12).contains(&number(5))
        && (1..=31).contains(&number(8))
        && number(11) < 24
        && number(14) < 60
        && number(17) < 60
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_spelled_out() {
        assert_eq!(clean("a\x1b[31m\u{202e}b\n\0\t."), "a\\x1b[31m\\u{202e}b \\x00    .");
        assert_eq!(clean("\u{9b}2J"), "\\x9b2J");
    }

    #[test]
    fn wrapping() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("unbreakably long", 4), ["unbreakably", "long"]);
        assert_eq!(wrap("", 4), [""]);
        assert_eq!(wrap(&format!("in {}", seconds(1.0)), 7), ["in", "1.00 s"]);
    }

    #[test]
    fn timestamps() {
        assert!(is_timestamp("2026-01-31T12:00:00"));
        for wrong in ["", "2026-13-31T12:00:00", "2026-01-31 12:00:00", "2026-01-31T12:00:0é", "2026-01-31T24:00:00"] {
            assert!(!is_timestamp(wrong), "{wrong}");
        }
    }

    #[test]
    fn shortening() {
        assert_eq!(shorten("äöü", 3), "äöü");
        assert_eq!(shorten("äöü", 2), "ä…");
    }

    #[test]
    fn command_lines_can_be_pasted() {
        assert_eq!(command_line(&["a b".into(), "c".into(), "d'".into(), "".into()]), r"'a b' c 'd'\''' ''");
    }
}
