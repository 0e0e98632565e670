//! Races proven: PMRace (Chen, Hua, Zhang, Ding; ASPLOS 2022), sections 4.2 to 4.4.
//!
//! A *meeting* is a race that happened: a thread read what another had stored and nothing had made persistent yet. What
//! counts is what the reader did then. For each of its next acts the crash image is built in which the store is lost and the act
//! is not, and the program's own recovery says whether it can live with that.
//!
//! * [`shared`] — where to look for races that no lockset shows; [`changes`] — who could see a store as a
//!   change; [`fences`] — where threads can wait for each other to that end; `operation_similarity` — which operations have to do with
//!   each other.
//! * [`meetings`] — one pass over a recorded run finds the meetings and their images; `undo` — what PM would be like if a
//!   reader had not acted.
//! * [`attempts`] — the pairs of a store and a read that are worth an attempt; [`schedule_picker`] and `chains` — where threads stop in
//!   a forced run; `forced_runs` — several of them under way; [`search`] — one after the other, as long as there is time.
//! * [`judge`] — recoveries on the images of a run; [`merge`] — predictions and proofs put together; [`replay`] — a schedule that proved
//!   a race, forced again; `sync_crashes` — crashes after updates of declared variables.
//! * [`contents`] — with `--durable`, what was acknowledged by the moment of a crash.
//! * [`verdict`] — what recoveries make of one pair of instructions.
//! * [`taint`], [`flow`] — where the value goes that was read too early.
//! * [`overwritten`] — whether recovery undoes what was made of it.
//! * [`sync_variables`] — declared variables that must be as at the start after recovery.
//! * `losses` — what a crash may take; `shared_lines` — whether a later store of the line is to blame.
//! * [`allowed`] — what is known to do no harm.
//! * [`findings`] — a proven race in words.
//!
//! Where it differs from the paper:
//!
//! * Meetings are looked for where the lockset analysis predicts them, not everywhere: the writer is stopped after its store
//!   by a plan that says so (`pmvet_events::plan::Stall`), and nobody else has to wait.
//! * Recovery is the judge. A race is *confirmed* only if recovery fails on the image that has the act without the store, works on
//!   the image with both, and on the image without the store from before the act: then it is the combination that kills, not
//!   a bug of one thread alone. The paper calls every act a bug whose bytes recovery does not overwrite.
//! * With the store that was read, all that its thread had stored before and not persisted may be lost. Who relies on a flag
//!   relies on what the flag stands for.
//!
//! * A side effect through output is an error where it can be seen as one: with `--durable`, an answer is an act, and a crash after it
//!   must leave what was acknowledged. Contents that are wrong with nothing lost are left to `check`.
//!
//! What it misses: acts that only a third thread makes, stores that the workload does not reach.

pub mod allowed;
pub mod attempts;
mod chains;
pub mod changes;
pub mod contents;
pub mod fences;
pub mod findings;
pub mod flow;
mod forced_runs;
pub mod held_locks;
mod history;
pub mod instruction;
pub mod judge;
mod losses;
mod meeting;
pub mod meetings;
pub mod merge;
mod operation_similarity;
pub mod overwritten;
pub mod policy;
pub mod replay;
pub mod schedule_picker;
pub mod search;
pub mod shared;
mod shared_lines;
mod sync_crashes;
pub mod sync_names;
pub mod sync_variables;
pub mod taint;
mod undo;
pub mod verdict;

pub use flow::{Flow, Flows, SideEffect};
pub use meetings::{LaterLoss, Meeting, MeetingCrash, Meetings, PmAccess};
pub use verdict::{RaceVerdict, judge};
