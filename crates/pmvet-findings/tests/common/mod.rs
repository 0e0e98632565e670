//! Findings about a small program, by the text of its lines.

#![allow(dead_code, reason = "each test uses a part")]

use pmvet_findings::{Evidence, Finding, Frame, Place, Role, Rule, Severity};

pub(crate) const FILE: &str = "/home/dev/list.c";

pub(crate) const SOURCE: &str = "\
#include <libpmem.h>

static void
push(struct list *list, struct node *node)
{
	node->next = list->head;
	persist(node);
	list->head = node;
	persist(node);
	list->count++;
}

static void
pop(struct list *list)
{
	list->head = list->head->next;
	persist(node);
}

int
main(void)
{
	push(list, node);
	pop(list);
}
";

/// The number of the n-th line with this text.
pub(crate) fn line(source: &str, text: &str, nth: usize) -> u32 {
    let lines = source.lines().enumerate().filter(|(_, line)| line.contains(text));
    lines.map(|(index, _)| index as u32 + 1).nth(nth).expect("a line with this text")
}

pub(crate) fn frame(function: &str, line: u32) -> Frame {
    Frame {
        function: Some(function.into()),
        function_offset: Some(u64::from(line) * 3),
        file: Some(FILE.into()),
        line: Some(line),
        module: Some("/home/dev/list".into()),
        offset: u64::from(line) * 1000,
        ..Frame::default()
    }
}

pub(crate) fn place(role: Role, stack: Vec<Frame>) -> Place {
    Place { role, stack, thread: Some(1), pm: None, seq: Some(7), label: "here".into() }
}

pub(crate) fn finding(rule: &Rule, places: Vec<Place>) -> Finding {
    Finding {
        rule: rule.id(),
        severity: Severity::Warning,
        title: "something is wrong".into(),
        places,
        expected: "this".into(),
        happened: "that".into(),
        fix: "change it".into(),
        caveat: None,
        evidence: Evidence::Trace { timeline: vec![] },
        count: 1,
        fingerprint: String::new(),
        replay: None,
    }
}
