//! Litmus programs: C files whose comments say which events each line gives. See `litmus/litmus.h` for the notation.

mod render;
mod source;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::repository;
use crate::tracing::{self, JsonEvent, TracedRun, Tracing};
use render::Renderer;
use source::{Expected, Source};

pub use render::render_all;

/// Kinds of events that every program has, and only some are about.
const HIDDEN: &[&str] = &["module", "process-start", "process-exit", "thread-start", "thread-exit", "file", "map"];

/// A litmus program, compiled.
#[derive(Debug)]
pub struct Litmus {
    name: String,
    source: Source,
    program: PathBuf,
    scratch: TempDir,
}

impl Litmus {
    /// Compiles a program, or says why it cannot run here and returns nothing.
    pub fn compile(name: &str) -> Option<Self> {
        let path = repository().join("crates/pmvet/tests/litmus").join(name);
        let source = Source::read(&path);
        if let Some(feature) = tracing::missing_feature(source.needs.iter().map(String::as_str)) {
            eprintln!("skipped: {name}: this processor has no {feature}");
            return None;
        }
        let scratch = tracing::plain_dir();
        let program = scratch.path().join("program");
        let flags: Vec<&str> = source.flags.iter().map(String::as_str).collect();
        tracing::compile(&path, &flags, &program);
        Some(Self { name: name.to_owned(), source, program, scratch })
    }

    /// Runs it on fresh pools. `--check-image` must hold.
    pub fn run(&self, how: &Tracing, arguments: &[&str]) -> TracedRun {
        let traced = self.run_any(how, arguments);
        assert_eq!(traced.code, Some(0), "{} {how:?}:\n{}", self.name, traced.stderr);
        traced
    }

    /// Like `run`, but leaves the exit code to the caller.
    pub fn run_any(&self, how: &Tracing, arguments: &[&str]) -> TracedRun {
        let pools = tracing::pm_dir();
        self.run_in(pools.path(), how, arguments)
    }

    /// Like `run_any`, on pools in this folder.
    pub fn run_in(&self, pools: &Path, how: &Tracing, arguments: &[&str]) -> TracedRun {
        let traced = tracing::trace(how, &self.command(pools, arguments), self.scratch.path());
        check_numbers(&traced.events);
        traced
    }

    /// Runs it with nothing but counting to do, and returns the summary.
    pub fn count(&self, arguments: &[&str]) -> serde_json::Value {
        let pools = tracing::pm_dir();
        let summary = self.scratch.path().join("summary");
        let mut pmvet = Command::new(crate::pmvet());
        pmvet.args(["trace", "--format", "json", "--summary"]).arg(&summary).arg("--");
        let output = pmvet.args(self.command(pools.path(), arguments)).output().expect("pmvet must start");
        assert!(output.status.success(), "{}: {}", self.name, String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&std::fs::read(summary).expect("a summary")).expect("JSON")
    }

    /// The program's command line, with fresh pools.
    fn command<'a>(&'a self, pools: &'a Path, arguments: &[&'a str]) -> Vec<&'a OsStr> {
        for name in ["pool", "pool2"] {
            std::fs::write(pools.join(name), [0; 4 * 4096]).expect("a pool on tmpfs");
        }
        let mut command = vec![self.program.as_os_str(), pools.as_os_str(), self.scratch.path().as_os_str()];
        command.extend(arguments.iter().copied().map(OsStr::new));
        command
    }

    /// The locks and other objects that the program itself uses. The C library has some of its own, which it takes when it
    /// makes a thread or ends a process.
    fn objects(&self, events: &[JsonEvent]) -> BTreeSet<String> {
        let by_us =
            |e: &&JsonEvent| e.stack.get(1).is_some_and(|caller| caller.source.as_deref() == Some(self.name.as_str()));
        events.iter().filter(by_us).filter_map(|e| e.lock.clone().or(e.object.clone())).collect()
    }

    /// Asserts that a run gave the events that the program's comments say.
    pub fn check(&self, traced: &TracedRun, loads: bool) {
        let mut renderer = Renderer::default();
        let ours = self.objects(&traced.events);
        let shown = |e: &JsonEvent| {
            let kind = e.kind.as_str();
            let object = e.lock.as_ref().or(e.object.as_ref());
            (!HIDDEN.contains(&kind) || self.source.shown.iter().any(|s| s == kind))
                && object.is_none_or(|o| ours.contains(o))
                // Locked instructions of the C library order the program's last flushes too.
                && (kind != "locked-fence" || e.stack.iter().any(|f| f.source.as_deref() == Some(self.name.as_str())))
        };
        // Names are given in the order of the whole trace, so all threads are rendered together.
        let rendered = traced.events.iter().filter(|e| shown(e)).map(|e| (e, renderer.event(e)));
        let rendered: Vec<(&JsonEvent, String)> = rendered.collect();
        let expected = self.source.expected.iter().filter(|e| loads || !e.only_loads);
        let expected: Vec<&Expected> = expected.collect();
        let mut threads: Vec<u32> =
            rendered.iter().map(|r| r.0.thread).chain(expected.iter().map(|e| e.thread)).collect();
        threads.sort_unstable();
        threads.dedup();
        for thread in threads {
            let is: Vec<_> = rendered.iter().filter(|r| r.0.thread == thread).collect();
            let should: Vec<_> = expected.iter().filter(|e| e.thread == thread).collect();
            let mut report = String::new();
            let mut wrong = None;
            for i in 0..is.len().max(should.len()) {
                let problem = match (is.get(i), should.get(i)) {
                    (Some((event, text)), Some(expected)) => expected.mismatch(event, text, &self.name),
                    (Some((_, text)), None) => Some(format!("not expected: {text}")),
                    (None, Some(expected)) => Some(format!("missing: {expected}")),
                    (None, None) => None,
                };
                if let Some(problem) = problem {
                    wrong.get_or_insert(i);
                    report += &format!("  {problem}\n");
                }
                // What follows the first difference is mostly noise.
                if wrong.is_some_and(|first| i > first + 4) {
                    break;
                }
            }
            assert!(wrong.is_none(), "{} thread {thread} (loads: {loads}):\n{report}", self.name);
        }
    }
}

/// Numbers start at 1 and have no gaps; a load shares the number of the event before it.
fn check_numbers(events: &[JsonEvent]) {
    let mut last = 0;
    for event in events {
        let expected = if event.kind == "load" { last } else { last + 1 };
        assert_eq!(event.seq, expected, "number of {event:?}");
        last = event.seq;
    }
}

/// Runs a program without and with loads, and checks both against its comments.
pub fn check(name: &str) {
    check_with(name, &Tracing::default());
}

/// The same, traced in another way.
pub fn check_with(name: &str, how: &Tracing) {
    let Some(litmus) = Litmus::compile(name) else { return };
    for loads in [false, true] {
        let traced = litmus.run(&Tracing { loads, ..how.clone() }, &[]);
        litmus.check(&traced, loads);
    }
}
