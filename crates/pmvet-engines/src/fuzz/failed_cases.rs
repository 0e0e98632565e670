//! Failures of test cases, as findings: cases that fail alike form one.

use std::collections::BTreeMap;

use pmvet_findings::{CrashImage, Evidence, Finding, Outcome, Place, Recovery, Role, Severity, Stack, rules};

use super::case::Case;
use super::store::Origin;
use crate::stacks::user_frame;

/// How the program ended on a test case, outside of the fuzzer.
#[derive(Debug, Clone)]
pub struct NativeEnd {
    /// How it ended.
    pub outcome: Outcome,
    /// Its stack then, innermost frame first.
    pub stack: Stack,
    /// The end of what it printed.
    pub output: String,
    /// How long it took.
    pub seconds: f64,
}

impl NativeEnd {
    /// Whether it ended in the same way at the same place.
    pub fn is_like(&self, other: &Self) -> bool {
        self.outcome == other.outcome && self.stack.first() == other.stack.first()
    }
}

/// The name of a case in findings: the same image may fail on several inputs.
pub fn case_name(case: &Case) -> String {
    format!("{}-{:016x}", case.image, xxhash_rust::xxh3::xxh3_64(&case.input))
}

/// The failures of one program, grouped.
#[derive(Debug)]
pub struct FailedCases {
    command: Vec<String>,
    /// By how and where they end, and whether a crash came before.
    found: BTreeMap<String, Finding>,
}

impl FailedCases {
    /// For a program with this command line, which findings name.
    pub fn new(command: Vec<String>) -> Self {
        Self { command, found: BTreeMap::new() }
    }

    /// A test case that fails, and where its image came from.
    pub fn add(&mut self, case: &Case, origin: Option<&Origin>, end: NativeEnd) {
        let crash = origin.filter(|origin| origin.is_crash());
        let key = format!("{} {:?} {}", end.outcome, end.stack.first(), crash.is_some());
        match self.found.get_mut(&key) {
            Some(known) => known.count += 1,
            None => drop(self.found.insert(key, finding(&self.command, case, crash, end))),
        }
    }

    /// One finding for each way of failing, with the number of cases.
    pub fn into_findings(self) -> Vec<Finding> {
        self.found.into_values().collect()
    }
}

fn finding(command: &[String], case: &Case, crash: Option<&Origin>, end: NativeEnd) -> Finding {
    let NativeEnd { outcome, stack, output, seconds } = end;
    let input = String::from_utf8_lossy(&case.input);
    let choice = match crash {
        Some(Origin { stop: (0, fence), .. }) => format!("a crash before fence {fence} of an earlier run"),
        Some(Origin { stop: (operation, _), .. }) => format!("a crash before operation {operation} of an earlier run"),
        None => "no crash: what an earlier run left when it ended, or the start".into(),
    };
    let (rule, title, expected) = headline(crash, &outcome, &stack);
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
        happened: format!("On image {} ({choice}) with the input {input:?} the program {outcome}.", case.image),
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
                hash: case_name(case),
                diff: Vec::new(),
            },
            recovery: Recovery {
                command: command.to_vec(),
                outcome,
                expected: Outcome::Exit { status: 0 },
                stack,
                output,
                seconds,
            },
            timeline: Vec::new(),
        },
        count: 1,
        fingerprint: String::new(),
        replay: None,
    }
}

/// The rule, the title, and what was expected.
fn headline(crash: Option<&Origin>, outcome: &Outcome, stack: &Stack) -> (&'static rules::Rule, String, &'static str) {
    let function = user_frame(stack).and_then(|i| stack[i].function.clone());
    let who = function.map_or_else(|| "the program".to_owned(), |function| format!("`{function}`"));
    match crash {
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
    }
}

#[cfg(test)]
mod tests {
    use pmvet_findings::Frame;

    use super::*;
    use crate::fuzz::content::ImageId;

    fn end(function: &str, signal: i32) -> NativeEnd {
        let frame = Frame { function: Some(function.into()), ..Frame::default() };
        let outcome = Outcome::Signal { signal, name: format!("SIG{signal}") };
        NativeEnd { outcome, stack: vec![frame], output: String::new(), seconds: 0.1 }
    }

    #[test]
    fn ends_are_alike_by_how_and_where() {
        assert!(end("get", 11).is_like(&NativeEnd { seconds: 7.0, ..end("get", 11) }));
        assert!(!end("get", 11).is_like(&end("get", 8)));
        assert!(!end("get", 11).is_like(&end("put", 11)));
    }

    #[test]
    fn cases_that_fail_alike_are_one_finding_and_a_crash_before_makes_another() {
        let case = |input: &str| Case { image: ImageId(7), input: input.into() };
        let crash = Origin { parent: None, input: Vec::new(), stop: (0, 3) };
        let mut failed = FailedCases::new(vec!["./kv".into()]);
        failed.add(&case("a"), None, end("get", 11));
        failed.add(&case("b"), None, end("get", 11));
        failed.add(&case("c"), Some(&crash), end("get", 11));
        failed.add(&case("d"), None, end("put", 11));
        let findings = failed.into_findings();
        let mut shown: Vec<(&str, u64)> = findings.iter().map(|f| (f.rule.0.as_ref(), f.count)).collect();
        shown.sort_unstable();
        let (case, recovery) = (rules::FAILING_CASE.id, rules::RECOVERY_FAILURE.id);
        assert_eq!(shown, [(case, 1), (case, 2), (recovery, 1)]);
        assert!(findings.iter().any(|f| f.happened.contains("a crash before fence 3 of an earlier run")));
    }
}
