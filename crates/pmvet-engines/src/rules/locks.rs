//! Words of PM that are used as locks.
//!
//! A lock is not meant to survive a crash, so programs do not flush it; but it may share a line with data that is flushed. A
//! word counts as a lock if a locked instruction changes it from one value, free, and the same thread later puts that value
//! back, and if nothing else is ever stored there. The other words that the same instruction takes count, too. A
//! compare-and-swap that links nodes looks the same for one word; but over all words it stores many different values, where
//! a lock's instruction stores few.
//!
//! What it misses: ticket locks and reader counts. What it takes for a lock by mistake: a word claimed by compare-and-swap
//! under a small number and later cleared by the same thread.

use pmvet_events::spaces::Located;
use pmvet_events::{Event, FileId, SiteId, ThreadId};
use pmvet_model::{LineId, Store};
use rustc_hash::{FxHashMap, FxHashSet};

/// How many different values a lock's instruction may store in one thread: held, held for reading, a thread's id.
const MAX_VALUES: usize = 4;
/// Words to track; further ones are ignored.
const MAX_WORDS: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct Locks {
    words: FxHashMap<(FileId, u64), Word>,
    values: FxHashMap<(SiteId, ThreadId), Vec<u64>>,
    /// Instructions that have taken a word which was put back.
    takers: FxHashSet<SiteId>,
}

#[derive(Debug)]
struct Word {
    len: u8,
    free: u64,
    holder: Option<ThreadId>,
    /// The instruction and thread that took it last.
    by: (SiteId, ThreadId),
    released: bool,
    /// It was also used in another way.
    other: bool,
}

impl Locks {
    #[inline]
    pub(super) fn any(&self) -> bool {
        !self.words.is_empty()
    }

    pub(super) fn exchanged(&mut self, event: &Event<'_>, part: Located, old: &[u8], new: &[u8]) {
        let (Some(from), Some(to)) = (number(old), number(new)) else { return };
        if part.len != new.len() || self.words.len() >= MAX_WORDS {
            return;
        }
        let by = (event.site, event.thread);
        let word = self.words.entry((part.file, part.offset)).or_insert_with(|| Word {
            len: part.len as u8,
            free: from,
            holder: None,
            by,
            released: false,
            other: false,
        });
        if from == word.free {
            word.holder = Some(event.thread);
            word.by = by;
            if word.released {
                self.takers.insert(event.site);
            }
            let values = self.values.entry(by).or_default();
            if values.len() <= MAX_VALUES && !values.contains(&to) {
                values.push(to);
            }
        } else if to == word.free {
            word.release(event.thread, &mut self.takers);
        } else {
            word.other = true;
        }
    }

    pub(super) fn stored(&mut self, event: &Event<'_>, part: Located, value: &[u8]) {
        let Some(word) = self.words.get_mut(&(part.file, part.offset)) else { return };
        if usize::from(word.len) != value.len() {
            return;
        }
        match number(value) {
            Some(value) if value == word.free => word.release(event.thread, &mut self.takers),
            _ => word.other = true,
        }
    }

    /// Whether a store took or freed a lock.
    pub(super) fn is_lock(&self, line: LineId, store: &Store) -> bool {
        let Some(word) = self.words.get(&(line.file, line.offset() + store.offset() as u64)) else { return false };
        let few = self.values.get(&word.by).is_some_and(|values| values.len() <= MAX_VALUES);
        let taken = word.released || self.takers.contains(&word.by.0);
        taken && !word.other && few && store.len() == usize::from(word.len)
    }
}

impl Word {
    fn release(&mut self, thread: ThreadId, takers: &mut FxHashSet<SiteId>) {
        if self.holder == Some(thread) {
            self.released = true;
            takers.insert(self.by.0);
        }
        self.holder = None;
    }
}

fn number(bytes: &[u8]) -> Option<u64> {
    let mut whole = [0; 8];
    whole.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(whole))
}
