//! The rules over saved traces: `cargo run -p pmvet-engines --example rules -- [--pedantic] [--eadr] [-v] TRACE..`.
//!
//! Prints one line for each finding. Contents come from the events alone, so use traces of runs on new files.

use std::error::Error;
use std::time::Instant;

use pmvet_engines::rules::{RuleOptions, Rules, report};
use pmvet_engines::stacks::{Symbols, user_frame};
use pmvet_events::file::{TraceError, TraceReader};
use pmvet_findings::{Evidence, Frame, Stack};
use pmvet_model::{Mode, Shadow};

fn main() -> Result<(), Box<dyn Error>> {
    let (flags, traces): (Vec<String>, Vec<String>) = std::env::args().skip(1).partition(|arg| arg.starts_with('-'));
    let flag = |name: &str| flags.iter().any(|f| f == name);
    let mode = if flag("--eadr") { Mode::Eadr } else { Mode::Adr };
    let options = RuleOptions { mode, pedantic: flag("--pedantic") };
    for path in traces {
        let start = Instant::now();
        let mut trace = TraceReader::open(&path)?;
        let (mut rules, mut shadow, mut symbols) = (Rules::new(options), Shadow::default(), Symbols::default());
        let mut events = 0u64;
        trace.for_each(|event, _| {
            rules.event(event, &shadow);
            shadow.event(event);
            symbols.event(event);
            events += 1;
            Ok::<(), TraceError>(())
        })?;
        let passed = start.elapsed();
        let raw = rules.finish();
        let raw_count = raw.findings.len();
        let findings = report(raw, &mut symbols.with(&trace));
        println!(
            "{path}: {events} events, {} findings ({raw_count} raw), {:.2} s",
            findings.len(),
            passed.as_secs_f64()
        );
        for finding in findings {
            println!("  {} x{} {}", finding.rule, finding.count, finding.title);
            for place in &finding.places {
                println!("      {:?} {}: {}", place.role, at(&place.stack), place.label);
            }
            if flag("-v") {
                println!(
                    "      expected: {}\n      happened: {}\n      fix: {}",
                    finding.expected, finding.happened, finding.fix
                );
                println!("      caveat: {}", finding.caveat.as_deref().unwrap_or("-"));
                for frame in &finding.places[0].stack {
                    println!("        {}", short(frame));
                }
                if let Evidence::Trace { timeline } = &finding.evidence {
                    for access in timeline {
                        let at = access.at.as_ref().map(short).unwrap_or_default();
                        println!("      {:>8} t{} {:8} {at}", access.seq, access.thread, access.what);
                    }
                }
            }
        }
    }
    Ok(())
}

fn at(stack: &Stack) -> String {
    short(&stack[user_frame(stack).unwrap_or(0)])
}

fn short(frame: &Frame) -> String {
    let name = |p: &std::path::Path| p.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let function = frame.function.clone().unwrap_or_else(|| "?".into());
    match (&frame.file, frame.line) {
        (Some(file), Some(line)) => format!("{function} ({}:{line})", name(file)),
        _ => format!("{function} ({}+{:#x})", frame.module.as_deref().map(name).unwrap_or_default(), frame.offset),
    }
}
