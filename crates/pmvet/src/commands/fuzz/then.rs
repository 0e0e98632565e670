//! `--then check,race,verify`: other engines on new test cases, one at a time, in the background.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet, VecDeque};
use std::ffi::OsString;
use std::fmt::Write;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use pmvet_engines::fuzz::case::Case;
use pmvet_engines::fuzz::paths::Favour;
use pmvet_engines::fuzz::store::ImageStore;
use pmvet_findings::{Finding, Severity, jsonl};
use pmvet_target::program::Program;

use super::start::FuzzStart;
use crate::cli;
use crate::exit::Exit;
use crate::run_folder::RunFolder;

/// A test case that waits for an engine: what adds most comes first, and among those the newest, since it reaches
/// furthest, and there are soon more than can be looked at.
#[derive(Debug, PartialEq, Eq)]
struct Waiting {
    favour: Favour,
    /// The engine, the first of the user's list first.
    engine: Reverse<usize>,
    order: u64,
    case: Case,
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
    arguments: Vec<OsString>,
    input_path: Option<PathBuf>,
    waiting: BinaryHeap<Waiting>,
    /// Cases on crash images, the oldest first, whether they add anything or not.
    crashes: VecDeque<Waiting>,
    child: Option<(Child, Instant)>,
    done: u64,
    /// Those of them that broke down.
    failed: u64,
    /// What there was no room for, or not enough time.
    dropped: u64,
    findings: Vec<Finding>,
    known: HashSet<String>,
}

impl std::fmt::Display for Checks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} checked: {} findings, {} wait", self.done, self.findings.len(), self.waiting())
    }
}

/// What a single run of an engine may take; one that does not keep to it is killed.
const BUDGET: &str = "20s";
const PATIENCE: Duration = Duration::from_secs(40);
/// More than this do not wait: the campaign is faster than the checks.
const MOST_WAITING: usize = 4096;
/// One in so many checks is of a crash image, while other cases wait.
const CRASH_EVERY: u64 = 4;

impl Checks {
    pub(super) fn new(engines: &[cli::Then], folder: &RunFolder, start: &FuzzStart, config: Option<&Path>) -> Self {
        let target = &start.target;
        let arguments = arguments(config, &target.files, &start.workload.program);
        Self {
            folder: folder.path.join("then"),
            keep: folder.path.parent().unwrap_or(&folder.path).into(),
            engines: engines.to_vec(),
            arguments,
            input_path: target.input.clone(),
            waiting: BinaryHeap::new(),
            crashes: VecDeque::new(),
            child: None,
            done: 0,
            failed: 0,
            dropped: 0,
            findings: Vec::new(),
            known: HashSet::new(),
        }
    }

    /// A case adds something.
    pub(super) fn add(&mut self, case: &Case, favour: Favour) {
        if self.waiting.len() >= MOST_WAITING {
            self.dropped += self.engines.len() as u64;
            return;
        }
        let order = self.done + self.waiting.len() as u64;
        let engines = 0..self.engines.len();
        self.waiting.extend(engines.map(|engine| Waiting {
            favour,
            engine: Reverse(engine),
            order,
            case: case.clone(),
        }));
    }

    /// A case runs on a new crash image. What recovery does there depends on what is in the image, so it is looked at even
    /// if it takes the way that it always takes.
    pub(super) fn add_crash(&mut self, case: &Case) {
        let engines = (0..self.engines.len()).map(Reverse).rev();
        let crash = |engine| Waiting { favour: Favour::None, engine, order: 0, case: case.clone() };
        self.crashes.extend(engines.map(crash));
        while self.crashes.len() > MOST_WAITING {
            self.crashes.pop_front();
            self.dropped += 1;
        }
    }

    fn waiting(&self) -> u64 {
        (self.waiting.len() + self.crashes.len()) as u64
    }

    fn next(&mut self) -> Option<Waiting> {
        let crash = self.waiting.is_empty() || self.done % CRASH_EVERY == CRASH_EVERY - 1;
        let crash = if crash { self.crashes.pop_back() } else { None };
        crash.or_else(|| self.waiting.pop())
    }

    /// Takes what has come, and starts the next.
    pub(super) fn look(&mut self, store: &mut ImageStore) {
        if let Some((child, started)) = &mut self.child {
            let ended = child.try_wait();
            if matches!(ended, Ok(None)) && started.elapsed() < PATIENCE {
                return;
            }
            match ended {
                Ok(Some(status)) => self.failed += u64::from(!is_verdict(status) || self.lost_findings(status)),
                Ok(None) => self.dropped += 1,
                Err(_) => self.failed += 1,
            }
            self.end();
            self.done += 1;
            self.take();
        }
        while self.child.is_none() {
            let Some(next) = self.next() else { return };
            match self.start(&next, store) {
                Ok(child) => self.child = Some((child, Instant::now())),
                Err(_) => self.failed += 1,
            }
        }
    }

    /// Whether a run has found something that it could not keep.
    fn lost_findings(&self, status: ExitStatus) -> bool {
        status.code() == Some(Exit::Findings.code().into()) && !self.runs().join("latest/findings.jsonl").exists()
    }

    fn runs(&self) -> PathBuf {
        self.folder.join("runs")
    }

    fn start(&self, next: &Waiting, store: &mut ImageStore) -> io::Result<Child> {
        std::fs::create_dir_all(&self.folder)?;
        let input = self.folder.join("input");
        std::fs::write(&input, &next.case.input)?;
        let content = store.get(next.case.image)?;
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
        command.args(match self.engines.get(next.engine.0) {
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
            ],
        });
        // Paths on which crashes have been tried may do harm on a crash image that they did not do on others.
        if next.favour > Favour::None && matches!(self.engines.get(next.engine.0), Some(cli::Then::Check)) {
            command.arg("--known-points");
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

    /// Ends the check under way. Returns what was found, and how many runs were not made in time and how many failed.
    pub(super) fn finish(mut self) -> (Vec<Finding>, u64, u64) {
        let left = self.waiting() + self.dropped + u64::from(self.child.is_some());
        self.end();
        let _ = std::fs::remove_dir_all(&self.folder);
        (std::mem::take(&mut self.findings), left, self.failed)
    }
}

impl Drop for Checks {
    fn drop(&mut self) {
        self.end();
    }
}

/// What every engine is told: how to look at the program, which files are PM, and what to run.
fn arguments(config: Option<&Path>, files: &[PathBuf], program: &Program) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = Vec::new();
    if let Some(config) = config {
        arguments.extend(["--config".into(), config.into()]);
    }
    for path in files {
        arguments.extend(["--pm".into(), path.into()]);
    }
    arguments.push("--".into());
    arguments.push(program.executable.clone().into());
    arguments.extend(program.arguments.iter().skip(1).cloned());
    arguments
}

/// Whether pmvet ended like this because of what it saw, rather than because it failed.
fn is_verdict(status: ExitStatus) -> bool {
    let broken = [Exit::Usage, Exit::Internal, Exit::Interrupted];
    Exit::ALL.iter().any(|exit| !broken.contains(exit) && status.code() == Some(exit.code().into()))
}

/// A path as the shell takes it, in UTF-8 whatever the path is.
fn quoted(path: &Path) -> String {
    let mut out = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        let _ = write!(out, "'{}'", chunk.valid().replace('\'', r"'\''"));
        for byte in chunk.invalid() {
            let _ = write!(out, r#""$(printf '\{byte:o}')""#);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::ffi::OsStr;

    #[test]
    fn engines_get_the_configuration() {
        let program =
            Program { executable: "/bin/p".into(), arguments: vec!["p".into(), "--config".into(), "mine".into()] };
        let files = ["/dev/shm/a".into(), "/dev/shm/b".into()];
        for (config, engine) in [(Some("my.toml"), "check"), (Some("my.toml"), "race"), (None, "verify")] {
            let words = arguments(config.map(Path::new), &files, &program);
            let words = ["pmvet", engine].into_iter().map(OsString::from).chain(words);
            let workload = match cli::Cli::try_parse_from(words).unwrap().command {
                cli::Command::Check(check) => check.workload,
                cli::Command::Race(race) => race.workload,
                cli::Command::Verify(verify) => verify.workload,
                other => panic!("{other:?}"),
            };
            assert_eq!(workload.config.as_deref(), config.map(Path::new), "{engine}");
            assert_eq!(workload.pm, ["/dev/shm/a", "/dev/shm/b"]);
            assert_eq!(workload.command, ["/bin/p", "--config", "mine"]);
        }
    }

    #[test]
    fn the_shell_gives_paths_back() {
        for name in [&b"a b"[..], b"it's", b"$x`y`\\n", b"\xff\xfe", b"\xff'\\ \"$x%s\n"] {
            let path = Path::new(OsStr::from_bytes(name));
            let line = format!("printf %s {}", quoted(path));
            let output = Command::new("/bin/sh").arg("-c").arg(&line).output().unwrap();
            assert_eq!(output.stdout, name, "{line}");
        }
    }
}
