//! Several campaigns on one program, in one machine or many: each has a corpus of its own in a folder that all can read, and takes
//! over what the others find there, as AFL's do.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pmvet_engines::fuzz::case::{Case, parse_file_name};
use pmvet_engines::fuzz::store::ImageStore;
use pmvet_target::sparse;

use crate::cli;
use crate::exit::Error;

/// How often is looked for what is new, and how much of it is taken at a time.
const EVERY: Duration = Duration::from_secs(5);
const AT_A_TIME: usize = 64;

/// The corpora of others.
#[derive(Debug)]
pub(super) struct Exchange {
    folder: PathBuf,
    own: PathBuf,
    taken: HashSet<PathBuf>,
    /// Corpora that cannot be used, which has been told.
    unusable: HashSet<PathBuf>,
    last: Instant,
}

impl Exchange {
    /// Those that this campaign is to exchange test cases with, if any.
    pub(super) fn from_arguments(arguments: &cli::Fuzz, corpus: &Path) -> Result<Option<Self>, Error> {
        let folder = arguments.exchange.as_ref().map(|folder| {
            folder.canonicalize().map_err(|e| Error::Usage(format!("--exchange: {}: {e}", folder.display())))
        });
        let folder = folder.transpose()?;
        Ok(match (arguments.helper, arguments.jobs) {
            // A helper's corpus is in that of whom it helps.
            (Some(_), _) => corpus.parent().map(|folder| Self::new(folder, corpus)),
            (None, 2..) => Some(Self::new(corpus, corpus)),
            _ => folder.map(|folder| Self::new(&folder, corpus)),
        })
    }

    /// `folder` is the corpus of another campaign, or has such in it.
    fn new(folder: &Path, own: &Path) -> Self {
        Self {
            folder: folder.into(),
            own: own.into(),
            taken: HashSet::new(),
            unusable: HashSet::new(),
            last: Instant::now(),
        }
    }

    /// Cases of others that were not there before, with their images.
    pub(super) fn fetch_new_cases(&mut self, store: &mut ImageStore) -> io::Result<Vec<Case>> {
        if self.last.elapsed() < EVERY {
            return Ok(Vec::new());
        }
        self.last = Instant::now();
        let mut cases = Vec::new();
        for corpus in self.others() {
            let fresh: Vec<PathBuf> = self.fresh(&corpus).take(AT_A_TIME).collect();
            if fresh.is_empty() {
                continue;
            }
            let mut other = match ImageStore::open_for_reading(&corpus) {
                Ok(other) => other,
                Err(e) => {
                    // What is not there yet may be there next time.
                    let is_bad = matches!(e.kind(), io::ErrorKind::InvalidData | io::ErrorKind::Unsupported);
                    if is_bad && self.unusable.insert(corpus.clone()) {
                        eprintln!("pmvet: nothing is taken from the corpus in {}: {e}", corpus.display());
                    }
                    continue;
                }
            };
            if other.root() != store.root() {
                continue;
            }
            for path in fresh {
                let image = path.file_name().and_then(|name| parse_file_name(name.to_str()?)).map(|(_, image)| image);
                let (Some(image), Ok(input)) = (image, std::fs::read(&path)) else { continue };
                // A damaged corpus of somebody else is no reason to end.
                let known = match store.adopt(&mut other, image) {
                    Ok(()) => true,
                    Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => false,
                    Err(e) => return Err(e),
                };
                self.taken.insert(path);
                cases.extend(known.then_some(Case { image, input }));
            }
        }
        Ok(cases)
    }

    pub(super) fn others(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        folders.push(self.folder.clone());
        folders.retain(|folder| *folder != self.own && folder.join("images.jsonl").is_file());
        folders.sort();
        folders
    }

    fn fresh(&self, corpus: &Path) -> impl Iterator<Item = PathBuf> {
        let folders = ["queue", "crashes", "hangs"].map(|name| corpus.join(name));
        let entries = folders.into_iter().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
        entries.map(|entry| entry.path()).filter(|path| !self.taken.contains(path))
    }
}

/// The other processes of `-j`. What they find is taken over by this one, which alone reports.
#[derive(Debug)]
pub(super) struct Helpers(Vec<Child>);

impl Helpers {
    pub(super) fn none() -> Self {
        Self(Vec::new())
    }

    /// Starts them: this command line again, each with a number.
    pub(super) fn start(count: u16, seeds: &[Vec<u8>]) -> io::Result<Self> {
        let mut helpers = Self::none();
        for number in 1..=count {
            let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
            let command = arguments.iter().position(|word| word == "fuzz").map_or(0, |at| at + 1);
            arguments.splice(command..command, ["--helper".into(), number.to_string().into()]);
            // Seeds that came by standard input are gone from there.
            let input = sparse::input()?;
            input.write_all_at(seeds.first().map_or(&[], Vec::as_slice), 0)?;
            let mut child = Command::new("/proc/self/exe");
            child.args(arguments).stdin(input).stdout(Stdio::null()).stderr(Stdio::null());
            crate::system::die_with_us(&mut child);
            helpers.0.push(child.spawn()?);
        }
        Ok(helpers)
    }
}

impl Helpers {
    /// Ends them. Returns how many had failed before.
    pub(super) fn finish(mut self) -> usize {
        let failed = |child: &mut Child| matches!(child.try_wait(), Ok(Some(status)) if !status.success());
        self.0.iter_mut().map(failed).filter(|&failed| failed).count()
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
