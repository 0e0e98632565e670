//! One trial: a crash image, the recovery on it, and its outcome.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pmvet_findings::Outcome;
use pmvet_target::crash::{Scratch, VersionId, Versions};
use pmvet_target::launch::signal_name;
use pmvet_target::sandbox::driver::Driver;
use pmvet_target::sandbox::{self, Capture, Output, Overlay, RawFrame, SandboxedEnd, SandboxedProgram, Unwinder};
use serde::{Deserialize, Serialize};

use super::pool::TrialImage;
use crate::promises::judge::{ContentJudge, ContentVerdict, DUMP_OUTPUT};
use crate::promises::{Promise, PromiseId, Promises};

/// How long a recovery may take when the question is only whether it works.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// A recovery hangs if it takes this many times as long as without a crash ...
const SLOW: u32 = 10;
/// ... but not before this.
const LEAST_TIMEOUT: Duration = Duration::from_secs(5);

/// How the program recovers, and how to tell whether it did.
#[derive(Debug, Clone)]
pub struct RecoveryCommand {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Standard input, if it reads any.
    pub input: Option<Arc<File>>,
    /// Additional environment variables.
    pub variables: Vec<(OsString, OsString)>,
    /// A recovery that takes longer hangs. The oracle and the dump get as much time of their own.
    pub timeout: Duration,
    /// Looks at the recovered image; 0 means consistent.
    pub oracle: Option<Vec<OsString>>,
    /// The files beside PM, as the recorded run left them.
    pub files: Overlay,
    /// How much memory the files of one recovery may take.
    pub most_bytes: u64,
    /// For servers: the client that talks to it.
    pub driver: Option<Arc<Driver>>,
    /// What must be there when it has recovered, if contents are compared.
    pub promised: Option<Promised>,
    /// Whether it is known to hang, so that a hang needs no second run.
    pub hangs: Arc<AtomicBool>,
}

/// What the program has promised, and the judge of whether that was kept.
#[derive(Debug, Clone)]
pub struct Promised {
    /// What was promised at each moment of the run.
    pub promises: Arc<Promises>,
    /// Says whether a recovered content keeps a promise.
    pub judge: Arc<ContentJudge>,
}

/// What a recovery did.
#[derive(Debug, Clone)]
pub struct Trial {
    /// How it ended; the oracle's or the judge's verdict, if the recovery itself ended well.
    pub outcome: Outcome,
    /// The end of what it printed, or the content that it or the dump showed.
    pub output: Vec<u8>,
    /// Its stack when it failed, innermost frame first. Empty if it ended as usual.
    pub stack: Vec<RawFrame>,
    /// How long it took, with the oracle and the dump.
    pub time: Duration,
    /// What the image shows, where contents are compared.
    pub shown: ShownContent,
}

/// What a recovered image shows, if contents are compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownContent {
    /// Equal for equal contents. 0: the content was not read.
    pub hash: u64,
    /// It is not known whether the content is right.
    pub not_judged: bool,
}

impl ShownContent {
    /// The content was not read.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// How much memory the files of a recovery may take, if it starts with this many bytes of PM.
pub fn room(bytes: u64) -> u64 {
    bytes.saturating_mul(2).saturating_add(1 << 30)
}

/// How long a recovery may take, given how long it takes without a crash.
pub fn usual_timeout(undisturbed: Duration) -> Duration {
    (undisturbed * SLOW).max(LEAST_TIMEOUT)
}

/// The PM files that exist in a version.
pub fn files(versions: &Versions, version: VersionId) -> Vec<OsString> {
    let files = versions.get(version).into_iter().flat_map(|v| &v.files);
    files.filter(|f| f.exists).map(|f| f.path.clone().into()).collect()
}

/// A shell command that gets paths as its last arguments.
pub fn with_paths(command: &[OsString], paths: &[OsString]) -> Vec<OsString> {
    let mut command = command.to_vec();
    if let Some(line) = command.last_mut() {
        line.push(" \"$@\"");
    }
    command.push("oracle".into());
    command.extend(paths.iter().cloned());
    command
}

/// Whether the machine, not the recovery, may be the reason for this outcome.
fn is_doubtful(outcome: &Outcome, hangs: bool) -> bool {
    // A cluster that ends a job signals all of its processes, and a recovery may get the signal before pmvet does. A recovery that kills
    // itself does so again. And a machine may stall for seconds.
    was_told_to_end(outcome) || matches!(outcome, Outcome::Hang { .. }) && !hangs
}

/// Whether it died of a signal that asks a program to end, which another process may have sent.
fn was_told_to_end(outcome: &Outcome) -> bool {
    let asks = |signal: i32| [libc::SIGTERM, libc::SIGINT, libc::SIGHUP].contains(&signal);
    match outcome {
        Outcome::Signal { signal, .. } => asks(*signal),
        Outcome::Oracle { status, .. } => asks(*status - 128),
        _ => false,
    }
}

/// How many bytes of a recovery's output are kept.
const TAIL: usize = 8 << 10;

/// What a worker keeps from one trial to the next.
#[derive(Debug, Default)]
pub struct Bench {
    scratch: Scratch,
    unwinder: Unwinder,
}

impl RecoveryCommand {
    /// Runs the recovery on an image, twice if the first outcome is doubtful. Nothing if pmvet was asked to stop.
    pub fn run(
        &self,
        bench: &mut Bench,
        versions: &Versions,
        image: TrialImage<'_>,
        usual: Option<&Outcome>,
    ) -> io::Result<Option<Trial>> {
        let trial = self.run_once(bench, versions, image, usual)?;
        // Without a usual outcome, this is the run that shows whether the recovery works at all, and its limit is long.
        let hangs = usual.is_none() || self.hangs.load(Ordering::Relaxed);
        if !trial.as_ref().is_some_and(|trial| is_doubtful(&trial.outcome, hangs)) {
            return Ok(trial);
        }
        let again = self.run_once(bench, versions, image, usual)?;
        if again.as_ref().is_some_and(|trial| matches!(trial.outcome, Outcome::Hang { .. })) {
            self.hangs.store(true, Ordering::Relaxed);
        }
        Ok(again)
    }

    fn run_once(
        &self,
        bench: &mut Bench,
        versions: &Versions,
        image: TrialImage<'_>,
        usual: Option<&Outcome>,
    ) -> io::Result<Option<Trial>> {
        let TrialImage { version, patches, promise } = image;
        let mut overlay = self.files.above(Capture::Named);
        bench.scratch.become_version(versions, version, patches, &mut overlay)?;
        let overlay = Mutex::new(overlay);
        let usual_status = match usual {
            Some(Outcome::Exit { status }) => Some(*status),
            _ => None,
        };
        let (input, driver) = (self.input.as_deref(), self.driver.as_deref());
        // The recovery, or the client that talks to what has recovered, shows the content.
        let shows = self.promised.as_ref().is_some_and(|promised| promised.judge.dump.is_none());
        let (output, client_output) = match (shows, driver) {
            (true, None) => (DUMP_OUTPUT, Output::Tail(0)),
            (true, Some(_)) => (Output::Tail(TAIL), DUMP_OUTPUT),
            (false, _) => (Output::Tail(TAIL), Output::Tail(0)),
        };
        let job = SandboxedProgram { input, driver, usual_status, output, client_output, ..self.job(&self.command) };
        let mut run = sandbox::run(&job, &overlay, &mut bench.unwinder)?;
        if shows && driver.is_some() && run.end == SandboxedEnd::Exit(0) {
            run.output = std::mem::take(&mut run.client_output);
        }
        let mut trial = match self.outcome(run.end) {
            Some(outcome) => {
                let shown = ShownContent::default();
                Trial { outcome, output: run.output, stack: run.stack, time: run.time, shown }
            }
            None => return Ok(None),
        };
        if usual.is_some_and(|usual| *usual == trial.outcome) {
            // It ended as it should, so its stack is of no interest.
            trial.stack.clear();
        }
        if let Some(oracle) = &self.oracle
            && usual.is_none_or(|usual| *usual == trial.outcome)
        {
            let verdict = sandbox::run(&self.job(oracle), &overlay, &mut bench.unwinder)?;
            match verdict.end {
                SandboxedEnd::Exit(0) => {}
                SandboxedEnd::Interrupted => return Ok(None),
                end => {
                    let status = match end {
                        SandboxedEnd::Exit(status) => status,
                        SandboxedEnd::Signal(signal) => 128 + signal,
                        _ => -1,
                    };
                    let output = String::from_utf8_lossy(&verdict.output).into_owned();
                    trial.outcome = Outcome::Oracle { status, output };
                }
            }
            trial.time += verdict.time;
        }
        if let Some(promised) = &self.promised
            && trial.outcome == (Outcome::Exit { status: 0 })
        {
            return self.look(promised, promise, trial, &overlay, bench);
        }
        Ok(Some(trial))
    }

    /// What had been promised before the event with this number.
    pub fn promise_at(&self, seq: u64) -> PromiseId {
        self.promised.as_ref().map_or(PromiseId::NONE, |promised| promised.promises.at(seq))
    }

    /// One of these promises, to be kept for a replay.
    pub fn promise(&self, id: PromiseId) -> Option<Promise> {
        self.promised.as_ref()?.promises.get(id).cloned()
    }

    /// Reads and judges the recovered content. Nothing if pmvet was asked to stop.
    fn look(
        &self,
        promised: &Promised,
        promise: PromiseId,
        mut trial: Trial,
        overlay: &Mutex<Overlay>,
        bench: &mut Bench,
    ) -> io::Result<Option<Trial>> {
        if let Some(dump) = &promised.judge.dump {
            let job = SandboxedProgram { output: DUMP_OUTPUT, ..self.job(dump) };
            let dumped = sandbox::run(&job, overlay, &mut bench.unwinder)?;
            trial.time += dumped.time;
            (trial.output, trial.stack) = (dumped.output, dumped.stack);
            match self.outcome(dumped.end) {
                Some(outcome) => trial.outcome = outcome,
                None => return Ok(None),
            }
            if trial.outcome != (Outcome::Exit { status: 0 }) {
                return Ok(Some(trial));
            }
        }
        let Some(promise) = promised.promises.get(promise) else { return Ok(Some(trial)) };
        let shown = String::from_utf8_lossy(&trial.output);
        let mut verdict = promised.judge.judge(promise, promised.promises.spans(), &shown)?;
        if let ContentVerdict::Broken(_) = verdict
            && promised.judge.dump.is_none()
            && self.driver.is_none()
        {
            // A recovery may have printed messages about recovering, so it runs once more without them. A server's client shows only
            // content.
            let job = SandboxedProgram { output: DUMP_OUTPUT, ..self.job(&self.command) };
            let again = sandbox::run(&job, overlay, &mut bench.unwinder)?;
            trial.time += again.time;
            let Some(outcome) = self.outcome(again.end) else { return Ok(None) };
            if outcome == (Outcome::Exit { status: 0 })
                && let Some(rest) = promised.judge.without_messages(&shown, &String::from_utf8_lossy(&again.output))
            {
                verdict = promised.judge.judge(promise, promised.promises.spans(), &rest)?;
            }
        }
        let hash = promised.judge.content_hash(&shown);
        trial.shown = ShownContent { hash, not_judged: verdict == ContentVerdict::NotJudged };
        match verdict {
            ContentVerdict::Kept | ContentVerdict::NotJudged => {}
            ContentVerdict::Broken(outcome) => trial.outcome = outcome,
            ContentVerdict::Unknown => return Ok(None),
        }
        Ok(Some(trial))
    }

    /// A command on the files of a trial, with the settings that all of them share.
    fn job<'a>(&'a self, command: &'a [OsString]) -> SandboxedProgram<'a> {
        SandboxedProgram {
            variables: &self.variables,
            output: Output::Tail(TAIL),
            timeout: Some(self.timeout),
            most_bytes: self.most_bytes,
            usual_status: Some(0),
            ..SandboxedProgram::new(command)
        }
    }

    fn outcome(&self, end: SandboxedEnd) -> Option<Outcome> {
        Some(match end {
            SandboxedEnd::Exit(status) => Outcome::Exit { status },
            SandboxedEnd::Signal(signal) => Outcome::Signal { signal, name: signal_name(signal).into() },
            SandboxedEnd::Timeout => Outcome::Hang { seconds: self.timeout.as_secs_f64().ceil() as u64 },
            SandboxedEnd::Runaway => Outcome::Signal { signal: libc::SIGXFSZ, name: signal_name(libc::SIGXFSZ).into() },
            SandboxedEnd::Interrupted => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hang_is_doubted_until_one_was_seen_twice() {
        let hang = Outcome::Hang { seconds: 5 };
        assert!(is_doubtful(&hang, false) && !is_doubtful(&hang, true));
        assert!(!is_doubtful(&Outcome::Exit { status: 1 }, false));
    }

    #[test]
    fn only_signals_that_others_send_are_doubted() {
        let died = |signal| Outcome::Signal { signal, name: signal_name(signal).into() };
        let judged = |status| Outcome::Oracle { status, output: String::new() };
        for outcome in [died(libc::SIGTERM), died(libc::SIGINT), died(libc::SIGHUP), judged(128 + libc::SIGTERM)] {
            assert!(was_told_to_end(&outcome), "{outcome:?}");
        }
        for outcome in
            [died(libc::SIGSEGV), died(libc::SIGABRT), judged(1), Outcome::Exit { status: 128 + libc::SIGTERM }]
        {
            assert!(!was_told_to_end(&outcome), "{outcome:?}");
        }
    }
}
