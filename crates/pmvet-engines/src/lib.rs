//! The engines: each reads events and returns findings. No engine knows another.

pub mod inject;
mod journal;
pub mod lockset;
pub mod native;
pub mod rules;
pub mod stacks;
pub mod verify;
