//! Failures of test cases, as findings: each is run once more, natively, and counts only if it fails again.

use std::collections::BTreeMap;

use pmvet_engines::fuzz::campaign::{FailedCase, FuzzError};
use pmvet_engines::fuzz::store::Origin;
use pmvet_engines::lab::native::NativeStacks;
use pmvet_engines::stacks::user_frame;
use pmvet_findings::{CrashImage, Evidence, Finding, Outcome, Place, Recovery, Role, Severity, Stack, rules};
use pmvet_target::forkserver::ForkedEnd;
use pmvet_target::sandbox::{SandboxedRun, Unwinder};

use super::native::{NativeRuns, name};
use super::start::FuzzStart;
use crate::exit::Error;

/// Failures that look new are tried until there are this many: most are the same.
pub(super) const MOST: usize = 64;

/// Crashes come first, since hangs take longest. Returns how many there was no time for, too.
pub(super) fn findings(mut failures: Vec<FailedCase>, start: &mut FuzzStart) -> Result<(Vec<Finding>, usize), Error> {
    failures.sort_by_key(|failure| failure.end == ForkedEnd::Timeout);
    failures.truncate(MOST);
    let mut stacks = NativeStacks::default();
    let mut found: BTreeMap<String, Finding> = BTreeMap::new();
    let mut unwinder = Unwinder::default();
    let native = NativeRuns::from_start(start);
    let mut left = failures.len();
    for failure in &failures {
        // There may have been no room for it in the corpus.
        let Ok(content) = start.store.get(failure.case.image) else { continue };
        let run = native.run(&start.target.overlay, &content, &failure.case.input, &mut unwinder);
        let run = run.map_err(FuzzError::Corpus)?;
        let outcome = match native.outcome(&run) {
            Some(outcome) => outcome,
            None => break,
        };
        left -= 1;
        if matches!(outcome, Outcome::Exit { .. }) {
            continue;
        }
        let stack = stacks.stack(&run.stack);
        let origin = start.store.origin(failure.case.image).cloned();
        let key = format!("{outcome} {:?} {}", stack.first(), origin.as_ref().is_some_and(Origin::is_crash));
        match found.get_mut(&key) {
            Some(known) => known.count += 1,
            None => {
                found.insert(key, finding(failure, origin, outcome, stack, &run, start));
            }
        }
    }
    Ok((found.into_values().collect(), left))
}

fn finding(
    failure: &FailedCase,
    origin: Option<Origin>,
    outcome: Outcome,
    stack: Stack,
    run: &SandboxedRun,
    start: &FuzzStart,
) -> Finding {
    let crash = origin.as_ref().filter(|origin| origin.is_crash());
    let function = user_frame(&stack).and_then(|i| stack[i].function.clone());
    let who = function.map_or_else(|| "the program".to_owned(), |function| format!("`{function}`"));
    let command: Vec<String> = start.workload.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let input = String::from_utf8_lossy(&failure.case.input);
    let choice = match crash {
        Some(Origin { stop: (0, fence), .. }) => format!("a crash before fence {fence} of an earlier run"),
        Some(Origin { stop: (operation, _), .. }) => format!("a crash before operation {operation} of an earlier run"),
        None => "no crash: what an earlier run left when it ended, or the start".into(),
    };
    let image = failure.case.image;
    let (rule, title, expected) = match crash {
        Some(_) => (
            rules::RECOVERY_FAILURE,
            format!("after a crash {who} {outcome}"),
            "The program accepts what a crash of an earlier run left in PM.",
        ),
        None => (
            rules::FAILING_CASE,
            format!("{who} {outcome} on a test case"),
            "The program ends by itself on every input.",
        ),
    };
    Finding {
        rule: rule.id(),
        severity: Severity::Error,
        title,
        places: vec![Place {
            role: Role::Recovery,
            stack: stack.clone(),
            thread: None,
            pm: None,
            seq: None,
            label: "the program was here".into(),
        }],
        expected: expected.into(),
        happened: format!("On image {image} ({choice}) with the input {input:?} the program {outcome}."),
        fix: "Follow how the image came about: images.jsonl in the corpus names the input and the image before it; the input \
              that fails is in crashes/ or hangs/."
            .into(),
        caveat: None,
        evidence: Evidence::Crash {
            image: CrashImage {
                seq: 0,
                unpersisted: Vec::new(),
                unpersisted_total: 0,
                lost: Vec::new(),
                choice,
                hash: name(&failure.case),
                diff: Vec::new(),
            },
            recovery: Recovery {
                command,
                outcome,
                expected: Outcome::Exit { status: 0 },
                stack,
                output: String::from_utf8_lossy(&run.output).into_owned(),
                seconds: run.time.as_secs_f64(),
            },
            timeline: Vec::new(),
        },
        count: 1,
        fingerprint: String::new(),
        replay: None,
    }
}
