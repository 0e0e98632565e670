//! Exhaustive search of what a crash can leave behind, as far as the recovery reads it.
//!
//! After Jaaru (Gorjiara, Xu and Demsky, ASPLOS 2021), sections 3 and 4. A crash leaves each cache line with some prefix of its stores, at or
//! after what flushes and fences guarantee. Instead of trying all combinations, it runs a recovery on one of them, and only the loads
//! that could have seen something else lead to further executions.
//!
//! * [`points`] — where crashes matter; [`line`] — what a line may hold then; [`crash`] — a crash as a whole.
//! * [`explore`] — the search itself: pure, one execution at a time, from a queue of partial decisions; [`reads`] — what an execution has
//!   read.
//! * [`nested`] — crashes in the recovery: its own stores lie on top of what an earlier crash left undecided.
//! * [`scan`] — from a recorded run to crashes; [`campaign`] — all of them, several at a time; [`journal`] — past executions, for
//!   `--resume`.
//! * [`traced`] — the recovery, and the oracle if there is one, run under DynamoRIO on a crash image.
//! * [`blame`] — which store decides a failure; `broken_states` — which failures show the same broken state; [`findings`] — the results in
//!   words.
//!
//! Deviations from the paper:
//!
//! * Nothing is simulated. The recovery runs as it is, on a concrete image; another choice is another run. The executions are the same.
//! * A choice is what a load *sees*, not which store it comes from: two stores that leave the same bytes are one choice, whatever the
//!   interval between them. Never more executions than the paper's, often fewer (memory that is set to zero twice).
//! * Crashes come before operations that make something persistent, not before every flush: a `clwb` alone raises no bound, so what a crash
//!   before it can leave, a crash before its fence can leave too.
//! * Store buffers are not simulated: stores count in the observed order. See `pmvet-model`.
//! * Checksums: a choice whose consequences have been seen before from the same point waits until there is nothing else to do
//!   ([`Explorer::done`]). The search is exhaustive unless it runs out of patience first, and then it says so.
//!
//! With `--durable`, contents are compared with what was [promised](crate::promises): the command that shows them is watched like
//! the recovery, a native run on the same image gives the content, which belongs to the outcome of an execution, and crashes also
//! come right after answers.
//!
//! What a complete search says: no crash of *this* run, at any of its moments, leaves an image on which *this* recovery fails, if the
//! recovery depends on nothing but the image (executions that show otherwise are counted).
//!
//! What it misses: other inputs and other thread schedules; errors that neither the recovery, nor the oracle, nor the dump shows.

pub mod blame;
pub mod campaign;
pub mod crash;
pub mod explore;
pub mod findings;
pub mod journal;
pub mod line;
pub mod nested;
pub mod points;
pub mod reads;
pub mod scan;
pub mod traced;
pub mod verification;

mod broken_states;
mod watcher;

pub use campaign::{
    ConfirmNatively, CrashSearch, FailedExecution, NativeOutcome, Observe, SearchProgress, SearchResult, TimeLimit,
};
pub use crash::{CrashMoment, PendingLines};
pub use explore::{Execution, Executor, Explorer, Feasible, ImageChoice, PlannedExecution, Split, explore, walk};
pub use journal::SearchJournal;
pub use line::{Uncertain, UncertainLines, Writer};
pub use points::FailurePointFinder;
pub use reads::{Observer, UncertainRead};
pub use scan::{Crash, CrashScan, CrashScanner};
pub use traced::{Ended, Observed, TraceFailure, Traced};
pub use verification::{Verification, Verified, VerifyObserver, VerifyPlan};
