//! The recovery that the user asked for: how it is run, and whether it works when nothing has crashed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pmvet_engines::lab::{LabError, ProvenRecovery, RecoveryPlan, UnprovenRecovery};
use pmvet_findings::Outcome;
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

/// Settings as text, to be compared. Most have the names of their flags.
pub(crate) type Identity = BTreeMap<String, String>;

/// Settings without a flag of the same name.
const CONFIG: &str = "configuration";
pub(crate) const PLAN: &str = "plan";
pub(crate) const ENGINE: &str = "engine";
/// Only runs that `pmvet merge` has made have it.
pub(crate) const MERGED: &str = "merged";

/// Tells shards of one run apart.
pub(crate) const SHARD: &str = "shard";

/// Notes which part of the work a run does, if it does not do it all.
pub(crate) fn add_shard(identity: &mut Identity, shard: Option<(usize, usize)>) {
    if let Some((k, n)) = shard {
        identity.insert(SHARD.into(), format!("{}/{n}", k + 1));
    }
}

/// Which settings differ, as the user knows them.
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
    /// It only looks at the files, and reads no operations.
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
    /// What the configuration says, as far as results depend on it.
    config: String,
}

impl Recovering {
    pub(crate) fn new(arguments: &cli::Recovering, workload: &cli::Workload) -> Result<Self, Error> {
        one_at_a_time(workload.client.as_deref(), arguments.jobs)?;
        let cores = system::cores();
        // These decide what is shown, what is kept, and what flags would say, which are here already.
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
            // Two servers cannot have one port.
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

    /// What is compared of a program that is no server, if anything. What shows the files recovers them, too, if the user named no recovery.
    pub(crate) fn show_by(&mut self, arguments: &cli::Durable) -> Option<DurableSettings> {
        let durable = DurableSettings::new(arguments, self.recover.is_some(), false);
        if let Some(dump) = &arguments.dump {
            self.recover_by(dump);
        }
        durable
    }

    /// Lets this command, which shows what the files hold, recover them, too, if the user named none.
    pub(crate) fn recover_by(&mut self, dump: &str) {
        self.looks = self.recover.is_none();
        self.recover.get_or_insert_with(|| dump.into());
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

    /// All that decides what is tried and what is expected, together with what an engine adds.
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

/// Recoveries of a server come one after the other, since two cannot have one port: more jobs would be a promise that is not kept.
pub(crate) fn one_at_a_time(client: Option<&str>, jobs: Option<u16>) -> Result<(), Error> {
    match jobs {
        Some(2..) if client.is_some() => {
            Err(Error::Usage("--jobs: recoveries of a server (--client) run one at a time; leave it out".into()))
        }
        _ => Ok(()),
    }
}

/// How the recovery ends when nothing was injected, how long it may take, and what it printed, if it had to be run for that: an earlier part
/// of the same run may have found out.
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

/// What to say if a recovery, or its oracle, does not work on what the undisturbed run left, and how pmvet ends.
fn unproven(why: &UnprovenRecovery, has_oracle: bool, has_dump: bool) -> Exit {
    match why {
        UnprovenRecovery::Interrupted => {
            let what = match has_oracle {
                true => "the recovery, or its oracle, with no fault injected,",
                false => "the recovery, with no fault injected,",
            };
            budget::did_not_end(what).unwrap_or(Exit::Interrupted)
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

/// A command line that a shell would do nothing to but split it at spaces.
fn is_plain(line: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || " /._-+:,@%".contains(c);
    // A first word without a slash may be a builtin of the shell.
    line.chars().all(plain) && line.split_whitespace().next().is_some_and(|first| first.contains('/'))
}

/// What to say if the journal of an interrupted run cannot be used.
pub(crate) fn journal_damaged(path: &Path, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::InvalidData => {
            Error::Run(format!("{error}. Start a new run without --resume, or remove that line to try that again"))
        }
        _ => failed("read", &path.display().to_string(), error),
    }
}

/// Tells that the journal of a run that was killed has lost its last line.
pub(crate) fn say_torn(path: &Path) {
    let path = path.display();
    eprintln!("pmvet: the last line of {path} was cut off when that run was killed; what it was about is tried again");
}

/// What could not be done, as the user is told.
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
