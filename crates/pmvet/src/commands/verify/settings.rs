//! What the command line asks of a verification, in plain terms.

use std::path::PathBuf;

use pmvet_engines::verify::VerifyPlan;

use crate::cli;
use crate::exit::Error;
use crate::recovery::{self, Identity, Recovering};

#[derive(Debug, Clone)]
pub(crate) struct VerifySettings {
    pub(super) recovering: Recovering,
    pub(super) failures: u8,
    keep_going: bool,
    most: u64,
    patience: u64,
    checksums: bool,
    /// Which part of the crashes, of how many.
    shard: Option<(usize, usize)>,
    /// The runs that have made all executions there are: nothing is executed here.
    pub(super) gathered: Option<Vec<PathBuf>>,
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
        }
    }

    pub(super) fn new(arguments: &cli::Verify) -> Result<Self, Error> {
        if arguments.workload.client.is_some() {
            return Err(Error::Usage("verify runs recoveries that end by themselves; for servers use check".into()));
        }
        Ok(Self {
            recovering: Recovering::new(&arguments.recovering, &arguments.workload)?,
            failures: arguments.failures,
            keep_going: arguments.keep_going,
            most: arguments.max_executions.unwrap_or(u64::MAX),
            patience: if arguments.checksums { 0 } else { arguments.patience },
            checksums: arguments.checksums,
            shard: arguments.shard.map(|(k, n)| (k as usize - 1, n as usize)),
            gathered: arguments.gathered.clone(),
        })
    }

    /// What the engine is to try.
    pub(super) fn plan(&self) -> VerifyPlan {
        VerifyPlan {
            mode: self.recovering.mode,
            failures: self.failures,
            keep_going: self.keep_going,
            most_executions: self.most,
            patience_executions: self.patience,
            checksums: self.checksums,
            shard: self.shard,
            known_only: self.gathered.is_some(),
            workers: self.recovering.jobs,
        }
    }

    /// All that decides what is tried and what is expected.
    pub(super) fn identity(&self) -> Identity {
        let mut identity = self.recovering.identity([
            (recovery::ENGINE, &"verify"),
            ("failures", &self.failures),
            ("keep-going", &self.keep_going),
            ("patience", &self.patience),
        ]);
        recovery::add_shard(&mut identity, self.shard);
        identity
    }
}
