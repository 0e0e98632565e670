//! An engine that only has the workload recorded, with the needs of another engine, and leaves the work to other machines.

use pmvet_target::Workload;

use super::{Engine, EngineReport, Needs, NoReport, Session};
use crate::budget;
use crate::exit::{Error, Exit};
use crate::run_folder::RunInfo;

pub(crate) struct RecordOnly<E>(pub(crate) E);

impl<E: Engine> Engine for RecordOnly<E> {
    fn names(&self) -> Vec<String> {
        self.0.names()
    }

    fn needs(&self) -> Needs {
        self.0.needs()
    }

    fn prepare(&self, workload: &Workload) -> Result<(), Error> {
        self.0.prepare(workload)
    }

    fn describe(&self, workload: &Workload, info: &mut RunInfo) {
        self.0.describe(workload, info);
    }

    fn run(&mut self, _: &mut Session) -> Result<EngineReport, NoReport> {
        Err(NoReport::Exit(budget::exit_before_analysis().unwrap_or(Exit::Ok)))
    }
}
