//! Seeds on disk, with what each has covered, so that a campaign can go on where the last one ended, however that was.
//!
//! | | |
//! |---|---|
//! | `queue/` | a file for each input that covered something, named by number and content |
//! | `covered.jsonl` | a line for each turn that did: the number of the input, and what was new |
//! | `findings.jsonl` | a line for each finding |
//!
//! Data is only added, never changed: an input before the line about it. A kill leaves at most one torn line at the end of each file,
//! which is cut off; any other damage is an error, and then nothing is changed. Coverage is valid for one build of the program only, as
//! addresses mean something else in another. The inputs are then tried again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::alias_coverage::Covered;
use crate::corpus_lock::Claim;
use crate::json_lines;

/// Changes whenever older versions of pmvet would misread what this one writes.
const FORMAT: u32 = 1;
const COVERED: &str = "covered.jsonl";
const FINDINGS: &str = "findings.jsonl";

#[derive(Debug, Serialize, Deserialize)]
struct CorpusLine<T> {
    /// The build for which it is valid.
    program: u64,
    #[serde(flatten)]
    what: T,
}

#[derive(Debug, Serialize, Deserialize)]
struct Turn {
    seed: u64,
    #[serde(flatten)]
    covered: Covered,
}

/// The folder, open for one campaign.
#[derive(Debug)]
pub struct Corpus {
    _claim: Claim,
    folder: PathBuf,
    program: u64,
    seeds: BTreeMap<Vec<u8>, u64>,
}

/// What earlier campaigns have kept.
#[derive(Debug, Default)]
pub struct Kept {
    /// What all of them covered with this build of the program.
    pub covered: Covered,
    /// Inputs that have covered something, the first one first.
    pub seeds: Vec<Vec<u8>>,
    /// Inputs whose coverage is unknown, or from another build.
    pub untried: Vec<Vec<u8>>,
    /// Files whose last line a kill had torn. That line is dropped.
    pub torn: Vec<PathBuf>,
}

impl Corpus {
    /// Opens a corpus, or makes one. `program` tells builds apart. Fails if another process has it open, if it has another format, or
    /// if it is damaged in another way than by a kill.
    pub fn open(folder: &Path, program: u64) -> io::Result<(Self, Kept)> {
        fs::create_dir_all(folder.join("queue"))?;
        let claim = Claim::new(folder, FORMAT, COVERED)?;
        let mut inputs: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for entry in fs::read_dir(folder.join("queue"))?.flatten() {
            let named = entry.file_name().to_str().and_then(parse_name);
            let Some((number, hash)) = named else { continue };
            let input = fs::read(entry.path())?;
            if xxh3_64(&input) != hash {
                let text = format!("{} is not as it was kept; remove it to go on without it", entry.path().display());
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            inputs.insert(number, input);
        }
        let seeds = inputs.iter().map(|(n, i)| (i.clone(), *n)).collect();
        let corpus = Self { _claim: claim, folder: folder.into(), program, seeds };
        let mut kept = Kept { torn: corpus.mend()?, ..Kept::default() };
        let mut tried = BTreeSet::new();
        for turn in corpus.read::<Turn>(COVERED)?.into_iter().filter(|turn| inputs.contains_key(&turn.seed)) {
            tried.insert(turn.seed);
            kept.covered.add(turn.covered);
        }
        for (number, input) in inputs {
            let list = if tried.contains(&number) { &mut kept.seeds } else { &mut kept.untried };
            list.push(input);
        }
        Ok((corpus, kept))
    }

    /// Keeps an input, and the new part of its coverage.
    pub fn add(&mut self, input: &[u8], new: &Covered) -> io::Result<()> {
        let seed = match self.seeds.get(input) {
            Some(&known) => known,
            None => self.keep(input)?,
        };
        self.append(COVERED, Turn { seed, covered: new.clone() })
    }

    /// Writes an input under the next number, in one step.
    fn keep(&mut self, input: &[u8]) -> io::Result<u64> {
        let number = self.seeds.values().max().map_or(0, |last| last + 1);
        let fresh = self.folder.join(".fresh");
        fs::write(&fresh, input)?;
        fs::rename(fresh, self.folder.join("queue").join(format!("{number:06}-{:016x}", xxh3_64(input))))?;
        self.seeds.insert(input.to_vec(), number);
        Ok(number)
    }

    /// Keeps a finding.
    pub fn add_finding<T: Serialize>(&self, finding: &T) -> io::Result<()> {
        self.append(FINDINGS, FoundSeed { finding })
    }

    /// The findings of earlier campaigns with this build.
    pub fn findings<T: DeserializeOwned>(&self) -> io::Result<Vec<T>> {
        Ok(self.read::<FoundSeed<T>>(FINDINGS)?.into_iter().map(|found| found.finding).collect())
    }

    /// The lines of a file that are valid for this build.
    fn read<T: DeserializeOwned>(&self, name: &str) -> io::Result<Vec<T>> {
        let path = self.folder.join(name);
        let file = match fs::File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?,
        };
        let lines = json_lines::read::<CorpusLine<T>>(&file, &path)?.entries.into_iter();
        Ok(lines.filter(|line| line.program == self.program).map(|line| line.what).collect())
    }

    /// Cuts off lines that a kill has torn, if nothing else is damaged. Returns the files that had one.
    fn mend(&self) -> io::Result<Vec<PathBuf>> {
        let mut torn = Vec::new();
        for path in [COVERED, FINDINGS].map(|name| self.folder.join(name)) {
            let file = match OpenOptions::new().read(true).write(true).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file?,
            };
            let held = json_lines::read::<IgnoredAny>(&file, &path)?;
            if held.torn {
                torn.push((path, file, held.end));
            }
        }
        torn.into_iter().map(|(path, file, end)| file.set_len(end).map(|()| path)).collect()
    }

    fn append(&self, name: &str, what: impl Serialize) -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(self.folder.join(name))?;
        let mut text = serde_json::to_vec(&CorpusLine { program: self.program, what })?;
        text.push(b'\n');
        let end = file.metadata()?.len();
        let written = file.write_all(&text);
        if written.is_err() {
            // Half a line would spoil the next.
            let _ = file.set_len(end);
        }
        written
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct FoundSeed<T> {
    finding: T,
}

/// Number and hash of the content.
fn parse_name(name: &str) -> Option<(u64, u64)> {
    let (number, hash) = name.split_once('-')?;
    Some((number.parse().ok()?, u64::from_str_radix(hash, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covered(pairs: &[u64], branches: &[u64]) -> Covered {
        let set = |all: &[u64]| all.iter().copied().collect();
        Covered { pairs: set(pairs), branches: set(branches), ..Covered::default() }
    }

    #[test]
    fn what_was_kept_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let (mut corpus, kept) = Corpus::open(folder.path(), 1).unwrap();
        assert!(kept.seeds.is_empty() && kept.untried.is_empty() && kept.covered.is_empty());
        corpus.add(b"one", &covered(&[1], &[10])).unwrap();
        corpus.add(b"", &covered(&[2], &[])).unwrap();
        corpus.add(b"one", &covered(&[3], &[])).unwrap();
        corpus.add_finding(&"a race").unwrap();
        drop(corpus);
        let (corpus, kept) = Corpus::open(folder.path(), 1).unwrap();
        assert_eq!((kept.seeds, kept.untried.len()), (vec![b"one".to_vec(), vec![]], 0));
        assert_eq!(kept.covered, covered(&[1, 2, 3], &[10]));
        assert_eq!(corpus.findings::<String>().unwrap(), ["a race"]);
        // Another build.
        drop(corpus);
        let (corpus, kept) = Corpus::open(folder.path(), 2).unwrap();
        assert_eq!((kept.seeds.len(), kept.untried), (0, vec![b"one".to_vec(), vec![]]));
        assert!(kept.covered.is_empty() && corpus.findings::<String>().unwrap().is_empty());
    }

    #[test]
    fn whatever_a_kill_cuts_off_nothing_before_it_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let (mut corpus, _) = Corpus::open(folder.path(), 1).unwrap();
        corpus.add(b"one", &covered(&[1], &[])).unwrap();
        corpus.add(b"two", &covered(&[2], &[])).unwrap();
        drop(corpus);
        let path = folder.path().join(COVERED);
        let whole = fs::read(&path).unwrap();
        let first = whole.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        for cut in first + 1..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let (mut corpus, kept) = Corpus::open(folder.path(), 1).unwrap();
            assert_eq!((kept.seeds, kept.untried), (vec![b"one".to_vec()], vec![b"two".to_vec()]), "{cut}");
            assert_eq!(kept.torn, std::slice::from_ref(&path), "{cut}");
            // It goes on from there, with the input that is known already.
            corpus.add(b"two", &covered(&[2], &[])).unwrap();
            drop(corpus);
            let (_, kept) = Corpus::open(folder.path(), 1).unwrap();
            assert_eq!((kept.seeds.len(), kept.covered, kept.torn.len()), (2, covered(&[1, 2], &[]), 0), "{cut}");
        }
    }

    #[test]
    fn damage_is_named_and_nothing_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let (mut corpus, _) = Corpus::open(folder.path(), 1).unwrap();
        corpus.add(b"one", &covered(&[1], &[])).unwrap();
        corpus.add(b"two", &covered(&[2], &[])).unwrap();
        drop(corpus);
        let path = folder.path().join(COVERED);
        let whole = fs::read(&path).unwrap();
        // The second line is torn as well, which is no reason to touch it.
        let damaged = [b"?", &whole[1..whole.len() - 1]].concat();
        fs::write(&path, &damaged).unwrap();
        let error = Corpus::open(folder.path(), 1).unwrap_err().to_string();
        assert!(error.contains(&format!("line 1 of {}", path.display())), "{error}");
        assert_eq!(fs::read(&path).unwrap(), damaged);
        fs::write(&path, &whole).unwrap();
        let input = folder.path().join("queue").join(format!("000009-{:016x}", xxh3_64(b"three")));
        fs::write(&input, b"thr").unwrap();
        let error = Corpus::open(folder.path(), 1).unwrap_err().to_string();
        assert!(error.contains(input.to_str().unwrap()), "{error}");
    }

    #[test]
    fn one_campaign_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let first = Corpus::open(folder.path(), 1).unwrap();
        assert_eq!(Corpus::open(folder.path(), 1).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        drop(first);
        Corpus::open(folder.path(), 1).unwrap();
    }
}
