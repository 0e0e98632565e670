//! A proven race in words.

use pmvet_findings::finding::CrashImage;
use pmvet_findings::{Evidence, Finding, Outcome, Place, PmRange, Role, Severity, TimelineStep, rules};

use super::flow::{Flow, SideEffect};
use super::meetings::{Meeting, MeetingCrash, PmAccess};
use super::verdict::RaceVerdict;
use crate::causes::words::function_of;
use crate::lab::Tried;
use crate::lab::evidence::{StackLookup, UsualRecovery, recovered};
use crate::lab::native::NativeStacks;
use crate::stacks::{self, Stacks};

/// How a race was proven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    /// The writer was stopped after its store.
    pub forced: bool,
    /// What recoveries say: a verdict that proves something.
    pub verdict: RaceVerdict,
    /// Locks that stay held after a crash were freed first.
    pub frees_locks: bool,
    /// A store before the one that was read, whose loss alone is fatal.
    pub culprit: Option<PmAccess>,
}

/// A race, and the recovery that fails because of it.
pub fn confirmed(
    meeting: &Meeting,
    crash: &MeetingCrash,
    tried: &Tried,
    how: Proof,
    setting: &UsualRecovery,
    names: &mut StackLookup<'_>,
) -> Finding {
    let (blamed, all_lost) = match &how.culprit {
        Some(culprit) => (culprit, std::slice::from_ref(culprit)),
        None => (&meeting.store, &crash.lost[..]),
    };
    let read = all_lost.iter().any(|end| end.seq == blamed.seq);
    let taken_back = how.verdict == RaceVerdict::TakenBack;
    let label = match (read, all_lost.len()) {
        _ if taken_back => "recovery takes this store back, or does not count it yet",
        (true, 1) => "this store is lost in the crash",
        (true, _) => "this store is lost in the crash, with what its thread had stored before it",
        (false, _) => "what its thread had stored before this and not persisted is lost in the crash",
    };
    let store = place(Role::Store, blamed, label, names.stacks);
    let lost = all_lost
        .iter()
        .filter(|_| !taken_back)
        .map(|end| place(Role::Store, end, "lost in the crash", names.stacks))
        .collect();
    let (role, label) = match meeting.read {
        true if how.culprit.is_some() => (Role::Load, "what was stored after it is read"),
        true if meeting.is_intra() => (Role::Load, "its thread reads it before it is persistent"),
        true => (Role::Load, "another thread reads it before it is persistent"),
        false => (Role::FailurePoint, "another thread goes on before it is persistent"),
    };
    let load = place(role, &meeting.load, label, names.stacks);
    let label = match crash.answered {
        true => format!("the program has answered by here: recovery {}", tried.outcome),
        false => format!("what others have done by here survives: recovery {}", tried.outcome),
    };
    let role = if crash.fenced { Role::Fence } else { Role::FailurePoint };
    let act = place(role, &crash.act, &label, names.stacks);
    let (writer, reader) = (function_of(&store), function_of(&load));
    let stopped = match how.forced {
        true => format!("pmvet stopped {writer} after its store, and "),
        false => String::new(),
    };
    let did = match meeting.read {
        true if how.culprit.is_some() => format!("{reader} read what was stored after it and went on"),
        true if meeting.is_intra() => format!("{reader} read the value in the same thread and went on"),
        true => format!("{reader} read the value in another thread and went on"),
        false => format!(
            "{reader} went on in another thread. It has not read the store; whether it knows of it through ordinary memory is not known"
        ),
    };
    let else_ = match how.verdict {
        RaceVerdict::TakenBack => format!("It works just before {reader} goes on, whether the store is lost or not."),
        RaceVerdict::OthersActed => format!(
            "It works if nothing is lost, and before the store. {writer} has done nothing since: what others did relies on the store, \
             and {reader} is not the first of them."
        ),
        RaceVerdict::WriterAlone => format!(
            "It works if nothing is lost, and before the store. {writer} itself relies on the store before it is \
             persistent: recovery fails even if {reader} has not gone on yet."
        ),
        _ if how.culprit.is_some() => format!(
            "It works if nothing is lost, and if the same and what its thread stored next is lost before {reader} goes on."
        ),
        _ => format!("It works if nothing is lost, and if the same is lost before {reader} goes on."),
    };
    let free = match how.frees_locks {
        true => " Locks that stay held after a crash are a finding of their own, and free in these images.",
        false => "",
    };
    let native = names.natives.stack(&tried.stack);
    let mut places = vec![store, load, act];
    places.extend(stacks::recovery_place(&native, &tried.outcome));
    let step = |at: usize, what: &str| TimelineStep {
        seq: places[at].seq.unwrap_or_default(),
        thread: places[at].thread.unwrap_or_default(),
        what: what.into(),
        pm: places[at].pm.clone(),
        at: places[at].frame().cloned(),
    };
    let what = match (read, all_lost.len()) {
        (true, 1) => "the store is",
        (true, _) => "the store and others before it are",
        (false, _) => "others before the store are",
    };
    let survives = match taken_back {
        true => format!("what {reader} did stays, and what {writer} had begun does not, even if nothing is lost"),
        false => format!("what others did since the store survives, and {what} lost"),
    };
    let acted = match (crash.answered, crash.fenced) {
        (true, _) => "answered",
        (false, true) => "fenced",
        (false, false) => "stored",
    };
    let (rule, harm) = match &tried.outcome {
        Outcome::Content { violation, .. } => (violation.rule().id(), violation.title()),
        _ => (rules::PERSISTENCY_RACE.id(), "recovery fails"),
    };
    let timeline = vec![
        step(0, "stored"),
        step(1, if meeting.read { "loaded" } else { "fenced" }),
        step(2, acted),
        TimelineStep { what: "crash".into(), ..step(2, "") },
    ];
    let mut finding = Finding {
        rule,
        severity: Severity::Error,
        title: format!("{reader} acts on what {writer} has stored but not persisted, and {harm}"),
        expected: "A value is persistent before another thread can read it and act on it.".into(),
        happened: format!(
            "Confirmed: {stopped}{did}. If the machine fails then, {survives}: recovery {}. {else_}{free}",
            tried.outcome
        ),
        fix: match taken_back {
            true => format!(
                "Keep {reader} out until what {writer} does is complete and persistent, such as by a lock that is held until the \
                 transaction is committed."
            ),
            false => format!(
                "Flush and fence the value in {writer} before another thread can read it, keep readers out until then, or let \
             {reader} flush and fence what it has read before it acts on it."
            ),
        },
        caveat: None,
        evidence: Evidence::Crash {
            image: CrashImage {
                seq: crash.seq,
                unpersisted: Vec::new(),
                unpersisted_total: 0,
                lost,
                choice: match (read, crash.lost.len()) {
                    _ if taken_back => "every store so far is in PM".into(),
                    (true, 1) => "the store that was read too early is lost, everything else is in PM".into(),
                    _ => "what the writer had not persisted when it was read is lost, everything else is in PM".into(),
                },
                hash: tried.image.clone(),
                diff: Vec::new(),
            },
            recovery: recovered(tried, setting, native),
            timeline,
        },
        places,
        count: 1,
        fingerprint: String::new(),
        replay: None,
    };
    if let Some(flow) = &meeting.flow {
        add_flow(&mut finding, flow, Some(crash.seq), names.stacks);
    }
    finding
}

/// Adds to a proven race where the value had gone by the crash before this event; or, without one, where it went in another run, whose
/// threads and events have numbers of their own. Returns whether that is news.
pub fn add_flow(finding: &mut Finding, flow: &Flow, crash: Option<u64>, stacks: &mut dyn Stacks) -> bool {
    if finding.places.iter().any(|place| place.role == Role::SideEffect) {
        return false;
    }
    let mut by_then = flow.effects.iter().filter(|effect| crash.is_none_or(|crash| effect.end.seq < crash));
    let Some(effect) = by_then.next() else { return false };
    let mut place = side_effect(effect, stacks);
    if crash.is_none() {
        (place.thread, place.seq) = (None, None);
    }
    finding.places.push(place);
    finding.happened.push(' ');
    finding.happened.push_str(&describe(effect, stacks));
    true
}

/// The place of a store that depends on a value that its thread read too early.
pub fn side_effect(effect: &SideEffect, stacks: &mut dyn Stacks) -> Place {
    let label = match effect {
        SideEffect { output: true, .. } => "output that depends on the value",
        SideEffect { content: true, address: true, .. } => "what is stored, and where, depends on the value",
        SideEffect { content: true, .. } => "what is stored here depends on the value",
        SideEffect { .. } => "where this stores depends on the value",
    };
    place(Role::SideEffect, &effect.end, label, stacks)
}

/// The same in a sentence.
pub fn describe(effect: &SideEffect, stacks: &mut dyn Stacks) -> String {
    let place = side_effect(effect, stacks);
    let (who, what) = (function_of(&place), if effect.content { "content" } else { "place" });
    match &place.pm {
        Some(PmRange { file, offset, len, .. }) => format!(
            "A durable side effect: {who} stores {len} bytes at {:#x} of {}, whose {what} depends on the value.",
            offset,
            file.file_name().unwrap_or(file.as_os_str()).display()
        ),
        None => format!("A side effect that cannot be taken back: {who} writes out what depends on the value."),
    }
}

/// A lock that a crash left held, and the recovery, or what comes after it, that fails because of it.
pub fn lock_left_held(
    finding: &mut Finding,
    crash_at: u64,
    tried: &Tried,
    setting: &UsualRecovery,
    natives: &mut NativeStacks,
) {
    let stack = natives.stack(&tried.stack);
    finding.severity = Severity::Error;
    finding.caveat = None;
    finding.happened.push_str(&format!(" Confirmed: after a crash while it is held, recovery {}.", tried.outcome));
    let timeline = match &mut finding.evidence {
        Evidence::Trace { timeline } => std::mem::take(timeline),
        _ => Vec::new(),
    };
    finding.places.extend(stacks::recovery_place(&stack, &tried.outcome));
    finding.evidence = Evidence::Crash {
        image: CrashImage {
            seq: crash_at,
            unpersisted: Vec::new(),
            unpersisted_total: 0,
            lost: Vec::new(),
            choice: "every store so far is in PM, and the lock is held".into(),
            hash: tried.image.clone(),
            diff: Vec::new(),
        },
        recovery: recovered(tried, setting, stack),
        timeline,
    };
}

fn place(role: Role, end: &PmAccess, label: &str, stacks: &mut dyn Stacks) -> Place {
    let pm = (end.len > 0).then(|| PmRange {
        file: stacks.file(end.line.file),
        offset: end.offset,
        len: end.len,
        object: None,
    });
    Place {
        role,
        stack: stacks.stack(end.site, end.context),
        thread: Some(end.thread.0),
        pm,
        seq: Some(end.seq),
        label: label.into(),
    }
}
