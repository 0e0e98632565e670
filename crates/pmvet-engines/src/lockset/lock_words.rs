//! How reports name a lock: by its variable, by its place in PM, or by the line that takes it. Never by its address, which
//! tells a reader nothing and differs in the next run.

use std::collections::BTreeMap;

use pmvet_findings::{Frame, LockSpan, Sources};

use super::races::{LockName, LockTime, RaceAccess};
use super::spin::Takers;
use crate::stacks::{Stacks, user_frame};

/// How many callers of the line that takes a lock are searched for its name.
const CALLS: usize = 2;
/// Holds the dynamic linker's own locks, which guard nothing of the program.
const OF_THE_LINKER: &str = "_rtld_global";

pub(super) struct LockWords<'a> {
    takers: &'a Takers,
    sources: &'a Sources,
    known: BTreeMap<LockName, Option<String>>,
}

impl<'a> LockWords<'a> {
    pub(super) fn new(takers: &'a Takers, sources: &'a Sources) -> Self {
        Self { takers, sources, known: BTreeMap::new() }
    }

    /// The locks of a store and of a load, and when they were held. Different locks with one name, such as those of two buckets, get
    /// numbers.
    pub(super) fn names(
        &mut self,
        ends: [&RaceAccess; 2],
        stacks: &mut dyn Stacks,
    ) -> ([Vec<String>; 2], Vec<LockSpan>) {
        let [store, load] = ends.map(|end| end.locks.as_slice());
        // Locks that both hold come first: the numbers must not depend on addresses.
        let both = store.iter().filter(|lock| load.contains(lock));
        let apart = store.iter().filter(|lock| !load.contains(lock));
        let rest = load.iter().filter(|lock| !store.contains(lock));
        let mut named: Vec<(LockName, String)> = Vec::new();
        for &lock in both.chain(apart).chain(rest) {
            named.extend(self.word(lock, stacks).map(|words| (lock, words)));
        }
        let numbered: BTreeMap<LockName, String> = named
            .iter()
            .enumerate()
            .map(|(at, (lock, words))| {
                let alike = |others: &[(LockName, String)]| others.iter().filter(|(_, w)| w == words).count();
                let several = alike(&named) > 1;
                (*lock, if several { format!("{words} #{}", alike(&named[..=at])) } else { words.clone() })
            })
            .collect();
        let names = [store, load].map(|locks| {
            let mut words: Vec<String> = locks.iter().filter_map(|lock| numbered.get(lock).cloned()).collect();
            words.sort();
            words
        });
        let spans = ends.into_iter().flat_map(|end| end.spans.iter().map(|span| (end.thread.0, span)));
        let worded = spans.filter_map(|(thread, &LockTime { lock, from, to })| {
            Some(LockSpan { thread, lock: numbered.get(&lock)?.clone(), from, to })
        });
        (names, worded.collect())
    }

    /// Nothing for a lock of the dynamic linker.
    fn word(&mut self, lock: LockName, stacks: &mut dyn Stacks) -> Option<String> {
        if let Some(known) = self.known.get(&lock) {
            return known.clone();
        }
        let taker = self.taker(lock, stacks);
        let named = taker.as_ref().and_then(|frame| self.sources.locked_at(frame));
        let at = taker.map(|frame| format!(" taken at {frame}")).unwrap_or_default();
        let words = match lock {
            LockName::Pm(word) => {
                let file = stacks.file(word.file);
                let place = format!("{}+{:#x}", file.file_name().unwrap_or_default().display(), word.offset);
                Some(named.map_or_else(|| format!("{place}{at}"), |name| format!("`{name}` ({place}){at}")))
            }
            LockName::Memory(address) => match (stacks.variable(address), named) {
                (Some((variable, _)), _) if variable == OF_THE_LINKER => None,
                (Some((variable, 0)), _) => Some(format!("`{variable}`")),
                (Some((variable, offset)), _) => Some(format!("`{variable}`+{offset:#x}")),
                (None, Some(name)) => Some(format!("`{name}`{at}")),
                (None, None) => Some(format!("a lock{at}")),
            },
        };
        self.known.insert(lock, words.clone());
        words
    }

    /// Of the lines that take the lock, the first in the source: which thread was first is chance.
    fn taker(&self, lock: LockName, stacks: &mut dyn Stacks) -> Option<Frame> {
        let frames = self.takers.get(&lock)?.iter().filter_map(|&(site, context)| {
            let stack = stacks.stack(site, context);
            let at = user_frame(&stack).unwrap_or(0);
            // A function that takes locks for its callers gets them as arguments, so the callers are searched, too.
            let callers = stack.get(at..)?.iter().filter(|frame| frame.is_user()).take(1 + CALLS);
            let names = |frame: &&Frame| self.sources.locked_at(frame).is_some();
            callers.clone().find(names).or_else(|| stack.get(at)).cloned()
        });
        frames.min_by_key(|frame| (frame.file.clone(), frame.line, frame.offset))
    }
}
