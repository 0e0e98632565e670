//! Where pmvet runs in a test: folders of its own, and what must not be left in them.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::SystemTime;

use pmvet_findings::{Evidence, Finding};
use tempfile::TempDir;

use crate::{Check, FOUND, finish, is_soak, pmvet, scratch, wait_until};

/// A folder for PM files and one that pmvet is started in. They go when the value does.
#[derive(Debug)]
pub struct TestPlace {
    pools: TempDir,
    work: TempDir,
}

impl TestPlace {
    /// Makes both folders, that for PM in memory if there is enough of it.
    #[expect(clippy::new_without_default, reason = "it makes folders")]
    pub fn new() -> Self {
        // Containers often have a tiny /dev/shm. Any file will do as PM.
        let shared = Path::new("/dev/shm");
        let plain = scratch();
        let pools = if free_mib(shared) >= 1024 { shared } else { plain };
        let folder = |parent: &Path| tempfile::Builder::new().prefix("pmvet-check-").tempdir_in(parent).unwrap();
        Self { pools: folder(pools), work: folder(plain) }
    }

    /// The folder for PM files.
    pub fn pools(&self) -> &Path {
        self.pools.path()
    }

    /// The PM file that most programs are given. Nobody makes it beforehand.
    pub fn pool(&self) -> PathBuf {
        self.pools.path().join("pool")
    }

    /// The folder that pmvet is started in.
    pub fn work(&self) -> &Path {
        self.work.path()
    }

    /// Where the newest run is kept.
    pub fn run(&self) -> PathBuf {
        self.work.path().join(".pmvet/runs/latest")
    }

    /// The names in both folders, apart from what pmvet keeps.
    pub fn files(&self) -> Vec<String> {
        let mut names = Vec::new();
        for folder in [self.pools(), self.work()] {
            names.extend(fs::read_dir(folder).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()));
        }
        names.retain(|name| name != ".pmvet");
        names.sort();
        names
    }

    /// Processes that have a file of ours in their command line or open, pmvet among them.
    pub fn processes(&self) -> Vec<String> {
        let token = self.pools.path().file_name().unwrap().as_encoded_bytes();
        let has = |bytes: &[u8]| bytes.windows(token.len()).any(|w| w == token);
        let mut found = Vec::new();
        for process in fs::read_dir("/proc").unwrap().flatten() {
            let path = process.path();
            let Ok(line) = fs::read(path.join("cmdline")) else { continue };
            let mapped = || fs::read(path.join("maps")).is_ok_and(|maps| has(&maps));
            if process.file_name().to_str().is_some_and(|n| n.parse::<u32>().is_ok_and(|n| n != std::process::id()))
                && (has(&line) || mapped())
            {
                found.push(String::from_utf8_lossy(&line).replace('\0', " "));
            }
        }
        found
    }

    /// Nothing of ours runs any more, and there are no files but these.
    #[track_caller]
    pub fn assert_clean(&self, files: &[&str]) {
        wait_until("all processes are gone", || self.processes().is_empty());
        assert_eq!(self.files(), files, "files are left behind, or gone");
    }

    /// A check of this command, which runs in this place.
    pub fn check<S: AsRef<OsStr>>(&self, options: &[&str], command: &[S]) -> Check<'_> {
        self.engine("check", options, command)
    }

    /// The same for `pmvet verify`.
    pub fn verify<S: AsRef<OsStr>>(&self, options: &[&str], command: &[S]) -> Check<'_> {
        self.engine("verify", options, command)
    }

    fn engine<S: AsRef<OsStr>>(&self, engine: &'static str, options: &[&str], command: &[S]) -> Check<'_> {
        Check {
            place: self,
            engine,
            options: options.iter().map(OsString::from).collect(),
            command: command.iter().map(|word| word.as_ref().to_owned()).collect(),
            input: None,
            variables: Vec::new(),
        }
    }

    /// `pmvet WORDS`, in this place.
    pub fn pmvet<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut command = Command::new(pmvet());
        command.args(words).current_dir(self.work()).stdin(Stdio::null());
        // Whatever the shell that started the tests has set. Files that are left behind show in `files`.
        command.env_remove("PMEM_IS_PMEM_FORCE").env_remove("PMEM_MMAP_HINT").env("TMPDIR", self.work());
        command
    }

    /// Options that make the pools PM, where they are not so by their path.
    pub fn pm(&self) -> Vec<OsString> {
        match self.pools().starts_with("/dev/shm") {
            true => Vec::new(),
            false => vec!["--pm".into(), self.pools().into()],
        }
    }

    /// Runs a finding again, in a process of its own.
    pub fn replay(&self, id: &str) -> Output {
        finish(self.pmvet(&["replay", id]), None).expect("the replay hangs")
    }

    /// Replays a finding, twice in `make soak`. Says what went wrong if it does not fail as it did.
    pub fn replays(&self, finding: &Finding) -> Result<(), String> {
        let Some(token) = &finding.replay else { return Err(format!("{} has no token to replay it", finding.title)) };
        let Evidence::Crash { recovery, .. } = &finding.evidence else {
            return Err(format!("{} has no crash image", finding.title));
        };
        for round in 1..=if is_soak() { 2 } else { 1 } {
            let output = self.replay(token);
            let text = String::from_utf8_lossy(&output.stdout);
            let expected = format!("reproduced: recovery {}", recovery.outcome);
            if output.status.code() != Some(FOUND) || !text.lines().any(|line| line == expected) {
                let errors = String::from_utf8_lossy(&output.stderr);
                return Err(format!("replay {round} of {}: {}\n{text}{errors}", finding.title, output.status));
            }
        }
        Ok(())
    }
}

fn free_mib(folder: &Path) -> u64 {
    let output = Command::new("df").args(["--output=avail", "--block-size=1M"]).arg(folder).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().nth(1).and_then(|line| line.trim().parse().ok()).unwrap_or(0)
}

/// A file that must stay as it is.
#[derive(Debug, PartialEq)]
pub struct Untouched {
    path: PathBuf,
    bytes: Vec<u8>,
    modified: SystemTime,
    permissions: Permissions,
}

impl Untouched {
    /// Remembers a file as it is now. Panics if there is none.
    pub fn new(path: &Path) -> Self {
        let found = path.metadata().unwrap();
        let bytes = fs::read(path).unwrap();
        Self { path: path.into(), bytes, modified: found.modified().unwrap(), permissions: found.permissions() }
    }

    /// Asserts that content, permissions and time of change are what they were.
    #[track_caller]
    pub fn assert(&self) {
        assert!(self.path.exists(), "{} is gone", self.path.display());
        assert!(*self == Self::new(&self.path), "{} has changed", self.path.display());
    }
}
