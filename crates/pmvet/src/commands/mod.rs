//! The commands. Each takes what the command line said and returns how pmvet ends.

mod doctor;
mod events;
mod native;
mod trace;

use crate::cli::Command;
use crate::exit::{Error, Exit};

pub(crate) fn run(command: Command) -> Result<Exit, Error> {
    match command {
        Command::Trace(arguments) => trace::run(*arguments),
        Command::Events(arguments) => events::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
    }
}
