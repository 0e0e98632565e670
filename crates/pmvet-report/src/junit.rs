//! The run as test results: one test case for every rule that was checked, and one for every function with failure points.
//!
//! A rule of an engine that did not run gets no test case, since it has not passed. The order and the attributes satisfy both the schema of
//! Ant and that of Jenkins.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    io::{self, Write},
};

use pmvet_findings::{Finding, Rule, Run, Severity, Sources, Tally, rules, run::is_pedantic};

use crate::{
    Exporter,
    terminal::Terminal,
    text::{plural, shorten, timestamp},
};

/// How many findings a test case shows in full.
const MAX_SHOWN: usize = 20;

/// The JUnit exporter.
#[derive(Debug, Clone, Copy)]
pub struct Junit {
    /// A test case fails if it has a finding of at least this severity.
    pub fail_on: Severity,
    /// Include rules that hold for correct programs too.
    pub pedantic: bool,
}

impl Default for Junit {
    fn default() -> Self {
        Junit { fail_on: Severity::Error, pedantic: false }
    }
}

struct TestCase {
    class: String,
    name: String,
    result: TestOutcome,
}

enum TestOutcome {
    Passed,
    Skipped,
    Failed { kind: String, message: String, text: String },
}

struct Suite {
    name: &'static str,
    cases: Vec<TestCase>,
    /// Findings worth reading that fail no test case.
    out: String,
}

impl Exporter for Junit {
    fn export(&self, run: &Run, sources: &Sources, out: &mut dyn Write) -> io::Result<()> {
        let suites = [self.rules(run, sources), failure_points(run)];
        let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
        let suites = suites.into_iter().filter(|suite| !suite.cases.is_empty());
        suites.enumerate().for_each(|(id, suite)| suite.write(id, run, &mut xml));
        xml.push_str("</testsuites>\n");
        out.write_all(xml.as_bytes())
    }
}

impl Junit {
    fn rules(&self, run: &Run, sources: &Sources) -> Suite {
        let mut by_rule: HashMap<&str, Vec<&Finding>> = HashMap::new();
        for finding in run.counted(self.pedantic) {
            by_rule.entry(&finding.rule.0).or_default().push(finding);
        }
        let checked =
            |rule: &Rule| run.engines.iter().any(|engine| engine == rule.engine) && (self.pedantic || !rule.pedantic);
        let mut suite = Suite { name: "rules", cases: Vec::new(), out: String::new() };
        for rule in rules::ALL {
            let findings = by_rule.remove(rule.id).unwrap_or_default();
            if checked(rule) || !findings.is_empty() {
                suite.add_rule(rule.id, rule.engine, &findings, self.fail_on, sources);
            }
        }
        // Rules that only a newer pmvet knows.
        let mut others: Vec<_> = by_rule.into_iter().collect();
        others.sort_unstable_by_key(|(rule, _)| *rule);
        others.iter().for_each(|(rule, findings)| suite.add_rule(rule, "other", findings, self.fail_on, sources));
        let hidden = run.findings.iter().filter(|f| is_pedantic(f)).count();
        if !self.pedantic && hidden > 0 {
            let _ = writeln!(suite.out, "{} not shown", plural(hidden as u64, "pedantic finding", "pedantic findings"));
        }
        for remark in &run.coverage.not_covered {
            let _ = writeln!(suite.out, "not covered: {remark}");
        }
        suite
    }
}

impl Suite {
    fn add_rule(&mut self, rule: &str, engine: &str, findings: &[&Finding], fail_on: Severity, sources: &Sources) {
        let (failures, others): (Vec<&Finding>, Vec<&Finding>) = findings.iter().partition(|f| f.severity >= fail_on);
        self.out.push_str(&text_of(&others, sources));
        let result = match failures.as_slice() {
            [] => TestOutcome::Passed,
            [first, ..] => TestOutcome::Failed {
                kind: first.severity.name().into(),
                message: match failures.len() {
                    1 => first.title.clone(),
                    more => format!("{more} findings, the first: {}", first.title),
                },
                text: text_of(&failures, sources),
            },
        };
        self.cases.push(TestCase { class: format!("pmvet.{engine}"), name: rule.into(), result });
    }

    fn write(&self, id: usize, run: &Run, xml: &mut String) {
        let failed = self.cases.iter().filter(|case| matches!(case.result, TestOutcome::Failed { .. })).count();
        let skipped = self.cases.iter().filter(|case| matches!(case.result, TestOutcome::Skipped)).count();
        // Writing to a string cannot fail.
        let _ = writeln!(
            xml,
            "<testsuite package=\"pmvet\" id=\"{id}\" name=\"{}\" timestamp=\"{}\" hostname=\"localhost\" tests=\"{}\" \
             failures=\"{failed}\" errors=\"0\" skipped=\"{skipped}\" time=\"{}\">",
            self.name,
            // The schema requires one even if it is unknown.
            run.started.as_deref().and_then(timestamp).unwrap_or_else(|| "1970-01-01T00:00:00".into()),
            self.cases.len(),
            decimal(if id == 0 { run.seconds } else { 0.0 }),
        );
        xml.push_str("<properties>\n");
        let seed = run.seed.map(|seed| seed.to_string());
        let command = run.command.join(" ");
        let properties = [("version", Some(&run.version)), ("run", Some(&run.id)), ("seed", seed.as_ref())];
        for (name, value) in properties.into_iter().chain([("command", Some(&command))]) {
            if let Some(value) = value {
                let _ = writeln!(xml, "<property name=\"{name}\" value=\"{}\"/>", escape(value));
            }
        }
        xml.push_str("</properties>\n");
        self.cases.iter().for_each(|case| case.write(xml));
        let _ =
            write!(xml, "<system-out>{}</system-out>\n<system-err></system-err>\n</testsuite>\n", escape(&self.out));
    }
}

impl TestCase {
    fn write(&self, xml: &mut String) {
        let (class, name) = (token(&self.class), token(&self.name));
        let _ = write!(xml, "<testcase classname=\"{class}\" name=\"{name}\" time=\"0.000\"");
        let _ = match &self.result {
            TestOutcome::Passed => writeln!(xml, "/>"),
            TestOutcome::Skipped => writeln!(xml, "><skipped/></testcase>"),
            TestOutcome::Failed { kind, message, text } => writeln!(
                xml,
                "><failure type=\"{}\" message=\"{}\">{}</failure></testcase>",
                escape(kind),
                escape(&shorten(message, 400)),
                escape(text)
            ),
        };
    }
}

fn text_of(findings: &[&Finding], sources: &Sources) -> String {
    let terminal = Terminal::default();
    let mut text: String = findings.iter().take(MAX_SHOWN).map(|f| terminal.finding(f, sources) + "\n").collect();
    if findings.len() > MAX_SHOWN {
        let _ = writeln!(text, "and {} more", findings.len() - MAX_SHOWN);
    }
    text
}

/// One test case for every function that has failure points.
fn failure_points(run: &Run) -> Suite {
    let mut groups: BTreeMap<&str, Tally> = BTreeMap::new();
    if let Some(tree) = &run.tree {
        for (index, node) in tree.nodes.iter().enumerate().filter(|(_, node)| node.own.total() > 0) {
            groups.entry(tree.user_function(index).unwrap_or("?")).or_default().add(node.own);
        }
    }
    let case = |(function, tally): (&str, Tally)| {
        let result = match tally {
            Tally { failed: 0, ok: 0, .. } => TestOutcome::Skipped,
            Tally { failed: 0, .. } => TestOutcome::Passed,
            Tally { ok, failed, not_tried } => TestOutcome::Failed {
                kind: "recovery".into(),
                message: format!("recovery fails after a crash at {failed} of {} failure points", ok + failed),
                text: format!("{ok} survived, {failed} not survived, {not_tried} not tried\n"),
            },
        };
        TestCase { class: "pmvet.failure-points".into(), name: function.into(), result }
    };
    Suite { name: "failure points", cases: groups.into_iter().map(case).collect(), out: String::new() }
}

/// Escapes an attribute or a text. Most control characters cannot be written in XML at all.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + text.len() / 8);
    for c in text.chars() {
        // Writing to a string cannot fail.
        let _ = match c {
            '<' => write!(escaped, "&lt;"),
            '>' => write!(escaped, "&gt;"),
            '&' => write!(escaped, "&amp;"),
            '"' => write!(escaped, "&quot;"),
            '\'' => write!(escaped, "&apos;"),
            '\n' | '\t' => write!(escaped, "{c}"),
            '\u{fffe}' | '\u{ffff}' => write!(escaped, "{}", c.escape_unicode()),
            c if c.is_control() => write!(escaped, "\\x{:02x}", u32::from(c)),
            c => write!(escaped, "{c}"),
        };
    }
    escaped
}

/// An attribute value without leading, trailing or repeated white space.
fn token(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    if words.is_empty() { "?".into() } else { escape(&words.join(" ")) }
}

fn decimal(seconds: f64) -> String {
    format!("{:.3}", if seconds.is_finite() { seconds.clamp(0.0, 1e9) } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_xml_cannot_hold_is_spelled_out() {
        assert_eq!(escape("<a & \"b\" 'c'>\t\n"), "&lt;a &amp; &quot;b&quot; &apos;c&apos;&gt;\t\n");
        assert_eq!(escape("\0\x1b[31m\r\u{7f}\u{9b}\u{fffe}"), r"\x00\x1b[31m\x0d\x7f\x9b\u{fffe}");
        assert_eq!([token("  a \n\tb "), token(" \n"), token("")], ["a b", "?", "?"]);
        let long = "x".repeat(1 << 20);
        assert_eq!(escape(&long), long);
    }
}
