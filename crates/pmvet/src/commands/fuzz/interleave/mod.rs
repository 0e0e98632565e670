//! `pmvet fuzz --interleave`: inputs and thread schedules that make a value be read before it is persistent.
//!
//! Each turn gives one input to a worker, which records a run, forces schedules as long as they cover anything new, and lets recovery judge
//! ([`turn`]). The coverage decides whether the input is worth more turns and mutants.

mod turn;

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pmvet_engines::alias_coverage::Covered;
use pmvet_engines::interleave::corpus::{Corpus, Kept};
use pmvet_engines::interleave::seeds::Seeds;
use pmvet_findings::token::Token;
use pmvet_findings::{Coverage, Finding, Place, Role, Severity};
use pmvet_target::{launch, shutdown};
use xxhash_rust::xxh3::xxh3_64;

use self::turn::{Turn, TurnReport, Turns};
use super::kept_runs::KeptRuns;
use super::shortfalls::{Shortfalls, took_too_long};
use super::start::INPUT;
use super::{say_torn, unusable};
use crate::budget;
use crate::cli;
use crate::commands::race::Explored;
use crate::config::Config;
use crate::driver::inner::{InnerEnd, InnerReport};
use crate::exit::{Error, Exit};
use crate::reporting::{self, Results};
use crate::run_folder::{RunFolder, RunInfo};
use crate::workers::{JobEnd, Workers};
use pmvet_target::Workload;

/// Time limit of one turn.
const TURN: Duration = Duration::from_secs(8);
/// Budget of a campaign without `--budget`.
const BUDGET: Duration = Duration::from_secs(60);
/// No turn but the first begins with less time left.
const LEAST: Duration = Duration::from_secs(1);
/// Turns under way at the end of the budget may take this much longer before they are ended.
const GRACE: Duration = Duration::from_secs(2);
/// Poll interval while waiting for the end of a turn.
const POLL: Duration = Duration::from_millis(20);
/// What the reports call an inner run.
const NAME: &str = "a turn";

/// The workers of a campaign.
type TurnWorkers = Workers<Turn, TurnReport>;

pub(super) fn run(arguments: &cli::Fuzz, config: Config, workload: &Workload) -> Result<Exit, Error> {
    // The workers are forks, so they must start before this process has any other thread.
    let mut workers = TurnWorkers::start(usize::from(arguments.jobs), || {
        let mut turns = Turns::new(arguments, &config, &workload.pm);
        move |turn| turns.make(turn)
    })
    .map_err(|source| output("a worker", source))?;
    let started = budget::begin(arguments.budget);
    let seeds = super::seeds(arguments)?;
    let operations = super::operations(arguments, &seeds)?;
    let seeds = Seeds::new(seeds, operations, arguments.longest as usize, arguments.seed);
    let place = super::corpus_folder(arguments, workload).join("interleave");
    let program = fs::read(&workload.program.executable).map_or(0, |bytes| xxh3_64(&bytes));
    let (corpus, kept) = Corpus::open(&place, program).map_err(|e| unusable(&place, e))?;
    kept.torn.iter().for_each(|file| say_torn(file));
    let folder = RunFolder::create(&arguments.workload.runs)?;
    let mut info = RunInfo::new(&workload.command, &workload.program.arguments);
    folder.write_info(&info)?;
    let mut campaign = InterleaveCampaign::new(arguments, &folder, workload, corpus, (seeds, kept), started);
    campaign.take_kept_findings().map_err(|e| unusable(&place, e))?;
    let ended = campaign.run(&mut workers);
    drop(workers);
    info.complete = ended.is_ok() && launch::stopped_by().is_none();
    // If something fails, such as for lack of room, earlier findings are still reported.
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
        recovery_tree: None,
        engines: vec!["fuzz".into()],
        seconds: started.elapsed().as_secs_f64(),
        phases: Vec::new(),
    };
    let exit = super::report(results, arguments)?;
    Ok(if campaign.left.failed > 0 { exit.max(Exit::Incomplete) } else { exit })
}

struct InterleaveCampaign<'a> {
    arguments: &'a cli::Fuzz,
    workload: &'a Workload,
    /// Of all turns.
    folder: PathBuf,
    /// Where runs with findings are kept, so that tokens lead there.
    keep: KeptRuns,
    corpus: Corpus,
    seeds: Seeds,
    covered: Covered,
    /// New coverage in the order in which it came, and how much of it each worker knows.
    news: Vec<Covered>,
    told: BTreeMap<usize, usize>,
    found: Vec<Finding>,
    known: HashSet<String>,
    deadline: Instant,
    /// Turns begun, turns ended, and forced runs of all turns.
    turns: u64,
    ended: u64,
    runs: u64,
    /// Turns that were ended because time was up.
    cut: usize,
    /// What turns did not do, and why.
    left: Shortfalls,
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
            keep: KeptRuns::beside(folder),
            corpus,
            seeds,
            news: vec![kept.covered.clone()],
            told: BTreeMap::new(),
            covered: kept.covered,
            found: Vec::new(),
            known: HashSet::new(),
            deadline: shutdown::deadline().unwrap_or(started + BUDGET),
            turns: 0,
            ended: 0,
            runs: 0,
            cut: 0,
            left: Shortfalls::default(),
        }
    }

    /// Runs turn after turn. Returns the exit code if there is nothing to report on.
    fn run(&mut self, workers: &mut TurnWorkers) -> Result<Option<Exit>, Error> {
        let mut under_way: BTreeMap<usize, Turn> = BTreeMap::new();
        loop {
            // Turns under way when time is up get `GRACE` more; their own time was cut to what was left.
            let over = self.is_over();
            if over && (self.is_done() || Instant::now() >= self.deadline + GRACE) {
                break;
            }
            // The first turn runs alone, since it shows whether the program works at all.
            while !over
                && self.may_begin()
                && (self.ended > 0 || under_way.is_empty())
                && let Some(number) = workers.idle()
            {
                let turn = self.next_turn(number).map_err(|source| output("a turn", source))?;
                workers.give(number, &turn).map_err(|source| output("a worker", source))?;
                under_way.insert(number, turn);
            }
            if under_way.is_empty() {
                break;
            }
            let ended = workers.next(POLL).map_err(|source| output("a worker", source))?;
            let Some((number, end, said)) = ended else { continue };
            if matches!(end, JobEnd::Died(_)) {
                // The replacement knows nothing yet.
                self.told.remove(&number);
            }
            if let Some(turn) = under_way.remove(&number)
                && let Some(exit) = self.end_turn(turn, end, &said)?
            {
                return Ok(Some(exit));
            }
        }
        self.cut = under_way.len();
        if self.ended == 0 && self.cut > 0 && launch::stopped_by().is_none() {
            eprintln!("pmvet: the first turn did not end in time, so nothing was analysed: the program may hang");
            return Ok(Some(Exit::TargetFailed));
        }
        Ok(None)
    }

    /// Whether there is time for another turn, and it is wanted.
    fn may_begin(&self) -> bool {
        let in_time = self.turns == 0 || self.time_left() >= LEAST;
        in_time && self.arguments.executions.is_none_or(|most| self.turns < most)
    }

    fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn is_over(&self) -> bool {
        self.is_done() || Instant::now() >= self.deadline
    }

    /// Whether nothing more is wanted.
    fn is_done(&self) -> bool {
        let least = reporting::severity(self.arguments.reporting.fail_on);
        let found = self.arguments.until_finding && self.found.iter().any(|finding| finding.severity >= least);
        found || launch::stopped_by().is_some()
    }

    /// Whether the program reads its input from a file.
    fn reads_file(&self) -> bool {
        self.workload.command.iter().any(|word| word == INPUT)
    }

    /// The next turn, for this worker.
    fn next_turn(&mut self, worker: usize) -> io::Result<Turn> {
        let input = self.seeds.next_input();
        self.turns += 1;
        let folder = self.folder.join(self.turns.to_string());
        fs::create_dir_all(&folder)?;
        let folder = folder.canonicalize()?;
        if self.reads_file() {
            fs::write(folder.join("input"), &input)?;
        }
        let told = self.told.insert(worker, self.news.len()).unwrap_or(0);
        let mut news = Covered::default();
        self.news[told..].iter().for_each(|new| drop(news.add(new.clone())));
        Ok(Turn { folder, input, time: self.time_left().clamp(LEAST, TURN), news })
    }

    /// Takes the result of a turn. Returns the exit code if the first turn shows that no other can work.
    fn end_turn(&mut self, turn: Turn, end: JobEnd<TurnReport>, said: &str) -> Result<Option<Exit>, Error> {
        self.ended += 1;
        let hopeless = (self.ended == 1 && launch::stopped_by().is_none()).then(|| hopeless(&end, said)).flatten();
        let kept = match end {
            JobEnd::Done(TurnReport { explored, run }) => {
                self.left.note_run(NAME, &run, said);
                let is_analysed = matches!(run.end, InnerEnd::Analysed { .. });
                if let Some(Explored { runs, covered }) = explored.or_else(|| is_analysed.then(Explored::default)) {
                    self.runs += u64::from(runs);
                    self.take_covered(&turn, runs, covered)?;
                }
                self.take_findings(run)?
            }
            JobEnd::Died(how) => {
                self.left.take_death(NAME, how, said);
                false
            }
        };
        let _ = fs::remove_dir_all(turn.folder.join("runs"));
        // A kept run may name the input in its command.
        if !kept || !self.reads_file() {
            let _ = fs::remove_dir_all(&turn.folder);
        }
        Ok(hopeless)
    }

    /// Keeps an input that has covered something new.
    fn take_covered(&mut self, turn: &Turn, runs: u32, covered: Covered) -> Result<(), Error> {
        let new = self.covered.add(covered);
        if !new.is_empty() {
            self.corpus.add(&turn.input, &new).map_err(|source| output("a corpus", source))?;
        }
        self.seeds.done(turn.input.clone(), !new.is_empty());
        let counts = (new.pairs.len(), new.paths.len(), new.branches.len());
        if !new.is_empty() {
            self.news.push(new);
        }
        if !self.arguments.reporting.quiet {
            eprintln!(
                "pmvet: turn {}: an input of {} bytes, {runs} runs: {} new alias pairs, {} new call paths, {} new branches",
                self.ended,
                turn.input.len(),
                counts.0,
                counts.1,
                counts.2
            );
        }
        Ok(())
    }

    /// Takes over the findings of earlier campaigns with this build, if their runs still exist.
    fn take_kept_findings(&mut self) -> io::Result<()> {
        for finding in self.corpus.findings::<Finding>()? {
            let token = finding.replay.as_deref().map(str::parse::<Token>);
            let there = token.is_none_or(|token| token.is_ok_and(|token| self.keep.contains(&token.run)));
            if there && self.known.insert(finding.fingerprint.clone()) {
                self.found.push(finding);
            }
        }
        Ok(())
    }

    /// Takes the findings of a turn. Keeps its run if a new finding can be replayed, and says whether it did.
    fn take_findings(&mut self, run: InnerReport) -> Result<bool, Error> {
        let all = run.findings.into_iter();
        let mut fresh: Vec<Finding> = all.filter(|finding| self.known.insert(finding.fingerprint.clone())).collect();
        let proven = fresh.iter().any(|finding| finding.replay.is_some());
        let kept = self.keep.keep(run.folder.as_deref().filter(|_| proven), &mut fresh);
        for finding in &fresh {
            self.corpus.add_finding(finding).map_err(|source| output("a corpus", source))?;
        }
        self.found.extend(fresh);
        Ok(kept)
    }

    /// All findings, except predictions for stores with a proven race.
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
        coverage.not_covered.extend(self.left.lines());
        coverage
    }

    /// Removes the folders of turns that were ended early.
    fn clean_up(&self) {
        for turn in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if turn.path().join("runs").exists() {
                let _ = fs::remove_dir_all(turn.path());
            }
        }
        let _ = fs::remove_dir(&self.folder);
    }
}

/// The exit code if the first turn did not work, since mutants would not work either. Prints why.
fn hopeless(end: &JobEnd<TurnReport>, said: &str) -> Option<Exit> {
    match end {
        JobEnd::Done(TurnReport { run, .. }) => match &run.end {
            InnerEnd::Analysed { .. } => None,
            InnerEnd::NothingAnalysed(exit) => {
                eprint!("{said}");
                Some(*exit)
            }
            InnerEnd::Failed(exit, error) => {
                eprintln!("{said}pmvet: {error}");
                Some(*exit)
            }
        },
        JobEnd::Died(how) if took_too_long(*how) => {
            eprintln!("{said}pmvet: the first turn took too long and was ended: the program may hang");
            Some(Exit::TargetFailed)
        }
        JobEnd::Died(how) => {
            eprintln!("{said}pmvet: the process that made the first turn has died: {how}");
            Some(Exit::Internal)
        }
    }
}

fn output(what: &str, source: io::Error) -> Error {
    Error::Output { action: "run", what: what.into(), source }
}
