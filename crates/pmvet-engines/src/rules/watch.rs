//! The rules that check each step, and their state.

use pmvet_events::event::{Event, What};
use pmvet_events::spaces::Located;
use pmvet_events::{ContextId, FileId, SiteId};
use pmvet_findings::{Role, Rule, rules};
use pmvet_model::{Line, LineId, LineWatch, Mode, Persisted, Store, WriteKind};
use rustc_hash::{FxHashMap, FxHashSet};

use super::RuleOptions;
use super::clean::{Fences, Flushed, LastFlush};
use super::history::LineHistory;
use super::locks::Locks;
use super::raw::{Key, RawFinding, RawFindings, RawPlace, bytes_of, place_of, whole};
use crate::transactions::TransactionTracker;

/// More places than any program has; a bound, in case every event has a different call path.
const MAX_FINDINGS: usize = 1 << 16;
/// A longer store is part of a copy.
const WORD_BYTES: usize = 8;
/// With more pending stores in a line than this, it is not checked whether an overwritten one had changed anything.
const FEW_STORES: usize = 64;

#[derive(Debug)]
pub(super) struct RuleWatcher {
    options: RuleOptions,
    found: FxHashMap<Key, usize>,
    findings: Vec<RawFinding>,
    pub(super) history: LineHistory,
    pub(super) clean: Flushed,
    pub(super) fences: Fences,
    pub(super) locks: Locks,
    pub(super) transactions: TransactionTracker,
    /// By place of a store: where its data was flushed last. The store itself, if it needed no flush: it bypassed the
    /// cache, or a system call made it persistent.
    pub(super) flushers: FxHashMap<(SiteId, ContextId), (SiteId, ContextId)>,
    ignored: Vec<(FileId, u64, u64)>,
    unlinked: FxHashSet<FileId>,
}

impl RuleWatcher {
    pub(super) fn new(options: RuleOptions) -> Self {
        Self {
            options,
            found: FxHashMap::default(),
            findings: Vec::new(),
            history: LineHistory::default(),
            clean: Flushed::default(),
            fences: Fences::default(),
            locks: Locks::default(),
            transactions: TransactionTracker::default(),
            flushers: FxHashMap::default(),
            ignored: Vec::new(),
            unlinked: FxHashSet::default(),
        }
    }

    pub(super) fn ignore(&mut self, part: Located) {
        self.ignored.push((part.file, part.offset, part.offset + part.len as u64));
    }

    pub(super) fn unlinked(&mut self, file: FileId) {
        self.unlinked.insert(file);
    }

    /// Whether none of these bytes of a line needs to survive.
    pub(super) fn is_ignored(&self, line: LineId, bytes: u64) -> bool {
        if self.ignored.is_empty() && self.unlinked.is_empty() {
            return false;
        }
        let start = line.offset();
        let mut left = bytes;
        for &(_, from, to) in self.ignored.iter().filter(|(file, ..)| *file == line.file) {
            let (from, to) = (from.max(start), to.min(start + 64));
            if from < to {
                left &= !((u64::MAX >> (64 - (to - from))) << (from - start));
            }
        }
        left == 0 || self.unlinked.contains(&line.file)
    }

    /// Counts an occurrence.
    pub(super) fn found(
        &mut self,
        key: Key,
        rule: &'static Rule,
        place: RawPlace,
        other: Option<RawPlace>,
    ) -> &mut RawFinding {
        let next = self.findings.len();
        // If there are ever too many places, the last finding takes the rest.
        let index = if next >= MAX_FINDINGS {
            self.found.get(&key).copied().unwrap_or(next - 1)
        } else {
            *self.found.entry(key).or_insert(next)
        };
        if index == next {
            self.findings.push(RawFinding {
                rule,
                place,
                other,
                count: 0,
                timeline: Vec::new(),
                lost: Vec::new(),
                needed: false,
                flushing: false,
                flusher: None,
                stores_before: false,
                beside_flushed: false,
                line_flushed: false,
                in_pool: false,
                has_transactions: false,
                escape: None,
                allocated: false,
            });
        }
        let finding = &mut self.findings[index];
        finding.count += 1;
        finding
    }

    pub(super) fn finding_mut(&mut self, key: &Key) -> &mut RawFinding {
        let index = self.found.get(key).copied().unwrap_or(self.findings.len() - 1);
        &mut self.findings[index]
    }

    pub(super) fn findings_mut(&mut self) -> &mut Vec<RawFinding> {
        &mut self.findings
    }

    fn is_known(&self, key: &Key) -> bool {
        self.found.contains_key(key)
    }

    /// Counts an occurrence at a flush or fence. The other end is the last flush of the line, unless it is given.
    pub(super) fn event_found(
        &mut self,
        rule: &'static Rule,
        event: &Event<'_>,
        line: Option<LineId>,
        other: Option<RawPlace>,
    ) -> &mut RawFinding {
        let Event { seq, thread, site, context, .. } = *event;
        let role = if matches!(event.what, What::Fence { .. }) { Role::Fence } else { Role::Flush };
        let place = RawPlace { role, site, context, thread, seq, pm: line.map(whole) };
        let key = Key { rule: rule.id, site, context, other: (SiteId(0), ContextId(0)) };
        if self.is_known(&key) {
            return self.found(key, rule, place, None);
        }
        let timeline = line.map(|line| self.history.steps_of(line)).unwrap_or_default();
        let other = other.or_else(|| self.history.last_flush(line?, seq));
        let finding = self.found(key, rule, place, other);
        finding.timeline = timeline;
        finding
    }

    /// The findings in a fixed order: by rule, then by first occurrence.
    pub(super) fn finish(mut self) -> RawFindings {
        let transactions = std::mem::take(&mut self.transactions).finish();
        self.transactions_found(&transactions);
        for finding in &mut self.findings {
            let place = (finding.place.site, finding.place.context);
            let flusher = finding.flusher.or_else(|| self.flushers.get(&place).copied());
            finding.flusher = flusher.filter(|flusher| *flusher != place);
        }
        let order = |rule: &Rule| rules::ALL.iter().position(|r| r.id == rule.id);
        self.findings.sort_by_key(|f| (order(f.rule), f.place.seq, f.place.pm.map(|pm| pm.offset)));
        let mut persisted: Vec<_> = self.flushers.into_keys().collect();
        persisted.sort_unstable();
        RawFindings { mode: self.options.mode, findings: self.findings, persisted, transactions }
    }

    fn dirty_overwrite(&mut self, at: LineId, store: &Store, value: &[u8], line: &Line) {
        let Some((index, bytes)) = line.writer(store.offset(), store.len()) else { return };
        let earlier = &line.stores()[index];
        let plain = |s: &Store| matches!(s.kind, WriteKind::Regular) && !s.merged;
        let flushed = line.last_flush().is_some_and(|(_, seq)| earlier.seq <= seq) || line.is_flushing(earlier);
        if flushed || !plain(earlier) || !plain(store) || earlier.seq == store.seq || self.is_ignored(at, bytes) {
            return;
        }
        let other = (earlier.site, earlier.context);
        let key = Key { rule: rules::DIRTY_OVERWRITE.id, site: store.site, context: store.context, other };
        let harmless =
            is_protocol(line, index, store) || is_mostly_kept(line, index, store) || self.locks.is_lock(at, store);
        if harmless || !changes(line, index, store, value, bytes) {
            return;
        }
        let new = !self.is_known(&key);
        let timeline = if new { self.history.steps_of(at) } else { Vec::new() };
        let finding = self.found(key, rules::DIRTY_OVERWRITE, place_of(at, store), Some(place_of(at, earlier)));
        if new {
            finding.timeline = timeline;
        }
    }
}

/// Whether a word is invalidated, its neighbours change, and it becomes valid again, all in one line: since a line
/// keeps the order of its stores, that needs no flush in between. FAST & FAIR shifts the entries of its nodes like this.
fn is_protocol(line: &Line, index: usize, store: &Store) -> bool {
    let earlier = &line.stores()[index];
    let same_word = bytes_of(earlier) == bytes_of(store) && earlier.thread == store.thread;
    if !same_word || earlier.site == store.site {
        return false;
    }
    let mut between = line.stores().iter().enumerate().skip(index + 1).take(FEW_STORES);
    between.any(|(i, s)| s.thread == store.thread && line.content(i).bytes[bytes_of(s)] != *line.value(s))
}

/// Whether a store corrects part of a copy, of which this line keeps at least as much as has been overwritten. A copy-on-write tree copies a
/// node and changes a few of its words before anybody can reach it, which is no wasted work.
fn is_mostly_kept(line: &Line, index: usize, store: &Store) -> bool {
    let stores = line.stores();
    let wide = |s: &Store| s.len() > WORD_BYTES;
    let follows = |a: &Store, b: &Store| {
        let same_call = a.thread == b.thread && a.context == b.context;
        same_call && a.seq + 1 == b.seq && (a.site == b.site || wide(a) && wide(b))
    };
    let mut first = index;
    while first > 0 && index - first < FEW_STORES && follows(&stores[first - 1], &stores[first]) {
        first -= 1;
    }
    let mut last = index;
    while last + 1 < stores.len() && last - index < FEW_STORES && follows(&stores[last], &stores[last + 1]) {
        last += 1;
    }
    if first == last && !wide(&stores[index]) {
        return false;
    }
    let (written, visible) = (first..=last)
        .fold((0, 0), |(written, visible), i| (written | line.covers(&stores[i]), visible | line.visible(i)));
    let kept = visible & !line.covers(store);
    2 * kept.count_ones() >= written.count_ones()
}

/// Whether a store changes bytes that an earlier store had already changed.
fn changes(line: &Line, index: usize, store: &Store, value: &[u8], bytes: u64) -> bool {
    let earlier = &line.stores()[index];
    let wrote = line.value(earlier);
    let before = (index < FEW_STORES).then(|| line.content(index));
    bytes_of(store).filter(|i| bytes >> i & 1 == 1).any(|i| {
        let first = wrote[i - earlier.offset()];
        let mattered = before.as_ref().is_none_or(|b| b.known >> i & 1 == 0 || b.bytes[i] != first);
        mattered && value[i - store.offset()] != first
    })
}

impl LineWatch for RuleWatcher {
    #[inline]
    fn stored(&mut self, at: LineId, store: &Store, value: &[u8], line: Option<&Line>) {
        self.history.stored(at, store);
        if store.kind == WriteKind::NonTemporal {
            self.clean.otherwise(at);
            self.flushers.entry((store.site, store.context)).or_insert((store.site, store.context));
        }
        if let Some(line) = line {
            self.dirty_overwrite(at, store, value, line);
        }
    }

    fn flushed(&mut self, event: &Event<'_>, at: LineId, line: Option<&Line>) {
        self.history.flushed(at, event);
        let last = self.clean.flush(at, event.thread);
        let unflushed = line.map_or(&[][..], Line::unflushed);
        for store in unflushed {
            self.flushers.insert((store.site, store.context), (event.site, event.context));
        }
        if !self.is_ignored(at, u64::MAX) {
            let needless = self.options.mode == Mode::Eadr || unflushed.is_empty();
            if needless && (self.options.mode == Mode::Eadr || matches!(last, LastFlush::Same | LastFlush::NobodyNew)) {
                self.event_found(rules::FLUSH_CLEAN, event, Some(at), None);
            } else if !needless && unflushed.iter().all(|s| s.kind == WriteKind::NonTemporal) {
                let other = unflushed.last().map(|s| place_of(at, s));
                self.event_found(rules::FLUSH_NONTEMPORAL, event, Some(at), other);
            } else if self.options.pedantic && unflushed.windows(2).any(|two| two[0].site != two[1].site) {
                let other = unflushed.first().map(|s| place_of(at, s));
                self.event_found(rules::FLUSH_COVERS_STORES, event, Some(at), other);
            }
        }
    }

    fn persisted(&mut self, at: LineId, stores: &[Store], by: Persisted) {
        if by == Persisted::File {
            self.clean.otherwise(at);
            for store in stores {
                let place = (store.site, store.context);
                self.flushers.entry(place).or_insert(place);
            }
        }
    }

    fn fenced(&mut self, event: &Event<'_>, lines: usize) {
        if self.options.pedantic && lines > 1 && matches!(event.what, What::Fence { .. }) {
            self.event_found(rules::FENCE_ORDERS_LINES, event, None, None);
        }
        self.history.fenced(event);
    }
}
