//! A traced run that starts from a crash image.

use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pmvet_events::{Event, Places};
use pmvet_target::collect::{CollectError, SinkError};
use pmvet_target::crash::{Patch, Scratch, VersionId, Versions};
use pmvet_target::launch::{Ending, LaunchError, TargetExit, stopped_by};
use pmvet_target::program::Program;
use pmvet_target::sandbox::{Capture, SandboxedEnd};
use pmvet_target::{Sink, launch as launch_target};

use super::{Lab, LabError};

/// A thread that spins for this long while nothing else happens waits forever, even on a busy machine.
const QUIET: Duration = Duration::from_millis(700);
/// Poll interval for that.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How to restart.
#[derive(Debug, Clone, Copy)]
pub struct Restart<'a> {
    /// The workload, and the folder for temporary files.
    pub lab: Lab<'a>,
    /// A restart that takes longer hangs.
    pub timeout: Duration,
    /// A restart that has not ended by then gives no result.
    pub deadline: Option<Instant>,
}

/// Watches the events of a restart.
pub trait RestartWatch {
    /// Takes the next event of the restart.
    fn event(&mut self, event: &Event<'_>);
    /// No later event can change the verdict.
    fn is_decided(&self) -> bool;
    /// If no further event comes, the restart hangs.
    fn is_spinning(&self) -> bool {
        false
    }
}

impl Restart<'_> {
    /// Runs the workload, or another command, on a version of PM with some bytes changed. Returns whether it ended well; nothing if
    /// that is unknown: it cannot run on private files, its time was up, pmvet was told to stop, or events were lost.
    pub fn run(
        &self,
        command: Option<&[OsString]>,
        (versions, version, patches): (&Versions, VersionId, &[Patch]),
        watch: &mut impl RestartWatch,
    ) -> Result<Option<bool>, LabError> {
        let mut overlay = self.lab.workload.left.above(Capture::Named);
        Scratch::default()
            .become_version(versions, version, patches, &mut overlay)
            .map_err(|e| LabError::output("make", "a crash image", e))?;
        let mut how = self.lab.workload.launch(true);
        if let Some(command) = command {
            how.program = Program::find(command)?;
        }
        let Some(private) = &mut how.sandbox else { return Ok(None) };
        private.overlay = Arc::new(Mutex::new(overlay));
        (private.timeout, private.by_the_clock) = (Some(self.timeout), false);
        let cancel = Arc::<AtomicBool>::default();
        private.cancel = Some(Arc::clone(&cancel));
        let spins_since = Mutex::new(None);
        let (running, ended) = mpsc::channel::<()>();
        let ended = std::thread::scope(|scope| {
            scope.spawn(|| self.end_early(&spins_since, &cancel, ended));
            let ended = launch_target(&how, self.lab.install, &mut Watched { watch, spins_since: &spins_since });
            drop(running);
            ended
        });
        ended_well(ended, watch.is_decided(), stopped_by().is_some() || self.is_late())
    }

    /// Whether the workload, without instrumentation, soon dies of a fault of its own on a version of PM, as with a pool that holds
    /// addresses of a process that is gone. An instrumented run costs ten times as much and would get no further.
    pub fn dies_natively(&self, versions: &Versions, version: VersionId, within: Duration) -> Result<bool, LabError> {
        let workload = self.lab.workload;
        if workload.driver.is_some() || workload.launch(true).sandbox.is_none() {
            return Ok(false);
        }
        let mut overlay = workload.left.above(Capture::Named);
        Scratch::default()
            .become_version(versions, version, &[], &mut overlay)
            .map_err(|e| LabError::output("make", "a crash image", e))?;
        let run = workload.run_natively_on(overlay, Some(within));
        let run = run.map_err(|e| LabError::output("run", "the program on a crash image", e))?;
        Ok(matches!(run.end, SandboxedEnd::Signal(libc::SIGSEGV | libc::SIGBUS | libc::SIGILL)))
    }

    /// The deadline has passed.
    pub fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Ends a restart in which a thread only spins, or whose deadline has passed. `ended` loses its sender once the restart is over.
    fn end_early(&self, spins_since: &Mutex<Option<Instant>>, cancel: &AtomicBool, ended: Receiver<()>) {
        while ended.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let since = *spins_since.lock().unwrap_or_else(PoisonError::into_inner);
            if since.is_some_and(|since| since.elapsed() >= QUIET) || self.is_late() {
                cancel.store(true, Ordering::Relaxed);
            }
        }
    }
}

/// What a restart's end says about the program.
fn ended_well(ended: Result<Ending, LaunchError>, decided: bool, stopped: bool) -> Result<Option<bool>, LabError> {
    match ended {
        // It was ended early, since the verdict is known.
        Err(LaunchError::Sink(_) | LaunchError::Collect(CollectError::Sink(_))) if decided => Ok(Some(false)),
        // pmvet killed it, so its end says nothing.
        _ if stopped => Ok(None),
        Err(error) => Err(error.into()),
        Ok(Ending { exit: TargetExit::Status(0), loss, .. }) => Ok((loss.events == 0).then_some(true)),
        // A killed restart loses its last events, but it is known that it failed.
        Ok(_) => Ok(Some(false)),
    }
}

/// Ends the run as soon as the verdict is known.
struct Watched<'a, W> {
    watch: &'a mut W,
    /// The time of the last event, if a thread spins since.
    spins_since: &'a Mutex<Option<Instant>>,
}

impl<W: RestartWatch> Sink for Watched<'_, W> {
    fn event(&mut self, event: &Event<'_>, _places: &dyn Places) -> Result<(), SinkError> {
        self.watch.event(event);
        let since = self.watch.is_spinning().then(Instant::now);
        *self.spins_since.lock().unwrap_or_else(PoisonError::into_inner) = since;
        match self.watch.is_decided() {
            true => Err(SinkError("all that is wanted is known".into())),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmvet_target::collect::LostEvents;

    fn ending(exit: TargetExit, loss: LostEvents) -> Ending {
        Ending::new(exit, Duration::ZERO, loss)
    }

    fn enough() -> LaunchError {
        LaunchError::Collect(CollectError::Sink(SinkError("all that is wanted is known".into())))
    }

    #[test]
    fn only_the_end_of_the_program_is_a_verdict() {
        let whole = LostEvents::default();
        let exit = |status| Ok(ending(TargetExit::Status(status), whole));
        assert_eq!(ended_well(exit(0), false, false).unwrap(), Some(true));
        assert_eq!(ended_well(exit(1), false, false).unwrap(), Some(false));
        assert_eq!(
            ended_well(Ok(ending(TargetExit::Signal(libc::SIGKILL), whole)), false, false).unwrap(),
            Some(false)
        );
        assert_eq!(ended_well(Err(enough()), true, false).unwrap(), Some(false), "decided by what was seen");
    }

    #[test]
    fn what_pmvet_fails_at_is_no_verdict() {
        let not_started = LaunchError::NotStarted {
            path: "/no/drrun".into(),
            source: std::io::Error::from_raw_os_error(libc::EPERM),
        };
        for error in [not_started, LaunchError::GuardDied, LaunchError::ClientFailed("no memory".into())] {
            let told = error.to_string();
            let error = ended_well(Err(error), false, false).unwrap_err();
            assert!(matches!(error, LabError::Launch(_)), "{told}");
            assert!(error.to_string().contains(&told));
        }
        assert!(ended_well(Err(enough()), false, false).is_err(), "nobody asked for that end");
    }

    #[test]
    fn an_end_that_pmvet_made_is_no_verdict() {
        let killed = || Ok(ending(TargetExit::Signal(libc::SIGKILL), LostEvents::default()));
        assert_eq!(ended_well(killed(), false, true).unwrap(), None);
        assert_eq!(ended_well(Err(LaunchError::GuardDied), false, true).unwrap(), None);
        let lost = LostEvents { events: 3, interrupted: 0 };
        assert_eq!(ended_well(Ok(ending(TargetExit::Status(0), lost)), false, false).unwrap(), None);
        assert_eq!(ended_well(Ok(ending(TargetExit::Signal(libc::SIGKILL), lost)), false, false).unwrap(), Some(false));
    }
}
