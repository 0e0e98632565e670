//! Happens-before between threads: vector clocks over create and join and, if enabled, over barriers, condition
//! variables, semaphores and flags that a thread spins on.
//!
//! HawkSet stores a vector clock with every access. Here an access only remembers the count of its own thread (its
//! *epoch*, as FastTrack calls it). It happened before another thread's next step if that thread's clock has reached
//! this count, so nothing has to be interned. As in the paper, a thread's count grows only where threads synchronise,
//! not at every access.
//!
//! Locks give no edge: the order in which critical sections ran is an accident of the run, and the races it hides are
//! the very ones the engine is to predict.

use pmvet_events::{ThreadId, event::SyncOp};

use rustc_hash::FxHashMap as FastMap;

/// A moment in the life of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Epoch {
    pub(crate) thread: ThreadId,
    pub(crate) count: u32,
}

impl Epoch {
    /// The end of something that never ends, such as the window of a store that is never persisted.
    pub(crate) const NEVER: Epoch = Epoch { thread: ThreadId(u32::MAX), count: u32::MAX };
}

type Clock = Vec<u32>;

#[derive(Debug, Default)]
pub(crate) struct Clocks {
    /// By thread. A thread's own count starts at 1, so 0 means "knows nothing of that thread".
    threads: Vec<Clock>,
    objects: FastMap<u64, Object>,
}

/// A barrier, condition variable or semaphore.
#[derive(Debug, Default)]
struct Object {
    /// The joined clocks of the threads that have arrived.
    open: Clock,
    /// Barriers: the joined clocks of the last full round.
    closed: Clock,
    round: u32,
    /// Barriers: the round each thread inside has entered.
    inside: Vec<(ThreadId, u32)>,
}

fn join(into: &mut Clock, from: &[u32]) {
    if into.len() < from.len() {
        into.resize(from.len(), 0);
    }
    for (into, &from) in into.iter_mut().zip(from) {
        *into = (*into).max(from);
    }
}

impl Clocks {
    fn clock(&mut self, thread: ThreadId) -> &mut Clock {
        let index = thread.0 as usize;
        if self.threads.len() <= index {
            self.threads.resize_with(index + 1, Vec::new);
        }
        let clock = &mut self.threads[index];
        if clock.len() <= index {
            clock.resize(index + 1, 0);
        }
        clock[index] = clock[index].max(1);
        clock
    }

    #[inline]
    pub(crate) fn now(&mut self, thread: ThreadId) -> Epoch {
        let index = thread.0 as usize;
        if let Some(&count) = self.threads.get(index).and_then(|clock| clock.get(index)).filter(|count| **count > 0) {
            return Epoch { thread, count };
        }
        Epoch { thread, count: self.clock(thread)[thread.0 as usize] }
    }

    /// Whether `moment` comes before anything that `thread` does from now on.
    pub(crate) fn is_before(&self, moment: Epoch, thread: ThreadId) -> bool {
        let known = self.threads.get(thread.0 as usize).and_then(|c| c.get(moment.thread.0 as usize));
        known.is_some_and(|&known| known >= moment.count)
    }

    /// Returns a copy of the thread's clock. Whoever learns it is ordered after what `thread` did so far, not after
    /// what it does next.
    pub(crate) fn publish(&mut self, thread: ThreadId) -> Vec<u32> {
        let clock = self.clock(thread);
        let copy = clock.clone();
        clock[thread.0 as usize] += 1;
        copy
    }

    pub(crate) fn learn(&mut self, thread: ThreadId, from: &[u32]) {
        join(self.clock(thread), from);
    }

    pub(crate) fn create(&mut self, parent: ThreadId, child: ThreadId) {
        let known = self.publish(parent);
        self.learn(child, &known);
    }

    pub(crate) fn join_thread(&mut self, thread: ThreadId, child: ThreadId) {
        let known = self.publish(child);
        self.learn(thread, &known);
    }

    /// An operation on a synchronisation object. `object` must be unique over processes.
    pub(crate) fn sync(&mut self, thread: ThreadId, object: u64, op: SyncOp) {
        let arrives = matches!(op, SyncOp::CondSignal | SyncOp::CondBroadcast | SyncOp::SemPost | SyncOp::BarrierEnter);
        let known = if arrives { self.publish(thread) } else { Vec::new() };
        let state = self.objects.entry(object).or_default();
        match op {
            SyncOp::CondSignal | SyncOp::CondBroadcast | SyncOp::SemPost => join(&mut state.open, &known),
            SyncOp::CondWoken | SyncOp::SemAcquire => {
                let known = state.open.clone();
                self.learn(thread, &known);
            }
            SyncOp::BarrierEnter => {
                join(&mut state.open, &known);
                state.inside.retain(|&(t, _)| t != thread);
                state.inside.push((thread, state.round));
            }
            SyncOp::BarrierLeave => {
                let Some(at) = state.inside.iter().position(|&(t, _)| t == thread) else { return };
                let (_, round) = state.inside.swap_remove(at);
                // The first thread to leave ends the round: threads that enter from now on belong to the next one.
                if round == state.round {
                    state.closed = std::mem::take(&mut state.open);
                    state.round += 1;
                }
                let known = state.closed.clone();
                self.learn(thread, &known);
            }
            SyncOp::CondWait => {}
        }
    }
}
