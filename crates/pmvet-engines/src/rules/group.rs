//! Groups raw findings: one finding per cause.
//!
//! A flush or fence is its own cause: one finding per source line. A forgotten flush affects all stores of a function,
//! and a wiped object is overwritten field by field: one finding per function, or pair of functions. If recovery needs several
//! objects that one function does not flush, each is a finding.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use pmvet_events::event::LINE;
use pmvet_events::{ContextId, SiteId};
use pmvet_findings::{Frame, Role, Rule, Stack, rules};

use super::known::harmless;
use super::raw::{RawFinding, RawFindings};
use crate::causes::unflushed::UnflushedStore;
use crate::stacks::{Stacks, named, subject, user_frame};

/// A raw finding with its places.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) raw: RawFinding,
    pub(super) place: Stack,
    pub(super) other: Option<Stack>,
    pub(super) flusher: Option<Stack>,
}

/// Never empty; what recovery needs comes first, then the earliest.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) members: Vec<Resolved>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct GroupKey {
    /// Position in the catalogue.
    rule: usize,
    place: SourcePlace,
    other: Option<SourcePlace>,
}

/// A function, or a line of one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct SourcePlace {
    module: Option<PathBuf>,
    function: Option<String>,
    /// Offset of the instruction, if the function is unknown.
    offset: Option<u64>,
    line: Option<u32>,
}

pub(super) fn group(raw: RawFindings, stacks: &mut dyn Stacks) -> Vec<Group> {
    let mut all: Vec<Resolved> = raw.findings.into_iter().map(|raw| Resolved::new(raw, stacks)).collect();
    all.retain(|r| harmless(r.raw.rule, &r.place, r.other.as_ref(), r.flusher.as_ref()).is_none());
    promote(&mut all, &raw.persisted, stacks);
    leave_out_consequences(&mut all);
    let mut groups: BTreeMap<GroupKey, Vec<Resolved>> = BTreeMap::new();
    for resolved in all {
        groups.entry(cause(&resolved)).or_default().push(resolved);
    }
    join_inlined(&mut groups);
    join_callees(&mut groups);
    let mut groups: Vec<Group> = groups.into_values().flat_map(by_object).collect();
    for group in &mut groups {
        group.members.sort_by_key(|m| (!m.raw.needed, m.raw.place.seq));
    }
    let order = |g: &Group| (rule_order(&g.members[0].raw), g.members[0].raw.place.seq);
    groups.sort_by_key(order);
    groups
}

/// Data that is never flushed counts as forgotten, not as meant to be volatile, if its source line stores other data that
/// is flushed, if it lies beside flushed data and its function stores other data that is flushed, if its function fences
/// without having flushed anything, or if recovery needs other parts of an object that the function fills.
fn promote(all: &mut Vec<Resolved>, persisted: &[(SiteId, ContextId)], stacks: &mut dyn Stacks) {
    let is = |r: &Resolved, rule: &Rule| r.raw.rule.id == rule.id;
    if !all.iter().any(|r| is(r, rules::TRANSIENT_DATA)) {
        return;
    }
    let persisted: Vec<Stack> = persisted.iter().map(|&(site, context)| stacks.stack(site, context)).collect();
    let lines: BTreeSet<SourcePlace> = persisted.iter().map(|stack| SourcePlace::from_stack(stack, true)).collect();
    let functions: BTreeSet<SourcePlace> =
        persisted.iter().map(|stack| SourcePlace::from_stack(stack, false)).collect();
    let fencing: BTreeSet<SourcePlace> =
        all.iter().filter(|r| r.raw.stores_before).map(|r| SourcePlace::from_stack(&r.place, false)).collect();
    let (needed, mut others): (Vec<_>, Vec<_>) = std::mem::take(all).into_iter().partition(|r| r.raw.needed);
    for resolved in others.iter_mut().filter(|r| is(r, rules::TRANSIENT_DATA)) {
        let function = SourcePlace::from_stack(&resolved.place, false);
        let beside = resolved.raw.beside_flushed && functions.contains(&function);
        let in_function = needed.iter().filter(|needed| SourcePlace::from_stack(&needed.place, false) == function);
        let is_part = in_function.into_iter().any(|needed| fill_one_object(needed, resolved));
        if beside
            || is_part
            || fencing.contains(&function)
            || lines.contains(&SourcePlace::from_stack(&resolved.place, true))
        {
            resolved.raw.rule = rules::UNPERSISTED_STORE;
        }
    }
    all.extend(needed.into_iter().chain(others));
}

/// A missing flush makes overwrites dirty and leaves fences nothing to wait for, and what a transaction does not cover is not flushed: such
/// consequences are not reported again.
fn leave_out_consequences(all: &mut Vec<Resolved>) {
    let lost = |r: &&Resolved| [rules::UNPERSISTED_STORE.id, rules::TRANSIENT_DATA.id].contains(&r.raw.rule.id);
    let escapes = |r: &&Resolved| r.raw.rule.id == rules::TX_STORE_NOT_ADDED.id;
    let escaping: BTreeSet<SourcePlace> =
        all.iter().filter(escapes).map(|r| SourcePlace::from_stack(&r.place, true)).collect();
    let of_escape = |r: &Resolved| {
        let at = |stack: &Stack| escaping.contains(&SourcePlace::from_stack(stack, true));
        let overwrites =
            r.raw.rule.id == rules::DIRTY_OVERWRITE.id && (at(&r.place) || r.other.as_ref().is_some_and(at));
        lost(&r) && at(&r.place) || overwrites
    };
    all.retain(|r| !of_escape(r));
    let spots: BTreeSet<SourcePlace> =
        all.iter().filter(lost).map(|r| SourcePlace::from_stack(&r.place, true)).collect();
    let around: BTreeSet<String> =
        all.iter().filter(lost).flat_map(|r| r.place.iter().filter_map(|f| f.function.clone())).collect();
    all.retain(|r| {
        let id = r.raw.rule.id;
        let overwrites_lost =
            r.other.as_ref().is_some_and(|other| spots.contains(&SourcePlace::from_stack(other, true)));
        let fences_lost =
            r.raw.stores_before && subject(&r.place).function.as_ref().is_some_and(|f| around.contains(f));
        !(id == rules::DIRTY_OVERWRITE.id && overwrites_lost || id == rules::REDUNDANT_FENCE.id && fences_lost)
    });
}

fn cause(resolved: &Resolved) -> GroupKey {
    let stores = resolved.raw.place.role == Role::Store;
    GroupKey {
        rule: rule_order(&resolved.raw),
        place: SourcePlace::from_stack(&resolved.place, !stores),
        other: resolved.other.as_ref().filter(|_| stores).map(|other| SourcePlace::from_stack(other, false)),
    }
}

fn rule_order(raw: &RawFinding) -> usize {
    rules::ALL.iter().position(|rule| rule.id == raw.rule.id).unwrap_or(usize::MAX)
}

impl SourcePlace {
    fn from_stack(stack: &Stack, with_line: bool) -> Self {
        let frame = subject(stack);
        Self {
            module: frame.module.clone(),
            function: named(stack).function.clone(),
            offset: frame.function.is_none().then_some(frame.offset),
            line: frame.line.filter(|_| with_line),
        }
    }
}

/// The compiler attributes the store of a computed value to the function that computed it, which may be a small one from a header.
/// If the function around it has the same problem, both are one.
fn join_inlined(groups: &mut BTreeMap<GroupKey, Vec<Resolved>>) {
    let causes: Vec<GroupKey> = groups.keys().cloned().collect();
    for cause in &causes {
        let Some(outer) = groups.get(cause).map(|members| functions_around(&members[0].place)) else { continue };
        let is_around = |c: &&GroupKey| {
            let known = c.place.function.as_ref().is_some_and(|f| outer.contains(f));
            known && c.rule == cause.rule && c.place.module == cause.place.module && *c != cause
        };
        let Some(around) = causes.iter().filter(|c| groups.contains_key(c)).find(is_around) else { continue };
        let around = around.clone();
        if let Some(mut members) = groups.remove(cause) {
            // The line that counts is the one into which it was inlined.
            members.iter_mut().for_each(|member| pass_to(&mut member.place, around.place.function.as_deref()));
            groups.entry(around).or_default().extend(members);
        }
    }
}

/// Blames a function for the stores of functions that are inlined into it.
fn pass_to(stack: &mut Stack, function: Option<&str>) {
    let outer = stack.iter().position(|frame| frame.function.as_deref() == function);
    for frame in stack.iter_mut().take(outer.unwrap_or(0)) {
        frame.wrapper = true;
    }
}

/// If a function stores, calls another one that stores to the same cache line, and does not flush it afterwards, one flush is missing, not
/// two.
fn join_callees(groups: &mut BTreeMap<GroupKey, Vec<Resolved>>) {
    let unpersisted = rules::ALL.iter().position(|rule| rule.id == rules::UNPERSISTED_STORE.id);
    let causes: Vec<GroupKey> = groups.keys().filter(|key| Some(key.rule) == unpersisted).cloned().collect();
    for callee in &causes {
        let caller = causes.iter().find(|caller| {
            let pair = groups.get(callee).zip(groups.get(caller)).filter(|_| caller != &callee);
            pair.is_some_and(|(inner, outer)| inner.iter().any(|inner| outer.iter().any(|o| is_called_by(inner, o))))
        });
        if let Some(caller) = caller
            && let Some(members) = groups.remove(callee)
        {
            groups.entry(caller.clone()).or_default().extend(members);
        }
    }
}

/// Whether the function of one store was called, in the same place, by the function of the other, and both left the same line
/// unflushed.
fn is_called_by(inner: &Resolved, outer: &Resolved) -> bool {
    let line = |resolved: &Resolved| resolved.raw.place.pm.map(|pm| (pm.file, pm.offset / LINE));
    let shares_line = line(inner).is_some() && line(inner) == line(outer);
    let Some(at) = user_frame(&outer.place).filter(|_| shares_line) else { return false };
    let (caller, above) = (&outer.place[at], &outer.place[at + 1..]);
    let calls = inner.place.len().checked_sub(above.len() + 1).filter(|&calls| calls > 0);
    calls.is_some_and(|calls| inner.place[calls].function == caller.function && inner.place[calls + 1..] == *above)
}

/// The members of one group, apart by the objects that they fill if recovery needs several of these. What it does not need goes with the
/// object that it belongs to, or with the first.
fn by_object(members: Vec<Resolved>) -> Vec<Group> {
    let (needed, others): (Vec<_>, Vec<_>) = members.into_iter().partition(|member| member.raw.needed);
    let mut objects: Vec<Group> = Vec::new();
    for member in needed {
        // It may show that what seemed to be several objects is one.
        let (same, apart): (Vec<Group>, Vec<Group>) =
            objects.into_iter().partition(|object| object.has_beside(&member));
        let members = same.into_iter().flat_map(|object| object.members).chain([member]).collect();
        objects = apart;
        objects.push(Group { members });
    }
    for member in others {
        match objects.iter().position(|object| object.has_beside(&member)).or(objects.len().checked_sub(1).map(|_| 0)) {
            Some(at) => objects[at].members.push(member),
            None => objects.push(Group { members: vec![member] }),
        }
    }
    objects
}

impl Group {
    fn has_beside(&self, other: &Resolved) -> bool {
        self.members.iter().any(|member| fill_one_object(member, other))
    }
}

/// Whether two stores that are lost fill the same object: the same line of the program does, or they lie near each other and come soon after
/// each other.
fn fill_one_object(one: &Resolved, other: &Resolved) -> bool {
    let lost = |resolved: &Resolved| -> Vec<UnflushedStore> {
        resolved.raw.lost.iter().map(|lost| UnflushedStore { line: lost.line, seq: lost.seq }).collect()
    };
    let others = lost(other);
    SourcePlace::from_stack(&one.place, true) == SourcePlace::from_stack(&other.place, true)
        || lost(one).iter().any(|store| others.iter().any(|other| store.is_beside(*other)))
}

/// The functions of other source files into which the user's frame was inlined.
fn functions_around(stack: &Stack) -> Vec<String> {
    let file = |frame: &Frame| frame.file.as_deref().and_then(Path::file_name).map(ToOwned::to_owned);
    let Some(at) = user_frame(stack) else { return Vec::new() };
    let inlined = stack[at..].iter().take_while(|frame| frame.inlined).count();
    let around = stack[at..].iter().take(inlined + 1).filter(|frame| file(frame) != file(&stack[at]));
    around.filter_map(|frame| frame.function.clone()).collect()
}
