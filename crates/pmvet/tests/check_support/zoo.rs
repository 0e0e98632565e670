//! The zoo's manifests: which bugs there are, and who has to find them.

use std::fs;
use std::path::{Path, PathBuf};

use pmvet_findings::stack::user_frame;
use pmvet_findings::{Finding, Frame};
use serde::Deserialize;

use super::repository;

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) program: Program,
    pub(crate) bug: Vec<Bug>,
    #[serde(skip)]
    pub(crate) folder: PathBuf,
    /// The file with the markers.
    #[serde(skip)]
    pub(crate) source: PathBuf,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) workload: Vec<String>,
    /// Its recovery sums up what it does not know to be persistent.
    #[serde(default)]
    pub(crate) checksums: bool,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Bug {
    pub(crate) id: u32,
    pub(crate) class: String,
    pub(crate) engines: Vec<String>,
    pub(crate) workload: Option<Vec<String>>,
    pub(crate) needs: Option<String>,
}

impl Bug {
    pub(crate) fn is_race(&self) -> bool {
        ["race-unpersisted", "lock-left-held"].contains(&self.class.as_str())
    }

    /// A race that does no harm.
    pub(crate) fn is_benign(&self) -> bool {
        self.class == "race-benign"
    }

    pub(crate) fn is_sequential(&self) -> bool {
        !self.is_race() && self.needs.as_deref() != Some("threads")
    }

    pub(crate) fn engine(&self, name: &str) -> bool {
        self.engines.iter().any(|engine| engine == name)
    }

    /// The rules that tell about a bug of this class.
    pub(crate) fn rules(&self) -> &[&str] {
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

pub(crate) fn manifests() -> Vec<Manifest> {
    let zoo = repository().join("zoo");
    let mut all = Vec::new();
    for parent in [zoo.clone(), zoo.join("rust")] {
        for folder in fs::read_dir(parent).unwrap() {
            let folder = folder.unwrap().path();
            let Ok(text) = fs::read_to_string(folder.join("manifest.toml")) else { continue };
            let mut manifest: Manifest = toml::from_str(&text).unwrap();
            let in_c = folder.join(format!("{}.c", manifest.program.name));
            manifest.source = if in_c.exists() { in_c } else { folder.join("src/main.rs") };
            manifest.folder = folder;
            all.push(manifest);
        }
    }
    all.sort_by(|a, b| a.program.name.cmp(&b.program.name));
    all
}

// ---- Where a bug is

/// How far from its marker a bug may be reported, if the function is another one.
const NEAR: u32 = 15;
/// How many callers a reader is asked to follow.
const CALLERS: usize = 1;

/// Whether a finding leads to the marker: one of its places, or a caller close by, is in that function or near that line.
pub(crate) fn is_at_marker(finding: &Finding, source: &Path, bug: u32) -> bool {
    let text = fs::read_to_string(source).unwrap();
    let marker = format!("BUG({bug})");
    let markers: Vec<usize> =
        (0..).zip(text.lines()).filter(|(_, line)| line.contains(&marker)).map(|(i, _)| i).collect();
    let leads_there = |frame: &Frame| {
        let same_file = frame.file.as_deref().and_then(Path::file_name) == source.file_name();
        let name = frame.function.as_deref().map(|name| name.split("::").last().unwrap_or(name));
        same_file
            && markers.iter().any(|&i| {
                let near = frame.line.is_some_and(|line| line.abs_diff(i as u32 + 1) <= NEAR);
                near || name.is_some() && name == function_around(&text, i)
            })
    };
    finding.places.iter().any(|place| {
        let shown = user_frame(&place.stack).unwrap_or(0);
        place.stack.iter().skip(shown).take(1 + CALLERS).any(leads_there)
    })
}

/// The function that a line belongs to: what the last definition above it is called.
fn function_around(text: &str, line: usize) -> Option<&str> {
    let above: Vec<&str> = text.lines().take(line + 1).collect();
    above.into_iter().rev().find_map(|line| {
        let head = match line.split_once("fn ") {
            Some((_, rest)) => rest,
            None if line.starts_with(|c: char| c.is_alphabetic()) && !line.ends_with(';') => line,
            None => return None,
        };
        let name = head.split(['(', '<']).next()?;
        name.rsplit([' ', '*']).next().filter(|name| head.contains('(') && !name.is_empty())
    })
}

#[test]
fn functions_are_recognised() {
    let text = "struct x {\n};\nstatic void put(int id)\n{\n\tif (x)\n}\nstatic struct x *get(void)\n{\n\n}\nimpl A {\n    fn new<T>(a: T) {\n        b\n";
    let around = |line| function_around(text, line);
    assert_eq!([around(4), around(8), around(12)], [Some("put"), Some("get"), Some("new")]);
}
