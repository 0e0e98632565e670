//! A traced run that starts from a crash image.

use std::ffi::OsString;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pmvet_events::{Event, Places};
use pmvet_target::collect::SinkError;
use pmvet_target::crash::{Patch, Scratch, VersionId, Versions};
use pmvet_target::install::Install;
use pmvet_target::launch::Exit as TargetExit;
use pmvet_target::program::Program;
use pmvet_target::sandbox::Capture;
use pmvet_target::{Sink, launch as launch_target};

use crate::exit::Error;
use crate::workload::Workload;

/// How to restart.
pub(super) struct Restart<'a> {
    pub(super) workload: &'a Workload,
    pub(super) install: &'a Install,
    pub(super) timeout: Duration,
}

/// Looks at the events of a restart.
pub(super) trait Watch {
    fn event(&mut self, event: &Event<'_>);
    /// Whatever comes now changes nothing.
    fn is_decided(&self) -> bool;
}

impl Restart<'_> {
    /// Runs the workload, or another command, on a version of PM with some bytes changed. Whether it ended well; nothing if it cannot
    /// be run on private files.
    pub(super) fn run(
        &self,
        command: Option<&[OsString]>,
        (versions, version, patches): (&Versions, VersionId, &[Patch]),
        watch: &mut impl Watch,
    ) -> Result<Option<bool>, Error> {
        let mut overlay = self.workload.files.above(Capture::Mappable);
        Scratch::default().become_version(versions, version, patches, &mut overlay).map_err(failed)?;
        let mut how = self.workload.launch(true);
        if let Some(command) = command {
            how.program = Program::find(command)?;
        }
        let Some(private) = &mut how.sandbox else { return Ok(None) };
        private.overlay = Arc::new(Mutex::new(overlay));
        (private.timeout, private.by_the_clock) = (Some(self.timeout), false);
        let ended = launch_target(&how, self.install, &mut Watched(watch));
        Ok(Some(matches!(&ended, Ok(ending) if ending.exit == TargetExit::Status(0))))
    }
}

pub(super) fn failed(source: std::io::Error) -> Error {
    Error::Output { action: "make", what: "a crash image".into(), source }
}

/// Ends the run as soon as all is known.
struct Watched<'a, W>(&'a mut W);

impl<W: Watch> Sink for Watched<'_, W> {
    fn event(&mut self, event: &Event<'_>, _places: &dyn Places) -> Result<(), SinkError> {
        self.0.event(event);
        match self.0.is_decided() {
            true => Err(SinkError("all that is wanted is known".into())),
            false => Ok(()),
        }
    }
}
