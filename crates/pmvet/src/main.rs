//! pmvet: finds bugs in programs that use persistent memory.
//!
//! * `cli` and `config` — what the user asked for; `exit` — exit codes and errors; `budget` — time limits.
//! * `commands` — one file per command; `driver` — records a workload and runs engines on it, for all of them.
//! * `isolation` — private files, proven before anything runs.
//! * `workload` — a target on private copies of its files; `run_folder` — what is kept of a run; `retention` — which runs are kept;
//!   `reporting` — findings, shown.
//! * `summary` — what a traced run did, in numbers; `printing` — single events, as text or JSON.
//! * `kinds`, `locate`, `pm` — events by number, addresses by file, and which files are PM.
//! * `workers` — processes that do jobs for a campaign.
//! * `files` — files written completely or not at all; `system` — signals and other calls to the operating system.

mod budget;
mod cli;
mod commands;
mod config;
mod driver;
mod durable;
mod exit;
mod files;
mod isolation;
mod kinds;
mod locate;
mod pm;
mod printing;
mod progress;
mod recovery;
mod reporting;
mod retention;
mod run_folder;
mod shell_words;
mod summary;
mod system;
mod trend;
mod workers;
mod workload;

use std::process::ExitCode;

use pmvet_target::guard;
use pmvet_target::sandbox::{probe, requests};

use self::exit::Exit;

fn main() -> ExitCode {
    budget::start_clock();
    abort_on_panic();
    // The guard must start whatever the rest of this program does.
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some((first, rest)) = arguments.split_first()
        && first == guard::COMMAND
    {
        return ExitCode::from(guard::run(rest) as u8);
    }
    if let Some((first, rest)) = arguments.split_first()
        && first == probe::COMMAND
    {
        return ExitCode::from(probe::inside(rest));
    }
    if arguments.first().is_some_and(|first| first == requests::COMMAND) {
        return ExitCode::from(requests::send());
    }
    if !system::die_with_parent() {
        return Exit::Interrupted.into();
    }
    match commands::run(cli::parse().command) {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("pmvet: {error}");
            // An interrupt is the reason for any error after it.
            let interrupted = pmvet_target::shutdown::stopped_by().map(|_| Exit::Interrupted);
            interrupted.unwrap_or(error.exit()).into()
        }
    }
}

/// Aborts on a panic in any thread: a result without that thread's part would look complete.
fn abort_on_panic() {
    let says = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        says(panic);
        eprintln!("pmvet: this is a bug in pmvet, please report it");
        std::process::abort();
    }));
}
