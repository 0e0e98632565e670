//! `pmvet fuzz --interleave`: inputs and thread schedules that make a value be read before it is persistent.
//!
//! Each turn gives one input to a worker, a `pmvet race --confirm` of its own that records a run, forces schedules as long as they cover
//! anything new, and lets recovery judge. What it has covered tells whether the input is worth more turns and mutants.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pmvet_engines::alias_coverage::Covered;
use pmvet_engines::interleave::corpus::{Corpus, Kept};
use pmvet_engines::interleave::seeds::Seeds;
use pmvet_findings::token::Token;
use pmvet_findings::{Coverage, Finding, Place, Role, Severity, jsonl};
use pmvet_target::{launch, shutdown};
use xxhash_rust::xxh3::xxh3_64;

use super::start::INPUT;
use super::{say_torn, unusable};
use crate::cli;
use crate::commands::race::Explored;
use crate::config::Config;
use crate::exit::{Error, Exit};
use crate::reporting::{self, Results};
use crate::run_folder::{RunFolder, RunInfo};
use crate::system;
use pmvet_target::Workload;

/// What one turn may take, and in how many forced runs. A worker that takes much longer is ended.
const TURN: Duration = Duration::from_secs(8);
const ROUNDS: &str = "8";
const PATIENCE: u32 = 5;
/// How long a campaign takes if nobody says.
const BUDGET: Duration = Duration::from_secs(60);
/// No turn begins with less time left, but for the first.
const LEAST: Duration = Duration::from_secs(1);
/// What is under way at the end of the budget may take so much longer, and is ended then.
const GRACE: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(10);

pub(super) fn run(arguments: &cli::Fuzz, config: Config, workload: &Workload, seeds: Seeds) -> Result<Exit, Error> {
    let started = Instant::now();
    let place = super::corpus_folder(arguments, workload).join("interleave");
    let program = fs::read(&workload.program.executable).map_or(0, |bytes| xxh3_64(&bytes));
    let (corpus, kept) = Corpus::open(&place, program).map_err(|e| unusable(&place, e))?;
    kept.torn.iter().for_each(|file| say_torn(file));
    let folder = RunFolder::create(&arguments.workload.runs)?;
    let mut info = RunInfo::new(&workload.command, &workload.program.arguments);
    folder.write_info(&info)?;
    let mut campaign = InterleaveCampaign::new(arguments, &folder, workload, corpus, (seeds, kept), started);
    campaign.take_kept_findings().map_err(|e| unusable(&place, e))?;
    let ended = campaign.run();
    info.complete = ended.is_ok() && launch::stopped_by().is_none();
    // What was found before something failed, for lack of room say, is reported all the same.
    let ended = ended.unwrap_or_else(|error| {
        folder.kept(Err(error));
        None
    });
    folder.keep_info(&info);
    campaign.clean_up();
    if let Some(exit) = ended {
        return Ok(exit);
    }
    let coverage = campaign.coverage();
    let results = Results {
        folder: &folder,
        info: &info,
        findings: campaign.findings(),
        suppress: config.suppress,
        witnesses: Default::default(),
        coverage,
        tree: None,
        engines: vec!["fuzz".into()],
        seconds: started.elapsed().as_secs_f64(),
        phases: Vec::new(),
    };
    super::report(results, arguments)
}

/// A turn under way.
struct Worker {
    child: Child,
    started: Instant,
    input: Vec<u8>,
    folder: PathBuf,
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct InterleaveCampaign<'a> {
    arguments: &'a cli::Fuzz,
    workload: &'a Workload,
    /// Of all turns.
    folder: PathBuf,
    /// Where runs are kept that found something, so that tokens lead there.
    keep: PathBuf,
    corpus: Corpus,
    seeds: Seeds,
    covered: Covered,
    found: Vec<Finding>,
    known: HashSet<String>,
    deadline: Instant,
    /// Turns that were begun, those that are over, those of them that failed, and forced runs of all.
    turns: u64,
    ended: u64,
    failed: u64,
    runs: u64,
    /// Turns that have found something but could not keep it.
    lost: u64,
    /// Turns that were ended because time was over.
    cut: usize,
    /// How the last turn that failed ended, and what it said.
    failure: Option<(Option<i32>, String)>,
}

impl<'a> InterleaveCampaign<'a> {
    fn new(
        arguments: &'a cli::Fuzz,
        folder: &RunFolder,
        workload: &'a Workload,
        corpus: Corpus,
        (mut seeds, kept): (Seeds, Kept),
        started: Instant,
    ) -> Self {
        if !arguments.reporting.quiet && !kept.covered.is_empty() {
            let (count, covered) = (kept.seeds.len(), &kept.covered);
            eprintln!(
                "pmvet: goes on with {count} inputs of earlier campaigns, which cover {} alias pairs, {} call paths, {} branches",
                covered.pairs.len(),
                covered.paths.len(),
                covered.branches.len()
            );
        }
        seeds.go_on_with(kept.seeds, kept.untried);
        Self {
            arguments,
            workload,
            folder: folder.path.join("turns"),
            keep: folder.path.parent().unwrap_or(&folder.path).into(),
            corpus,
            seeds,
            covered: kept.covered,
            found: Vec::new(),
            known: HashSet::new(),
            deadline: shutdown::deadline().unwrap_or(started + BUDGET),
            turns: 0,
            ended: 0,
            failed: 0,
            runs: 0,
            lost: 0,
            cut: 0,
            failure: None,
        }
    }

    /// Turn after turn. Returns how pmvet ends if there is nothing to report on.
    fn run(&mut self) -> Result<Option<Exit>, Error> {
        let mut workers: Vec<Worker> = Vec::new();
        loop {
            // What is under way when time is up has a little longer: its own time was cut to what was left.
            let over = self.is_over();
            if over && (self.is_done() || Instant::now() >= self.deadline + GRACE) {
                break;
            }
            let in_time = self.turns == 0 || self.left() >= LEAST;
            let may_start = !over && in_time && self.arguments.executions.is_none_or(|most| self.turns < most);
            // The first one alone: it shows whether the program works at all.
            let most = if self.ended == 0 { 1 } else { usize::from(self.arguments.jobs) };
            if may_start && workers.len() < most {
                let worker = self.start().map_err(|source| output("a worker", source))?;
                workers.push(worker);
            }
            if workers.is_empty() {
                break;
            }
            for at in (0..workers.len()).rev() {
                let late = workers[at].started.elapsed() > TURN * PATIENCE;
                let ended = workers[at].child.try_wait().map_err(|e| output("a worker", e))?;
                if ended.is_none() && !late {
                    continue;
                }
                let worker = workers.swap_remove(at);
                if let Some(exit) = self.take(worker, ended.and_then(|status| status.code()))? {
                    return Ok(Some(exit));
                }
            }
            std::thread::sleep(POLL);
        }
        self.cut = workers.len();
        if self.ended == 0 && self.cut > 0 && launch::stopped_by().is_none() {
            eprintln!("pmvet: the first turn did not end in time, so nothing was analysed: the program may hang");
            return Ok(Some(Exit::TargetFailed));
        }
        Ok(None)
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn is_over(&self) -> bool {
        self.is_done() || Instant::now() >= self.deadline
    }

    /// Nothing more is wanted.
    fn is_done(&self) -> bool {
        let least = reporting::severity(self.arguments.reporting.fail_on);
        let found = self.arguments.until_finding && self.found.iter().any(|finding| finding.severity >= least);
        found || launch::stopped_by().is_some()
    }

    /// Starts a turn.
    fn start(&mut self) -> io::Result<Worker> {
        let input = self.seeds.next_input();
        self.turns += 1;
        let folder = self.folder.join(self.turns.to_string());
        fs::create_dir_all(&folder)?;
        let folder = folder.canonicalize()?;
        let file = folder.join("input");
        fs::write(&file, &input)?;
        let left = self.left().clamp(LEAST, TURN);
        let arguments = self.arguments;
        let mut command = Command::new("/proc/self/exe");
        command.args(["race", "--confirm", "--quiet", "--rounds", ROUNDS, "--budget"]);
        command.arg(format!("{}ms", left.as_millis())).arg("--explored").arg(folder.join("explored"));
        command.arg("--runs").arg(folder.join("runs"));
        if arguments.jobs > 1 {
            command.args(["-j", "1"]);
        }
        if arguments.delay_injection {
            command.arg("--delay-injection");
        }
        let texts = [
            ("--recover", &arguments.recover),
            ("--oracle", &arguments.oracle),
            ("--setup", &arguments.workload.setup),
        ];
        for (flag, text) in texts.into_iter().filter_map(|(flag, text)| Some((flag, text.as_ref()?))) {
            command.arg(flag).arg(text);
        }
        if let Some(config) = &arguments.workload.config {
            command.arg("--config").arg(config);
        }
        for glob in &arguments.workload.pm {
            command.arg("--pm").arg(glob);
        }
        let words = self.workload.command.iter();
        let words = words.map(|word| if word == INPUT { file.clone().into_os_string() } else { word.clone() });
        command.arg("--").args(words.collect::<Vec<OsString>>());
        let errors = File::create(folder.join("errors"))?;
        command.stdin(File::open(&file)?).stdout(Stdio::null()).stderr(errors);
        system::die_with_us(&mut command);
        Ok(Worker { child: command.spawn()?, started: Instant::now(), input, folder })
    }

    /// Takes what a turn gave. Returns how pmvet ends if the first one shows that nothing can be done.
    fn take(&mut self, worker: Worker, code: Option<i32>) -> Result<Option<Exit>, Error> {
        self.ended += 1;
        let explored: Option<Explored> =
            fs::read(worker.folder.join("explored")).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let mut kept = false;
        match explored {
            Some(explored) => {
                self.runs += u64::from(explored.runs);
                let new = self.covered.add(explored.covered);
                if !new.is_empty() {
                    self.corpus.add(&worker.input, &new).map_err(|source| output("a corpus", source))?;
                }
                self.seeds.done(worker.input.clone(), !new.is_empty());
                let runs = worker.folder.join("runs");
                let found = code == Some(Exit::Findings.code().into());
                self.lost += u64::from(found && !runs.join("latest/findings.jsonl").exists());
                kept = self.take_findings(&runs)?;
                if !self.arguments.reporting.quiet {
                    let (turn, input) = (self.ended, worker.input.len());
                    eprintln!(
                        "pmvet: turn {turn}: an input of {input} bytes, {} runs: {} new alias pairs, {} new call paths, {} new branches",
                        explored.runs,
                        new.pairs.len(),
                        new.paths.len(),
                        new.branches.len()
                    );
                }
            }
            None => {
                self.failed += 1;
                let mut said = String::new();
                let _ = File::open(worker.folder.join("errors")).and_then(|mut file| file.read_to_string(&mut said));
                self.failure = Some((code, said));
            }
        }
        // A kept run may name the input in its command.
        kept &= self.workload.command.iter().any(|word| word == INPUT);
        for rest in ["runs", "explored", "errors"].iter().chain((!kept).then_some(&"input")) {
            let path = worker.folder.join(rest);
            let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
        let _ = fs::remove_dir(&worker.folder);
        // As long as nothing has worked, mutants will not either.
        Ok(match &self.failure {
            Some((code, said)) if self.ended == 1 && launch::stopped_by().is_none() => {
                eprint!("{said}");
                // A turn ends with 5 if it had to end itself.
                if matches!(code, None | Some(5)) {
                    eprintln!("pmvet: the first turn took too long and was ended: the program may hang");
                }
                Some(match code {
                    None | Some(3 | 5) => Exit::TargetFailed,
                    Some(2) => Exit::Usage,
                    Some(4) => Exit::NothingAnalysed,
                    _ => Exit::Internal,
                })
            }
            _ => None,
        })
    }

    /// Takes over what earlier campaigns have found with this build, as far as it is still there.
    fn take_kept_findings(&mut self) -> io::Result<()> {
        for finding in self.corpus.findings::<Finding>()? {
            let token = finding.replay.as_deref().map(str::parse::<Token>);
            let there = token.is_none_or(|token| token.is_ok_and(|token| self.keep.join(token.run).is_dir()));
            if there && self.known.insert(finding.fingerprint.clone()) {
                self.found.push(finding);
            }
        }
        Ok(())
    }

    /// Takes the findings of a turn. Its run is kept if any is new that can be replayed; says whether.
    fn take_findings(&mut self, runs: &Path) -> Result<bool, Error> {
        let Ok(run) = runs.join("latest").canonicalize() else { return Ok(false) };
        let Ok(file) = File::open(run.join("findings.jsonl")) else { return Ok(false) };
        let all = jsonl::read(io::BufReader::new(file)).flatten();
        let mut fresh: Vec<Finding> = all.filter(|finding| self.known.insert(finding.fingerprint.clone())).collect();
        let proven = fresh.iter().any(|finding| finding.replay.is_some());
        let kept = proven.then(|| self.keep(&run)).flatten();
        for finding in &mut fresh {
            let token = finding.replay.take().and_then(|token| token.parse::<Token>().ok());
            finding.replay = token.zip(kept.clone()).map(|(token, run)| Token { run, ..token }.to_string());
            self.corpus.add_finding(finding).map_err(|source| output("a corpus", source))?;
        }
        let kept = kept.is_some();
        self.found.extend(fresh);
        Ok(kept)
    }

    /// Moves a run to where runs are kept, under a name that is free there.
    fn keep(&self, run: &Path) -> Option<String> {
        let name = run.file_name()?.to_str()?;
        (0..1000).map(|n| if n == 0 { name.to_owned() } else { format!("{name}-{n}") }).find(|name| {
            let place = self.keep.join(name);
            // To make it is to claim it; an empty folder can be replaced.
            fs::create_dir(&place).is_ok() && fs::rename(run, place).is_ok()
        })
    }

    /// All findings, but predictions of stores with which a race is proven.
    fn findings(&mut self) -> Vec<Finding> {
        fn store(finding: &Finding) -> Option<&Place> {
            finding.places.iter().find(|place| place.role == Role::Store)
        }
        let mut found = std::mem::take(&mut self.found);
        let proven: Vec<Place> =
            found.iter().filter(|f| f.severity == Severity::Error).filter_map(store).cloned().collect();
        let frame = |place: &Place| place.frame().map(|frame| (frame.module.clone(), frame.file.clone(), frame.line));
        found.retain(|finding| {
            let same = |known: &Place| store(finding).is_some_and(|place| frame(place) == frame(known));
            finding.severity == Severity::Error || !proven.iter().any(same)
        });
        found
    }

    fn coverage(&self) -> Coverage {
        let mut coverage = Coverage::default();
        coverage.count("turns", self.turns, None);
        coverage.count("forced runs", self.runs, None);
        coverage.count("seeds that cover something", self.seeds.len() as u64, None);
        coverage.count("PM alias pairs", self.covered.pairs.len() as u64, None);
        coverage.count("call paths", self.covered.paths.len() as u64, None);
        coverage.count("branches", self.covered.branches.len() as u64, None);
        if self.cut > 0 {
            coverage.not_covered.push(format!("{} turns that were under way at the end", self.cut));
        }
        if self.lost > 0 {
            coverage.not_covered.push(format!("the findings of {} turns, which could not be saved", self.lost));
        }
        if self.failed > 0 {
            let how = self.failure.as_ref().map_or(String::new(), |(code, _)| match code {
                Some(code) => format!("; the last ended with exit code {code}"),
                None => "; the last took too long".into(),
            });
            coverage.not_covered.push(format!("{} inputs with which the program fails by itself{how}", self.failed));
        }
        coverage
    }

    /// Removes what turns that were ended early have left.
    fn clean_up(&self) {
        for turn in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if turn.path().join("runs").exists() {
                let _ = fs::remove_dir_all(turn.path());
            }
        }
        let _ = fs::remove_dir(&self.folder);
    }
}

fn output(what: &str, source: io::Error) -> Error {
    Error::Output { action: "run", what: what.into(), source }
}
