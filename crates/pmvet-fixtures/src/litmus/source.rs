//! A litmus program's text: what it needs, and what its comments expect.

use std::fmt;
use std::path::Path;

use crate::tracing::JsonEvent;

#[derive(Debug, Default)]
pub(super) struct Source {
    /// Processor features.
    pub(super) needs: Vec<String>,
    /// Compiler flags.
    pub(super) flags: Vec<String>,
    /// Kinds of events that are not compared otherwise.
    pub(super) shown: Vec<String>,
    pub(super) expected: Vec<Expected>,
}

/// One event that a comment asks for.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) thread: u32,
    pub(super) only_loads: bool,
    /// The line of the comment; the event's own line too, if there is code on it.
    line: u32,
    at_line: bool,
    text: String,
    /// Who called whom, innermost first.
    stack: Option<Vec<String>>,
}

impl Source {
    pub(super) fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut source = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            let words = |key: &str| -> Vec<String> {
                let rest =
                    line.strip_prefix("/* ").and_then(|l| l.strip_prefix(key)).and_then(|l| l.strip_suffix("*/"));
                rest.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
            };
            source.needs.extend(words("needs:"));
            source.flags.extend(words("flags:"));
            source.shown.extend(words("show:"));
            if let Some((code, comment)) = line.split_once("//~") {
                source.expect(number, !code.trim().is_empty(), comment);
            }
        }
        source
    }

    fn expect(&mut self, line: u32, at_line: bool, comment: &str) {
        let (thread, events) = comment.split_once(' ').unwrap_or_else(|| panic!("line {line}: an empty comment"));
        let thread = if thread.is_empty() { 1 } else { thread.parse().expect("the number of a thread") };
        let mut only_loads = false;
        for part in events.split(';').map(str::trim) {
            only_loads |= part.starts_with('[');
            let text = part.trim_matches(['[', ']']);
            let (text, stack) = match text.split_once(" @ ") {
                Some((text, stack)) => (text, Some(stack.split('<').map(str::to_owned).collect())),
                None => (text, None),
            };
            self.expected.push(Expected { thread, only_loads, line, at_line, text: text.trim().to_owned(), stack });
            only_loads &= !part.ends_with(']');
        }
    }
}

impl Expected {
    /// What is wrong with an event that should be this one.
    pub(super) fn mismatch(&self, event: &JsonEvent, rendered: &str, file: &str) -> Option<String> {
        let same_word = |(is, should): (&str, &str)| should == "*" || is == should;
        let words = |text: &str| text.split_whitespace().count();
        let same = words(rendered) == words(&self.text)
            && rendered.split_whitespace().zip(self.text.split_whitespace()).all(same_word);
        if !same {
            return Some(format!("expected {self}\n       is {rendered} {}", place(event)));
        }
        if self.at_line && has_line(&event.kind) {
            let site = event.site.clone().unwrap_or_default();
            if site.source.as_deref() != Some(file) || site.line != Some(self.line) {
                return Some(format!("{self}: reported at {}", place(event)));
            }
        }
        let stack = self.stack.as_ref()?;
        let is: Vec<&str> = event.stack.iter().map(|f| f.function.as_deref().unwrap_or("?")).collect();
        let (should, rest) = match stack.split_last() {
            Some((last, should)) if last == "*" => (should, true),
            _ => (stack.as_slice(), false),
        };
        // What called main is the C library's affair.
        let is = match is.iter().rposition(|f| *f == "main") {
            Some(main) if !rest => &is[..=main],
            _ => &is[..is.len().min(should.len())],
        };
        (is != should).then(|| format!("{self}: was called by {}", is.join("<")))
    }
}

fn has_line(kind: &str) -> bool {
    const KINDS: &[&str] = &[
        "store",
        "nt-store",
        "load",
        "rmw",
        "clflush",
        "clflushopt",
        "clwb",
        "sfence",
        "mfence",
        "locked-fence",
        "serializing-fence",
        "marker",
        "unsupported",
    ];
    KINDS.contains(&kind)
}

fn place(event: &JsonEvent) -> String {
    let site = event.site.clone().unwrap_or_default();
    format!("({}:{})", site.source.unwrap_or_default(), site.line.unwrap_or_default())
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (line {})", self.text, self.line)?;
        self.stack.as_ref().map_or(Ok(()), |stack| write!(f, " @ {}", stack.join("<")))
    }
}
