//! What a crash loses, as patches of the newest image.

use pmvet_model::states::Cut;
use pmvet_model::{Line, Model};
use pmvet_target::crash::Patch;

/// The image in which these lines have only some of their stores.
pub(crate) fn of_cuts(model: &Model, cuts: &[Cut]) -> Vec<Patch> {
    model.patches(cuts).into_iter().map(|p| Patch { file: p.file, offset: p.offset, bytes: p.bytes }).collect()
}

/// The image that lacks a pending store and the later stores to its line.
pub(crate) fn of_store(model: &Model, line: &Line, index: usize) -> Vec<Patch> {
    of_cuts(model, &[Cut::between_stores(line.id(), index)])
}
