//! However a check ends: the user's pool stays as it is, nothing is left over, the exit code says what happened, and `--resume`
//! goes on to the same findings.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pmvet_fixtures::{
    CLEAN, Check, CheckedRun, FAILS_BY_ITSELF, FOUND, INCOMPLETE, INTERRUPTED, Linked, NOTHING, TestPlace, USAGE,
    Untouched, finish, make, pair, turn, wait_until,
};

/// A program with a bug, on a pool that exists beforehand.
struct Subject {
    place: TestPlace,
    program: PathBuf,
    input: Option<Vec<u8>>,
    arguments: Vec<String>,
    pool: Untouched,
}

impl Subject {
    /// A list whose insertion links a node in before it is filled in.
    fn plist() -> Self {
        let program = make("zoo", "zoo").join("plist/bug-3");
        Self::new(program, None, |pool| vec![pool.to_str().unwrap().into(), "-n".into(), "60".into()])
    }

    fn new(program: PathBuf, input: Option<Vec<u8>>, arguments: impl Fn(&Path) -> Vec<String>) -> Self {
        let place = TestPlace::new();
        let arguments = arguments(&place.pool());
        let mut command = Command::new(&program);
        command.args(&arguments).env("PMEM_IS_PMEM_FORCE", "1").stdin(Stdio::null());
        let made = finish(command, input.as_deref()).expect("the target hangs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let pool = Untouched::new(&place.pool());
        Self { place, program, input, arguments, pool }
    }

    fn check(&self) -> Check<'_> {
        let mut command = vec![self.program.to_str().unwrap().to_owned()];
        command.extend(self.arguments.iter().cloned());
        let check = self.place.check(&["-j2"], &command);
        match &self.input {
            Some(input) => check.input(input),
            None => check,
        }
    }

    /// Everything is as it was, apart from the run's folder.
    #[track_caller]
    fn assert_unharmed(&self) {
        self.place.assert_clean(&["pool"]);
        self.pool.assert();
    }

    /// How much the run has kept so far, in bytes. Nothing before it can be resumed.
    fn progress(&self) -> Option<u64> {
        let run = self.place.run();
        run.join("run.json").exists().then(|| kept(&run))
    }

    /// Kills pmvet as soon as the run has kept so much.
    fn kill_at(&self, check: &Check<'_>, bytes: u64) {
        let mut running = check.start();
        wait_until("pmvet gets there", || running.has_ended() || self.progress().is_some_and(|now| now >= bytes));
        // It may have been faster.
        if !running.has_ended() {
            running.signal(libc::SIGKILL);
        }
        drop(running);
        self.assert_unharmed();
    }

    /// Kills a check at moments of its life, given as parts of what it keeps, then lets it go on to its end.
    fn survives_kills(&self, moments: &[f64]) {
        let check = self.check();
        let whole = check.run();
        whole.expect(FOUND, &[]);
        self.assert_unharmed();
        let (total, files) = (self.progress().unwrap(), names(&self.place.run()));
        for moment in moments {
            fs::remove_dir_all(self.place.work().join(".pmvet")).unwrap();
            self.kill_at(&check, (total as f64 * moment) as u64);
            // Some are killed a second time, on their way to the end.
            if moment.fract() > 0.5 {
                let resumed = check.clone().option(&["--resume"]);
                self.kill_at(&resumed, (total as f64 * (1.0 + moment) / 2.0) as u64);
            }
            let resumed = check.resume();
            assert_eq!(resumed.code, Some(FOUND), "killed at {moment}: {}", resumed.text());
            assert_eq!(resumed.fingerprints(), whole.fingerprints(), "killed at {moment}");
            assert_eq!(names(&self.place.run()), files, "killed at {moment}");
            self.assert_unharmed();
        }
    }
}

/// All bytes in a folder.
fn kept(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files
        .map(|file| match file.metadata() {
            Ok(found) if found.is_dir() => kept(&file.path()),
            Ok(found) => found.len(),
            Err(_) => 0,
        })
        .sum()
}

fn names(folder: &Path) -> Vec<PathBuf> {
    let mut names: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into()).collect();
    names.sort();
    names
}

/// Parts of a run between nothing and all of it, scattered but the same every time.
fn moments(count: usize) -> Vec<f64> {
    let mut state = 20_240_229_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    (0..count).map(|_| next()).collect()
}

// ---- Killed and resumed

#[test]
fn killed_at_some_moments() {
    let _turn = turn();
    Subject::plist().survives_kills(&moments(4));
}

#[test]
#[ignore = "many runs of a check; for `make soak`"]
fn killed_at_many_moments() {
    let _turn = turn();
    Subject::plist().survives_kills(&moments(20));
}

#[test]
#[ignore = "many runs of a check; for `make soak`"]
fn a_pmdk_program_killed_at_many_moments() {
    let _turn = turn();
    let generator = pmvet_fixtures::repository().join("targets/pmdk/gen.sh");
    let input = Command::new(generator).args(["mapcli-mixed", "40"]).output().unwrap().stdout;
    let program = make("targets/pmdk", "pmdk").join("mapcli");
    let arguments = |pool: &Path| vec!["hashmap_atomic".into(), pool.to_str().unwrap().into(), "42".into()];
    let subject = Subject::new(program, Some(input), arguments);
    let check = subject.check();
    let whole = check.run();
    for moment in moments(20) {
        let total = subject.progress().unwrap();
        fs::remove_dir_all(subject.place.work().join(".pmvet")).unwrap();
        subject.kill_at(&check, (total as f64 * moment) as u64);
        let resumed = check.resume();
        assert_eq!((resumed.code, resumed.fingerprints()), (whole.code, whole.fingerprints()), "killed at {moment}");
        subject.assert_unharmed();
    }
}

#[test]
fn interrupted_and_resumed() {
    let _turn = turn();
    let subject = Subject::plist();
    let check = subject.check();
    let whole = check.run();
    let tried = |run: &Path| fs::read_to_string(run.join("tried.jsonl")).map_or(0, |text| text.lines().count());
    let total = tried(&subject.place.run());
    assert!(total > 20, "only {total} recoveries: the run is too short to be interrupted");
    for (signal, part) in [(libc::SIGINT, 4), (libc::SIGTERM, 2)] {
        // One that ends before it hears of the signal shows nothing.
        let stopped = (0..10).find_map(|_| {
            fs::remove_dir_all(subject.place.work().join(".pmvet")).unwrap();
            let mut running = check.start();
            wait_until("some recoveries are done", || {
                running.has_ended() || tried(&subject.place.run()) >= total / part
            });
            if running.has_ended() {
                return None;
            }
            running.signal(signal);
            let stopped = CheckedRun::new(&subject.place, &running.end());
            Some(stopped).filter(|stopped| stopped.code != Some(FOUND))
        });
        stopped.expect("a run that is interrupted").expect(INTERRUPTED, &["interrupted", "--resume"]);
        let done = tried(&subject.place.run());
        assert!((total / part..total).contains(&done), "{done} of {total} recoveries were done");
        subject.assert_unharmed();
        let resumed = check.resume();
        resumed.expect(FOUND, &[]);
        assert_eq!(resumed.fingerprints(), whole.fingerprints());
        subject.assert_unharmed();
    }
    // A run that has ended gives the same once more, and nothing is run for it.
    let again = check.resume();
    assert_eq!((again.code, again.fingerprints()), (whole.code, whole.fingerprints()));
}

#[test]
fn a_run_resumes_with_its_own_command_line_only() {
    let place = TestPlace::new();
    let (program, pool) = (pair(Linked::Dynamic), place.pool());
    let command =
        |n: &str| [program.to_str().unwrap().to_owned(), "run".into(), pool.to_str().unwrap().into(), n.into()];
    let recover = format!("{} strict {}", program.display(), pool.display());
    let options = ["-j1", "--recover", &recover];
    place.check(&options, &command("2")).resume().expect(USAGE, &["no run"]);
    place.check(&options, &command("2")).run().expect(FOUND, &[]);
    place.check(&options, &command("3")).resume().expect(USAGE, &["--resume", "another command line"]);
    let other = |more: &[&str], words: &[&str]| {
        let words = [&["--resume", "other options"], words].concat();
        place.check(&options, &command("2")).option(more).resume().expect(USAGE, &words);
    };
    other(&["--reorder"], &["--reorder"]);
    other(&["--recover-timeout", "3s"], &["--recover-timeout"]);
    other(&["--client", "true", "--ready-when", "file:/x"], &["--client, --ready-when"]);
    other(&["--client", "true", "--ready-when", "file:/x", "--stop", "true"], &["--client, --ready-when, --stop"]);
    other(&["--ready-when", "file:/x", "--client", "true", "--recover-client", "false"], &["--recover-client"]);
    let config = place.work().join("pmvet.toml");
    fs::write(&config, "[target]\npm = [\"/elsewhere/**\"]\n").unwrap();
    other(&[], &["the configuration file"]);
    // What is hidden may change.
    fs::write(&config, "[[suppress]]\nrule = \"flush-clean\"\nreason = \"why not\"\n").unwrap();
    place.check(&options, &command("2")).resume().expect(FOUND, &[]);
    fs::remove_file(config).unwrap();
    place.check(&options, &command("2")).resume().expect(FOUND, &[]);
    place.assert_clean(&[]);
}

// ---- Replays

#[test]
fn what_replay_takes() {
    let subject = Subject::plist();
    let checked = subject.check().run();
    checked.expect(FOUND, &[]);
    let finding = checked.errors().next().unwrap();
    for id in ["1", &finding.fingerprint, &finding.fingerprint[..8], finding.replay.as_deref().unwrap()] {
        let output = subject.place.replay(id);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(FOUND), "{id}: {text}");
        assert!(text.contains("reproduced: recovery "), "{id}: {text}");
    }
    for (id, words) in [("99", "no finding `99`"), ("zzzz", "no finding `zzzz`"), ("", "no finding")] {
        let output = subject.place.replay(id);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(USAGE) && text.contains(words), "{id}: {text}");
    }
    let output = TestPlace::new().replay("1");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(USAGE) && text.contains("no run"), "{text}");
    subject.assert_unharmed();
}

// ---- Exit codes

#[test]
fn what_cannot_be_checked() {
    let place = TestPlace::new();
    let (program, pool) = (pair(Linked::Dynamic), place.pool());
    let (program, pool) = (program.to_str().unwrap(), pool.to_str().unwrap());
    place.check(&[], &["/bin/true"]).run().expect(NOTHING, &["nothing was analysed", "--pm"]);
    place.check(&[], &[program, "volatile", pool]).run().expect(NOTHING, &["nothing was analysed", "no PM file"]);
    let made = Command::new(program).args(["run", pool]).status().unwrap();
    assert!(made.success());
    place.check(&[], &[program, "strict", pool]).run().expect(NOTHING, &["nothing was analysed", "no failure point"]);
    place.check(&[], &[program, "never", pool]).run().expect(FAILS_BY_ITSELF, &["target itself fails", "1"]);
    place.check(&[], &["/bin/sh", "-c", "kill -SEGV $$"]).run().expect(FAILS_BY_ITSELF, &["SIGSEGV"]);
    place.check(&[], &["/no/such/program"]).run().expect(USAGE, &["no such program"]);
    place.assert_clean(&["pool"]);
}

#[test]
fn wrong_usage() {
    let place = TestPlace::new();
    let (program, pool) = (pair(Linked::Dynamic), place.pool());
    let command = [program.to_str().unwrap(), "run", pool.to_str().unwrap()];
    let cases: &[(&[&str], &str)] = &[
        (&["--no-such-option"], "--no-such-option"),
        (&["--shard", "5/4"], "5/4"),
        (&["--shard", "0/4"], "0/4"),
        (&["--budget", "0"], "--budget"),
        (&["--budget", "soon"], "soon"),
        (&["--recover-timeout", "-1"], "-1"),
        (&["-j", "0"], "0"),
        (&["--sample", "0"], "0"),
        (&["--at", "moon"], "moon"),
        (&["--pm", "[a"], "--pm"),
        (&["--in-place", "--setup", "true"], "--in-place"),
        (&["--config", "missing.toml"], "missing.toml"),
        (&["--baseline", "missing.json"], "missing.json"),
        (&["--suppressions", "missing.toml"], "missing.toml"),
    ];
    for (options, word) in cases {
        place.check(options, &command).run().expect(USAGE, &[word]);
    }
    let output = finish(place.pmvet(&["check"]), None).unwrap();
    assert_eq!(output.status.code(), Some(USAGE), "a program is needed");
    place.assert_clean(&[]);
}

#[test]
fn a_budget_that_ends_early() {
    let place = TestPlace::new();
    let (program, pool) = (pair(Linked::Dynamic), place.pool());
    let command = [program.to_str().unwrap(), "run", pool.to_str().unwrap(), "2"];
    let recover = format!("{} strict {}", program.display(), pool.display());
    // The recorded run counts.
    let options = ["-j2", "--recover", &recover, "--budget", "1ms"];
    place.check(&options, &command).run().expect(FAILS_BY_ITSELF, &["did not end within the budget of 1ms"]);
    // One failure point out of all; then the rest has no time.
    let lenient = format!("{} lenient {}", program.display(), pool.display());
    place.check(&["-j2", "--recover", &lenient, "--sample", "1"], &command).run().expect(CLEAN, &[]);
    let options = ["-j2", "--recover", &lenient, "--budget", "1ms"];
    let short = place.check(&options, &command).resume();
    short.expect(CLEAN, &[]);
    assert!(short.stdout.contains("budget left no time"), "{}", short.stdout);
    place.check(&options, &command).option(&["--require-complete"]).resume().expect(INCOMPLETE, &[]);
    let enough = ["-j2", "--recover", &lenient, "--budget", "1h", "--require-complete"];
    place.check(&enough, &command).resume().expect(CLEAN, &[]);
    // A bug that is known is told, however little time there is.
    place.check(&["-j2", "--recover", &recover, "--sample", "1"], &command).run().expect(FOUND, &[]);
    let options = ["-j2", "--recover", &recover, "--budget", "1ms"];
    let short = place.check(&options, &command).resume();
    short.expect(FOUND, &[]);
    assert!(short.stdout.contains("budget left no time"), "{}", short.stdout);
    // With time enough the same run goes on to the bug.
    let enough = ["-j2", "--recover", &recover, "--budget", "1h"];
    let long = place.check(&enough, &command).option(&["--require-complete"]).resume();
    long.expect(FOUND, &[]);
    assert_eq!(long.errors().count(), 1, "{}", long.text());
    place.assert_clean(&[]);
}
