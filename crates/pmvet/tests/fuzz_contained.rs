//! `pmvet fuzz` on programs that misbehave, on a disk that is full, and killed.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

struct Place {
    folder: tempfile::TempDir,
    program: PathBuf,
}

impl Place {
    fn new(source: &str) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let program = folder.path().join("program");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz").join(source);
        let gcc = Command::new("gcc").args(["-O1", "-g", "-o"]).arg(&program).arg(source).status().unwrap();
        assert!(gcc.success());
        Self { folder, program }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn fuzz(&self, options: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pmvet"));
        command.current_dir(self.folder.path()).args(["fuzz", "--quiet", "--corpus", "corpus", "--seeds", "seeds"]);
        command.args(options).arg("--").arg(&self.program).arg(self.path("pool")).stdin(Stdio::null());
        command
    }

    /// Processes that run the program.
    fn running(&self) -> usize {
        let is_it = |entry: &fs::DirEntry| {
            fs::read(entry.path().join("cmdline")).is_ok_and(|line| {
                let wanted = self.program.to_str().unwrap().as_bytes();
                line.split(|&b| b == 0).next() == Some(wanted)
            })
        };
        fs::read_dir("/proc").unwrap().flatten().filter(is_it).count()
    }

    /// Waits for something that must come.
    fn wait_until(&self, what: impl Fn(&Self) -> bool) {
        while !what(self) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn kept(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("corpus/queue")).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn targets_that_misbehave_are_contained_and_reported() {
    let place = Place::new("wild.c");
    fs::create_dir(place.path("seeds")).unwrap();
    for what in ["", "f", "d", "h", "m", "u"] {
        fs::write(place.path("seeds").join(format!("seed-{what}")), what).unwrap();
    }
    fs::write(place.path("pool"), [7; 4096]).unwrap();
    let output = place.fuzz(&["--executions", "24", "--timeout", "400ms", "--memory", "192"]).output().unwrap();
    let shown = text(&output);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains("still runs after 1 s"), "{shown}");
    assert!(shown.contains("processes that runs left behind were ended"), "{shown}");
    assert!(!fs::read_dir(place.path("corpus/hangs")).unwrap().flatten().collect::<Vec<_>>().is_empty());
    assert!(!fs::read_dir(place.path("corpus/crashes")).unwrap().flatten().collect::<Vec<_>>().is_empty());
    assert_eq!(place.running(), 0);
    assert_eq!(fs::read(place.path("pool")).unwrap(), [7; 4096], "the user's pool is neither written nor deleted");
}

#[test]
fn a_killed_campaign_loses_nothing() {
    let place = Place::new("shelf.c");
    fs::write(place.path("seeds"), "add 1\ndel 1\n").unwrap();
    let mut child = place.fuzz(&[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    place.wait_until(|place| place.kept().len() >= 8);
    child.kill().unwrap();
    child.wait().unwrap();
    place.wait_until(|place| place.running() == 0);
    let before = place.kept();
    let output = place.fuzz(&["--rebuild", "1000"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let output = place.fuzz(&["--executions", "100"]).output().unwrap();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", text(&output));
    let after = place.kept();
    assert!(before.iter().all(|name| after.contains(name)));
}

#[test]
fn a_full_disk_ends_the_campaign_with_a_reason() {
    let place = Place::new("shelf.c");
    fs::write(place.path("seeds"), "add 1\ndel 1\n").unwrap();
    fs::create_dir_all(place.path("corpus/queue")).unwrap();
    // Where a test case is written before it gets its name.
    std::os::unix::fs::symlink("/dev/full", place.path("corpus/.fresh")).unwrap();
    let output = place.fuzz(&["--executions", "50"]).output().unwrap();
    let shown = text(&output);
    assert!(!matches!(output.status.code(), Some(0 | 1)), "{shown}");
    assert!(shown.contains("No space left"), "{shown}");
    assert_eq!(place.running(), 0);
    fs::remove_file(place.path("corpus/.fresh")).unwrap();
    let output = place.fuzz(&["--executions", "100"]).output().unwrap();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", text(&output));
    assert!(!place.kept().is_empty());
}

#[test]
fn a_worker_that_dies_is_no_clean_result() {
    let place = Place::new("quiet.c");
    fs::write(place.path("seeds"), "a").unwrap();
    fs::create_dir_all(place.path("corpus/helper-1/queue")).unwrap();
    std::os::unix::fs::symlink("/dev/full", place.path("corpus/helper-1/.fresh")).unwrap();
    let output = place.fuzz(&["--jobs", "2", "--executions", "4000"]).output().unwrap();
    let shown = text(&output);
    assert_eq!(output.status.code(), Some(5), "{shown}");
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("1 of the other processes of -j failed before the end"), "{shown}");
}
