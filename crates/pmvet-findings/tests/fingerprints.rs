//! The same bug has the same fingerprint in another build; two bugs have two.

mod common;

use common::{FILE, SOURCE, finding, frame, line, place};
use pmvet_findings::{Finding, Frame, Role, Sources, fingerprint::Fingerprinter, rules};

fn fingerprint(finding: &Finding, source: &str) -> String {
    Fingerprinter::new(&Sources::in_memory([(FILE, source)])).fingerprint(finding)
}

/// A finding at the n-th line with this text.
fn at(source: &str, function: &str, text: &str, nth: usize) -> Finding {
    let stack =
        vec![frame(function, line(source, text, nth)), frame("main", line(source, &format!("\t{function}(list"), 0))];
    finding(rules::UNPERSISTED_STORE, vec![place(Role::Store, stack)])
}

fn fingerprint_of(source: &str, function: &str, text: &str, nth: usize) -> String {
    fingerprint(&at(source, function, text, nth), source)
}

#[test]
fn lines_may_shift() {
    let license = format!("/* a license */\n\n{SOURCE}");
    let debug = SOURCE.replace("\tlist->head = node;", "\tprintf(\"x\");\n\tlist->head = node;");
    let indented = SOURCE.replace('\t', "        ");
    let other_function =
        SOURCE.replace("static void\npush", "static void\nearlier(void)\n{\n\tpersist(node);\n}\n\nstatic void\npush");
    for (text, nth) in [("node->next =", 0), ("persist(node)", 0), ("persist(node)", 1), ("list->head = node", 0)] {
        let expected = fingerprint_of(SOURCE, "push", text, nth);
        assert_eq!(fingerprint_of(&license, "push", text, nth), expected, "lines at the top");
        assert_eq!(fingerprint_of(&debug, "push", text, nth), expected, "a line in the function");
        let more = usize::from(text.starts_with("persist"));
        assert_eq!(
            fingerprint_of(&other_function, "push", text, nth + more),
            expected,
            "the same line in another function"
        );
        let stack = vec![frame("push", line(&indented, text, nth)), frame("main", line(&indented, " push(list", 0))];
        let finding = finding(rules::UNPERSISTED_STORE, vec![place(Role::Store, stack)]);
        assert_eq!(fingerprint(&finding, &indented), expected, "another indentation");
    }
}

#[test]
fn two_bugs_in_one_function_differ() {
    let places =
        [("node->next =", 0), ("persist(node)", 0), ("persist(node)", 1), ("list->head = node", 0), ("list->count", 0)];
    let mut all: Vec<String> = places.iter().map(|(text, nth)| fingerprint_of(SOURCE, "push", text, *nth)).collect();
    all.push(fingerprint_of(SOURCE, "pop", "persist(node)", 2));
    all.sort();
    let count = all.len();
    all.dedup();
    assert_eq!(all.len(), count);
}

#[test]
fn what_differs_from_run_to_run_does_not_matter() {
    let first = at(SOURCE, "push", "node->next", 0);
    let expected = fingerprint(&first, SOURCE);
    let mut other = first.clone();
    other.count = 99;
    other.title = "another title".into();
    other.places[0].thread = Some(5);
    other.places[0].seq = Some(123_456);
    other.places[0].stack.iter_mut().for_each(|frame| frame.offset += 0x1000);
    other.places[0].stack[0].function = Some("push.constprop.0".into());
    let recovery = place(Role::Recovery, vec![frame("anything", 3)]);
    other.places.push(recovery);
    assert_eq!(fingerprint(&other, SOURCE), expected);
    // A library in between, and recursion.
    let libc = Frame { function: Some("memcpy".into()), module: Some("/lib/x/libc.so.6".into()), ..Frame::default() };
    other.places[0].stack.insert(0, libc);
    let again = other.places[0].stack[1].clone();
    other.places[0].stack.insert(2, again);
    assert_eq!(fingerprint(&other, SOURCE), expected);
}

#[test]
fn rule_role_and_callers_matter() {
    let first = at(SOURCE, "push", "node->next", 0);
    let expected = fingerprint(&first, SOURCE);
    let mut rule = first.clone();
    rule.rule = rules::DIRTY_OVERWRITE.id();
    let mut role = first.clone();
    role.places[0].role = Role::Load;
    let mut caller = first.clone();
    caller.places[0].stack[1].function = Some("other".into());
    let mut second = first.clone();
    second.places.push(place(Role::Flush, vec![frame("push", line(SOURCE, "persist", 0))]));
    for other in [rule, role, caller, second] {
        assert_ne!(fingerprint(&other, SOURCE), expected);
    }
}

#[test]
fn without_source_there_is_the_offset() {
    let nowhere = Sources::default();
    let of = |finding: &Finding| Fingerprinter::new(&nowhere).fingerprint(finding);
    let first = at(SOURCE, "push", "node->next", 0);
    let second = at(SOURCE, "push", "list->count", 0);
    assert_ne!(of(&first), of(&second));
    let mut moved = first.clone();
    moved.places[0].stack.iter_mut().for_each(|frame| frame.offset += 0x1000);
    assert_eq!(of(&moved), of(&first), "the function moved as a whole");
    let mut empty = first.clone();
    empty.places[0].stack.clear();
    assert_eq!(of(&empty).len(), 32);
    empty.places.clear();
    assert_eq!(of(&empty).len(), 32);
}

#[test]
fn of_a_race_the_store_and_its_caller_count() {
    let race = |callers: &[&str]| {
        let mut stack = vec![frame("push", line(SOURCE, "list->head = node", 0))];
        stack.extend(callers.iter().map(|caller| frame(caller, 1)));
        fingerprint(&finding(rules::PERSISTENCY_RACE, vec![place(Role::Store, stack)]), SOURCE)
    };
    assert_eq!(race(&["insert", "fill", "main"]), race(&["insert", "worker"]), "another path");
    assert_ne!(race(&["insert", "main"]), race(&["move", "main"]), "another caller");
}
