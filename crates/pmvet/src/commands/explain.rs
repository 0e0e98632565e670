//! `pmvet explain`: what a rule means.

use pmvet_findings::rules;

use crate::cli;
use crate::exit::{Error, Exit};

pub(crate) fn run(arguments: &cli::Explain) -> Result<Exit, Error> {
    match &arguments.rule {
        None => {
            let width = rules::ALL.iter().map(|rule| rule.id.len()).max().unwrap_or(0);
            for rule in rules::ALL {
                println!("{:width$}  {:11}  {}", rule.id, rule.severity.name(), rule.summary);
            }
        }
        Some(id) => {
            let rule = rules::find(id)
                .ok_or_else(|| Error::Usage(format!("no rule is called `{id}`; `pmvet explain` lists them")))?;
            print!("{}", rule.explanation());
        }
    }
    Ok(Exit::Ok)
}
