//! Runs that are cut short where their input ends.
//!
//! What a program does after it has read all of its input is mostly to close its pool and to free its memory: the same
//! in every run, and in a run from an open pool most of the time. So a run that has done nothing new up to there is not let
//! go on. Whether that loses anything is measured: some such runs are let go on all the same, and if more than a few of them
//! do something new then, as those of a program do that reads its input first and works on it later, none is cut.

use super::paths::{Favour, Seen};

#[derive(Debug, Default)]
pub struct Cuts {
    /// What runs had done where their input ended.
    seen: Seen,
    /// Runs that had done nothing new by then.
    same: u64,
    /// Those of them that went on, and those that did something new after all.
    went_on: u64,
    missed: u64,
}

/// So many go on at first, and then one in so many.
const AT_FIRST: u64 = 50;
const LATER: u64 = 16;
/// None is cut if more than one in so many would have done something new.
const MOST_MISSED: u64 = 50;

impl Cuts {
    /// A run has read all of its input and done this. Returns whether it is to go on, and whether that is only to see
    /// what is lost otherwise.
    pub fn at_end(&mut self, counts: &[u8]) -> (bool, bool) {
        if self.seen.add(counts) > Favour::None {
            return (true, false);
        }
        self.same += 1;
        let known = self.went_on >= AT_FIRST && self.missed * MOST_MISSED <= self.went_on;
        (!known || self.same.is_multiple_of(LATER), true)
    }

    /// What came of a run that went on although it had done nothing new.
    pub fn learn(&mut self, favour: Favour) {
        self.went_on += 1;
        self.missed += u64::from(favour > Favour::None);
    }
}

#[cfg(test)]
mod tests {
    use pmvet_events::stage::MAP;

    use super::*;

    /// How many of a hundred equal runs are cut, after as many of which this many did something new at their end.
    fn cut(missed: u64) -> usize {
        let mut cuts = Cuts::default();
        let counts = vec![1; 2 * MAP];
        assert_eq!(cuts.at_end(&counts), (true, false), "the first is new");
        for i in 0..100 {
            cuts.learn(if i < missed { Favour::Branch } else { Favour::None });
        }
        (0..100).filter(|_| !cuts.at_end(&counts).0).count()
    }

    #[test]
    fn runs_are_cut_if_that_loses_little() {
        assert_eq!(cut(0), 100 - 100 / 16);
        assert_eq!(cut(2), 100 - 100 / 16);
        assert_eq!(cut(3), 0);
        let mut fresh = Cuts::default();
        let counts = vec![1; 2 * MAP];
        assert!((0..20).all(|_| fresh.at_end(&counts).0), "nothing is known yet");
    }
}
