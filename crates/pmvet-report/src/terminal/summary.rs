//! The end of a report.

use pmvet_findings::{Counter, Run, Severity, run::is_pedantic};

use super::Terminal;
use crate::text::{clean, plural, seconds, wrap};

pub(super) fn text(run: &Run, terminal: &Terminal, width: usize) -> String {
    let mut lines = Vec::new();
    let mut paragraph = |text: String| lines.extend(wrap(&text, width));
    paragraph(counts(run, terminal));
    for remark in remarks(run, terminal) {
        paragraph(remark);
    }
    let coverage = &run.coverage;
    let nothing = coverage.counters.iter().all(|counter| counter.done == 0);
    if nothing {
        paragraph("covered: nothing was analysed, so that there are no findings means nothing".into());
    }
    if coverage.engines.is_empty() {
        if !nothing {
            paragraph(format!("covered: {}", counters(&coverage.counters)));
        }
        if !coverage.not_covered.is_empty() {
            paragraph(format!("not covered: {}", remarks_of(&coverage.not_covered)));
        }
    }
    for engine in &coverage.engines {
        let mut line = format!("{}: {}", engine.engine, counters(&engine.counters));
        if !engine.not_covered.is_empty() {
            line += &format!("; not covered: {}", remarks_of(&engine.not_covered));
        }
        paragraph(line);
    }
    lines.join("\n") + "\n"
}

fn counts(run: &Run, terminal: &Terminal) -> String {
    let count = |severity| run.counted(terminal.pedantic).filter(|f| f.severity == severity).count() as u64;
    let parts: Vec<String> = [
        (count(Severity::Error), "error", "errors"),
        (count(Severity::Warning), "warning", "warnings"),
        (count(Severity::Performance), "performance finding", "performance findings"),
    ]
    .into_iter()
    .filter(|(count, ..)| *count > 0)
    .map(|(count, one, many)| plural(count, one, many))
    .collect();
    let found = if parts.is_empty() { "no findings".into() } else { parts.join(", ") };
    format!("pmvet: {found} in {}", seconds(run.seconds))
}

/// What is not shown, and why.
fn remarks(run: &Run, terminal: &Terminal) -> Vec<String> {
    let mut remarks = Vec::new();
    let known = run.findings.iter().filter(|f| run.is_known(f)).count() as u64;
    if known > 0 {
        remarks.push(format!("{} in the baseline, not counted", plural(known, "finding is", "findings are")));
    }
    let pedantic = run.findings.iter().filter(|f| !run.is_known(f) && is_pedantic(f)).count() as u64;
    if pedantic > 0 && !terminal.pedantic {
        let findings = plural(pedantic, "pedantic finding", "pedantic findings");
        remarks.push(format!("{findings} not shown: true of correct programs too (--pedantic shows them)"));
    }
    let suppressed = run.suppressed.iter().fold(0_u64, |sum, s| sum.saturating_add(s.findings));
    if suppressed > 0 {
        remarks.push(format!("{} suppressed", plural(suppressed, "finding", "findings")));
    }
    for unused in &run.unused_suppressions {
        remarks.push(format!("suppression {} hides nothing (\"{}\"); remove it", unused.number, clean(&unused.reason)));
    }
    remarks
}

fn counters(counters: &[Counter]) -> String {
    counters.iter().map(|counter| clean(&counter.to_string())).collect::<Vec<_>>().join(", ")
}

fn remarks_of(remarks: &[String]) -> String {
    remarks.iter().map(|remark| clean(remark)).collect::<Vec<_>>().join("; ")
}
