//! PM files whose names are not UTF-8 are traced, checked and shown like any other.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use pmvet_fixtures::tracing::compile;

/// A folder that is no PM, and in it a pool that only `--pm` makes PM.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn pool(&self) -> PathBuf {
        self.0.path().join(OsStr::from_bytes(b"\xff\xfe"))
    }

    fn run(&self, words: &[&OsStr]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pmvet"));
        command.current_dir(self.0.path()).args(words).stdin(Stdio::null());
        command.output().unwrap()
    }

    /// `pmvet COMMAND OPTIONS --pm GLOB -- PROGRAM POOL ARGUMENTS`, with a program of the zoo or one by its whole path.
    fn pmvet(&self, words: &str, glob: &[u8], (program, arguments): (&str, &str)) -> Output {
        let executable = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/zoo").join(program);
        assert!(executable.exists(), "make zoo");
        let pool = self.pool();
        let mut all: Vec<&OsStr> = words.split_whitespace().map(OsStr::new).collect();
        all.extend([OsStr::new("--pm"), OsStr::from_bytes(glob), OsStr::new("--")]);
        all.extend([executable.as_os_str(), pool.as_os_str()]);
        all.extend(arguments.split_whitespace().map(OsStr::new));
        self.run(&all)
    }
}

#[track_caller]
fn text(output: &Output, code: i32) -> String {
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

const CLEAN: (&str, &str) = ("undo_btree/clean", "-n 20");
const BUG: (&str, &str) = ("undo_btree/bug-3", "-n 20");

/// Maps a file without MAP_SYNC, which would make it PM whatever it is called.
const STORE: &str = r#"
#include <fcntl.h>
#include <immintrin.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int fd = open(argv[1], O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, 4096)) return 2;
    long *pm = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (pm == MAP_FAILED) return 2;
    for (volatile long *at = pm; at < pm + 64; at += 8) {
        *at = 7;
        _mm_clflush((void *)at);
        _mm_sfence();
    }
    return 0;
}
"#;

#[test]
fn traced_and_printed() {
    let place = Place::new();
    let (source, program) = (place.0.path().join("store.c"), place.0.path().join("store"));
    std::fs::write(&source, STORE).unwrap();
    compile(&source, &[], &program);
    let program = program.to_str().unwrap();
    // By its own name, by a glob with bytes of it, by one without, and by its folder.
    for glob in [&b"\xff\xfe"[..], b"\xff*", b"??", b"."] {
        let _ = std::fs::remove_file(place.pool());
        let output = place.pmvet("trace --check-image --save-trace trace", glob, (program, ""));
        let summary = text(&output, 0);
        assert!(summary.contains(r"/\xff\xfe ("), "{glob:x?}: {summary}");
    }
    let words = ["events", "trace", "--kind", "file,store", "--limit", "3", "--file"].map(OsString::from);
    for (format, shown) in [("text", r"\xff\xfe+0x"), ("json", r"/\\xff\\xfe")] {
        let mut words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
        words.extend([OsStr::new("??"), OsStr::new("--format"), OsStr::new(format)]);
        let events = text(&place.run(&words), 0);
        assert!(events.lines().count() == 3 && events.contains(shown), "{events}");
    }
    let other = text(&place.pmvet("trace", b"\xfe\xff", (program, "")), 4);
    assert!(other.contains(r"/\xfe\xff"), "says what was asked for: {other}");
}

#[test]
fn checked_and_replayed() {
    let place = Place::new();
    let found = text(&place.pmvet("check --quiet", b"\xff\xfe", BUG), 1);
    assert!(found.contains("recovery"), "{found}");
    assert!(!place.pool().exists(), "it works on private files");
    let again = text(&place.run(&["replay", "1"].map(OsStr::new)), 1);
    assert!(again.contains("reproduced"), "{again}");
    text(&place.pmvet("check --quiet", b"\xff\xfe", CLEAN), 0);
}

#[test]
fn other_engines() {
    let place = Place::new();
    text(&place.pmvet("race --quiet --confirm --rounds 2", b"*", CLEAN), 0);
    let verified = text(&place.pmvet("verify --max-executions 50", b"*", CLEAN), 5);
    assert!(!verified.contains("nothing was analysed"), "{verified}");
}

#[test]
fn fuzzed() {
    let place = Place::new();
    std::fs::write(place.0.path().join("seed"), "a").unwrap();
    let words = "fuzz --quiet --seeds seed --corpus corpus --budget 20s --executions 300 --then check";
    let fuzzed = text(&place.pmvet(words, b"*", ("undo_btree/clean", "-i")), 0);
    assert!(!fuzzed.contains("failed"), "{fuzzed}");
    text(&place.pmvet("fuzz --quiet --seeds seed --corpus corpus --rebuild 20", b"*", ("undo_btree/clean", "-i")), 0);
}
