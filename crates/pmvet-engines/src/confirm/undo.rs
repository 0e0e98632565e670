//! What PM would hold if a thread had not acted.

use std::collections::HashMap;

use pmvet_events::ThreadId;
use pmvet_target::crash::Patch;

/// Stores to remember per thread; a bound on memory. A thread that has made more has done more than act on one value.
const MOST: usize = 256;

/// What the latest stores of each thread have overwritten.
#[derive(Debug, Default)]
pub(super) struct Undo(HashMap<ThreadId, OldBytes>);

#[derive(Debug, Default)]
struct OldBytes {
    /// The oldest first, with the number of the store.
    bytes: Vec<(u64, Patch)>,
    /// The number of the last forgotten store.
    forgotten: u64,
}

impl Undo {
    /// A thread is about to overwrite this.
    pub(super) fn store(&mut self, thread: ThreadId, seq: u64, old: Patch) {
        let known = self.0.entry(thread).or_default();
        if known.bytes.len() == MOST {
            known.forget(known.bytes[MOST / 2].0);
        }
        known.bytes.push((seq, old));
    }

    /// What to write over PM to undo what a thread has stored after an event. Nothing if that is no longer known.
    pub(super) fn since(&self, thread: ThreadId, seq: u64) -> Option<Vec<Patch>> {
        let Some(known) = self.0.get(&thread) else { return Some(Vec::new()) };
        let later = known.bytes.iter().rev().take_while(|(at, _)| *at > seq);
        (known.forgotten <= seq).then(|| later.map(|(_, patch)| patch.clone()).collect())
    }

    /// Forgets what a thread has stored before this event; nothing: all of it.
    pub(super) fn forget(&mut self, thread: ThreadId, before: Option<u64>) {
        match before {
            Some(seq) => self.0.entry(thread).or_default().forget(seq),
            None => drop(self.0.remove(&thread)),
        }
    }
}

impl OldBytes {
    fn forget(&mut self, until: u64) {
        let many = self.bytes.partition_point(|(seq, _)| *seq <= until);
        if let Some((seq, _)) = self.bytes.drain(..many).next_back() {
            self.forgotten = seq;
        }
    }
}

#[cfg(test)]
mod tests {
    use pmvet_events::FileId;

    use super::*;

    const THREAD: ThreadId = ThreadId(1);

    fn old(value: u8) -> Patch {
        Patch { file: FileId(1), offset: 64, bytes: vec![value] }
    }

    /// A thread has overwritten 0, 1, 2 and so on.
    fn stores(many: u8) -> Undo {
        let mut undo = Undo::default();
        (0..many).for_each(|n| undo.store(THREAD, 10 * u64::from(n), old(n)));
        undo
    }

    #[test]
    fn the_first_store_is_undone_last() {
        let undo = stores(5);
        assert_eq!(undo.since(THREAD, 20), Some(vec![old(4), old(3)]));
        assert_eq!(undo.since(ThreadId(2), 0), Some(Vec::new()), "it has stored nothing");
    }

    #[test]
    fn what_was_forgotten_cannot_be_undone() {
        let mut undo = stores(5);
        undo.forget(THREAD, Some(20));
        assert_eq!((undo.since(THREAD, 10), undo.since(THREAD, 20).map(|all| all.len())), (None, Some(2)));
        undo.forget(THREAD, None);
        assert_eq!(undo.since(THREAD, 40), Some(Vec::new()));
        let mut undo = stores(200);
        (200..300).for_each(|seq| undo.store(THREAD, 10 * seq, old(0)));
        assert_eq!((undo.since(THREAD, 0), undo.since(THREAD, 2900).map(|all| all.len())), (None, Some(9)));
    }
}
