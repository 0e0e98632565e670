//! Runs that are cut short where their input ends.
//!
//! After reading all of its input, a program mostly closes its pool and frees its memory: the same in every run, and most of the
//! time of a run from an open pool. So a run is judged by what it has done up to there; one that is kept runs to its end when
//! images are made of it. Sampling measures whether that loses anything: some runs that have done nothing new go on. No run is cut
//! while more than one of the last of these did something new to PM then, or while their rests differ as much as their beginnings,
//! as with a program that reads its input first and works on it later.

use std::collections::{HashSet, VecDeque};

use pmvet_events::stage::MAP;

use super::paths::{Favour, SeenPaths, path};

/// Decides which runs are cut, and learns from those that are not.
#[derive(Debug, Default)]
pub(super) struct EarlyStops {
    /// What runs had done where their input ended.
    seen: SeenPaths,
    /// How many runs had done nothing new by then.
    same: u64,
    /// What the run that goes on had done to PM by then.
    before: Vec<u8>,
    /// What runs that went on did to PM after that.
    rests: SeenPaths,
    /// Runs that could have been judged where their input ends.
    runs: u64,
    /// Runs in a row that were judged in vain: too little was known to cut them.
    in_vain: u64,
    /// The last runs that went on: their PM paths before and after the end of their input, and whether they did something new after it.
    went_on: VecDeque<(u64, u64, bool)>,
}

/// One in this many runs goes on once it is known that little is lost.
const SAMPLE: u64 = 128;
/// How many of the last runs that went on decide.
const TELLING: usize = 32;
/// Up to this many different rests count as alike: a pool may be closed in more than one state.
const MOST_RESTS: usize = 6;

/// After this many runs in a row that went on in vain, only one in `ASKED` is judged.
const MOST_IN_VAIN: u64 = 256;
const ASKED: u64 = 16;

/// What becomes of a run at the end of its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// It goes on, since it has done something new and the value of the rest is not known yet.
    Wanted,
    /// It goes on, to see what would be lost otherwise.
    Sampled,
    /// It ends here, with this value.
    Cut(Favour),
}

impl EarlyStops {
    /// Whether to judge the next run where its input ends. Judging costs time, too.
    pub(super) fn asks(&mut self) -> bool {
        self.runs += 1;
        self.in_vain < MOST_IN_VAIN || self.runs.is_multiple_of(ASKED)
    }

    /// Decides about a run that has read all of its input and has done this.
    pub(super) fn at_end(&mut self, counts: &[u8]) -> Rest {
        let favour = self.seen.add(counts);
        let known = self.lose_little();
        let new = favour > Favour::Branch || favour > Favour::None && !known;
        self.in_vain = if known { 0 } else { self.in_vain + 1 };
        self.same += u64::from(!new);
        let rest = match (known, new) {
            (false, true) => Rest::Wanted,
            (false, false) => Rest::Sampled,
            (true, false) if self.same.is_multiple_of(SAMPLE) => Rest::Sampled,
            (true, _) => Rest::Cut(favour),
        };
        if rest == Rest::Sampled {
            self.before.clear();
            self.before.extend_from_slice(&counts[..MAP.min(counts.len())]);
        }
        rest
    }

    /// Learns from a run that went on although it had done nothing new.
    pub(super) fn learn(&mut self, counts: &[u8]) {
        let rest: Vec<u8> = self.before.iter().zip(counts).map(|(before, all)| all.saturating_sub(*before)).collect();
        // Compares only rests: most whole runs were cut, so nothing is known of them.
        let new = self.rests.add(&rest) > Favour::None;
        self.went_on.truncate(TELLING - 1);
        self.went_on.push_front((path(&self.before), path(&rest), new));
    }

    /// Whether little is lost if runs are cut, as far as is known.
    fn lose_little(&self) -> bool {
        let befores: HashSet<u64> = self.went_on.iter().map(|run| run.0).collect();
        let rests: HashSet<u64> = self.went_on.iter().map(|run| run.1).collect();
        self.went_on.len() == TELLING
            && self.went_on.iter().filter(|run| run.2).count() <= 1
            && rests.len() <= MOST_RESTS
            && rests.len() < befores.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts of a run that did this before the end of its input.
    fn done(what: u8) -> Vec<u8> {
        let mut counts = vec![0; 2 * MAP];
        counts[usize::from(what)] = 1;
        counts
    }

    /// How many of 640 runs are cut, after a hundred that did these things before and after the end of their input.
    fn cut(before: impl Fn(u8) -> u8, after: impl Fn(u8) -> u8) -> usize {
        let mut cuts = EarlyStops::default();
        for i in 0..100 {
            let mut counts = done(before(i));
            while cuts.at_end(&counts) != Rest::Sampled {}
            counts[1000 + usize::from(after(i))] += 1;
            cuts.learn(&counts);
        }
        (0..640).filter(|_| cuts.at_end(&done(0)) == Rest::Cut(Favour::None)).count()
    }

    #[test]
    fn runs_are_cut_if_that_loses_little() {
        assert_eq!(cut(|i| i % 20, |_| 0), 635);
        let early = |i| if i < 50 { 10 + i } else { i % 3 };
        assert_eq!(cut(|i| i % 20, early), 635, "what was new at the start is not any more");
        assert_eq!(cut(|i| i % 20, |i| if i < 98 { 0 } else { i }), 0);
        assert_eq!(cut(|_| 0, |i| i % 20), 0, "the work is done after the input was read");
        assert_eq!(cut(|i| i % 2, |i| i % 3), 0);
    }

    #[test]
    fn few_runs_are_asked_while_none_can_be_cut() {
        let mut cuts = EarlyStops::default();
        let mut asked = 0;
        for run in 0..1600 {
            if cuts.asks() {
                asked += 1;
                while cuts.at_end(&done(0)) != Rest::Sampled {}
                // The work is done after the input was read, until it is not any more.
                let mut counts = done(0);
                counts[1000 + run % 20] += 1;
                cuts.learn(&counts);
            }
        }
        assert!((MOST_IN_VAIN..MOST_IN_VAIN + 1600 / ASKED).contains(&asked), "{asked}");
        for i in 0..TELLING as u8 {
            cuts.before = done(i);
            cuts.learn(&done(i));
        }
        assert_eq!(cuts.at_end(&done(0)), Rest::Cut(Favour::None));
        assert!((0..100).all(|_| cuts.asks()), "all of them are, once some can be cut");
    }

    #[test]
    fn what_is_new_goes_on_only_while_little_is_known() {
        let mut cuts = EarlyStops::default();
        let rests: Vec<Rest> = (0..3).map(|_| cuts.at_end(&done(0))).collect();
        assert_eq!(rests, [Rest::Wanted, Rest::Sampled, Rest::Sampled], "nothing is known yet");
        for i in 1..100 {
            cuts.at_end(&done(i));
            cuts.before = done(i);
            cuts.learn(&done(i));
        }
        assert_eq!(cuts.at_end(&done(200)), Rest::Cut(Favour::Path), "what is new is cut, too");
    }
}
