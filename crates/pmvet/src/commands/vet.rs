//! `pmvet vet`: one recorded run, then every engine on it, in shares of one budget.

use std::time::Duration;

use super::{check, race, verify};
use crate::cli;
use crate::config::Config;
use crate::driver::{self, Engine, Job, Resumable};
use crate::exit::{Error, Exit};
use crate::recovery;

/// The default budget, short enough to run `vet` on every commit.
const BUDGET: Duration = Duration::from_secs(120);

pub(crate) fn run(arguments: &cli::Vet) -> Result<Exit, Error> {
    let config = Config::load(arguments.workload.config.as_deref())?;
    let mut check = check::CheckEngine { settings: check::CheckSettings::with_reorderings(arguments)? };
    let identity = check.settings.recovering.identity([(recovery::ENGINE, &"vet")]);
    let mut races = race::RaceEngine::proven(arguments, &config);
    let mut engines: Vec<&mut dyn Engine> = vec![&mut check, &mut races];
    let recovering = recovery::Recovering::new(&arguments.recovering, &arguments.workload)?;
    let mut verify = verify::VerifyEngine { settings: verify::VerifySettings::by_default(recovering) };
    let mut left_out = Vec::new();
    match arguments.workload.client {
        None => engines.push(&mut verify),
        Some(_) => left_out.push(("verify", "servers: it runs recoveries that end by themselves")),
    }
    let job = Job {
        workload: &arguments.workload,
        reporting: &arguments.reporting,
        config,
        budget: Some(arguments.recovering.budget.unwrap_or(BUDGET)),
        require_complete: arguments.require_complete,
        left_out,
        resumable: Some(Resumable { start: arguments.recovering.start(), identity }),
        given: None,
    };
    driver::run(job, &mut engines)
}
