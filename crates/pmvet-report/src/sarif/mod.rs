//! SARIF 2.1.0, for code scanning.
//!
//! Stays within GitHub's limits, also without compression: a file of at most 10 MB, 5,000 results that are shown, 100 locations and 1,000
//! steps of code flows per result. A notification says what is left out.

mod location;

use std::io::{self, Write};

use pmvet_findings::{Finding, Run, Severity, Sources, rules};
use serde_json::{Map, Value, json};

use crate::{
    Exporter,
    text::{command_line, plural, shorten, timestamp},
};
use location::Locations;

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";
/// Name of the fingerprint, with the version of the fingerprint algorithm.
const FINGERPRINT: &str = "pmvetFingerprint/v1";
const MAX_MESSAGE: usize = 1000;
const MAX_HELP: usize = 8000;
/// After this many results in a row that did not fit, no other will.
const MAX_REFUSED: usize = 20;

/// The SARIF exporter. Its output is bounded, since readers refuse files that are too large.
#[derive(Debug, Clone, Copy)]
pub struct Sarif {
    /// Include rules that hold for correct programs too.
    pub pedantic: bool,
    /// How many results to write, the gravest first.
    pub max_results: usize,
    /// Limit of all results together, in bytes as written.
    pub max_bytes: usize,
}

impl Default for Sarif {
    fn default() -> Self {
        Sarif { pedantic: false, max_results: 5000, max_bytes: 9_500_000 }
    }
}

impl Exporter for Sarif {
    fn export(&self, run: &Run, sources: &Sources, out: &mut dyn Write) -> io::Result<()> {
        let locations = Locations { sources };
        let mut results = Vec::new();
        let (mut written, mut left_out) = (0, 0);
        let shown = |f: &&Finding| self.pedantic || !pmvet_findings::run::is_pedantic(f);
        // How many in a row did not fit.
        let mut refused = 0;
        for finding in run.findings.iter().filter(shown) {
            if written >= self.max_results || refused >= MAX_REFUSED {
                left_out += 1;
                continue;
            }
            let start = results.len();
            results.push(if start == 0 { b' ' } else { b',' });
            serde_json::to_writer(&mut results, &result(finding, run, &locations))?;
            // Smaller results may still fit after a large one.
            if results.len() > self.max_bytes {
                results.truncate(start);
                left_out += 1;
                refused += 1;
            } else {
                refused = 0;
                written += 1;
            }
        }
        // The results are the bulk and already written as text; the rest is written around them.
        let head = json!({
            "tool": { "driver": driver(run) },
            "automationDetails": { "id": "pmvet/" },
            "columnKind": "unicodeCodePoints",
            "originalUriBaseIds": { "%SRCROOT%": { "description": { "text": "The root of the source tree." } } },
            "invocations": [invocation(run, left_out)],
        });
        let head = serde_json::to_string(&head)?;
        let head = head.strip_suffix('}').unwrap_or(&head);
        write!(out, r#"{{"$schema":"{SCHEMA}","version":"2.1.0","runs":[{head},"results":["#)?;
        out.write_all(&results)?;
        out.write_all(b"]}]}\n")
    }
}

fn driver(run: &Run) -> Value {
    let rules: Vec<Value> = rules::ALL
        .iter()
        .map(|rule| {
            let page = rule.explanation();
            let about = page.split("\n\n").nth(1).unwrap_or(rule.summary).replace('\n', " ");
            json!({
                "id": rule.id,
                "name": pascal_case(rule.id),
                "shortDescription": { "text": rule.summary },
                "fullDescription": { "text": shorten(&about, MAX_MESSAGE) },
                "help": { "text": shorten(page, MAX_HELP), "markdown": shorten(page, MAX_HELP) },
                "defaultConfiguration": { "level": level(rule.severity) },
                "properties": {
                    "tags": ["persistent-memory", rule.engine],
                    "problem.severity": match rule.severity {
                        Severity::Error => "error",
                        Severity::Warning => "warning",
                        Severity::Performance => "recommendation",
                    },
                },
            })
        })
        .collect();
    json!({ "name": "pmvet", "version": run.version, "rules": rules })
}

fn invocation(run: &Run, left_out: usize) -> Value {
    let mut notifications: Vec<Value> = Vec::new();
    let mut note = |text: String| {
        notifications.push(json!({ "level": "note", "message": { "text": shorten(&text, MAX_MESSAGE) } }));
    };
    if left_out > 0 {
        note(format!("{} left out: too many for one file", plural(left_out as u64, "result", "results")));
    }
    let covered: Vec<String> = run.coverage.counters.iter().map(ToString::to_string).collect();
    note(format!("covered: {}", covered.join(", ")));
    run.coverage.not_covered.iter().take(50).for_each(|remark| note(format!("not covered: {remark}")));
    let mut invocation = json!({
        "executionSuccessful": true,
        "commandLine": shorten(&command_line(&run.command), MAX_MESSAGE),
        "toolExecutionNotifications": notifications,
    });
    if let Some(started) = run.started.as_deref().and_then(timestamp) {
        invocation["startTimeUtc"] = json!(format!("{started}Z"));
    }
    invocation
}

fn result(finding: &Finding, run: &Run, locations: &Locations<'_>) -> Value {
    let mut result = Map::new();
    let mut set = |key: &str, value: Value| result.insert(key.into(), value);
    set("ruleId", json!(finding.rule));
    if let Some(index) = rules::ALL.iter().position(|rule| rule.id == finding.rule.0) {
        set("ruleIndex", json!(index));
    }
    set("level", json!(level(finding.severity)));
    set("message", json!({ "text": message(finding) }));
    set("locations", json!([locations.primary(finding)]));
    let related = locations.related(finding);
    if !related.is_empty() {
        set("relatedLocations", json!(related));
    }
    if let Some(flow) = locations.code_flow(finding) {
        set("codeFlows", json!([flow]));
    }
    if !finding.fingerprint.is_empty() {
        set("partialFingerprints", json!({ FINGERPRINT: finding.fingerprint }));
    }
    if !run.known.is_empty() {
        set("baselineState", json!(if run.is_known(finding) { "unchanged" } else { "new" }));
    }
    set("occurrenceCount", json!(finding.count.clamp(1, i32::MAX as u64)));
    if let Some(token) = &finding.replay {
        set("properties", json!({ "replay": format!("pmvet replay {token}") }));
    }
    Value::Object(result)
}

fn message(finding: &Finding) -> String {
    let parts = [Some(&finding.happened), Some(&finding.expected), Some(&finding.fix), finding.caveat.as_ref()];
    let names = ["What happened", "Expected", "Fix", "Caveat"];
    let mut text = format!("{}.", finding.title.trim_end_matches('.'));
    for (name, part) in names.into_iter().zip(parts) {
        if let Some(part) = part.filter(|part| !part.trim().is_empty()) {
            text.push_str(&format!("\n{name}: {part}"));
        }
    }
    shorten(&text, MAX_MESSAGE)
}

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Performance => "note",
    }
}

fn pascal_case(id: &str) -> String {
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    id.split('-').filter(|word| !word.is_empty() && word.is_ascii()).map(capital).collect()
}
