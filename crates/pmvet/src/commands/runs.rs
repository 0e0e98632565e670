//! `pmvet runs`: lists the kept runs, and removes those that nobody needs.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use pmvet_events::paths::shown;
use pmvet_findings::Severity;
use serde_json::json;

use crate::cli::{Runs, SummaryFormat};
use crate::config::Config;
use crate::exit::{Error, Exit};
use crate::retention::{self, KeptRun, Prune};
use crate::run_folder::RunFolder;
use crate::summary::render::bytes;
use crate::system;

pub(crate) fn run(arguments: &Runs) -> Result<Exit, Error> {
    system::end_on_signals();
    let folder = &arguments.runs;
    if let Some(name) = &arguments.pin {
        retention::pin(&existing(arguments, name)?, "by `pmvet runs --pin`")?;
    }
    if let Some(name) = &arguments.unpin {
        retention::unpin(&existing(arguments, name)?)?;
    }
    if arguments.prune {
        let how = match (arguments.keep, arguments.older_than) {
            (None, None) => Prune::ToBytes(Config::load(arguments.config.as_deref())?.runs_limit.0.unwrap_or(u64::MAX)),
            (keep, age) => Prune::Beyond { keep: keep.unwrap_or(0), older_than: age.unwrap_or(Duration::ZERO) },
        };
        let removed = retention::prune(folder, how)?;
        eprintln!("pmvet: removed {} from {}", removed.shown(), folder.display());
    }
    let runs = retention::list(folder)?;
    let text = match arguments.format {
        SummaryFormat::Human => table(&runs, SystemTime::now()),
        SummaryFormat::Json => as_json(&runs),
    };
    match io::stdout().lock().write_all(text.as_bytes()) {
        // The reader has closed the pipe.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::Ok),
        Err(source) => Err(Error::Output { action: "write", what: "standard output".into(), source }),
        Ok(()) => Ok(Exit::Ok),
    }
}

/// A run in the folder of runs. A name that leads elsewhere is refused.
fn existing(arguments: &Runs, name: &str) -> Result<RunFolder, Error> {
    let runs = retention::list(&arguments.runs)?;
    let found = runs.into_iter().map(|run| run.folder).find(|folder| folder.id == name);
    found.ok_or_else(|| {
        Error::Run(format!("there is no run `{name}` in {}; `pmvet runs` lists them", arguments.runs.display()))
    })
}

/// What a run found, in a few words.
fn result(run: &KeptRun) -> String {
    let Ok(findings) = run.folder.findings() else { return "no result".into() };
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let part = |severity: Severity, letter: &str| match count(severity) {
        0 => String::new(),
        n => format!("{n}{letter} "),
    };
    let shown = [(Severity::Error, "E"), (Severity::Warning, "W"), (Severity::Performance, "P")]
        .map(|(severity, letter)| part(severity, letter))
        .concat();
    if shown.is_empty() { "clean".into() } else { shown.trim_end().into() }
}

fn command(run: &KeptRun) -> String {
    let words = run.info.iter().flat_map(|info| &info.command).map(|word| shown(&word.0).to_string());
    words.collect::<Vec<_>>().join(" ")
}

fn table(runs: &[KeptRun], now: SystemTime) -> String {
    if runs.is_empty() {
        return "no runs are kept here\n".into();
    }
    let mut text = format!("{:<17} {:>5} {:>10}  {:<12} command\n", "run", "age", "size", "findings");
    for run in runs.iter().rev() {
        let why = run.protected.as_ref().map(|why| format!("  ({why})")).unwrap_or_default();
        text.push_str(&format!(
            "{:<17} {:>5} {:>10}  {:<12} {}{why}\n",
            run.folder.id,
            run.age(now).map(age).unwrap_or_else(|| "?".into()),
            bytes(run.size_bytes),
            result(run),
            command(run),
        ));
    }
    let sum = runs.iter().map(|run| run.size_bytes).sum();
    let plural = if runs.len() == 1 { "" } else { "s" };
    text.push_str(&format!("{} run{plural}, {}; E error, W warning, P performance\n", runs.len(), bytes(sum)));
    text
}

/// One unit is enough to recognise a run by.
fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

fn as_json(runs: &[KeptRun]) -> String {
    let row = |run: &KeptRun| {
        let findings = run.folder.findings().ok().map(|findings| findings.len());
        json!({
            "run": run.folder.id,
            "started": run.info.as_ref().map(|info| crate::run_folder::rfc3339(info.started)),
            "bytes": run.size_bytes,
            "findings": findings,
            "complete": run.info.as_ref().is_some_and(|info| info.complete),
            "command": run.info.iter().flat_map(|info| &info.command).map(|word| word.0.to_string_lossy()).collect::<Vec<_>>(),
            "protected": run.protected,
        })
    };
    let rows: Vec<_> = runs.iter().rev().map(row).collect();
    format!("{:#}\n", serde_json::Value::from(rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_one_unit() {
        let shown = [5, 65, 7300, 90_000].map(|seconds| age(Duration::from_secs(seconds)));
        assert_eq!(shown, ["5s", "1m", "2h", "1d"]);
    }
}
