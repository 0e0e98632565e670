//! How closely two operations are related: those on the same key or object touch the same words on their way to it.

use std::collections::HashMap;

use pmvet_events::{FileId, ThreadId};

/// How many words of an operation count: the first ones, which lead to its object.
const MOST_WORDS: usize = 32;
/// Operations to remember; a bound on memory.
const MOST_OPERATIONS: usize = 1 << 18;
/// Similarity of operations that touch the same words.
const SAME: usize = 8;

/// What each operation of each thread has touched. An operation ends with a fence.
#[derive(Debug, Default)]
pub(super) struct OperationWords(HashMap<(ThreadId, u32), Vec<(FileId, u64)>>);

impl OperationWords {
    pub(super) fn touched(&mut self, thread: ThreadId, operation: u32, words: &[(FileId, u64)]) {
        if self.0.len() >= MOST_OPERATIONS && !self.0.contains_key(&(thread, operation)) {
            return;
        }
        let known = self.0.entry((thread, operation)).or_default();
        for &word in words {
            if known.len() < MOST_WORDS && !known.contains(&word) {
                known.push(word);
            }
        }
    }

    /// Prepares the comparison, after the last operation was added.
    pub(super) fn sort(&mut self) {
        self.0.values_mut().for_each(|words| words.sort_unstable());
    }

    /// From 0, for nothing in common, to `SAME`.
    pub(super) fn similarity(&self, a: (ThreadId, u32), b: (ThreadId, u32)) -> u8 {
        let (Some(a), Some(b)) = (self.0.get(&a), self.0.get(&b)) else { return 0 };
        let common = a.iter().filter(|word| b.binary_search(word).is_ok()).count();
        let all = a.len() + b.len() - common;
        (common * SAME / all.max(1)) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_on_the_same_words_are_alike() {
        let mut operations = OperationWords::default();
        let words = |words: &[u64]| words.iter().map(|&word| (FileId(1), word)).collect::<Vec<_>>();
        operations.touched(ThreadId(1), 0, &words(&[1, 2]));
        operations.touched(ThreadId(1), 0, &words(&[2, 3]));
        operations.touched(ThreadId(2), 5, &words(&[3, 2, 1]));
        operations.touched(ThreadId(2), 6, &words(&[1, 4, 5, 6]));
        operations.sort();
        let similarity = |thread, operation| operations.similarity((ThreadId(1), 0), (ThreadId(thread), operation));
        assert_eq!((similarity(2, 5), similarity(2, 6), similarity(2, 7)), (8, 1, 0));
        let many: Vec<u64> = (0..1000).collect();
        operations.touched(ThreadId(3), 0, &words(&many));
        assert_eq!(operations.0[&(ThreadId(3), 0)].len(), MOST_WORDS);
    }
}
