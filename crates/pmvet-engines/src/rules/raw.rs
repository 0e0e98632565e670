//! What the pass over the events finds, with ids instead of names and lines.

use std::ops::Range;

use pmvet_events::event::LINE;
use pmvet_events::{ContextId, SiteId, ThreadId};
use pmvet_findings::{Role, Rule};
use pmvet_model::{LineId, Mode, Store};
use pmvet_target::crash::Patch;

use crate::timeline::step::{PmExtent, RawStep, StepKind};
use crate::transactions::{Escape, TransactionFacts};

/// The raw findings of a whole run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RawFindings {
    /// What a power failure loses; the words depend on it.
    pub mode: Mode,
    /// By rule, then in order of first occurrence.
    pub findings: Vec<RawFinding>,
    /// The places of all stores whose data was made persistent at least once.
    pub persisted: Vec<(SiteId, ContextId)>,
    /// What the transactions of libpmemobj have shown.
    pub transactions: TransactionFacts,
}

/// All occurrences of one rule at one place of the program.
#[derive(Debug, Clone, PartialEq)]
pub struct RawFinding {
    /// The rule of the catalogue that the occurrences break.
    pub rule: &'static Rule,
    /// The first occurrence.
    pub place: RawPlace,
    /// The other end, where the rule has one: the store that was overwritten, the flush before.
    pub other: Option<RawPlace>,
    /// How many occurrences there were.
    pub count: u64,
    /// What happened to the line up to the first occurrence, as far as it is remembered.
    pub timeline: Vec<RawStep>,
    /// For stores that were never made persistent: some of what a crash at the end of the run may lose.
    pub lost: Vec<Lost>,
    /// For such stores: an experiment has shown that recovery needs what they stored.
    pub needed: bool,
    /// For such stores: a flush was under way, but no fence came.
    pub flushing: bool,
    /// Where the data of the same store is flushed at other times.
    pub flusher: Option<(SiteId, ContextId)>,
    /// For such stores: a line next to one of theirs was made persistent.
    pub beside_flushed: bool,
    /// For such stores: one of their lines was made persistent at some other time.
    pub line_flushed: bool,
    /// For fences with nothing to wait for: the thread had stored to PM since the last one.
    pub stores_before: bool,
    /// The bytes are in a pool of libpmemobj.
    pub in_pool: bool,
    /// The run has transactions.
    pub has_transactions: bool,
    /// For stores that escape a transaction: why.
    pub escape: Option<Escape>,
    /// For ranges that are added once more: the transaction has allocated them.
    pub allocated: bool,
}

/// An event, and the bytes concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawPlace {
    /// What the event did, for reports.
    pub role: Role,
    /// The instruction.
    pub site: SiteId,
    /// Its call path.
    pub context: ContextId,
    /// The thread that did it.
    pub thread: ThreadId,
    /// Number of the event.
    pub seq: u64,
    /// Nothing for fences and for volatile memory.
    pub pm: Option<PmExtent>,
}

/// A store that is not persistent at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// Number of the store.
    pub seq: u64,
    /// The line that it stored to.
    pub line: LineId,
    /// What removes it from the newest image, with the later stores to its line, since the line keeps the order of its
    /// stores. Nothing if the earlier content is unknown.
    pub without: Option<Vec<Patch>>,
}

/// Occurrences with equal keys form one finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) rule: &'static str,
    pub(super) site: SiteId,
    pub(super) context: ContextId,
    pub(super) other: (SiteId, ContextId),
}

pub(super) const MAX_LOST: usize = 8;
/// Steps in a timeline.
pub(super) const MAX_STEPS: usize = 16;

/// The bytes of its line that a store wrote.
pub(super) fn bytes_of(store: &Store) -> Range<usize> {
    store.offset()..store.offset() + store.len()
}

pub(super) fn place_of(line: LineId, store: &Store) -> RawPlace {
    let Store { seq, thread, site, context, .. } = *store;
    RawPlace { role: Role::Store, site, context, thread, seq, pm: Some(where_of(line, store)) }
}

/// For rules that are about whole lines.
pub(super) fn whole(line: LineId) -> PmExtent {
    PmExtent { file: line.file, offset: line.offset(), len: LINE }
}

fn where_of(line: LineId, store: &Store) -> PmExtent {
    PmExtent { file: line.file, offset: line.offset() + store.offset() as u64, len: store.len() as u64 }
}

pub(super) fn stored(line: LineId, store: &Store) -> RawStep {
    let Store { seq, thread, site, context, .. } = *store;
    RawStep { seq, thread, site, context, what: StepKind::Stored, pm: Some(where_of(line, store)) }
}

/// The newest steps of both, in order, each once.
pub(super) fn join(mut steps: Vec<RawStep>, more: impl Iterator<Item = RawStep>) -> Vec<RawStep> {
    steps.extend(more);
    steps.sort_by_key(|s| s.seq);
    steps.dedup_by_key(|s| s.seq);
    steps.drain(..steps.len().saturating_sub(MAX_STEPS));
    steps
}
