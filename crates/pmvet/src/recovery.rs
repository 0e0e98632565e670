//! The recovery that the user asked for: how it is run, and whether it works when nothing has crashed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use pmvet_engines::inject::Recovery;
use pmvet_engines::inject::trial::{Bench, room};
use pmvet_findings::Outcome;
use pmvet_model::Mode;
use pmvet_target::crash::{VersionId, Versions};
use pmvet_target::launch::pm_variables;
use pmvet_target::program::Program;
use pmvet_target::sandbox;
use pmvet_target::sandbox::driver::Driver;

use crate::cli::{self, Persistency};
use crate::exit::{Error, Exit};
use crate::system;
use crate::workload::{self, Workload};

/// A recovery that is only to be seen to work may take this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);
/// A recovery hangs if it takes this many times as long as without a crash ...
const SLOW: u32 = 10;
/// ... but not before this.
const LEAST_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings as text, to be compared.
pub(crate) type Identity = BTreeMap<String, String>;

/// What the command line says about recoveries, in plain terms.
#[derive(Debug, Clone)]
pub(crate) struct Recovering {
    pub(crate) mode: Mode,
    recover: Option<String>,
    pub(crate) oracle: Option<Vec<OsString>>,
    timeout: Option<Duration>,
    pub(crate) jobs: usize,
    pub(crate) budget: Option<Duration>,
    setup: Option<String>,
    pm: Vec<String>,
    in_place: bool,
}

impl Recovering {
    pub(crate) fn new(arguments: &cli::Recovering, workload: &cli::Workload) -> Result<Self, Error> {
        if workload.in_place && workload.setup.is_some() {
            return Err(Error::Usage(
                "--setup makes private files, which --in-place does not use; leave one out".into(),
            ));
        }
        let cores = system::cores();
        Ok(Self {
            mode: match arguments.persistency {
                Persistency::Adr => Mode::Adr,
                Persistency::Eadr => Mode::Eadr,
            },
            recover: arguments.recover.clone(),
            oracle: arguments.oracle.as_deref().map(sandbox::shell),
            timeout: arguments.recover_timeout,
            // Two servers cannot have one port.
            jobs: if workload.client.is_some() { 1 } else { arguments.jobs.map_or(cores, usize::from) },
            budget: arguments.budget,
            setup: workload.setup.clone(),
            pm: workload.pm.clone(),
            in_place: workload.in_place,
        })
    }

    /// What the user named, or the program once more.
    pub(crate) fn command(&self, workload: &Workload) -> Vec<OsString> {
        workload.recovery_command(self.recover.as_deref())
    }

    /// The same, to be run under DynamoRIO.
    pub(crate) fn program(&self, workload: &Workload) -> Result<Program, Error> {
        match &self.recover {
            // What a shell would only split at spaces needs none, which would have to be traced too.
            Some(line) if is_plain(line) => {
                let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
                Ok(Program::find(&words)?)
            }
            Some(_) => Ok(Program::find(&self.command(workload))?),
            None => Ok(workload.program.clone()),
        }
    }

    /// How it is run without instrumentation, on the files that the workload leaves in its last version.
    pub(crate) fn natively(
        &self,
        workload: &Workload,
        driver: Option<Arc<Driver>>,
        versions: &Versions,
        last: VersionId,
    ) -> Recovery {
        let bytes: u64 = versions.get(last).iter().flat_map(|v| &v.files).map(|f| f.size).sum();
        Recovery {
            command: self.command(workload),
            input: workload.input.clone(),
            variables: pm_variables().collect(),
            timeout: self.timeout.unwrap_or(PATIENCE),
            oracle: self.oracle.as_deref().map(|oracle| with_paths(oracle, &files(versions, last))),
            files: workload.files.clone(),
            most_bytes: room(bytes),
            driver,
        }
    }

    /// All that decides what is tried and what is expected, together with what an engine adds.
    pub(crate) fn identity<const N: usize>(&self, more: [(&str, &dyn std::fmt::Debug); N]) -> Identity {
        let mine: [(&str, &dyn std::fmt::Debug); 6] = [
            ("mode", &self.mode),
            ("recover", &self.recover),
            ("oracle", &self.oracle),
            ("setup", &self.setup),
            ("pm", &self.pm),
            ("in-place", &self.in_place),
        ];
        let text = |(name, value): (&str, &dyn std::fmt::Debug)| (name.to_owned(), format!("{value:?}"));
        mine.into_iter().chain(more).map(text).collect()
    }
}

/// How long a recovery may take, given how long it takes without a crash.
pub(crate) fn usual_timeout(undisturbed: Duration) -> Duration {
    (undisturbed * SLOW).max(LEAST_TIMEOUT)
}

/// The PM files that there are in a version.
pub(crate) fn files(versions: &Versions, version: VersionId) -> Vec<OsString> {
    let files = versions.get(version).into_iter().flat_map(|v| &v.files);
    files.filter(|f| f.exists).map(|f| f.path.clone().into()).collect()
}

/// How a recovery goes on what the undisturbed run left, and how long one may take after a crash.
pub(crate) struct Proven {
    pub(crate) usual: Outcome,
    pub(crate) timeout: Duration,
}

impl Recovering {
    /// Runs the recovery, and the oracle, on what the undisturbed run left. Says how pmvet ends if they cannot be trusted.
    pub(crate) fn prove(
        &self,
        recovery: &Recovery,
        versions: &Versions,
        last: VersionId,
    ) -> Result<Result<Proven, Exit>, Error> {
        let trial = recovery.run(&mut Bench::default(), versions, last, &[], None);
        let Some(trial) = trial.map_err(|e| failed("run", "the recovery", e))? else {
            return Ok(Err(Exit::Interrupted));
        };
        if trial.outcome != (Outcome::Exit { status: 0 }) {
            let what = match &trial.outcome {
                Outcome::Oracle { .. } => "the oracle rejects the files although nothing was injected",
                _ => "the recovery fails although nothing was injected; --recover names another command",
            };
            return Ok(Err(workload::failed(what, &trial.outcome, &trial.output)));
        }
        let timeout = self.timeout.unwrap_or(usual_timeout(trial.time));
        Ok(Ok(Proven { usual: trial.outcome, timeout }))
    }
}

/// A command line that a shell would do nothing to but split it at spaces.
fn is_plain(line: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || " /._-+:,@%".contains(c);
    // A first word without a slash may be a builtin of the shell.
    line.chars().all(plain) && line.split_whitespace().next().is_some_and(|first| first.contains('/'))
}

/// A shell command that gets paths as its last arguments.
pub(crate) fn with_paths(command: &[OsString], paths: &[OsString]) -> Vec<OsString> {
    let mut command = command.to_vec();
    if let Some(line) = command.last_mut() {
        line.push(" \"$@\"");
    }
    command.push("oracle".into());
    command.extend(paths.iter().cloned());
    command
}

/// What could not be done, as the user is told.
pub(crate) fn failed(action: &'static str, what: &str, source: io::Error) -> Error {
    Error::Output { action, what: what.into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_lines_do_without_a_shell() {
        assert!(is_plain("./prog /dev/shm/pool -n 0"));
        for line in ["prog x", "./prog $X", "./prog 'a b'", "./prog; true", "X=1 ./prog", "./prog > log", ""] {
            assert!(!is_plain(line), "{line}");
        }
    }
}
