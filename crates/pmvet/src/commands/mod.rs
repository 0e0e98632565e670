//! The commands. Each takes what the command line said and returns how pmvet ends.

mod check;
mod doctor;
mod events;
mod native;
mod replay;
mod trace;

use crate::cli::Command;
use crate::exit::{Error, Exit};

pub(crate) fn run(command: Command) -> Result<Exit, Error> {
    match command {
        Command::Check(arguments) => check::run(*arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Trace(arguments) => trace::run(*arguments),
        Command::Events(arguments) => events::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
    }
}
