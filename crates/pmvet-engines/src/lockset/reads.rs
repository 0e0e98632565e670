//! The loads of a line that count, one of each kind.

use pmvet_events::{SiteId, ThreadId};

use super::clocks::{Clocks, Epoch};
use super::lines::{EventOrigin, MAX_ALIKE_PATHS, MAX_ALIKE_THREADS, MAX_PER_LINE, Written};
use super::locksets::SetId;
use super::rechecks::Rechecked;

/// A load that counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LineRead {
    pub(crate) at: EventOrigin,
    pub(crate) bytes: u64,
    /// The bytes that matter if a function reads a string here; see `strings`.
    pub(crate) text: u64,
    pub(crate) locks: SetId,
    pub(crate) epoch: Epoch,
    /// The number of the store whose bytes it read before they were persistent.
    pub(crate) saw: Option<u64>,
    /// The thread and instruction whose value it read.
    pub(crate) from: Maker,
    /// Its thread took a lock, or looked at one, before it acted: perhaps the value led to that lock.
    pub(crate) followed: bool,
    /// A bit for each word of the line that its thread read afterwards, before it acted. If one of them turns out to be a
    /// lock, the thread has looked at that lock.
    pub(crate) looked: u8,
    /// Words that its thread read before and after it; see `rechecks`.
    pub(crate) rechecked: Rechecked,
}

/// Who makes a store: a thread, at an instruction.
pub(crate) type Maker = (ThreadId, SiteId);

impl LineRead {
    /// Whether a store with an effective lockset says nothing about this load: had the thread read this value, it would have
    /// taken another lock, such as that of the node that a pointer leads to. If the writer does not hold that one, it makes no difference.
    pub(crate) fn would_differ(&self, store: &Written) -> bool {
        let is_other = self.from != (store.at.thread, store.at.site);
        self.followed && store.locks != SetId::EMPTY && is_other && !store.leads_elsewhere
    }
}

/// Most accesses of a busy line are like a known one, and each of them searches the line for it. A tag per load rules
/// out nearly all others, so that the search touches only a few cache lines of the host.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    tags: Vec<[u32; BLOCK]>,
    list: Vec<LineRead>,
    /// The load to replace next, once the list is full.
    oldest: usize,
    seen: u32,
}

/// The part of a tag that stands for instruction and locks; the rest stands for the epoch.
const WHAT: u32 = 0xffff;

fn tag(site: SiteId, locks: SetId, epoch: Epoch) -> u32 {
    let mixed = |a: u32, b: u32| ((u64::from(a) << 32 | u64::from(b)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
    mixed(site.0, locks.number()) >> 16 | mixed(epoch.thread.0, epoch.count) & !WHAT
}

/// Tags to compare at a time, without a branch.
const BLOCK: usize = 8;

impl Reads {
    /// Changes whenever a load is added.
    pub(crate) fn seen(&self) -> u32 {
        self.seen
    }

    /// A bit for each load whose tag is the same under the mask.
    #[inline]
    fn tagged(&self, tag: u32, mask: u32) -> u64 {
        let mut found = 0;
        for (at, block) in self.tags.iter().enumerate() {
            let same = |known: u32| (known ^ tag) & mask == 0;
            if block.iter().fold(false, |any, &known| any | same(known)) {
                let bits = block.iter().rev().fold(0, |bits, &known| bits << 1 | u64::from(same(known)));
                found |= bits << (at * BLOCK);
            }
        }
        found
    }

    /// The loads of these bits.
    fn of_bits(mut bits: u64) -> impl Iterator<Item = usize> {
        std::iter::from_fn(move || {
            let at = bits.trailing_zeros() as usize;
            bits &= bits.checked_sub(1)?;
            Some(at)
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LineRead> {
        self.list.iter()
    }

    /// Whether the same instruction of the same thread has read these bytes before with the same locks, on the same call path
    /// or on as many others as are told apart.
    #[inline]
    pub(crate) fn knows(&self, at: &EventOrigin, locks: SetId, epoch: Epoch, [bytes, text]: [u64; 2]) -> bool {
        let covers = |r: &LineRead| bytes & !r.bytes == 0 && text & !r.text == 0;
        let same = |r: &&LineRead| (r.at.site, r.locks, r.epoch) == (at.site, locks, epoch) && covers(r);
        let tagged = self.tagged(tag(at.site, locks, epoch), u32::MAX);
        if tagged == 0 {
            return false;
        }
        let mut paths = 0;
        Self::of_bits(tagged).filter_map(|index| self.list.get(index)).filter(same).any(|known| {
            paths += 1;
            known.at.context == at.context || paths >= MAX_ALIKE_PATHS
        })
    }

    /// Keeps a load, unless a like one is there. True if it has to be compared with the stores.
    pub(crate) fn note(&mut self, read: LineRead, clocks: &Clocks) -> bool {
        let tag = tag(read.at.site, read.locks, read.epoch);
        let like = |r: &LineRead| (r.at.site, r.locks, r.followed) == (read.at.site, read.locks, read.followed);
        let same_path = |r: &LineRead| r.at.context == read.at.context;
        let tagged = self.tagged(tag, WHAT);
        let others = Self::of_bits(tagged).filter_map(|at| self.list.get(at)).filter(|r| like(r) && !same_path(r));
        let any_path = others.count() >= MAX_ALIKE_PATHS;
        let like = |r: &LineRead| like(r) && (any_path || same_path(r));
        let mut alike = 0;
        for at in Self::of_bits(tagged) {
            let Some(known) = self.list.get_mut(at).filter(|r| like(r)) else { continue };
            let covers = read.bytes & !known.bytes == 0 && read.text & !known.text == 0;
            let covered = covers && known.looked & !read.looked == 0 && known.rechecked.is_subset(read.rechecked);
            if known.epoch == read.epoch {
                let same = covered && (known.from == read.from || !read.followed);
                known.bytes |= read.bytes;
                known.text |= read.text;
                known.looked &= read.looked;
                known.rechecked.intersect(read.rechecked);
                known.from = read.from;
                self.seen += u32::from(!covered);
                return !same;
            }
            alike += usize::from(covered && !read.followed && !clocks.is_before(known.epoch, read.at.thread));
        }
        if alike >= MAX_ALIKE_THREADS {
            return false;
        }
        let mut at = self.list.len();
        if at < MAX_PER_LINE {
            self.list.push(read);
        } else {
            at = self.oldest;
            self.list[at] = read;
            self.oldest = (at + 1) % MAX_PER_LINE;
        }
        self.set_tag(at, tag);
        self.seen += 1;
        true
    }

    fn set_tag(&mut self, at: usize, tag: u32) {
        if at / BLOCK == self.tags.len() {
            self.tags.push([0; BLOCK]);
        }
        self.tags[at / BLOCK][at % BLOCK] = tag;
    }

    /// These bytes were allocated anew.
    pub(crate) fn forget(&mut self, bytes: u64) {
        self.list.iter_mut().for_each(|r| r.bytes &= !bytes);
        self.list.retain(|r| r.bytes != 0);
        self.oldest = 0;
        self.tags.clear();
        for at in 0..self.list.len() {
            let read = &self.list[at];
            self.set_tag(at, tag(read.at.site, read.locks, read.epoch));
        }
    }
}
