//! What the tests of `pmvet check` share: where a check runs, how it is run, and what came of it.
//!
//! Two checks run at a time, whichever tests they belong to: see [`both_cores`] and [`turn`].

#![allow(dead_code, reason = "each test uses its own part")]

pub(crate) mod zoo;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use pmvet_findings::{Evidence, Finding, Severity, jsonl};
use tempfile::TempDir;

pub(crate) const PMVET: &str = env!("CARGO_BIN_EXE_pmvet");
/// Far longer than any check here needs, even on a busy machine; only a hang gets there.
pub(crate) const DEADLINE: Duration = Duration::from_secs(600);

/// pmvet's exit codes.
pub(crate) const CLEAN: i32 = 0;
pub(crate) const FOUND: i32 = 1;
pub(crate) const USAGE: i32 = 2;
pub(crate) const FAILS_BY_ITSELF: i32 = 3;
pub(crate) const NOTHING: i32 = 4;
pub(crate) const INCOMPLETE: i32 = 5;
pub(crate) const INTERRUPTED: i32 = 130;

/// Whether everything is tried, as `make soak` does. `make test` leaves out some of what is much alike.
pub(crate) fn is_soak() -> bool {
    std::env::var_os("PMVET_SOAK").is_some()
}

/// All of them in `make soak`, otherwise the first of each kind.
pub(crate) fn one_of_each<T, K: Ord>(all: impl IntoIterator<Item = T>, kind: impl Fn(&T) -> K) -> Vec<T> {
    let mut seen = BTreeSet::new();
    all.into_iter().filter(|one| seen.insert(kind(one)) || is_soak()).collect()
}

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Builds programs under `target/`, where `make test` puts them as well, and says where that is. Once is enough.
pub(crate) fn make(makefile: &str, name: &str) -> PathBuf {
    static MADE: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let out = repository().join("target").join(name);
    if made.contains(name) {
        return out;
    }
    let output = Command::new("make")
        .args(["-s", "-C"])
        .arg(repository().join(makefile))
        .arg(format!("OUT={}", out.display()))
        .env_remove("MAKEFLAGS")
        .output()
        .unwrap();
    assert!(output.status.success(), "{makefile}: {}", String::from_utf8_lossy(&output.stderr));
    made.insert(name.to_owned());
    out
}

/// Compiles the program whose recoveries misbehave; see `pair.c`.
pub(crate) fn pair(linked: Linked) -> PathBuf {
    match linked {
        Linked::Dynamic => compile("tests/check_support/pair.c", "pair", &[]),
        Linked::Static => compile("tests/check_support/pair.c", "pair-static", &["-static"]),
    }
}

/// Compiles a C program of ours, if its source is newer.
pub(crate) fn compile(source: &str, name: &str, flags: &[&str]) -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _lock = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let newest = |path: &Path| path.metadata().and_then(|m| m.modified()).ok();
    if newest(&program) < newest(&source) {
        put_in_place(&program, |to| {
            let mut command = Command::new("gcc");
            command.args(["-O1", "-g", "-Wall", "-pthread"]).args(flags).arg("-o").arg(to).arg(&source);
            let output = command.output().unwrap();
            assert!(output.status.success(), "gcc: {}", String::from_utf8_lossy(&output.stderr));
        });
    }
    program
}

/// Makes a program under another name first: tests of other files may make, or run, the same one.
pub(crate) fn put_in_place(program: &Path, make: impl FnOnce(&Path)) {
    let fresh = program.with_extension(std::process::id().to_string());
    make(&fresh);
    fs::rename(fresh, program).unwrap();
}

/// Compiles a program of the programs folder.
pub(crate) fn program(name: &str) -> PathBuf {
    compile(&format!("tests/programs/{name}.c"), name, &[])
}

/// Runs pmvet on programs that lock themselves up if they are stopped, that retry for ever, that are interrupted, that have many
/// threads. It must end as it should each time, and leave nothing behind.
pub(crate) fn on_awkward_programs(words: &[&str], as_it_should: impl Fn(&Checked) -> bool + Sync) {
    let (awkward, crowd) = (program("awkward"), program("crowd"));
    // Signals have a test of their own, in `race_programs`.
    let cases = [(&awkward, "deadlock"), (&awkward, "retry"), (&crowd, "crowd")];
    both_cores(&cases, |(program, mode)| {
        let place = Place::new();
        let mut command = place.pmvet(words);
        command.args(place.pm());
        command.arg("--").arg(program).arg(place.pool()).arg(mode);
        let found = Checked::new(&place, &finish(command, None).expect("pmvet hangs"));
        place.assert_clean(&[]);
        if as_it_should(&found) { Ok(()) } else { Err(format!("--- {mode}: {}{}", found.text(), found.stdout)) }
    });
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Linked {
    Dynamic,
    Static,
}

/// Tests of one file that use both cores take turns.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does all jobs, two at a time, then names those that failed.
pub(crate) fn both_cores<T: Sync>(jobs: &[T], work: impl Fn(&T) -> Result<(), String> + Sync) {
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(message) = work(job) {
                        failures.lock().unwrap().push(message);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {} failed\n{}", failures.len(), jobs.len(), failures.join("\n"));
}

// ---- Where a check runs

/// A folder for PM files and one that pmvet is started in. They go when the value does.
pub(crate) struct Place {
    pools: TempDir,
    work: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        // Containers often have a tiny /dev/shm. Any file will do as PM.
        let shared = Path::new("/dev/shm");
        let plain = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let pools = if free_mib(shared) >= 1024 { shared } else { plain };
        let folder = |parent: &Path| tempfile::Builder::new().prefix("pmvet-check-").tempdir_in(parent).unwrap();
        Self { pools: folder(pools), work: folder(plain) }
    }

    pub(crate) fn pools(&self) -> &Path {
        self.pools.path()
    }

    pub(crate) fn pool(&self) -> PathBuf {
        self.pools.path().join("pool")
    }

    pub(crate) fn work(&self) -> &Path {
        self.work.path()
    }

    /// Where the newest run is kept.
    pub(crate) fn run(&self) -> PathBuf {
        self.work.path().join(".pmvet/runs/latest")
    }

    /// The names in both folders, apart from what pmvet keeps.
    pub(crate) fn files(&self) -> Vec<String> {
        let mut names = Vec::new();
        for folder in [self.pools(), self.work()] {
            names.extend(fs::read_dir(folder).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()));
        }
        names.retain(|name| name != ".pmvet");
        names.sort();
        names
    }

    /// Processes that have a file of ours in their command line or open, pmvet among them.
    pub(crate) fn processes(&self) -> Vec<String> {
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
    pub(crate) fn assert_clean(&self, files: &[&str]) {
        wait_until("all processes are gone", || self.processes().is_empty());
        assert_eq!(self.files(), files, "files are left behind, or gone");
    }

    /// A check of this command, which runs in this place.
    pub(crate) fn check<S: AsRef<OsStr>>(&self, options: &[&str], command: &[S]) -> Check<'_> {
        self.engine("check", options, command)
    }

    /// The same for `pmvet verify`.
    pub(crate) fn verify<S: AsRef<OsStr>>(&self, options: &[&str], command: &[S]) -> Check<'_> {
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
    pub(crate) fn pmvet<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut command = Command::new(PMVET);
        command.args(words).current_dir(self.work()).stdin(Stdio::null());
        // Whatever the shell that started the tests has set. Files that are left behind show in `files`.
        command.env_remove("PMEM_IS_PMEM_FORCE").env_remove("PMEM_MMAP_HINT").env("TMPDIR", self.work());
        command
    }

    /// Options that make the pools PM, where they are not so by their path.
    pub(crate) fn pm(&self) -> Vec<OsString> {
        match self.pools().starts_with("/dev/shm") {
            true => Vec::new(),
            false => vec!["--pm".into(), self.pools().into()],
        }
    }

    /// Runs a finding again, in a process of its own.
    pub(crate) fn replay(&self, id: &str) -> Output {
        finish(self.pmvet(&["replay", id]), None).expect("the replay hangs")
    }

    /// Replays a finding, twice in `make soak`. Says what went wrong if it does not fail as it did.
    pub(crate) fn replays(&self, finding: &Finding) -> Result<(), String> {
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

// ---- A check

/// A command line of `pmvet check`, or of another engine.
#[derive(Clone)]
pub(crate) struct Check<'a> {
    place: &'a Place,
    engine: &'static str,
    options: Vec<OsString>,
    command: Vec<OsString>,
    input: Option<Vec<u8>>,
    variables: Vec<(OsString, OsString)>,
}

impl Check<'_> {
    /// What the target reads, through a pipe.
    pub(crate) fn input(mut self, bytes: &[u8]) -> Self {
        self.input = Some(bytes.into());
        self
    }

    pub(crate) fn option(mut self, words: &[&str]) -> Self {
        self.options.extend(words.iter().map(OsString::from));
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    fn words(&self) -> Command {
        let mut command = self.place.pmvet(&[self.engine, "--quiet"]);
        command.args(self.place.pm()).args(&self.options).arg("--").args(&self.command);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs it to its end.
    pub(crate) fn run(&self) -> Checked {
        let output = finish(self.words(), self.input.as_deref()).expect("pmvet hangs");
        Checked::new(self.place, &output)
    }

    /// Starts it. Whoever calls this ends it.
    pub(crate) fn start(&self) -> Running {
        let mut command = self.words();
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(Some(spawn(command, self.input.as_deref())))
    }

    /// Goes on with the last run.
    pub(crate) fn resume(&self) -> Checked {
        self.clone().option(&["--resume"]).run()
    }
}

/// A pmvet that does not outlive the test.
pub(crate) struct Running(Option<Child>);

impl Running {
    #[track_caller]
    pub(crate) fn signal(&mut self, number: i32) {
        assert!(!self.has_ended(), "pmvet has ended already");
        let pid = self.0.as_ref().unwrap().id();
        // SAFETY: a child of ours that has not been waited for.
        assert_eq!(unsafe { libc::kill(pid as i32, number) }, 0);
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    pub(crate) fn end(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A file that must stay as it is.
#[derive(Debug, PartialEq)]
pub(crate) struct Untouched {
    path: PathBuf,
    bytes: Vec<u8>,
    modified: SystemTime,
    permissions: Permissions,
}

impl Untouched {
    pub(crate) fn new(path: &Path) -> Self {
        let found = path.metadata().unwrap();
        let bytes = fs::read(path).unwrap();
        Self { path: path.into(), bytes, modified: found.modified().unwrap(), permissions: found.permissions() }
    }

    #[track_caller]
    pub(crate) fn assert(&self) {
        assert!(self.path.exists(), "{} is gone", self.path.display());
        assert!(*self == Self::new(&self.path), "{} has changed", self.path.display());
    }
}

/// What came of a check.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// As the run's folder has them.
    pub(crate) findings: Vec<Finding>,
}

impl Checked {
    pub(crate) fn new(place: &Place, output: &Output) -> Self {
        let findings = match File::open(place.run().join("findings.jsonl")) {
            Ok(file) => jsonl::read(BufReader::new(file)).map(|finding| finding.expect("a whole finding")).collect(),
            Err(_) => Vec::new(),
        };
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            findings,
        }
    }

    pub(crate) fn errors(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.severity == Severity::Error)
    }

    pub(crate) fn warnings(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.severity == Severity::Warning)
    }

    /// What identifies the findings, sorted.
    pub(crate) fn fingerprints(&self) -> Vec<(String, String)> {
        let mut all: Vec<_> = self.findings.iter().map(|f| (f.fingerprint.clone(), f.title.clone())).collect();
        all.sort();
        all
    }

    /// All that a failed assertion should say.
    pub(crate) fn text(&self) -> String {
        let findings: Vec<String> = self.findings.iter().map(|f| format!("{}\n", line(f))).collect();
        format!("exit code {:?}\n{}{}", self.code, findings.concat(), self.stderr)
    }

    #[track_caller]
    pub(crate) fn expect(&self, code: i32, words: &[&str]) -> &Self {
        assert_eq!(self.code, Some(code), "{}", self.text());
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is not in: {}", self.stderr);
        }
        let panicked = self.stderr.contains("panicked") || self.stderr.contains("RUST_BACKTRACE");
        assert!(!panicked, "{}", self.stderr);
        self
    }
}

/// A finding in one line.
pub(crate) fn line(finding: &Finding) -> String {
    let place = finding.places.first().and_then(|place| place.frame()).map_or("nowhere".into(), ToString::to_string);
    format!("{} {}: {} [{place}]", finding.severity.name(), finding.rule, finding.title)
}

// ---- Processes

fn spawn(mut command: Command, input: Option<&[u8]>) -> Child {
    if input.is_some() {
        command.stdin(Stdio::piped());
    }
    let mut child = command.spawn().expect("pmvet must start");
    if let (Some(mut pipe), Some(bytes)) = (child.stdin.take(), input) {
        // pmvet may end before it has read all.
        let _ = pipe.write_all(bytes);
    }
    child
}

/// Runs a command until nobody writes to its output any more. `None`: it had to be killed.
pub(crate) fn finish(mut command: Command, input: Option<&[u8]>) -> Option<Output> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = spawn(command, input);
    let pid = child.id();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    match receiver.recv_timeout(DEADLINE) {
        Ok(output) => Some(output.unwrap()),
        Err(_) => {
            // SAFETY: a child of ours that has not been waited for; pmvet's guard kills what is below it.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
            None
        }
    }
}

/// Looks until the condition holds; fails if it never does.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "not within {DEADLINE:?}: {what}");
        // Looks again, not too often: the processes it waits for need the processor.
        std::thread::sleep(Duration::from_millis(2));
    }
}
