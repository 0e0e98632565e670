//! Runs test cases outside the fuzzer, without instrumentation. Also `pmvet replay` of a test case.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pmvet_engines::fuzz::campaign::FailedCase;
use pmvet_engines::fuzz::case::Case;
use pmvet_engines::fuzz::content::PmContent;
use pmvet_engines::fuzz::failed_cases::case_name;
use pmvet_engines::fuzz::runner::lay_out;
use pmvet_engines::fuzz::store::ImageStore;
use pmvet_findings::{Finding, Outcome, Recovery};
use pmvet_target::launch::{pm_variables, signal_name};
use pmvet_target::sandbox::{self, Capture, Output, Overlay, SandboxedEnd, SandboxedProgram, SandboxedRun, Unwinder};
use pmvet_target::sparse;
use serde::{Deserialize, Serialize};

use super::start::FuzzStart;
use crate::exit::{Error, Exit};
use crate::run_folder::{RunFolder, Text, texts, words};

/// How much of a program's output a finding shows.
const TAIL: usize = 2 << 10;
/// The file, in the folder of a run, with the test cases of its findings.
const FILE: &str = "cases.json";

/// How a test case is run.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NativeRuns {
    executable: Text,
    arguments: Vec<Text>,
    #[serde(with = "pmvet_events::paths::as_text")]
    files: Vec<PathBuf>,
    #[serde(with = "pmvet_events::paths::as_text")]
    input: Option<PathBuf>,
    timeout: Duration,
    bytes: u64,
}

impl NativeRuns {
    pub(super) fn from_start(start: &FuzzStart) -> Self {
        let target = &start.target;
        Self {
            executable: Text(start.workload.program.executable.clone().into()),
            arguments: texts(&start.workload.program.arguments),
            files: target.files.clone(),
            input: target.input.clone(),
            timeout: target.limits.time,
            bytes: target.limits.bytes,
        }
    }

    pub(super) fn run(
        &self,
        files: &Overlay,
        content: &PmContent,
        bytes: &[u8],
        unwinder: &mut Unwinder,
    ) -> io::Result<SandboxedRun> {
        let input = Arc::new(sparse::input()?);
        input.write_all_at(bytes, 0)?;
        let mut overlay = files.above(Capture::Named);
        lay_out(&self.files, self.input.as_deref(), &mut overlay, content, &input)?;
        let (variables, arguments): (Vec<_>, _) = (pm_variables().collect(), words(&self.arguments));
        let job = SandboxedProgram {
            executable: &self.executable.0,
            variables: &variables,
            input: Some(&input),
            output: Output::Tail(TAIL),
            timeout: Some(self.timeout),
            most_bytes: self.bytes,
            most_memory: Some(self.bytes),
            usual_status: None,
            ..SandboxedProgram::new(&arguments)
        };
        sandbox::run(&job, &Mutex::new(overlay), unwinder)
    }

    /// Nothing if pmvet was interrupted.
    pub(super) fn outcome(&self, run: &SandboxedRun) -> Option<Outcome> {
        Some(match run.end {
            SandboxedEnd::Exit(status) => Outcome::Exit { status },
            SandboxedEnd::Signal(signal) => Outcome::Signal { signal, name: signal_name(signal).into() },
            SandboxedEnd::Timeout => Outcome::Hang { seconds: self.timeout.as_secs_f64().ceil() as u64 },
            SandboxedEnd::Runaway => Outcome::Signal { signal: libc::SIGXFSZ, name: signal_name(libc::SIGXFSZ).into() },
            SandboxedEnd::Interrupted => return None,
        })
    }
}

/// `cases.json`: test cases by the image name that findings use.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Cases {
    corpus: Text,
    program: NativeRuns,
    cases: BTreeMap<String, Case>,
}

impl Cases {
    /// Keeps the cases that failed. Returns the names of those that can be run again.
    pub(super) fn save(start: &FuzzStart, failures: &[FailedCase], folder: &RunFolder) -> Vec<String> {
        let cases: BTreeMap<String, Case> = failures.iter().map(|f| (case_name(&f.case), f.case.clone())).collect();
        let names = cases.keys().cloned().collect();
        if cases.is_empty() {
            return names;
        }
        let corpus = Text(start.corpus.clone().into());
        let kept = folder.keep_json(FILE, &Self { corpus, program: NativeRuns::from_start(start), cases });
        if kept { names } else { Vec::new() }
    }

    /// Keeps the cases of several campaigns in the folder of a run, with their corpus. Returns their names if there are any.
    pub(super) fn join(runs: &[PathBuf], corpus: &Path, folder: &RunFolder) -> Option<Vec<String>> {
        let open = |run: &PathBuf| File::open(run.join(FILE)).ok();
        let read = |file| serde_json::from_reader::<_, Self>(io::BufReader::new(file)).ok();
        let all = runs.iter().filter_map(open).filter_map(read).reduce(|mut all, more| {
            all.cases.extend(more.cases);
            all
        });
        let all = Self { corpus: Text(corpus.into()), ..all? };
        folder.keep_json(FILE, &all).then(|| all.cases.into_keys().collect())
    }
}

/// The test cases that a run has kept, if it is a campaign's.
fn kept(folder: &RunFolder) -> Result<Option<Cases>, Error> {
    let Ok(file) = File::open(folder.file(FILE)) else { return Ok(None) };
    let bad = |e: serde_json::Error| Error::Run(format!("{FILE} of this run cannot be used: {e}"));
    serde_json::from_reader(io::BufReader::new(file)).map(Some).map_err(bad)
}

/// Whether the finding with this image is that of a test case.
pub(crate) fn has_case(folder: &RunFolder, image: &str) -> Result<bool, Error> {
    Ok(kept(folder)?.is_some_and(|kept| kept.cases.contains_key(image)))
}

/// Runs the test case of a finding again. Nothing if the finding has none.
pub(crate) fn replay(
    folder: &RunFolder,
    finding: &Finding,
    image: &str,
    recorded: &Recovery,
) -> Result<Option<Exit>, Error> {
    let Some(saved) = kept(folder)? else { return Ok(None) };
    let Some(case) = saved.cases.get(image) else { return Ok(None) };
    let corpus = PathBuf::from(&saved.corpus.0);
    let lost = |e: io::Error| Error::Run(format!("the corpus in {} does not have this image: {e}", corpus.display()));
    // Opened for reading only, since another campaign may be using the corpus.
    let content = ImageStore::open_for_reading(&corpus).and_then(|mut store| store.get(case.image)).map_err(lost)?;
    let files = Overlay::new(Capture::Writable);
    let run = saved.program.run(&files, &content, &case.input, &mut Unwinder::default());
    let run = run.map_err(|source| Error::Output { action: "run", what: "the test case".into(), source })?;
    let Some(outcome) = saved.program.outcome(&run) else { return Ok(Some(Exit::Interrupted)) };
    println!("{}: {}", finding.rule, finding.title);
    println!("image: {}", case.image);
    println!("input: {:?}", String::from_utf8_lossy(&case.input));
    for line in String::from_utf8_lossy(&run.output).lines() {
        println!("  | {}", line.escape_debug());
    }
    Ok(Some(if outcome == recorded.outcome {
        println!("reproduced: the program {outcome}");
        Exit::Findings
    } else if matches!(outcome, Outcome::Exit { .. }) {
        println!("not reproduced: the program {outcome} now");
        Exit::Ok
    } else {
        println!("another failure: the program {outcome}, but {} then", recorded.outcome);
        Exit::Findings
    }))
}
