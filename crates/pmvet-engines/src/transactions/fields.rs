//! Finds which field of which struct a store changes, from its source line and the types in the debug information.

use std::path::Path;

use pmvet_findings::stack::last_name;
use pmvet_findings::{Finding, Frame, Role, Sources, rules};
use pmvet_target::symbols::types::{TypeId, Types};

/// A field, or a whole object if it has no name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) name: Option<String>,
    /// The struct around it.
    pub(super) of: String,
}

/// Adds to findings about stores that escape their transactions which field they change. `types_of` gives the types of
/// a module.
pub fn name_fields(findings: &mut [Finding], sources: &Sources, mut types_of: impl FnMut(&Path) -> Types) {
    let mut known: Option<(std::path::PathBuf, Types)> = None;
    for finding in findings.iter_mut().filter(|finding| finding.rule == rules::TX_STORE_NOT_ADDED.id()) {
        let Some(place) = finding.places.first_mut().filter(|place| place.role == Role::Store) else { continue };
        let Some(frame) = place.frame().cloned() else { continue };
        let (Some(text), Some(module)) = (sources.assigned_at(&frame), &frame.module) else { continue };
        if known.as_ref().is_none_or(|(path, _)| path != module) {
            known = Some((module.clone(), types_of(module)));
        }
        let Some((_, types)) = &known else { continue };
        let function = last_name(&frame);
        // A member of the object whose function this is, or a variable.
        let is_plain = text.chars().all(|c| c.is_alphanumeric() || c == '_');
        let is_member = is_plain && variable(&text, function, types).is_empty();
        let text = if is_member { format!("this->{text}") } else { text };
        let Some(field) = field_of(&text, function, types) else { continue };
        if let Some(pm) = place.pm.as_mut().filter(|_| is_member) {
            pm.object.get_or_insert(text);
        }
        tell(finding, &frame, &field);
    }
}

fn tell(finding: &mut Finding, frame: &Frame, field: &Field) {
    let line = frame.line.unwrap_or(0);
    let told = match &field.name {
        Some(name) => format!(" What line {line} changes is `{name}` of a `{}`.", field.of),
        None => format!(" What line {line} changes is a whole `{}`.", field.of),
    };
    finding.happened.push_str(&told);
}

/// What an expression names: `D_RW(list)->head`, `list->head`, `*node`.
pub(super) fn field_of(text: &str, function: &str, types: &Types) -> Option<Field> {
    let (whole, text) = match text.strip_prefix('*') {
        Some(rest) => (true, rest.trim()),
        None => (false, text),
    };
    let mut steps = steps(text).into_iter();
    let head = steps.next()?;
    let inside = ["D_RW(", "DIRECT_RW("].iter().find_map(|name| head.strip_prefix(name)?.strip_suffix(')'));
    let mut of = structs(&variable(inside.unwrap_or(&head), function, types), types);
    if inside.is_some() {
        // A `TOID` has an unused member of the type that it stands for.
        of = structs(types.member(&of, "_type")?.of.as_slice(), types);
    }
    let mut name = None;
    for step in steps {
        if let Some(last) = name.replace(step) {
            of = structs(types.member(&of, &last)?.of.as_slice(), types);
        }
    }
    match &name {
        Some(name) => drop(types.member(&of, name)?),
        None if whole => {}
        None => return None,
    }
    let of = types.struct_name(*of.first()?)?.to_owned();
    Some(Field { name, of })
}

/// The types that a variable of this name may have.
fn variable(name: &str, function: &str, types: &Types) -> Vec<TypeId> {
    let locals = types.locals(function, name);
    if locals.is_empty() { types.globals(name).to_vec() } else { locals.to_vec() }
}

fn structs(of: &[TypeId], types: &Types) -> Vec<TypeId> {
    of.iter().filter_map(|&id| types.struct_of(id)).collect()
}

/// The names on the way to a field, without the numbers of elements.
fn steps(text: &str) -> Vec<String> {
    let (mut steps, mut depth) = (vec![String::new()], 0_u32);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ if depth > 0 => {}
            '(' => {
                // What is in parentheses belongs to one name.
                let mut open = 1_u32;
                steps.last_mut().into_iter().for_each(|step| step.push('('));
                for c in rest.by_ref() {
                    open = if c == '(' {
                        open + 1
                    } else if c == ')' {
                        open - 1
                    } else {
                        open
                    };
                    steps.last_mut().into_iter().for_each(|step| step.push(c));
                    if open == 0 {
                        break;
                    }
                }
            }
            '.' => steps.push(String::new()),
            '-' if rest.peek() == Some(&'>') => {
                rest.next();
                steps.push(String::new());
            }
            c => steps.last_mut().into_iter().for_each(|step| step.push(c)),
        }
    }
    steps.iter_mut().for_each(|step| *step = step.trim().to_owned());
    steps
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn expressions_are_split_into_names() {
        assert_eq!(steps("D_RW(r)->slots[f(a.b)].key"), ["D_RW(r)", "slots", "key"]);
        assert_eq!(steps("q->tail->next"), ["q", "tail", "next"]);
        assert_eq!(steps("D_RW(D_RO(r)->head)->next"), ["D_RW(D_RO(r)->head)", "next"]);
        assert_eq!(steps(""), [""]);
        assert_eq!(steps("a(b"), ["a(b"]);
    }

    #[test]
    fn without_debug_information_nothing_is_said() {
        assert_eq!(field_of("q->tail", "push", &Types::default()), None);
        assert_eq!(field_of("*node", "push", &Types::default()), None);
    }
}
