//! Which part of the work a shard does, and what it must try beyond that so that all shards together find what one run does.
//!
//! Each image belongs to one shard. A window of failures belongs to the shard of its first point: that shard also tries
//! neighbouring points of other shards, until it knows where the window opens and closes.

use std::collections::{HashMap, HashSet};

use super::points::FailurePoint;
use super::scan::FailurePointScan;
use crate::causes::windows::PointVerdict;

/// If the recovery to crash fails, how many later points to try instead.
const MOST_STEPS: usize = 64;

/// The failure points of a scan, by position: those that one run tries, and those of this shard.
#[derive(Debug)]
pub(crate) struct Part {
    all: Vec<usize>,
    own: HashSet<usize>,
    shard: Option<(usize, usize)>,
}

impl Part {
    /// `sample`: use about this many points, evenly spread. `shard`: its number, from 0, and how many there are.
    pub(crate) fn new(scan: &FailurePointScan, sample: Option<usize>, shard: Option<(usize, usize)>) -> Self {
        let total = scan.points.len();
        let step = sample.map_or(1, |sample| total.div_ceil(sample.max(1)).max(1));
        Self::with_points(&scan.points, (0..total).step_by(step).collect(), shard)
    }

    fn with_points(points: &[FailurePoint], all: Vec<usize>, shard: Option<(usize, usize)>) -> Self {
        let mut ranks = HashMap::new();
        let mut own = HashSet::new();
        for &i in &all {
            let next = ranks.len();
            let rank = *ranks.entry(points[i].version).or_insert(next);
            if shard.is_none_or(|(k, n)| rank % n == k) {
                own.insert(i);
            }
        }
        Self { all, own, shard }
    }

    pub(crate) fn own(&self) -> impl Iterator<Item = usize> + '_ {
        self.all.iter().copied().filter(|i| self.own.contains(i))
    }

    pub(crate) fn owns(&self, point: usize) -> bool {
        self.own.contains(&point)
    }

    /// Whether a job that does not depend on a failure point belongs to this shard, by its number.
    pub(crate) fn owns_job(&self, number: usize) -> bool {
        self.shard.is_none_or(|(k, n)| number % n == k)
    }

    /// Points of other shards to try next, given the verdicts so far, to see the whole of each window that opens at a point of this
    /// shard.
    pub(crate) fn neighbours(&self, verdicts: &[PointVerdict]) -> Vec<usize> {
        if self.shard.is_none() {
            return Vec::new();
        }
        let of = |at: usize| verdicts[self.all[at]];
        let mut wanted = HashSet::new();
        for at in (0..self.all.len()).filter(|&at| self.owns(self.all[at]) && of(at) == PointVerdict::Bad) {
            match at.checked_sub(1).map(of) {
                Some(PointVerdict::NotTried) => drop(wanted.insert(at - 1)),
                Some(PointVerdict::Bad) => {}
                None | Some(PointVerdict::Good) => {
                    // Looks twice as far each time: the longer a window already is, the longer it may be.
                    let open = (at..self.all.len()).take_while(|&next| of(next) == PointVerdict::Bad).count();
                    let next = at + open;
                    if next < self.all.len() && of(next) == PointVerdict::NotTried {
                        let far = (next + open).min(self.all.len());
                        wanted.extend((next..far).filter(|&next| of(next) == PointVerdict::NotTried));
                    }
                }
            }
        }
        let mut wanted: Vec<usize> = wanted.into_iter().map(|at| self.all[at]).collect();
        wanted.sort_unstable();
        wanted
    }

    /// The points whose recoveries are to be crashed: spread over the run, the same in all shards.
    pub(crate) fn to_crash(&self, points: &[FailurePoint], wanted: usize) -> ToCrash {
        let mut versions = HashSet::new();
        let all: Vec<usize> = self.all.iter().copied().filter(|&i| versions.insert(points[i].version)).collect();
        let at = spread(all.len(), wanted);
        ToCrash { all, at, steps: 0 }
    }
}

/// Recoveries to crash, while it is being found out which of them work.
#[derive(Debug)]
pub(crate) struct ToCrash {
    all: Vec<usize>,
    at: Vec<usize>,
    steps: usize,
}

impl ToCrash {
    /// Replaces those that fail by the next ones. Returns points whose verdicts are needed for more.
    pub(crate) fn step(&mut self, verdicts: &[PointVerdict]) -> Vec<usize> {
        let mut open = Vec::new();
        for at in &mut self.at {
            while let Some(PointVerdict::Bad) = self.all.get(*at).map(|&i| verdicts[i]) {
                *at += 1;
            }
            open.extend(self.all.get(*at).filter(|&&i| verdicts[i] == PointVerdict::NotTried));
        }
        self.steps += 1;
        if self.steps > MOST_STEPS { Vec::new() } else { open }
    }

    /// Those that work.
    pub(crate) fn finish(self, verdicts: &[PointVerdict]) -> Vec<usize> {
        let mut taken = HashSet::new();
        let good = self.at.iter().filter_map(|&at| self.all.get(at).copied());
        good.filter(|&i| verdicts[i] == PointVerdict::Good && taken.insert(i)).collect()
    }
}

/// Picks `wanted` of `all` items, spread out. Equal steps would hit the same place in every round of a workload's loop; steps of
/// the golden ratio do not.
fn spread(all: usize, wanted: usize) -> Vec<usize> {
    const STEP: f64 = 0.618_033_988_749_895;
    let mut taken = HashSet::new();
    let places = (0..wanted.min(all)).map(|i| ((i as f64 + 0.5) * STEP).fract());
    places.map(|place| (place * all as f64) as usize).filter(|&item| taken.insert(item)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use pmvet_events::{ContextId, SiteId, ThreadId};
    use pmvet_target::crash::VersionId;

    use super::PointVerdict::{Bad, Good, NotTried};
    use super::*;
    use crate::causes::windows::{Window, windows};
    use crate::promises::PromiseId;

    #[test]
    fn no_place_of_a_loop_is_left_out() {
        for period in 2..=12 {
            let places: HashSet<usize> = spread(140, 24).iter().map(|item| item % period).collect();
            assert!(places.len() * 2 >= period, "{places:?} of {period}");
        }
        assert!(spread(0, 6).is_empty());
        assert_eq!(spread(1, 6), [0]);
    }

    fn points(versions: &[u32]) -> Vec<FailurePoint> {
        let point = |(seq, &version)| FailurePoint {
            seq,
            thread: ThreadId(1),
            site: SiteId(1),
            context: ContextId(0),
            version: VersionId(version),
            promise: PromiseId::NONE,
        };
        (1..).zip(versions).map(point).collect()
    }

    /// What a shard knows when it has tried its own points and what it asks for, and the windows that it reports.
    fn shard(truth: &[PointVerdict], versions: &[u32], part: &Part) -> (usize, Vec<Window>) {
        let mut verdicts = vec![NotTried; truth.len()];
        let mut tried = HashSet::new();
        let mut next: Vec<usize> = part.own().collect();
        while !next.is_empty() {
            for i in next {
                assert!(tried.insert(versions[i]) || part.owns(i), "{i} is tried twice");
                // Points with the same image share a verdict.
                (0..truth.len()).filter(|&j| versions[j] == versions[i]).for_each(|j| verdicts[j] = truth[j]);
            }
            next = part.neighbours(&verdicts);
            // A campaign tries an image once, however many of its jobs have it.
            let mut images = HashSet::new();
            next.retain(|&i| images.insert(versions[i]));
        }
        (tried.len(), windows(&verdicts).into_iter().filter(|window| part.owns(window.first)).collect())
    }

    #[test]
    fn all_shards_together_report_every_window_once_and_whole() {
        let mut state = 1_u64;
        for length in [1, 2, 7, 40, 41, 100] {
            // Runs of good and bad points, and now and then an image that was there before.
            let mut truth = Vec::new();
            let mut versions: Vec<u32> = Vec::new();
            while truth.len() < length {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let verdict = if state >> 63 == 0 { Good } else { Bad };
                for _ in 0..1 + (state >> 40) % 5 {
                    truth.push(verdict);
                    versions.push(truth.len() as u32);
                }
                if state >> 33 & 7 == 0 {
                    let again = (state >> 20) as usize % truth.len();
                    truth.push(truth[again]);
                    versions.push(versions[again]);
                }
            }
            let points = points(&versions);
            let whole = windows(&truth);
            for n in 1..=5 {
                let mut found = Vec::new();
                for k in 0..n {
                    let part = Part::with_points(&points, (0..truth.len()).collect(), Some((k, n)));
                    found.extend(shard(&truth, &versions, &part).1);
                }
                found.sort_by_key(|window| window.first);
                assert_eq!(found, whole, "{n} shards of {truth:?}");
            }
        }
    }

    #[test]
    fn good_points_of_other_shards_are_not_tried() {
        let versions: Vec<u32> = (0..30).collect();
        let points = points(&versions);
        let part = Part::with_points(&points, (0..30).collect(), Some((1, 3)));
        assert_eq!(shard(&[Good; 30], &versions, &part).0, 10);
        let mut truth = [Good; 30];
        truth[16] = Bad;
        // The points before and after it.
        assert_eq!(shard(&truth, &versions, &part).0, 12);
    }

    #[test]
    fn all_shards_crash_the_same_recoveries() {
        let versions: Vec<u32> = (0..30).collect();
        let points = points(&versions);
        let truth: Vec<PointVerdict> = (0..30).map(|i| if (10..20).contains(&i) { Bad } else { Good }).collect();
        let chosen = |shard: Option<(usize, usize)>| {
            let part = Part::with_points(&points, (0..30).collect(), shard);
            let mut verdicts = vec![NotTried; 30];
            part.own().for_each(|i| verdicts[i] = truth[i]);
            let mut to_crash = part.to_crash(&points, 6);
            loop {
                let open = to_crash.step(&verdicts);
                if open.is_empty() {
                    return to_crash.finish(&verdicts);
                }
                open.into_iter().for_each(|i| verdicts[i] = truth[i]);
            }
        };
        let whole = chosen(None);
        assert!(whole.len() > 3 && whole.iter().all(|&i| truth[i] == Good), "{whole:?}");
        for k in 0..3 {
            assert_eq!(chosen(Some((k, 3))), whole);
        }
    }
}
