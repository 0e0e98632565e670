//! Slow, for `make soak`: what `pmvet init` proposes for programs of the zoo and of PMDK is all that `pmvet vet` needs.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const PMVET: &str = env!("CARGO_BIN_EXE_pmvet");
/// Of all programs, so many must work. The others need something that one run does not show: a command that recovers.
const WANTED: usize = 15;

/// Program, arguments with the pool in a folder that is no PM by itself, and what it reads: arguments of `targets/pmdk/gen.sh`.
const PMDK: [(&str, &str, &str); 8] = [
    ("mapcli", "btree data/pool 42", "mapcli-mixed 60"),
    ("data_store", "ctree data/pool 20", ""),
    ("arttree", "-m f -n 40 -m d data/pool", "art-fill 40"),
    ("btree", "data/pool i 1 one", ""),
    ("lists", "data/pool 3 foo 44", ""),
    ("fifo", "data/pool insert d", ""),
    ("pi", "data/pool calc 1 1000", ""),
    ("obj_pmemlog", "c data/pool a:hello w:0", ""),
];

const ZOO: [&str; 12] = [
    "atomic_hash",
    "bptree",
    "cl_hash",
    "ext_hash",
    "lf_queue",
    "plist",
    "redo_array",
    "ring_log",
    "slab_kv",
    "sum_log",
    "tx_maps",
    "undo_btree",
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn pmvet(folder: &Path, words: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(PMVET)
        .args(words)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // One that does not read it is right as well.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// Proposes and vets. Says what went wrong.
fn vet(command: &[String], input: &[u8]) -> Result<(), String> {
    let folder = tempfile::Builder::new().prefix("pmvet-init").tempdir_in("/var/tmp").unwrap();
    fs::create_dir(folder.path().join("data")).unwrap();
    let words: Vec<&str> = ["init", "--write", "--"].into_iter().chain(command.iter().map(String::as_str)).collect();
    for (words, codes) in [(&words[..], [0, 0]), (&["vet", "--quiet", "--budget", "15s"], [0, 1])] {
        let output = pmvet(folder.path(), words, input);
        if !output.status.code().is_some_and(|code| codes.contains(&code)) {
            return Err(format!("{words:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr)));
        }
    }
    Ok(())
}

#[test]
#[ignore = "takes minutes"]
fn proposals_are_all_that_vet_needs() {
    let built = repository().join("target");
    let mut commands: Vec<(Vec<String>, Vec<u8>)> = Vec::new();
    for name in ZOO {
        let manifest = fs::read_to_string(repository().join("zoo").join(name).join("manifest.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        let workload =
            manifest["program"]["workload"].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned());
        let program = built.join("zoo").join(name).join("clean").display().to_string();
        commands.push(([program, "data/pool".into()].into_iter().chain(workload).collect(), Vec::new()));
    }
    for (name, arguments, input) in PMDK {
        let program = built.join("pmdk").join(name).display().to_string();
        let words = std::iter::once(program).chain(arguments.split(' ').map(Into::into)).collect();
        let gen_sh = repository().join("targets/pmdk/gen.sh");
        let input = match input {
            "" => Vec::new(),
            input => Command::new("sh").arg(gen_sh).args(input.split(' ')).output().unwrap().stdout,
        };
        commands.push((words, input));
    }
    let failed: Vec<String> = commands.iter().filter_map(|(command, input)| vet(command, input).err()).collect();
    let worked = commands.len() - failed.len();
    println!("{worked} of {} programs\n{}", commands.len(), failed.join("\n"));
    assert!(worked >= WANTED);
}
