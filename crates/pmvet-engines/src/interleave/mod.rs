//! Exploring inputs and interleavings: PMRace (Chen, Hua, Zhang, Ding; ASPLOS 2022), sections 4.2.1, 4.2.3 and 4.5.
//!
//! The paper has three tiers: execute the same interleaving again, take another interleaving, take another seed. The first two are
//! the work of the engine that confirms races, which gets one seed at a time. Here is what guides the third.
//!
//! * [`alias_coverage`](crate::alias_coverage) — PM alias pairs, the coverage that tells interleavings apart, and call paths, which with branches tell inputs apart.
//! * [`seeds`] — the inputs that are worth something, and new ones. [`corpus`] — these on disk.
//!
//! Where it differs from the paper: alias pairs are an exact set, no bitmap; branches are, of the program and its own libraries; call paths of
//! operations on PM count as well, since the recorded runs show them at no cost; an interleaving is taken once more with the same seed
//! if it gave anything new.

pub mod corpus;
pub mod seeds;
