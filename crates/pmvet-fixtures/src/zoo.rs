//! The zoo's manifests: which bugs there are, and who has to find them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use pmvet_findings::Finding;
use serde::Deserialize;

use crate::repository;

/// What the zoo says about one of its programs.
#[derive(Debug, Clone, Deserialize)]
pub struct Manifest {
    /// The program as a whole.
    pub program: ZooProgram,
    /// Its bugs, each of which can be switched on.
    pub bug: Vec<Bug>,
    /// Where its manifest is.
    #[serde(skip)]
    pub folder: PathBuf,
    /// The file with the markers.
    #[serde(skip)]
    pub source: PathBuf,
}

/// A program of the zoo.
#[derive(Debug, Clone, Deserialize)]
pub struct ZooProgram {
    /// Its name in the zoo, and that of its executable.
    pub name: String,
    /// Arguments of an ordinary run.
    pub workload: Vec<String>,
    /// Its recovery sums up what it does not know to be persistent.
    #[serde(default)]
    pub checksums: bool,
}

/// A bug of the zoo.
#[derive(Debug, Clone, Deserialize)]
pub struct Bug {
    /// The number that switches it on.
    pub id: u32,
    /// What kind of bug it is, such as `missing-flush`.
    pub class: String,
    /// The engines that have to find it.
    pub engines: Vec<String>,
    /// Arguments of a run that shows it, if not those of the program.
    pub workload: Option<Vec<String>>,
    /// What such a run has to have, such as `threads`.
    pub needs: Option<String>,
    /// What its report has to say about how to mend it.
    pub fix: Option<String>,
}

impl Manifest {
    /// These have a test of their own.
    pub fn uses_libpmemobj(&self) -> bool {
        self.program.name.starts_with("obj_")
    }
}

impl Bug {
    /// Whether it takes two threads to go wrong.
    pub fn is_race(&self) -> bool {
        ["race-unpersisted", "lock-left-held"].contains(&self.class.as_str())
    }

    /// A race that does no harm.
    pub fn is_benign(&self) -> bool {
        self.class == "race-benign"
    }

    /// Whether one thread alone shows it.
    pub fn is_sequential(&self) -> bool {
        !self.is_race() && self.needs.as_deref() != Some("threads")
    }

    /// Whether this engine has to find it.
    pub fn engine(&self, name: &str) -> bool {
        self.engines.iter().any(|engine| engine == name)
    }

    /// The rules that tell about a bug of this class.
    pub fn rules(&self) -> &[&str] {
        match self.class.as_str() {
            "missing-flush" => &["unpersisted-store"],
            "dirty-overwrite" => &["dirty-overwrite"],
            "transient-data" => &["transient-data"],
            "redundant-flush" => &["flush-clean", "flush-volatile", "flush-nontemporal"],
            "redundant-fence" => &["redundant-fence"],
            _ => &[],
        }
    }
}

/// All programs of the zoo that have a manifest, by name.
pub fn manifests() -> Vec<Manifest> {
    let zoo = repository().join("zoo");
    let mut all = Vec::new();
    for parent in [zoo.clone(), zoo.join("rust")] {
        for folder in fs::read_dir(parent).unwrap() {
            let folder = folder.unwrap().path();
            let Ok(text) = fs::read_to_string(folder.join("manifest.toml")) else { continue };
            let mut manifest: Manifest = toml::from_str(&text).unwrap();
            let mut sources = ["c", "cpp"].iter().map(|kind| folder.join(format!("{}.{kind}", manifest.program.name)));
            manifest.source = sources.find(|source| source.exists()).unwrap_or_else(|| folder.join("src/main.rs"));
            manifest.folder = folder;
            all.push(manifest);
        }
    }
    all.sort_by(|a, b| a.program.name.cmp(&b.program.name));
    all
}

// ---- Where a bug is

/// The lines that a report of a bug may name: `file:line` of each line marked `BUG(n)` or `BLAME(.., n, ..)`. A mark on a line of its
/// own is about the next one.
pub fn marked(manifest: &Manifest, bug: u32) -> BTreeSet<String> {
    marked_in(&manifest.source, bug)
}

/// The same for a source of any program.
pub fn marked_in(source: &Path, bug: u32) -> BTreeSet<String> {
    let (name, text) = (source.file_name().unwrap().to_str().unwrap(), fs::read_to_string(source).unwrap());
    let mut lines = BTreeSet::new();
    for (number, line) in (1..).zip(text.lines()) {
        if marks(line).contains(&bug) {
            let alone = ["//", "/*"].iter().any(|comment| line.trim_start().starts_with(comment));
            lines.insert(format!("{name}:{}", if alone { number + 1 } else { number }));
        }
    }
    lines
}

/// The bugs that a line is marked with.
fn marks(line: &str) -> Vec<u32> {
    let after = ["BUG(", "BLAME("].iter().flat_map(|word| line.split(word).skip(1));
    let numbers = after.filter_map(|rest| rest.split_once(')')).flat_map(|(inside, _)| inside.split(", "));
    numbers.filter_map(|number| number.parse().ok()).collect()
}

/// Where a finding says that the bug is: the line of its first place that a report shows.
pub fn blamed(finding: &Finding) -> String {
    let frame = finding.places[0].frame();
    let file = frame.and_then(|frame| frame.file.as_deref()).and_then(Path::file_name).unwrap_or_default();
    format!("{}:{}", file.to_string_lossy(), frame.and_then(|frame| frame.line).unwrap_or(0))
}

/// A bug that is found, but whose report names a line that has nothing to do with it, or too little.
#[derive(Debug)]
pub struct Elsewhere {
    /// The zoo's name of the program.
    pub program: &'static str,
    /// The number of the bug.
    pub bug: u32,
    /// A line that is named today.
    pub at: &'static str,
    /// Why not the right one.
    pub why: &'static str,
}

/// Asserts that one of the findings names a marked line of the bug, or that the table says which one is named instead. Nothing is added
/// to these tables: they are what is left to do. A row goes when its bug is reported where it is.
pub fn is_at_its_line<'a>(
    manifest: &Manifest,
    bug: u32,
    findings: impl Iterator<Item = &'a Finding>,
    elsewhere: &[Elsewhere],
) -> Result<(), String> {
    let lines: Vec<String> = findings.map(blamed).collect();
    let marked = marked(manifest, bug);
    let row = elsewhere.iter().find(|row| row.program == manifest.program.name && row.bug == bug);
    match (lines.iter().any(|line| marked.contains(line)), row) {
        (true, None) => Ok(()),
        (true, Some(row)) => {
            Err(format!("named at its line now, no longer at {} ({}): remove the row", row.at, row.why))
        }
        (false, Some(row)) if lines.iter().any(|line| line == row.at) => Ok(()),
        (false, Some(row)) => Err(format!("named at {lines:?}, and neither at {} nor at {marked:?}", row.at)),
        (false, None) => Err(format!("named at {lines:?}, not at {marked:?}")),
    }
}

#[test]
fn marks_are_read() {
    assert_eq!(marks("\tx = 1; /* BUG(3): too early */ /* BLAME(4, 12) */"), [3, 4, 12]);
    assert_eq!(marks("if (BUG == 3) // BLAME(5)"), [5]);
    for manifest in manifests() {
        for bug in &manifest.bug {
            assert!(!marked(&manifest, bug.id).is_empty(), "{} has no mark of bug {}", manifest.program.name, bug.id);
        }
    }
}
