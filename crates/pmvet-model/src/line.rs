//! A cache line that is not fully persistent.

use pmvet_events::ThreadId;

use crate::store::{Store, WriteKind};
use crate::{LINE_BYTES, LineContent, LineId, mask};

/// How many pending stores a line keeps apart. Otherwise a counter in PM that is never flushed would fill all memory.
pub const MAX_PENDING: usize = 512;

/// The guaranteed content of a line, and the stores that came after.
#[derive(Debug, Clone)]
pub struct Line {
    pub(crate) id: LineId,
    pub(crate) bound: LineContent,
    /// In the order in which memory took them; sequence numbers never decrease.
    stores: Vec<Store>,
    /// The bytes of all of them, one after the other.
    data: Vec<u8>,
    /// The bytes that `stores[0]` covers, if that is a merged one.
    merged: u64,
    /// The bytes that any pending store covers.
    written: u64,
    /// Flushes that wait for a fence: the thread, and the sequence number up to which they cover.
    pub(crate) flushes: Vec<(ThreadId, u64)>,
    /// The newest flush instruction on this line since it became pending.
    pub(crate) last_flush: Option<(ThreadId, u64)>,
    /// Counts how often this line's slot was reused, so that a flush buffer notices that its line is gone.
    pub(crate) life: u32,
}

impl Line {
    pub(crate) fn new(id: LineId, bound: LineContent) -> Self {
        Self {
            id,
            bound,
            stores: Vec::new(),
            data: Vec::new(),
            merged: 0,
            written: 0,
            flushes: Vec::new(),
            last_flush: None,
            life: 0,
        }
    }

    /// Turns it into another line, keeping its allocations.
    pub(crate) fn reset(&mut self, id: LineId, bound: LineContent) {
        self.id = id;
        self.bound = bound;
        self.flushes.clear();
        self.last_flush = None;
    }

    /// Which line it is.
    pub fn id(&self) -> LineId {
        self.id
    }

    /// The content that is guaranteed to be in PM.
    pub fn bound(&self) -> &LineContent {
        &self.bound
    }

    /// The pending stores, oldest first.
    pub fn stores(&self) -> &[Store] {
        &self.stores
    }

    /// The bytes of one of its stores.
    pub fn value(&self, store: &Store) -> &[u8] {
        let first = store.data as usize;
        &self.data[first..first + store.len()]
    }

    /// The bytes of the line that one of its stores covers, one bit each.
    pub fn covers(&self, store: &Store) -> u64 {
        if store.merged { self.merged } else { store.extent() }
    }

    /// Whether a flush that covers this store waits for a fence.
    pub fn is_flushing(&self, store: &Store) -> bool {
        self.flushes.iter().any(|&(_, upto)| store.seq <= upto)
    }

    /// The newest flush instruction since the oldest pending store, with its thread and sequence number.
    pub fn last_flush(&self) -> Option<(ThreadId, u64)> {
        self.last_flush
    }

    /// Stores that no flush instruction has followed.
    pub fn unflushed(&self) -> &[Store] {
        let upto = self.last_flush.map_or(0, |(_, seq)| seq);
        &self.stores[self.stores.partition_point(|s| s.seq <= upto)..]
    }

    /// What it holds once the first `kept` of its pending stores have reached PM.
    pub fn content(&self, kept: usize) -> LineContent {
        let mut content = self.bound;
        for store in &self.stores[..kept.min(self.stores.len())] {
            self.apply(store, &mut content);
        }
        content
    }

    /// Its content with all pending stores.
    pub fn newest(&self) -> LineContent {
        self.content(self.stores.len())
    }

    pub(crate) fn apply(&self, store: &Store, content: &mut LineContent) {
        let value = self.value(store);
        if store.merged {
            for (i, byte) in value.iter().enumerate().filter(|(i, _)| self.merged >> i & 1 == 1) {
                content.bytes[i] = *byte;
            }
        } else {
            content.bytes[store.offset()..][..value.len()].copy_from_slice(value);
        }
        content.known |= self.covers(store);
    }

    /// Adds a store; its sequence number is at least that of the last one. Returns how many were merged to make room.
    #[inline]
    pub(crate) fn push(&mut self, mut store: Store, value: &[u8]) -> u64 {
        let merged = if self.stores.len() >= MAX_PENDING { self.merge(MAX_PENDING / 2) } else { 0 };
        store.data = self.data.len() as u32;
        self.written |= store.extent();
        if self.stores.is_empty() {
            // Most lines of a large copy get one store each, so this reserves no room for more.
            self.data.reserve_exact(value.len());
            self.stores.reserve_exact(1);
        }
        self.data.extend_from_slice(value);
        self.stores.push(store);
        merged
    }

    /// Merges the oldest `count` stores into one with the number of the first: a flush that covers the first covers all, so the
    /// bound may be raised too far but never stays below what is guaranteed.
    fn merge(&mut self, count: usize) -> u64 {
        let mut content = LineContent::UNKNOWN;
        let mut covered = 0;
        for store in &self.stores[..count] {
            covered |= self.covers(store);
            self.apply(store, &mut content);
        }
        let nontemporal = self.stores[..count].iter().all(|s| s.kind == WriteKind::NonTemporal);
        let first = Store {
            kind: if nontemporal { WriteKind::NonTemporal } else { WriteKind::Regular },
            merged: true,
            offset: 0,
            len: LINE_BYTES as u8,
            data: 0,
            ..self.stores[0]
        };
        let rest = self.stores[count].data;
        self.data.splice(..rest as usize, content.bytes);
        self.stores.splice(..count, [first]);
        for store in &mut self.stores[1..] {
            store.data = store.data - rest + LINE_BYTES as u32;
        }
        self.merged = covered;
        count as u64 - 1
    }

    /// How many of its pending stores a flush up to this number covers.
    #[inline]
    pub(crate) fn covered(&self, upto: u64) -> usize {
        match self.stores.last() {
            Some(newest) if newest.seq <= upto => self.stores.len(),
            _ => self.stores.partition_point(|s| s.seq <= upto),
        }
    }

    /// Raises the bound over the oldest `count` stores.
    #[inline]
    pub(crate) fn persist(&mut self, count: usize) {
        if count == self.stores.len() {
            // The line is about to be dropped, so its bound is no longer needed.
            self.stores.clear();
            self.data.clear();
            self.written = 0;
            return;
        }
        self.bound = self.content(count);
        let Some(oldest_left) = self.stores.get(count).copied() else { return };
        let rest = oldest_left.data;
        self.data.drain(..rest as usize);
        self.stores.drain(..count);
        for store in &mut self.stores {
            store.data -= rest;
        }
        self.written = self.stores.iter().fold(0, |all, s| all | self.covers(s));
        self.flushes.retain(|&(_, upto)| upto >= oldest_left.seq);
    }

    /// Notes a flush that waits for a fence of `thread`. False if that thread already had one on this line.
    pub(crate) fn flush(&mut self, thread: ThreadId, seq: u64) -> bool {
        match self.flushes.iter_mut().find(|(t, _)| *t == thread) {
            Some((_, upto)) => {
                *upto = seq;
                false
            }
            None => {
                self.flushes.reserve_exact(1);
                self.flushes.push((thread, seq));
                true
            }
        }
    }

    /// Removes the flush of a thread that fences now.
    pub(crate) fn take_flush(&mut self, thread: ThreadId) -> Option<u64> {
        let at = self.flushes.iter().position(|(t, _)| *t == thread)?;
        Some(self.flushes.swap_remove(at).1)
    }

    /// The bytes that pending stores cover and whose earlier content is unknown.
    pub fn uncertain(&self) -> u64 {
        self.written & !self.bound.known
    }

    /// The newest pending store that covers some of these bytes: its index in [`stores`](Line::stores), and which
    /// bytes.
    #[inline]
    pub fn writer(&self, offset: usize, len: usize) -> Option<(usize, u64)> {
        let wanted = mask(offset, len) & self.written;
        if wanted == 0 {
            return None;
        }
        let covering = self.stores.iter().enumerate().rev().map(|(i, store)| (i, self.covers(store) & wanted));
        covering.into_iter().find(|(_, bytes)| *bytes != 0)
    }

    /// The bytes of a pending store that no later one has overwritten.
    pub fn visible(&self, index: usize) -> u64 {
        let Some((store, later)) = self.stores.get(index..).and_then(<[Store]>::split_first) else { return 0 };
        later.iter().fold(self.covers(store), |left, later| left & !self.covers(later))
    }
}
