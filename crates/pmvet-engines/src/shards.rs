//! Divides work among machines so that none has much more to do than the others.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The shard of each job: the longest job first, each to the least loaded shard (Graham's LPT rule).
///
/// The longest shard then takes at most 4/3 of the best possible time. Equal costs give equal results on every machine.
pub fn balance(costs: &[u64], shards: usize) -> Vec<usize> {
    let mut jobs: Vec<usize> = (0..costs.len()).collect();
    jobs.sort_by_key(|&job| (Reverse(costs[job]), job));
    let mut loads: BinaryHeap<Reverse<(u64, usize)>> = (0..shards.max(1)).map(|shard| Reverse((0, shard))).collect();
    let mut owners = vec![0; costs.len()];
    for job in jobs {
        if let Some(Reverse((load, shard))) = loads.pop() {
            owners[job] = shard;
            loads.push(Reverse((load.saturating_add(costs[job].max(1)), shard)));
        }
    }
    owners
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use proptest::prelude::*;

    use super::*;

    fn loads(costs: &[u64], owners: &[usize], shards: usize) -> Vec<u64> {
        let mut loads = vec![0; shards];
        costs.iter().zip(owners).for_each(|(cost, &owner)| loads[owner] += cost);
        loads
    }

    proptest! {
        #[test]
        fn no_shard_takes_much_longer_than_it_must(
            costs in prop::collection::vec(1_u64..1_000, 1..400),
            shards in 1_usize..1_000,
        ) {
            let owners = balance(&costs, shards);
            prop_assert!(owners.iter().all(|&owner| owner < shards));
            let longest = *loads(&costs, &owners, shards).iter().max().unwrap();
            // The best is no shorter than any of these, and LPT is within a job of the mean.
            let (sum, largest): (u64, u64) = (costs.iter().sum(), *costs.iter().max().unwrap());
            prop_assert!(longest <= sum.div_ceil(shards as u64) + largest);
            prop_assert!(shards < costs.len() || longest == largest);
        }
    }

    #[test]
    fn long_jobs_are_spread() {
        assert_eq!(balance(&[1, 9, 1, 9, 1, 1], 2), [0, 0, 1, 1, 0, 1]);
        assert_eq!(balance(&[5, 5], 4), [0, 1]);
        assert!(balance(&[], 3).is_empty());
    }
}
