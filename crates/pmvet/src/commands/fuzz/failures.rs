//! Failures of test cases: each is run once more, natively, and counts only if it fails again.

use pmvet_engines::fuzz::campaign::{FailedCase, FuzzError};
use pmvet_engines::fuzz::case::Case;
use pmvet_engines::fuzz::failed_cases::{FailedCases, NativeEnd};
use pmvet_engines::fuzz::store::ImageStore;
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
///
/// Where a case fails alike without the crash that its image came from, the crash has nothing to do with it, and that case takes its place.
pub(super) fn findings(failures: &mut [FailedCase], start: &mut FuzzStart) -> Result<(Vec<Finding>, usize), Error> {
    failures.sort_by_key(|failure| failure.end == ForkedEnd::Timeout);
    let command = start.workload.command.iter().map(|word| word.to_string_lossy().into_owned());
    let mut failed = FailedCases::new(command.collect());
    let (mut stacks, mut unwinder) = (NativeStacks::default(), Unwinder::default());
    let native = NativeRuns::from_start(start);
    let (store, files) = (&mut start.store, &start.target.overlay);
    let mut end = |case: &Case, store: &mut ImageStore| -> Result<Tried, Error> {
        // There may have been no room for it in the corpus.
        let Ok(content) = store.get(case.image) else { return Ok(Tried::Lost) };
        let run = native.run(files, &content, &case.input, &mut unwinder).map_err(FuzzError::Corpus)?;
        let Some(outcome) = native.outcome(&run) else { return Ok(Tried::Interrupted) };
        if matches!(outcome, Outcome::Exit { .. }) {
            return Ok(Tried::Good);
        }
        let output = String::from_utf8_lossy(&run.output).into_owned();
        let stack = stacks.stack(&run.stack);
        Ok(Tried::Failed(NativeEnd { outcome, stack, output, seconds: run.time.as_secs_f64() }))
    };
    let mut left = failures.len().min(MOST);
    for FailedCase { case, .. } in failures.iter_mut().take(MOST) {
        let mut failure = match end(case, store)? {
            Tried::Failed(failure) => failure,
            Tried::Good => {
                left -= 1;
                continue;
            }
            Tried::Lost => continue,
            Tried::Interrupted => break,
        };
        left -= 1;
        if let Some(image) = store.before_crashes(case.image).filter(|image| *image != case.image) {
            let calm = Case { image, input: case.input.clone() };
            if let Tried::Failed(other) = end(&calm, store)?
                && other.is_like(&failure)
            {
                (*case, failure) = (calm, other);
            }
        }
        failed.add(case, store.origin(case.image), failure);
    }
    Ok((failed.into_findings(), left))
}

/// How a test case ended outside of the fuzzer.
enum Tried {
    Failed(NativeEnd),
    Good,
    /// Its image is not there.
    Lost,
    Interrupted,
}
