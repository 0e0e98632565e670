//! `pmvet fuzz` on a small program whose bugs need an input, or an image, that nobody gave it.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

struct Place {
    folder: tempfile::TempDir,
    program: PathBuf,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let program = folder.path().join("shelf");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/shelf.c");
        let gcc = Command::new("gcc").args(["-O1", "-g", "-o"]).arg(&program).arg(source).status().unwrap();
        assert!(gcc.success());
        fs::write(folder.path().join("seed"), "add 1\ndel 1\n").unwrap();
        Self { folder, program }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn fuzz(&self, options: &[&str], target: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pmvet"));
        command.current_dir(self.folder.path()).args(["fuzz", "--quiet", "--corpus", "corpus", "--timeout", "30s"]);
        command.args(options).arg("--").arg(&self.program).arg(self.path("pool")).args(target);
        command.stdin(Stdio::null()).output().unwrap()
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn bugs_behind_inputs_and_behind_crash_images_are_found() {
    let place = Place::new();
    let found = place.fuzz(&["--seeds", "seed", "--executions", "600"], &[]);
    let shown = text(&found);
    assert_eq!(found.status.code(), Some(1), "{shown}");
    // Full shelf: some input, no crash. Half-made shelf: only what a crash leaves.
    assert!(shown.contains("failing-case") && shown.contains("SIGABRT"), "{shown}");
    assert!(shown.contains("recovery-failure") && shown.contains("SIGSEGV"), "{shown}");
    assert!(!place.path("pool").exists(), "the user's files are left alone");
    assert!(!names(&place.path("corpus/crashes")).is_empty());

    // A finding names a test case that fails again.
    let replay = |id: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pmvet"));
        command.current_dir(place.folder.path()).args(["replay", id]).stdin(Stdio::null()).output().unwrap()
    };
    let token = shown.split(|c: char| !c.is_ascii_alphanumeric()).find(|w| w.starts_with("pmv") && w.len() > 20);
    let again = replay(token.unwrap_or("1"));
    assert_eq!(again.status.code(), Some(1), "{}", text(&again));
    assert!(text(&again).contains("reproduced: the program"), "{}", text(&again));

    // The whole corpus comes about again in the same way.
    let rebuilt = place.fuzz(&["--seeds", "seed", "--rebuild", "1000"], &[]);
    let shown = text(&rebuilt);
    assert_eq!(rebuilt.status.code(), Some(0), "{shown}");
    assert!(shown.contains("0 with another image, 0 with other counts"), "{shown}");

    // A second campaign starts from what is there, even if the first was cut off in the middle of a write.
    let before = names(&place.path("corpus/queue"));
    let images = fs::read(place.path("corpus/images.jsonl")).unwrap();
    fs::write(place.path("corpus/images.jsonl"), [&images[..], b"{\"id\":\"00"].concat()).unwrap();
    place.fuzz(&["--seeds", "seed", "--executions", "700", "--seed", "2"], &[]);
    let after = names(&place.path("corpus/queue"));
    assert!(before.iter().all(|name| after.contains(name)));
    assert!(fs::read(place.path("corpus/images.jsonl")).unwrap().starts_with(&images));
}

#[test]
fn inputs_come_by_file_too() {
    let place = Place::new();
    let found = place.fuzz(&["--seeds", "seed", "--executions", "200"], &["@@"]);
    let shown = text(&found);
    assert_eq!(found.status.code(), Some(1), "{shown}");
    assert!(!place.path("corpus/.input").exists());
}

#[test]
fn without_pm_there_is_nothing_to_fuzz() {
    let place = Place::new();
    let output = Command::new(env!("CARGO_BIN_EXE_pmvet"))
        .current_dir(place.folder.path())
        .args(["fuzz", "--quiet", "--corpus", "corpus", "--executions", "5", "--", "/bin/cat"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", text(&output));
    let bad = place.fuzz(&["--ops", "seed", "--executions", "5"], &[]);
    assert_eq!(bad.status.code(), Some(2), "{}", text(&bad));
}
