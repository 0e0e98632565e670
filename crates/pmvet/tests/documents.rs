//! Every command that the documents show is run, and prints what they say.
//!
//! A block marked `console` has commands after `$ ` and below each what it prints, standard error included. A line `...` stands for any
//! number of lines. Times, replay tokens, process ids and how often a parallel search did something are not compared. The commands of one
//! document run one after the other in a folder that stands for the root of the project: `target` and `zoo` are there, and documents call
//! it [`HOME`].

#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
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

/// Runs the commands of a document and says which of them print something else.
fn run(document: &str) -> Vec<String> {
    let root = root();
    let place = tempfile::Builder::new().prefix("pmvet-test-").tempdir().unwrap();
    for name in ["target", "zoo"] {
        symlink(root.join(name), place.path().join(name)).unwrap();
    }
    let pmvet = Path::new(env!("CARGO_BIN_EXE_pmvet")).parent().unwrap().as_os_str().to_owned();
    let path =
        env::join_paths([pmvet.into()].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap()))).unwrap();
    let text = fs::read_to_string(root.join(document)).unwrap();
    let mut wrong = Vec::new();
    for Shown { line, command, printed: expected } in shown(&text) {
        let output = Command::new("sh")
            .args(["-c", &format!("exec 2>&1; {command}")])
            .current_dir(place.path())
            .env("PATH", &path)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        let printed =
            printed.replace(&format!("{}/", root.display()), "").replace(&place.path().display().to_string(), HOME);
        let printed: Vec<String> = printed.lines().map(str::to_owned).collect();
        if let Some(missing) = differs(&expected, &printed) {
            wrong.push(format!("--- {document}:{line}: `{command}` should print {missing}:\n{}", printed.join("\n")));
        }
    }
    wrong
}

fn assert_true(document: &str) {
    // Programs flush with what the processor has, and documents show `clwb`.
    if !fs::read_to_string("/proc/cpuinfo").unwrap().split_whitespace().any(|flag| flag == "clwb") {
        eprintln!("not compared: this processor has no clwb");
        return;
    }
    Command::new("make").args(["-s", "zoo"]).current_dir(root()).env_remove("MAKEFLAGS").status().unwrap();
    let wrong = run(document);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_readme_is_true() {
    assert_true("README.md");
}

#[test]
fn the_chapter_on_verify_is_true() {
    assert_true("docs/verify.md");
}

#[test]
fn no_document_is_forgotten() {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let with_commands: Vec<PathBuf> = docs
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
        .filter(|path| !shown(&fs::read_to_string(path).unwrap()).is_empty())
        .collect();
    assert_eq!(with_commands, [root().join("docs/verify.md")]);
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
