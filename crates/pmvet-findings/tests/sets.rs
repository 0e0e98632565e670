//! Sets of findings: written and read, deduplicated, suppressed, compared with a baseline.

mod common;

use common::{FILE, SOURCE, finding, frame, line, place};
use pmvet_findings::{
    CrashImage, Evidence, Finding, Outcome, Place, PmRange, Recovery, Role, Run, Severity, Sources,
    baseline::{Baseline, diff},
    dedup::Dedup,
    jsonl, rules,
    suppress::{Suppress, Suppressions},
    token::Token,
};
use proptest::prelude::*;

fn sources() -> Sources {
    Sources::in_memory([(FILE, SOURCE)])
}

fn raw() -> Vec<Finding> {
    let push = |text| vec![place(Role::Store, vec![frame("push", line(SOURCE, text, 0)), frame("main", 23)])];
    let mut crash = finding(rules::RECOVERY_FAILURE, push("list->count"));
    crash.severity = Severity::Error;
    let image = CrashImage {
        seq: 1,
        unpersisted: vec![],
        unpersisted_total: 0,
        lost: vec![],
        choice: "all".into(),
        hash: "0".into(),
        diff: vec![],
    };
    let exit = |status| Outcome::Exit { status };
    let recovery = Recovery {
        command: vec!["./list".into()],
        outcome: exit(1),
        expected: exit(0),
        stack: vec![],
        output: String::new(),
        seconds: 0.1,
    };
    crash.evidence = Evidence::Crash { image, recovery, timeline: vec![] };
    vec![
        finding(rules::FLUSH_CLEAN, push("persist")),
        finding(rules::UNPERSISTED_STORE, push("node->next")),
        crash,
        finding(rules::UNPERSISTED_STORE, push("node->next")),
    ]
}

fn findings() -> Vec<Finding> {
    let sources = sources();
    let mut dedup = Dedup::new(&sources);
    raw().into_iter().for_each(|finding| dedup.add(finding));
    dedup.finish("run-1")
}

#[test]
fn equal_findings_become_one_and_the_gravest_comes_first() {
    let findings = findings();
    let rules: Vec<&str> = findings.iter().map(|f| f.rule.0.as_str()).collect();
    assert_eq!(rules, ["recovery-failure", "unpersisted-store", "flush-clean"]);
    assert_eq!(findings[1].count, 2);
    let token: Token = findings[0].replay.as_ref().unwrap().parse().unwrap();
    assert_eq!(token.run, "run-1");
    assert_eq!(token.fingerprint().unwrap(), findings[0].fingerprint);
    assert_eq!(findings[1].replay, None, "nothing to replay without a witness");
}

#[test]
fn all_that_a_transaction_has_to_add_is_named() {
    let sources = sources();
    let store = |text| {
        let stack = vec![frame("push", line(SOURCE, text, 0)), frame("main", 23)];
        Place {
            pm: Some(PmRange { file: "pool".into(), offset: 0, len: 8, object: None }),
            ..place(Role::Store, stack)
        }
    };
    let places = ["list->head = node", "list->count", "list->count"].map(store).to_vec();
    let mut escaped = finding(rules::TX_STORE_NOT_ADDED, places);
    escaped.fix = format!("Add {}: {}.", Finding::DATA, Finding::TX_ADD);
    let mut dedup = Dedup::new(&sources);
    dedup.add(escaped);
    assert_eq!(
        dedup.finish("r")[0].fix,
        "Add `list->head`: `TX_ADD_FIELD_DIRECT(list, head)`; its other stores need `TX_ADD_FIELD_DIRECT(list, count)`."
    );
}

#[test]
fn of_two_equal_ones_the_graver_stays() {
    let sources = sources();
    let mut dedup = Dedup::new(&sources);
    let warning = raw().remove(1);
    let error =
        Finding { severity: Severity::Error, title: "with a witness".into(), count: u64::MAX, ..warning.clone() };
    dedup.add(warning);
    dedup.add(error);
    let findings = dedup.finish("r");
    assert_eq!(findings.len(), 1);
    assert_eq!((findings[0].title.as_str(), findings[0].count), ("with a witness", u64::MAX));
}

#[test]
fn suppressions_hide_and_are_counted() {
    let entry = |rule: Option<&str>, function: Option<&str>, file: Option<&str>, stack: &[&str]| Suppress {
        rule: rule.map(Into::into),
        function: function.map(Into::into),
        file: file.map(Into::into),
        stack: stack.iter().map(|s| (*s).into()).collect(),
        reason: "known".into(),
    };
    let hidden = |entry: Suppress| {
        let mut suppressions = Suppressions::new([entry]).unwrap();
        let mut findings = findings();
        suppressions.apply(&mut findings);
        3 - findings.len()
    };
    assert_eq!(hidden(entry(Some("flush-clean"), None, None, &[])), 1);
    assert_eq!(hidden(entry(Some("*-clean"), Some("p?sh"), Some("dev/*.c"), &["push", "main"])), 1);
    assert_eq!(hidden(entry(None, Some("push"), None, &[])), 3);
    assert_eq!(hidden(entry(None, Some("main"), None, &[])), 0, "the function that the place is in, not its callers");
    assert_eq!(hidden(entry(None, None, None, &["...", "main"])), 3);
    assert_eq!(hidden(entry(None, None, Some("other.c"), &[])), 0);

    let entries = [entry(Some("flush-*"), None, None, &[]), entry(Some("lock-in-pm"), None, None, &[])];
    let mut suppressions = Suppressions::new(entries).unwrap();
    suppressions.apply(&mut findings());
    assert_eq!(suppressions.used()[0].findings, 1);
    assert_eq!(suppressions.unused()[0].number, 2);
}

#[test]
fn a_baseline_leaves_only_what_is_new() {
    let findings = findings();
    let baseline = Baseline::from_findings(&findings[..2]);
    assert_eq!(Baseline::parse(&baseline.to_json().unwrap()).unwrap(), baseline);
    let known = baseline.known(&findings);
    let run = Run { findings: findings.clone(), known, ..Run::default() };
    assert_eq!(run.counted(true).count(), 1);
    assert!(!run.fails(Severity::Error, true));
    assert!(run.fails(Severity::Performance, true));

    let mut lines = Vec::new();
    jsonl::write(&findings[..2], &mut lines).unwrap();
    assert_eq!(Baseline::parse(std::str::from_utf8(&lines).unwrap()).unwrap(), baseline, "from findings.jsonl");
    let exported = serde_json::to_string(&Run { findings: findings[..2].to_vec(), ..Run::default() }).unwrap();
    assert_eq!(Baseline::parse(&exported).unwrap(), baseline, "from an exported run");
    assert!(Baseline::parse("{\"version\":7,\"baseline\":{}}").unwrap_err().to_string().contains("version 7"));
    assert!(Baseline::parse("nonsense").unwrap_err().to_string().contains("line 1"));
}

#[test]
fn two_runs_are_compared() {
    let all = findings();
    let diff = diff(&all[..2], &all[1..]);
    assert_eq!(diff.fixed, [&all[0]]);
    assert_eq!(diff.same, [&all[1]]);
    assert_eq!(diff.new, [&all[2]]);
}

#[test]
fn a_bad_line_is_named() {
    let mut lines = Vec::new();
    jsonl::write(&findings(), &mut lines).unwrap();
    lines.extend(b"\n{\"rule\":");
    let read: Vec<_> = jsonl::read(lines.as_slice()).collect();
    assert_eq!(read.len(), 4);
    let error = read[3].as_ref().unwrap_err().to_string();
    assert!(error.starts_with("line 5 is not a finding"), "{error}");
}

#[test]
fn fields_that_are_not_there_have_defaults() {
    let line = r#"{"rule":"flush-clean","severity":"performance","title":"t","places":[],"expected":"","happened":"",
        "fix":"","evidence":{"kind":"trace","timeline":[]},"count":1,"a_field_of_tomorrow":1}"#
        .replace('\n', " ");
    let read: Vec<Finding> = jsonl::read(line.as_bytes()).collect::<Result<_, _>>().unwrap();
    assert_eq!(read[0].fingerprint, "");
}

proptest! {
    #[test]
    fn what_is_written_is_read(texts in prop::collection::vec(any::<String>(), 1..4), count: u64, seconds: f64, at: Option<u64>) {
        let mut findings = findings();
        for (finding, text) in findings.iter_mut().zip(texts.iter().cycle()) {
            finding.title = text.clone();
            finding.caveat = Some(text.clone());
            finding.count = count;
            finding.places[0].seq = at;
            finding.places[0].stack[0].function = Some(text.clone());
            finding.places[0].stack[0].file = Some(text.into());
            if let Evidence::Crash { recovery, .. } = &mut finding.evidence {
                recovery.output = text.clone();
                recovery.seconds = if seconds.is_finite() { seconds } else { 0.0 };
                recovery.outcome = Outcome::Oracle { status: -1, output: text.clone() };
            }
        }
        let mut lines = Vec::new();
        jsonl::write(&findings, &mut lines).unwrap();
        let read: Vec<Finding> = jsonl::read(lines.as_slice()).collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(read, findings);
    }

    #[test]
    fn garbage_is_refused_without_panic(bytes in any::<Vec<u8>>(), cut in any::<prop::sample::Index>()) {
        for line in jsonl::read(bytes.as_slice()) {
            prop_assert!(line.is_err());
        }
        let mut lines = Vec::new();
        jsonl::write(&findings(), &mut lines).unwrap();
        lines.truncate(cut.index(lines.len()));
        let _ = jsonl::read(lines.as_slice()).count();
        let _ = Baseline::parse(&String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn what_json_cannot_hold_does_not_lose_the_finding() {
    use std::os::unix::ffi::OsStringExt;
    let mut findings = findings();
    let path = std::ffi::OsString::from_vec(b"/tmp/\xff.c".to_vec());
    findings[0].places[0].stack[0].file = Some(path.into());
    if let Evidence::Crash { recovery, .. } = &mut findings[0].evidence {
        recovery.seconds = f64::NAN;
    }
    let mut lines = Vec::new();
    jsonl::write(&findings, &mut lines).unwrap();
    let read: Vec<Finding> = jsonl::read(lines.as_slice()).collect::<Result<_, _>>().unwrap();
    assert_eq!(read[0].places[0].stack[0].file.as_deref(), Some("/tmp/\u{fffd}.c".as_ref()));
}
