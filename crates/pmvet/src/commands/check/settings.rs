//! What the command line asks of a check, in plain terms.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use pmvet_engines::inject::{At, Plan};
use pmvet_model::Mode;
use pmvet_target::sandbox;
use pmvet_target::sandbox::driver::Driver;

use super::Identity;
use crate::cli::{self, CrashAt, Persistency};
use crate::exit::Error;
use crate::workload::{self, Workload};

#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) plan: Plan,
    pub(super) mode: Mode,
    pub(super) pedantic: bool,
    recover: Option<String>,
    pub(super) oracle: Option<Vec<OsString>>,
    pub(super) timeout: Option<Duration>,
    pub(super) jobs: usize,
    /// How many recoveries are crashed, too.
    pub(super) recoveries: usize,
    pub(super) budget: Option<Duration>,
    pub(super) require_complete: bool,
    pub(super) sample: Option<usize>,
    pub(super) shard: Option<(usize, usize)>,
    /// For servers: who talks to the recovered one, if not the client of the workload.
    pub(super) driver: Option<Arc<Driver>>,
    setup: Option<String>,
    pm: Vec<String>,
    in_place: bool,
}

/// How many visits are tried is decided by the length of the run.
const AUTOMATIC: u32 = 0;
/// A recording of fewer bytes is short: nearly all visits can be tried.
const SHORT: u64 = 1 << 20;
/// Visits in a short run, and in a long one.
const VISITS: (u32, u32) = (64, 1);

impl Settings {
    /// What to try in a run whose recording has this size.
    pub(super) fn plan(&self, bytes: u64) -> Plan {
        let visits = match self.plan.visits {
            AUTOMATIC if bytes < SHORT => VISITS.0,
            AUTOMATIC => VISITS.1,
            visits => visits,
        };
        Plan { visits, ..self.plan }
    }

    pub(super) fn new(arguments: &cli::Check) -> Result<Self, Error> {
        let workload = &arguments.workload;
        if workload.in_place && workload.setup.is_some() {
            return Err(Error::Usage(
                "--setup makes private files, which --in-place does not use; leave one out".into(),
            ));
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            plan: Plan {
                at: match arguments.at {
                    CrashAt::Persist => At::Persist,
                    CrashAt::Store => At::Store,
                },
                visits: arguments.visits.unwrap_or(AUTOMATIC),
                reorder: arguments.reorder.then_some(arguments.reorder_states as usize),
            },
            mode: match arguments.persistency {
                Persistency::Adr => Mode::Adr,
                Persistency::Eadr => Mode::Eadr,
            },
            pedantic: arguments.reporting.pedantic,
            recover: arguments.recover.clone(),
            oracle: arguments.oracle.as_deref().map(sandbox::shell),
            timeout: arguments.recover_timeout,
            // Two servers cannot have one port.
            jobs: if workload.client.is_some() { 1 } else { arguments.jobs.map_or(cores, usize::from) },
            recoveries: if workload.in_place { 0 } else { arguments.crash_recoveries as usize },
            budget: arguments.budget,
            require_complete: arguments.require_complete,
            sample: arguments.sample.map(|n| n as usize),
            shard: arguments.shard.map(|(k, n)| (k as usize - 1, n as usize)),
            driver: match &arguments.recover_client {
                Some(client) => workload::driver(workload, Some(client))?,
                None => None,
            },
            setup: workload.setup.clone(),
            pm: workload.pm.clone(),
            in_place: workload.in_place,
        })
    }

    /// The recovery: what the user named, or the program once more.
    pub(super) fn recovery_command(&self, workload: &Workload) -> Vec<OsString> {
        workload.recovery_command(self.recover.as_deref())
    }

    /// All that decides what is tried and what is expected.
    pub(super) fn identity(&self) -> Identity {
        let text = |name: &str, value: &dyn std::fmt::Debug| (name.to_owned(), format!("{value:?}"));
        Identity::from([
            text("plan", &self.plan),
            text("mode", &self.mode),
            text("recover", &self.recover),
            text("oracle", &self.oracle),
            text("crash-recoveries", &self.recoveries),
            text("setup", &self.setup),
            text("pm", &self.pm),
            text("in-place", &self.in_place),
        ])
    }

    pub(super) fn engines(&self) -> Vec<String> {
        let mut engines = vec!["inject".into(), "rules".into()];
        if self.plan.reorder.is_some() {
            engines.push("reorder".into());
        }
        engines
    }
}
