//! Joins failures with a common cause into one finding, also across the shards of a run, each of which sees only a part of the
//! failures.

pub mod early_stores;
pub(crate) mod needed_store;
mod recent_stores;
pub(crate) mod unflushed;
pub(crate) mod windows;
pub(crate) mod words;
pub(crate) mod wrappers;

use std::collections::{HashMap, HashSet};

use pmvet_findings::{Evidence, Finding, Outcome, Place, Role, Severity, rules};
use serde::{Deserialize, Serialize};

use crate::transactions;

/// One of the user's lines, and how recovery ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cause {
    function: Option<String>,
    file: Option<String>,
    line: Option<u32>,
    /// Offset of the instruction, if the line is unknown.
    offset: u64,
    outcome: u8,
}

/// Stands for an outcome that does not matter.
const ANY_OUTCOME: u8 = u8::MAX;

impl Cause {
    pub(crate) fn at_place(place: &Place, outcome: &Outcome) -> Option<Self> {
        let outcome = match outcome {
            Outcome::Exit { .. } => 0,
            Outcome::Signal { .. } => 1,
            Outcome::Hang { .. } => 2,
            Outcome::Oracle { .. } => 3,
            Outcome::Content { .. } => 4,
        };
        Self::new(place, outcome)
    }

    fn new(place: &Place, outcome: u8) -> Option<Self> {
        let frame = place.frame()?;
        Some(Self {
            // A line of a template has a function for each of its instances.
            function: frame.function.clone().filter(|_| !frame.has_line()),
            file: frame.file.as_ref().map(|file| file.to_string_lossy().into_owned()),
            line: frame.line,
            offset: if frame.has_line() { 0 } else { frame.offset },
            outcome,
        })
    }
}

/// The line of a place, however recovery ends.
fn line(place: &Place) -> Option<Cause> {
    Cause::new(place, ANY_OUTCOME)
}

/// The causes that places stand for.
pub(crate) fn causes(places: &[Place], outcome: &Outcome) -> Vec<Cause> {
    let decisive = places.iter().filter(|place| matches!(place.role, Role::Store | Role::FailurePoint));
    decisive.filter_map(|place| Cause::at_place(place, outcome)).collect()
}

/// Findings by their causes; each may have several.
#[derive(Debug, Default)]
pub(crate) struct Merged {
    index: HashMap<Cause, usize>,
    pub(crate) findings: Vec<Finding>,
}

impl Merged {
    /// Adds failures to the finding that has one of the causes, or to a new one. Returns its position if it is new.
    pub(crate) fn add(
        &mut self,
        causes: impl IntoIterator<Item = Cause>,
        count: u64,
        make: impl FnOnce() -> Finding,
    ) -> Option<usize> {
        let causes: Vec<Cause> = causes.into_iter().collect();
        let known = self.find(&causes);
        let at = known.unwrap_or_else(|| self.push(make()));
        self.count(at, causes, count);
        known.is_none().then_some(at)
    }

    pub(crate) fn knows(&self, cause: &Cause) -> bool {
        self.index.contains_key(cause)
    }

    fn find(&self, causes: &[Cause]) -> Option<usize> {
        causes.iter().find_map(|cause| self.index.get(cause).copied())
    }

    fn push(&mut self, finding: Finding) -> usize {
        self.findings.push(Finding { count: 0, ..finding });
        self.findings.len() - 1
    }

    fn count(&mut self, at: usize, causes: Vec<Cause>, count: u64) {
        self.findings[at].count += count;
        for cause in causes {
            self.index.entry(cause).or_insert(at);
        }
    }
}

/// Failures in a row, with what is needed to join them with those of other shards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failures {
    /// Number of the event before which the first crash comes.
    pub seq: u64,
    /// Failures that share one of these form one finding.
    pub causes: Vec<Cause>,
    /// How many crashes failed.
    pub count: u64,
    /// The finding, if this was the first with these causes. The first in all shards is also the first in its own.
    pub finding: Option<Finding>,
}

/// One finding for each separate cause among the failures of all shards, as one run would have found them.
pub fn join_failures(mut failures: Vec<Failures>) -> Vec<Finding> {
    failures.sort_by_key(|failure| failure.seq);
    let mut merged = Merged::default();
    for Failures { causes, count, finding, .. } in failures {
        // Failures without a finding follow others of their shard with a common cause.
        let at = merged.find(&causes).or_else(|| finding.map(|finding| merged.push(finding)));
        if let Some(at) = at {
            merged.count(at, causes, count);
        }
    }
    merged.findings
}

/// How a finding about lost stores says that one line was written back early, and all others are lost.
pub(crate) const EARLY: &str = "one cache line has been written back early, the other pending ones have not";
/// The same for several lost lines; their number comes before it.
pub(crate) const SEVERAL: &str = "cache lines have not been written back, the others have";

/// The findings about lost stores of all shards: where several are lost together, one that is fatal alone is to blame.
pub fn join_lost_stores(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort_by_key(|finding| match &finding.evidence {
        Evidence::Crash { image, .. } => (image.choice == EARLY || image.choice.ends_with(SEVERAL), image.seq),
        _ => (true, u64::MAX),
    });
    let mut merged = Merged::default();
    for finding in findings {
        let Evidence::Crash { image, recovery, .. } = &finding.evidence else { continue };
        let cause = |place: &Place| Cause::at_place(place, &recovery.outcome);
        let to_blame = image.lost.iter().filter_map(cause).find(|cause| merged.knows(cause));
        let cause = to_blame.or_else(|| finding.places.first().and_then(cause));
        let count = finding.count;
        merged.add(cause, count, || finding);
    }
    merged.findings
}

/// Stores of a finding that were made before those that the crash loses: without them, recovery would cope.
fn early_stores(finding: &Finding) -> impl Iterator<Item = &Place> {
    let last = match &finding.evidence {
        Evidence::Crash { image, .. } => image.lost.iter().filter_map(|lost| lost.seq).max(),
        _ => None,
    };
    let is_lost = move |place: &Place| match &finding.evidence {
        Evidence::Crash { image, .. } => image.lost.iter().any(|lost| lost.seq == place.seq),
        _ => true,
    };
    finding.places.iter().filter(move |p| p.role == Role::Store && p.seq.is_some() && p.seq < last && !is_lost(p))
}

/// What a crash loses in a proven race, if that does not include the store read too early: that store then only reveals the loss.
fn lost_behind_race(finding: &Finding) -> &[Place] {
    match &finding.evidence {
        Evidence::Crash { image, .. } if finding.rule == rules::PERSISTENCY_RACE.id() => {
            let read = finding.places.first().and_then(|place| place.seq);
            if image.lost.iter().any(|lost| lost.seq == read) { &[] } else { &image.lost }
        }
        _ => &[],
    }
}

/// Counts findings about lost stores into a known one that blames the same line, or an earlier store without which recovery would cope:
/// that store came too early. Counts races into one that blames what they lose. How recovery fails does not matter. Returns the other
/// findings, and those that were counted.
pub fn count_early(known: &mut [Finding], findings: Vec<Finding>) -> (Vec<Finding>, Vec<Finding>) {
    let blamed = |finding: &Finding| finding.places.first().filter(|_| is_crash(finding)).and_then(line);
    let (mut left, mut counted) = (Vec::new(), Vec::new());
    for finding in findings {
        let of = blamed(&finding);
        let explains = |other: &&mut Finding| {
            let Some(blamed) = blamed(other) else { return false };
            let is_store = other.places.first().is_some_and(|place| place.role == Role::Store);
            of.as_ref() == Some(&blamed)
                || is_store && early_stores(&finding).any(|place| line(place).as_ref() == Some(&blamed))
                || is_store && lost_behind_race(&finding).iter().any(|place| line(place).as_ref() == Some(&blamed))
        };
        match known.iter_mut().find(explains) {
            Some(known) => {
                known.count += finding.count;
                counted.push(finding);
            }
            None => left.push(finding),
        }
    }
    (left, counted)
}

/// Lets crashes prove what rules suspect, so that one bug is one finding. If a fatal crash loses a store that a rule says is never
/// flushed, the rule's finding becomes the error: it says more than the crash. A suspicion that such data is meant to be volatile is
/// dropped, since recovery needs it. Returns the other findings.
pub fn prove_suspicions(suspected: &mut Vec<Finding>, found: Vec<Finding>) -> Vec<Finding> {
    let (mut left, mut proven) = (Vec::new(), HashSet::new());
    for finding in found {
        let lost = match &finding.evidence {
            Evidence::Crash { image, .. } => &image.lost[..],
            _ => &[],
        };
        let blamed = finding.places.first().and_then(line);
        let blamed = blamed.filter(|blamed| lost.iter().any(|lost| line(lost).as_ref() == Some(blamed)));
        let is_about = |suspicion: &Finding, rule: &rules::Rule| {
            let mut stores = suspicion.places.iter().filter(|place| place.role == Role::Store);
            blamed.is_some() && suspicion.rule == rule.id() && stores.any(|place| line(place) == blamed)
        };
        if blamed.as_ref().is_some_and(|blamed| proven.contains(blamed)) {
            continue;
        }
        match suspected.iter_mut().find(|suspicion| is_about(suspicion, rules::UNPERSISTED_STORE)) {
            Some(suspicion) => {
                prove(suspicion, finding.evidence);
                proven.extend(blamed);
            }
            None => {
                suspected.retain(|suspicion| !is_about(suspicion, rules::TRANSIENT_DATA));
                left.push(finding);
            }
        }
    }
    left
}

/// Drops suspicions that a crash explains. That data is never flushed, or meant to be volatile, is no finding of its own if an error
/// blames the same function, and its crash loses those stores, too: who fixes the one persists the other.
pub(crate) fn drop_explained(findings: &mut Vec<Finding>) {
    let mut explained = HashSet::new();
    for finding in findings.iter() {
        let Evidence::Crash { image, .. } = &finding.evidence else { continue };
        let Some(blamed) = finding.places.first().filter(|place| place.role == Role::Store) else { continue };
        let function = |place: &Place| place.frame().map(|frame| (frame.function.clone(), frame.file.clone()));
        let alike = image.lost.iter().filter(|lost| function(lost) == function(blamed));
        explained.extend(alike.chain([blamed]).filter_map(line));
    }
    let is_explained = |place: &Place| line(place).is_some_and(|line| explained.contains(&line));
    findings.retain(|finding| {
        let is_suspicion = !is_crash(finding)
            && [rules::UNPERSISTED_STORE, rules::TRANSIENT_DATA].iter().any(|rule| finding.rule == rule.id());
        let mut stores = finding.places.iter().filter(|place| place.role == Role::Store);
        !(is_suspicion && stores.all(is_explained))
    });
}

/// Counts a proven suspicion that a store is never made persistent into the failure in program order that blames the same line, so
/// that one fix is reported once. Returns the other suspicions.
pub(crate) fn count_suspicions(failures: &mut [Finding], suspected: Vec<Finding>) -> Vec<Finding> {
    let is_loss = |finding: &Finding| finding.rule == rules::UNPERSISTED_STORE.id() && is_crash(finding);
    let left = |finding: Finding| match is_loss(&finding) {
        true => count_early(failures, vec![finding]).0,
        false => vec![finding],
    };
    suspected.into_iter().flat_map(left).collect()
}

/// Turns a suspicion about a lost store into an error that the crash confirms, unless it is one already.
pub fn prove(suspicion: &mut Finding, crash: Evidence) {
    if let (Evidence::Trace { .. }, Evidence::Crash { recovery, .. }) = (&suspicion.evidence, &crash) {
        suspicion.severity = Severity::Error;
        suspicion.caveat = None;
        suspicion.happened.push_str(&format!(" If a crash loses it, recovery {}.", recovery.outcome));
        if let Outcome::Content { violation, .. } = &recovery.outcome {
            suspicion.rule = violation.rule().id();
        }
        suspicion.evidence = crash;
    }
}

fn is_crash(finding: &Finding) -> bool {
    matches!(finding.evidence, Evidence::Crash { .. })
}

/// Counts findings about lost stores into those of crashes that lose nothing, where [`count_early`] says so.
pub fn count_lost_stores(findings: Vec<Finding>) -> Vec<Finding> {
    let loses =
        |finding: &Finding| matches!(&finding.evidence, Evidence::Crash { image, .. } if !image.lost.is_empty());
    let (lost, mut others): (Vec<Finding>, Vec<Finding>) = findings.into_iter().partition(loses);
    let (left, _) = count_early(&mut others, lost);
    others.extend(left);
    others
}

/// Findings of several engines about one run: one finding per bug, whichever engines have seen it.
#[derive(Debug, Default)]
pub struct JoinedFindings(Vec<Finding>);

impl JoinedFindings {
    /// Adds the findings of one more engine.
    pub fn add(&mut self, found: Vec<Finding>) {
        let found = without_known(&self.0, found);
        let (found, _) = count_early(&mut self.0, found);
        self.0.extend(found);
    }

    /// All of them.
    pub fn finish(mut self) -> Vec<Finding> {
        drop_explained(&mut self.0);
        transactions::one_per_function(self.0)
    }
}

/// Drops findings with the same cause as one in `known`.
pub fn without_known(known: &[Finding], findings: Vec<Finding>) -> Vec<Finding> {
    let crash = |finding: &Finding| match &finding.evidence {
        Evidence::Crash { recovery, .. } => causes(&finding.places, &recovery.outcome),
        _ => Vec::new(),
    };
    let known: HashSet<Cause> = known.iter().flat_map(crash).collect();
    findings.into_iter().filter(|finding| !crash(finding).iter().any(|cause| known.contains(cause))).collect()
}

#[cfg(test)]
mod tests {
    use pmvet_findings::{CrashImage, Frame, Recovery, Rule};

    use super::*;

    fn place(role: Role, line: u32) -> Place {
        let frame = Frame {
            function: Some("f".into()),
            file: Some("/src/f.c".into()),
            line: Some(line),
            module: Some("/bin/f".into()),
            ..Frame::default()
        };
        Place { role, stack: vec![frame], thread: None, pm: None, seq: None, label: String::new() }
    }

    /// A row of failures between a store and a failure point, as one shard saw it.
    fn failures(seq: u64, store: u32, point: u32, with_words: bool) -> Failures {
        let places = vec![place(Role::Store, store), place(Role::FailurePoint, point)];
        let causes = causes(&places, &Outcome::Exit { status: 1 });
        let finding = Finding {
            rule: rules::RECOVERY_FAILURE.id(),
            severity: Severity::Error,
            title: format!("{store} {point}"),
            places,
            expected: String::new(),
            happened: String::new(),
            fix: String::new(),
            caveat: None,
            evidence: Evidence::Trace { timeline: Vec::new() },
            count: 1,
            fingerprint: String::new(),
            replay: None,
        };
        Failures { seq, causes, count: 2, finding: with_words.then_some(finding) }
    }

    /// An error that blames a store on a line, and loses others.
    fn error(rule: &Rule, blamed: u32, lost: &[u32]) -> Finding {
        let at = |line: &u32| Place { seq: Some(u64::from(*line)), ..place(Role::Store, *line) };
        let mut finding = failures(1, blamed, 100, true).finding.unwrap();
        finding.rule = rule.id();
        finding.places = vec![at(&blamed)];
        let outcome = Outcome::Exit { status: 1 };
        let image = CrashImage {
            seq: 100,
            unpersisted: Vec::new(),
            unpersisted_total: 0,
            lost: lost.iter().map(at).collect(),
            choice: String::new(),
            hash: String::new(),
            diff: Vec::new(),
        };
        let recovery = Recovery {
            command: Vec::new(),
            expected: Outcome::Exit { status: 0 },
            outcome,
            stack: Vec::new(),
            output: String::new(),
            seconds: 0.0,
        };
        finding.evidence = Evidence::Crash { image, recovery, timeline: Vec::new() };
        finding
    }

    fn suspicion(rule: &Rule, line: u32) -> Finding {
        let mut finding = failures(1, line, 100, true).finding.unwrap();
        (finding.rule, finding.severity, finding.caveat) = (rule.id(), Severity::Warning, Some("maybe".into()));
        finding
    }

    #[test]
    fn what_a_crash_loses_beside_the_store_to_blame_is_no_suspicion_of_its_own() {
        let other_function = |mut finding: Finding| {
            finding.places.iter_mut().for_each(|place| place.stack[0].function = Some("g".into()));
            finding
        };
        let several = |mut finding: Finding, line: u32| {
            finding.places.push(place(Role::Store, line));
            finding
        };
        for (suspicion, is_left) in [
            (suspicion(rules::TRANSIENT_DATA, 5), false),
            (suspicion(rules::TRANSIENT_DATA, 6), false),
            (suspicion(rules::UNPERSISTED_STORE, 6), false),
            (several(suspicion(rules::TRANSIENT_DATA, 6), 5), false),
            (several(suspicion(rules::TRANSIENT_DATA, 6), 8), true),
            (suspicion(rules::TRANSIENT_DATA, 8), true),
            (suspicion(rules::FLUSH_CLEAN, 5), true),
        ] {
            let words = format!("{suspicion:?}");
            let mut findings = vec![error(rules::REORDERED_CRASH, 5, &[5, 6]), suspicion];
            drop_explained(&mut findings);
            assert_eq!(findings.len() == 2, is_left, "{words}");
        }
        // The other function's store may be another bug.
        let mut error = error(rules::REORDERED_CRASH, 5, &[5, 6]);
        let Evidence::Crash { image, .. } = &mut error.evidence else { panic!("{error:?}") };
        image.lost[1].stack[0].function = Some("g".into());
        let mut findings = vec![error, other_function(suspicion(rules::TRANSIENT_DATA, 6))];
        drop_explained(&mut findings);
        assert_eq!(findings.len(), 2);
    }

    #[test]
    fn a_race_that_loses_what_is_blamed_already_is_counted() {
        let mut known = [error(rules::UNPERSISTED_STORE, 18, &[18])];
        let races = vec![
            error(rules::PERSISTENCY_RACE, 24, &[17, 18]),
            // What was read too early is lost itself, or something else is.
            error(rules::PERSISTENCY_RACE, 30, &[18, 30]),
            error(rules::PERSISTENCY_RACE, 40, &[41]),
        ];
        let (left, counted) = count_early(&mut known, races);
        assert_eq!(left.iter().map(|f| f.places[0].seq).collect::<Vec<_>>(), [Some(30), Some(40)]);
        assert_eq!((counted.len(), known[0].count), (1, 2));
    }

    #[test]
    fn a_crash_proves_what_a_rule_suspects_of_the_same_line() {
        let suspected = [(rules::UNPERSISTED_STORE, 5), (rules::UNPERSISTED_STORE, 6), (rules::TRANSIENT_DATA, 7)];
        let mut suspected = suspected.map(|(rule, line)| suspicion(rule, line)).to_vec();
        let crashes = vec![
            error(rules::REORDERED_CRASH, 5, &[5]),
            error(rules::REORDERED_CRASH, 5, &[4, 5]),
            // What is blamed is not what is lost.
            error(rules::REORDERED_CRASH, 6, &[9]),
            error(rules::REORDERED_CRASH, 7, &[7]),
        ];
        let left = prove_suspicions(&mut suspected, crashes);
        assert_eq!(left.iter().map(|f| f.places[0].seq).collect::<Vec<_>>(), [Some(6), Some(7)]);
        let shown: Vec<_> = suspected.iter().map(|f| (f.places[0].stack[0].line, f.severity, is_crash(f))).collect();
        assert_eq!(shown, [(Some(5), Severity::Error, true), (Some(6), Severity::Warning, false)]);
        assert_eq!(suspected[0].caveat, None);
    }

    #[test]
    fn shards_join_to_what_one_run_would_have_found() {
        // One run sees them in this order: the third has a cause in common with the second, the fourth with the third.
        let all = [(10, 1, 101), (20, 2, 102), (30, 2, 103), (40, 4, 103), (50, 5, 101)];
        let found = |parts: &[&[usize]]| {
            let mut joined = Vec::new();
            for part in parts {
                let mut merged = Merged::default();
                for &(seq, store, point) in part.iter().map(|&i| &all[i]) {
                    let new = failures(seq, store, point, true);
                    let leads = merged.add(new.causes, 1, || new.finding.unwrap()).is_some();
                    joined.push(failures(seq, store, point, leads));
                }
            }
            join_failures(joined).iter().map(|f| (f.title.clone(), f.count)).collect::<Vec<_>>()
        };
        let whole = found(&[&[0, 1, 2, 3, 4]]);
        assert_eq!(whole, [("1 101".into(), 4), ("2 102".into(), 6)]);
        for parts in [&[&[0, 2, 4][..], &[1, 3]][..], &[&[3, 4], &[0], &[1, 2]], &[&[4], &[3], &[2], &[1], &[0]]] {
            assert_eq!(found(parts), whole, "{parts:?}");
        }
    }
}
