//! Turns the findings of engines into those that users read: one per cause, the gravest first.

use std::collections::{HashMap, hash_map::Entry};

use crate::{
    expression,
    finding::{Evidence, Finding, Frame, Place, PmRange, Role},
    fingerprint::Fingerprinter,
    rules,
    source::Sources,
    token::Token,
};

/// Takes findings one by one and keeps one of each kind, so a million equal findings cost the memory of one.
///
/// ```
/// use pmvet_findings::{Sources, dedup::Dedup, jsonl};
///
/// # fn main() -> Result<(), jsonl::JsonlError> {
/// let finding = r#"{"rule": "redundant-fence", "severity": "performance", "title": "a fence waits for nothing",
///     "places": [{"role": "fence", "stack": [{"function": "log_append", "offset": 4409}], "label": "this fence"}],
///     "expected": "", "happened": "", "fix": "", "evidence": {"kind": "trace", "timeline": []}, "count": 1}"#;
/// let twice = format!("{0}\n{0}\n", finding.replace('\n', ""));
///
/// let sources = Sources::default();
/// let mut dedup = Dedup::new(&sources);
/// for finding in jsonl::read(twice.as_bytes()) {
///     dedup.add(finding?);
/// }
/// let findings = dedup.finish("20260131-120000");
/// assert_eq!((findings.len(), findings[0].count, findings[0].fingerprint.len()), (1, 2, 32));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Dedup<'a> {
    sources: &'a Sources,
    fingerprinter: Fingerprinter<'a>,
    findings: Vec<Finding>,
    by_fingerprint: HashMap<String, usize>,
}

impl<'a> Dedup<'a> {
    /// Takes fingerprints and names from these sources.
    pub fn new(sources: &'a Sources) -> Self {
        let fingerprinter = Fingerprinter::new(sources);
        Dedup { sources, fingerprinter, findings: Vec::new(), by_fingerprint: HashMap::new() }
    }

    /// Gives a finding its fingerprint and names from the source, as [`Self::finish`] does. After that, it no longer needs the source.
    pub fn complete(&mut self, finding: &mut Finding) {
        finding.fingerprint = self.fingerprinter.fingerprint(finding);
        name_data(finding, self.sources);
    }

    /// A finding that has a fingerprint already keeps it: the source may not be here.
    pub fn add(&mut self, mut finding: Finding) {
        if finding.fingerprint.is_empty() {
            finding.fingerprint = self.fingerprinter.fingerprint(&finding);
        }
        match self.by_fingerprint.entry(finding.fingerprint.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(self.findings.len());
                self.findings.push(finding);
            }
            Entry::Occupied(entry) => merge(&mut self.findings[*entry.get()], finding),
        }
    }

    /// All findings in report order, with replay tokens for those that have a witness, and with data named as in the source.
    pub fn finish(self, run: &str) -> Vec<Finding> {
        let mut findings = self.findings;
        for finding in &mut findings {
            name_data(finding, self.sources);
            if finding.replay.is_none() && has_witness(finding) {
                finding.replay = Token::new(run, &finding.fingerprint).map(|token| token.to_string());
            }
        }
        sort(&mut findings);
        findings
    }
}

/// Names the stored data as the source does, where its lines show it.
fn name_data(finding: &mut Finding, sources: &Sources) {
    let name = |pm: &mut Option<PmRange>, frame: Option<&Frame>| {
        if let Some(pm) = pm.as_mut().filter(|pm| pm.object.is_none()) {
            pm.object = frame.and_then(|frame| sources.stored_at(frame));
        }
    };
    let name_place = |place: &mut Place| {
        // A library does not store to what the calling line assigns to.
        let is_own = place.role == Role::Store && !place.is_in_other_module();
        let frame = place.frame().filter(|_| is_own).cloned();
        name(&mut place.pm, frame.as_ref());
    };
    finding.places.iter_mut().for_each(name_place);
    let (Evidence::Trace { timeline } | Evidence::Crash { timeline, .. } | Evidence::Race { timeline, .. }) =
        &mut finding.evidence;
    for step in timeline.iter_mut().filter(|step| step.what == "stored") {
        name(&mut step.pm, step.at.as_ref());
    }
    if let Evidence::Crash { image, .. } = &mut finding.evidence {
        image.lost.iter_mut().chain(&mut image.unpersisted).for_each(name_place);
        let named: Vec<&PmRange> = finding.places.iter().chain(&image.lost).filter_map(|p| p.pm.as_ref()).collect();
        for diff in &mut image.diff {
            let around =
                |pm: &&&PmRange| pm.file == diff.file && pm.offset <= diff.offset && diff.offset - pm.offset < pm.len;
            diff.object = diff.object.take().or_else(|| named.iter().find(around).and_then(|pm| pm.object.clone()));
        }
    }
    let stored = finding.places.iter().find(|place| place.role == Role::Store);
    let pm = stored.and_then(|place| place.pm.as_ref());
    let name = pm.and_then(|pm| pm.object.as_ref());
    let bytes = pm.map_or("the bytes".to_owned(), |pm| format!("the {} bytes", pm.len));
    let call = name.and_then(|name| expression::added(name));
    let beside = added_beside(finding, call.as_deref());
    let add = match call {
        Some(call) => format!("`{call}`"),
        None => format!("`pmemobj_tx_add_range_direct` with the address that is stored to and {bytes} from there"),
    };
    finding.fix = finding.fix.replace(Finding::TX_ADD, &(add + &beside));
    let name = match name {
        Some(name) => format!("`{name}`"),
        None => {
            // Data without a name is described by its store.
            finding.fix = finding.fix.replace(&format!("the store of {}", Finding::DATA), "the store");
            "the stored bytes".to_owned()
        }
    };
    finding.fix = finding.fix.replace(Finding::DATA, &name);
}

/// What else to add to the transaction than the first store needs, if a finding names several that escape it.
fn added_beside(finding: &Finding, first: Option<&str>) -> String {
    if finding.rule != rules::TX_STORE_NOT_ADDED.id() {
        return String::new();
    }
    let stores = finding.places.iter().filter(|place| place.role == Role::Store).skip(1);
    let mut calls: Vec<String> = Vec::new();
    for call in stores.filter_map(|place| expression::added(place.pm.as_ref()?.object.as_ref()?)) {
        if first != Some(call.as_str()) && !calls.contains(&call) {
            calls.push(call);
        }
    }
    if calls.is_empty() { String::new() } else { format!("; its other stores need `{}`", calls.join("`, `")) }
}

fn has_witness(finding: &Finding) -> bool {
    matches!(finding.evidence, Evidence::Crash { .. })
}

/// Keeps the graver finding, or else the earlier one.
fn merge(kept: &mut Finding, other: Finding) {
    let count = kept.count.saturating_add(other.count);
    if (other.severity, has_witness(&other)) > (kept.severity, has_witness(kept)) {
        *kept = other;
    }
    kept.count = count;
}

/// By severity, the gravest first, then in the order of the catalogue, then by place.
pub fn sort(findings: &mut [Finding]) {
    findings.sort_by_cached_key(|finding| {
        let rule = rules::ALL.iter().position(|rule| rule.id == finding.rule.0).unwrap_or(usize::MAX);
        let frame = finding.places.first().and_then(|place| place.frame());
        let place = frame.map(|frame| (frame.file.clone(), frame.line, frame.offset));
        (std::cmp::Reverse(finding.severity), rule, place, finding.fingerprint.clone())
    });
}
