//! What each thread has stored, and which threads have read what, as far as meetings need it.

use std::collections::HashMap;

use pmvet_events::event::Event;
use pmvet_events::{FileId, SiteId, ThreadId};
use pmvet_model::LineId;

use super::meeting::PmAccess;

/// How many of a thread's last stores are remembered at least; the buffer holds up to twice as many.
const MOST_STORES: usize = 32;
/// Words to remember, each with its readers.
const MOST_WORDS: usize = 1 << 20;

/// A store, and how often its instruction had run before; `others` counts the acts of other threads by then.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stored {
    pub(super) end: PmAccess,
    pub(super) nth: u32,
    pub(super) others: u64,
}

/// What all parts of a store share.
#[derive(Debug, Clone, Copy)]
pub(super) struct New {
    nth: u32,
    others: u64,
}

#[derive(Debug, Default)]
struct Acts {
    count: u64,
    /// It has stored since its last fence.
    stored: bool,
}

/// The last stores of all threads, and their acts: fences after stores.
#[derive(Debug, Default)]
pub(super) struct History {
    stored: HashMap<ThreadId, Vec<Stored>>,
    acts: HashMap<ThreadId, Acts>,
    all_acts: u64,
    last_act: Option<PmAccess>,
    /// How often each thread has run each instruction that stores or fences.
    counts: HashMap<(ThreadId, SiteId), u32>,
    /// When each thread last stored, fenced or answered.
    active: HashMap<ThreadId, u64>,
}

impl History {
    /// Notes that a thread has stored, fenced or answered.
    pub(super) fn was_active(&mut self, event: &Event<'_>) {
        self.active.insert(event.thread, event.seq);
    }

    /// Whether the thread has done nothing of that kind since this store of its.
    pub(super) fn is_idle_since(&self, store: &PmAccess) -> bool {
        self.active.get(&store.thread) == Some(&store.seq)
    }

    /// Counts an instruction.
    pub(super) fn ran(&mut self, event: &Event<'_>) {
        *self.counts.entry((event.thread, event.site)).or_insert(0) += 1;
    }

    /// How often a thread has run an instruction.
    pub(super) fn count(&self, thread: ThreadId, site: SiteId) -> u32 {
        self.counts.get(&(thread, site)).copied().unwrap_or(0)
    }

    /// Begins a store that has already been counted.
    pub(super) fn begin(&mut self, event: &Event<'_>) -> New {
        let nth = self.count(event.thread, event.site).saturating_sub(1);
        let mine = self.acts.entry(event.thread).or_default();
        mine.stored = true;
        New { nth, others: self.all_acts - mine.count }
    }

    /// Notes a part of it.
    pub(super) fn stored(&mut self, end: PmAccess, New { nth, others }: New) {
        let stored = self.stored.entry(end.thread).or_default();
        if stored.len() >= 2 * MOST_STORES {
            stored.drain(..MOST_STORES);
        }
        stored.push(Stored { end, nth, others });
    }

    /// Counts an act.
    pub(super) fn fenced(&mut self, event: &Event<'_>) {
        let acts = self.acts.entry(event.thread).or_default();
        if std::mem::take(&mut acts.stored) {
            acts.count += 1;
            self.all_acts += 1;
            let Event { seq, thread, site, context, .. } = *event;
            let line = LineId::containing(FileId(0), 0);
            self.last_act = Some(PmAccess { thread, site, context, seq, line, offset: 0, len: 0 });
        }
    }

    /// The last stores of a thread, oldest first.
    pub(super) fn stores_by(&self, thread: ThreadId) -> &[Stored] {
        self.stored.get(&thread).map_or(&[], Vec::as_slice)
    }

    /// How often the instruction of a store had run before, if that is known.
    pub(super) fn nth_of(&self, store: &PmAccess) -> Option<u32> {
        self.stores_by(store.thread).iter().find(|known| known.end.seq == store.seq).map(|known| known.nth)
    }

    /// How many acts other threads have made.
    pub(super) fn others(&self, thread: ThreadId) -> u64 {
        self.all_acts - self.acts.get(&thread).map_or(0, |acts| acts.count)
    }

    /// The last act of any thread.
    pub(super) fn last_act(&self) -> Option<PmAccess> {
        self.last_act
    }
}

/// Which threads read a word between the last two stores to it, and which since: one bit per thread, which some threads
/// share.
#[derive(Debug, Default)]
pub(super) struct Readers(HashMap<(FileId, u64), (u64, u64)>);

impl Readers {
    /// Notes a load of a word. Returns whether its thread had read the value that the last store replaced.
    pub(super) fn read(&mut self, thread: ThreadId, file: FileId, word: u64) -> bool {
        let bit = 1 << (thread.0 % 64);
        if self.0.len() >= MOST_WORDS && !self.0.contains_key(&(file, word)) {
            return false;
        }
        let (before, since) = self.0.entry((file, word)).or_insert((0, 0));
        *since |= bit;
        *before & bit != 0
    }

    pub(super) fn stored(&mut self, store: &PmAccess) {
        for word in store.offset / 8..=(store.offset + store.len.max(1) - 1) / 8 {
            if let Some((before, since)) = self.0.get_mut(&(store.line.file, word)) {
                *before = std::mem::take(since);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pmvet_events::ContextId;

    use super::*;

    #[test]
    fn who_has_read_a_value_can_tell_that_it_was_replaced() {
        let mut readers = Readers::default();
        let line = LineId::containing(FileId(1), 64);
        let (site, context, seq) = (SiteId(1), ContextId(1), 1);
        let store = PmAccess { thread: ThreadId(1), site, context, seq, line, offset: 64, len: 8 };
        let read = |readers: &mut Readers, thread| readers.read(ThreadId(thread), FileId(1), 8);
        assert!(!read(&mut readers, 2));
        readers.stored(&store);
        assert_eq!((read(&mut readers, 2), read(&mut readers, 3)), (true, false));
        // Nobody has seen the value between these two.
        readers.stored(&store);
        readers.stored(&store);
        assert!(!read(&mut readers, 2));
    }
}
