//! A proven race in words.

use pmvet_findings::finding::CrashImage;
use pmvet_findings::{Access, Evidence, Finding, Place, PmRange, Role, Severity, rules};

use super::meetings::{Crash, End, Meeting};
use crate::inject::Tried;
use crate::inject::findings::{Names, Setting, recovered};
use crate::native::NativeStacks;
use crate::stacks::Stacks;

/// A race, and the recovery that fails because of it. `forced`: the writer was stopped after its store.
pub fn confirmed(
    meeting: &Meeting,
    crash: &Crash,
    tried: &Tried,
    forced: bool,
    setting: &Setting,
    names: &mut Names<'_>,
) -> Finding {
    let store = place(Role::Store, &meeting.store, "this store is lost in the crash", names.stacks);
    let load = place(Role::Load, &meeting.load, "another thread reads it before it is persistent", names.stacks);
    let label = format!("what others have done by here survives: recovery {}", tried.outcome);
    let role = if crash.fenced { Role::Fence } else { Role::FailurePoint };
    let act = place(role, &crash.act, &label, names.stacks);
    let (writer, reader) = (function(&store), function(&load));
    let how = match forced {
        true => format!("pmvet stopped {writer} after its store, and "),
        false => String::new(),
    };
    let native = names.natives.stack(&tried.stack);
    let mut places = vec![store, load, act];
    if !native.is_empty() {
        let label = format!("recovery {}", tried.outcome);
        places.push(Place { role: Role::Recovery, stack: native.clone(), thread: None, pm: None, seq: None, label });
    }
    let step = |at: usize, what: &str| Access {
        seq: places[at].seq.unwrap_or_default(),
        thread: places[at].thread.unwrap_or_default(),
        what: what.into(),
        pm: places[at].pm.clone(),
        at: places[at].frame().cloned(),
    };
    let acted = if crash.fenced { "fenced" } else { "stored" };
    let timeline =
        vec![step(0, "stored"), step(1, "loaded"), step(2, acted), Access { what: "crash".into(), ..step(2, "") }];
    Finding {
        rule: rules::PERSISTENCY_RACE.id(),
        severity: Severity::Error,
        title: format!("{reader} acts on what {writer} has stored but not persisted, and recovery fails"),
        expected: "A value is persistent before another thread can read it and act on it.".into(),
        happened: format!(
            "Confirmed: {how}{reader} read the value in another thread and went on. If the machine fails then, what \
             others did since the store survives, and the store is lost: recovery {}. It works if both survive, and if \
             neither does.",
            tried.outcome
        ),
        fix: format!(
            "Flush and fence the value in {writer} before another thread can read it, keep readers out until then, or let \
             {reader} flush and fence what it has read before it acts on it."
        ),
        caveat: None,
        evidence: Evidence::Crash {
            image: CrashImage {
                seq: crash.seq,
                unpersisted: Vec::new(),
                unpersisted_total: 0,
                lost: vec![Place { label: "lost in the crash".into(), ..places[0].clone() }],
                choice: "the store that was read too early is lost, everything else is in PM".into(),
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
    }
}

/// A lock that a crash left held, and the recovery, or what comes after it, that fails because of it.
pub fn lock_left_held(
    finding: &mut Finding,
    crash_at: u64,
    tried: &Tried,
    setting: &Setting,
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
    if !stack.is_empty() {
        let label = format!("recovery {}", tried.outcome);
        let place = Place { role: Role::Recovery, stack: stack.clone(), thread: None, pm: None, seq: None, label };
        finding.places.push(place);
    }
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

fn place(role: Role, end: &End, label: &str, stacks: &mut dyn Stacks) -> Place {
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

fn function(place: &Place) -> String {
    match place.frame().and_then(|frame| frame.function.as_deref()) {
        Some(function) => format!("`{function}`"),
        None => "code without a name".into(),
    }
}
