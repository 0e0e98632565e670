//! Runs that are cut short where their input ends.
//!
//! What a program does after it has read all of its input is mostly to close its pool and to free its memory: the same
//! in every run, and in a run from an open pool most of the time. So a run is judged by what it has done up to there; one that is
//! kept is run to its end when images are made of it. Whether that loses anything is measured: some runs that have done nothing
//! new are let go on all the same, and while more than one of the last of them did something new to PM then, as those of a program
//! do that reads its input first and works on it later, none is cut.

use super::paths::{Favour, Seen};

#[derive(Debug, Default)]
pub struct Cuts {
    /// What runs had done where their input ended.
    seen: Seen,
    /// Runs that had done nothing new by then.
    same: u64,
    /// How many of them went on, and which of the last of those did something new to PM after all, a bit each.
    went_on: u32,
    missed: u32,
}

/// One in so many goes on once it is known that little is lost.
const SAMPLE: u64 = 64;

/// What becomes of a run at the end of its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// It goes on, since it has done something new and it is not known yet what the rest is worth.
    Wanted,
    /// It goes on, to see what would be lost otherwise.
    Sampled,
    /// It ends here, and this is what it is worth.
    Cut(Favour),
}

impl Cuts {
    /// A run has read all of its input and done this.
    pub fn at_end(&mut self, counts: &[u8]) -> Rest {
        let favour = self.seen.add(counts);
        let known = self.went_on >= u32::BITS && self.missed.count_ones() <= 1;
        if favour > Favour::Branch || favour > Favour::None && !known {
            return if known { Rest::Cut(favour) } else { Rest::Wanted };
        }
        self.same += 1;
        if known && !self.same.is_multiple_of(SAMPLE) { Rest::Cut(favour) } else { Rest::Sampled }
    }

    /// What came of a run that went on although it had done nothing new.
    pub fn learn(&mut self, favour: Favour) {
        self.went_on = self.went_on.saturating_add(1);
        self.missed = self.missed << 1 | u32::from(favour > Favour::Branch);
    }
}

#[cfg(test)]
mod tests {
    use pmvet_events::stage::MAP;

    use super::*;

    /// How many of 640 equal runs are cut, after as many of which these did something new at their end.
    fn cut(missed: impl Fn(u64) -> bool) -> usize {
        let mut cuts = Cuts::default();
        let counts = vec![1; 2 * MAP];
        assert_eq!(cuts.at_end(&counts), Rest::Wanted, "the first is new");
        for i in 0..100 {
            cuts.learn(if missed(i) { Favour::Count } else { Favour::Branch });
        }
        (0..640).filter(|_| cuts.at_end(&counts) == Rest::Cut(Favour::None)).count()
    }

    #[test]
    fn runs_are_cut_if_that_loses_little() {
        assert_eq!(cut(|_| false), 630);
        assert_eq!(cut(|i| i < 50 || i == 99), 630, "what was new at the start is not any more");
        assert_eq!(cut(|i| i >= 98), 0);
        let mut fresh = Cuts::default();
        let counts = vec![1; 2 * MAP];
        let rests: Vec<Rest> = (0..3).map(|_| fresh.at_end(&counts)).collect();
        assert_eq!(rests, [Rest::Wanted, Rest::Sampled, Rest::Sampled], "nothing is known yet");
        (0..100).for_each(|_| fresh.learn(Favour::None));
        assert_eq!(fresh.at_end(&vec![2; 2 * MAP]), Rest::Cut(Favour::Count), "what is new is cut, too");
    }
}
