//! The corpora of several campaigns on one program as one.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use pmvet_engines::fuzz::case::{Case, parse_file_name};
use pmvet_engines::fuzz::store::ImageStore;

use super::native::Cases;
use super::unusable;
use crate::exit::Error;
use crate::files;
use crate::reporting::Results;
use pmvet_engines::lab::Witness;

/// The folders of a corpus with test cases: those worth keeping, and those that failed.
const PARTS: [&str; 3] = ["queue", "crashes", "hangs"];

/// Copies all test cases of these corpora into another one, each once. Returns how many its queue then has.
pub(crate) fn join_corpora(from: &[PathBuf], to: &Path) -> Result<usize, Error> {
    let failed = |source| Error::Output { action: "write", what: to.display().to_string(), source };
    for part in PARTS {
        std::fs::create_dir_all(to.join(part)).map_err(failed)?;
    }
    let mut store = ImageStore::open(to).map_err(|e| unusable(to, e))?;
    let mut known: [HashSet<Case>; 3] = Default::default();
    for (part, known) in PARTS.iter().zip(&mut known) {
        known.extend(cases(&to.join(part)).map_err(failed)?.into_iter().map(|(case, _)| case));
    }
    for corpus in from.iter().filter(|corpus| corpus.join("images.jsonl").is_file()) {
        let mut other = ImageStore::open_for_reading(corpus).map_err(|e| unusable(corpus, e))?;
        if store.root().is_some() && other.root() != store.root() {
            return Err(Error::Run(format!(
                "the corpus in {} starts from other PM files than those before it, so they cannot be joined",
                corpus.display()
            )));
        }
        for (part, known) in PARTS.iter().zip(&mut known) {
            for (case, name) in cases(&corpus.join(part)).map_err(|e| unusable(corpus, e))? {
                if known.contains(&case) {
                    continue;
                }
                store.adopt(&mut other, case.image).map_err(failed)?;
                let path = to.join(part).join(renumbered(&name, known.len()));
                files::replace(&path, |out| out.write_all(&case.input)).map_err(failed)?;
                known.insert(case);
            }
        }
    }
    Ok(known[0].len())
}

/// The test cases in a folder, with the names of their files, in the order of their numbers.
fn cases(folder: &Path) -> io::Result<Vec<(Case, OsString)>> {
    let mut found = Vec::new();
    let entries = match std::fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if let Some((number, image)) = name.to_str().and_then(parse_file_name) {
            let input = std::fs::read(entry.path())?;
            found.push((number, (Case { image, input }, name)));
        }
    }
    found.sort_by_key(|(number, _)| *number);
    Ok(found.into_iter().map(|(_, case)| case).collect())
}

/// The name of a case's file, with another number.
fn renumbered(name: &OsString, number: usize) -> String {
    let name = name.to_string_lossy();
    let rest = name.split_once(',').map_or("", |(_, rest)| rest);
    format!("id:{number:06},{rest}")
}

/// Keeps what is needed to replay the findings of all campaigns, whose test cases are in the joined corpus.
pub(crate) fn join_cases(runs: &[PathBuf], corpus: &Path, results: &mut Results<'_>) {
    let Some(names) = Cases::join(runs, corpus, results.folder) else { return };
    let witness = Witness { recording: None, seq: None, patches: Vec::new(), promise: None };
    results.witnesses.extend(names.into_iter().map(|name| (name, witness.clone())));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_keeps_all_of_its_name_but_the_number() {
        assert_eq!(renumbered(&"id:000007,img:4d,fav:path".into(), 12), "id:000012,img:4d,fav:path");
    }
}
