//! Instructions that are recognised from run to run.

use std::path::PathBuf;

use pmvet_events::{ContextId, SiteId};
use pmvet_findings::Frame;
use serde::{Deserialize, Serialize};

use crate::stacks::Stacks;

/// An instruction, the same in every run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Instruction {
    #[serde(with = "pmvet_events::paths::as_text")]
    pub(super) module: PathBuf,
    pub(super) offset: u64,
}

impl Instruction {
    /// The instruction at a site of a run.
    pub(super) fn at(site: SiteId, stacks: &mut dyn Stacks) -> Option<Self> {
        // Inlined functions share the instruction.
        let frame = stacks.stack(site, ContextId(0)).into_iter().next()?;
        Self::of_frame(&frame)
    }

    pub(super) fn of_frame(frame: &Frame) -> Option<Self> {
        Some(Self { module: frame.module.clone()?, offset: frame.offset })
    }
}
