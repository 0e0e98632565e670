//! Test cases for PM programs, after PMFuzz (Liu and others, ASPLOS 2021), on unmodified binaries.
//!
//! A test case is an input and an *image*: the content of PM that the program starts from. Images are never made up: each is
//! what the program itself left behind after running an input on another image, or at a crash on the way there, so all
//! descend from the content that the user starts with.
//!
//! * [`content`] — the content of PM; [`store`] — the tree of images, kept as pages that differ from a parent's.
//! * [`runner`] — runs a test case in a fork server and reports what it did.
//! * [`paths`] — PM paths, and how much a test case adds to those seen (the paper's algorithm 2).
//! * `early_stops` — which runs need not go on after the end of their input.
//! * [`operations`](crate::operations) — inputs made of operations, after PMRace's section 4.5 (Chen and others, ASPLOS 2022); [`tokens`] — words
//!   of the binary; `mutators` — changes inputs by operations, words or bytes.
//! * [`failed_cases`] — failures as findings.
//! * [`campaign`] — LibAFL around all that: corpus, scheduler, loop; `stages` — the parts that LibAFL is given; `campaign_state` — the
//!   state that they share.
//!
//! Where this departs from the papers: operations are single stores, flushes and fences with their callers, not calls of an
//! annotated library; a crash image is what PM holds if the run stops before a fence, so it takes a separate run rather than a
//! copy of the pool at every fence; PMRace's checkpoint is a second fork server.
//!
//! What it misses: crash states in which cache lines were written back out of order (`check` and `verify` try those on the test
//! cases), and programs with several threads, whose runs are nondeterministic.

pub mod campaign;
mod campaign_state;
pub mod case;
pub mod content;
mod early_stops;
pub mod failed_cases;
mod mutators;
pub mod paths;
pub mod runner;
mod stages;
pub mod store;
pub mod tokens;
