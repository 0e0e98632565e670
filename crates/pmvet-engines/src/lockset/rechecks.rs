//! Optimistic readers: they load a version, then the data, then the version again, and act only if it is the same.
//!
//! A word is known as a lock only once a thread takes it, and the first readers may come before that. So each load that its thread has not
//! acted on yet remembers the words that were loaded both before and after it. At the end of the run, the engine asks whether one of them is
//! a lock of the writer.

/// The first few words that were loaded both before and after a load, by their keys. 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Rechecked([u64; 2]);

impl Rechecked {
    pub(crate) fn is_empty(self) -> bool {
        self.0[0] == 0
    }

    pub(crate) fn contains(self, word: u64) -> bool {
        word != 0 && self.0.contains(&word)
    }

    pub(crate) fn insert(&mut self, word: u64) {
        if !self.contains(word)
            && let Some(free) = self.0.iter_mut().find(|known| **known == 0)
        {
            *free = word;
        }
    }

    pub(crate) fn is_subset(self, other: Rechecked) -> bool {
        self.0.iter().all(|&word| word == 0 || other.contains(word))
    }

    pub(crate) fn intersect(&mut self, other: Rechecked) {
        let mut both = Rechecked::default();
        self.0.iter().filter(|&&word| other.contains(word)).for_each(|&word| both.insert(word));
        *self = both;
    }
}

/// Loads to look back for the same version: enough for the probe of a bucket or a step down a tree.
const RECENT: usize = 16;

/// The newest loads of a thread.
#[derive(Debug, Default)]
pub(crate) struct RecentLoads {
    addresses: [u64; RECENT],
    count: u64,
}

impl RecentLoads {
    /// Notes a load. Returns the number of the last load of the same address, if other loads came in between.
    #[inline]
    pub(crate) fn note(&mut self, addr: u64) -> Option<u64> {
        let newest = self.count;
        self.count += 1;
        let slot = newest as usize % RECENT;
        let oldest = newest.saturating_sub(RECENT as u64);
        if newest > 0 && self.addresses[(newest as usize - 1) % RECENT] == addr {
            // A thread that waits for the version to be even loads it over and over: the last one counts.
            self.addresses[slot] = addr;
            return None;
        }
        let mut earlier = None;
        if self.addresses.contains(&addr) {
            earlier = (oldest..newest).rev().find(|&at| self.addresses[at as usize % RECENT] == addr);
        }
        self.addresses[slot] = addr;
        earlier
    }

    /// The number of the newest load.
    pub(crate) fn newest(&self) -> u64 {
        self.count.saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_loaded_again_after_the_data() {
        let mut loads = RecentLoads::default();
        assert_eq!([8, 8, 64, 72].map(|addr| loads.note(addr)), [None; 4]);
        assert_eq!(loads.note(8), Some(1), "the last load of those that waited");
        assert_eq!(loads.note(72), Some(3));
        (100..100 + RECENT as u64).for_each(|addr| assert_eq!(loads.note(addr), None));
        assert_eq!(loads.note(8), None, "too long ago");
    }

    #[test]
    fn words_that_two_loads_have_in_common() {
        let mut one = Rechecked::default();
        let mut other = Rechecked::default();
        [8, 16].into_iter().for_each(|word| one.insert(word));
        [16, 24, 32].into_iter().for_each(|word| other.insert(word));
        assert!(!one.is_subset(other));
        one.intersect(other);
        assert!(
            one.is_subset(other) && one.contains(16) && !one.contains(8) && !one.contains(0) && !other.contains(32)
        );
    }
}
