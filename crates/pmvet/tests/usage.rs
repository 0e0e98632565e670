//! Flags that would do nothing are refused: exit code 2, the flag is named, and nothing has run.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::{Command, Stdio};

const USAGE: i32 = 2;

/// What follows `pmvet`, and the words that the refusal has.
const CASES: &[(&str, &[&str])] = &[
    ("race --in-place --setup true", &["--setup", "--in-place", "leave one out"]),
    ("check --in-place --setup true", &["--setup", "--in-place", "leave one out"]),
    ("verify --in-place --setup true", &["--setup", "--in-place", "leave one out"]),
    ("check --in-place --crash-recoveries 2", &["--crash-recoveries", "--in-place"]),
    ("check --stop true", &["--stop", "--client"]),
    ("race --stop true", &["--stop", "--client"]),
    ("check --recover-client true", &["--client"]),
    ("check --ready-when port:1", &["--ready-when", "--client"]),
    ("check --client true --ready-when port:1 -j 2", &["--jobs", "one at a time"]),
    ("race --confirm --client true --ready-when port:1 -j 2", &["--jobs", "one at a time"]),
    ("race --rounds 5", &["--confirm"]),
    ("verify --patience 5 --checksums", &["--patience", "--checksums"]),
    ("fuzz --interleave --dict d", &["--interleave", "--dict"]),
    ("fuzz --interleave --timeout 1s", &["--interleave", "--timeout"]),
    ("fuzz --interleave --memory 5", &["--interleave", "--memory"]),
    ("fuzz --interleave --crash-images 5", &["--interleave", "--crash-images"]),
    ("fuzz --interleave --crash-anywhere 5", &["--interleave", "--crash-anywhere"]),
    ("fuzz --interleave --whole-runs", &["--interleave", "--whole-runs"]),
    ("fuzz --interleave --then check", &["--interleave", "--then"]),
    ("fuzz --interleave --exchange d", &["--interleave", "--exchange"]),
    ("fuzz --interleave --rebuild 1", &["--interleave", "--rebuild"]),
    ("fuzz --rebuild 1 --cmin d", &["--rebuild", "--cmin"]),
    ("fuzz --rebuild 1 --then check", &["--rebuild", "--then"]),
    ("fuzz --paths-of d --executions 5", &["--paths-of", "--executions"]),
    ("fuzz --cmin d --until-finding", &["--cmin", "--until-finding"]),
    ("fuzz --tmin f --budget 5s", &["--tmin", "--budget"]),
    ("fuzz --recover true", &["--interleave"]),
    ("trace --measure-native --quiet", &["--measure-native", "--quiet", "--summary"]),
];

fn pmvet(folder: &std::path::Path, words: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pmvet"));
    let output = command.current_dir(folder).args(words).stdin(Stdio::null()).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn flags_that_would_do_nothing_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (line, said) in CASES {
        let words: Vec<&str> = line.split(' ').chain(["--", "/bin/true"]).collect();
        let (code, text) = pmvet(folder.path(), &words);
        assert_eq!(code, Some(USAGE), "{line}: {text}");
        for word in *said {
            assert!(text.contains(word), "{line}: no {word} in: {text}");
        }
    }
    let (code, text) = pmvet(folder.path(), &["report", "--pedantic"]);
    assert!(code == Some(USAGE) && text.contains("--export-sarif") && text.contains("--export-junit"), "{text}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "something ran: {left:?}");
}

#[test]
fn their_defaults_are_not() {
    use std::collections::BTreeSet;
    // No PM is mapped: what comes out is that nothing was analysed, not that something was wrong with the command line.
    let folder = tempfile::tempdir().unwrap();
    let lines = [
        "check",
        "check --in-place",
        "verify --checksums",
        "race",
        "fuzz --interleave --budget 5s",
        "fuzz --rebuild 1",
    ];
    let codes: BTreeSet<Option<i32>> = lines
        .iter()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').chain(["--quiet", "--", "/bin/true"]).collect();
            pmvet(folder.path(), &words).0
        })
        .collect();
    assert_eq!(codes, BTreeSet::from([Some(4)]));
}
