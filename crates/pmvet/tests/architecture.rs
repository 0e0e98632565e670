//! What ARCHITECTURE.md promises about the rooms of the house, read from the sources.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Folders of `pmvet-engines` that are no engines, but rooms for what engines share.
const ROOMS: [&str; 5] = ["causes", "lab", "promises", "timeline", "transactions"];
/// Folders that put engines together which read the same events, and those that they know.
const COMPOSITIONS: [(&str, [&str; 2]); 2] = [("check", ["inject", "rules"]), ("race", ["confirm", "lockset"])];

/// What the command line may name of `pmvet-engines`: all of an engine that has entrances of its own (no names), or these names only.
/// They are what it takes to say what is wanted, to start it, and to print what came of it. What is not listed is the inside of an
/// analysis: the pass over the events, the choice of images, causes, stacks, timelines, transactions, shards.
const ENTRANCES: &[(&str, &[&str])] = &[
    ("alias_coverage", &["Covered"]),
    ("causes", &["JoinedFindings"]),
    ("check", &[]),
    ("confirm", &[]),
    ("fuzz", &[]),
    ("inject", &["AUTOMATIC_VISITS", "Granularity", "InjectionPlan", "Reorder"]),
    ("interleave", &[]),
    (
        "lab",
        &[
            "Bench",
            "Lab",
            "LabError",
            "Promised",
            "ProvenRecovery",
            "RecoveryCommand",
            "RecoveryPlan",
            "ScanError",
            "TrialImage",
            "TrialProgress",
            "UnprovenRecovery",
            "Witness",
            "native::NativeStacks",
            "room",
            "version_at",
        ],
    ),
    ("lockset", &[]),
    ("operations", &["Operations"]),
    (
        "promises",
        &[
            "Acknowledgement",
            "Indistinct",
            "Promise",
            "PromiseId",
            "content::ContentMask",
            "durable::DurablePlan",
            "durable::KeptComparison",
            "durable::OperationLog",
            "durable::OperationsSeen",
            "durable::promised_again",
            "durable::promised_by",
            "judge::ContentJudge",
            "judge::ContentRules",
            "judge::Incomparable",
            "operations",
            "questions::Questions",
        ],
    ),
    ("race", &["RaceScan"]),
    (
        "verify",
        &[
            "SearchJournal",
            "SearchProgress",
            "Verification",
            "Verified",
            "VerifyObserver",
            "VerifyPlan",
            "verification::EXPERIMENTS",
            "verification::JOURNAL",
        ],
    ),
];
/// Files of the command line that look at single events: to print or to count them for the user, to see that the client works, or to find
/// PM files. What is concluded from events is concluded in engines.
const LOOK_AT_EVENTS: &[&str] = &[
    "commands/doctor.rs",
    "commands/events.rs",
    "commands/fuzz/start.rs",
    "commands/init/",
    "commands/trace",
    "kinds.rs",
    "locate.rs",
    "printing/",
    "summary/",
];
/// A file that is longer does several things.
const MOST_LINES: usize = 500;

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
        let known = COMPOSITIONS.iter().find(|(composed, _)| *composed == own).map_or(&[][..], |(_, parts)| parts);
        let may_know = |engine: &str| engine == own || known.contains(&engine);
        for other in engines.iter().filter(|engine| !may_know(engine)) {
            let imports = text.contains(&format!("crate::{other}::")) || text.contains(&format!("crate::{other};"));
            assert!(
                !imports,
                "{} imports the engine `{other}`; what they share wants a room of its own",
                file.display()
            );
        }
    }
}

/// All that a source names of a crate, as paths in it. `use` trees are written out.
fn names_of(text: &str, name: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices(&format!("{name}::")) {
        names_in(&mut &text[at + name.len() + 2..], "", &mut found);
    }
    found
}

/// Reads a path or a tree of them, and leaves what comes after it.
fn names_in(text: &mut &str, within: &str, found: &mut BTreeSet<String>) {
    *text = text.trim_start();
    if let Some(rest) = text.strip_prefix('{') {
        *text = rest.trim_start();
        while !text.is_empty() && !text.starts_with('}') {
            names_in(text, within, found);
            *text = text.trim_start_matches(|c: char| c == ',' || c.is_whitespace());
        }
        *text = text.strip_prefix('}').unwrap_or(text);
        return;
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len()).max(1);
    let (word, rest) = text.split_at(end.min(text.len()));
    let path = match (within, word) {
        ("", _) => word.to_owned(),
        (_, "self") => within.to_owned(),
        _ => format!("{within}::{word}"),
    };
    match rest.strip_prefix("::") {
        Some(rest) => {
            *text = rest;
            names_in(text, &path, found);
        }
        None => {
            *text = rest
                .strip_prefix(" as")
                .map_or(rest, |rest| rest.trim_start_matches(|c: char| c.is_alphanumeric() || " _".contains(c)));
            found.insert(path);
        }
    }
}

#[test]
fn use_trees_are_written_out() {
    let names = |text: &str| names_of(text, "pmvet_engines").into_iter().collect::<Vec<_>>();
    assert_eq!(names("use pmvet_engines::lab::Lab;"), ["lab::Lab"]);
    assert_eq!(names("let x = pmvet_engines::shards::balance(1);"), ["shards::balance"]);
    assert_eq!(
        names(
            "use pmvet_engines::{causes::{self, Failures as F}, lab::{\n    Bench, native::*,\n}, verify};\nuse std::io;"
        ),
        ["causes", "causes::Failures", "lab::Bench", "lab::native::*", "verify"]
    );
}

/// The sources of the command line, with their paths within it.
fn command_line() -> Vec<(String, String)> {
    let all = repository().join("crates/pmvet/src");
    let mut files = Vec::new();
    sources(&all, &mut files);
    let file =
        |path: &PathBuf| (path.strip_prefix(&all).unwrap().display().to_string(), fs::read_to_string(path).unwrap());
    files.iter().map(file).collect()
}

/// The command line parses, wires, prints and maps errors to exit codes. What is analysis, it cannot even name.
#[test]
fn the_command_line_enters_engines_by_their_entrances() {
    let mut inside_named = Vec::new();
    for (file, text) in command_line() {
        for name in names_of(&text, "pmvet_engines") {
            let (room, inside) = name.split_once("::").unwrap_or((&name, ""));
            let entrance = ENTRANCES.iter().find(|(entrance, _)| *entrance == room);
            let may = entrance.is_some_and(|(_, names)| names.is_empty() || names.contains(&inside));
            if !may {
                inside_named.push(format!("{file} names `{name}`"));
            }
        }
    }
    assert!(
        inside_named.is_empty(),
        "the command line names what is inside of an analysis; move what it does there to pmvet-engines, behind one of the entrances: \
         {inside_named:#?}"
    );
}

#[test]
fn the_command_line_concludes_nothing_from_events_and_images() {
    for (file, text) in command_line() {
        let looks = LOOK_AT_EVENTS.iter().any(|allowed| file.starts_with(allowed));
        for name in ["What", "Event"] {
            let named =
                names_of(&text, "pmvet_events").iter().any(|found| found == name || found == &format!("event::{name}"));
            assert!(
                !named || looks,
                "crates/pmvet/src/{file} looks at events; what follows from them belongs in pmvet-engines"
            );
        }
        let of_model: Vec<String> = names_of(&text, "pmvet_model").into_iter().filter(|name| name != "Mode").collect();
        assert!(of_model.is_empty(), "crates/pmvet/src/{file} names {of_model:?} of the model, which is for engines");
    }
}

#[test]
fn no_file_of_the_command_line_is_long() {
    for (file, text) in command_line() {
        let lines = text.lines().count();
        assert!(lines <= MOST_LINES, "crates/pmvet/src/{file} has {lines} lines: look for a place to split it");
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
