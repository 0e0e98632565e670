//! What the command line asks of a check, in plain terms.

use std::path::PathBuf;
use std::sync::Arc;

use pmvet_engines::check::CheckPlan;
use pmvet_engines::inject::{AUTOMATIC_VISITS, Granularity, InjectionPlan, Reorder};
use pmvet_engines::lab::{Lab, RecoveryPlan};
use pmvet_target::Workload;
use pmvet_target::sandbox::driver::Driver;

use crate::cli::{self, CrashAt};
use crate::durable::{self, DurableSettings};
use crate::exit::{Error, Exit};
use crate::recovery::{self, Identity, Recovering};
use crate::run_folder::RunFolder;
use crate::workload;

#[derive(Debug, Clone)]
pub(crate) struct CheckSettings {
    plan: InjectionPlan,
    pub(crate) recovering: Recovering,
    pedantic: bool,
    /// How many recoveries are crashed, too.
    recoveries: usize,
    /// The file with call paths of failure points that need not be tried again.
    pub(super) known_points: Option<PathBuf>,
    pub(super) sample: Option<usize>,
    pub(super) shard: Option<(usize, usize)>,
    /// No other engine looks at the run.
    pub(super) alone: bool,
    /// Whether crashes must leave what was promised.
    pub(super) durable: Option<DurableSettings>,
    /// For servers: the client of the recovered server, if not that of the workload.
    pub(super) driver: Option<Arc<Driver>>,
}

/// Limits for one of many test cases: reordered states per failure point, and recoveries that are crashed. They may be low, since the next
/// case takes the same paths in another state.
const CASE_REORDER_STATES: usize = 64;
const CASE_CRASHED_RECOVERIES: usize = 2;

impl CheckSettings {
    /// What the engine is to try.
    pub(super) fn plan(&self) -> CheckPlan {
        CheckPlan {
            injection: self.plan,
            mode: self.recovering.mode,
            pedantic: self.pedantic,
            crashed_recoveries: self.recoveries,
            known_paths: self.known_points.clone(),
            sample: self.sample,
            shard: self.shard,
            workers: self.recovering.jobs,
        }
    }

    /// How the workload recovers.
    pub(super) fn recovery_plan(&self, workload: &Workload) -> RecoveryPlan {
        let driver = self.driver.clone().or_else(|| workload.driver.clone());
        self.recovering.natively(workload, driver)
    }

    /// With `--durable` and no dump, finds the questions to ask in the recorded run. If there are none, returns the exit code.
    pub(super) fn settle(&mut self, lab: Lab<'_>, folder: &RunFolder) -> Result<Result<(), Exit>, Error> {
        durable::settle(&mut self.durable, &mut self.recovering, lab, folder)
    }

    /// The defaults, with all reorderings, as `vet` wants them.
    pub(crate) fn with_reorderings(arguments: &cli::Vet) -> Result<Self, Error> {
        Ok(Self {
            plan: InjectionPlan {
                at: Granularity::Persist,
                visits: AUTOMATIC_VISITS,
                reorder: Some(Reorder { states: cli::REORDER_STATES as usize, all: true }),
            },
            recovering: Recovering::new(&arguments.recovering, &arguments.workload)?,
            pedantic: arguments.reporting.pedantic,
            recoveries: if arguments.workload.in_place { 0 } else { cli::CRASHED_RECOVERIES as usize },
            known_points: None,
            sample: None,
            shard: None,
            alone: false,
            durable: None,
            driver: None,
        })
    }

    /// For one of many test cases: with reorderings, but with lower limits. Contents are compared if `durable` says so.
    pub(crate) fn of_case(
        mut recovering: Recovering,
        durable: &cli::Durable,
        known_points: Option<PathBuf>,
        pedantic: bool,
    ) -> Self {
        let durable = recovering.show_by(durable);
        Self {
            plan: InjectionPlan {
                at: Granularity::Persist,
                visits: AUTOMATIC_VISITS,
                reorder: Some(Reorder { states: CASE_REORDER_STATES, all: true }),
            },
            recovering,
            pedantic,
            recoveries: CASE_CRASHED_RECOVERIES,
            known_points,
            sample: None,
            shard: None,
            alone: false,
            durable,
            driver: None,
        }
    }

    pub(super) fn new(arguments: &cli::Check) -> Result<Self, Error> {
        let workload = &arguments.workload;
        let is_shown = arguments.durable.dump.is_some() || arguments.dump_client.is_some();
        if arguments.durable.durable && workload.client.is_some() && !is_shown {
            return Err(Error::Usage(
                "--durable: what shows the content of a recovered server? --dump-client asks it, --dump reads its files".into(),
            ));
        }
        Ok(Self {
            plan: InjectionPlan {
                at: match arguments.at {
                    CrashAt::Persist => Granularity::Persist,
                    CrashAt::Store => Granularity::Store,
                },
                visits: arguments.visits.unwrap_or(AUTOMATIC_VISITS),
                reorder: match arguments.reorder_states {
                    0 => None,
                    states => Some(Reorder { states: states as usize, all: arguments.reorder }),
                },
            },
            recovering: match &arguments.durable.dump {
                // The dump recovers the files, unless a server does.
                Some(dump) if workload.client.is_none() => {
                    let mut recovering = Recovering::new(&arguments.recovering, workload)?;
                    recovering.recover_by(dump);
                    recovering
                }
                _ => Recovering::new(&arguments.recovering, workload)?,
            },
            pedantic: arguments.reporting.pedantic,
            recoveries: if workload.in_place { 0 } else { arguments.crash_recoveries as usize },
            known_points: None,
            sample: arguments.sample.map(|n| n as usize),
            shard: arguments.shard.map(|(k, n)| (k as usize - 1, n as usize)),
            alone: true,
            durable: DurableSettings::new(
                &arguments.durable,
                arguments.recovering.recover.is_some() || workload.client.is_some(),
                workload.client.is_some(),
            ),
            driver: match arguments.dump_client.as_deref().or(arguments.recover_client.as_deref()) {
                Some(client) => workload::driver(workload, Some(client))?,
                // The server only has to recover, so the client asks nothing.
                None if arguments.durable.durable && workload.client.is_some() => {
                    workload::driver(workload, Some("true"))?
                }
                None => None,
            },
        })
    }

    /// All settings that decide what is tried and what is expected.
    pub(super) fn identity(&self) -> Identity {
        let mut identity = self.recovering.identity([
            (recovery::PLAN, &self.plan),
            ("crash-recoveries", &self.recoveries),
            ("recover-client", &self.driver.as_ref().map(|driver| &driver.client)),
            ("durable", &self.durable),
        ]);
        recovery::add_shard(&mut identity, self.shard);
        identity
    }

    /// Whether orders of write-back other than the program's are tried.
    pub(super) fn reorders(&self) -> bool {
        self.plan.reorder.is_some()
    }

    pub(super) fn engines(&self) -> Vec<String> {
        let mut engines = vec!["inject".into(), "rules".into()];
        if self.reorders() {
            engines.push("reorder".into());
        }
        if self.durable.is_some() {
            engines.push("durable".into());
        }
        engines
    }
}
