//! Exploring inputs and interleavings: PMRace (Chen, Hua, Zhang, Ding; ASPLOS 2022), sections 4.2.1, 4.2.3 and 4.5.
//!
//! The paper has three tiers: execute the same interleaving again, take another interleaving, take another seed. The first two are
//! the work of the engine that confirms races, which gets one seed at a time. This module guides the third.
//!
//! * [`alias_coverage`](crate::alias_coverage) — PM alias pairs, the coverage that tells interleavings apart, and call paths, which with branches tell inputs apart.
//! * [`seeds`] — the useful inputs, and new ones made of them. [`corpus`] — these on disk.
//!
//! Where it differs from the paper: alias pairs are an exact set, not a bitmap; branches, of the program and its own libraries, are a
//! bitmap; call paths of operations on PM also count, since recorded runs show them at no cost; a seed that gave anything new is tried
//! once more.

pub mod corpus;
pub mod seeds;
