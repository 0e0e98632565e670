//! What integration tests share: compile a C program, run it under pmvet, read its events back.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde::Deserialize;
use tempfile::TempDir;

use crate::repository;

/// A directory on tmpfs, which counts as PM. It goes when the value does.
pub fn pm_dir() -> TempDir {
    tempfile::Builder::new().prefix("pmvet-test-").tempdir_in("/dev/shm").expect("/dev/shm must be writable")
}

/// A directory that is not PM.
pub fn plain_dir() -> TempDir {
    let dir =
        tempfile::Builder::new().prefix("pmvet-test-").tempdir().expect("the temporary directory must be writable");
    assert!(!dir.path().starts_with("/dev/shm"), "the temporary directory must not be PM: unset TMPDIR");
    dir
}

/// Compiles a C or C++ file. Panics with the compiler's words if that fails.
pub fn compile(source: &Path, flags: &[&str], to: &Path) {
    let compiler = if source.extension() == Some(OsStr::new("cc")) { "g++" } else { "gcc" };
    let include = repository().join("include");
    let mut command = Command::new(compiler);
    command.args(["-O1", "-g", "-Wall", "-mno-red-zone", "-pthread", "-I"]).arg(include).args(flags);
    let output = command.arg("-o").arg(to).arg(source).output();
    let output = output.unwrap_or_else(|e| panic!("cannot run {compiler}: {e}"));
    assert!(output.status.success(), "{compiler} failed:\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Whether the processor has all of these features, by their names in /proc/cpuinfo. The first that it lacks otherwise.
pub fn missing_feature<'a>(features: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = info.lines().find(|l| l.starts_with("flags")).unwrap_or_default();
    features.into_iter().find(|f| !flags.split_whitespace().any(|flag| flag == *f))
}

/// How to trace.
#[derive(Debug, Clone, Default)]
pub struct Tracing {
    /// With `--loads`.
    pub loads: bool,
    /// With `--deterministic`.
    pub deterministic: bool,
    /// The file for `--config`, if any.
    pub config: Option<PathBuf>,
    /// Read the events back without their call paths, which are most of the text.
    pub no_stacks: bool,
}

/// A run that was traced.
#[derive(Debug)]
pub struct TracedRun {
    /// pmvet's own exit code.
    pub code: Option<i32>,
    /// All of pmvet's standard error.
    pub stderr: String,
    /// As `pmvet events --format json` prints them.
    pub json: String,
    /// The same, parsed.
    pub events: Vec<JsonEvent>,
}

/// Runs `pmvet trace` on a command, saving the trace to a file in `scratch`, and reads the trace back.
pub fn trace(how: &Tracing, command: &[&OsStr], scratch: &Path) -> TracedRun {
    let saved = scratch.join("trace");
    let mut pmvet = Command::new(crate::pmvet());
    pmvet.args(["trace", "--check-image", "--color", "never", "--save-trace"]).arg(&saved);
    if how.loads {
        pmvet.arg("--loads");
    }
    if how.deterministic {
        pmvet.arg("--deterministic");
    }
    if let Some(config) = &how.config {
        pmvet.arg("--config").arg(config);
    }
    let output = pmvet.arg("--").args(command).output().expect("pmvet must start");
    let json = events(how, &saved, &output);
    let events = json.lines().map(|line| match serde_json::from_str(line) {
        Ok(event) => event,
        Err(e) => panic!("not an event ({e}): {line}"),
    });
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    TracedRun { code: output.status.code(), stderr, events: events.collect(), json }
}

fn events(how: &Tracing, saved: &Path, run: &Output) -> String {
    let mut pmvet = Command::new(crate::pmvet());
    pmvet.arg("events").arg(saved).args(["--format", "json"]);
    if !how.no_stacks {
        pmvet.arg("--stacks");
    }
    let output = pmvet.output().expect("pmvet must start");
    assert!(
        output.status.success(),
        "no events: {}\nof the run that ended with {}: {}",
        String::from_utf8_lossy(&output.stderr),
        run.status,
        String::from_utf8_lossy(&run.stderr),
    );
    String::from_utf8(output.stdout).expect("JSON is UTF-8")
}

/// An event as JSON has it. Each kind has its own fields; the others are absent.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct JsonEvent {
    /// Position in the order of the run.
    pub seq: u64,
    /// pmvet's number of the thread, from 1.
    pub thread: u32,
    /// The name of the kind, such as `store`.
    pub kind: String,
    /// In hexadecimal, with `0x`.
    pub addr: Option<String>,
    /// In bytes; of accesses, files and modules.
    pub size: Option<u64>,
    /// In bytes; of ranges.
    pub len: Option<u64>,
    /// What was written: two hexadecimal digits for each byte.
    pub value: Option<String>,
    /// What an atomic instruction found, written as `value`.
    pub old: Option<String>,
    /// What was there after it.
    pub new: Option<String>,
    /// Whether it stored anything.
    pub stored: Option<bool>,
    /// Whether a flush was one of PM.
    pub pm: Option<bool>,
    /// The path of the PM file that the event is about.
    pub file: Option<String>,
    /// Where in that file.
    pub offset: Option<u64>,
    /// Whether a mapping can be stored to.
    pub writable: Option<bool>,
    /// The thread that is created, joined or detached.
    pub child: Option<u32>,
    /// The address of the lock.
    pub lock: Option<String>,
    /// The address of the condition variable, barrier or semaphore.
    pub object: Option<String>,
    /// The kind of a lock or a marker.
    pub how: Option<String>,
    /// What a marker says.
    pub text: Option<String>,
    /// The new path of a file.
    pub to: Option<String>,
    /// The program or library.
    pub path: Option<String>,
    /// What pmvet does not follow.
    pub why: Option<String>,
    /// The kernel's number of the process.
    pub process: Option<u32>,
    /// The process it was forked from; 0 for none.
    pub parent: Option<u32>,
    /// The instruction, if it is known.
    pub site: Option<JsonFrame>,
    /// The call path, innermost first; empty with `no_stacks`.
    pub stack: Vec<JsonFrame>,
}

/// A function on a call path.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct JsonFrame {
    /// Its name, if there is a symbol.
    pub function: Option<String>,
    /// The name of its source file, without the folder; with debug information only.
    pub source: Option<String>,
    /// The line in that file.
    pub line: Option<u32>,
}
