//! The engines: each reads events and returns findings. No engine knows another.

mod claim;
pub mod confirm;
pub mod fuzz;
pub mod inject;
pub mod interleave;
mod journal;
pub mod lockset;
mod losses;
pub mod native;
pub mod rules;
pub mod stacks;
pub mod story;
pub mod verify;
