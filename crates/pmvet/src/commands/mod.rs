//! The commands. Each takes its arguments and returns the exit code.

mod baseline;
mod check;
mod diff;
mod doctor;
mod events;
mod explain;
mod fuzz;
mod gather;
mod generate;
mod init;
mod merge;
mod native;
mod race;
mod replay;
mod report;
mod runs;
mod scatter;
mod show;
mod suppress;
mod trace;
mod verify;
mod vet;

use crate::cli::Command;
use crate::config;
use crate::exit::{Error, Exit};

pub(crate) fn run(mut command: Command) -> Result<Exit, Error> {
    config::fill_in(&mut command)?;
    match command {
        Command::Vet(arguments) => vet::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Fuzz(arguments) => fuzz::run(&arguments),
        Command::Race(arguments) => race::run(&arguments),
        Command::Show(arguments) => show::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::Diff(arguments) => diff::run(&arguments),
        Command::Merge(arguments) => merge::run(&arguments),
        Command::Scatter(arguments) => scatter::run(&arguments),
        Command::Gather(arguments) => gather::run(*arguments),
        Command::Runs(arguments) => runs::run(&arguments),
        Command::Baseline(arguments) => baseline::run(&arguments),
        Command::Suppress(arguments) => suppress::run(&arguments),
        Command::Init(arguments) => init::run(&arguments),
        Command::Trace(arguments) => trace::run(*arguments),
        Command::Events(arguments) => events::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Generate(arguments) => generate::run(&arguments),
    }
}
