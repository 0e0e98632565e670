//! What packages are made of: manual pages, completions, the version. `make test-package` tries the packages themselves.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const PMVET: &str = env!("CARGO_BIN_EXE_pmvet");

fn pmvet(words: &[&str]) -> Output {
    Command::new(PMVET).args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The commands that the help lists below `words`.
fn commands(words: &[&str]) -> Vec<String> {
    let help = text(&pmvet(&[words, &["--help"]].concat()).stdout);
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // Longer descriptions go on in lines that are indented more.
    let named = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    named.filter_map(|line| line.split_whitespace().next().map(String::from)).filter(|name| name != "help").collect()
}

/// The options that the help of a command has.
fn options(help: &str) -> BTreeSet<String> {
    let first_words = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let flags = first_words.flat_map(|line| line.split([' ', ',', '=', '[']).filter(|word| word.starts_with("--")));
    flags.filter(|flag| flag.len() > 2).map(String::from).collect()
}

fn names(folder: &Path) -> BTreeSet<String> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn every_command_has_a_page_with_all_its_options() {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("man/new");
    let output = pmvet(&["generate", "man", made.to_str().unwrap()]);
    assert!(output.status.success() && output.stdout.is_empty(), "{}", text(&output.stderr));
    let mut expected = BTreeSet::from(["pmvet.1".to_owned()]);
    let top = commands(&[]);
    assert!(top.len() > 10 && !top.contains(&"generate".into()), "{top:?}");
    for command in &top {
        let below = commands(&[command]);
        expected.extend(below.iter().map(|name| format!("pmvet-{command}-{name}.1")));
        expected.insert(format!("pmvet-{command}.1"));
    }
    assert_eq!(names(&made), expected);
    for command in &top {
        // Roff writes a dash as `\-`.
        let page = fs::read_to_string(made.join(format!("pmvet-{command}.1"))).unwrap().replace('\\', "");
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "SEE ALSO"] {
            assert!(page.contains(section), "{command}: no {section}");
        }
        for option in options(&text(&pmvet(&[command, "--help"]).stdout)) {
            assert!(page.contains(&option), "{command}: no {option} in its page");
        }
    }
}

#[test]
fn shells_read_the_completions() {
    let folder = tempfile::tempdir().unwrap();
    let output = pmvet(&["generate", "completions", folder.path().to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(names(folder.path()), ["_pmvet", "pmvet.bash", "pmvet.fish"].map(String::from).into());
    for (shell, file) in [("bash", "pmvet.bash"), ("zsh", "_pmvet"), ("fish", "pmvet.fish")] {
        match Command::new(shell).arg("-n").arg(folder.path().join(file)).output() {
            Ok(output) => assert!(output.status.success(), "{file}: {}", text(&output.stderr)),
            Err(_) => assert_ne!(shell, "bash", "every machine that builds pmvet has it"),
        }
    }
    // As the shell does it: the words so far, and which of them is being typed.
    let complete = |words: &[&str]| {
        let script = format!(
            "source {}; COMP_WORDS=(pmvet {}); COMP_CWORD={}; _pmvet pmvet '{}' '' ; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            folder.path().join("pmvet.bash").display(),
            words.join(" "),
            words.len(),
            words.last().unwrap(),
        );
        text(&Command::new("bash").args(["-c", &script]).output().unwrap().stdout)
    };
    assert_eq!(complete(&["verif"]), "verify\n");
    assert_eq!(complete(&["check", "--recover-t"]), "--recover-timeout\n");
}

#[test]
fn places_that_cannot_be_written_to_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "mine").unwrap();
    for place in ["/proc/pmvet", file.to_str().unwrap()] {
        for what in ["man", "completions"] {
            let output = pmvet(&["generate", what, place]);
            assert_eq!(output.status.code(), Some(70), "{place}");
            assert!(text(&output.stderr).contains(place), "{}", text(&output.stderr));
        }
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    assert_eq!(pmvet(&["generate", "poems", "/tmp"]).status.code(), Some(2));
}

#[test]
fn the_version_names_commit_and_dynamorio() {
    let version = text(&pmvet(&["--version"]).stdout);
    let lock = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock")).unwrap();
    let dynamorio = lock.split("name = \"dynamorio-sys\"\nversion = \"").nth(1).and_then(|rest| rest.split('"').next());
    assert!(version.ends_with(&format!(", DynamoRIO {})\n", dynamorio.unwrap())), "{version}");
    let commit = version.split("(commit ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    assert!(
        commit == "unknown" || commit.split(' ').next().unwrap().chars().all(|c| c.is_ascii_hexdigit()),
        "{version}"
    );
}
