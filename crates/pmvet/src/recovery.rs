//! The recovery that the user asked for: how to run it, and whether it works without a crash.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pmvet_engines::lab::{LabError, ProvenRecovery, RecoveryPlan, UnprovenRecovery};
use pmvet_findings::{Coverage, Outcome};
use pmvet_model::Mode;
use pmvet_target::Workload;
use pmvet_target::program::Program;
use pmvet_target::sandbox;
use pmvet_target::sandbox::driver::Driver;

use crate::budget;
use crate::cli::{self, Persistency};
use crate::config::Config;
use crate::driver::NoReport;
use crate::durable::DurableSettings;
use crate::exit::{Error, Exit};
use crate::system;
use crate::workload;

/// Settings as text, to compare runs. Most have the names of their flags.
pub(crate) type Identity = BTreeMap<String, String>;

/// Settings without a flag of the same name.
const CONFIG: &str = "configuration";
pub(crate) const PLAN: &str = "plan";
pub(crate) const ENGINE: &str = "engine";
/// Marks runs made by `pmvet merge`.
pub(crate) const MERGED: &str = "merged";

/// Tells shards of one run apart.
pub(crate) const SHARD: &str = "shard";

/// Adds the shard, if the run does only a part of the work.
pub(crate) fn add_shard(identity: &mut Identity, shard: Option<(usize, usize)>) {
    if let Some((k, n)) = shard {
        identity.insert(SHARD.into(), format!("{}/{n}", k + 1));
    }
}

/// Which settings differ, by the names that users know.
pub(crate) fn differences(before: &Identity, now: &Identity) -> Vec<String> {
    let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let word = |name: &str| match name {
        CONFIG => "the configuration file".into(),
        PLAN => "--at, --visits, --reorder or --reorder-states".into(),
        ENGINE => "another command of pmvet".into(),
        MERGED => "no run of its own, but joined shards".into(),
        flag => format!("--{flag}"),
    };
    names.into_iter().filter(|&name| before.get(name) != now.get(name)).map(|name| word(name)).collect()
}

/// What the command line says about recoveries, in plain terms.
#[derive(Debug, Clone)]
pub(crate) struct Recovering {
    pub(crate) mode: Mode,
    recover: Option<String>,
    /// The recovery only looks at the files, and reads no operations.
    looks: bool,
    pub(crate) oracle: Option<Vec<OsString>>,
    timeout: Option<Duration>,
    pub(crate) jobs: usize,
    pub(crate) budget: Option<Duration>,
    setup: Option<String>,
    pm: Vec<OsString>,
    in_place: bool,
    client: Option<String>,
    ready_when: Option<String>,
    stop: Option<String>,
    /// The parts of the configuration on which results depend.
    config: String,
}

impl Recovering {
    pub(crate) fn new(arguments: &cli::Recovering, workload: &cli::Workload) -> Result<Self, Error> {
        one_at_a_time(workload.client.as_deref(), arguments.jobs)?;
        let cores = system::cores();
        // These decide what is shown and kept, or stand for flags, which are in the settings already.
        let config = Config {
            suppress: Vec::new(),
            runs_limit: Default::default(),
            defaults: Default::default(),
            ..Config::load(workload.config.as_deref())?
        };
        Ok(Self {
            mode: match arguments.persistency {
                Persistency::Adr => Mode::Adr,
                Persistency::Eadr => Mode::Eadr,
            },
            recover: arguments.recover.clone(),
            looks: false,
            oracle: arguments.oracle.as_deref().map(sandbox::shell),
            timeout: arguments.recover_timeout,
            // Two servers cannot share one port.
            jobs: if workload.client.is_some() { 1 } else { arguments.jobs.map_or(cores, usize::from) },
            budget: arguments.budget,
            setup: workload.setup.clone(),
            pm: workload.pm.clone(),
            in_place: workload.in_place,
            client: workload.client.clone(),
            ready_when: workload.ready_when.as_ref().map(ToString::to_string),
            stop: workload.stop.clone(),
            config: format!("{config:?}"),
        })
    }

    /// What to compare for a program that is not a server, if anything. The command that shows the files also recovers them, unless the
    /// user named a recovery.
    pub(crate) fn show_by(&mut self, arguments: &cli::Durable) -> Option<DurableSettings> {
        let durable = DurableSettings::new(arguments, self.recover.is_some(), false);
        if let Some(dump) = &arguments.dump {
            self.recover_by(dump);
        }
        durable
    }

    /// Lets this command, which shows the content of the files, also recover them, unless the user named a recovery.
    pub(crate) fn recover_by(&mut self, dump: &str) {
        self.looks = self.recover.is_none();
        self.recover.get_or_insert_with(|| dump.into());
    }

    /// The recovery that the user named, or the program once more.
    pub(crate) fn command(&self, workload: &Workload) -> Vec<OsString> {
        workload.recovery_command(self.recover.as_deref())
    }

    /// The same, to be run under DynamoRIO.
    pub(crate) fn program(&self, workload: &Workload) -> Result<Program, Error> {
        match &self.recover {
            // A line that a shell would only split at spaces runs without a shell, which would have to be traced too.
            Some(line) if is_plain(line) => {
                let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
                Ok(Program::find(&words)?)
            }
            Some(_) => Ok(Program::find(&self.command(workload))?),
            None => Ok(workload.program.clone()),
        }
    }

    /// How it is run without instrumentation.
    pub(crate) fn natively(&self, workload: &Workload, driver: Option<Arc<Driver>>) -> RecoveryPlan {
        RecoveryPlan {
            command: self.command(workload),
            input: workload.input.clone().filter(|_| !self.looks),
            timeout: self.timeout,
            oracle: self.oracle.clone(),
            files: workload.left.clone(),
            driver,
        }
    }

    /// All settings that decide what is tried and what is expected, with those that an engine adds.
    pub(crate) fn identity<const N: usize>(&self, more: [(&str, &dyn std::fmt::Debug); N]) -> Identity {
        let mine: [(&str, &dyn std::fmt::Debug); 11] = [
            ("persistency", &self.mode),
            ("recover", &self.recover),
            ("oracle", &self.oracle),
            ("recover-timeout", &self.timeout),
            ("setup", &self.setup),
            ("pm", &self.pm),
            ("in-place", &self.in_place),
            ("client", &self.client),
            ("ready-when", &self.ready_when),
            ("stop", &self.stop),
            (CONFIG, &self.config),
        ];
        let text = |(name, value): (&str, &dyn std::fmt::Debug)| (name.to_owned(), format!("{value:?}"));
        mine.into_iter().chain(more).map(text).collect()
    }
}

/// Refuses `--jobs` for servers: their recoveries run one after the other, since two cannot share one port.
pub(crate) fn one_at_a_time(client: Option<&str>, jobs: Option<u16>) -> Result<(), Error> {
    match jobs {
        Some(2..) if client.is_some() => {
            Err(Error::Usage("--jobs: recoveries of a server (--client) run one at a time; leave it out".into()))
        }
        _ => Ok(()),
    }
}

/// How the recovery ends without a crash, how long it may take, and, if it had to run for that, what it printed. An earlier part of the
/// same run may already know the first two.
pub(crate) fn usual(
    known: (Option<&Outcome>, Option<Duration>),
    has_oracle: bool,
    has_dump: bool,
    prove: impl FnOnce() -> Result<Result<ProvenRecovery, UnprovenRecovery>, LabError>,
) -> Result<(Outcome, Duration, Option<String>), NoReport> {
    if let (Some(usual), Some(timeout)) = known {
        return Ok((usual.clone(), timeout, None));
    }
    match prove()? {
        Ok(ProvenRecovery { usual, timeout, output }) => {
            Ok((usual, timeout, Some(String::from_utf8_lossy(&output).into_owned())))
        }
        Err(why) => Err(NoReport::Exit(unproven(&why, has_oracle, has_dump))),
    }
}

/// Explains that a recovery, or its oracle, does not work on what the undisturbed run left, and returns the exit code.
fn unproven(why: &UnprovenRecovery, has_oracle: bool, has_dump: bool) -> Exit {
    match why {
        UnprovenRecovery::Interrupted => {
            let what = match has_oracle {
                true => "the recovery, or its oracle, with no fault injected,",
                false => "the recovery, with no fault injected,",
            };
            budget::exit_if_cut_short(what).unwrap_or(Exit::Interrupted)
        }
        UnprovenRecovery::Fails { outcome: Outcome::Oracle { status, output }, .. } => workload::failed(
            "the oracle rejects the files although nothing was injected",
            &format!("it ends with status {status}"),
            output.as_bytes(),
        ),
        UnprovenRecovery::Fails { outcome, output } => workload::failed(
            match has_dump {
                true => {
                    "the recovery, or the dump after it, fails although nothing was injected; see --recover and --dump"
                }
                false => "the recovery fails although nothing was injected; --recover names another command",
            },
            outcome,
            output,
        ),
    }
}

/// Whether a shell would only split this command line at spaces.
fn is_plain(line: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || " /._-+:,@%".contains(c);
    // A first word without a slash may be a builtin of the shell.
    line.chars().all(plain) && line.split_whitespace().next().is_some_and(|first| first.contains('/'))
}

/// Names the writes by system calls that a crash never loses.
pub(crate) fn note_file_writes(file_writes: u64, coverage: &mut Coverage) {
    let what = match file_writes {
        0 => return,
        1 => "a missing `fsync`: 1 write by a system call counts as persistent at once".to_owned(),
        n => format!("missing `fsync` calls: {n} writes by system calls count as persistent at once"),
    };
    coverage.not_covered.push(what);
}

/// The error if the journal of an interrupted run cannot be used.
pub(crate) fn journal_damaged(path: &Path, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::InvalidData => {
            Error::Run(format!("{error}. Start a new run without --resume, or remove that line to try that again"))
        }
        _ => failed("read", &path.display().to_string(), error),
    }
}

/// Says that the journal of a killed run has lost its last line.
pub(crate) fn say_torn(path: &Path) {
    let path = path.display();
    eprintln!("pmvet: the last line of {path} was cut off when that run was killed; what it was about is tried again");
}

/// An error about what could not be done to what.
pub(crate) fn failed(action: &'static str, what: &str, source: io::Error) -> Error {
    Error::Output { action, what: what.into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_differ_are_named_as_the_user_knows_them() {
        let identity = |settings: &[(&str, &str)]| -> Identity {
            settings.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
        };
        let before = identity(&[("recover-timeout", "None"), (CONFIG, "a"), (PLAN, "p"), ("stop", "x")]);
        let now =
            identity(&[("recover-timeout", "Some(5s)"), (CONFIG, "b"), (PLAN, "p"), ("stop", "x"), ("shard", "1/2")]);
        assert_eq!(differences(&before, &now), ["the configuration file", "--recover-timeout", "--shard"]);
        assert!(differences(&now, &now).is_empty());
    }

    #[test]
    fn only_plain_lines_do_without_a_shell() {
        assert!(is_plain("./prog /dev/shm/pool -n 0"));
        for line in ["prog x", "./prog $X", "./prog 'a b'", "./prog; true", "X=1 ./prog", "./prog > log", ""] {
            assert!(!is_plain(line), "{line}");
        }
    }
}
