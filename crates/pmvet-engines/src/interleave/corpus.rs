//! Seeds on disk, with what each has covered, so that a campaign goes on where the last one ended, however that ended.
//!
//! | | |
//! |---|---|
//! | `queue/` | a file for each input that covered something, named by number and content |
//! | `covered.jsonl` | a line for each turn that did: the number of the input, and what was new |
//! | `findings.jsonl` | a line for each finding |
//!
//! Nothing is ever changed, only added: an input before the line about it, and each by one write. What a kill leaves half done at the end
//! of a file is told by its content, and left out. What was covered counts for one build of the program only: addresses of another mean
//! something else. Its inputs are then tried again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::alias::Covered;

#[derive(Debug, Serialize, Deserialize)]
struct Line<T> {
    /// The build that it is true for.
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

#[derive(Debug)]
pub struct Corpus {
    folder: PathBuf,
    program: u64,
    seeds: BTreeMap<Vec<u8>, u64>,
}

/// What earlier campaigns have left.
#[derive(Debug, Default)]
pub struct Kept {
    pub covered: Covered,
    /// Inputs that have covered something, the first one first.
    pub seeds: Vec<Vec<u8>>,
    /// Inputs of another build, or of which nobody knows what they cover.
    pub untried: Vec<Vec<u8>>,
}

impl Corpus {
    /// Opens a corpus, or makes one. `program` tells builds apart.
    pub fn open(folder: &Path, program: u64) -> io::Result<(Self, Kept)> {
        fs::create_dir_all(folder.join("queue"))?;
        let mut inputs: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for entry in fs::read_dir(folder.join("queue"))?.flatten() {
            let named = entry.file_name().to_str().and_then(parse_name);
            let Some((number, hash)) = named else { continue };
            let input = fs::read(entry.path())?;
            // Else it was being written when pmvet was killed.
            if xxh3_64(&input) == hash {
                inputs.insert(number, input);
            }
        }
        let corpus =
            Self { folder: folder.into(), program, seeds: inputs.iter().map(|(n, i)| (i.clone(), *n)).collect() };
        let (mut kept, mut tried) = (Kept::default(), BTreeSet::new());
        for turn in corpus.read::<Turn>("covered.jsonl")?.into_iter().filter(|turn| inputs.contains_key(&turn.seed)) {
            tried.insert(turn.seed);
            kept.covered.add(turn.covered);
        }
        for (number, input) in inputs {
            let list = if tried.contains(&number) { &mut kept.seeds } else { &mut kept.untried };
            list.push(input);
        }
        Ok((corpus, kept))
    }

    /// Keeps an input, and what is new of what it has covered.
    pub fn add(&mut self, input: &[u8], new: &Covered) -> io::Result<()> {
        let seed = match self.seeds.get(input) {
            Some(&known) => known,
            None => self.keep(input)?,
        };
        self.append("covered.jsonl", Turn { seed, covered: new.clone() })
    }

    /// Writes an input under the next number that is free; another campaign may have taken some.
    fn keep(&mut self, input: &[u8]) -> io::Result<u64> {
        let hash = xxh3_64(input);
        let mut number = self.seeds.values().max().map_or(0, |last| last + 1);
        loop {
            let path = self.folder.join("queue").join(format!("{number:06}-{hash:016x}"));
            match OpenOptions::new().write(true).create_new(true).open(path) {
                Ok(mut file) => {
                    file.write_all(input)?;
                    self.seeds.insert(input.to_vec(), number);
                    return Ok(number);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Keeps a finding.
    pub fn add_finding<T: Serialize>(&self, finding: &T) -> io::Result<()> {
        self.append("findings.jsonl", Found { finding })
    }

    /// The findings of earlier campaigns with this build.
    pub fn findings<T: DeserializeOwned>(&self) -> io::Result<Vec<T>> {
        Ok(self.read::<Found<T>>("findings.jsonl")?.into_iter().map(|found| found.finding).collect())
    }

    /// The lines of a file that are whole and true for this build.
    fn read<T: DeserializeOwned>(&self, name: &str) -> io::Result<Vec<T>> {
        let text = match fs::read(self.folder.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            text => text?,
        };
        let lines = text.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice::<Line<T>>(line).ok());
        Ok(lines.filter(|line| line.program == self.program).map(|line| line.what).collect())
    }

    fn append(&self, name: &str, what: impl Serialize) -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(self.folder.join(name))?;
        let mut text = serde_json::to_vec(&Line { program: self.program, what })?;
        text.push(b'\n');
        // After a line that was cut off.
        if !ends_a_line(&self.folder.join(name))? {
            text.insert(0, b'\n');
        }
        file.write_all(&text)
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Found<T> {
    finding: T,
}

fn ends_a_line(path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::FileExt;
    let file = File::open(path)?;
    let mut last = [b'\n'];
    if let Some(at) = file.metadata()?.len().checked_sub(1) {
        file.read_exact_at(&mut last, at)?;
    }
    Ok(last == [b'\n'])
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
        let (corpus, kept) = Corpus::open(folder.path(), 1).unwrap();
        assert_eq!((kept.seeds, kept.untried.len()), (vec![b"one".to_vec(), vec![]], 0));
        assert_eq!(kept.covered, covered(&[1, 2, 3], &[10]));
        assert_eq!(corpus.findings::<String>().unwrap(), ["a race"]);
        // Another build.
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
        let path = folder.path().join("covered.jsonl");
        let whole = fs::read(&path).unwrap();
        let first = whole.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        for cut in first..whole.len() - 1 {
            fs::write(&path, &whole[..cut]).unwrap();
            let (mut corpus, kept) = Corpus::open(folder.path(), 1).unwrap();
            assert_eq!((kept.seeds, kept.untried), (vec![b"one".to_vec()], vec![b"two".to_vec()]), "{cut}");
            // It goes on from there, with the input that is known already.
            corpus.add(b"two", &covered(&[2], &[])).unwrap();
            let (_, kept) = Corpus::open(folder.path(), 1).unwrap();
            assert_eq!((kept.seeds.len(), kept.covered), (2, covered(&[1, 2], &[])), "{cut}");
        }
        // An input that was being written.
        let name = format!("000009-{:016x}", xxh3_64(b"three"));
        fs::write(folder.path().join("queue").join(name), b"thr").unwrap();
        let (mut corpus, kept) = Corpus::open(folder.path(), 1).unwrap();
        assert_eq!(kept.untried.len(), 0);
        corpus.add(b"three", &covered(&[3], &[])).unwrap();
        assert_eq!(Corpus::open(folder.path(), 1).unwrap().1.seeds.len(), 3);
    }

    #[test]
    fn two_campaigns_do_not_take_each_others_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let (mut one, _) = Corpus::open(folder.path(), 1).unwrap();
        let (mut other, _) = Corpus::open(folder.path(), 1).unwrap();
        one.add(b"same", &covered(&[1], &[])).unwrap();
        other.add(b"same", &covered(&[2], &[])).unwrap();
        other.add(b"else", &covered(&[3], &[])).unwrap();
        let (_, kept) = Corpus::open(folder.path(), 1).unwrap();
        assert_eq!(kept.covered, covered(&[1, 2, 3], &[]));
    }
}
