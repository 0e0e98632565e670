//! Which failures of recoveries are the same.

use pmvet_findings::{Outcome, Stack};

use crate::stacks::user_frame;

/// Where a recovery hangs or is killed: the same place means the same bug.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct FailurePlace {
    how: String,
    functions: Vec<String>,
}

impl FailurePlace {
    /// Nothing if the place is unknown, or if the recovery exited by itself.
    pub(super) fn new(outcome: &Outcome, stack: &Stack) -> Option<Self> {
        let how = match outcome {
            Outcome::Hang { .. } => "hang".to_owned(),
            Outcome::Signal { name, .. } => name.clone(),
            _ => return None,
        };
        let own = stack.iter().skip(user_frame(stack)?);
        let functions: Vec<String> = own.filter_map(|frame| frame.function.clone()).take(FAILING_CALLS).collect();
        (!functions.is_empty()).then_some(Self { how, functions })
    }
}

/// How many calls of a stack tell failures apart.
const FAILING_CALLS: usize = 2;
