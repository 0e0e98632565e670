//! The start of every inner run of a worker: a working sandbox, and the files that the set-up makes.

use pmvet_target::sandbox::{Capture, Overlay};

use crate::cli;
use crate::config::Config;
use crate::driver::inner::InnerReport;
use crate::exit::Error;
use crate::isolation;
use crate::workload;

/// The files that inner runs start with. The set-up runs once in each worker, when the first job needs it.
pub(super) struct BaseFiles<'a> {
    workload: &'a cli::Workload,
    config: &'a Config,
    /// Why nothing can be run.
    refused: Option<Error>,
    files: Option<Overlay>,
}

impl<'a> BaseFiles<'a> {
    /// Call this in a process with one thread. `pm`: which files are PM, as globs.
    pub(super) fn new(workload: &'a cli::Workload, config: &'a Config, pm: &[String]) -> Self {
        let refused = isolation::start(pm.iter().map(Into::into).collect()).err();
        Self { workload, config, refused, files: None }
    }

    /// Private files for the next run, or why there are none.
    pub(super) fn files(&mut self) -> Result<Overlay, InnerReport> {
        if let Some(error) = &self.refused {
            return Err(InnerReport::from(error));
        }
        if self.files.is_none() {
            self.files = Some(self.set_up()?);
        }
        Ok(self.files.as_ref().map_or_else(|| Overlay::new(Capture::Named), |files| files.above(Capture::Named)))
    }

    fn set_up(&self) -> Result<Overlay, InnerReport> {
        let Some(line) = &self.workload.setup else { return Ok(Overlay::new(Capture::Named)) };
        let made = std::env::current_dir()
            .map_err(|source| Error::Output { action: "find", what: "the current folder".into(), source })
            .and_then(|here| workload::describe(self.workload, self.config, &here))
            .and_then(|mut workload| Ok((workload::set_up(&mut workload, line)?, workload.files)));
        match made {
            Ok((None, files)) => Ok(files),
            Ok((Some(exit), _)) => Err(InnerReport::nothing(exit)),
            Err(error) => Err(InnerReport::from(&error)),
        }
    }
}
