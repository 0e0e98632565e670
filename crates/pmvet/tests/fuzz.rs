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
        self.campaign(options, target).output().unwrap()
    }

    fn campaign(&self, options: &[&str], target: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pmvet"));
        command.current_dir(self.folder.path()).args(["fuzz", "--quiet", "--corpus", "corpus", "--timeout", "30s"]);
        command.args(options).arg("--").arg(&self.program).arg(self.path("pool")).args(target).stdin(Stdio::null());
        command
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
    let second = place.fuzz(&["--seeds", "seed", "--executions", "700", "--seed", "2"], &[]);
    assert!(text(&second).contains("was torn when an earlier campaign was killed"), "{}", text(&second));
    let after = names(&place.path("corpus/queue"));
    assert!(before.iter().all(|name| after.contains(name)));
    assert!(fs::read(place.path("corpus/images.jsonl")).unwrap().starts_with(&images));
}

#[test]
fn a_corpus_and_a_test_case_get_smaller() {
    let place = Place::new();
    place.fuzz(&["--seeds", "seed", "--executions", "400"], &[]);
    let counted = |corpus: &str| {
        let place = &place;
        let mut command = Command::new(env!("CARGO_BIN_EXE_pmvet"));
        command.current_dir(place.folder.path()).args(["fuzz", "--quiet", "--corpus", corpus, "--paths-of", corpus]);
        let shown = text(&command.arg("--").arg(&place.program).arg(place.path("pool")).output().unwrap());
        shown.split_once(" PM paths, ").map(|(_, counts)| counts.to_owned()).unwrap_or(shown)
    };
    let output = place.fuzz(&["--cmin", "fewer"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let [all, fewer] = ["corpus", "fewer"].map(|corpus| names(&place.path(corpus).join("queue")).len());
    assert!(fewer > 0 && fewer < all, "{fewer} of {all}");
    assert_eq!(counted("fewer"), counted("corpus"), "the same is covered");
    let again = place.fuzz(&["--cmin", "fewer"], &[]);
    assert_eq!(again.status.code(), Some(2), "a corpus is not overwritten: {}", text(&again));

    // A test case that fails, with words around it that do not matter.
    let crash = names(&place.path("corpus/crashes")).remove(0);
    let (_, image) = crash.split_once("img:").unwrap();
    let padded = format!("id:000000,img:{}", image.split_once(',').unwrap().0);
    let input = fs::read(place.path("corpus/crashes").join(&crash)).unwrap();
    fs::write(place.path(&padded), [b"so\n".repeat(20), input, b"what\n".repeat(20)].concat()).unwrap();
    let output = place.fuzz(&["--tmin", &padded], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let smaller = place.path("corpus/smaller");
    let small = fs::read(smaller.join(names(&smaller).remove(0))).unwrap();
    assert!(small.len() < 160 && !String::from_utf8_lossy(&small).contains("what"), "{small:?}");
    let bad = place.fuzz(&["--tmin", "seed"], &[]);
    assert_eq!(bad.status.code(), Some(2), "{}", text(&bad));
}

#[test]
fn processes_exchange_what_they_find() {
    let place = Place::new();
    let first = place.fuzz(&["--seeds", "seed", "--executions", "300", "--seed", "7"], &[]);
    assert_eq!(first.status.code(), Some(1), "{}", text(&first));
    // Another campaign with nothing but that to go on: it takes over all that the first one found.
    let mut second = Command::new(env!("CARGO_BIN_EXE_pmvet"));
    second.current_dir(place.folder.path()).args(["fuzz", "--quiet", "--corpus", "other", "--exchange", "."]);
    second.args(["--seeds", "seed", "--until-finding", "--timeout", "30s"]);
    let output = second.arg("--").arg(&place.program).arg(place.path("pool")).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));

    // Helpers have corpora of their own, and end with the one that started them.
    let both = place.fuzz(&["--seeds", "seed", "--jobs", "2", "--executions", "3000"], &[]);
    assert_eq!(both.status.code(), Some(1), "{}", text(&both));
    assert!(!names(&place.path("corpus/helper-1/queue")).is_empty());
}

#[test]
fn a_set_up_may_differ_each_time() {
    let place = Place::new();
    let pool = place.path("pool");
    let setup = format!("{{ head -c 65000 /dev/zero; head -c 536 /dev/urandom; }} 1<>{}", pool.display());
    let fuzz = |options: &[&str]| place.fuzz(&[&["--seeds", "seed", "--setup", &setup], options].concat(), &[]);
    let found = fuzz(&["--jobs", "2", "--executions", "2000"]);
    assert_eq!(found.status.code(), Some(1), "{}", text(&found));
    // What it made first is what the helper, and whoever goes on, starts from.
    let root = |corpus: &str| {
        let lines = fs::read_to_string(place.path(corpus).join("images.jsonl")).unwrap();
        lines.lines().next().unwrap().to_owned()
    };
    assert_eq!(root("corpus"), root("corpus/helper-1"));
    let rebuilt = fuzz(&["--rebuild", "20"]);
    assert_eq!(rebuilt.status.code(), Some(0), "{}", text(&rebuilt));
    let other = place.fuzz(&["--seeds", "seed", "--setup", &format!("{setup}; true"), "--rebuild", "20"], &[]);
    assert_eq!(other.status.code(), Some(2), "{}", text(&other));
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
    // A file that counts as PM, and nothing is done to what it holds.
    let pools = tempfile::Builder::new().prefix("pmvet-test-").tempdir_in("/dev/shm").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_pmvet"))
        .current_dir(place.folder.path())
        .args(["fuzz", "--quiet", "--corpus", "idle", "--executions", "5", "--", "truncate", "-s", "4096"])
        .arg(pools.path().join("pool"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", text(&output));
    let bad = place.fuzz(&["--ops", "seed", "--executions", "5"], &[]);
    assert_eq!(bad.status.code(), Some(2), "{}", text(&bad));
}

#[test]
fn a_corpus_that_cannot_be_used_is_refused_and_left_alone() {
    let place = Place::new();
    let run = || place.fuzz(&["--seeds", "seed", "--executions", "100"], &[]);
    let first = run();
    assert!(matches!(first.status.code(), Some(0 | 1)), "{}", text(&first));
    let refused = |words: &[&str]| {
        let output = run();
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        words.iter().for_each(|word| assert!(text(&output).contains(word), "{word} is not in {}", text(&output)));
    };
    let (format, lines) = (place.path("corpus/format"), place.path("corpus/images.jsonl"));
    fs::write(&format, "99\n").unwrap();
    refused(&["format `99`", "--corpus", "--seeds"]);
    fs::write(&format, "1\n").unwrap();
    // A line in the middle, with whole ones after it.
    let whole = fs::read(&lines).unwrap();
    let second = whole.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    let mut damaged = whole.clone();
    damaged[second] = b'?';
    fs::write(&lines, &damaged).unwrap();
    refused(&["line 2 of", "images.jsonl", "--corpus"]);
    assert_eq!(fs::read(&lines).unwrap(), damaged);
    fs::write(&lines, &whole).unwrap();
    let again = run();
    assert!(matches!(again.status.code(), Some(0 | 1)), "{}", text(&again));
    assert!(fs::read(&lines).unwrap().starts_with(&whole));
}

/// A campaign under way, which ends with the value.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn one_campaign_at_a_time_and_one_that_is_interrupted_says_so() {
    let place = Place::new();
    let mut command = place.campaign(&["--seeds", "seed", "--jobs", "2"], &[]);
    let mut running = Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let run = place.path(".pmvet/runs/latest/run.json");
    let queue = place.path("corpus/queue");
    while !run.exists() || names(&queue).is_empty() {
        assert!(running.0.try_wait().unwrap().is_none(), "the campaign has ended");
        std::thread::yield_now();
    }
    let info = |file: &Path| serde_json::from_slice::<serde_json::Value>(&fs::read(file).unwrap()).unwrap();
    let run = run.canonicalize().unwrap();
    assert_eq!(info(&run)["complete"], false);
    let second = place.fuzz(&["--seeds", "seed", "--executions", "10"], &[]);
    let words = format!("another campaign (process {}) is using it", running.0.id());
    assert!(second.status.code() == Some(2) && text(&second).contains(&words), "{}", text(&second));
    // SAFETY: a child of ours that has not been waited for.
    assert_eq!(unsafe { libc::kill(running.0.id() as i32, libc::SIGINT) }, 0);
    assert_eq!(running.0.wait().unwrap().code(), Some(130));
    let info = info(&run);
    assert!(info["complete"] == false && info["interrupted"] == "SIGINT", "{info}");
    let report = fs::read_to_string(run.with_file_name("report.json")).unwrap();
    assert!(report.contains("interrupted by SIGINT"), "{report}");
    // Its end has given the corpus free.
    let third = place.fuzz(&["--seeds", "seed", "--executions", "10"], &[]);
    assert!(matches!(third.status.code(), Some(0 | 1)), "{}", text(&third));
}
