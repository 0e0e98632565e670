//! Functions that only store what their caller gives them, such as `commit(p, value)`: store, flush, fence.
//!
//! Such a function may have any name. In the recording, it stores in one line, and its callers store to different words through it. If
//! the failing state lasts until another call, its caller is to blame, for the order of two calls, say. If the state ends within the
//! call, the function itself is to blame.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;

use pmvet_events::event::{Event, What};
use pmvet_events::{ContextId, SiteId};
use pmvet_findings::Frame;
use pmvet_findings::stack::{last_name, shared_frames, user_frame};
use rustc_hash::FxHashMap;

use crate::stacks::Stacks;

/// For each call path to an instruction that stores to PM, the addresses of the first few words that it has stored to.
#[derive(Debug, Default)]
pub(crate) struct StoreTargets(FxHashMap<(SiteId, ContextId), BTreeSet<u64>>);

/// Words to keep per call path: enough that callers storing to the same array have some in common.
const MOST_WORDS: usize = 64;
/// In a run with more call paths, no function counts as a wrapper: naming them all would take too long.
const MOST_PATHS: usize = 8192;

impl StoreTargets {
    /// Takes notice of an event.
    pub(crate) fn note(&mut self, event: &Event<'_>) {
        if let What::Store { addr, .. } | What::Rmw { addr, stored: true, .. } = event.what {
            let words = self.0.entry((event.site, event.context)).or_default();
            if words.len() < MOST_WORDS {
                words.insert(addr / 8);
            }
        }
    }
}

/// What is known of each function that stores to PM.
#[derive(Debug, Default)]
pub(crate) struct Wrappers(HashMap<FunctionId, Storing>);

/// How a function stores.
#[derive(Debug, Default)]
struct Storing {
    lines: BTreeSet<Option<u32>>,
    /// By the place of the caller, the words that it stores to through this function.
    callers: BTreeMap<CallerLine, BTreeSet<u64>>,
}

type FunctionId = (Option<PathBuf>, String);
type CallerLine = (Option<PathBuf>, Option<u32>, u64);

/// Instances of a template count as one function.
fn function_id(frame: &Frame) -> FunctionId {
    (frame.file.clone().or_else(|| frame.module.clone()), last_name(frame).to_owned())
}

impl Storing {
    /// Whether it stores to what its caller gives it: the words of two callers have nothing in common.
    fn is_wrapper(&self) -> bool {
        let mut sets = self.callers.values();
        let first = sets.next();
        self.lines.len() == 1 && first.is_some_and(|first| sets.any(|other| first.is_disjoint(other)))
    }
}

impl Wrappers {
    pub(crate) fn new(targets: &StoreTargets, stacks: &mut dyn Stacks) -> Self {
        let mut functions = Self::default();
        if targets.0.len() > MOST_PATHS {
            return functions;
        }
        for (&(site, context), words) in &targets.0 {
            let stack = stacks.stack(site, context);
            let Some(own) = user_frame(&stack) else { continue };
            let storing = functions.0.entry(function_id(&stack[own])).or_default();
            storing.lines.insert(stack[own].line);
            if let Some(caller) = stack[own + 1..].iter().find(|frame| frame.is_user()) {
                let offset = if caller.has_line() { 0 } else { caller.offset };
                storing.callers.entry((caller.file.clone(), caller.line, offset)).or_default().extend(words);
            }
        }
        functions
    }

    /// Marks the functions of a store's stack that only store for their caller. `closing`: where the state that begins with the store ends.
    pub(crate) fn mark(&self, store: &mut [Frame], closing: &[Frame]) {
        let left = store.len() - shared_frames(store, closing);
        while let Some(at) = user_frame(store).filter(|&at| at < left) {
            let is_wrapper = self.0.get(&function_id(&store[at])).is_some_and(Storing::is_wrapper);
            let has_caller = store[at + 1..].iter().any(Frame::is_user);
            if !is_wrapper || !has_caller || store[at].wrapper {
                return;
            }
            store[at].wrapper = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use pmvet_events::event::StoreKind;
    use pmvet_events::{FileId, ThreadId};

    use super::*;

    fn frame(function: &str, line: u32) -> Frame {
        Frame {
            function: Some(function.into()),
            file: Some("/src/ring.c".into()),
            line: Some(line),
            module: Some("/bin/ring".into()),
            offset: line.into(),
            ..Frame::default()
        }
    }

    /// A site is a line of `commit` or, from 30 on, of `clear`; a context is the line of `push` that calls it.
    struct Ring;

    impl Stacks for Ring {
        fn stack(&mut self, site: SiteId, context: ContextId) -> Vec<Frame> {
            let function = if site.0 < 30 { "commit" } else { "clear" };
            vec![frame(function, site.0), frame("push", context.0), frame("main", 90)]
        }

        fn file(&self, _file: FileId) -> PathBuf {
            PathBuf::new()
        }
    }

    /// What a run tells in which each of these (line, caller's line, address) was stored.
    fn wrappers(stores: &[(u32, u32, u64)]) -> Wrappers {
        let mut targets = StoreTargets::default();
        for &(line, caller, addr) in stores {
            let what = What::Store { addr, value: &[0; 8], how: StoreKind::Regular };
            let (site, context) = (SiteId(line), ContextId(caller));
            targets.note(&Event { seq: 1, thread: ThreadId(1), site, context, what });
        }
        Wrappers::new(&targets, &mut Ring)
    }

    /// The line that is blamed for a store in `commit` that `push` has called in line 41, if the state ends in `closing`.
    fn blamed(wrappers: &Wrappers, closing: &[Frame]) -> Option<u32> {
        let mut store = vec![frame("commit", 23), frame("push", 41), frame("main", 90)];
        wrappers.mark(&mut store, closing);
        store[user_frame(&store)?].line
    }

    #[test]
    fn a_state_that_another_call_ends_is_the_callers() {
        let in_next_call = [frame("commit", 24), frame("push", 45), frame("main", 90)];
        let in_the_same = [frame("commit", 24), frame("push", 41), frame("main", 90)];
        let to_two_places = wrappers(&[(23, 41, 0x1000), (23, 45, 0x2000)]);
        assert_eq!(blamed(&to_two_places, &in_next_call), Some(41));
        assert_eq!(blamed(&to_two_places, &in_the_same), Some(23));
        let in_main = [frame("pop", 60), frame("main", 91)];
        assert_eq!(blamed(&to_two_places, &in_main), Some(41), "push is left, but stores nothing itself");
    }

    #[test]
    fn what_decides_where_it_stores_is_no_wrapper() {
        let in_next_call = [frame("commit", 24), frame("push", 45), frame("main", 90)];
        let of_one_word = wrappers(&[(23, 41, 0x1000), (23, 45, 0x1000)]);
        let of_one_caller = wrappers(&[(23, 41, 0x1000), (23, 41, 0x2000)]);
        let of_two_lines = wrappers(&[(23, 41, 0x1000), (25, 45, 0x2000)]);
        for wrappers in [of_one_word, of_one_caller, of_two_lines] {
            assert_eq!(blamed(&wrappers, &in_next_call), Some(23));
        }
    }
}
