//! Functions, or variables, by address.

use std::cmp::Reverse;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Binding {
    Local,
    Weak,
    Global,
}

/// A symbol that names code or data.
#[derive(Debug, Clone)]
pub(super) struct Symbol {
    pub(super) start: u64,
    /// 0: unknown.
    pub(super) size: u64,
    /// The end of the section, which a symbol of unknown size cannot pass.
    pub(super) limit: u64,
    /// Whether it is marked as a function or a variable, rather than just a label.
    pub(super) function: bool,
    pub(super) binding: Binding,
    pub(super) name: Box<str>,
}

/// How far back a lookup goes for a function that encloses others, which only hand-written assembly has.
const MAX_NESTING: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Table {
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    start: u64,
    end: u64,
    name: Box<str>,
}

impl Table {
    pub(super) fn new(mut symbols: Vec<Symbol>) -> Self {
        // Of several names of one address, the first is kept, which is the one a programmer would use. libc alone has
        // hundreds of functions with an official name and several internal ones.
        symbols.sort_by(|a, b| {
            let key = |s: &Symbol| {
                let underscores = s.name.bytes().take_while(|&b| b == b'_').count();
                (s.start, Reverse(s.size != 0), Reverse(s.function), Reverse(s.binding), underscores, s.name.len())
            };
            key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
        });
        symbols.dedup_by_key(|symbol| symbol.start);
        // A label inside a function does not end it.
        let mut function_end = 0;
        symbols.retain(|symbol| {
            function_end = function_end.max(symbol.start.saturating_add(symbol.size));
            symbol.size != 0 || symbol.start >= function_end
        });
        let starts: Vec<u64> = symbols.iter().map(|symbol| symbol.start).collect();
        let entries = symbols.into_iter().enumerate().map(|(i, symbol)| {
            let end = match symbol.size {
                0 => symbol.limit.min(starts.get(i + 1).copied().unwrap_or(u64::MAX)),
                size => symbol.start.saturating_add(size),
            };
            Entry { start: symbol.start, end, name: symbol.name }
        });
        Table { entries: entries.collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The innermost function around `address`, and where in it that is.
    pub(super) fn find(&self, address: u64) -> Option<(&str, u64)> {
        let after = self.entries.partition_point(|entry| entry.start <= address);
        let entry = self.entries[..after].iter().rev().take(MAX_NESTING).find(|entry| address < entry.end)?;
        Some((&entry.name, address - entry.start))
    }
}
