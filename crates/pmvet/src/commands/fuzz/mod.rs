//! `pmvet fuzz`: inputs and images that reach the code that works on PM.

mod base;
mod count;
mod exchange;
mod failures;
mod interleave;
mod join;
mod kept_runs;
mod minimise;
mod native;
mod rebuild;
mod shortfalls;
mod start;
mod then;
mod watch;

use std::io;
use std::path::{Path, PathBuf};

use pmvet_engines::fuzz::campaign::{self, CampaignStats, FuzzError, FuzzSettings};
use pmvet_engines::fuzz::runner::Runner;
use pmvet_engines::fuzz::tokens;
use pmvet_engines::operations::Operations;
use pmvet_findings::Coverage;
use pmvet_target::Workload;
use pmvet_target::install::Install;
use pmvet_target::launch;

pub(super) use self::join::{join_cases, join_corpora};
pub(super) use self::native::{has_case, replay};

use self::exchange::Helpers;
use self::native::Cases;
use self::start::FuzzStart;
use self::then::{CaseWorker, Checks};
use self::watch::FuzzWatch;
use crate::budget;
use crate::cli;
use crate::config::Config;
use crate::exit::{Error, Exit};
use crate::isolation;
use crate::reporting::{self, Results};
use crate::run_folder::{RunFolder, RunInfo};
use crate::workload::{self, DeadlineReader};
use pmvet_engines::lab::Witness;

pub(crate) fn run(arguments: &cli::Fuzz) -> Result<Exit, Error> {
    let here = std::env::current_dir().map_err(|source| Error::Output {
        action: "find",
        what: "the current folder".into(),
        source,
    })?;
    if arguments.workload.in_place || arguments.workload.client.is_some() {
        return Err(Error::Usage("fuzz works on private files and on programs that end by themselves".into()));
    }
    if !arguments.workload.keep.is_empty() {
        return Err(Error::Usage(
            "--keep copies what one recorded run leaves, and fuzz makes thousands; leave it out".into(),
        ));
    }
    // A prediction has no crash to compare contents after.
    let crashes = arguments.interleave || arguments.then.iter().any(|engine| *engine != cli::Then::Race);
    if arguments.durable.durable && !crashes {
        return Err(Error::Usage(
            "--durable looks at what is left after a crash, which fuzz makes with --then check, --then verify or --interleave"
                .into(),
        ));
    }
    let config = Config::load(arguments.workload.config.as_deref())?;
    let mut workload = workload::describe(&arguments.workload, &config, &here)?;
    let install = Install::find()?;
    if arguments.interleave {
        return interleave::run(arguments, config, &workload);
    }
    // The worker is a fork, so it must start before this process has any other thread.
    let case_worker = (!arguments.then.is_empty() && arguments.helper.is_none())
        .then(|| CaseWorker::start(arguments, &config, &workload.pm))
        .transpose();
    let case_worker =
        case_worker.map_err(|source| Error::Output { action: "start", what: "a process for --then".into(), source })?;
    isolation::start(workload.pm.iter().map(Into::into).collect())?;
    let started = budget::begin(arguments.budget);
    if let Some(line) = &arguments.workload.setup
        && let Some(exit) = workload::set_up(&mut workload, line)?
    {
        return Ok(exit);
    }
    let corpus = corpus(arguments, &workload)?;
    let seeds = seeds(arguments)?;
    let mut start = match FuzzStart::new(arguments, workload, &seeds, &corpus, install)? {
        Ok(start) => start,
        Err(exit) => return Ok(exit),
    };
    if let Some(count) = arguments.rebuild {
        return rebuild::run(&mut start, count, arguments.seed);
    }
    if let Some(folder) = &arguments.paths_of {
        return count::run(&mut start, folder);
    }
    if let Some(folder) = &arguments.cmin {
        return minimise::corpus(&mut start, folder);
    }
    if let Some(file) = &arguments.tmin {
        return minimise::case(&mut start, file);
    }
    let helpers = match arguments.helper {
        None => Helpers::start(arguments.jobs - 1, &seeds).map_err(|source| Error::Output {
            action: "start",
            what: "another process".into(),
            source,
        })?,
        Some(_) => Helpers::none(),
    };
    let settings = settings(arguments, &start, seeds)?;
    let runner = Runner::new(start.target.clone()).map_err(FuzzError::from)?;
    if arguments.helper.is_some() {
        let mut watch = FuzzWatch::new(arguments, &corpus, None, &start, started)?;
        campaign::run(runner, &mut start.store, &mut watch, settings)?;
        return Ok(Exit::Ok);
    }
    let folder = RunFolder::create(&arguments.workload.runs)?;
    let mut info = RunInfo::new(&start.workload.command, &start.workload.program.arguments);
    folder.write_info(&info)?;
    let checks = case_worker.map(|worker| Checks::new(&arguments.then, worker, &folder, &start));
    let mut watch = FuzzWatch::new(arguments, &corpus, checks, &start, started)?;
    let stats = match campaign::run(runner, &mut start.store, &mut watch, settings) {
        // Findings from before the disk was full are still reported.
        Err(error @ FuzzError::Corpus(_)) => {
            info.complete = folder.kept(Err(error.into()));
            watch.last()
        }
        stats => {
            info.complete = launch::stopped_by().is_none();
            stats?
        }
    };
    let helpers_failed = helpers.finish();
    let (checks, mut failures) = watch.finish(&stats);
    let (mut findings, unconfirmed) = failures::findings(&mut failures, &mut start)?;
    // The corpus has the image, and this file the rest that is needed to run a case again.
    let kept = Cases::save(&start, &failures, &folder);
    let witness = Witness { recording: None, seq: None, patches: Vec::new(), promise: None };
    let witnesses = kept.into_iter().map(|name| (name, witness.clone())).collect();
    let mut coverage = coverage(&stats);
    if unconfirmed > 0 {
        let missing =
            "failures that there was no time to see again without pmvet; they are in crashes/ and hangs/ of the corpus";
        coverage.not_covered.push(format!("{unconfirmed} {missing}"));
    }
    let mut at_least = Exit::Ok;
    if stats.runs == 0 {
        eprintln!(
            "pmvet: nothing was analysed: the time was over when the target had been started once, to see its PM files"
        );
        at_least = Exit::NothingAnalysed;
    } else if stats.paths > 0 && stats.transitions == 0 && stats.crash_images == 0 {
        eprintln!("pmvet: nothing was analysed: in {} runs the target did nothing to PM", stats.runs);
        at_least = Exit::NothingAnalysed;
    }
    if helpers_failed > 0 {
        at_least = Exit::Incomplete;
        coverage.not_covered.push(format!("{helpers_failed} of the other processes of -j failed before the end"));
    }
    if let Some(checks) = checks {
        let (found, left, shortfalls) = checks.finish();
        findings.extend(found);
        if left > 0 {
            coverage.not_covered.push(format!("{left} runs of --then were not made, or not finished, in time"));
        }
        if shortfalls.failed > 0 {
            at_least = Exit::Incomplete;
            coverage.not_covered.push(format!("{} runs of --then failed", shortfalls.failed));
        }
        coverage.not_covered.extend(shortfalls.lines());
    }
    folder.keep_info(&info);
    let results = Results {
        folder: &folder,
        info: &info,
        findings,
        suppress: config.suppress,
        witnesses,
        coverage,
        tree: None,
        recovery_tree: None,
        engines: vec!["fuzz".into()],
        seconds: started.elapsed().as_secs_f64(),
        phases: Vec::new(),
    };
    Ok(report(results, arguments)?.max(at_least))
}

/// Why a corpus cannot be used, and what to do about it.
fn unusable(corpus: &Path, error: io::Error) -> Error {
    let advice = match error.kind() {
        io::ErrorKind::ResourceBusy => "wait for its end, or name another corpus with --corpus",
        io::ErrorKind::Unsupported | io::ErrorKind::InvalidData => {
            "name another corpus with --corpus, and to go on with the inputs of this one, --seeds with its folder `queue`"
        }
        _ => {
            return Error::Output { action: "use", what: format!("the corpus in {}", corpus.display()), source: error };
        }
    };
    Error::Run(format!("the corpus in {} cannot be used: {error}; {advice}", corpus.display()))
}

/// Says that a killed campaign has left a torn line.
fn say_torn(what: &Path) {
    let what = what.display();
    eprintln!(
        "pmvet: the end of {what} was torn when an earlier campaign was killed; it is cut off, all before it is used"
    );
}

/// Reports what a campaign has found. An interrupted one says so by its exit code and in its folder.
fn report(mut results: Results<'_>, arguments: &cli::Fuzz) -> Result<Exit, Error> {
    if let Some(signal) = launch::stopped_by() {
        let text = format!("what would have come after it was interrupted by {}", launch::signal_name(signal));
        results.coverage.not_covered.push(text);
    }
    let exit = reporting::report(results, &arguments.reporting)?;
    Ok(match launch::stopped_by() {
        Some(_) => exit.max(Exit::Interrupted),
        None => exit,
    })
}

fn corpus_folder(arguments: &cli::Fuzz, workload: &Workload) -> PathBuf {
    let name = workload.program.executable.file_name().unwrap_or_default();
    arguments.corpus.clone().unwrap_or_else(|| Path::new(".pmvet/fuzz").join(name))
}

/// The folder that test cases are kept in.
fn corpus(arguments: &cli::Fuzz, workload: &Workload) -> Result<PathBuf, Error> {
    let mut folder = corpus_folder(arguments, workload);
    if let Some(number) = arguments.helper {
        folder.push(format!("helper-{number}"));
    }
    for part in ["queue", "crashes", "hangs"] {
        std::fs::create_dir_all(folder.join(part)).map_err(|source| Error::Output {
            action: "make",
            what: folder.display().to_string(),
            source,
        })?;
    }
    folder.canonicalize().map_err(|source| Error::Output { action: "find", what: folder.display().to_string(), source })
}

fn seeds(arguments: &cli::Fuzz) -> Result<Vec<Vec<u8>>, Error> {
    use std::io::{IsTerminal, Read};
    let read = |path: &Path| std::fs::read(path).map_err(|e| Error::Usage(format!("--seeds: {}: {e}", path.display())));
    let Some(path) = &arguments.seeds else {
        let mut input = Vec::new();
        if !io::stdin().is_terminal() {
            let _ = DeadlineReader(io::stdin()).read_to_end(&mut input);
        }
        return Ok(vec![input]);
    };
    if !path.is_dir() {
        return Ok(vec![read(path)?]);
    }
    let entries = std::fs::read_dir(path).map_err(|e| Error::Usage(format!("--seeds: {}: {e}", path.display())))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    files.sort();
    match files.is_empty() {
        true => Err(Error::Usage(format!("--seeds: {} has no files", path.display()))),
        false => files.iter().map(|path| read(path)).collect(),
    }
}

fn read(path: &Path, flag: &str) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|e| Error::Usage(format!("{flag}: {}: {e}", path.display())))
}

/// The operations that inputs are made of, if known.
fn operations(arguments: &cli::Fuzz, seeds: &[Vec<u8>]) -> Result<Option<Operations>, Error> {
    let Some(path) = &arguments.ops else { return Ok(Operations::of_seeds(seeds.iter().map(Vec::as_slice))) };
    let parsed = Operations::parse(&read(path, "--ops")?);
    parsed.map(Some).map_err(|e| Error::Usage(format!("--ops: {}: {e}", path.display())))
}

fn settings(arguments: &cli::Fuzz, start: &FuzzStart, seeds: Vec<Vec<u8>>) -> Result<FuzzSettings, Error> {
    let operations = operations(arguments, &seeds)?;
    let mut words =
        std::fs::read(&start.workload.program.executable).map_or_else(|_| Vec::new(), |b| tokens::of_binary(&b));
    if let Some(path) = &arguments.dict {
        let parsed = tokens::of_dictionary(&read(path, "--dict")?);
        words.extend(parsed.map_err(|e| Error::Usage(format!("--dict: {}: {e}", path.display())))?);
    }
    Ok(FuzzSettings {
        seed: arguments.seed.wrapping_add(u64::from(arguments.helper.unwrap_or(0)) << 32),
        seeds,
        known: start.known.clone(),
        operations,
        tokens: words,
        crashes: arguments.crash_images,
        anywhere: arguments.crash_anywhere.into(),
        longest: arguments.longest as usize,
    })
}

fn coverage(stats: &CampaignStats) -> Coverage {
    let mut coverage = Coverage::default();
    coverage.count("runs", stats.runs, None);
    coverage.count("runs that were cut where their input ended", stats.cut, None);
    coverage.count("test cases", stats.cases as u64, None);
    coverage.count("PM paths", stats.paths as u64, None);
    coverage.count("transitions between operations on PM", stats.transitions as u64, None);
    coverage.count("images", stats.images as u64, None);
    coverage.count("crash images", stats.crash_images as u64, None);
    coverage.count("stable test cases", stats.stable, Some(stats.repeated));
    if stats.strays > 0 {
        coverage.not_covered.push(format!("{} processes that runs left behind were ended", stats.strays));
    }
    coverage
}
