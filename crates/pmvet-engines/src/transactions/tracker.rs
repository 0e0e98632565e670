//! Follows transactions, one per thread at a time.

use pmvet_events::event::{Event, LINE, StoreKind, TransactionOp, What};
use pmvet_events::spaces::AddressSpaces;
use pmvet_events::{ContextId, FileId, SiteId, ThreadId};
use pmvet_model::{LineId, LineSource};
use rustc_hash::{FxHashMap, FxHashSet};

use super::ranges::Ranges;
use crate::timeline::step::PmExtent;

/// How many uncovered stores of one transaction are remembered. Most are the library's own.
const MOST_STORES: usize = 1 << 16;
/// For how many stores of one place the end of their transaction is remembered.
const MOST_SPANS: usize = 256;
/// How many added ranges of one transaction are remembered individually.
const MOST_ADDS: usize = 1 << 12;
/// What a pool of libpmemobj begins with.
const SIGNATURE: &[u8] = b"PMEMOBJ\0";

/// An event of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxPlace {
    /// Number of the event.
    pub seq: u64,
    /// The thread of the transaction.
    pub thread: ThreadId,
    /// The instruction.
    pub site: SiteId,
    /// Its call path.
    pub context: ContextId,
    /// The bytes concerned; of several parts, the first. Nothing if they are not PM.
    pub pm: Option<PmExtent>,
}

/// Why a transaction does not roll a store back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Escape {
    /// The bytes were never added to it.
    NotAdded,
    /// They were added after the store, so an abort restores the stored value.
    AddedLate,
    /// They belong to an object that it has freed.
    Freed,
}

/// Bytes of a store that are covered, while the others are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoveredPart {
    /// The call that covered them.
    pub place: TxPlace,
    /// The first of them, counted from the start of the store.
    pub first: u64,
    /// How many they are.
    pub len: u64,
    /// How many the store has.
    pub of: u64,
}

/// All stores of one place of the program that escape their transactions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EscapedStore {
    /// The first of them.
    pub place: TxPlace,
    /// Why the transactions do not roll them back.
    pub escape: Escape,
    /// The covered part of the store, if any.
    pub part: Option<CoveredPart>,
    /// The program flushes all of them itself before its transactions end.
    pub persisted: bool,
    /// How many there were.
    pub count: u64,
    /// Event numbers of such a store and of the end of its transaction, for some of them.
    pub spans: Vec<(u64, u64)>,
}

/// A range that is added to a transaction that already covers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeedlessAdd {
    /// The first call that adds it needlessly.
    pub place: TxPlace,
    /// The call that had covered it before.
    pub before: TxPlace,
    /// `before` allocated it in the transaction instead of adding it.
    pub allocated: bool,
    /// How often this place added something needlessly.
    pub count: u64,
}

/// A call in a transaction that makes persistent what the commit makes persistent anyway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeedlessPersist {
    /// The first such call.
    pub place: TxPlace,
    /// The call that added the range to the transaction, if it is remembered.
    pub added: Option<TxPlace>,
    /// How often this place made something persistent needlessly.
    pub count: u64,
}

/// What the transactions of a whole run have shown.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TransactionFacts {
    /// Stores that are neither rolled back nor made persistent, in the order of the run.
    pub escaped: Vec<EscapedStore>,
    /// Ranges that were covered already, one for each place of the program that adds them.
    pub adds: Vec<NeedlessAdd>,
    /// Calls that make persistent what the commit would, one for each place of the program.
    pub persists: Vec<NeedlessPersist>,
    /// Some transaction was begun. A program that begins none uses other features of libpmemobj to do several things
    /// atomically.
    pub has_transactions: bool,
    /// The files that transactions were begun on.
    pub pools: FxHashSet<FileId>,
}

/// Takes the events of a run.
#[derive(Debug, Default)]
pub struct TransactionTracker {
    open: FxHashMap<ThreadId, OpenTransaction>,
    facts: TransactionFacts,
    escaped: FxHashMap<(SiteId, ContextId, Escape), usize>,
    adds: FxHashMap<(SiteId, ContextId), usize>,
    persists: FxHashMap<(SiteId, ContextId), usize>,
}

/// The transaction of a thread, with those nested in it.
#[derive(Debug, Default)]
struct OpenTransaction {
    depth: u32,
    /// It can still be added to.
    at_work: bool,
    aborted: bool,
    pool: Option<FileId>,
    covered: Ranges,
    freed: Ranges,
    /// The calls that covered ranges, oldest first.
    adds: Vec<AddedRange>,
    stores: Vec<UncoveredStore>,
    /// Stores that have escaped: index of the finding, and number of the store.
    settled: Vec<(usize, u64)>,
    /// Indices of the stores to each line, by its address.
    at_line: FxHashMap<u64, Vec<usize>>,
}

#[derive(Debug, Clone, Copy)]
struct AddedRange {
    start: u64,
    end: u64,
    place: TxPlace,
    allocated: bool,
}

#[derive(Debug, Clone, Copy)]
struct UncoveredStore {
    start: u64,
    end: u64,
    /// From the first to the last byte of it that was not covered.
    uncovered: (u64, u64),
    part: Option<CoveredPart>,
    place: TxPlace,
    escape: Escape,
    persisted: bool,
}

impl TransactionTracker {
    /// Takes the next event. `before` is the newest content of PM without it: a store that changes nothing escapes nothing.
    #[inline]
    pub fn event(&mut self, event: &Event<'_>, spaces: &AddressSpaces, before: &(impl LineSource + ?Sized)) {
        match event.what {
            What::Transaction { op, addr, len } => self.call(event, op, addr, len, spaces),
            What::Map { file, .. } => self.look_at(file, before),
            // Creating a pool begins with its header.
            What::Store { addr, value, .. } if value.starts_with(SIGNATURE) => {
                self.facts
                    .pools
                    .extend(located(event.thread, addr, spaces).filter(|pm| pm.offset == 0).map(|pm| pm.file));
            }
            What::Store { .. } | What::Flush { pm: true, .. } if !self.open.is_empty() => {
                let Some(open) = self.open.get_mut(&event.thread).filter(|open| open.at_work) else { return };
                match event.what {
                    What::Store { addr, value, how } => {
                        if let Some(place) = stored(event, addr, value, spaces, before) {
                            open.store(place, addr, value.len() as u64, how);
                        }
                    }
                    What::Flush { addr, .. } => {
                        let line = addr & !(LINE - 1);
                        open.persisted(line, line.saturating_add(LINE));
                    }
                    _ => {}
                }
            }
            What::ThreadExit => {
                self.open.remove(&event.thread);
            }
            _ => {}
        }
    }

    /// Recognises a file that holds a pool by its signature.
    #[cold]
    fn look_at(&mut self, file: FileId, before: &(impl LineSource + ?Sized)) {
        let start = before.line(LineId::containing(file, 0));
        if start.known & 0xff == 0xff && start.bytes.starts_with(SIGNATURE) {
            self.facts.pools.insert(file);
        }
    }

    /// The run has ended. Transactions that are still open were left by the end of the program, which is like a crash.
    pub fn finish(mut self) -> TransactionFacts {
        for open in std::mem::take(&mut self.open).into_values() {
            self.note_end(Some(open), u64::MAX);
        }
        self.facts.escaped.sort_by_key(|store| store.place.seq);
        self.facts
    }

    fn call(&mut self, event: &Event<'_>, op: TransactionOp, addr: u64, len: u64, spaces: &AddressSpaces) {
        let place = place_of(event, addr, len, spaces);
        let open = self.open.entry(event.thread).or_default();
        match op {
            TransactionOp::Begin => {
                self.facts.has_transactions = true;
                open.depth = open.depth.saturating_add(1);
                open.at_work = !open.aborted;
                if open.depth == 1 {
                    open.pool = located(event.thread, addr, spaces).map(|pm| pm.file);
                    self.facts.pools.extend(open.pool);
                }
            }
            TransactionOp::Add | TransactionOp::Allocate if open.at_work && len > 0 => {
                let allocated = op == TransactionOp::Allocate;
                if let Some(before) = open.add(place, addr, len, allocated) {
                    self.needless_add(place, &before);
                }
            }
            TransactionOp::Free if open.at_work => open.free(addr),
            TransactionOp::Persist if open.at_work && len > 0 => {
                if let Some(added) = open.persist(addr, len) {
                    self.needless_persist(place, added);
                }
            }
            TransactionOp::Commit if open.at_work => {
                open.at_work = false;
                if open.depth == 1 {
                    self.settle(event.thread);
                }
            }
            TransactionOp::Abort if open.depth > 0 && !open.aborted => {
                (open.at_work, open.aborted) = (false, true);
                self.settle(event.thread);
            }
            TransactionOp::End => {
                open.depth = open.depth.saturating_sub(1);
                open.at_work = open.depth > 0 && !open.aborted;
                if open.depth == 0 {
                    self.settle(event.thread);
                    let ended = self.open.remove(&event.thread);
                    self.note_end(ended, event.seq);
                }
            }
            _ => {}
        }
    }

    /// Nothing more can be added: uncovered stores have escaped.
    fn settle(&mut self, thread: ThreadId) {
        let Some(open) = self.open.get_mut(&thread) else { return };
        for store in open.stores.drain(..) {
            let UncoveredStore { place, escape, part, persisted, .. } = store;
            let next = self.facts.escaped.len();
            let at = *self.escaped.entry((place.site, place.context, escape)).or_insert(next);
            if at == next {
                let spans = Vec::new();
                self.facts.escaped.push(EscapedStore { place, escape, part, persisted: true, count: 0, spans });
            }
            let known = &mut self.facts.escaped[at];
            // Shows the first store that the program does not make persistent itself.
            if known.persisted && !persisted {
                (known.place, known.part) = (place, part);
            }
            known.persisted &= persisted;
            known.count += 1;
            open.settled.push((at, place.seq));
        }
        open.clear();
    }

    fn note_end(&mut self, open: Option<OpenTransaction>, end: u64) {
        for (at, seq) in open.into_iter().flat_map(|open| open.settled) {
            if let Some(store) = self.facts.escaped.get_mut(at).filter(|store| store.spans.len() < MOST_SPANS) {
                store.spans.push((seq, end));
            }
        }
    }

    fn needless_add(&mut self, place: TxPlace, before: &AddedRange) {
        let next = self.facts.adds.len();
        let at = *self.adds.entry((place.site, place.context)).or_insert(next);
        if at == next {
            let (before, allocated) = (before.place, before.allocated);
            self.facts.adds.push(NeedlessAdd { place, before, allocated, count: 0 });
        }
        self.facts.adds[at].count += 1;
    }

    fn needless_persist(&mut self, place: TxPlace, added: Option<TxPlace>) {
        let next = self.facts.persists.len();
        let at = *self.persists.entry((place.site, place.context)).or_insert(next);
        if at == next {
            self.facts.persists.push(NeedlessPersist { place, added, count: 0 });
        }
        self.facts.persists[at].count += 1;
    }
}

impl OpenTransaction {
    fn clear(&mut self) {
        self.covered.clear();
        self.freed.clear();
        self.adds.clear();
        self.stores.clear();
        self.at_line.clear();
    }

    /// Adds a range. Returns the call that had already covered it.
    fn add(&mut self, place: TxPlace, start: u64, len: u64, allocated: bool) -> Option<AddedRange> {
        let end = start.saturating_add(len);
        let covered = !allocated && self.covered.cover(start, end);
        let before = self.adds.iter().rfind(|add| add.start <= start && start < add.end).copied();
        if self.adds.len() < MOST_ADDS && !covered {
            self.adds.push(AddedRange { start, end, place, allocated });
        }
        if !allocated {
            self.came_late(start, end);
        }
        self.covered.add(start, end);
        self.freed.remove(start, end);
        before.filter(|_| covered)
    }

    /// Marks the stores to a range that is added only now. If their uncovered bytes are not in it, it says nothing about the
    /// store.
    fn came_late(&mut self, start: u64, end: u64) {
        self.each_store(start, end, |store| {
            let (from, to) = store.uncovered;
            if store.escape == Escape::NotAdded && start < to && from < end {
                store.escape = Escape::AddedLate;
            }
        });
    }

    /// An object is freed. Its size is known only if it was added or allocated before.
    fn free(&mut self, addr: u64) {
        let ends = self.adds.iter().filter(|add| add.start == addr).map(|add| add.end);
        if let Some(end) = ends.max() {
            self.covered.remove(addr, end);
            self.freed.add(addr, end);
        }
    }

    fn store(&mut self, place: TxPlace, start: u64, len: u64, how: StoreKind) {
        let end = start.saturating_add(len);
        if self.pool.is_some() && place.pm.is_some_and(|pm| Some(pm.file) != self.pool) {
            return;
        }
        let lines = (start & !(LINE - 1)..end).step_by(LINE as usize);
        let Some(uncovered) = self.covered.uncovered(start, end) else { return };
        if self.stores.len() == MOST_STORES {
            return;
        }
        let part = self.covered_part(start, end);
        let escape = if self.freed.touch(start, end) { Escape::Freed } else { Escape::NotAdded };
        // A store that bypasses the cache is persistent with the next fence.
        let persisted = how == StoreKind::NonTemporal;
        for line in lines {
            self.at_line.entry(line).or_default().push(self.stores.len());
        }
        self.stores.push(UncoveredStore { start, end, uncovered, part, place, escape, persisted });
    }

    /// The bytes of a range that some call has covered, if any.
    fn covered_part(&self, start: u64, end: u64) -> Option<CoveredPart> {
        let add = self.adds.iter().rfind(|add| add.start < end && start < add.end)?;
        let (from, to) = (add.start.max(start), add.end.min(end));
        let is_covered = self.covered.cover(from, to);
        is_covered.then_some(CoveredPart { place: add.place, first: from - start, len: to - from, of: end - start })
    }

    /// The program makes a range persistent. If the commit would do that, returns what was added there.
    fn persist(&mut self, start: u64, len: u64) -> Option<Option<TxPlace>> {
        let end = start.saturating_add(len);
        self.persisted(start, end);
        let is_there = |add: &&AddedRange| add.start <= start && start < add.end;
        self.covered.cover(start, end).then(|| self.adds.iter().rfind(is_there).map(|add| add.place))
    }

    fn persisted(&mut self, start: u64, end: u64) {
        self.each_store(start, end, |store| store.persisted = true);
    }

    /// The uncovered stores to a range.
    fn each_store(&mut self, start: u64, end: u64, mut visit: impl FnMut(&mut UncoveredStore)) {
        let touches = |store: &UncoveredStore| store.start < end && start < store.end;
        let first = start & !(LINE - 1);
        if (end - first) / LINE > self.at_line.len() as u64 {
            self.stores.iter_mut().filter(|store| touches(store)).for_each(visit);
            return;
        }
        for line in (first..end).step_by(LINE as usize) {
            for &at in self.at_line.get(&line).into_iter().flatten() {
                if touches(&self.stores[at]) {
                    visit(&mut self.stores[at]);
                }
            }
        }
    }
}

fn located(thread: ThreadId, addr: u64, spaces: &AddressSpaces) -> Option<PmExtent> {
    let mut found = None;
    spaces.locate(thread, addr, 1, |part| found = Some(PmExtent { file: part.file, offset: part.offset, len: 1 }));
    found
}

fn place_of(event: &Event<'_>, addr: u64, len: u64, spaces: &AddressSpaces) -> TxPlace {
    let Event { seq, thread, site, context, .. } = *event;
    let mut pm = None;
    spaces.locate(thread, addr, len, |part| {
        pm.get_or_insert(PmExtent { file: part.file, offset: part.offset, len: part.len as u64 });
    });
    TxPlace { seq, thread, site, context, pm }
}

/// Where a store goes to. Nothing if it is known to change nothing.
fn stored(
    event: &Event<'_>,
    addr: u64,
    value: &[u8],
    spaces: &AddressSpaces,
    before: &(impl LineSource + ?Sized),
) -> Option<TxPlace> {
    let place = place_of(event, addr, value.len() as u64, spaces);
    let pm = place.pm?;
    let line = LineId::containing(pm.file, pm.offset);
    let at = (pm.offset - line.offset()) as usize;
    let content = before.line(line);
    let old = content.bytes.get(at..at + value.len());
    let known = (at..at + value.len()).all(|i| content.known.checked_shr(i as u32).is_some_and(|bits| bits & 1 == 1));
    (!known || old != Some(value)).then_some(place)
}
