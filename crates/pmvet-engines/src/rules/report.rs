//! Turns raw findings into findings.

use pmvet_findings::{Evidence, Finding, Place, Severity, Stack};
use pmvet_model::Mode;

use super::group::{Group, Resolved, group};
use super::raw::{RawFinding, RawFindings, RawPlace};
use super::texts::{Facts, Texts, texts};
use crate::stacks::{Stacks, subject};
use crate::timeline::step::{access, range};

/// Further similar places that a finding shows.
const MAX_LIKE: usize = 5;

/// Resolves, groups and words what [`Rules::finish`](super::Rules::finish) returned.
pub fn report(raw: RawFindings, stacks: &mut dyn Stacks) -> Vec<Finding> {
    let mode = raw.mode;
    let groups = group(raw, stacks);
    groups.into_iter().map(|group| finding(&group, mode, stacks)).collect()
}

fn finding(group: &Group, mode: Mode, stacks: &mut dyn Stacks) -> Finding {
    let first = &group.members[0];
    let words = texts(Facts {
        raw: &first.raw,
        eadr: mode == Mode::Eadr,
        place: &first.place,
        other: first.other.as_ref(),
        flusher: first.flusher.as_ref(),
    });
    let places = places(group, &words, stacks);
    let timeline = first.raw.timeline.iter().map(|step| access(step, stacks)).collect();
    let Texts { title, expected, happened, fix, caveat, .. } = words;
    Finding {
        rule: first.raw.rule.id(),
        severity: first.raw.rule.severity.min(Severity::Warning),
        title,
        places,
        expected,
        happened,
        fix,
        caveat,
        evidence: Evidence::Trace { timeline },
        count: group.members.iter().map(|m| m.raw.count).sum(),
        fingerprint: String::new(),
        replay: None,
    }
}

/// The first place, what belongs to it, and then others like it, each source line once.
fn places(group: &Group, words: &Texts, stacks: &dyn Stacks) -> Vec<Place> {
    let first = &group.members[0];
    let mut places = vec![place(&first.raw.place, &first.place, &words.label, stacks)];
    if let (Some(raw), Some(stack)) = (&first.raw.other, &first.other) {
        places.push(place(raw, stack, &words.other_label, stacks));
    } else if let Some(stack) = &first.flusher {
        let label = "the data of the same store is flushed here at other times".to_owned();
        places.push(Place {
            role: pmvet_findings::Role::Flush,
            stack: stack.clone(),
            thread: None,
            pm: None,
            seq: None,
            label,
        });
    }
    let mut seen = vec![source_line(&first.place)];
    let mut like = 0;
    for member in &group.members[1..] {
        let line = source_line(&member.place);
        if like < MAX_LIKE && !seen.contains(&line) {
            seen.push(line);
            like += 1;
            places.push(place(&member.raw.place, &member.place, &words.label, stacks));
        }
    }
    places
}

fn source_line(stack: &Stack) -> (Option<std::path::PathBuf>, Option<u32>, u64) {
    let frame = subject(stack);
    let offset = if frame.line.is_some() { 0 } else { frame.offset };
    (frame.file.clone(), frame.line, offset)
}

fn place(raw: &RawPlace, stack: &Stack, label: &str, stacks: &dyn Stacks) -> Place {
    Place {
        role: raw.role,
        stack: stack.clone(),
        thread: Some(raw.thread.0),
        pm: raw.pm.map(|pm| range(pm, stacks)),
        seq: Some(raw.seq),
        label: label.into(),
    }
}

impl Resolved {
    pub(super) fn new(raw: RawFinding, stacks: &mut dyn Stacks) -> Self {
        let place = stacks.stack(raw.place.site, raw.place.context);
        let other = raw.other.map(|other| stacks.stack(other.site, other.context));
        let flusher = raw.flusher.map(|(site, context)| stacks.stack(site, context));
        Self { raw, place, other, flusher }
    }
}
