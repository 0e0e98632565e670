//! What the inner runs of a campaign did not do, and why. Many give the same reason, which is reported once.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::driver::inner::{InnerEnd, InnerReport};
use crate::exit::Exit;
use crate::workers::WorkerDeath;

/// How many reasons a report names; the rest is counted.
const MOST_REASONS: usize = 6;
/// Prefixes of a message of pmvet, and of the output of a program.
const MESSAGE_PREFIX: &str = "pmvet: ";
const OUTPUT_HEADING: &str = "the end of its output:";

/// Reasons, with how often each came up.
#[derive(Debug, Default)]
pub(super) struct Shortfalls {
    /// By the reason without its numbers: the count, and the first wording.
    reasons: BTreeMap<String, (u64, String)>,
    /// Runs that pmvet itself could not make, or in which a worker died.
    pub(super) failed: u64,
}

impl Shortfalls {
    /// Notes what an inner run left undone, and the messages it printed.
    pub(super) fn note_run(&mut self, what: &str, run: &InnerReport, said: &str) {
        let mut reasons: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix(MESSAGE_PREFIX)).collect();
        reasons.retain(|line| *line != OUTPUT_HEADING);
        match &run.end {
            InnerEnd::Analysed { .. } => {}
            InnerEnd::NothingAnalysed(_) if !reasons.is_empty() => {}
            InnerEnd::NothingAnalysed(_) => reasons.push("nothing was analysed"),
            InnerEnd::Failed(_, error) => self.take_failure(what, error),
        }
        reasons.extend(run.not_covered.iter().map(String::as_str));
        reasons.into_iter().for_each(|reason| self.add(what, reason));
    }

    /// Notes that a worker died in a run.
    pub(super) fn take_death(&mut self, what: &str, how: WorkerDeath, said: &str) {
        if took_too_long(how) {
            return self.add(what, "it took too long and was ended");
        }
        self.failed += 1;
        let last_words = said.lines().find(|line| !line.trim().is_empty());
        let last_words = last_words.map_or(String::new(), |line| format!(" ({line})"));
        self.add(what, &format!("the process that made it has died: {how}{last_words}"));
    }

    /// Notes that pmvet itself could not make a run.
    pub(super) fn take_failure(&mut self, what: &str, error: &str) {
        self.failed += 1;
        self.add(what, error);
    }

    fn add(&mut self, what: &str, reason: &str) {
        let reason = format!("{what}: {reason}");
        let key = reason.chars().filter(|c| !c.is_ascii_digit()).collect();
        self.reasons.entry(key).or_insert((0, reason)).0 += 1;
    }

    /// A line for each of the most frequent reasons.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut all: Vec<&(u64, String)> = self.reasons.values().collect();
        all.sort_by_key(|(count, _)| Reverse(*count));
        let told = |(count, reason): &&(u64, String)| match count {
            1 => reason.clone(),
            _ => format!("{reason} ({count} times)"),
        };
        let mut lines: Vec<String> = all.iter().take(MOST_REASONS).map(told).collect();
        if all.len() > MOST_REASONS {
            lines.push(format!(
                "{} other reasons why runs within the campaign left something",
                all.len() - MOST_REASONS
            ));
        }
        lines
    }
}

/// Whether a worker has ended itself because its job took too long.
pub(super) fn took_too_long(how: WorkerDeath) -> bool {
    how == WorkerDeath::Exit(Exit::Incomplete.code().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(end: InnerEnd, not_covered: &[&str]) -> InnerReport {
        let not_covered = not_covered.iter().map(|&line| line.into()).collect();
        InnerReport { end, folder: None, findings: Vec::new(), not_covered }
    }

    #[test]
    fn the_same_reason_is_told_once_and_nothing_is_left_out() {
        let mut all = Shortfalls::default();
        let complete = run(InnerEnd::Analysed { complete: true }, &[]);
        all.note_run("a turn", &complete, "");
        assert!(all.lines().is_empty());
        for runs in 3..6 {
            let cut = format!("what more than {runs} runs show");
            all.note_run("a turn", &run(InnerEnd::Analysed { complete: false }, &[&cut]), "");
        }
        all.note_run("a turn", &complete, "pmvet: the program called `mount`\n");
        let said = "pmvet: the target itself fails: exit status 1\npmvet: the end of its output:\n  | oh\n";
        all.note_run("a turn", &run(InnerEnd::NothingAnalysed(Exit::TargetFailed), &[]), said);
        assert_eq!(all.failed, 0);
        all.note_run("check", &run(InnerEnd::Failed(Exit::Internal, "no room".into()), &[]), "");
        all.take_death("check", WorkerDeath::Signal(libc::SIGABRT), "\na bug\nmore\n");
        all.take_death("check", WorkerDeath::Exit(5), "");
        assert_eq!(all.failed, 2);
        assert_eq!(
            all.lines(),
            [
                "a turn: what more than 3 runs show (3 times)",
                "a turn: the program called `mount`",
                "a turn: the target itself fails: exit status 1",
                "check: it took too long and was ended",
                "check: no room",
                "check: the process that made it has died: it was killed by SIGABRT (a bug)",
            ]
        );
        all.note_run("a turn", &run(InnerEnd::NothingAnalysed(Exit::NothingAnalysed), &[]), "");
        assert_eq!(all.lines().len(), 7);
    }
}
