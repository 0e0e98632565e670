//! A command line of an engine, and what came of it.

use std::ffi::OsString;
use std::fs::File;
use std::io::BufReader;
use std::process::{Command, Output, Stdio};

use pmvet_findings::{Evidence, Finding, Severity, jsonl};

use crate::{Running, TestPlace, both_cores, finish, program};

/// A command line of `pmvet check`, or of another engine.
#[derive(Debug, Clone)]
pub struct Check<'a> {
    pub(crate) place: &'a TestPlace,
    pub(crate) engine: &'static str,
    pub(crate) options: Vec<OsString>,
    pub(crate) command: Vec<OsString>,
    pub(crate) input: Option<Vec<u8>>,
    pub(crate) variables: Vec<(OsString, OsString)>,
}

impl Check<'_> {
    /// What the target reads, through a pipe.
    pub fn input(mut self, bytes: &[u8]) -> Self {
        self.input = Some(bytes.into());
        self
    }

    /// Adds words of the command line before `--`.
    pub fn option(mut self, words: &[&str]) -> Self {
        self.options.extend(words.iter().map(OsString::from));
        self
    }

    /// Sets a variable in the environment of pmvet, and so of the target.
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    fn words(&self) -> Command {
        let mut command = self.place.pmvet(&[self.engine, "--quiet"]);
        command.args(self.place.pm()).args(&self.options).arg("--").args(&self.command);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs it to its end.
    pub fn run(&self) -> CheckedRun {
        let output = finish(self.words(), self.input.as_deref()).expect("pmvet hangs");
        CheckedRun::new(self.place, &output)
    }

    /// Starts it. Whoever calls this ends it.
    pub fn start(&self) -> Running {
        let mut command = self.words();
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::new(command, self.input.as_deref())
    }

    /// Goes on with the last run.
    pub fn resume(&self) -> CheckedRun {
        self.clone().option(&["--resume"]).run()
    }
}

/// What came of a check.
#[derive(Debug)]
pub struct CheckedRun {
    /// pmvet's exit code; nothing if a signal ended it.
    pub code: Option<i32>,
    /// All of pmvet's standard output.
    pub stdout: String,
    /// All of pmvet's standard error.
    pub stderr: String,
    /// As the run's folder has them.
    pub findings: Vec<Finding>,
}

impl CheckedRun {
    /// Takes the findings from the newest run in `place`; none if it has no run.
    pub fn new(place: &TestPlace, output: &Output) -> Self {
        let findings = match File::open(place.run().join("findings.jsonl")) {
            Ok(file) => jsonl::read(BufReader::new(file)).map(|finding| finding.expect("a whole finding")).collect(),
            Err(_) => Vec::new(),
        };
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            findings,
        }
    }

    /// Those with a witness.
    pub fn errors(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.severity == Severity::Error)
    }

    /// Those without a witness that may be bugs.
    pub fn warnings(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.severity == Severity::Warning)
    }

    /// What identifies the findings, sorted.
    pub fn fingerprints(&self) -> Vec<(String, String)> {
        let mut all: Vec<_> = self.findings.iter().map(|f| (f.fingerprint.clone(), f.title.clone())).collect();
        all.sort();
        all
    }

    /// All that a failed assertion should say.
    pub fn text(&self) -> String {
        let outcome = |finding: &Finding| match &finding.evidence {
            Evidence::Crash { recovery, .. } => format!(", recovery {}", recovery.outcome),
            _ => String::new(),
        };
        let findings: Vec<String> = self.findings.iter().map(|f| format!("{}{}\n", line(f), outcome(f))).collect();
        format!("exit code {:?}\n{}{}", self.code, findings.concat(), self.stderr)
    }

    /// Asserts the exit code, that standard error has all these words, and that pmvet did not panic.
    #[track_caller]
    pub fn expect(&self, code: i32, words: &[&str]) -> &Self {
        assert_eq!(self.code, Some(code), "{}", self.text());
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is not in: {}", self.stderr);
        }
        let panicked = self.stderr.contains("panicked") || self.stderr.contains("RUST_BACKTRACE");
        assert!(!panicked, "{}", self.stderr);
        self
    }
}

/// A finding in one line.
pub fn line(finding: &Finding) -> String {
    let place = finding.places.first().and_then(|place| place.frame()).map_or("nowhere".into(), ToString::to_string);
    format!("{} {}: {} [{place}]", finding.severity.name(), finding.rule, finding.title)
}

/// Runs pmvet on programs that lock themselves up if they are stopped, that retry for ever, that are interrupted, that have many
/// threads. It must end as it should each time, and leave nothing behind.
pub fn on_awkward_programs(words: &[&str], as_it_should: impl Fn(&CheckedRun) -> bool + Sync) {
    let (awkward, crowd) = (program("awkward"), program("crowd"));
    // Signals have a test of their own, in `race_programs`.
    let cases = [(&awkward, "deadlock"), (&awkward, "retry"), (&crowd, "crowd")];
    both_cores(&cases, |(program, mode)| {
        let place = TestPlace::new();
        let mut command = place.pmvet(words);
        command.args(place.pm());
        command.arg("--").arg(program).arg(place.pool()).arg(mode);
        let found = CheckedRun::new(&place, &finish(command, None).expect("pmvet hangs"));
        place.assert_clean(&[]);
        if as_it_should(&found) { Ok(()) } else { Err(format!("--- {mode}: {}{}", found.text(), found.stdout)) }
    });
}
