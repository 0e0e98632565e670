//! Locks that live in PM: which of them a crash can leave held, and whether what runs afterwards frees them.
//!
//! PMRace calls this a synchronisation inconsistency: the pool restores the lock, but not its holder. PMRace needs every
//! such lock annotated with its initial value. Here a lock is known by its address, and its free value is what the word
//! held before it was taken. A run that started from an undamaged pool cannot show whether a restart frees the lock:
//! programs look at their locks and write only those that are held. So the engine names a moment at which a crash leaves
//! the lock held ([`LockLeftHeld::crash_at`]). Whoever builds that image and runs recovery on it lets an [`Aftermath`]
//! watch.

use std::path::{Path, PathBuf};

use pmvet_events::event::{Event, What};
use pmvet_events::spaces::AddressSpaces;
use pmvet_events::{ContextId, FileId, SiteId, ThreadId};

use super::spin::{Holder, PmWord};
use rustc_hash::FxHashMap as FastMap;

/// A lock in PM that a crash can leave held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockLeftHeld {
    /// Where the lock is.
    pub word: PmWord,
    /// The thread that took it.
    pub thread: ThreadId,
    /// The instruction that took it.
    pub site: SiteId,
    /// Its call path.
    pub context: ContextId,
    /// Number of the event that took it.
    pub seq: u64,
    /// A crash before the event with this number leaves it held, all earlier stores being persistent.
    pub crash_at: u64,
    /// The program flushed its line while it was held; otherwise only an eviction from the cache can make it
    /// persistent.
    pub flushed: bool,
    /// The values of the free and of the held word; nothing if a lock function takes it.
    pub values: Option<(u64, u64)>,
    /// A later moment of the same call path. Recovery may have another reason to fail at the first one, such as a lock of another thread.
    pub is_spare: bool,
}

/// A few moments per call path that takes such a lock.
#[derive(Debug, Default)]
pub(crate) struct HeldLocks {
    found: FastMap<(SiteId, ContextId), PathMoments>,
}

/// The moments of one call path.
#[derive(Debug, Default)]
struct PathMoments {
    kept: Vec<LockLeftHeld>,
    /// How many there were, not counting those that are worse than the ones that are kept.
    count: u64,
}

/// The moments to keep are far from each other: of all moments that there were, these.
const MOMENTS: [u64; 3] = [1, 8, 64];

impl HeldLocks {
    /// A lock is held in PM just after the event `seq`.
    pub(crate) fn note(&mut self, word: PmWord, holder: &Holder, named: bool, seq: u64, flushed: bool) {
        let held = LockLeftHeld {
            word,
            thread: holder.thread,
            site: holder.site,
            context: holder.context,
            seq: holder.seq,
            crash_at: seq + 1,
            flushed,
            values: (!named).then_some((holder.found, holder.put)),
            is_spare: false,
        };
        let path = self.found.entry((holder.site, holder.context)).or_default();
        match path.kept.first().map(|first| first.flushed) {
            Some(false) if flushed => *path = PathMoments::default(),
            Some(true) if !flushed => return,
            _ => {}
        }
        path.count += 1;
        if MOMENTS.contains(&path.count) {
            path.kept.push(LockLeftHeld { is_spare: path.count > 1, ..held });
        }
    }

    pub(crate) fn finish(self, is_lock: impl Fn(PmWord) -> bool) -> Vec<LockLeftHeld> {
        let moments = self.found.into_values().flat_map(|path| path.kept);
        let mut found: Vec<_> = moments.filter(|held| is_lock(held.word)).collect();
        found.sort_by_key(|held| (held.is_spare, held.seq));
        found
    }
}

/// What became of a lock that a crash left held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Afterwards {
    /// It got its free value back, or another thread took it over.
    Freed,
    /// A thread needed it and did not get it.
    LeftHeld,
    /// No thread asked for it: the restart shows nothing.
    Unused,
    /// No thread asked for it, as the run failed before that.
    Failed,
}

/// Watches a run that starts from the image of a crash in which one lock is held.
#[derive(Debug)]
pub struct Aftermath {
    path: PathBuf,
    offset: u64,
    values: Option<(u64, u64)>,
    file: Option<FileId>,
    spaces: AddressSpaces,
    freed: bool,
    refused: bool,
    looked: bool,
    /// Looks at the lock since the last store of any kind.
    in_vain: u32,
    /// The address that each thread looked at last, and how often in a row.
    rows: FastMap<ThreadId, (u64, u32)>,
}

/// A thread spins if it looks at the lock this often while no thread stores anything.
const SPINS: u32 = 20_000;
/// A thread also spins if it looks this often in a row. The client reports at most 256 such looks.
const SPINS_IN_A_ROW: u32 = 200;

impl Aftermath {
    /// `path` is the file of the lock, as the target names it.
    pub fn new(lock: &LockLeftHeld, path: &Path) -> Self {
        Aftermath {
            path: path.to_path_buf(),
            offset: lock.word.offset,
            values: lock.values,
            file: None,
            spaces: AddressSpaces::default(),
            freed: false,
            refused: false,
            looked: false,
            in_vain: 0,
            rows: FastMap::default(),
        }
    }

    /// Nothing happens any more except looks at the lock.
    fn waits_for_ever(&self) -> bool {
        self.in_vain >= SPINS
    }

    /// No further event can change the verdict: the lock is free again, or nothing happens except looks at it.
    pub fn is_decided(&self) -> bool {
        self.freed || self.waits_for_ever()
    }

    /// A thread looks at a word of this lock, or of another that the crash left held, and does nothing else. If no event follows, from
    /// other threads either, it waits forever.
    pub fn is_spinning(&self) -> bool {
        !self.freed && self.rows.values().any(|&(_, looks)| looks >= SPINS_IN_A_ROW)
    }

    /// Takes the next event of the restart.
    pub fn event(&mut self, event: &Event<'_>) {
        self.spaces.update(event);
        match event.what {
            What::Load { addr, .. } | What::Rmw { addr, stored: false, .. } => {
                let (last, looks) = self.rows.entry(event.thread).or_default();
                *looks = if *last == addr { *looks + 1 } else { 1 };
                *last = addr;
            }
            _ => drop(self.rows.remove(&event.thread)),
        }
        match event.what {
            What::Store { .. } | What::Rmw { stored: true, .. } => self.in_vain = 0,
            What::Load { .. } | What::Rmw { .. } if self.looked && !self.freed => self.in_vain += 1,
            _ => {}
        }
        match event.what {
            What::File { file, path, .. } if path == self.path => self.file = Some(file),
            What::Load { addr, size } if self.hits(event.thread, addr, size.into()) => self.looked = true,
            What::Store { addr, value, .. } if self.hits(event.thread, addr, value.len() as u64) => {
                self.freed |= self.frees(event.thread, addr, value);
            }
            What::Rmw { addr, old, new, stored, .. } if self.hits(event.thread, addr, new.len() as u64) => {
                self.looked = true;
                if !stored {
                    self.refused = true;
                } else if !self.is_one_more(old, new) {
                    self.freed = true;
                }
            }
            What::FileWrite { file, offset, data } if Some(file) == self.file => {
                self.freed |= (offset..offset.saturating_add(data.len() as u64)).contains(&self.offset);
            }
            What::FileZero { file, offset, len } if Some(file) == self.file => {
                self.freed |= (offset..offset.saturating_add(len)).contains(&self.offset);
            }
            _ => {}
        }
    }

    /// Whether a word that was left held is only incremented: a thread that joins a vanished holder does not free the
    /// lock.
    fn is_one_more(&self, old: &[u8], new: &[u8]) -> bool {
        let Some((_, held)) = self.values else { return false };
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte));
        old.len() <= 8 && number(old) == held && number(new) == held.wrapping_add(1)
    }

    fn first_byte(&self, thread: ThreadId, addr: u64, len: u64) -> Option<usize> {
        let mut found = None;
        self.spaces.locate(thread, addr, len, |part| {
            let inside = part.offset <= self.offset && self.offset < part.offset + part.len as u64;
            if Some(part.file) == self.file && inside {
                found = Some(part.first + (self.offset - part.offset) as usize);
            }
        });
        found
    }

    fn hits(&self, thread: ThreadId, addr: u64, len: u64) -> bool {
        self.first_byte(thread, addr, len).is_some()
    }

    fn frees(&self, thread: ThreadId, addr: u64, value: &[u8]) -> bool {
        let Some((_, held)) = self.values else { return true };
        let Some(first) = self.first_byte(thread, addr, value.len() as u64) else { return false };
        // The values may differ in another byte than the least significant one; any change of the word will do.
        value[first..].iter().zip(held.to_le_bytes()).any(|(&now, then)| now != then)
    }

    /// `failed`: the run failed or did not end.
    pub fn verdict(&self, failed: bool) -> Afterwards {
        if self.freed {
            Afterwards::Freed
        } else if self.refused || self.looked && (failed || self.waits_for_ever()) {
            Afterwards::LeftHeld
        } else if failed && !self.is_spinning() {
            Afterwards::Failed
        } else {
            Afterwards::Unused
        }
    }
}
