//! Exchange between campaigns on one program, on one machine or many. As with AFL, each has its own corpus in a folder that all can read,
//! and takes over the new test cases of the others.

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

/// Interval between looks for new test cases, and how many are taken over at a time.
const EVERY: Duration = Duration::from_secs(5);
const AT_A_TIME: usize = 64;

/// The corpora of others.
#[derive(Debug)]
pub(super) struct Exchange {
    folder: PathBuf,
    own: PathBuf,
    taken: HashSet<PathBuf>,
    /// Unusable corpora, of which the user has been told.
    unusable: HashSet<PathBuf>,
    last: Instant,
}

impl Exchange {
    /// The corpora with which this campaign exchanges test cases, if any.
    pub(super) fn from_arguments(arguments: &cli::Fuzz, corpus: &Path) -> Result<Option<Self>, Error> {
        let folder = arguments.exchange.as_ref().map(|folder| {
            folder.canonicalize().map_err(|e| Error::Usage(format!("--exchange: {}: {e}", folder.display())))
        });
        let folder = folder.transpose()?;
        Ok(match (arguments.helper, arguments.jobs) {
            // A helper's corpus lies in that of the main process.
            (Some(_), _) => corpus.parent().map(|folder| Self::new(folder, corpus)),
            (None, 2..) => Some(Self::new(corpus, corpus)),
            _ => folder.map(|folder| Self::new(&folder, corpus)),
        })
    }

    /// `folder` is the corpus of another campaign, or holds several.
    fn new(folder: &Path, own: &Path) -> Self {
        Self {
            folder: folder.into(),
            own: own.into(),
            taken: HashSet::new(),
            unusable: HashSet::new(),
            last: Instant::now(),
        }
    }

    /// New cases of others, with their images.
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
                    // A missing file may be there next time.
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
                // A damaged corpus of another campaign is no reason to end.
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

/// The other processes of `-j`. This process takes over what they find, and alone reports.
#[derive(Debug)]
pub(super) struct Helpers(Vec<Child>);

impl Helpers {
    pub(super) fn none() -> Self {
        Self(Vec::new())
    }

    /// Starts the helpers with this command line, each with a number.
    pub(super) fn start(count: u16, seeds: &[Vec<u8>]) -> io::Result<Self> {
        let mut helpers = Self::none();
        for number in 1..=count {
            let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
            let command = arguments.iter().position(|word| word == "fuzz").map_or(0, |at| at + 1);
            arguments.splice(command..command, ["--helper".into(), number.to_string().into()]);
            // Standard input can only be read once, so the seeds are passed on in a file.
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
    /// Ends the helpers. Returns how many had failed before.
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
