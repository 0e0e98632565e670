//! `shard.json`: what a shard keeps of its findings, so that `pmvet merge` can join them to those of one run.

use pmvet_engines::check::share::Share;
use pmvet_findings::suppress::Suppress;
use serde::{Deserialize, Serialize};

use crate::reporting;

/// All that was found, without what only the report decides.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Shares {
    pub(crate) shares: Vec<Share>,
    pub(crate) witnesses: reporting::Witnesses,
    /// What the configuration hides.
    pub(crate) suppress: Vec<Suppress>,
}

impl Shares {
    pub(crate) const FILE: &str = "shard.json";
}
