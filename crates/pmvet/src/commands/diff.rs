//! `pmvet diff`: which findings are new, and which are gone.

use pmvet_findings::{Finding, baseline};

use crate::cli;
use crate::exit::{Error, Exit};
use crate::run_folder::RunFolder;

pub(crate) fn run(arguments: &cli::Diff) -> Result<Exit, Error> {
    let before = RunFolder::open(&arguments.runs, Some(&arguments.before))?.findings()?;
    let after = RunFolder::open(&arguments.runs, arguments.after.as_deref())?.findings()?;
    let diff = baseline::diff(&before, &after);
    let print = |mark: &str, findings: &[&Finding]| {
        for finding in findings {
            let place = finding.places.first().and_then(|place| place.frame()).map(ToString::to_string);
            println!("{mark} {}: {} [{}]", finding.severity.name(), finding.title, place.unwrap_or_default());
        }
    };
    print("+", &diff.new);
    print("-", &diff.fixed);
    println!("{} new, {} gone, {} as before", diff.new.len(), diff.fixed.len(), diff.same.len());
    Ok(if diff.new.is_empty() { Exit::Ok } else { Exit::Findings })
}
