//! PM alias pairs: two accesses to the same word, one right after the other, by different threads. An access is identified by its
//! instruction and by whether the word was persistent then; as in the paper, a flush makes it persistent.

use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};

use pmvet_events::event::{Event, LINE, StoreKind, What};
use pmvet_events::spaces::AddressSpaces;
use pmvet_events::{ContextId, FileId, Places, SiteId, ThreadId};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

/// Words to remember; a bound on memory.
const MOST_WORDS: usize = 1 << 20;

/// What runs have covered, as hashes that are the same in every run of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Covered {
    /// PM alias pairs: two accesses to one word in a row, by different threads.
    pub pairs: HashSet<u64>,
    /// Call paths of stores, flushes and fences.
    pub paths: HashSet<u64>,
    /// Branches, if they were counted.
    #[serde(default)]
    pub branches: HashSet<u64>,
}

impl Covered {
    /// Adds what another has covered. Returns what is new.
    pub fn add(&mut self, other: Self) -> Self {
        fn new(known: &mut HashSet<u64>, other: HashSet<u64>) -> HashSet<u64> {
            other.into_iter().filter(|&hash| known.insert(hash)).collect()
        }
        Self {
            pairs: new(&mut self.pairs, other.pairs),
            paths: new(&mut self.paths, other.paths),
            branches: new(&mut self.branches, other.branches),
        }
    }

    /// What this covers and the other does not.
    pub fn without(mut self, other: &Self) -> Self {
        self.pairs.retain(|hash| !other.pairs.contains(hash));
        self.paths.retain(|hash| !other.paths.contains(hash));
        self.branches.retain(|hash| !other.branches.contains(hash));
        self
    }

    /// How many hashes of all three kinds there are.
    pub fn len(&self) -> usize {
        self.pairs.len() + self.paths.len() + self.branches.len()
    }

    /// Whether nothing was covered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What identifies an access in the coverage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct AliasAccess {
    site: SiteId,
    persistent: bool,
}

/// The last access to a word.
#[derive(Debug, Clone, Copy)]
struct LastAccess {
    thread: ThreadId,
    access: AliasAccess,
    /// The word was stored to and not flushed since.
    dirty: bool,
}

/// Collects coverage from the events of a run.
#[derive(Debug, Default)]
pub struct Aliases {
    spaces: AddressSpaces,
    words: HashMap<(FileId, u64), LastAccess>,
    pairs: HashSet<(AliasAccess, AliasAccess)>,
    paths: HashSet<(SiteId, ContextId)>,
}

impl Aliases {
    /// Takes the next event. Loads count too, if the run was recorded with them.
    pub fn event(&mut self, event: &Event<'_>) {
        self.spaces.update(event);
        match event.what {
            What::Load { addr, size } => self.access(event, addr, size.into(), None),
            What::Store { addr, value, how } => {
                self.access(event, addr, value.len() as u64, Some(how != StoreKind::NonTemporal));
            }
            What::Rmw { addr, new, stored, .. } => self.access(event, addr, new.len() as u64, stored.then_some(true)),
            What::Flush { addr, .. } => {
                let Self { spaces, words, .. } = self;
                spaces.locate(event.thread, addr & !(LINE - 1), LINE, |part| {
                    for word in part.offset / 8..(part.offset + part.len as u64) / 8 {
                        words.entry((part.file, word)).and_modify(|last| last.dirty = false);
                    }
                });
            }
            What::Fence { .. } => {}
            _ => return,
        }
        if !matches!(event.what, What::Load { .. }) {
            self.paths.insert((event.site, event.context));
        }
    }

    /// `dirties`: for a store, whether it leaves the word dirty.
    fn access(&mut self, event: &Event<'_>, addr: u64, len: u64, dirties: Option<bool>) {
        let Self { spaces, words, pairs, .. } = self;
        spaces.locate(event.thread, addr, len, |part| {
            for word in part.offset / 8..=(part.offset + part.len as u64 - 1) / 8 {
                let last = words.get(&(part.file, word)).copied();
                let dirty = dirties.unwrap_or(last.is_some_and(|last| last.dirty));
                let access = AliasAccess { site: event.site, persistent: !dirty };
                if let Some(last) = last.filter(|last| last.thread != event.thread) {
                    pairs.insert((last.access, access));
                }
                if last.is_some() || words.len() < MOST_WORDS {
                    words.insert((part.file, word), LastAccess { thread: event.thread, access, dirty });
                }
            }
        });
    }

    /// The run has ended. `places` gives the addresses that make the hashes the same in every run.
    pub fn finish(self, places: &dyn Places) -> Covered {
        let pc = |site: SiteId| places.site(site).map_or(0, |site| site.pc);
        let hash = |parts: &[u64]| {
            let mut hasher = Xxh3::new();
            parts.hash(&mut hasher);
            hasher.finish()
        };
        let side = |access: &AliasAccess| pc(access.site) << 1 | u64::from(access.persistent);
        let pairs = self.pairs.iter().map(|(first, second)| hash(&[side(first), side(second)])).collect();
        let path = |(site, context): &(SiteId, ContextId)| {
            let calls = places.calls(*context).into_iter().map(pc);
            hash(&std::iter::once(pc(*site)).chain(calls).collect::<Vec<_>>())
        };
        Covered { pairs, paths: self.paths.iter().map(path).collect(), ..Covered::default() }
    }
}

#[cfg(test)]
mod tests {
    use pmvet_events::event::{FenceKind, FlushKind};
    use pmvet_events::{Context, ModuleId, Site};

    use super::*;

    /// Each instruction is at ten times its number.
    struct Numbered;

    impl Places for Numbered {
        fn site(&self, id: SiteId) -> Option<Site> {
            Some(Site { pc: u64::from(id.0) * 10, module: ModuleId(1) })
        }

        fn context(&self, _: ContextId) -> Option<Context> {
            None
        }
    }

    /// A run of two threads with 4 KiB of PM: thread, instruction, what it does.
    fn covered(events: &[(u32, u32, What<'_>)]) -> Covered {
        let mut aliases = Aliases::default();
        let mut event = |thread, site, what| {
            let (thread, site) = (ThreadId(thread), SiteId(site));
            aliases.event(&Event { seq: 1, thread, site, context: ContextId(0), what });
        };
        for thread in [1, 2] {
            event(thread, 0, What::ThreadStart { process: 1, os_thread: thread });
        }
        event(1, 0, What::Map { file: FileId(1), addr: 0x1000, len: 0x1000, offset: 0, writable: true });
        events.iter().for_each(|&(thread, site, what)| event(thread, site, what));
        aliases.finish(&Numbered)
    }

    const STORE: What<'_> = What::Store { addr: 0x1100, value: &[1; 8], how: StoreKind::Regular };
    const LOAD: What<'_> = What::Load { addr: 0x1104, size: 4 };
    const FLUSH: What<'_> = What::Flush { addr: 0x1100, how: FlushKind::Clwb, pm: true };

    #[test]
    fn only_accesses_of_different_threads_to_one_word_are_pairs() {
        assert_eq!(covered(&[(1, 1, STORE), (1, 2, LOAD)]).pairs.len(), 0);
        assert_eq!(covered(&[(1, 1, STORE), (2, 2, What::Load { addr: 0x1108, size: 8 })]).pairs.len(), 0);
        assert_eq!(covered(&[(1, 1, STORE), (2, 2, LOAD)]).pairs.len(), 1);
        // Back to back: the first one's load is between the store and the other's.
        let pairs = covered(&[(1, 1, STORE), (1, 3, LOAD), (2, 2, LOAD)]).pairs;
        assert_eq!(pairs.len(), 1);
        assert_ne!(pairs, covered(&[(1, 1, STORE), (2, 2, LOAD)]).pairs);
    }

    #[test]
    fn a_pair_counts_once_more_if_the_word_was_persistent() {
        let dirty = covered(&[(1, 1, STORE), (2, 2, LOAD)]);
        let clean = covered(&[(1, 1, STORE), (1, 4, FLUSH), (2, 2, LOAD)]);
        assert_ne!(dirty.pairs, clean.pairs);
        let mut both = dirty.clone();
        let new = both.add(clean);
        assert_eq!((new.pairs.len(), new.paths.len()), (1, 1), "one pair, and the path of the flush");
        assert!(both.add(dirty).is_empty());
    }

    #[test]
    fn what_stores_flushes_or_fences_is_a_path() {
        let fence = What::Fence { how: FenceKind::Sfence };
        assert_eq!(covered(&[(1, 1, STORE), (1, 1, STORE), (1, 2, LOAD), (1, 3, FLUSH), (1, 4, fence)]).paths.len(), 3);
        assert!(covered(&[]).is_empty());
    }
}
