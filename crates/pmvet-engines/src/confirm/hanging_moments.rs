//! When in a run a crash makes recovery hang whatever is lost, as in the middle of a resize that nobody finishes. Such recoveries take all
//! the time they are given and prove nothing.

use std::collections::BTreeMap;

/// Moments of a run at which recovery was tried with nothing lost.
#[derive(Debug, Default)]
pub(super) struct HangingMoments {
    /// Whether it hung, by the number of the event.
    tried: BTreeMap<u64, bool>,
}

impl HangingMoments {
    pub(super) fn note(&mut self, seq: u64, hangs: bool) {
        self.tried.insert(seq, hangs);
    }

    /// Whether it hung at the last moment before this one that was tried, and at the next.
    pub(super) fn are_around(&self, seq: u64) -> bool {
        let before = self.tried.range(..=seq).next_back();
        let after = self.tried.range(seq..).next();
        [before, after].iter().all(|near| near.is_some_and(|(_, hangs)| *hangs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_between_two_hangs_hangs() {
        let mut moments = HangingMoments::default();
        assert!(!moments.are_around(5));
        moments.note(10, true);
        assert_eq!([5, 10, 15].map(|seq| moments.are_around(seq)), [false, true, false]);
        moments.note(20, true);
        assert_eq!([5, 15, 20, 25].map(|seq| moments.are_around(seq)), [false, true, true, false]);
        moments.note(16, false);
        assert_eq!([15, 16, 17].map(|seq| moments.are_around(seq)), [false; 3]);
    }
}
