//! Random programs and random recoveries: the lazy search sees exactly what the eager one sees.

mod verify_world;

use std::collections::BTreeSet;

use pmvet_events::event::{FenceKind, FlushKind};
use proptest::prelude::*;
use verify_world::{Op, Pm, Reference, SIZE, Seen, crashes, eager, eager_inside, lazy, lazy_twice};

const USED: usize = 3;

fn op() -> impl Strategy<Value = Op> {
    let thread = || 1..=3u32;
    // Few places and few values, so that stores meet.
    let at = || (0..USED, 0..4usize).prop_map(|(line, word)| line * 64 + word * 15);
    let value = || prop::collection::vec(0..3u8, 1..20);
    let how = || prop_oneof![Just(FlushKind::Clwb), Just(FlushKind::Clflushopt), Just(FlushKind::Clflush)];
    prop_oneof![
        6 => (thread(), at(), value(), prop::bool::weighted(0.15))
            .prop_map(|(thread, at, value, nontemporal)| Op::Store { thread, at, value, nontemporal }),
        1 => (thread(), at(), 0..3u8, any::<bool>())
            .prop_map(|(thread, at, value, stored)| Op::Rmw { thread, at, value: vec![value], stored }),
        2 => (thread(), 0..USED, how()).prop_map(|(thread, line, how)| Op::Flush { thread, line, how }),
        1 => thread().prop_map(|thread| Op::Fence { thread, how: FenceKind::Sfence }),
        1 => (0..USED).prop_map(|line| Op::Sync { line }),
    ]
}

/// A recovery made of a number: where it reads next depends on what it has read, and so does what it stores and where it stops.
fn recovery(seed: u64, steps: u32, stores: bool) -> impl Fn(&mut Pm<'_>) -> u64 {
    move |pm: &mut Pm<'_>| {
        let mut state = seed | 1;
        for step in 0..steps {
            state = mix(state);
            let at = (state >> 8) as usize % (USED * 64 - 16);
            // Mostly where the program stores.
            let at = if state & 3 == 0 { at } else { at / 64 * 64 + at % 64 / 15 * 15 };
            match state >> 40 & 15 {
                0 if step > 0 => return state >> 60,
                1..=3 if stores => pm.store(at, &[state as u8 & 3, 1]),
                4 if stores => {
                    pm.op(&Op::Flush { thread: 1, line: at / 64, how: FlushKind::Clwb });
                    pm.op(&Op::Fence { thread: 1, how: FenceKind::Sfence });
                }
                5 if stores => pm.op(&Op::Flush { thread: 1, line: at / 64, how: FlushKind::Clflush }),
                _ => {
                    for byte in pm.load(at, 1 + (state >> 20) as usize % 16) {
                        state = mix(state ^ u64::from(byte));
                    }
                }
            }
        }
        state >> 60
    }
}

fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lazy_and_eager_agree(program in prop::collection::vec(op(), 0..10), seed: u64, steps in 1..8u32, stores: bool) {
        let recovery = recovery(seed, steps, stores);
        let mut reference = Reference::default();
        // The eager search crashes everywhere, the lazy one at its failure points.
        let mut everywhere: BTreeSet<Seen> = eager(&reference.images(&[0; SIZE]), &recovery);
        for op in &program {
            reference.apply(op);
            everywhere.extend(eager(&reference.images(&[0; SIZE]), &recovery));
        }
        let mut all = BTreeSet::new();
        let crashes = crashes(&program);
        for crash in &crashes {
            let found = lazy(crash, &recovery, u64::MAX);
            let set = found.set();
            prop_assert_eq!(set.len(), found.seen.len(), "the same execution twice");
            // Without patience: never something else, and all of the same executions first.
            let hasty = lazy(crash, &recovery, 0);
            prop_assert!(hasty.set().is_subset(&set));
            prop_assert_eq!(hasty.seen.len() == found.seen.len(), hasty.doubtful == 0);
            all.extend(set);
        }
        let at_end = lazy(crashes.last().unwrap(), &recovery, u64::MAX);
        prop_assert_eq!(at_end.set(), eager(&reference.images(&[0; SIZE]), &recovery));
        // The start of the run is the only moment that no failure point covers: nothing is stored yet, or the first is kept back.
        everywhere.retain(|seen| !all.contains(seen));
        prop_assert!(everywhere.is_empty(), "missed: {:?}", everywhere);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn crashes_in_the_recovery_agree_too(
        program in prop::collection::vec(op(), 1..6), seed: u64, steps in 2..7u32, other: u64, others in 1..5u32,
    ) {
        let (first, second) = (recovery(seed, steps, true), recovery(other, others, true));
        let crash = crashes(&program).pop().unwrap();
        let mut reference = Reference::default();
        program.iter().for_each(|op| reference.apply(op));
        let images = reference.images(&[0; SIZE]);
        // A crash before the recovery has stored anything leaves what the first crash left.
        let mut lazily = lazy(&crash, &second, u64::MAX).set();
        let mut eagerly = eager(&images, &second);
        lazily.extend(lazy_twice(&crash, &first, &second));
        eagerly.extend(eager(&eager_inside(&images, &first), &second));
        prop_assert_eq!(lazily, eagerly);
    }
}
