//! Inputs for programs with threads: the useful ones, and new ones made of them.

use std::num::NonZeroUsize;

use libafl_bolts::rands::{Rand, StdRand};

use crate::operations::{Chance, Operations};

/// One in this many turns repeats a seed unchanged, if its last turn gave anything new.
const AGAIN: usize = 3;
/// After this many turns in a row without anything new, inputs fill a store instead.
const STUCK: u32 = 6;

/// An input, and whether it still gives anything new.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seed {
    input: Vec<u8>,
    /// Its last turn covered something new.
    fresh: bool,
}

/// The inputs so far.
#[derive(Debug)]
pub struct Seeds {
    known: Vec<Seed>,
    /// Inputs that have had no turn yet.
    waiting: Vec<Vec<u8>>,
    operations: Option<Operations>,
    longest: usize,
    fruitless: u32,
    random: StdRand,
}

impl Seeds {
    /// `random` seeds the random choices.
    pub fn new(seeds: Vec<Vec<u8>>, operations: Option<Operations>, longest: usize, random: u64) -> Self {
        let mut waiting = seeds;
        waiting.reverse();
        Self { known: Vec::new(), waiting, operations, longest, fruitless: 0, random: StdRand::with_seed(random) }
    }

    /// Goes on with what an earlier campaign has kept: `known` have covered something, `untried` have yet to be tried.
    pub fn go_on_with(&mut self, known: Vec<Vec<u8>>, untried: Vec<Vec<u8>>) {
        self.waiting.retain(|input| !known.contains(input) && !untried.contains(input));
        self.waiting.extend(untried.into_iter().rev());
        // A known input shows whether the program still works.
        self.waiting.extend(known.first().cloned());
        self.known.extend(known.into_iter().map(|input| Seed { input, fresh: true }));
    }

    /// The input for the next turn.
    pub fn next_input(&mut self) -> Vec<u8> {
        let random = &mut self.random;
        let below: Chance<'_> = &mut |n| random.below(NonZeroUsize::new(n).unwrap_or(NonZeroUsize::MIN));
        if let Some(input) = self.waiting.pop() {
            return input;
        }
        let count = self.known.len();
        if count == 0 {
            return Vec::new();
        }
        let fresh = self.known.iter().rposition(|seed| seed.fresh);
        if let Some(at) = fresh.filter(|_| below(AGAIN) == 0) {
            self.known[at].fresh = false;
            return self.known[at].input.clone();
        }
        let mut input = self.known[below(count)].input.clone();
        let other = self.known[below(count)].input.clone();
        // Several steps at a time if single ones give nothing new.
        let steps = 1 + (self.fruitless / STUCK).min(8);
        for _ in 0..steps {
            let changed = self.operations.as_ref().is_some_and(|ops| ops.mutate(&mut input, &other, below));
            if !changed {
                change_bytes(&mut input, &other, below);
            }
        }
        input.truncate(self.longest);
        input
    }

    /// Notes the result of a turn.
    pub fn done(&mut self, input: Vec<u8>, is_new: bool) {
        self.fruitless = if is_new { 0 } else { self.fruitless + 1 };
        // The first input is always kept: there must be something to start from.
        match self.known.iter().position(|seed| seed.input == input) {
            Some(at) => self.known[at].fresh = is_new,
            None if is_new || self.known.is_empty() => self.known.push(Seed { input, fresh: is_new }),
            None => {}
        }
    }

    /// How many inputs are known to be useful.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether none is known yet.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

/// Mutates inputs that are not lines of text.
fn change_bytes(input: &mut Vec<u8>, other: &[u8], below: Chance<'_>) {
    let at = below(input.len() + 1);
    match below(4) {
        0 if at < input.len() => input[at] = below(256) as u8,
        1 if at < input.len() => {
            input.remove(at);
        }
        2 if !other.is_empty() => {
            let from = below(other.len());
            let count = 1 + below(other.len() - from);
            input.splice(at..at, other[from..from + count].iter().copied());
        }
        _ => input.insert(at, below(256) as u8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_come_first_and_what_is_worth_nothing_is_dropped() {
        let mut seeds = Seeds::new(vec![b"a".to_vec(), b"b".to_vec()], None, 10, 1);
        assert_eq!(seeds.next_input(), b"a");
        seeds.done(b"a".to_vec(), true);
        assert_eq!(seeds.next_input(), b"b");
        seeds.done(b"b".to_vec(), false);
        assert_eq!(seeds.len(), 1);
        for _ in 0..200 {
            let input = seeds.next_input();
            assert!(input.len() <= 10);
            seeds.done(input, false);
        }
        assert_eq!(seeds.len(), 1);
    }

    #[test]
    fn a_campaign_goes_on_where_another_has_ended() {
        let mut seeds = Seeds::new(vec![b"a".to_vec(), b"b".to_vec()], None, 10, 1);
        seeds.go_on_with(vec![b"k".to_vec(), b"a".to_vec()], vec![b"u".to_vec(), b"v".to_vec()]);
        assert_eq!(seeds.len(), 2);
        let first: Vec<Vec<u8>> = (0..4).map(|_| seeds.next_input()).collect();
        assert_eq!(first, [b"k", b"u", b"v", b"b"]);
    }

    /// Which thread an operation goes to is a parameter like others, so that mutants distribute operations over threads.
    #[test]
    fn operations_go_to_other_threads() {
        let text = "operations = ['{thread} set', '{thread} get']\n[parameters]\nthread = { min = 0, max = 3 }\n";
        let mut seeds = Seeds::new(vec![b"0 set\n0 get\n".to_vec()], Operations::parse(text).ok(), 1 << 12, 7);
        let first = seeds.next_input();
        seeds.done(first, true);
        let mutants: Vec<String> = (0..50).map(|_| String::from_utf8_lossy(&seeds.next_input()).into_owned()).collect();
        let apart = |text: &&String| {
            let of =
                |what: &str| text.lines().find(|line| line.ends_with(what)).and_then(|line| line.split(' ').next());
            of("set").zip(of("get")).is_some_and(|(set, get)| set != get)
        };
        assert!(mutants.iter().filter(apart).count() >= 5, "{mutants:?}");
    }
}
