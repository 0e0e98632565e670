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
    pub loads: bool,
    pub deterministic: bool,
    pub config: Option<PathBuf>,
    /// Read the events back without their call paths, which are most of the text.
    pub no_stacks: bool,
}

/// A run that was traced.
#[derive(Debug)]
pub struct TracedRun {
    /// pmvet's own exit code.
    pub code: Option<i32>,
    pub stderr: String,
    /// As `pmvet events --format json` prints them.
    pub json: String,
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
    pub seq: u64,
    pub thread: u32,
    pub kind: String,
    pub addr: Option<String>,
    pub size: Option<u64>,
    pub len: Option<u64>,
    pub value: Option<String>,
    pub old: Option<String>,
    pub new: Option<String>,
    pub stored: Option<bool>,
    pub pm: Option<bool>,
    pub file: Option<String>,
    pub offset: Option<u64>,
    pub writable: Option<bool>,
    pub child: Option<u32>,
    pub lock: Option<String>,
    pub object: Option<String>,
    pub how: Option<String>,
    pub text: Option<String>,
    pub to: Option<String>,
    pub path: Option<String>,
    pub why: Option<String>,
    pub process: Option<u32>,
    pub parent: Option<u32>,
    pub site: Option<JsonFrame>,
    pub stack: Vec<JsonFrame>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct JsonFrame {
    pub function: Option<String>,
    pub source: Option<String>,
    pub line: Option<u32>,
}
