//! Call paths of failure points that earlier checks of the same program tried: `fuzz --then check` checks hundreds of runs that
//! mostly do the same.

use std::collections::{HashMap, HashSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use crate::lab::LabError;

/// A call path is skipped once this many checks have tried it: the first repetitions, on other contents of PM, may show
/// more.
const OFTEN_CHECKS: u32 = 3;

/// The call paths that a file lists often enough: a line for each time one was tried.
pub(crate) fn read(file: &Path) -> HashSet<u64> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let mut times: HashMap<u64, u32> = HashMap::new();
    for path in text.lines().filter_map(|line| u64::from_str_radix(line, 16).ok()) {
        *times.entry(path).or_default() += 1;
    }
    times.into_iter().filter(|&(_, times)| times >= OFTEN_CHECKS).map(|(path, _)| path).collect()
}

/// Adds call paths that were tried now.
pub(crate) fn add<'a>(file: &Path, paths: impl Iterator<Item = &'a u64>) -> Result<(), LabError> {
    let text: String = paths.map(|path| format!("{path:016x}\n")).collect();
    let written =
        OpenOptions::new().append(true).create(true).open(file).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|e| LabError::output("write", &file.display().to_string(), e))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn a_path_is_known_after_three_checks() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("points");
        assert!(read(&file).is_empty());
        for check in 0..3 {
            assert!(read(&file).is_empty(), "{check}");
            add(&file, [7, u64::MAX].iter()).unwrap();
        }
        add(&file, [9].iter()).unwrap();
        assert_eq!(read(&file), [7, u64::MAX].into());
    }
}
