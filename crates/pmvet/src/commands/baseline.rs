//! `pmvet baseline`: a file with the findings that are known already, for `--baseline`.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use pmvet_findings::baseline::Baseline;

use crate::cli::{self, BaselineAction, BaselineFile};
use crate::exit::{Error, Exit};
use crate::files;
use crate::retention;
use crate::run_folder::RunFolder;
use crate::system;

pub(crate) fn run(arguments: &cli::Baseline) -> Result<Exit, Error> {
    system::end_on_signals();
    match &arguments.action {
        BaselineAction::Write(how) => write_new(how),
        BaselineAction::Update { how, no_new } => update(how, *no_new),
    }
}

fn write_new(how: &BaselineFile) -> Result<Exit, Error> {
    let path = how.file.as_path();
    if path.exists() {
        return Err(Error::Usage(format!(
            "{} exists; `pmvet baseline update {0}` brings it up to date",
            path.display()
        )));
    }
    let (folder, baseline) = of_run(how)?;
    write(path, &baseline, &folder)?;
    println!("{}: {} of run {}", path.display(), count(baseline.entries().count()), folder.id);
    Ok(Exit::Ok)
}

/// Replaces the baseline by the findings of the run, and says what changes. Old entries stay if the run did not try everything, since the
/// bugs may still be there.
fn update(how: &BaselineFile, no_new: bool) -> Result<Exit, Error> {
    let path = how.file.as_path();
    let unusable = |e: &dyn std::fmt::Display| Error::Usage(format!("{}: {e}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => unusable(&"there is no such baseline; `pmvet baseline write` makes one"),
        _ => unusable(&e),
    })?;
    let mut known = Baseline::parse(&text).map_err(|e| unusable(&e))?;
    let (folder, mut found) = of_run(how)?;
    let prints = |baseline: &Baseline| baseline.entries().map(|(print, _)| print.to_owned()).collect::<BTreeSet<_>>();
    let (old, new) = (prints(&known), prints(&found));
    let complete = folder.read_info()?.complete;
    let titles: Vec<(bool, String)> = found
        .entries()
        .filter(|(print, _)| !old.contains(*print))
        .map(|(_, title)| (true, title.to_owned()))
        .chain(known.entries().filter(|(print, _)| !new.contains(*print)).map(|(_, title)| (false, title.to_owned())))
        .collect();
    for (is_new, title) in &titles {
        match is_new {
            true if no_new => println!("new, not added: {title}"),
            true => println!("+ {title}"),
            false if complete => println!("- {title}"),
            false => println!("not seen, kept: {title}"),
        }
    }
    if complete {
        known.retain(|print| new.contains(print));
    }
    if no_new {
        found.retain(|print| old.contains(print));
    }
    known.extend(found);
    write(path, &known, &folder)?;
    if !complete {
        eprintln!("pmvet: run {} did not try everything, so nothing is taken for gone", folder.id);
    }
    println!("{}: {}", path.display(), count(known.entries().count()));
    Ok(Exit::Ok)
}

fn of_run(how: &BaselineFile) -> Result<(RunFolder, Baseline), Error> {
    let folder = RunFolder::open(&how.chosen.runs, how.chosen.run.as_deref())?;
    let baseline = Baseline::from_findings(&folder.findings()?);
    Ok((folder, baseline))
}

/// Writes the file, and pins its run, since `show` and `replay` explain the entries from it.
fn write(path: &Path, baseline: &Baseline, folder: &RunFolder) -> Result<(), Error> {
    let failed = |source| Error::Output { action: "write", what: path.display().to_string(), source };
    let text = baseline.to_json().map_err(|e| failed(io::Error::other(e)))?;
    files::replace(path, |out| writeln!(out, "{text}")).map_err(failed)?;
    let place = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    retention::pin(folder, &format!("baseline {}", place.display()))
}

fn count(findings: usize) -> String {
    format!("{findings} known finding{}", if findings == 1 { "" } else { "s" })
}
