//! What integration tests share: compile a C program, run it under pmvet, read its events back.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde::Deserialize;
use tempfile::TempDir;

/// A directory on tmpfs, which counts as PM. It goes when the value does.
pub(crate) fn pm_dir() -> TempDir {
    tempfile::Builder::new().prefix("pmvet-test-").tempdir_in("/dev/shm").expect("/dev/shm must be writable")
}

/// A directory that is not PM.
pub(crate) fn plain_dir() -> TempDir {
    let dir =
        tempfile::Builder::new().prefix("pmvet-test-").tempdir().expect("the temporary directory must be writable");
    assert!(!dir.path().starts_with("/dev/shm"), "the temporary directory must not be PM: unset TMPDIR");
    dir
}

/// Compiles a C or C++ file. Panics with the compiler's words if that fails.
pub(crate) fn compile(source: &Path, flags: &[&str], to: &Path) {
    let compiler = if source.extension() == Some(OsStr::new("cc")) { "g++" } else { "gcc" };
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
    let mut command = Command::new(compiler);
    command.args(["-O1", "-g", "-Wall", "-mno-red-zone", "-pthread", "-I"]).arg(include).args(flags);
    let output = command.arg("-o").arg(to).arg(source).output();
    let output = output.unwrap_or_else(|e| panic!("cannot run {compiler}: {e}"));
    assert!(output.status.success(), "{compiler} failed:\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Whether the processor has all of these features, by their names in /proc/cpuinfo. The first that it lacks otherwise.
pub(crate) fn missing_feature<'a>(features: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = info.lines().find(|l| l.starts_with("flags")).unwrap_or_default();
    features.into_iter().find(|f| !flags.split_whitespace().any(|flag| flag == *f))
}

/// How to trace.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tracing {
    pub(crate) loads: bool,
    pub(crate) deterministic: bool,
    pub(crate) config: Option<PathBuf>,
    /// Read the events back without their call paths, which are most of the text.
    pub(crate) no_stacks: bool,
}

/// A run that was traced.
#[derive(Debug)]
pub(crate) struct Traced {
    /// pmvet's own exit code.
    pub(crate) code: Option<i32>,
    pub(crate) stderr: String,
    /// As `pmvet events --format json` prints them.
    pub(crate) json: String,
    pub(crate) events: Vec<Event>,
}

/// Runs `pmvet trace` on a command, saving the trace to a file in `scratch`, and reads the trace back.
pub(crate) fn trace(how: &Tracing, command: &[&OsStr], scratch: &Path) -> Traced {
    let saved = scratch.join("trace");
    let mut pmvet = Command::new(env!("CARGO_BIN_EXE_pmvet"));
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
    Traced { code: output.status.code(), stderr, events: events.collect(), json }
}

fn events(how: &Tracing, saved: &Path, run: &Output) -> String {
    let mut pmvet = Command::new(env!("CARGO_BIN_EXE_pmvet"));
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
pub(crate) struct Event {
    pub(crate) seq: u64,
    pub(crate) thread: u32,
    pub(crate) kind: String,
    pub(crate) addr: Option<String>,
    pub(crate) size: Option<u64>,
    pub(crate) len: Option<u64>,
    pub(crate) value: Option<String>,
    pub(crate) old: Option<String>,
    pub(crate) new: Option<String>,
    pub(crate) stored: Option<bool>,
    pub(crate) pm: Option<bool>,
    pub(crate) file: Option<String>,
    pub(crate) offset: Option<u64>,
    pub(crate) writable: Option<bool>,
    pub(crate) child: Option<u32>,
    pub(crate) lock: Option<String>,
    pub(crate) object: Option<String>,
    pub(crate) how: Option<String>,
    pub(crate) text: Option<String>,
    pub(crate) to: Option<String>,
    pub(crate) path: Option<String>,
    pub(crate) why: Option<String>,
    pub(crate) process: Option<u32>,
    pub(crate) parent: Option<u32>,
    pub(crate) site: Option<Frame>,
    pub(crate) stack: Vec<Frame>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Frame {
    pub(crate) function: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) line: Option<u32>,
}
