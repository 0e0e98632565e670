//! What the engine knows of each cache line of PM: who has touched it, which stores are not persistent yet, which were
//! the last ones, and who has read them since.
//!
//! Accesses are kept with a mask of the bytes of the line, so that partial overlap needs no special case.

use pmvet_events::{ContextId, FileId, SiteId, ThreadId};

use super::clocks::Epoch;
use super::locksets::{LockId, SetId};
use rustc_hash::FxHashMap as FastMap;

pub(crate) type LineId = u32;

/// Where an access was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct At {
    pub(crate) thread: ThreadId,
    pub(crate) site: SiteId,
    pub(crate) context: ContextId,
    pub(crate) seq: u64,
}

/// A load that counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Read {
    pub(crate) at: At,
    pub(crate) bytes: u64,
    pub(crate) locks: SetId,
    pub(crate) epoch: Epoch,
    /// The number of the store whose bytes it read before they were persistent.
    pub(crate) saw: Option<u64>,
}

/// A store whose bytes may still be in the cache only.
#[derive(Debug, Clone)]
pub(crate) struct Dirty {
    pub(crate) at: At,
    pub(crate) bytes: u64,
    /// The storing thread's count of acquisitions, for the effective lockset.
    pub(crate) stamp: u32,
    pub(crate) locks: SetId,
    pub(crate) how: How,
    /// Another thread has been here since.
    pub(crate) touched: bool,
    /// Loads by others before it, which might have come after it as well.
    pub(crate) before: Vec<Read>,
    /// Loads by others that saw it.
    pub(crate) during: Vec<Read>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum How {
    Plain,
    /// A locked read-modify-write of a word that is perhaps a lock.
    Atomic(LockId),
}

/// A store whose window is closed: persisted or overwritten.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    pub(crate) at: At,
    pub(crate) bytes: u64,
    /// The effective lockset.
    pub(crate) locks: SetId,
    pub(crate) held: SetId,
    pub(crate) how: How,
    /// When the window ended.
    pub(crate) end: Epoch,
    pub(crate) fate: Fate,
    /// The fence or the store that ended it.
    pub(crate) ended_by: Option<At>,
    /// Nobody else has looked yet. If the memory turns out to be published only now, this was its initialisation;
    /// otherwise these earlier loads have to be compared with it.
    pub(crate) waiting: Option<Vec<Read>>,
}

/// How the window of a store ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    Persisted,
    Overwritten,
    /// Never, in this run.
    LeftInCache,
}

/// Who has touched a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Owner {
    #[default]
    Nobody,
    One(ThreadId),
    /// Published: a second thread has been here.
    All,
}

#[derive(Debug, Default)]
pub(crate) struct Line {
    pub(crate) file: FileId,
    /// Of the first byte in the file.
    pub(crate) offset: u64,
    pub(crate) owners: [Owner; 8],
    /// A bit for each word that all have touched, so that most accesses need not look at the owners.
    public: u8,
    /// Moves whenever an access that was seen before may mean something new.
    pub(crate) version: u32,
    /// First bytes of words that were the target of read-modify-writes.
    pub(crate) atomics: u64,
    pub(crate) dirty: Vec<Dirty>,
    pub(crate) written: Vec<Written>,
    pub(crate) reads: Vec<Read>,
    /// The number of the newest store to each word.
    pub(crate) stored: [u64; 8],
    /// The number of the newest flush.
    pub(crate) flushed: u64,
    /// Locks under which the line was stored to lately.
    pub(crate) guards: [Option<LockId>; 4],
}

/// Loads and, without `Options::neighbours`, stores to remember per line.
pub(crate) const MAX_PER_LINE: usize = 64;

/// Bytes `first..first + len` of a line.
pub(crate) fn mask(first: u64, len: u64) -> u64 {
    let ones = if len >= 64 { u64::MAX } else { (1 << len) - 1 };
    ones << (first & 63)
}

/// The same, as a bit for each word.
fn word_bits(bytes: u64) -> u8 {
    // Gathers each byte of the mask into its lowest bit, then those into one byte.
    let any = bytes | bytes >> 4;
    let any = any | any >> 2;
    let any = (any | any >> 1) & 0x0101_0101_0101_0101;
    (any.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

/// The words that a mask of bytes touches.
pub(crate) fn words(bytes: u64) -> impl Iterator<Item = usize> {
    (0..8).filter(move |word| bytes >> (word * 8) & 0xff != 0)
}

impl Line {
    /// Notes that `thread` touches these bytes.
    #[inline]
    pub(crate) fn touch(&mut self, thread: ThreadId, bytes: u64) {
        if word_bits(bytes) & !self.public != 0 {
            self.claim(thread, bytes);
        }
    }

    fn claim(&mut self, thread: ThreadId, bytes: u64) {
        let mut published = false;
        for word in words(bytes) {
            match self.owners[word] {
                Owner::Nobody => self.owners[word] = Owner::One(thread),
                Owner::One(owner) if owner != thread => {
                    self.owners[word] = Owner::All;
                    self.public |= 1 << word;
                    published = true;
                }
                _ => {}
            }
        }
        if published {
            self.version = self.version.wrapping_add(1);
        }
    }

    /// Nobody has touched these words, in their new life.
    pub(crate) fn renew(&mut self, bytes: u64) {
        for word in words(bytes) {
            self.owners[word] = Owner::Nobody;
            self.public &= !(1 << word);
        }
    }

    /// Of these bytes, those that were not stored to since the event `seq`.
    pub(crate) fn unchanged(&self, bytes: u64, seq: u64) -> u64 {
        words(bytes).filter(|&word| self.stored[word] <= seq).fold(0, |kept, word| kept | bytes & (0xff << (word * 8)))
    }

    #[inline]
    pub(crate) fn is_private(&self, thread: ThreadId, bytes: u64) -> bool {
        word_bits(bytes) & self.public == 0 && words(bytes).all(|word| self.owners[word] == Owner::One(thread))
    }

    pub(crate) fn guard(&mut self, lock: LockId) {
        if !self.guards.contains(&Some(lock)) {
            self.guards.rotate_right(1);
            self.guards[0] = Some(lock);
        }
    }
}

/// All lines, found by file and offset.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    lines: Vec<Line>,
    /// By file and page number: which of `pages`.
    index: FastMap<(u32, u64), u32>,
    /// For each line of a page its number plus one; 0: nothing is known of it.
    pages: Vec<[u32; 64]>,
    last: Option<((u32, u64), u32)>,
    /// Accesses to lines that were not followed because there were too many.
    pub(crate) refused: u64,
    limit: usize,
}

impl Lines {
    pub(crate) fn with_limit(limit: usize) -> Self {
        Lines { limit, ..Lines::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }

    pub(crate) fn get(&mut self, id: LineId) -> &mut Line {
        &mut self.lines[id as usize]
    }

    pub(crate) fn peek(&self, id: LineId) -> Option<&Line> {
        self.lines.get(id as usize)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = LineId> + use<> {
        0..self.lines.len() as LineId
    }

    /// The line at an offset, if it was ever entered.
    pub(crate) fn find(&self, file: FileId, offset: u64) -> Option<LineId> {
        let key = (file.0, offset >> 12);
        let page = match self.last {
            Some((last, page)) if last == key => page,
            _ => *self.index.get(&key)?,
        };
        self.pages[page as usize][(offset >> 6 & 63) as usize].checked_sub(1)
    }

    pub(crate) fn enter(&mut self, file: FileId, offset: u64) -> Option<LineId> {
        let key = (file.0, offset >> 12);
        let page = match self.last {
            Some((last, page)) if last == key => page,
            _ => {
                let pages = &mut self.pages;
                let page = *self.index.entry(key).or_insert_with(|| {
                    pages.push([0; 64]);
                    pages.len() as u32 - 1
                });
                self.last = Some((key, page));
                page
            }
        };
        let slot = &mut self.pages[page as usize][(offset >> 6 & 63) as usize];
        if *slot == 0 {
            if self.lines.len() >= self.limit {
                self.refused += 1;
                return None;
            }
            self.lines.push(Line { file, offset: offset & !63, ..Line::default() });
            *slot = self.lines.len() as u32;
        }
        Some(*slot - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_bits_are_the_words() {
        for bytes in [0, 1, 0x80, 0xff00, 0x8000_0000_0000_0000, u64::MAX, 0x0100_0001_8000_0010] {
            assert_eq!(word_bits(bytes), words(bytes).fold(0, |bits, word| bits | 1 << word), "{bytes:x}");
        }
    }

    #[test]
    fn masks_end_with_the_line() {
        assert_eq!((mask(0, 64), mask(60, 4), mask(64, 8)), (u64::MAX, 0xf << 60, 0xff));
    }
}
