//! Races proven: PMRace (Chen, Hua, Zhang, Ding; ASPLOS 2022), sections 4.2 to 4.4.
//!
//! A *meeting* is a race that happened: a thread read what another had stored before it was persistent. What counts is what the
//! reader did next. For each of its next acts, pmvet builds the crash image that loses the store but keeps the act, and the
//! program's own recovery decides whether it can live with that.
//!
//! * [`shared`] — where to look for races that no lockset shows; [`changes`] — which reads would see a store as a change; [`fences`] —
//!   where threads can wait for each other to make that happen; `operation_similarity` — which operations are related.
//! * [`meetings`] — one pass over a recorded run finds the meetings and their images; `undo` — what PM would hold if a
//!   reader had not acted.
//! * [`attempts`] — the pairs of a store and a read that are worth an attempt; [`schedule_picker`] and `chains` — where threads stop in
//!   a forced run; `forced_runs` — several of them at a time; [`search`] — attempts until time runs out.
//! * [`judge`] — recoveries on the images of a run (`judged_run`), in the order of `race_case`; [`merge`] — predictions and proofs put
//!   together; [`replay`] — a schedule that proved a race, forced again; `sync_crashes` — crashes after updates of declared variables.
//! * [`contents`] — with `--durable`, what was acknowledged by the moment of a crash.
//! * [`verdict`] — what the recoveries say about one pair of instructions.
//! * [`taint`], [`flow`] — where the value goes that was read too early.
//! * [`overwritten`] — whether recovery overwrites what the reader made of it.
//! * [`sync_variables`] — declared variables that must have their initial value after recovery.
//! * `losses` — what a crash may lose; `culprits` — whether another store that is lost with it is to blame.
//! * [`allowed`] — code that is known to do no harm.
//! * [`findings`] — a proven race in words.
//!
//! Where it differs from the paper:
//!
//! * The search for meetings covers only what the lockset analysis predicts: a plan (`pmvet_events::plan::Stall`) stops the
//!   writer after its store, and no other thread has to wait.
//! * Recovery is the judge. A race is *confirmed* only if recovery fails on the image that has the act without the store, works on
//!   the image with both, and works on the image without the store from before the act: then the combination is fatal, not a bug
//!   of one thread alone. The paper calls every act whose bytes recovery does not overwrite a bug.
//! * Together with the store that was read, a crash may lose all that its thread had stored before and not persisted: a
//!   reader that relies on a flag relies on what the flag stands for.
//!
//! * A side effect through output is an error where that can be shown: with `--durable`, an answer is an act, and a crash after it
//!   must leave what was acknowledged. Contents that are wrong although nothing is lost are left to `check`.
//!
//! What it misses: acts of a third thread; stores that the workload does not reach.

pub mod allowed;
pub mod attempts;
mod chains;
pub mod changes;
pub mod contents;
mod culprits;
mod failure_place;
pub mod fences;
pub mod findings;
pub mod flow;
mod forced_runs;
mod hanging_moments;
pub mod held_locks;
mod history;
pub mod instruction;
pub mod judge;
mod judged_run;
mod losses;
mod meeting;
pub mod meetings;
pub mod merge;
mod operation_similarity;
pub mod overwritten;
pub mod policy;
mod race_case;
pub mod replay;
pub mod schedule_picker;
pub mod search;
pub mod shared;
mod sync_crashes;
pub mod sync_names;
pub mod sync_variables;
pub mod taint;
mod undo;
pub mod verdict;

pub use flow::{Flow, Flows, SideEffect};
pub use meetings::{Meeting, MeetingCrash, Meetings, PmAccess, SuspectLoss};
pub use verdict::{RaceVerdict, judge};
