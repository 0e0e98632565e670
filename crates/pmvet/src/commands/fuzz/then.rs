//! `--then check,race,verify`: other engines on new test cases, one at a time, in the background.

use std::collections::{BinaryHeap, HashSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pmvet_engines::fuzz::case::Case;
use pmvet_engines::fuzz::content::{Content, ImageId};
use pmvet_engines::fuzz::paths::Favour;
use pmvet_engines::fuzz::store::Store;
use pmvet_findings::{Finding, Severity, jsonl};

use super::start::Start;
use crate::cli;
use crate::run_folder::RunFolder;

/// A test case that waits for an engine: what adds most comes first, and among those the newest, since it reaches
/// furthest, and there are soon more than can be looked at.
#[derive(Debug, PartialEq, Eq)]
struct Waiting {
    favour: Favour,
    /// The engine, the first of the user's list first.
    engine: std::cmp::Reverse<usize>,
    order: u64,
    input: Vec<u8>,
    image: ImageId,
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.favour, self.engine, self.order).cmp(&(other.favour, other.engine, other.order))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

pub(super) struct Checks {
    /// Of this campaign's run; each check has its own folder within.
    folder: PathBuf,
    /// Where runs are kept that found something.
    keep: PathBuf,
    engines: Vec<cli::Then>,
    arguments: Vec<std::ffi::OsString>,
    input_path: Option<PathBuf>,
    waiting: BinaryHeap<Waiting>,
    contents: std::collections::HashMap<ImageId, std::sync::Arc<Content>>,
    child: Option<(Child, Instant)>,
    done: u64,
    findings: Vec<Finding>,
    known: HashSet<String>,
}

impl std::fmt::Display for Checks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} checked: {} findings, {} wait", self.done, self.findings.len(), self.waiting.len())
    }
}

/// What a single run of an engine may take; one that does not keep to it is killed.
const BUDGET: &str = "20s";
const PATIENCE: Duration = Duration::from_secs(40);
/// More than this do not wait: the campaign is faster than the checks.
const MOST_WAITING: usize = 4096;

impl Checks {
    pub(super) fn new(engines: &[cli::Then], folder: &RunFolder, start: &Start) -> Self {
        let target = &start.target;
        let mut arguments: Vec<std::ffi::OsString> = Vec::new();
        for path in &target.files {
            arguments.extend(["--pm".into(), path.into()]);
        }
        arguments.push("--".into());
        arguments.push(start.workload.program.executable.clone().into());
        arguments.extend(start.workload.program.arguments.iter().skip(1).cloned());
        Self {
            folder: folder.path.join("then"),
            keep: folder.path.parent().unwrap_or(&folder.path).into(),
            engines: engines.to_vec(),
            arguments,
            input_path: target.input.clone(),
            waiting: BinaryHeap::new(),
            contents: Default::default(),
            child: None,
            done: 0,
            findings: Vec::new(),
            known: HashSet::new(),
        }
    }

    pub(super) fn add(&mut self, case: &Case, favour: Favour, store: &mut Store) {
        if self.waiting.len() >= MOST_WAITING {
            return;
        }
        let Ok(content) = store.get(case.image) else { return };
        self.contents.insert(case.image, content);
        let order = self.done + self.waiting.len() as u64;
        for engine in (0..self.engines.len()).map(std::cmp::Reverse) {
            self.waiting.push(Waiting { favour, engine, order, input: case.input.clone(), image: case.image });
        }
    }

    /// Takes what has come, and starts the next.
    pub(super) fn look(&mut self) {
        if let Some((child, started)) = &mut self.child {
            if matches!(child.try_wait(), Ok(None)) && started.elapsed() < PATIENCE {
                return;
            }
            self.end();
            self.done += 1;
            self.take();
        }
        while self.child.is_none() {
            let Some(next) = self.waiting.pop() else { return };
            self.child = self.start(&next).ok().map(|child| (child, Instant::now()));
        }
    }

    fn runs(&self) -> PathBuf {
        self.folder.join("runs")
    }

    fn start(&self, case: &Waiting) -> io::Result<Child> {
        std::fs::create_dir_all(&self.folder)?;
        let input = self.folder.join("input");
        std::fs::write(&input, &case.input)?;
        let content = self.contents.get(&case.image).ok_or(io::ErrorKind::NotFound)?;
        let mut setup = Vec::new();
        for (number, (path, file)) in content.files.iter().enumerate() {
            let image = self.folder.join(format!("image-{number}"));
            let _ = std::fs::remove_file(&image);
            file.restore(&File::options().read(true).write(true).create(true).truncate(true).open(&image)?)?;
            // Opened for reading and writing, so that it is a private copy that is written.
            setup.push(format!("cat {} 1<>{}", quoted(&image), quoted(path)));
        }
        if let Some(path) = &self.input_path {
            std::fs::copy(&input, path)?;
        }
        let mut command = Command::new("/proc/self/exe");
        command.args(match self.engines.get(case.engine.0) {
            Some(cli::Then::Race) => &["race", "--quiet"][..],
            Some(cli::Then::Verify) => &["verify", "--quiet", "-j", "1", "--budget", BUDGET],
            _ => &[
                "check",
                "--quiet",
                "-j",
                "1",
                "--budget",
                BUDGET,
                "--crash-recoveries",
                "2",
                "--reorder",
                "--reorder-states",
                "64",
                "--known-points",
            ],
        });
        if matches!(self.engines.get(case.engine.0), Some(cli::Then::Check)) {
            command.arg(self.folder.join("known-points"));
        }
        command.arg("--runs").arg(self.runs());
        if !setup.is_empty() {
            command.arg("--setup").arg(setup.join("; "));
        }
        command.args(&self.arguments).stdin(File::open(&input)?).stdout(Stdio::null()).stderr(Stdio::null());
        crate::system::die_with_us(&mut command);
        command.spawn()
    }

    /// Takes the findings of the run that ended last. Its folder is kept if there is anything new, so that tokens lead there.
    fn take(&mut self) {
        let Ok(run) = self.runs().join("latest").canonicalize() else { return };
        let mut fresh = Vec::new();
        if let Ok(file) = File::open(run.join("findings.jsonl")) {
            fresh.extend(
                jsonl::read(io::BufReader::new(file)).flatten().filter(|f| self.known.insert(f.fingerprint.clone())),
            );
        }
        let place = run.file_name().map(|name| self.keep.join(name)).filter(|place| !place.exists());
        let kept = !fresh.is_empty() && place.is_some_and(|place| std::fs::rename(&run, place).is_ok());
        if !kept {
            fresh.iter_mut().for_each(|finding| finding.replay = None);
            let _ = std::fs::remove_dir_all(run);
        }
        self.findings.extend(fresh);
    }

    /// Whether anything was found that is as bad as this.
    pub(super) fn found(&self, least: Severity) -> bool {
        self.findings.iter().any(|finding| finding.severity >= least)
    }

    /// Ends the check under way; what it started ends with it.
    fn end(&mut self) {
        if let Some((mut child, _)) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Ends the check under way. Returns what was found, and how many cases were not checked.
    pub(super) fn finish(mut self) -> (Vec<Finding>, usize) {
        let left = self.waiting.len() + usize::from(self.child.is_some());
        self.end();
        let _ = std::fs::remove_dir_all(&self.folder);
        (std::mem::take(&mut self.findings), left)
    }
}

impl Drop for Checks {
    fn drop(&mut self) {
        self.end();
    }
}

/// A path as the shell takes it.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.to_string_lossy().replace('\'', r"'\''"))
}
