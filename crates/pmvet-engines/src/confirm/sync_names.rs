//! Synchronisation variables by name: looks up what the user has written in the debug information, and finds the stores of a run
//! to them.
//!
//! A trace knows addresses, not members. So a store counts as one to `table.lock` if its statement, or one of the next few callers'
//! statements, contains `x->lock` or `x.lock`, and `x` is declared as a `table`. Every object of the type counts. Where the type of `x` is
//! unknown, as behind a macro, the name of the member decides.

use std::collections::BTreeSet;

use pmvet_findings::{Frame, Sources, Stack};
use pmvet_target::symbols::types::{Member, TypeId, Types};

use super::sync_variables::{SyncVariable, VariablePlace};

/// How many callers of a store are searched for the variable's name.
const CALLS: usize = 3;
/// How many similar names to offer for an unknown one.
const OFFERED: usize = 3;

/// A variable as the user declares it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Declared {
    /// `table.lock`, `pool->lock`, `lock`.
    pub variable: Option<String>,
    /// Offset in the PM file: of the variable or, if there is also a name, of the struct that contains it.
    pub offset: Option<u64>,
    /// In bytes; nothing: the debug information decides.
    pub size: Option<u64>,
    /// Its value when no thread holds it.
    pub init: u64,
}

/// What a name stands for.
struct Meant {
    at: VariablePlace,
    size: Option<u64>,
    /// From the start of the first struct in the name; nothing if a pointer lies in between.
    offset: Option<u64>,
}

impl Declared {
    /// Looks the name up. The error is a message for the user.
    pub fn resolve(&self, types: &Types) -> Result<SyncVariable, String> {
        let Some(name) = &self.variable else {
            let at = VariablePlace::Offset { name: None, offset: self.offset.unwrap_or(0) };
            return Ok(SyncVariable { at, size: self.size.unwrap_or(8), init: self.init });
        };
        let wrong = |what: String| format!("[[sync]] `{name}`: {what}");
        if types.is_empty() {
            let advice = "no debug information to look it up in; compile with -g, or give offset and size instead";
            return Err(wrong(advice.into()));
        }
        let Meant { at, size, offset } = meaning(name, types).map_err(wrong)?;
        let size = match (self.size, size) {
            (Some(said), Some(known)) if said != known => {
                return Err(wrong(format!("size is {said}, but the debug information says {known}")));
            }
            (said, known) => said.or(known).ok_or_else(|| wrong("its size is not known; give it as size".into()))?,
        };
        if ![1, 2, 4, 8].contains(&size) {
            return Err(wrong(format!("it has {size} bytes; only words of 1, 2, 4 or 8 can be tried")));
        }
        let at = match (self.offset, offset) {
            (None, _) => at,
            (Some(base), Some(offset)) => {
                VariablePlace::Offset { name: Some(name.clone()), offset: base.saturating_add(offset) }
            }
            (Some(_), None) => return Err(wrong("offset is for a member of the struct that is at that offset".into())),
        };
        Ok(SyncVariable { at, size, init: self.init })
    }
}

fn meaning(name: &str, types: &Types) -> Result<Meant, String> {
    let plain = name.replace("->", ".");
    let mut parts = plain.split('.').map(str::trim);
    let head = parts.next().unwrap_or_default();
    let path: Vec<&str> = parts.collect();
    let Some((last, way)) = path.split_last() else { return single(head, types) };
    let named = types.structs(head);
    let mut of = if named.is_empty() { structs_of(types.globals(head), types) } else { named };
    if of.is_empty() {
        let offered = near(head, types.struct_names().chain(types.global_names()));
        return Err(format!("there is no struct and no global variable `{head}`{offered}"));
    }
    let mut offset = Some(0);
    for step in way {
        let member = member(&of, step, types)?;
        let by_value = member.of.is_some_and(|id| types.pointee(id).is_none());
        offset = offset.filter(|_| by_value).map(|offset| offset + member.offset);
        of = structs_of(member.of.as_slice(), types);
    }
    let found = member(&of, last, types)?;
    if found.is_bit_field {
        return Err("it is a bit field; stores to it change its neighbours, too".into());
    }
    let around = of.first().and_then(|&of| types.struct_name(of)).map(str::to_owned);
    let at = VariablePlace::Member { name: name.to_owned(), member: (*last).to_owned(), of: around };
    let size = found.of.and_then(|id| types.size(id));
    Ok(Meant { at, size, offset: offset.map(|offset| offset + found.offset) })
}

/// A name alone: of a member, whatever the struct, or of a global variable.
fn single(name: &str, types: &Types) -> Result<Meant, String> {
    let structs: BTreeSet<&str> = types.struct_names().collect();
    let (mut owners, mut sizes, mut members) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for owner in structs {
        for member in types.structs(owner).into_iter().flat_map(|id| types.members(id)) {
            if member.name.as_deref() == Some(name) {
                owners.insert(owner.to_owned());
                sizes.extend(member.of.and_then(|id| types.size(id)));
            }
            members.extend(member.name);
        }
    }
    let globals = types.globals(name);
    match (owners.is_empty(), globals.first()) {
        (true, None) => {
            let offered = near(name, members.iter().map(String::as_str).chain(types.global_names()));
            Err(format!("there is no member and no global variable `{name}`{offered}"))
        }
        (true, Some(&global)) => {
            let pointee = types.pointee(global);
            if types.struct_of(global).is_some() {
                return Err(format!("it is a struct; name the member, as in `{name}->lock`"));
            }
            let size = types.size(pointee.unwrap_or(global));
            Ok(Meant { at: VariablePlace::Global(name.to_owned()), size, offset: None })
        }
        (false, None) if sizes.len() <= 1 => {
            let at = VariablePlace::Member { name: name.to_owned(), member: name.to_owned(), of: None };
            Ok(Meant { at, size: sizes.first().copied(), offset: None })
        }
        (false, global) => {
            let mut all: Vec<String> = owners.iter().take(OFFERED).map(|owner| format!("`{owner}.{name}`")).collect();
            all.extend(global.map(|_| "the global variable".to_owned()));
            Err(format!("it may be any of {}; name the struct", all.join(", ")))
        }
    }
}

fn structs_of(of: &[TypeId], types: &Types) -> Vec<TypeId> {
    of.iter().filter_map(|&id| types.struct_of(id)).collect()
}

fn member(of: &[TypeId], name: &str, types: &Types) -> Result<Member, String> {
    types.member(of, name).ok_or_else(|| {
        let all: Vec<Member> = of.iter().flat_map(|&id| types.members(id)).collect();
        let offered = near(name, all.iter().filter_map(|member| member.name.as_deref()));
        let owner = of.first().and_then(|&id| types.struct_name(id)).unwrap_or("what comes before it");
        format!("`{owner}` has no member `{name}`{offered}")
    })
}

/// `; is it …?` with the most similar names, if there are any.
fn near<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let name = name.to_lowercase();
    let distance = |other: &str| {
        // Compares without the path, unless the user gave one.
        let short = if name.contains("::") { other } else { other.rsplit("::").next().unwrap_or(other) };
        let other = short.to_lowercase();
        // A name that contains it counts like a typing error.
        let part = !name.is_empty() && other.len() < 2 * name.len() + 4 && other.contains(&name);
        if part { 1 } else { edits(name.as_bytes(), other.as_bytes()) }
    };
    let most = 1 + name.len() / 4;
    let close: BTreeSet<(usize, &str)> =
        known.map(|other| (distance(other), other)).filter(|(distance, _)| *distance <= most).collect();
    let names: Vec<String> = close.iter().take(OFFERED).map(|(_, name)| format!("`{name}`")).collect();
    if names.is_empty() { String::new() } else { format!("; is it {}?", names.join(" or ")) }
}

/// Edit distance: how many letters to change, add or remove.
fn edits(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut before = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let changed = before + usize::from(x != y);
            before = row[j + 1];
            row[j + 1] = changed.min(before + 1).min(row[j] + 1);
        }
    }
    row.last().copied().unwrap_or(0)
}

/// Whether there is any source line that could name the variable of a store.
pub fn has_source(stack: &Stack, sources: &Sources) -> bool {
    let mut own = stack.iter().filter(|frame| frame.is_user()).filter_map(|frame| frame.file.as_deref());
    own.any(|file| sources.file(file).is_some())
}

/// Whether a store, made at the innermost frame of the stack, is one to the variable.
pub(super) fn is_named(at: &VariablePlace, stack: &Stack, sources: &Sources, types: &Types) -> bool {
    let lines = stack.iter().enumerate().filter_map(|(depth, frame)| {
        let file = sources.file(frame.file.as_deref()?)?;
        let text = statement(file.line(frame.line?)?, frame.column).to_owned();
        Some((depth, frame, text))
    });
    lines.take(1 + CALLS).any(|(depth, frame, text)| {
        // If the line itself shows what it stores to, its other names do not count.
        let stored = sources.stored_at(frame).filter(|_| depth == 0);
        match at {
            VariablePlace::Offset { .. } => false,
            VariablePlace::Global(name) => {
                mentions(&text, name).any(|before| !before.ends_with("->") && !before.ends_with('.'))
            }
            VariablePlace::Member { member, of, .. } => {
                let elsewhere = stored.is_some_and(|place| last_name(&place) != member);
                let scope = Scope { function: function(frame), types };
                !elsewhere && mentions(&text, member).any(|before| scope.is_member_of(before, of.as_deref()))
            }
        }
    })
}

/// The statement of a line that contains a column, counted from 1. The whole line if the column is not known.
fn statement(line: &str, column: Option<u32>) -> &str {
    let Some(at) = column.and_then(|column| (column as usize).checked_sub(1)).filter(|&at| at < line.len()) else {
        return line;
    };
    let mut depth = 0_usize;
    let mut start = 0;
    for (i, c) in line.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            '{' | '}' | ';' if depth == 0 || c != ';' => {
                if i >= at {
                    return &line[start..i];
                }
                start = i + 1;
            }
            _ => {}
        }
    }
    &line[start..]
}

/// What comes before each whole word `name` in a line.
fn mentions<'a>(line: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(name).filter_map(move |(at, _)| {
        let (before, after) = (&line[..at], &line[at + name.len()..]);
        (!before.ends_with(is_part) && !after.starts_with(is_part)).then(|| before.trim_end())
    })
}

/// `h->slots[i].key` ends in `key`.
fn last_name(place: &str) -> &str {
    let mut place = place.trim_end();
    while let Some((before, _)) = place.ends_with(']').then(|| last_group(place)).flatten() {
        place = before.trim_end();
    }
    word_at_end(place)
}

/// The function of a frame as its own source names it.
fn function(frame: &Frame) -> &str {
    let name = frame.function.as_deref().unwrap_or_default();
    let name = name.split(['(', '<']).next().filter(|name| !name.is_empty()).unwrap_or(name);
    let name = name.rsplit("::").next().unwrap_or(name);
    // Drops what the compiler adds to copies, as in `insert.part.0`.
    name.split('.').next().unwrap_or(name)
}

fn word_at_end(text: &str) -> &str {
    let start = text.char_indices().rev().take_while(|(_, c)| c.is_alphanumeric() || *c == '_').last();
    start.map_or("", |(at, _)| &text[at..])
}

/// Splits a text that ends in brackets into what comes before them and what is inside.
fn last_group(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices().rev() {
        match c {
            ')' | ']' => depth += 1,
            '(' | '[' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return Some((&text[..at], text.get(at + 1..text.len() - 1)?));
        }
    }
    None
}

/// What names mean within a function.
struct Scope<'a> {
    function: &'a str,
    types: &'a Types,
}

impl Scope<'_> {
    /// `before` is the text before the name of a member.
    fn is_member_of(&self, before: &str, of: Option<&str>) -> bool {
        let name = |id: &TypeId| self.types.struct_name(*id).map(str::to_owned);
        let object = before.strip_suffix("->").or_else(|| before.strip_suffix('.'));
        let known = match object {
            Some(object) => structs_of(&self.types_of(object), self.types),
            // A method names the members of its own object as they are.
            None => structs_of(self.types.locals(self.function, "this"), self.types),
        };
        match (object, of) {
            (None, None) => false,
            (None, Some(of)) => known.iter().any(|id| name(id).as_deref() == Some(of)),
            (Some(_), None) => true,
            (Some(_), Some(of)) => known.is_empty() || known.iter().any(|id| name(id).as_deref() == Some(of)),
        }
    }

    /// The types that the expression at the end of a text may have; none if unknown.
    fn types_of(&self, text: &str) -> Vec<TypeId> {
        let mut text = text.trim_end();
        while let Some((before, _)) = text.ends_with(']').then(|| last_group(text)).flatten() {
            text = before.trim_end();
        }
        if text.ends_with(')') {
            let Some((before, inside)) = last_group(text) else { return Vec::new() };
            return match word_at_end(before.trim_end()) {
                "" => self.within(inside),
                called => self.types.results(called).to_vec(),
            };
        }
        let name = word_at_end(text);
        let before = text[..text.len() - name.len()].trim_end();
        match before.strip_suffix("->").or_else(|| before.strip_suffix('.')) {
            Some(object) => {
                let of = structs_of(&self.types_of(object), self.types);
                self.types.member(&of, name).and_then(|member| member.of).into_iter().collect()
            }
            None => match self.types.locals(self.function, name) {
                [] => self.types.globals(name).to_vec(),
                locals => locals.to_vec(),
            },
        }
    }

    /// The types of what is in brackets: a cast, or an expression.
    fn within(&self, inside: &str) -> Vec<TypeId> {
        let inside = inside.trim();
        let cast = inside.strip_prefix('(').and_then(|rest| rest.split_once(')'));
        match cast.and_then(|(to, _)| to.trim().strip_suffix('*')) {
            Some(to) => self.types.structs(to.trim_end_matches(['*', ' '])),
            None => self.types_of(inside.trim_start_matches(['*', '&', ' '])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_may_have_several_statements() {
        let line = "if (!r->busy) { r->busy = 1; for (i = 0; i < 2; i++) r->n++; r->busy = 0; }";
        let column = |text: &str| line.find(text).map(|at| at as u32 + 1);
        assert_eq!(statement(line, column("r->busy = 1")).trim(), "r->busy = 1");
        assert_eq!(statement(line, column("n++")).trim(), "for (i = 0; i < 2; i++) r->n++");
        assert_eq!(statement(line, column("r->busy = 0")).trim(), "r->busy = 0");
        assert_eq!(statement(line, column("!r->busy")).trim(), "if (!r->busy)");
        for unknown in [None, Some(0), Some(1000)] {
            assert_eq!(statement(line, unknown), line);
        }
    }

    #[test]
    fn names_that_are_close_are_offered() {
        let known = ["table", "bucket", "tables_of_all", "x", "Table", "ns::Queue"];
        let near = |name| near(name, known.into_iter());
        assert_eq!(near("tabel"), "; is it `Table` or `table`?");
        assert_eq!(near("buckets"), "; is it `bucket`?");
        assert_eq!(near("queu"), "; is it `ns::Queue`?");
        assert_eq!(near("zzz"), "");
        assert_eq!(near(""), "; is it `x`?");
        assert_eq!(edits(b"kitten", b"sitting"), 3);
    }

    #[test]
    fn a_member_is_found_by_its_whole_name() {
        let scope = Scope { function: "f", types: &Types::default() };
        let has = |line, member| mentions(line, member).any(|before| scope.is_member_of(before, Some("bucket")));
        assert!(has("    if (try_lock(&b->lock, HELD))", "lock"));
        assert!(has("root.lock = 1;", "lock"));
        assert!(has("b -> lock = 1;", "lock"));
        assert!(!has("b->locks = 1;", "lock"));
        assert!(!has("b->resize_lock = 1; lock(b)", "lock"));
        assert!(!has("", "lock"));
        assert!(!has("lock = 1;", "lock"));
    }

    #[test]
    fn words_and_brackets() {
        assert_eq!(last_name("h->slots[i].key"), "key");
        assert_eq!(last_name("h->locks[a[i]]"), "locks");
        assert_eq!(last_group("f(a, (b))"), Some(("f", "a, (b)")));
        assert_eq!(last_group(")("), None);
        assert_eq!(word_at_end("(*é"), "é");
        assert_eq!(function(&Frame { function: Some("ns::T::set<u8>(int)".into()), ..Frame::default() }), "set");
    }

    proptest::proptest! {
        #[test]
        fn no_line_is_too_strange(line in "([a-z(){}\\[\\]*&;.<>é -]|->lock|struct s){0,40}") {
            let scope = Scope { function: "f", types: &Types::default() };
            mentions(&line, "lock").for_each(|before| { scope.is_member_of(before, Some("s")); });
            last_name(&line);
        }
    }
}
