//! `pmvet report`: writes the findings of an earlier run in other formats.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pmvet_report::Exporter;
use pmvet_report::json::Json;
use pmvet_report::junit::Junit;
use pmvet_report::sarif::Sarif;

use crate::cli;
use crate::exit::{Error, Exit};
use crate::reporting;
use crate::run_folder::RunFolder;

pub(crate) fn run(arguments: &cli::Report) -> Result<Exit, Error> {
    let folder = RunFolder::open(&arguments.chosen.runs, arguments.chosen.run.as_deref())?;
    let run = folder.report()?;
    let sources = reporting::sources();
    let junit = Junit { pedantic: arguments.pedantic, ..Junit::default() };
    let sarif = Sarif { pedantic: arguments.pedantic, ..Sarif::default() };
    let others: [(&Option<PathBuf>, &dyn Exporter); 3] =
        [(&arguments.json, &Json), (&arguments.sarif, &sarif), (&arguments.junit, &junit)];
    let mut asked = false;
    for (path, exporter) in others {
        if let Some(path) = path {
            reporting::write(path, exporter, &run, &sources)?;
            asked = true;
        }
    }
    if arguments.html.is_some() || arguments.open || !asked {
        let path = arguments.html.clone().unwrap_or_else(|| folder.file("report.html"));
        reporting::write(&path, &reporting::page(&folder, &run), &run, &sources)?;
        println!("{}", path.display());
        if arguments.open {
            open(&path)?;
        }
    }
    Ok(Exit::Ok)
}

/// Opens the page in the desktop's browser.
fn open(page: &Path) -> Result<(), Error> {
    let mut command = Command::new("xdg-open");
    command.arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map(drop).map_err(|e| {
        Error::Usage(format!("--open: cannot start xdg-open ({e}); open the page named above in a browser"))
    })
}
