//! Makes text from the target harmless, and breaks text for people into lines.

use std::fmt::Write;

use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

/// One line without terminal controls or hidden text: control characters, and those that change the direction of writing, are spelled out.
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

/// At most `limit` characters, the last of them an ellipsis if text was cut.
pub(crate) fn shorten(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        None => text.to_owned(),
        Some(_) => text.chars().take(limit.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Breaks at white space, but not at [`GLUE`], by columns of a terminal. A word that is longer than a line stays whole, so that it
/// can be copied.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let words = text.split(|c: char| c.is_whitespace() && c != GLUE).filter(|word| !word.is_empty());
    let options = Options::new(width)
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit);
    textwrap::wrap(&words.collect::<Vec<_>>().join(" "), options).iter().map(|line| line.replace(GLUE, " ")).collect()
}

/// The no-break space, which keeps a number and its unit together, until [`wrap`] makes an ordinary one of it.
const GLUE: char = '\u{a0}';

/// `1 image`, `2 images`.
pub(crate) fn plural(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Words as one would type them into a shell, without terminal controls.
pub fn command_line(words: &[String]) -> String {
    let quoted = words.iter().map(|word| {
        let plain = |c: char| c.is_alphanumeric() || "-_./:=,@%+".contains(c);
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

/// A time like `2026-01-31T12:00:00Z`, up to its seconds and without its zone. Nothing if it is no such time.
pub(crate) fn timestamp(text: &str) -> Option<String> {
    let time = humantime::parse_rfc3339(&format!("{}Z", text.get(..19)?)).ok()?;
    let mut text = humantime::format_rfc3339_seconds(time).to_string();
    text.pop();
    Some(text)
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
        assert_eq!(wrap("  a \t b\u{2003}c\n ", 80), ["a b c"]);
        assert_eq!(wrap("a b", 0), ["a", "b"]);
        assert_eq!(wrap("well-known --long-option=x/y", 5), ["well-known", "--long-option=x/y"]);
        assert_eq!(wrap(&format!("in {}", seconds(1.0)), 7), ["in", "1.00 s"]);
        let long = "x".repeat(100_000);
        assert_eq!(wrap(&format!("a {long} b"), 80), ["a", &long, "b"]);
    }

    #[test]
    fn characters_that_take_two_columns_count_as_two() {
        assert_eq!(wrap("日本 日本", 5), ["日本", "日本"]);
        assert_eq!(wrap("日本 日本", 9), ["日本 日本"]);
        assert_eq!(wrap("e\u{301}e\u{301} e\u{301}", 4), ["e\u{301}e\u{301} e\u{301}"]);
    }

    #[test]
    fn timestamps() {
        for right in ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00.5Z", "2026-01-31T12:00:00"] {
            assert_eq!(timestamp(right).as_deref(), Some("2026-01-31T12:00:00"), "{right}");
        }
        assert_eq!(timestamp("2024-02-29T23:59:59Z").as_deref(), Some("2024-02-29T23:59:59"));
        let wrong = ["", "2026-13-31T12:00:00", "2026-01-31 12:00:00", "2026-01-31T12:00:0é", "2026-01-31T24:00:00"];
        for wrong in wrong.into_iter().chain(["2026-02-29T12:00:00Z", "2026-01-00T12:00:00Z", "+026-01-31T12:00:00Z"]) {
            assert_eq!(timestamp(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn shortening() {
        assert_eq!(shorten("äöü", 3), "äöü");
        assert_eq!(shorten("äöü", 2), "ä…");
    }

    #[test]
    fn command_lines_can_be_pasted() {
        let words =
            ["./p", "a b", "", "it's", "--x=1", "naïve", "$HOME", "^", "a\x1b[2Jb", "*.c", "~"].map(String::from);
        let line = r"./p 'a b' '' 'it'\''s' --x=1 naïve '$HOME' '^' 'a\x1b[2Jb' '*.c' '~'";
        assert_eq!(command_line(&words), line);
    }
}
