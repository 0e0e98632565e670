//! `pmvet show`: one finding in full.

use crate::cli;
use crate::exit::{Error, Exit};
use crate::reporting;
use crate::run_folder::RunFolder;

pub(crate) fn run(arguments: &cli::Show) -> Result<Exit, Error> {
    let (_, finding) = RunFolder::with_finding(&arguments.chosen, &arguments.id)?;
    let terminal = reporting::terminal(arguments.color, true, Some(&arguments.chosen.runs));
    print!("{}", terminal.finding(&finding, &reporting::sources()));
    println!("fingerprint: {}", finding.fingerprint);
    Ok(Exit::Ok)
}
