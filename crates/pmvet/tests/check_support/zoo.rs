//! The zoo's manifests: which bugs there are, and who has to find them.

use std::fs;
use std::path::PathBuf;

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
