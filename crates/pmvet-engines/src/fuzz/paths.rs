//! Which transitions between operations on PM, and which branches, have been seen, and how much a run adds (PMFuzz,
//! algorithm 2).
//!
//! As in section 3.3 of the paper, a *PM path* is the whole sequence of operations on PM of a run. Two runs take the same
//! one if their counters are equal.

use pmvet_events::stage::MAP;
use xxhash_rust::xxh3::xxh3_64;

/// How much a test case is worth: the paper's `Favored`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Favour {
    /// It adds nothing.
    #[default]
    None,
    /// It takes a branch that no other did, or takes one about as often as no other did.
    Branch,
    /// It makes a transition between operations on PM about as often as no other did.
    Count,
    /// It makes a transition between operations on PM that no other did.
    Path,
}

/// All that runs have counted so far.
#[derive(Debug, Clone)]
pub struct SeenPaths {
    /// For each counter, the classes of counts that were seen.
    classes: Vec<u8>,
    transitions: usize,
    transition_counts: usize,
    branches: usize,
}

impl Default for SeenPaths {
    fn default() -> Self {
        Self { classes: vec![0; 2 * MAP], transitions: 0, transition_counts: 0, branches: 0 }
    }
}

impl SeenPaths {
    /// Adds a run, and returns what it is worth.
    pub fn add(&mut self, counts: &[u8]) -> Favour {
        let mut favour = Favour::None;
        each_counted(counts, |at, count| {
            let (seen, class) = (&mut self.classes[at], class(count));
            if *seen & class != class {
                let (pm, first) = (at < MAP, *seen == 0);
                favour = favour.max(match (pm, first) {
                    (true, true) => Favour::Path,
                    (true, false) => Favour::Count,
                    (false, _) => Favour::Branch,
                });
                self.transitions += usize::from(pm && first);
                self.transition_counts += usize::from(pm);
                self.branches += usize::from(!pm && first);
                *seen |= class;
            }
        });
        favour
    }

    /// Transitions between operations on PM.
    pub fn transitions(&self) -> usize {
        self.transitions
    }

    /// Transitions, each counted once per class of how often it was taken.
    pub fn transition_counts(&self) -> usize {
        self.transition_counts
    }

    /// Branches that were taken at all.
    pub fn branches(&self) -> usize {
        self.branches
    }
}

/// The counters that are not 0, with their positions. Most are 0, so this skips eight at a time: it runs several times for
/// every run.
fn each_counted(counts: &[u8], mut tell: impl FnMut(usize, u8)) {
    let (words, rest) = counts.as_chunks::<8>();
    for (i, bytes) in words.iter().enumerate() {
        let mut word = u64::from_le_bytes(*bytes);
        while word != 0 {
            let k = word.trailing_zeros() as usize / 8;
            tell(i * 8 + k, bytes[k]);
            word &= !(0xff << (8 * k));
        }
    }
    let from = words.len() * 8;
    rest.iter().enumerate().filter(|(_, count)| **count != 0).for_each(|(k, &count)| tell(from + k, count));
}

/// The PM path of a run that counted this, as a hash.
pub fn path(counts: &[u8]) -> u64 {
    let mut taken = Vec::new();
    each_counted(&counts[..MAP.min(counts.len())], |at, count| {
        taken.extend_from_slice(&[at as u8, (at >> 8) as u8, class(count)]);
    });
    xxh3_64(&taken)
}

/// The class of a count: counts that differ little share one, as in AFL.
pub fn class(count: u8) -> u8 {
    match count {
        0 => 0,
        1 => 1,
        2 => 2,
        3 => 4,
        4..=7 => 8,
        8..=15 => 16,
        16..=31 => 32,
        32..=127 => 64,
        128.. => 128,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(at: &[(usize, u8)]) -> Vec<u8> {
        let mut counts = vec![0; 2 * MAP];
        for &(i, count) in at {
            counts[i] = count;
        }
        counts
    }

    #[test]
    fn a_new_path_is_worth_more_than_a_new_count() {
        let mut seen = SeenPaths::default();
        assert_eq!(seen.add(&counts(&[(5, 1), (MAP, 1)])), Favour::Path);
        assert_eq!(seen.add(&counts(&[(5, 1), (MAP, 1)])), Favour::None);
        assert_eq!(seen.add(&counts(&[(5, 2)])), Favour::Count);
        assert_eq!(seen.add(&counts(&[(5, 9), (MAP + 1, 1)])), Favour::Count);
        assert_eq!(seen.add(&counts(&[(5, 10), (MAP + 2, 1)])), Favour::Branch);
        assert_eq!(seen.add(&counts(&[(5, 3), (6, 1)])), Favour::Path);
        assert_eq!((seen.transitions(), seen.branches(), seen.transition_counts()), (2, 3, 5));
    }

    #[test]
    fn every_counter_is_looked_at() {
        let all: Vec<u8> = (1..=27).collect();
        let mut found = Vec::new();
        each_counted(&all, |at, count| found.push((at, count)));
        assert_eq!(found, all.iter().copied().enumerate().collect::<Vec<_>>());
    }

    #[test]
    fn a_path_is_told_by_transitions_and_about_how_often() {
        let one = path(&counts(&[(5, 8), (9, 1)]));
        assert_eq!(one, path(&counts(&[(5, 15), (9, 1), (MAP, 1)])), "a like count, and a branch");
        assert_ne!(one, path(&counts(&[(5, 16), (9, 1)])));
        assert_ne!(one, path(&counts(&[(5, 8)])));
        assert_ne!(one, path(&counts(&[(6, 8), (9, 1)])));
    }
}
