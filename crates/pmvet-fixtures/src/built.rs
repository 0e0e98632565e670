//! Programs that tests run, built when they are needed: the zoo, PMDK's examples, and small ones of the tests' own.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::{repository, scratch};

/// Builds programs under `target/`, where `make test` puts them as well, and says where that is. Once is enough.
pub fn make(makefile: &str, name: &str) -> PathBuf {
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
pub fn pair(linked: Linked) -> PathBuf {
    match linked {
        Linked::Dynamic => compile("tests/programs/pair.c", "pair", &[]),
        Linked::Static => compile("tests/programs/pair.c", "pair-static", &["-static"]),
    }
}

/// Compiles a C program of ours, if its source is newer.
pub fn compile(source: &str, name: &str, flags: &[&str]) -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _lock = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let program = scratch().join(name);
    let source = repository().join("crates/pmvet").join(source);
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
pub fn put_in_place(program: &Path, make: impl FnOnce(&Path)) {
    let fresh = program.with_extension(std::process::id().to_string());
    make(&fresh);
    fs::rename(fresh, program).unwrap();
}

/// Compiles a program of the programs folder.
pub fn program(name: &str) -> PathBuf {
    compile(&format!("tests/programs/{name}.c"), name, &[])
}

/// How a program is linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linked {
    /// To the libraries of this machine.
    Dynamic,
    /// All in one file.
    Static,
}
