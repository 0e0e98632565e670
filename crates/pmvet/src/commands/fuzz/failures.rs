//! Failures of test cases: each is run once more, natively, and counts only if it fails again.

use pmvet_engines::fuzz::campaign::{FailedCase, FuzzError};
use pmvet_engines::fuzz::failed_cases::{FailedCases, NativeEnd};
use pmvet_engines::lab::native::NativeStacks;
use pmvet_findings::{Finding, Outcome};
use pmvet_target::forkserver::ForkedEnd;
use pmvet_target::sandbox::Unwinder;

use super::native::NativeRuns;
use super::start::FuzzStart;
use crate::exit::Error;

/// Failures that look new are tried until there are this many: most are the same.
pub(super) const MOST: usize = 64;

/// Crashes come first, since hangs take longest. Returns how many there was no time for, too.
pub(super) fn findings(mut failures: Vec<FailedCase>, start: &mut FuzzStart) -> Result<(Vec<Finding>, usize), Error> {
    failures.sort_by_key(|failure| failure.end == ForkedEnd::Timeout);
    failures.truncate(MOST);
    let command = start.workload.command.iter().map(|word| word.to_string_lossy().into_owned());
    let mut failed = FailedCases::new(command.collect());
    let (mut stacks, mut unwinder) = (NativeStacks::default(), Unwinder::default());
    let native = NativeRuns::from_start(start);
    let mut left = failures.len();
    for FailedCase { case, .. } in &failures {
        // There may have been no room for it in the corpus.
        let Ok(content) = start.store.get(case.image) else { continue };
        let run = native.run(&start.target.overlay, &content, &case.input, &mut unwinder).map_err(FuzzError::Corpus)?;
        let Some(outcome) = native.outcome(&run) else { break };
        left -= 1;
        if matches!(outcome, Outcome::Exit { .. }) {
            continue;
        }
        let output = String::from_utf8_lossy(&run.output).into_owned();
        let end = NativeEnd { outcome, stack: stacks.stack(&run.stack), output, seconds: run.time.as_secs_f64() };
        failed.add(case, start.store.origin(case.image), end);
    }
    Ok((failed.into_findings(), left))
}
