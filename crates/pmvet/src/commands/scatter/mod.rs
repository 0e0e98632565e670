//! `pmvet scatter`: one recording in a shared folder, and a job whose tasks do their parts of the work on it.
//!
//! * [`shared`] — the folder that all machines see, and what is where in it.
//! * [`job`] — the script for Slurm and the manifest for Kubernetes.
//! * [`task`] — what one task does, on whatever machine it runs.

mod job;
pub(super) mod shared;
mod task;

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Read};
use std::process::{Command as Process, Stdio};

use clap::Parser;

use self::shared::{ScatteredWork, SharedFolder};
use super::{check, verify};
use crate::cli::{self, Cli, Command, ScatterEngine};
use crate::config;
use crate::exit::{Error, Exit};
use crate::recovery::failed;
use crate::run_folder::{RunFolder, Text, texts};
use crate::shell_words;
use crate::workload::DeadlineReader;

pub(crate) fn run(arguments: &cli::Scatter) -> Result<Exit, Error> {
    if let Some(number) = arguments.task {
        if !arguments.command.is_empty() {
            return Err(Error::Usage("--task: the shared folder says what to do; leave the program out".into()));
        }
        return task::run(&SharedFolder::existing(&arguments.shared)?, number);
    }
    // clap makes sure that both are there.
    let (Some(engine), Some(tasks)) = (arguments.engine, arguments.tasks) else {
        return Err(Error::Usage("give --engine and -n".into()));
    };
    let words = with_dashes(&arguments.command);
    let mut command = parse(engine, &words);
    refuse(&command)?;
    config::fill_in(&mut command)?;
    let mut shared = SharedFolder::create(&arguments.shared)?;
    let recording = match record(&shared, command)? {
        Ok(recording) => recording,
        Err(exit) => return Ok(exit),
    };
    let folder = std::env::current_dir().map_err(|e| failed("find", "the current folder", e))?;
    let pmvet = std::env::current_exe().map_err(|e| failed("find", "pmvet itself", e))?;
    let version = env!("CARGO_PKG_VERSION").into();
    let work = ScatteredWork { version, engine, tasks, command: texts(&words), folder: Text(folder.into()), recording };
    shared.write("job.sh", job::slurm(&work, &shared, &pmvet)?.as_bytes())?;
    shared.finish(&work)?;
    if arguments.kubernetes {
        print!("{}", job::kubernetes(&work, &shared, &arguments.image, &arguments.claim)?);
        return Ok(Exit::Ok);
    }
    if arguments.dry_run {
        println!("{}", shell_words::shown(&submission(arguments, &shared)));
        return Ok(Exit::Ok);
    }
    submit(arguments, &shared)
}

/// The words after the name of the engine. The user may leave out the `--` before the program if no option comes before it.
fn with_dashes(words: &[OsString]) -> Vec<OsString> {
    let starts_with_program = words.first().is_some_and(|first| !first.as_encoded_bytes().starts_with(b"-"));
    let dashes = starts_with_program.then(|| OsString::from("--"));
    dashes.into_iter().chain(words.iter().cloned()).collect()
}

/// The command line of the engine. Ends the process with a message if it is wrong, as the engine would.
pub(super) fn parse(engine: ScatterEngine, words: &[OsString]) -> Command {
    let line =
        [OsStr::new("pmvet"), OsStr::new(engine.name())].into_iter().chain(words.iter().map(OsString::as_os_str));
    Cli::try_parse_from(line).unwrap_or_else(|error| error.exit()).command
}

/// Refuses options that cannot be shared, or that tasks set themselves.
fn refuse(command: &Command) -> Result<(), Error> {
    let (workload, others) = match command {
        Command::Check(a) => (&a.workload, vec![("--shard", a.shard.is_some()), ("--resume", a.recovering.resume)]),
        Command::Verify(a) => {
            let others = vec![
                ("--resume", a.recovering.resume),
                // Recoveries of different crashes may crash in the same state, which must count only once.
                ("--failures", a.failures > 1),
                ("--max-executions", a.max_executions.is_some()),
            ];
            (&a.workload, others)
        }
        Command::Fuzz(a) => {
            let instead = a.rebuild.is_some() || a.paths_of.is_some() || a.cmin.is_some() || a.tmin.is_some();
            let others = vec![
                ("--corpus", a.corpus.is_some()),
                ("--exchange", a.exchange.is_some()),
                ("--interleave", a.interleave),
                ("--rebuild, --paths-of, --cmin and --tmin", instead),
                ("--jobs", a.jobs > 1),
            ];
            (&a.workload, others)
        }
        _ => return Err(Error::Usage("--engine: only check, verify and fuzz can be shared".into())),
    };
    let both = [("--in-place", workload.in_place), ("--keep", !workload.keep.is_empty())];
    match both.into_iter().chain(others).find(|(_, given)| *given) {
        Some((option, _)) => {
            Err(Error::Usage(format!("{option} cannot be used for work that machines share; leave it out")))
        }
        None => Ok(()),
    }
}

/// Records the workload, once for all tasks. Returns the run, or the exit code.
fn record(shared: &SharedFolder, command: Command) -> Result<Result<Option<String>, Exit>, Error> {
    let runs = shared.recordings();
    let exit = match command {
        Command::Check(mut a) => {
            a.workload.runs = runs.clone();
            check::record(&a)?
        }
        Command::Verify(mut a) => {
            a.workload.runs = runs.clone();
            verify::record(&a)?
        }
        _ => return keep_seed(shared).map(|()| Ok(None)),
    };
    if exit != Exit::Ok {
        return Ok(Err(exit));
    }
    Ok(Ok(Some(RunFolder::open(&runs, None)?.id)))
}

/// Keeps standard input as the seed of the campaigns, which have no standard input.
fn keep_seed(shared: &SharedFolder) -> Result<(), Error> {
    crate::system::handle_signals();
    let mut seed = Vec::new();
    if !io::stdin().is_terminal() {
        let read = DeadlineReader(io::stdin()).read_to_end(&mut seed);
        read.map_err(|e| failed("read", "standard input", e))?;
    }
    shared.write(shared::SEED, &seed)
}

fn submission(arguments: &cli::Scatter, shared: &SharedFolder) -> Vec<String> {
    let script = shared.file("job.sh").display().to_string();
    ["sbatch".to_owned()].into_iter().chain(arguments.sbatch.iter().cloned()).chain([script]).collect()
}

fn submit(arguments: &cli::Scatter, shared: &SharedFolder) -> Result<Exit, Error> {
    let words = submission(arguments, shared);
    let advice =
        format!("the recording is kept; submit it with `{}`, or run the tasks another way", shell_words::shown(&words));
    let sbatch = Process::new(&words[0]).args(&words[1..]).stdin(Stdio::null()).status();
    match sbatch {
        Ok(status) if status.success() => {
            if !arguments.quiet {
                let shared = shell_words::quoted(&shared.text());
                eprintln!("pmvet: `pmvet gather {shared}` waits for the tasks and joins what they find");
            }
            Ok(Exit::Ok)
        }
        Ok(status) => Err(Error::Run(format!("sbatch did not take the job ({status}); {advice}"))),
        Err(e) => Err(Error::Run(format!("sbatch cannot be run: {e}; {advice}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(Into::into).collect()
    }

    #[test]
    fn the_dashes_before_a_program_may_be_left_out() {
        assert_eq!(with_dashes(&words("./p -n 4")), words("-- ./p -n 4"));
        assert_eq!(with_dashes(&words("--oracle x -- ./p")), words("--oracle x -- ./p"));
        assert_eq!(with_dashes(&words("-- ./p")), words("-- ./p"));
        assert!(with_dashes(&[]).is_empty());
    }

    #[test]
    fn what_cannot_be_shared_is_refused() {
        let refused = |engine, line: &str| refuse(&parse(engine, &words(line))).map_err(|e| e.to_string());
        for (engine, line, named) in [
            (ScatterEngine::Check, "--shard 1/2 -- p", "--shard"),
            (ScatterEngine::Check, "--in-place -- p", "--in-place"),
            (ScatterEngine::Verify, "--failures 2 -- p", "--failures"),
            (ScatterEngine::Fuzz, "--corpus x -- p", "--corpus"),
        ] {
            assert!(refused(engine, line).is_err_and(|error| error.starts_with(named)), "{line}");
        }
        for engine in [ScatterEngine::Check, ScatterEngine::Verify, ScatterEngine::Fuzz] {
            assert_eq!(refused(engine, "--budget 5m -- p"), Ok(()));
        }
    }
}
