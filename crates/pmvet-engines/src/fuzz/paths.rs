//! Which PM paths and branches have been seen, and how much a run adds (PMFuzz, algorithm 2).

use pmvet_events::stage::MAP;

/// How much a test case is worth: the paper's `Favored`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Favour {
    /// It adds nothing.
    #[default]
    None,
    /// It takes a branch, or takes it about as often, as no other did.
    Branch,
    /// It goes from one operation on PM to another about as often as no other did.
    Count,
    /// It goes from one operation on PM to another as no other did.
    Path,
}

#[derive(Debug, Clone)]
pub struct Seen {
    /// For each counter, the classes of counts that were seen.
    classes: Vec<u8>,
    paths: usize,
    path_counts: usize,
    branches: usize,
}

impl Default for Seen {
    fn default() -> Self {
        Self { classes: vec![0; 2 * MAP], paths: 0, path_counts: 0, branches: 0 }
    }
}

impl Seen {
    /// Takes notice of a run.
    pub fn add(&mut self, counts: &[u8]) -> Favour {
        let mut favour = Favour::None;
        // Most counters are 0, and a line of them is passed over at a glance.
        const LINE: usize = 64;
        for (line, (seen, counts)) in self.classes.chunks_mut(LINE).zip(counts.chunks(LINE)).enumerate() {
            if counts.iter().all(|&count| count == 0) {
                continue;
            }
            for (seen, &count) in seen.iter_mut().zip(counts) {
                let class = class(count);
                if *seen & class != class {
                    let (pm, first) = (line * LINE < MAP, *seen == 0);
                    favour = favour.max(match (pm, first) {
                        (true, true) => Favour::Path,
                        (true, false) => Favour::Count,
                        (false, _) => Favour::Branch,
                    });
                    self.paths += usize::from(pm && first);
                    self.path_counts += usize::from(pm);
                    self.branches += usize::from(!pm && first);
                    *seen |= class;
                }
            }
        }
        favour
    }

    /// Transitions between operations on PM.
    pub fn paths(&self) -> usize {
        self.paths
    }

    /// Transitions, each as often as there are classes of how often it was taken.
    pub fn path_counts(&self) -> usize {
        self.path_counts
    }

    pub fn branches(&self) -> usize {
        self.branches
    }
}

/// Counts that differ little are in one class, as AFL has it.
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
        let mut seen = Seen::default();
        assert_eq!(seen.add(&counts(&[(5, 1), (MAP, 1)])), Favour::Path);
        assert_eq!(seen.add(&counts(&[(5, 1), (MAP, 1)])), Favour::None);
        assert_eq!(seen.add(&counts(&[(5, 2)])), Favour::Count);
        assert_eq!(seen.add(&counts(&[(5, 9), (MAP + 1, 1)])), Favour::Count);
        assert_eq!(seen.add(&counts(&[(5, 10), (MAP + 2, 1)])), Favour::Branch);
        assert_eq!(seen.add(&counts(&[(5, 3), (6, 1)])), Favour::Path);
        assert_eq!((seen.paths(), seen.branches(), seen.path_counts()), (2, 3, 5));
    }
}
