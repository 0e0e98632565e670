//! Commands that look after runs, findings and the configuration: `runs`, `baseline`, `suppress`, `init`. What they do, and what they say
//! when they cannot: bad input, an interrupt, a full disk, a folder that is read-only.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

const PMVET: &str = env!("CARGO_BIN_EXE_pmvet");
const FOUND: i32 = 1;
const USAGE: i32 = 2;
const FAILS_BY_ITSELF: i32 = 3;
const NOTHING: i32 = 4;
const INTERNAL: i32 = 70;
const INTERRUPTED: i32 = 130;

/// A program of the zoo, which `make zoo` has built.
fn zoo(program: &str) -> String {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let path = repository.join("target/zoo").join(program);
    let output = Command::new("make")
        .args(["-s", "-C"])
        .arg(repository.join("zoo"))
        .arg(format!("OUT={}", repository.join("target/zoo").display()))
        .arg(&path)
        .env_remove("MAKEFLAGS")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path.into_os_string().into_string().unwrap()
}

/// A folder to work in, which is no PM.
struct Place(TempDir);

#[derive(Debug)]
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    #[track_caller]
    fn expect(&self, code: i32, words: &[&str]) -> &Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        for word in words {
            assert!(self.out.contains(word) || self.err.contains(word), "no `{word}` in {self:?}");
        }
        self
    }
}

impl Place {
    fn new() -> Self {
        Self(tempfile::Builder::new().prefix("pmvet-keep").tempdir_in("/var/tmp").unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    fn command(&self, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(words).current_dir(self.path()).stdin(Stdio::null());
        command
    }

    fn pmvet(&self, words: &[&str]) -> Said {
        let output = self.command(PMVET, words).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Said { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// A run with an error, in a second or two.
    fn with_finding() -> Self {
        let place = Self::new();
        let program = zoo("undo_btree/bug-3");
        place.check(&program).expect(FOUND, &["error[recovery-failure]"]);
        place
    }

    fn check(&self, program: &str) -> Said {
        self.pmvet(&["check", "--quiet", "--pm", "pool", "--", program, "pool", "-n", "20"])
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.file(folder)).unwrap().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// Runs a shell command with `disk/` as a full disk, or `disk/` read-only. Nothing where that cannot be mounted.
fn on_a_disk(place: &Place, fill: bool, line: &str) -> Option<Said> {
    on_a_disk_with(place, "true", fill, line)
}

/// The same with a disk on which another command has put something before.
fn on_a_disk_with(place: &Place, before: &str, fill: bool, line: &str) -> Option<Said> {
    fs::create_dir_all(place.file("disk")).unwrap();
    // A page for each name, so that files can be made and nothing be written to them.
    let spoil = match fill {
        true => "cat /dev/zero >disk/rest 2>/dev/null",
        false => "mount -o remount,ro disk || exit 99",
    };
    let script = format!("mount -t tmpfs -o size=8m none disk || exit 99; {before} || exit 98; {spoil}; exec {line}");
    let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    let rights: &[&str] = if is_root { &["-m"] } else { &["-r", "-m"] };
    let output = place.command("unshare", &[rights, &["sh", "-c", &script]].concat()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = Said { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) };
    let mounted = !matches!(said.code, None | Some(99)) && !said.err.starts_with("unshare:");
    if !mounted {
        eprintln!("not tested: {}", said.err);
    }
    mounted.then_some(said)
}

// ---- suppress

#[test]
fn a_suppressed_finding_is_hidden_and_the_file_keeps_its_comments() {
    let place = Place::with_finding();
    let before = "# mine, with a comment\n[target] # and one here\npm = [\"pool\"]";
    fs::write(place.file("pmvet.toml"), before).unwrap();
    let said = place.pmvet(&["suppress", "1", "--reason", "a \"known\" \\ one"]);
    said.expect(0, &["[[suppress]]", "rule = \"recovery-failure\"", "added to pmvet.toml", "hides"]);
    let after = fs::read_to_string(place.file("pmvet.toml")).unwrap();
    assert!(after.starts_with(before) && after.contains("reason = \"a \\\"known\\\" \\\\ one\""), "{after}");
    // It is there already, whoever asks again.
    place.pmvet(&["suppress", "1", "--reason", "again"]).expect(0, &["suppression 1 hides it already"]);
    assert_eq!(fs::read_to_string(place.file("pmvet.toml")).unwrap(), after);
    let again = place.check(&zoo("undo_btree/bug-3"));
    assert!(!again.out.contains("error[recovery-failure]"), "{again:?}");
    // Without a file, one is made.
    fs::remove_file(place.file("pmvet.toml")).unwrap();
    let first = place.names(".pmvet/runs").into_iter().next().unwrap();
    place
        .pmvet(&["suppress", "1", "--reason", "x", "--run", &first, "--config", "new.toml"])
        .expect(0, &["added to new.toml"]);
}

#[test]
fn a_suppression_that_cannot_be_written_says_why() {
    let place = Place::new();
    place.pmvet(&["suppress", "1", "--reason", "x"]).expect(USAGE, &["there is no run"]);
    let place = Place::with_finding();
    place.pmvet(&["suppress", "1"]).expect(USAGE, &["--reason"]);
    place.pmvet(&["suppress", "1", "--reason", "  "]).expect(USAGE, &["--reason is empty"]);
    place.pmvet(&["suppress", "99", "--reason", "x"]).expect(USAGE, &["no finding `99`"]);
    for (broken, word) in
        [("[target\n", "pmvet.toml:1"), ("suppress = []\n", "write there"), ("[[sync]]\n", "[[sync]]")]
    {
        fs::write(place.file("pmvet.toml"), broken).unwrap();
        place.pmvet(&["suppress", "1", "--reason", "x"]).expect(USAGE, &[word]);
        assert_eq!(fs::read_to_string(place.file("pmvet.toml")).unwrap(), broken);
    }
    for (fill, error) in [(true, "No space left on device"), (false, "Read-only file system")] {
        let line = format!("{PMVET} suppress 1 --reason x --config disk/my.toml");
        let Some(said) = on_a_disk(&place, fill, &line) else { return };
        said.expect(INTERNAL, &[error, "disk/my.toml"]);
    }
}

// ---- baseline

#[test]
fn a_baseline_is_written_used_and_updated() {
    let place = Place::with_finding();
    let program = zoo("undo_btree/bug-3");
    place.pmvet(&["baseline", "write"]).expect(0, &["pmvet-baseline.json", "known finding"]);
    let with =
        ["check", "--quiet", "--pm", "pool", "--baseline", "pmvet-baseline.json", "--", &program, "pool", "-n", "20"];
    assert_eq!(place.pmvet(&with).code, Some(0));
    place.pmvet(&["baseline", "write"]).expect(USAGE, &["exists", "baseline update"]);
    // A correct program has none of them any more.
    place.check(&zoo("undo_btree/clean"));
    let said = place.pmvet(&["baseline", "update"]);
    said.expect(0, &["- recovery-failure"]);
    // Nothing new is taken for known unless asked to.
    place.check(&program);
    place.pmvet(&["baseline", "update", "--no-new"]).expect(0, &["new, not added: recovery-failure"]);
    assert_eq!(place.pmvet(&with).code, Some(FOUND));
    place.pmvet(&["baseline", "update"]).expect(0, &["+ recovery-failure"]);
    assert_eq!(place.pmvet(&with).code, Some(0));
}

#[test]
fn a_baseline_that_cannot_be_written_says_why() {
    let place = Place::with_finding();
    place.pmvet(&["baseline"]).expect(USAGE, &["write", "update"]);
    place.pmvet(&["baseline", "update"]).expect(USAGE, &["no such baseline", "baseline write"]);
    place.pmvet(&["baseline", "write", "--run", "none"]).expect(USAGE, &["no run `none`"]);
    fs::write(place.file("text"), "no baseline").unwrap();
    place.pmvet(&["baseline", "update", "text"]).expect(USAGE, &["text", "neither a baseline"]);
    assert_eq!(fs::read_to_string(place.file("text")).unwrap(), "no baseline");
    for (fill, error) in [(true, "No space left on device"), (false, "Read-only file system")] {
        let Some(said) = on_a_disk(&place, fill, &format!("{PMVET} baseline write disk/known.json")) else { return };
        said.expect(INTERNAL, &[error, "disk/known.json"]);
    }
}

// ---- runs

#[test]
fn runs_are_listed_pinned_and_removed() {
    let place = Place::new();
    place.pmvet(&["runs"]).expect(0, &["no runs"]);
    let (bug, clean) = (zoo("undo_btree/bug-3"), zoo("undo_btree/clean"));
    for program in [&bug, &clean, &clean, &clean] {
        place.check(program);
    }
    let listed = place.pmvet(&["runs"]);
    listed.expect(0, &["1E", "undo_btree/bug-3 pool -n 20", "(the last)", "4 runs"]);
    let json: serde_json::Value = serde_json::from_str(&place.pmvet(&["runs", "--format", "json"]).out).unwrap();
    let id = |row: usize| json[row]["run"].as_str().unwrap().to_owned();
    assert!(json[3]["findings"].as_u64() > Some(0) && json[3]["bytes"].as_u64() > Some(1000), "{json}");
    // A baseline keeps the run that it is from; a run can be pinned, too, and one that was renamed is wanted.
    place.pmvet(&["baseline", "write", "--run", &id(3)]).expect(0, &[]);
    place.pmvet(&["runs", "--pin", &id(2)]).expect(0, &["pinned"]);
    fs::rename(place.file(".pmvet/runs").join(id(1)), place.file(".pmvet/runs/before")).unwrap();
    place.pmvet(&["runs", "--prune", "--keep", "0"]).expect(0, &["removed no run", "pinned: baseline", "named by you"]);
    place.pmvet(&["runs", "--unpin", &id(2)]).expect(0, &[]);
    place.pmvet(&["runs", "--prune", "--older-than", "30d"]).expect(0, &["removed no run"]);
    place.pmvet(&["runs", "--prune", "--keep", "0"]).expect(0, &[&format!("removed run {}", id(2)), "3 runs"]);
    let left = place.names(".pmvet/runs");
    assert!(
        left.contains(&"before".into()) && left.contains(&id(0)) && left.contains(&id(3)) && left.len() == 4,
        "{left:?}"
    );
}

#[test]
fn a_report_compares_a_run_with_those_before() {
    let place = Place::new();
    let source = zoo("undo_btree/bug-3");
    // One command, and a program that is mended between two of its runs.
    let program = place.file("program").into_os_string().into_string().unwrap();
    let check = |source: &str| {
        fs::copy(source, &program).unwrap();
        place.check(&program)
    };
    check(&source).expect(FOUND, &[]);
    place.check(&source).expect(FOUND, &[]);
    check(&zoo("undo_btree/clean")).expect(0, &[]);
    place.pmvet(&["report", "--export-html", "page.html"]).expect(0, &[]);
    let page = fs::read_to_string(place.file("page.html")).unwrap();
    let (_, data) = page.split_once("id=\"data\">").unwrap();
    let data: serde_json::Value = serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap();
    let rows = data["trend"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "the other command is another story: {rows:?}");
    assert!(rows[0]["error"].as_u64() > Some(0) && rows[1]["error"] == 0, "{rows:?}");
    assert!(rows[1]["gone"].as_u64() > Some(0) && rows[1]["new"] == 0, "{rows:?}");
}

#[test]
fn engines_keep_runs_below_the_limit() {
    let place = Place::new();
    let clean = zoo("undo_btree/clean");
    fs::write(place.file("pmvet.toml"), "[runs]\nlimit = \"1KiB\"\n").unwrap();
    let run = |quiet: &[&str]| {
        place.pmvet(&[&["check", "--pm", "pool"], quiet, &["--", &clean, "pool", "-n", "20"]].concat())
    };
    run(&["--quiet"]).expect(0, &[]);
    let first = place.names(".pmvet/runs")[0].clone();
    run(&[]).expect(0, &[&format!("removed run {first}"), "to stay below 1.0 KiB", "[runs] limit"]);
    assert_eq!(place.names(".pmvet/runs").len(), 2, "one run, and `latest`");
    place.pmvet(&["show", "1"]).expect(USAGE, &["no finding"]);
    fs::write(place.file("pmvet.toml"), "[runs]\nlimit = \"none\"\n").unwrap();
    run(&["--quiet"]).expect(0, &[]);
    assert_eq!(place.names(".pmvet/runs").len(), 3);
    fs::write(place.file("pmvet.toml"), "[runs]\nlimit = \"much\"\n").unwrap();
    place.pmvet(&["runs", "--prune"]).expect(USAGE, &["pmvet.toml:2", "much"]);
}

#[test]
fn runs_on_a_full_or_read_only_disk_can_be_listed_and_the_rest_is_said() {
    let place = Place::new();
    let clean = zoo("undo_btree/clean");
    (0..2).for_each(|_| drop(place.check(&clean)));
    let first = place.names(".pmvet/runs")[0].clone();
    let both = format!("cp -a .pmvet/runs disk/ && {PMVET} runs --runs disk/runs --pin {first} >/dev/null");
    let runs = format!("{PMVET} runs --runs disk/runs");
    let on_disk = |before: &str, fill, rest: &str| on_a_disk_with(&place, before, fill, &format!("{runs} {rest}"));
    let copied = "cp -a .pmvet/runs disk/";
    for fill in [true, false] {
        let Some(said) = on_disk(copied, fill, "") else { return };
        said.expect(0, &[&first, "2 runs"]);
    }
    let read_only = "Read-only file system";
    on_disk(copied, true, &format!("--pin {first}")).unwrap().expect(INTERNAL, &["No space left on device", &first]);
    on_disk(copied, false, &format!("--pin {first}")).unwrap().expect(INTERNAL, &[read_only, &first]);
    on_disk(&both, false, &format!("--unpin {first}")).unwrap().expect(INTERNAL, &[read_only, &first]);
    on_disk(copied, false, "--prune --keep 0").unwrap().expect(INTERNAL, &["cannot remove", read_only, &first]);
    // Room is made where there is none.
    on_disk(copied, true, "--prune --keep 0").unwrap().expect(0, &["removed run", &first, "1 run,"]);
}

#[test]
fn runs_that_cannot_be_removed_are_named() {
    let place = Place::new();
    place.pmvet(&["runs", "--keep", "1"]).expect(USAGE, &["--prune"]);
    place.pmvet(&["runs", "--prune", "--older-than", "soon"]).expect(USAGE, &["soon", "30d"]);
    place.pmvet(&["runs", "--pin", "none"]).expect(USAGE, &["no run `none`"]);
    place.pmvet(&["runs", "--pin", "../.."]).expect(USAGE, &["no run `../..`"]);
    fs::write(place.file("file"), "").unwrap();
    place.pmvet(&["runs", "--runs", "file"]).expect(INTERNAL, &["file"]);
    // What is no run is left alone.
    fs::create_dir_all(place.file("mine/20260101-000000")).unwrap();
    fs::write(place.file("mine/20260101-000000/thesis"), "long").unwrap();
    place.pmvet(&["runs", "--runs", "mine", "--prune", "--keep", "0"]).expect(0, &["removed no run"]);
    assert!(place.file("mine/20260101-000000/thesis").exists());
}

// ---- init

#[test]
fn a_proposal_is_all_that_vet_needs() {
    let place = Place::new();
    fs::create_dir(place.file("data")).unwrap();
    let program = zoo("undo_btree/bug-3");
    let said = place.pmvet(&["init", "--", &program, "data/pool", "-n", "20"]);
    said.expect(0, &["[target]", "pm = [\"data/pool\"]", "# One thread", "# recover ="]);
    assert!(place.names("data").is_empty() && place.names(".") == ["data"], "everything is private");
    place.pmvet(&["init", "--write", "--", &program, "data/pool", "-n", "20"]).expect(0, &["wrote pmvet.toml"]);
    assert_eq!(fs::read_to_string(place.file("pmvet.toml")).unwrap(), said.out);
    place.pmvet(&["vet", "--budget", "60s", "--quiet"]).expect(FOUND, &["error[recovery-failure]"]);
    // It is never overwritten, whatever is there.
    fs::write(place.file("pmvet.toml"), "mine").unwrap();
    place.pmvet(&["init", "--write", "--", &program, "data/pool"]).expect(USAGE, &["pmvet.toml", "never overwritten"]);
    assert_eq!(fs::read_to_string(place.file("pmvet.toml")).unwrap(), "mine");
}

#[test]
fn a_program_that_shows_nothing_is_named() {
    let place = Place::new();
    place.pmvet(&["init"]).expect(USAGE, &["PROGRAM"]);
    place.pmvet(&["init", "--", "./none"]).expect(USAGE, &["./none"]);
    place.pmvet(&["init", "--write", "--", "true"]).expect(NOTHING, &["nothing to propose"]);
    place.pmvet(&["init", "--write", "--", "false"]).expect(FAILS_BY_ITSELF, &["fails", "exit status 1"]);
    place.pmvet(&["init", "--setup", "exit 5", "--", "true"]).expect(USAGE, &["--setup", "5"]);
    assert!(place.names(".").is_empty(), "nothing is written");
    let program = zoo("undo_btree/clean");
    for (fill, error) in [(true, "No space left on device"), (false, "Read-only file system")] {
        let line = format!("{PMVET} init --write --config disk/my.toml -- {program} pool -n 5");
        let Some(said) = on_a_disk(&place, fill, &line) else { return };
        said.expect(INTERNAL, &[error, "disk/my.toml"]);
    }
}

#[test]
fn an_interrupt_ends_it_and_leaves_nothing() {
    let place = Place::new();
    // A time that no other test sleeps for, to know the process by.
    let time = format!("1000.{}", std::process::id());
    let words = ["init", "--write", "--", "sleep", &time];
    let mut init = place.command(PMVET, &words).stderr(Stdio::null()).spawn().unwrap();
    let wanted = format!("sleep\0{time}\0");
    let runs = || {
        let lines =
            fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
        lines.into_iter().any(|line| line == wanted.as_bytes())
    };
    while !runs() {
        assert!(init.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    let pid = init.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert_eq!(init.wait().unwrap().code(), Some(INTERRUPTED));
    assert!(place.names(".").is_empty(), "{:?}", place.names("."));
}

#[test]
fn an_interrupt_ends_whatever_waits_for_a_file() {
    let place = Place::with_finding();
    let fifo = place.file("pipe");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    fs::create_dir_all(place.file("others/20260101-000000")).unwrap();
    fs::hard_link(&fifo, place.file("others/20260101-000000/run.json")).unwrap();
    let before = (place.names("."), place.names(".pmvet/runs"));
    let commands: [&[&str]; 3] = [
        &["baseline", "update", "pipe"],
        &["suppress", "1", "--reason", "x", "--config", "pipe"],
        &["runs", "--runs", "others"],
    ];
    for (words, signal) in commands.into_iter().zip(["-INT", "-TERM", "-HUP"]) {
        let mut waits = place.command(PMVET, words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // A pipe can be opened in this way once somebody is about to read it.
        let nonblocking = || fs::File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&fifo);
        let _writer = loop {
            assert!(waits.try_wait().unwrap().is_none(), "{words:?} ended by itself");
            match nonblocking() {
                Ok(writer) => break writer,
                Err(_) => std::thread::yield_now(),
            }
        };
        assert!(Command::new("kill").args([signal, &waits.id().to_string()]).status().unwrap().success());
        let output = waits.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(INTERRUPTED), "{words:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "pmvet: interrupted\n", "{words:?}");
    }
    assert_eq!((place.names("."), place.names(".pmvet/runs")), before, "nothing is left");
}
