//! What the tests of scattered work share: how it is scattered, done and gathered, and what is compared.
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use serde_json::Value;

use crate::{CheckedRun, TestPlace, finish, make};

/// Work on a program of the zoo that tasks share.
#[derive(Debug, Clone, Copy)]
pub struct SharedWork {
    /// `check` or `verify`.
    pub engine: &'static str,
    /// The zoo's name of the program.
    pub program: &'static str,
    /// How many tasks share it.
    pub tasks: u32,
    /// The folder that the tasks share, below the one that pmvet is started in.
    pub shared: &'static str,
}

impl SharedWork {
    /// In a folder called `shared`.
    pub fn new(engine: &'static str, program: &'static str, tasks: u32) -> Self {
        Self { engine, program, tasks, shared: "shared" }
    }

    /// Where the engine notes what it has done.
    pub fn journal(&self) -> &'static str {
        if self.engine == "check" { "tried.jsonl" } else { "executions.jsonl" }
    }

    fn target(&self, place: &TestPlace) -> [String; 4] {
        let program = make("zoo", "zoo").join(self.program);
        [program.display().to_string(), place.pool().display().to_string(), "-n".into(), "12".into()]
    }

    /// What comes of it without any tasks.
    pub fn on_one_machine(&self, place: &TestPlace) -> CheckedRun {
        match self.engine {
            "check" => place.check(&["-j1"], &self.target(place)).run(),
            _ => place.verify(&["-j1"], &self.target(place)).run(),
        }
    }

    /// Runs `pmvet scatter` to its end.
    pub fn scatter(&self, place: &TestPlace, options: &[&str]) -> CheckedRun {
        CheckedRun::new(place, &finish(self.scattering(place, options), None).expect("pmvet hangs"))
    }

    /// The command line of `pmvet scatter`, for this work.
    pub fn scattering(&self, place: &TestPlace, options: &[&str]) -> Command {
        let tasks = self.tasks.to_string();
        let mut command = place.pmvet(&["scatter", "--engine", self.engine, "-n", &tasks, "--shared", self.shared]);
        command.args(options).args(["--", "-j1"]).args(place.pm()).arg("--").args(self.target(place));
        command
    }
}

/// `pmvet scatter WORDS`
pub fn scatter(place: &TestPlace, words: &[&str]) -> CheckedRun {
    let command = place.pmvet(&[&["scatter"], words].concat());
    CheckedRun::new(place, &finish(command, None).expect("pmvet hangs"))
}

/// `pmvet gather WORDS`
pub fn gather(place: &TestPlace, words: &[&str]) -> CheckedRun {
    let command = place.pmvet(&[&["gather"], words].concat());
    CheckedRun::new(place, &finish(command, None).expect("pmvet hangs"))
}

/// Runs the job script as Slurm would, for one task.
pub fn run_task(place: &TestPlace, shared: &str, task: u32) -> ExitStatus {
    let script = place.work().join(shared).join("job.sh");
    let mut command = Command::new("sh");
    command.arg(script).env("SLURM_ARRAY_TASK_ID", task.to_string()).current_dir("/").stdin(Stdio::null());
    finish(command, None).expect("the task hangs").status
}

/// What a run has counted, by name.
pub fn counters(run: &Path) -> BTreeMap<String, u64> {
    let report: Value = serde_json::from_slice(&fs::read(run.join("report.json")).unwrap()).unwrap();
    let counters = report["coverage"]["counters"].as_array().unwrap();
    counters.iter().map(|c| (c["name"].as_str().unwrap().into(), c["done"].as_u64().unwrap())).collect()
}

/// Rules and fingerprints, with the title and how often each was seen.
pub fn counts(checked: &CheckedRun) -> BTreeMap<String, (String, u64)> {
    let all = checked.findings.iter();
    all.map(|f| (format!("{} {}", f.rule, f.fingerprint), (f.title.clone(), f.count))).collect()
}

/// The test cases in a folder of a corpus: image and input.
pub fn cases_of(folder: &Path) -> BTreeMap<(String, Vec<u8>), String> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let case = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        let image = name.split(',').find_map(|field| field.strip_prefix("img:")).unwrap().to_owned();
        ((image, fs::read(entry.path()).unwrap()), name)
    };
    files.map(case).collect()
}

/// Test cases of tasks that the joined corpus does not have.
pub fn lost_cases(shared: &Path) -> Vec<String> {
    let mut lost = Vec::new();
    for part in ["queue", "crashes", "hangs"] {
        let joined = cases_of(&shared.join("corpus").join(part));
        for corpus in fs::read_dir(shared.join("corpora")).unwrap() {
            let cases = cases_of(&corpus.unwrap().path().join(part));
            lost.extend(cases.into_iter().filter(|(case, _)| !joined.contains_key(case)).map(|(_, name)| name));
        }
    }
    lost
}
