//! A crash: when it happens, what is certain then, and what is not.

use std::sync::Arc;

use pmvet_events::event::Event;
use pmvet_events::{ContextId, SiteId, ThreadId};
use pmvet_model::LineId;
use rustc_hash::FxHashMap;
use xxhash_rust::xxh3::Xxh3;

use super::explore::{ImageChoice, state_of};
use super::line::{LineBytes, Uncertain, UncertainLines};
use crate::promises::PromiseId;
use pmvet_model::Model;

/// Before which event of an execution the power fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrashMoment {
    /// Number of the event; nothing: at the end.
    pub before: Option<u64>,
    /// The thread of that event.
    pub thread: ThreadId,
    /// The place of that event, or that of the answer right before it.
    pub site: SiteId,
    /// The call path of the instruction.
    pub context: ContextId,
    /// The event before it is an answer, which has acknowledged an operation.
    pub is_after_answer: bool,
    /// The last store before it, if it is a crash of a recovery. Those of the workload are in the recording.
    pub last_store: Option<(SiteId, ContextId)>,
}

impl CrashMoment {
    /// After the last event, where no thread is to be named.
    pub const END: Self = Self {
        before: None,
        thread: ThreadId(0),
        site: SiteId(0),
        context: ContextId(0),
        is_after_answer: false,
        last_store: None,
    };

    /// Before this event.
    pub fn before(event: &Event<'_>) -> Self {
        let Event { seq, thread, site, context, .. } = *event;
        Self { before: Some(seq), thread, site, context, is_after_answer: false, last_store: None }
    }

    /// Right after this event, which is an answer.
    pub fn after_answer(event: &Event<'_>) -> Self {
        Self { before: Some(event.seq + 1), is_after_answer: true, ..Self::before(event) }
    }
}

/// The uncertain lines at the failure points of one execution. Points share the lines that did not change between them.
#[derive(Debug, Default)]
pub struct PendingLines {
    known: FxHashMap<LineId, (Stamp, Option<Arc<Uncertain>>)>,
}

/// Changes whenever a line does: how many stores are pending, the first, the last, and how many are being flushed.
type Stamp = (usize, u64, u64, usize);

impl PendingLines {
    /// The uncertain lines of this moment, in order.
    pub fn lines(&mut self, model: &Model) -> UncertainLines {
        let mut known = FxHashMap::default();
        let mut lines = UncertainLines::new();
        for line in model.pending() {
            let (Some(first), Some(last)) = (line.stores().first(), line.stores().last()) else { continue };
            let flushing = line.stores().iter().filter(|store| line.is_flushing(store)).count();
            let stamp = (line.stores().len(), first.seq, last.seq, flushing);
            let uncertain = match self.known.remove(&line.id()) {
                Some((same, uncertain)) if same == stamp => uncertain,
                _ => Uncertain::new(line, 0).map(Arc::new),
            };
            lines.extend(uncertain.clone());
            known.insert(line.id(), (stamp, uncertain));
        }
        self.known = known;
        lines
    }
}

/// How many images an eager search would have to try: all combinations, saturating at the largest number.
pub fn combinations(lines: &UncertainLines) -> u128 {
    lines.iter().fold(1, |all: u128, line| all.saturating_mul(u128::from(line.states())))
}

/// Equal for two crashes only if any recovery would do the same after both. `certain` is a hash of the newest image.
pub fn identity(certain: u128, lines: &UncertainLines) -> u128 {
    use std::hash::Hash;
    let mut hash = Xxh3::new();
    hash.update(&certain.to_le_bytes());
    for line in lines {
        line.hash(&mut hash);
    }
    hash.digest128()
}

/// The identity of a crash after which something must be there.
pub fn with_promise(identity: u128, promise: PromiseId) -> u128 {
    match promise {
        PromiseId::NONE => identity,
        PromiseId(promise) => {
            let mut hash = Xxh3::new();
            hash.update(&identity.to_le_bytes());
            hash.update(&promise.to_le_bytes());
            hash.digest128()
        }
    }
}

/// Bytes to write over the newest image: a line, the first byte in it, and the new bytes.
pub type LinePatch = (LineId, usize, Vec<u8>);

/// The patches that turn the newest image into the chosen one.
pub fn patches(lines: &UncertainLines, choice: &ImageChoice) -> Vec<LinePatch> {
    let mut patches = Vec::new();
    for &index in choice.keys() {
        let Some(line) = lines.get(index as usize) else { continue };
        let bytes = |state| line.content(state).map(|content| &content.bytes);
        if let (Some(chosen), Some(newest)) = (bytes(state_of(line, choice, index)), bytes(line.newest())) {
            difference(line.id(), chosen, newest, &mut patches);
        }
    }
    patches
}

/// One patch for each run of bytes that differ.
pub(super) fn difference(id: LineId, chosen: &LineBytes, newest: &LineBytes, patches: &mut Vec<LinePatch>) {
    let mut i = 0;
    while i < chosen.len() {
        let end = (i..chosen.len()).find(|&end| chosen[end] == newest[end]).unwrap_or(chosen.len());
        if end > i {
            patches.push((id, i, chosen[i..end].to_vec()));
        }
        i = end + 1;
    }
}
