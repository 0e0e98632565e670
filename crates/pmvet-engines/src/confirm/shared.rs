//! Stores that other threads read: where races may be, whatever the locksets say.
//!
//! PMRace's priority queue of shared accesses to PM (section 4.2.2), from a recorded run: the more often threads read what an
//! instruction of another thread has stored, the sooner it is worth a stop there.

use std::collections::HashMap;

use pmvet_events::event::{Event, What};
use pmvet_events::spaces::AddressSpaces;
use pmvet_events::{FileId, SiteId, ThreadId};

/// How many words are remembered; a bound on memory.
const MOST_WORDS: usize = 1 << 22;

/// An instruction whose stores other threads read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedStore {
    pub site: SiteId,
    /// The first fence that followed such a store in its thread.
    pub fence: Option<SiteId>,
    /// How often another thread read one.
    pub reads: u64,
}

/// Fed with the events of a run.
#[derive(Debug, Default)]
pub struct SharedStores {
    spaces: AddressSpaces,
    /// Who stored to a word last.
    words: HashMap<(FileId, u64), (ThreadId, SiteId)>,
    reads: HashMap<SiteId, u64>,
    fences: HashMap<SiteId, SiteId>,
    /// The instructions by which each thread has stored since its last fence.
    unfenced: HashMap<ThreadId, Vec<SiteId>>,
}

impl SharedStores {
    pub fn event(&mut self, event: &Event<'_>) {
        self.spaces.update(event);
        match event.what {
            What::Load { addr, size } => self.read(event, addr, size.into()),
            What::Store { addr, value, .. } => self.write(event, addr, value.len() as u64),
            What::Rmw { addr, new, stored, .. } => {
                self.read(event, addr, new.len() as u64);
                if stored {
                    self.write(event, addr, new.len() as u64);
                }
            }
            What::Fence { .. } => {
                for site in self.unfenced.remove(&event.thread).unwrap_or_default() {
                    self.fences.entry(site).or_insert(event.site);
                }
            }
            _ => {}
        }
    }

    fn words(&self, event: &Event<'_>, addr: u64, len: u64) -> Vec<(FileId, u64)> {
        let mut words = Vec::new();
        self.spaces.locate(event.thread, addr, len, |part| {
            words.extend((part.offset / 8..=(part.offset + part.len as u64 - 1) / 8).map(|word| (part.file, word)));
        });
        words
    }

    fn read(&mut self, event: &Event<'_>, addr: u64, len: u64) {
        for word in self.words(event, addr, len) {
            if let Some(&(thread, site)) = self.words.get(&word)
                && thread != event.thread
            {
                *self.reads.entry(site).or_insert(0) += 1;
            }
        }
    }

    fn write(&mut self, event: &Event<'_>, addr: u64, len: u64) {
        for word in self.words(event, addr, len) {
            if self.words.len() < MOST_WORDS || self.words.contains_key(&word) {
                self.words.insert(word, (event.thread, event.site));
            }
        }
        let unfenced = self.unfenced.entry(event.thread).or_default();
        if !unfenced.contains(&event.site) {
            unfenced.push(event.site);
        }
    }

    /// The most read first.
    pub fn finish(self) -> Vec<SharedStore> {
        let mut found: Vec<SharedStore> = self
            .reads
            .iter()
            .map(|(&site, &reads)| SharedStore { site, fence: self.fences.get(&site).copied(), reads })
            .collect();
        found.sort_by_key(|store| (std::cmp::Reverse(store.reads), store.site));
        found
    }
}
