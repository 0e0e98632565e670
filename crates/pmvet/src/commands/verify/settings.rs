//! What the command line asks of a verification, in plain terms.

use std::path::PathBuf;

use pmvet_engines::lab::Lab;
use pmvet_engines::verify::VerifyPlan;

use crate::cli;
use crate::durable::{self, DurableSettings};
use crate::exit::{Error, Exit};
use crate::recovery::{self, Identity, Recovering};
use crate::run_folder::RunFolder;

#[derive(Debug, Clone)]
pub(crate) struct VerifySettings {
    pub(super) recovering: Recovering,
    pub(super) failures: u8,
    keep_going: bool,
    most: u64,
    patience: u64,
    checksums: bool,
    /// Which shard this is, of how many.
    shard: Option<(usize, usize)>,
    /// For `gather`: the runs that have made all executions; this run makes none.
    pub(super) gathered: Option<Vec<PathBuf>>,
    /// Whether crashes must leave what was promised.
    pub(super) durable: Option<DurableSettings>,
}

impl VerifySettings {
    /// The defaults, with these recoveries.
    pub(crate) fn by_default(recovering: Recovering) -> Self {
        Self {
            recovering,
            failures: 1,
            keep_going: false,
            most: u64::MAX,
            patience: cli::PATIENCE_EXECUTIONS,
            checksums: false,
            shard: None,
            gathered: None,
            durable: None,
        }
    }

    /// The same settings, comparing contents if these arguments ask for it.
    pub(crate) fn with_contents(self, arguments: &cli::Durable) -> Self {
        let mut recovering = self.recovering;
        let durable = recovering.show_by(arguments);
        Self { recovering, durable, ..self }
    }

    pub(super) fn new(arguments: &cli::Verify) -> Result<Self, Error> {
        if arguments.workload.client.is_some() {
            return Err(Error::Usage("verify runs recoveries that end by themselves; for servers use check".into()));
        }
        let settings = Self {
            failures: arguments.failures,
            keep_going: arguments.keep_going,
            most: arguments.max_executions.unwrap_or(u64::MAX),
            patience: if arguments.checksums { 0 } else { arguments.patience },
            checksums: arguments.checksums,
            shard: arguments.shard.map(|(k, n)| (k as usize - 1, n as usize)),
            gathered: arguments.gathered.clone(),
            ..Self::by_default(Recovering::new(&arguments.recovering, &arguments.workload)?)
        };
        Ok(settings.with_contents(&arguments.durable))
    }

    /// With `--durable` and no dump, finds the questions to ask in the recorded run. If there are none, returns the exit code.
    pub(super) fn settle(&mut self, lab: Lab<'_>, folder: &RunFolder) -> Result<Result<(), Exit>, Error> {
        durable::settle(&mut self.durable, &mut self.recovering, lab, folder)
    }

    pub(super) fn engines(&self) -> Vec<String> {
        let durable = self.durable.as_ref().map(|_| "durable".to_owned());
        std::iter::once("verify".to_owned()).chain(durable).collect()
    }

    /// What the engine is to try.
    pub(super) fn plan(&self) -> VerifyPlan {
        VerifyPlan {
            mode: self.recovering.mode,
            failures: self.failures,
            keep_going: self.keep_going,
            most_executions: self.most,
            patience_executions: self.patience,
            compares_contents: self.durable.is_some(),
            checksums: self.checksums,
            shard: self.shard,
            known_only: self.gathered.is_some(),
            workers: self.recovering.jobs,
        }
    }

    /// All settings that decide what is tried and what is expected.
    pub(super) fn identity(&self) -> Identity {
        let mut identity = self.recovering.identity([
            (recovery::ENGINE, &"verify"),
            ("failures", &self.failures),
            ("keep-going", &self.keep_going),
            ("patience", &self.patience),
            ("durable", &self.durable),
        ]);
        recovery::add_shard(&mut identity, self.shard);
        identity
    }
}
