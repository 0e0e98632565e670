//! What ARCHITECTURE.md promises about the rooms of the house, read from the sources.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Folders of `pmvet-engines` that are no engines, but rooms for what engines share.
const ROOMS: [&str; 5] = ["causes", "lab", "promises", "timeline", "transactions"];

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

/// Engines know no other engine, and what engines share knows none.
#[test]
fn no_engine_is_imported() {
    let all = repository().join("crates/pmvet-engines/src");
    let folders = fs::read_dir(&all).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let mut engines: BTreeSet<String> =
        folders.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    for room in ROOMS {
        assert!(engines.remove(room), "{room} is not there");
    }
    assert!(engines.contains("rules") && engines.contains("verify"), "{engines:?}");
    let mut files = Vec::new();
    sources(&all, &mut files);
    for file in files.iter().filter(|file| !file.ends_with("src/lib.rs")) {
        let text = fs::read_to_string(file).unwrap();
        let own = file.strip_prefix(&all).unwrap().components().next().unwrap().as_os_str().to_str().unwrap();
        for other in engines.iter().filter(|engine| *engine != own) {
            let imports = text.contains(&format!("crate::{other}::")) || text.contains(&format!("crate::{other};"));
            assert!(
                !imports,
                "{} imports the engine `{other}`; what they share wants a room of its own",
                file.display()
            );
        }
    }
}

/// The name of the public type that a line of a source file defines, if it does.
fn public_type(line: &str) -> Option<&str> {
    let definition = line.trim_start().strip_prefix("pub ")?;
    let kinds = ["struct ", "enum ", "trait ", "type ", "union "];
    let name = kinds.iter().find_map(|kind| definition.strip_prefix(kind))?;
    // A macro names its types later.
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
}

/// A name that means two things has to be looked up at every place of use.
#[test]
fn no_two_public_types_share_a_name() {
    assert_eq!(public_type("    pub struct LineId {"), Some("LineId"));
    assert_eq!(public_type("pub type Stack<'a> = Vec<Frame<'a>>;"), Some("Stack"));
    assert_eq!(public_type("pub(crate) struct Key;"), None);
    assert_eq!(public_type("pub struct $name(pub u32);"), None);
    let crates = repository().join("crates");
    let mut files = Vec::new();
    for folder in fs::read_dir(&crates).unwrap().map(|entry| entry.unwrap().path().join("src")) {
        sources(&folder, &mut files);
    }
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let file = file.strip_prefix(&crates).unwrap().display().to_string();
        for name in text.lines().filter_map(public_type) {
            types.entry(name.into()).or_default().push(file.clone());
        }
    }
    assert!(types.contains_key("Finding") && types.contains_key("Event"), "{types:?}");
    types.retain(|_, files| files.len() > 1);
    assert!(types.is_empty(), "each of these names means one thing here and another there: {types:#?}");
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

/// The values of all policies, as the documents write them.
fn tuned() -> Vec<(String, String)> {
    let mut files = Vec::new();
    sources(&repository().join("crates"), &mut files);
    let policies =
        files.iter().filter(|file| file.ends_with("policy.rs")).map(|file| fs::read_to_string(file).unwrap());
    let shown = |value: &str| match value.strip_prefix("Duration::from_").and_then(|rest| rest.split_once('(')) {
        Some(("secs", number)) => format!("{} s", number.trim_end_matches(')')),
        Some(("millis", number)) => format!("{} ms", number.trim_end_matches(')')),
        _ => value.to_owned(),
    };
    let values = |text: String| -> Vec<(String, String)> {
        let values = text.lines().skip_while(|line| !line.starts_with("pub const POLICY"));
        let pairs = values.filter_map(|line| line.strip_prefix("    ")?.strip_suffix(',')?.split_once(": "));
        pairs.map(|(name, value)| (name.to_owned(), shown(value))).collect()
    };
    policies.flat_map(values).collect()
}

#[test]
fn the_page_on_tuning_has_every_value() {
    let page = fs::read_to_string(repository().join("docs/tuning.md")).unwrap();
    let tuned = tuned();
    assert!(tuned.len() > 30, "{tuned:?}");
    for (name, value) in &tuned {
        let row = format!("| `{name}` | {value} | ");
        assert!(page.contains(&row), "docs/tuning.md lacks `{row}`");
    }
    let rows = page.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, tuned.len(), "docs/tuning.md has a row without a value");
}
