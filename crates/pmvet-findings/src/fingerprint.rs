//! Fingerprints decide whether two findings are the same, even if they come from two builds between which lines have moved.
//!
//! A fingerprint is made of the rule and, for each decisive place, its role, the names of the user's functions on the stack, and the text
//! of the source line with its ordinal among the lines of that function that read the same. For a race only the store is decisive, since it
//! is chance which readers a run shows and which fence came first. Line numbers, addresses, threads, PM offsets and counts are left out.
//! Without source, the distance from the start of the function takes the place of the line; another build may change it.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::Xxh3;

use crate::{
    finding::{Finding, Frame, Place, Role},
    rules,
    source::{SourceFile, Sources},
    stack::{user_frame, user_frames},
};

/// Increased whenever the algorithm gives an old finding a new fingerprint.
const VERSION: u8 = 1;

/// Makes fingerprints, and caches what it learns about lines.
#[derive(Debug)]
pub struct Fingerprinter<'a> {
    sources: &'a Sources,
    ordinals: HashMap<(PathBuf, u32, String), u32>,
}

impl<'a> Fingerprinter<'a> {
    /// Takes the text of lines from these sources.
    pub fn new(sources: &'a Sources) -> Self {
        Fingerprinter { sources, ordinals: HashMap::new() }
    }

    /// 32 hexadecimal digits.
    pub fn fingerprint(&mut self, finding: &Finding) -> String {
        let mut parts = Parts(Xxh3::new());
        parts.add(&[VERSION]);
        parts.add(finding.rule.0.as_bytes());
        for (index, place) in finding.places.iter().enumerate() {
            if index == 0 || is_decisive(place.role) && finding.rule != rules::PERSISTENCY_RACE.id() {
                // For a race, only the function that stores and its caller count: it is chance, too, by which path they were reached.
                let callers = if finding.rule == rules::PERSISTENCY_RACE.id() { 1 } else { usize::MAX };
                self.add_place(place, callers, &mut parts);
            }
        }
        format!("{:032x}", parts.0.digest128())
    }

    /// `callers`: how many callers of the place's function belong to the fingerprint.
    fn add_place(&mut self, place: &Place, callers: usize, parts: &mut Parts) {
        parts.add(format!("{:?}", place.role).as_bytes());
        let own =
            place.stack.iter().take(user_frame(&place.stack).unwrap_or(0)).filter(|frame| frame.is_user()).count();
        let mut frames = user_frames(&place.stack);
        frames.truncate(own.saturating_add(callers).saturating_add(1));
        let mut previous = None;
        for frame in &frames {
            let name = function_name(frame);
            // The depth of a recursion is chance.
            if previous.as_ref() != Some(&name) {
                parts.add(name.as_bytes());
            }
            previous = Some(name);
        }
        let Some(frame) = frames.first() else { return };
        let place = self.line_text(frame).unwrap_or_else(|| offset_text(frame));
        parts.add(place.as_bytes());
    }

    /// File name, text and ordinal of the line.
    fn line_text(&mut self, frame: &Frame) -> Option<String> {
        let (path, line) = (frame.file.as_deref()?, frame.line?);
        let file = self.sources.file(path)?;
        let text = file.line(line)?.trim();
        let function = short_name(&function_name(frame)).to_owned();
        let ordinal = *self
            .ordinals
            .entry((path.into(), line, function))
            .or_insert_with_key(|(_, line, function)| ordinal(&file, *line, function));
        Some(format!("{}\n{text}\n{ordinal}", path.file_name().unwrap_or_default().display()))
    }
}

/// Whether places with this role say what is wrong, rather than how it was noticed.
pub fn is_decisive(role: Role) -> bool {
    match role {
        Role::Store | Role::Load | Role::Flush | Role::Fence | Role::Lock | Role::Log | Role::FailurePoint => true,
        Role::LastGood | Role::NextGood | Role::SideEffect | Role::Recovery => false,
    }
}

fn offset_text(frame: &Frame) -> String {
    match frame.function_offset {
        Some(offset) if frame.function.is_some() => format!("+{offset:#x}"),
        _ => {
            let module = frame.module.as_deref().and_then(Path::file_name).unwrap_or_default();
            format!("{}+{:#x}", module.display(), frame.offset)
        }
    }
}

/// The function without what the compiler adds: `.constprop.0`, `.isra.1`, `::h0123456789abcdef`.
fn function_name(frame: &Frame) -> String {
    let name = frame.function.as_deref().unwrap_or_default();
    let cloned = [".constprop", ".isra", ".part", ".cold", ".lto_priv", ".llvm"];
    let end = cloned.iter().filter_map(|suffix| name.find(suffix)).min().unwrap_or(name.len());
    let name = &name[..end];
    match name.rsplit_once("::h") {
        Some((path, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => path.into(),
        _ => name.into(),
    }
}

/// `ns::List<T>::insert(int)` is `insert`.
fn short_name(name: &str) -> &str {
    let name = name.split('(').next().unwrap_or(name);
    let mut depth = 0_u32;
    let mut end = name.len();
    let mut start = 0;
    for (at, c) in name.char_indices().rev() {
        match c {
            '>' => depth += 1,
            '<' => {
                depth = depth.saturating_sub(1);
                // A type argument at the end is not part of the name.
                if depth == 0 && start == 0 && name[at..end].ends_with('>') {
                    end = at;
                }
            }
            ':' | ' ' if depth == 0 && at + 1 < end => {
                start = at + 1;
                break;
            }
            _ => {}
        }
    }
    name[start..end].trim_matches(':')
}

/// How many lines of the function that read the same come before this one.
fn ordinal(file: &SourceFile, line: u32, function: &str) -> u32 {
    let Some(text) = file.line(line).map(str::trim) else { return 0 };
    let mut count = 0;
    for number in (1..line).rev() {
        let Some(candidate) = file.line(number) else { continue };
        count += u32::from(candidate.trim() == text);
        if defines(candidate, function) {
            break;
        }
    }
    count
}

/// Whether a line looks like the head of the function's definition, in C, C++ or Rust.
fn defines(line: &str, function: &str) -> bool {
    if function.is_empty() || line.trim_end().ends_with(';') {
        return false;
    }
    let head = line.trim_start();
    let unindented = head.len() == line.len();
    line.match_indices(function).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + function.len()..].trim_start().chars().next();
        let whole_word = !before.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let is_head = matches!(after, Some('(')) && unindented || line[..at].trim_end().ends_with("fn");
        whole_word && is_head
    })
}

/// Hashes parts with their lengths, so that different lists of parts never give the same bytes.
struct Parts(Xxh3);

impl Parts {
    fn add(&mut self, part: &[u8]) {
        self.0.update(&(part.len() as u64).to_le_bytes());
        self.0.update(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_what_the_compiler_adds() {
        let name = |text: &str| function_name(&Frame { function: Some(text.into()), ..Frame::default() });
        assert_eq!(name("insert.constprop.0"), "insert");
        assert_eq!(name("list::insert::h0123456789abcdef"), "list::insert");
        assert_eq!(name("list::hash"), "list::hash");
    }

    #[test]
    fn short_names() {
        for (long, short) in [
            ("insert", "insert"),
            ("ns::List<ns::T>::insert(int, char)", "insert"),
            ("list::push<u8>", "push"),
            ("<a::B as c::D>::e", "e"),
            ("", ""),
            ("::", ""),
            (">><<::", ""),
        ] {
            assert_eq!(short_name(long), short, "{long}");
        }
    }

    #[test]
    fn definitions_are_told_from_calls() {
        assert!(defines("static int insert(struct list *l)", "insert"));
        assert!(defines("insert (struct list *l)", "insert"));
        assert!(defines("    pub(crate) fn insert(&mut self) {", "insert"));
        assert!(!defines("    insert(list);", "insert"));
        assert!(!defines("int insert(struct list *);", "insert"));
        assert!(!defines("int reinsert(struct list *l)", "insert"));
    }
}
