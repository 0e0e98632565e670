//! Exploring inputs and interleavings: PMRace (Chen, Hua, Zhang, Ding; ASPLOS 2022), sections 4.2.1, 4.2.3 and 4.5.
//!
//! The paper has three tiers: execute the same interleaving again, take another interleaving, take another seed. The first two are
//! the work of the engine that confirms races, which gets one seed at a time. Here is what guides the third.
//!
//! * [`alias`] — PM alias pairs, the coverage that tells interleavings apart, and call paths, which tell inputs apart.
//! * [`seeds`] — the inputs that are worth something, and new ones.
//!
//! Where it differs from the paper: coverage is exact sets, no bitmap; in place of branches there are call paths of operations on PM, since
//! the recorded runs show these at no cost; an interleaving is taken once more with the same seed if it gave anything new.

pub mod alias;
pub mod seeds;
