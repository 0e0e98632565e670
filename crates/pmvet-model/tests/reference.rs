//! Compares the model with one that is too simple to be wrong: per line a list of all stores ever made and a count of those
//! that are guaranteed; per thread a list of all flushes.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{BASE, FILE, Run};
use pmvet_events::event::{FlushKind, What};
use pmvet_model::states::{Reordering, StateLimits};
use pmvet_model::{LineId, Mode};
use proptest::prelude::*;

const LINES: u64 = 3;

#[derive(Debug, Clone)]
enum Step {
    Store { thread: u32, offset: u64, value: Vec<u8>, nontemporal: bool },
    Rmw { thread: u32, offset: u64, value: u8, stored: bool },
    Flush { thread: u32, line: u64, now: bool },
    Fence { thread: u32 },
    Sync { line: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let thread = 1..=3u32;
    let bytes = prop::collection::vec(0..4u8, 1..80);
    prop_oneof![
        5 => (thread.clone(), 0..LINES * 64 - 80, bytes, any::<bool>())
            .prop_map(|(thread, offset, value, nontemporal)| Step::Store { thread, offset, value, nontemporal }),
        1 => (thread.clone(), 0..LINES * 64, 0..4u8, any::<bool>())
            .prop_map(|(thread, offset, value, stored)| Step::Rmw { thread, offset, value, stored }),
        3 => (thread.clone(), 0..LINES, prop::bool::weighted(0.2))
            .prop_map(|(thread, line, now)| Step::Flush { thread, line, now }),
        2 => thread.prop_map(|thread| Step::Fence { thread }),
        1 => (0..LINES).prop_map(|line| Step::Sync { line }),
    ]
}

#[derive(Default)]
struct Reference {
    eadr: bool,
    stores: BTreeMap<u64, Vec<(usize, Vec<u8>)>>,
    guaranteed: BTreeMap<u64, usize>,
    flushes: Vec<(u32, u64, usize)>,
}

impl Reference {
    fn store(&mut self, thread: u32, offset: u64, value: &[u8], nontemporal: bool) {
        let mut parts: BTreeMap<u64, (usize, Vec<u8>)> = BTreeMap::new();
        for (i, byte) in value.iter().enumerate() {
            let at = offset + i as u64;
            parts.entry(at / 64).or_insert(((at % 64) as usize, Vec::new())).1.push(*byte);
        }
        for (line, part) in parts {
            let stores = self.stores.entry(line).or_default();
            stores.push(part);
            let count = stores.len();
            if nontemporal {
                self.flushes.push((thread, line, count));
            } else if self.eadr {
                self.raise(line, count);
            }
        }
    }

    fn raise(&mut self, line: u64, count: usize) {
        let bound = self.guaranteed.entry(line).or_default();
        *bound = count.max(*bound);
    }

    fn flush(&mut self, thread: u32, line: u64, now: bool) {
        let count = self.stores.get(&line).map_or(0, Vec::len);
        if now {
            self.raise(line, count);
        } else {
            self.flushes.push((thread, line, count));
        }
    }

    fn fence(&mut self, thread: u32) {
        let (mine, others) = std::mem::take(&mut self.flushes).into_iter().partition(|f| f.0 == thread);
        self.flushes = others;
        let mine: Vec<_> = mine;
        for (_, line, count) in mine {
            self.raise(line, count);
        }
    }

    /// Every content that a line may have after a crash.
    fn states(&self, line: u64) -> BTreeSet<[u8; 64]> {
        let stores = self.stores.get(&line).map_or(&[][..], Vec::as_slice);
        let bound = self.guaranteed.get(&line).copied().unwrap_or(0);
        let content = |count: usize| {
            let mut bytes = [0xee; 64];
            for (at, value) in &stores[..count] {
                bytes[*at..*at + value.len()].copy_from_slice(value);
            }
            bytes
        };
        (bound..=stores.len()).map(content).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn allows_the_same_crash_states(steps in prop::collection::vec(step(), 0..40), eadr: bool) {
        let mut run = Run::new(if eadr { Mode::Eadr } else { Mode::Adr });
        let mut reference = Reference { eadr, ..Reference::default() };
        for step in &steps {
            match step {
                Step::Store { thread, offset, value, nontemporal } => {
                    reference.store(*thread, *offset, value, *nontemporal);
                    if *nontemporal { run.nt(*thread, *offset, value) } else { run.store(*thread, *offset, value) };
                }
                Step::Rmw { thread, offset, value, stored } => {
                    reference.fence(*thread);
                    if *stored {
                        reference.store(*thread, *offset, &[*value], false);
                    }
                    run.rmw(*thread, *offset, &[*value], *stored);
                }
                Step::Flush { thread, line, now } => {
                    reference.flush(*thread, *line, *now);
                    let how = if *now { FlushKind::Clflush } else { FlushKind::Clwb };
                    run.what(*thread, What::Flush { addr: BASE + line * 64 + 7, how, pm: true });
                }
                Step::Fence { thread } => {
                    reference.fence(*thread);
                    run.sfence(*thread);
                }
                Step::Sync { line } => {
                    reference.flush(0, *line, true);
                    run.msync(line * 64, 64);
                }
            }
            let mut all = 1;
            for line in 0..LINES {
                let expected = reference.states(line);
                let found: BTreeSet<[u8; 64]> = match run.model.line(LineId { file: FILE, index: line }) {
                    Some(pending) => pending.states().into_iter().map(|(_, c)| c.bytes).collect(),
                    None => [run.image.0[line as usize * 64..][..64].try_into().unwrap()].into(),
                };
                prop_assert_eq!(&found, &expected);
                all *= expected.len() as u128;
            }
            prop_assert_eq!(run.model.crash_states(), all);
        }

        // Every picked state is possible, differs from the newest one and from the others.
        let mut seen = BTreeSet::new();
        for state in run.model.adversarial(StateLimits::default()) {
            let mut image = run.image.0.clone();
            for patch in run.model.patches(&state.cuts) {
                image[patch.offset as usize..][..patch.bytes.len()].copy_from_slice(&patch.bytes);
            }
            prop_assert_ne!(&image, &run.image.0);
            for line in 0..LINES {
                let bytes: [u8; 64] = image[line as usize * 64..][..64].try_into().unwrap();
                let states = reference.states(line);
                // A torn store: what comes before its end is of one state, and what comes behind it is of an earlier one.
                let torn_at = match state.choice {
                    Reordering::Torn(torn, _, at) if torn.index == line => usize::from(at),
                    _ => 64,
                };
                prop_assert!(states.iter().any(|state| state[..torn_at] == bytes[..torn_at]));
                prop_assert!(states.iter().any(|state| state[torn_at..] == bytes[torn_at..]));
            }
            prop_assert!(seen.insert(image));
        }
    }
}
