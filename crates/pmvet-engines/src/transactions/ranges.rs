//! Sets of addresses, as ranges.

use std::collections::BTreeMap;

/// Disjoint ranges: the end of each, by its start. Adjacent ranges are merged.
#[derive(Debug, Clone, Default)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn add(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let (mut from, mut to) = (start, end);
        while let Some((&start, &end)) = self.0.range(..=to).next_back().filter(|(_, end)| **end >= from) {
            self.0.remove(&start);
            (from, to) = (from.min(start), to.max(end));
        }
        self.0.insert(from, to);
    }

    pub(super) fn remove(&mut self, start: u64, end: u64) {
        while let Some((&from, &to)) = self.0.range(..end).next_back().filter(|(_, to)| **to > start) {
            self.0.remove(&from);
            if from < start {
                self.0.insert(from, start);
            }
            if to > end {
                self.0.insert(end, to);
            }
        }
    }

    /// Whether all of a range is in the set.
    pub(super) fn cover(&self, start: u64, end: u64) -> bool {
        self.0.range(..=start).next_back().is_some_and(|(_, to)| *to >= end)
    }

    /// From the first to the last address of a range that is not in the set. Nothing if the set covers it.
    pub(super) fn uncovered(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let around =
            |at: u64| self.0.range(..=at).next_back().filter(|(_, to)| **to > at).map(|(from, to)| (*from, *to));
        let from = around(start).map_or(start, |(_, to)| to);
        let to = around(end.checked_sub(1)?).map_or(end, |(from, _)| from);
        (from < end && start < to).then_some((from, to))
    }

    /// Whether some of a range is in the set.
    pub(super) fn touch(&self, start: u64, end: u64) -> bool {
        self.0.range(..end).next_back().is_some_and(|(_, to)| *to > start)
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn ranges_grow_together_and_fall_apart() {
        let mut set = Ranges::default();
        set.add(10, 20);
        set.add(30, 40);
        assert!(set.cover(10, 20) && !set.cover(15, 25) && !set.cover(10, 40) && set.touch(15, 25));
        set.add(20, 30);
        assert!(set.cover(10, 40));
        set.remove(15, 18);
        assert!(set.cover(10, 15) && set.cover(18, 40) && !set.touch(15, 18) && !set.cover(14, 16));
        set.add(0, 100);
        assert_eq!(set.0.len(), 1);
        set.add(5, 5);
        set.remove(20, 60);
        assert_eq!(set.uncovered(10, 30), Some((20, 30)));
        assert_eq!(set.uncovered(0, 100), Some((20, 60)));
        assert_eq!((set.uncovered(0, 20), set.uncovered(25, 40)), (None, Some((25, 40))));
        assert!(!Ranges::default().cover(0, 1) && !Ranges::default().touch(0, u64::MAX));
    }
}
