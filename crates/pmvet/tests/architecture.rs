//! What ARCHITECTURE.md promises about the rooms of the house, read from the sources.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Engines that still import another one. What they share wants a room of its own; nothing may be added here.
const KNOWN_IMPORTS: [(&str, &str); 2] = [("confirm", "inject"), ("interleave", "fuzz")];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The words in backticks.
fn quoted(text: &str) -> BTreeSet<String> {
    text.split('`').skip(1).step_by(2).map(Into::into).collect()
}

/// By crate, the crates that it may depend on.
fn allowed() -> BTreeMap<String, BTreeSet<String>> {
    let text = fs::read_to_string(repository().join("ARCHITECTURE.md")).unwrap();
    let rows =
        text.lines().skip_while(|line| !line.starts_with("| crate |")).skip(2).take_while(|l| l.starts_with('|'));
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
        (quoted(cells[0]).pop_first().unwrap(), quoted(cells[cells.len() - 1]))
    };
    rows.map(row).collect()
}

/// By crate, the crates of the workspace that it depends on.
fn used() -> BTreeMap<String, BTreeSet<String>> {
    let folders = fs::read_dir(repository().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let manifest =
        |folder: PathBuf| -> toml::Table { fs::read_to_string(folder.join("Cargo.toml")).unwrap().parse().unwrap() };
    let used = |manifest: toml::Table| {
        let names = manifest.get("dependencies").and_then(|table| table.as_table()).into_iter().flatten();
        let ours = names.map(|(name, _)| name.clone()).filter(|name| name.starts_with("pmvet"));
        (manifest["package"]["name"].as_str().unwrap().to_owned(), ours.collect())
    };
    folders.map(manifest).map(used).filter(|(name, _): &(String, _)| name.starts_with("pmvet")).collect()
}

#[test]
fn crates_depend_on_what_they_may() {
    let allowed = allowed();
    for (name, used) in used() {
        let allowed = allowed.get(&name).unwrap_or_else(|| panic!("ARCHITECTURE.md does not list {name}"));
        let more: Vec<_> = used.difference(allowed).collect();
        assert!(more.is_empty(), "{name} depends on {more:?}, which ARCHITECTURE.md does not allow");
    }
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn no_engine_imports_another() {
    let all = repository().join("crates/pmvet-engines/src");
    let folders = fs::read_dir(&all).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let engines: BTreeSet<String> =
        folders.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    assert!(engines.contains("rules") && engines.contains("verify"), "{engines:?}");
    let mut imports = BTreeSet::new();
    for engine in &engines {
        let mut files = Vec::new();
        sources(&all.join(engine), &mut files);
        for text in files.into_iter().map(|file| fs::read_to_string(file).unwrap()) {
            let others = engines.iter().filter(|other| *other != engine);
            imports.extend(
                others
                    .filter(|other| text.contains(&format!("crate::{other}::")))
                    .map(|other| (engine.clone(), other.clone())),
            );
        }
    }
    let known: BTreeSet<(String, String)> =
        KNOWN_IMPORTS.iter().map(|(engine, other)| ((*engine).into(), (*other).into())).collect();
    assert_eq!(imports, known);
}

/// Paths of files that documents name exist.
#[test]
fn documents_name_files_that_exist() {
    let root = repository();
    let mut documents = vec![root.join("ARCHITECTURE.md"), root.join("README.md"), root.join("CONTRIBUTING.md")];
    for folder in ["docs", "docs/decisions"] {
        let files = fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        documents.extend(files.filter(|path| path.extension().is_some_and(|ending| ending == "md")));
    }
    for document in documents {
        for word in quoted(&fs::read_to_string(&document).unwrap()) {
            let is_path = word.starts_with("pmvet") && word.contains("/src/") && !word.contains([' ', '*', '{']);
            let path = root.join("crates").join(&word);
            assert!(!is_path || path.exists(), "{} names {word}, which does not exist", document.display());
        }
    }
}
