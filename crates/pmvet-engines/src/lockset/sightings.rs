//! Whether another run would show a race again, judged by one recording. [`super::recordings`] compares several.
//!
//! A prediction does not need two threads to race in the run, but both must touch the line. Races that one run shows and the next may
//! not are of two kinds:
//!
//! * Only an overlap made it a race. A lock-free read-modify-write is reported only if a thread acted on it within its
//!   window. A store to unpublished memory is initialisation, unless another thread comes before it is persistent.
//! * The place stores to many cache lines, and a thread without the lock came by at one or two of them only.
//!
//! The number of pairs says nothing: one store that a hundred loads follow is one chance.

use std::collections::BTreeSet;

use super::spin::PmWord;

/// How many lines to remember of those that raced, and of those that were stored to.
const MOST_RACED: usize = 3;
const MOST_STORED: usize = 4;

/// Where a run has shown a race, or several at one place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sightings {
    /// Cache lines in which it was seen: the first few.
    raced: BTreeSet<PmWord>,
    /// Cache lines that were stored to where others might read them: the first few.
    stored: BTreeSet<PmWord>,
    /// It was seen at least once where it needed no overlap.
    without_overlap: bool,
}

impl Sightings {
    /// The race was seen in this line. `overlap`: it is a race only because the threads overlapped.
    pub(crate) fn note(&mut self, line: PmWord, overlap: bool) {
        self.without_overlap |= !overlap;
        insert(&mut self.raced, line, MOST_RACED);
    }

    /// The instruction stores to these lines.
    pub(crate) fn stores_to(&mut self, lines: &StoredLines) {
        lines.0.iter().for_each(|&line| insert(&mut self.stored, line, MOST_STORED));
    }

    pub(crate) fn join(&mut self, other: &Sightings) {
        self.without_overlap |= other.without_overlap;
        other.raced.iter().for_each(|&line| insert(&mut self.raced, line, MOST_RACED));
        other.stored.iter().for_each(|&line| insert(&mut self.stored, line, MOST_STORED));
    }

    /// Another run may not show it. If `k` of `n` lines that are stored to race, and each does so by chance, none does in another run
    /// with a probability of (1 - k/n)^n. That is 5 % or more for one line of several and for two of four, and less for any three.
    pub fn is_chance(&self) -> bool {
        let (raced, stored) = (self.raced.len(), self.stored.len());
        !self.without_overlap || raced == 1 && stored > 1 || raced == 2 && stored >= MOST_STORED
    }
}

fn insert(lines: &mut BTreeSet<PmWord>, line: PmWord, most: usize) {
    if lines.len() < most {
        lines.insert(line);
    }
}

/// Cache lines that an instruction has stored to, on one call path: the first few.
#[derive(Debug, Clone, Default)]
pub(crate) struct StoredLines(Vec<PmWord>);

impl StoredLines {
    pub(crate) fn note(&mut self, line: PmWord) {
        if self.0.len() < MOST_STORED && !self.0.contains(&line) {
            self.0.push(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use pmvet_events::FileId;

    use super::*;

    fn seen(raced: u64, stored: u64, overlap: bool) -> Sightings {
        let line = |n: u64| PmWord { file: FileId(0), offset: 64 * n };
        let mut lines = StoredLines::default();
        (0..stored).for_each(|n| lines.note(line(n)));
        let mut seen = Sightings::default();
        (0..raced).for_each(|n| seen.note(line(n), overlap));
        seen.stores_to(&lines);
        seen
    }

    #[test]
    fn one_line_of_many_is_chance_and_the_only_one_is_not() {
        assert!(!seen(1, 1, false).is_chance());
        assert!(seen(1, 2, false).is_chance());
        assert!(!seen(2, 3, false).is_chance());
        assert!(seen(2, 100, false).is_chance());
        assert!(!seen(3, 100, false).is_chance());
    }

    #[test]
    fn what_needs_an_overlap_is_chance_however_often_it_is_seen() {
        assert!(seen(100, 100, true).is_chance());
        let mut both = seen(100, 100, true);
        both.join(&seen(1, 1, false));
        assert!(!both.is_chance());
    }
}
