//! Every command that the documents show is run, and prints what they say.
//!
//! A block marked `console` has commands after `$ ` and below each what it prints, standard error included. A line `...` stands for any
//! number of lines. Times, replay tokens, process ids, progress, and how often a parallel search did something are not compared. The
//! commands of one document run one after the other in a folder that stands for the root of the project: `target`, `zoo` and `docs` are
//! there, and documents call it [`HOME`]. `cd` holds for the commands after it.
//!
//! With `PMVET_BLESS=1` what a command prints is written below it, unless a line `...` is there: read it before you commit it.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;
use std::{env, fs};

use regex::Regex;

/// The root of the project in documents.
const HOME: &str = "/home/you/pmvet";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A command of a document, and what it is said to print.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    line: usize,
    command: String,
    printed: Vec<String>,
}

fn shown(text: &str) -> Vec<Shown> {
    let mut all: Vec<Shown> = Vec::new();
    let mut in_block = false;
    for (line, text) in (1..).zip(text.lines()) {
        if text.starts_with("```") {
            in_block = text == "```console";
        } else if let Some(command) = text.strip_prefix("$ ").filter(|_| in_block) {
            all.push(Shown { line, command: command.into(), printed: Vec::new() });
        } else if in_block {
            all.last_mut().expect("a block begins with a command").printed.push(text.into());
        }
    }
    all
}

/// Without what differs from run to run.
fn compared(line: &str) -> String {
    let mut line = line.trim_end().to_owned();
    for (pattern, instead) in [
        (r"\d+(\.\d+)? (s|ms)\b", "<time>"),
        (r"\bpmv[0-9a-z]{40,}", "<token>"),
        (r"\b\d{8}-\d{6}\b", "<run>"),
        (r"^ +\d+ +\d+ +\d+  ", "<ids>"),
        (r"\d+( more)? executions", "<n> executions"),
        (r"seen: \d+ times", "<n> times"),
        (r"\d+\.\d KiB, \d+\.\d bytes per event", "<size>"),
    ] {
        line = Regex::new(pattern).unwrap().replace_all(&line, instead).into_owned();
    }
    line
}

/// The first line shown that was not printed, if there is one.
fn differs(shown: &[String], printed: &[String]) -> Option<String> {
    missing(shown, printed).map(|(_, line)| line)
}

/// The same, and how many lines are shown after it. Where several lines may be left out, the furthest that one can get.
fn missing(shown: &[String], printed: &[String]) -> Option<(usize, String)> {
    let Some((first, rest)) = shown.split_first() else {
        return printed.first().map(|line| (0, format!("the end, not `{line}`")));
    };
    if first == "..." {
        let all: Option<Vec<_>> = (0..=printed.len()).map(|skipped| missing(rest, &printed[skipped..])).collect();
        return all.and_then(|all| all.into_iter().min_by_key(|(left, _)| *left));
    }
    match printed.first() {
        Some(line) if compared(first) == compared(line) => missing(rest, &printed[1..]),
        _ => Some((rest.len(), format!("`{first}`"))),
    }
}

/// A command that did not print what the document shows.
struct Wrong {
    shown: Shown,
    missing: String,
    printed: Vec<String>,
}

/// Runs the commands of a document.
fn run(text: &str) -> Vec<Wrong> {
    let root = root();
    let place = tempfile::Builder::new().prefix("pmvet-test-").tempdir().unwrap();
    for name in ["target", "zoo", "docs"] {
        symlink(root.join(name), place.path().join(name)).unwrap();
    }
    let pmvet = Path::new(env!("CARGO_BIN_EXE_pmvet")).parent().unwrap().as_os_str().to_owned();
    let path =
        env::join_paths([pmvet.into()].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap()))).unwrap();
    // A line now and then, if a command takes long.
    let progress = Regex::new(r"^pmvet: (\d+ of \d+ (crash images tried|crashes), |\d+ s: )").unwrap();
    let mut folder = place.path().to_owned();
    let mut wrong = Vec::new();
    for shown in shown(text) {
        if let Some(to) = shown.command.strip_prefix("cd ") {
            folder.push(to);
            assert!(folder.is_dir(), "line {}: no folder {to}", shown.line);
            continue;
        }
        let output = Command::new("sh")
            .args(["-c", &format!("exec 2>&1; {}", shown.command)])
            .current_dir(&folder)
            .env("PATH", &path)
            .env_remove("MAKEFLAGS")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        let printed =
            printed.replace(&format!("{}/", root.display()), "").replace(&place.path().display().to_string(), HOME);
        let printed: Vec<String> = printed.lines().filter(|line| !progress.is_match(line)).map(str::to_owned).collect();
        if let Some(missing) = differs(&shown.printed, &printed) {
            wrong.push(Wrong { shown, missing, printed });
        }
    }
    wrong
}

/// The document with what was printed in place of what it showed.
fn blessed(text: &str, wrong: &[Wrong]) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    for Wrong { shown, printed, .. } in wrong.iter().rev() {
        if !shown.printed.iter().any(|line| line == "...") {
            lines.splice(shown.line..shown.line + shown.printed.len(), printed.iter().map(|line| line.trim_end()));
        }
    }
    lines.join("\n") + "\n"
}

fn assert_true(document: &str) {
    static ZOO: Once = Once::new();
    // Programs flush with what the processor has, and documents show `clwb`.
    if !fs::read_to_string("/proc/cpuinfo").unwrap().split_whitespace().any(|flag| flag == "clwb") {
        eprintln!("not compared: this processor has no clwb");
        return;
    }
    ZOO.call_once(|| {
        Command::new("make").args(["-s", "zoo"]).current_dir(root()).env_remove("MAKEFLAGS").status().unwrap();
    });
    let path = root().join(document);
    let text = fs::read_to_string(&path).unwrap();
    let wrong = run(&text);
    if env::var_os("PMVET_BLESS").is_some() {
        fs::write(&path, blessed(&text, &wrong)).unwrap();
    }
    let said = wrong.iter().map(|Wrong { shown, missing, printed }| {
        format!("--- {document}:{}: `{}` should print {missing}:\n{}", shown.line, shown.command, printed.join("\n"))
    });
    assert!(wrong.is_empty(), "{}", said.collect::<Vec<_>>().join("\n"));
}

macro_rules! documents {
    ($($test:ident $path:literal)*) => {
        /// All documents that show commands.
        const DOCUMENTS: &[&str] = &[$($path),*];
        $(#[test]
        fn $test() {
            assert_true($path);
        })*
    };
}

documents! {
    the_readme_is_true "README.md"
    getting_started_is_true "docs/book/src/getting-started.md"
    the_chapter_on_ci_is_true "docs/book/src/questions/ci.md"
    the_chapter_on_clean_is_true "docs/book/src/questions/clean.md"
    the_chapter_on_crashes_is_true "docs/book/src/questions/crash.md"
    the_chapter_on_inputs_is_true "docs/book/src/questions/inputs.md"
    the_chapter_on_machines_is_true "docs/book/src/questions/machines.md"
    the_chapter_on_reports_is_true "docs/book/src/questions/report.md"
    the_chapter_on_servers_is_true "docs/book/src/questions/server.md"
    the_chapter_on_states_is_true "docs/book/src/questions/states.md"
    the_chapter_on_threads_is_true "docs/book/src/questions/threads.md"
    the_chapter_on_traces_is_true "docs/book/src/questions/trace.md"
    the_chapter_on_configuration_is_true "docs/book/src/reference/configuration.md"
    the_chapter_on_files_is_true "docs/book/src/reference/files.md"
    the_chapter_on_rules_is_true "docs/book/src/reference/rules.md"
    the_tutorial_is_true "docs/book/src/tutorial.md"
    the_chapter_on_durable_is_true "docs/durable.md"
    the_chapter_on_verify_is_true "docs/verify.md"
}

/// The Markdown files below a folder. What a link leads to is counted where it lies.
fn pages(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            pages(&entry.path(), into);
        } else if entry.path().extension().is_some_and(|ending| ending == "md") {
            into.push(entry.path());
        }
    }
}

#[test]
fn no_document_is_forgotten() {
    let root = root();
    let mut all = vec![root.join("README.md"), root.join("ARCHITECTURE.md"), root.join("CONTRIBUTING.md")];
    pages(&root.join("docs"), &mut all);
    pages(&root.join("zoo"), &mut all);
    all.retain(|path| !shown(&fs::read_to_string(path).unwrap()).is_empty());
    let mut with_commands: Vec<_> =
        all.iter().map(|path| path.strip_prefix(&root).unwrap().to_str().unwrap()).collect();
    with_commands.sort_unstable();
    assert_eq!(with_commands, DOCUMENTS);
}

#[test]
fn blocks_are_read_and_compared() {
    let text = "text\n```console\n$ a b\none in 0.10 s\n...\nlast\n$ c\n```\n$ no\n";
    let all = shown(text);
    assert_eq!(all.iter().map(|s| s.command.as_str()).collect::<Vec<_>>(), ["a b", "c"]);
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(differs(&all[0].printed, &lines("one in 2.25 s\nx\ny\nlast")), None);
    assert_eq!(differs(&all[0].printed, &lines("one in 2.25 s\nlast")), None);
    assert_eq!(differs(&all[0].printed, &lines("one in 2.25 s\nx")), Some("`last`".into()));
    assert_eq!(differs(&all[1].printed, &lines("x")), Some("the end, not `x`".into()));
}

#[test]
fn what_is_printed_can_be_written_down() {
    let text = "```console\n$ a\nold\n$ b\n...\n```\n";
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let wrong = |shown| Wrong { shown, missing: String::new(), printed: lines("x\ny") };
    let wrong: Vec<Wrong> = shown(text).into_iter().map(wrong).collect();
    assert_eq!(blessed(text, &wrong), "```console\n$ a\nx\ny\n$ b\n...\n```\n");
}
