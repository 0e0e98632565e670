//! `pmvet suppress`: writes the `[[suppress]]` entry for a finding into the configuration.

use std::io;
use std::path::Path;

use pmvet_findings::Finding;
use pmvet_findings::suppress::Suppress;

use crate::cli;
use crate::config::{self, Config, toml_string};
use crate::exit::{Error, Exit};
use crate::files;
use crate::run_folder::RunFolder;
use crate::system;

pub(crate) fn run(arguments: &cli::Suppress) -> Result<Exit, Error> {
    system::end_on_signals();
    let reason = arguments.reason.trim();
    if reason.is_empty() {
        return Err(Error::Usage(
            "--reason is empty: say why the finding may be hidden, for whoever reads the file".into(),
        ));
    }
    let (folder, finding) = RunFolder::with_finding(&arguments.chosen, &arguments.id)?;
    let entry = entry_for(&finding, reason)?;
    let path = arguments.config.as_deref().unwrap_or(Path::new(config::DEFAULT_FILE));
    let before = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
        Err(source) => return Err(config::ConfigError::Unreadable { path: path.to_owned(), source }.into()),
    };
    // Do not add to a file that cannot be read.
    let known = if before.is_empty() { Config::default() } else { Config::load(Some(path))? };
    if let Some(number) = known.suppress.iter().position(|entry| entry.matches(&finding)) {
        println!("{}: suppression {} hides it already", path.display(), number + 1);
        return Ok(Exit::Ok);
    }
    let text = appended(&before, &entry);
    if Config::check(&text).is_err() {
        return Err(Error::Usage(format!(
            "{} cannot be added to, since it lists its suppressions in another way; write there:\n{}",
            path.display(),
            shown(&entry)
        )));
    }
    files::replace(path, |out| out.write_all(text.as_bytes())).map_err(|source| Error::Output {
        action: "write",
        what: path.display().to_string(),
        source,
    })?;
    let hidden = folder.findings()?.iter().filter(|other| entry.matches(other)).count();
    let (of_all, plural) = (folder.id, if hidden == 1 { "" } else { "s" });
    print!("{}", shown(&entry));
    println!("added to {}; it hides {hidden} finding{plural} of run {of_all}", path.display());
    Ok(Exit::Ok)
}

/// The narrowest entry that hides the finding: its rule, in its function of its file.
fn entry_for(finding: &Finding, reason: &str) -> Result<Suppress, Error> {
    let frame = finding.places.first().and_then(|place| place.frame());
    let function = frame.and_then(|frame| frame.function.clone());
    let file = frame.and_then(|frame| frame.file.as_ref()).map(|file| {
        // Folder and file name only, which are the same on every machine that builds it.
        let parts: Vec<_> = file.iter().rev().take(2).map(|part| part.to_string_lossy()).collect();
        parts.into_iter().rev().collect::<Vec<_>>().join("/")
    });
    let entry = Suppress {
        rule: Some(finding.rule.0.to_string()),
        function,
        file: file.filter(|file| !file.starts_with("//")),
        stack: Vec::new(),
        reason: reason.into(),
    };
    if (entry.function.is_none() && entry.file.is_none()) || !entry.matches(finding) {
        return Err(Error::Usage(format!(
            "this finding has neither a function nor a file that a suppression could name; build the program with -g, or write an entry \
             for all of {} yourself",
            finding.rule
        )));
    }
    Ok(entry)
}

fn appended(before: &str, entry: &Suppress) -> String {
    let mut text = before.to_owned();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text + &shown(entry)
}

/// The entry as text of the file.
fn shown(entry: &Suppress) -> String {
    let keys = [("rule", &entry.rule), ("function", &entry.function), ("file", &entry.file)];
    let lines = keys.into_iter().filter_map(|(key, value)| Some(format!("{key} = {}\n", toml_string(value.as_ref()?))));
    format!("[[suppress]]\n{}reason = {}\n", lines.collect::<String>(), toml_string(&entry.reason))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn what_is_there_stays_and_the_entry_can_be_read() {
        let entry = Suppress {
            rule: Some("flush-clean".into()),
            function: Some("Map<\"x\">::put\\".into()),
            reason: "two\nlines, a \u{1} and “quotes”".into(),
            ..Suppress::default()
        };
        for before in ["", "# mine\n", "[target]\npm = [\"/x\"] # here", "[[suppress]]\nrule = 'x'\nreason = 'y'\n"] {
            let text = appended(before, &entry);
            assert!(text.starts_with(before), "{text}");
            assert_eq!(Config::check(&text).unwrap().suppress.last(), Some(&entry), "{text}");
        }
        assert!(Config::check(&appended("suppress = []\n", &entry)).is_err());
    }
}
