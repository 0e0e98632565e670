//! `--paths-of`: how much a set of inputs covers, whichever fuzzer made it.

use std::collections::HashSet;
use std::path::Path;

use pmvet_engines::fuzz::campaign::FuzzError;
use pmvet_engines::fuzz::case::Case;
use pmvet_engines::fuzz::paths::{SeenPaths, path};
use pmvet_engines::fuzz::runner::{CaseOrder, Runner};

use super::start::FuzzStart;
use crate::exit::{Error, Exit};

/// Runs every test case of the corpus, if that is the folder that is named, or every file of another folder as an input on
/// the first image, and counts.
pub(super) fn run(start: &mut FuzzStart, folder: &Path) -> Result<Exit, Error> {
    let unusable = |e| Error::Usage(format!("--paths-of: {}: {e}", folder.display()));
    let own = folder.canonicalize().map_err(unusable)? == start.corpus;
    let cases = if own { start.known.clone() } else { inputs(start, folder).map_err(unusable)? };
    if cases.is_empty() {
        eprintln!("pmvet: nothing was run: there are no test cases in {}", folder.display());
        return Ok(Exit::NothingAnalysed);
    }
    let mut runner = Runner::new(start.target.clone()).map_err(FuzzError::from)?;
    let mut seen = SeenPaths::default();
    let mut paths = HashSet::new();
    for case in &cases {
        let content = start.store.get(case.image).map_err(FuzzError::Corpus)?;
        let order = CaseOrder {
            image: case.image,
            content: &content,
            input: &case.input,
            stop: (0, 0),
            keep: false,
            once: own,
            hurried: false,
        };
        let counts = runner.run(&order, None).map_err(FuzzError::from)?.counts;
        paths.insert(path(&counts));
        seen.add(&counts);
    }
    println!(
        "{} test cases: {} PM paths, {} transitions, {} with how often each, {} branches",
        cases.len(),
        paths.len(),
        seen.transitions(),
        seen.transition_counts(),
        seen.branches()
    );
    Ok(Exit::Ok)
}

fn inputs(start: &FuzzStart, folder: &Path) -> std::io::Result<Vec<Case>> {
    let image = start.store.root().ok_or(std::io::ErrorKind::NotFound)?;
    let mut paths: Vec<_> = std::fs::read_dir(folder)?.flatten().map(|e| e.path()).filter(|p| p.is_file()).collect();
    paths.sort();
    paths.into_iter().map(|path| Ok(Case { image, input: std::fs::read(path)? })).collect()
}
