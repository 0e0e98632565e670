//! What the command line asks of a verification, in plain terms.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use pmvet_model::Mode;
use pmvet_target::program::Program;
use pmvet_target::sandbox;

use crate::cli::{self, Persistency};
use crate::exit::Error;
use crate::workload::Workload;

#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) mode: Mode,
    recover: Option<String>,
    pub(super) oracle: Option<Vec<OsString>>,
    pub(super) timeout: Option<Duration>,
    pub(super) failures: u8,
    pub(super) most: u64,
    pub(super) patience: u64,
    pub(super) checksums: bool,
    pub(super) jobs: usize,
    pub(super) budget: Option<Duration>,
    setup: Option<String>,
    pm: Vec<String>,
    in_place: bool,
}

impl Settings {
    pub(super) fn new(arguments: &cli::Verify) -> Result<Self, Error> {
        let workload = &arguments.workload;
        if workload.in_place && workload.setup.is_some() {
            return Err(Error::Usage(
                "--setup makes private files, which --in-place does not use; leave one out".into(),
            ));
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            mode: match arguments.persistency {
                Persistency::Adr => Mode::Adr,
                Persistency::Eadr => Mode::Eadr,
            },
            recover: arguments.recover.clone(),
            oracle: arguments.oracle.as_deref().map(sandbox::shell),
            timeout: arguments.recover_timeout,
            failures: arguments.failures,
            most: arguments.max_executions.unwrap_or(u64::MAX),
            patience: if arguments.checksums { 0 } else { arguments.patience },
            checksums: arguments.checksums,
            jobs: arguments.jobs.map_or(cores, usize::from),
            budget: arguments.budget,
            setup: workload.setup.clone(),
            pm: workload.pm.clone(),
            in_place: workload.in_place,
        })
    }

    /// The recovery: what the user named, or the program once more.
    pub(super) fn recovery_command(&self, workload: &Workload) -> Vec<OsString> {
        match &self.recover {
            // A shell in between would have to be traced too.
            Some(line) if is_plain(line) => line.split_whitespace().map(OsString::from).collect(),
            Some(line) => sandbox::shell(line),
            None => {
                let mut command = workload.program.arguments.clone();
                if let Some(first) = command.first_mut() {
                    *first = workload.program.executable.clone().into();
                }
                command
            }
        }
    }

    /// The same, to be run under DynamoRIO.
    pub(super) fn recovery_program(&self, workload: &Workload) -> Result<Program, Error> {
        match &self.recover {
            Some(_) => Ok(Program::find(&self.recovery_command(workload))?),
            None => Ok(workload.program.clone()),
        }
    }

    /// All that decides what is tried and what is expected.
    pub(super) fn identity(&self) -> BTreeMap<String, String> {
        let text = |name: &str, value: &dyn std::fmt::Debug| (name.to_owned(), format!("{value:?}"));
        BTreeMap::from([
            text("engine", &"verify"),
            text("mode", &self.mode),
            text("recover", &self.recover),
            text("oracle", &self.oracle),
            text("failures", &self.failures),
            text("patience", &self.patience),
            text("setup", &self.setup),
            text("pm", &self.pm),
            text("in-place", &self.in_place),
        ])
    }
}

/// A command line that a shell would do nothing to but split it at spaces.
fn is_plain(line: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || " /._-+:,@%".contains(c);
    // A first word without a slash may be a builtin of the shell.
    line.chars().all(plain) && line.split_whitespace().next().is_some_and(|first| first.contains('/'))
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
