//! Pairs of a store and a load: which of them are races, and which reports remain at the end.
//!
//! A pair that only an inferred lock protects cannot be judged before the end of the run, since a later event may show
//! that the word is no lock. Such pairs wait here, with their excuse.

use std::collections::BTreeSet;

use pmvet_events::{ContextId, FileId, SiteId, ThreadId};

use super::LocksetOptions;
use super::engine::pm_key;
use super::lines::{EventOrigin, Fate, StoreMeans, TrackedLine, Written, mask, word_bits};
use super::locksets::{HeldSpan, Hold, HoldMode, LockId, Locksets, SetId};
use super::reader::Threads;
use super::reads::LineRead;
use super::sightings::{Sightings, StoredLines};
use super::spin::{KnownLocks, PmWord};
use rustc_hash::FxHashMap as FastMap;

/// One end of a race.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaceAccess {
    /// The thread that stored or loaded.
    pub thread: ThreadId,
    /// The instruction.
    pub site: SiteId,
    /// Its call path.
    pub context: ContextId,
    /// Number of its event; a load shares that of the event before it.
    pub seq: u64,
    /// The PM file.
    pub file: FileId,
    /// Offset in the file of the bytes that both ends have in common.
    pub offset: u64,
    /// How many bytes they span.
    pub len: u64,
    /// Locks held at the access; for the load, also those that its thread took or looked at before it acted.
    pub locks: Vec<LockName>,
    /// When they were held, as far as that is known.
    pub spans: Vec<LockTime>,
}

/// A lock, and from when to when a thread held it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockTime {
    /// The lock.
    pub lock: LockName,
    /// Number of the event that took it.
    pub from: u64,
    /// Number of the event that released it, if that came before the end of the race.
    pub to: Option<u64>,
}

/// The event that ended the window of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowEnd {
    /// The thread that fenced or stored; not always the writer.
    pub thread: ThreadId,
    /// The instruction.
    pub site: SiteId,
    /// Its call path.
    pub context: ContextId,
    /// Number of the event.
    pub seq: u64,
}

/// What identifies a lock: its place in PM, or its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockName {
    /// A lock in PM, which survives a restart.
    Pm(PmWord),
    /// A lock in ordinary memory, by its address.
    Memory(u64),
}

/// A value that is not guaranteed to be persistent when another thread reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PredictedRace {
    /// The store that may be lost.
    pub store: RaceAccess,
    /// A load of another thread that may see it before it is persistent.
    pub load: RaceAccess,
    /// How the store's window ended: by a late fence, by an overwriting store, or not at all.
    pub fate: Fate,
    /// What ended it. Nothing if the store was never persisted or overwritten.
    pub ended_by: Option<WindowEnd>,
    /// Of the store's locks, those held until then: the effective lockset.
    pub kept: Vec<LockName>,
    /// In this run the load came between the store and its persist.
    pub observed: bool,
    /// How often the pair of call paths was seen.
    pub count: u64,
    /// Whether another run would show it.
    pub sightings: Sightings,
}

/// A word that makes a pair harmless, provided that it is a certain kind of lock.
type Excuse = (LockId, Provided);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Provided {
    /// Any lock.
    Lock,
    /// One that two threads that increment it do not share.
    Exclusive,
    /// A version that readers compare in loads that pmvet does not see.
    CheckedUnseen,
}

/// The call paths of a store and of a load, each with its instruction.
type PathPair = [(SiteId, ContextId); 2];

/// The paths of both ends, the locks and the word that the verdict depends on, and whether the store lies past the end of what is read
/// if that is a string.
type CandidateKey = (PathPair, Box<[Excuse]>, Option<LockId>, bool);

#[derive(Debug)]
struct Candidate {
    race: PredictedRace,
    excuses: Box<[Excuse]>,
    /// The word stored to, if it may be a lock itself.
    word: Option<LockId>,
}

#[derive(Debug, Default)]
pub(crate) struct Races {
    candidates: FastMap<CandidateKey, Candidate>,
    /// The known paths, by the instructions that they lead to.
    paths: FastMap<(SiteId, SiteId), Vec<PathPair>>,
    /// The lines that each instruction has stored to and other threads may read.
    stored: FastMap<(SiteId, ContextId), StoredLines>,
    /// What two locksets have in common, by their ids.
    common: FastMap<(SetId, SetId), Common>,
    /// Lock-free stores whose races are not predicted, with the words that they change.
    lock_free: FastMap<SiteId, LockId>,
}

#[derive(Debug, Clone)]
enum Common {
    Nothing,
    /// A lock that is certain to be one.
    Lock,
    Excuses(Box<[Excuse]>),
}

/// Beyond this many undecided pairs, new ones are judged by the evidence so far.
const MAX_UNDECIDED: usize = 100_000;
const MAX_CACHED: usize = 1 << 20;
/// Paths to keep per pair of instructions: more than a user looks at, yet a bound for any recursion. The rest count as the
/// first.
const MAX_PATHS: usize = 64;

fn exclude(a: Hold, b: Hold) -> bool {
    a.lock == b.lock
        && !(a.mode != HoldMode::Exclusive
            && b.mode != HoldMode::Exclusive
            && (a.mode, b.mode) != (HoldMode::Counted, HoldMode::Counted))
}

/// What decides about a pair, beside its two accesses.
pub(crate) struct PairContext<'a> {
    pub(crate) sets: &'a Locksets,
    pub(crate) locks: &'a KnownLocks,
    pub(crate) threads: &'a Threads,
    pub(crate) file: FileId,
    /// Of the line in the file.
    pub(crate) offset: u64,
    pub(crate) predict_lock_free: bool,
}

impl<'a> PairContext<'a> {
    pub(crate) fn new(
        line: &TrackedLine,
        sets: &'a Locksets,
        locks: &'a KnownLocks,
        threads: &'a Threads,
        options: &LocksetOptions,
    ) -> Self {
        Self { sets, locks, threads, file: line.file, offset: line.offset, predict_lock_free: options.lock_free }
    }

    /// Locks of the store that the load's thread read before it acted: those in the store's line; those that it read before and after the
    /// load; and, unless the load was `observed` in the window of the store, those in volatile memory, whose loads pmvet does not see.
    fn looked_at(&self, store: &Written, read: &LineRead, observed: bool) -> Vec<Excuse> {
        let mut excuses = Vec::new();
        for hold in self.sets.get(store.locks) {
            let Some(lock) = self.locks.get(hold.lock).filter(|lock| !lock.named) else { continue };
            let Some(word) = lock.place else {
                excuses.extend((!observed).then_some((hold.lock, Provided::CheckedUnseen)));
                continue;
            };
            let beside = (word.file, word.offset & !63) == (self.file, self.offset);
            if beside && read.looked & word_bits(mask(word.offset, 1)) != 0 || read.rechecked.contains(pm_key(word)) {
                excuses.push((hold.lock, Provided::Lock));
            }
        }
        excuses
    }
}

impl Races {
    fn common(&mut self, a: SetId, b: SetId, sets: &Locksets, locks: &KnownLocks) -> Common {
        if a == SetId::EMPTY || b == SetId::EMPTY {
            return Common::Nothing;
        }
        if let Some(known) = self.common.get(&(a, b)) {
            return known.clone();
        }
        let mut excuses: Vec<Excuse> = Vec::new();
        let mut certain = false;
        for &x in sets.get(a) {
            for &y in sets.get(b).iter().filter(|&&y| exclude(x, y)) {
                let counted = (x.mode, y.mode) == (HoldMode::Counted, HoldMode::Counted);
                certain |= if counted { locks.is_certain_to_exclude(x.lock) } else { locks.is_certain(x.lock) };
                excuses.push((x.lock, if counted { Provided::Exclusive } else { Provided::Lock }));
            }
        }
        let found = match (certain, excuses.is_empty()) {
            (true, _) => Common::Lock,
            (false, true) => Common::Nothing,
            // Not cached: the lock may be certain the next time.
            (false, false) => return Common::Excuses(excuses.into()),
        };
        if self.common.len() > MAX_CACHED {
            self.common.clear();
        }
        self.common.insert((a, b), found.clone());
        found
    }

    /// A store to a line that others may read.
    pub(crate) fn stored(&mut self, at: EventOrigin, line: PmWord) {
        self.stored.entry((at.site, at.context)).or_default().note(line);
    }

    /// Judges a store and a load by another thread that no happens-before edge orders. `acted`: the load's thread acted
    /// before the store was persistent.
    pub(crate) fn pair(&mut self, store: &Written, read: &LineRead, acted: bool, context: &PairContext<'_>) {
        let bytes = store.bytes & read.bytes;
        if store.at.thread == read.at.thread || bytes == 0 {
            return;
        }
        let word = match store.how {
            StoreMeans::Atomic(lock) | StoreMeans::Store(lock) if context.locks.is_certain(lock) => return,
            StoreMeans::Atomic(lock) if !acted && !context.predict_lock_free => {
                if matches!(self.common(store.locks, read.locks, context.sets, context.locks), Common::Nothing) {
                    self.lock_free.insert(store.at.site, lock);
                }
                return;
            }
            StoreMeans::Atomic(lock) | StoreMeans::Store(lock) => Some(lock),
            StoreMeans::Plain => None,
        };
        let excuses = match self.common(store.locks, read.locks, context.sets, context.locks) {
            Common::Lock => return,
            Common::Nothing => Vec::new(),
            Common::Excuses(excuses) => excuses.into_vec(),
        };
        let observed = acted || read.saw == Some(store.at.seq);
        let mut excuses = excuses;
        if store.locks != SetId::EMPTY {
            excuses.extend(context.looked_at(store, read, observed));
        }
        let excuses: Box<[Excuse]> = excuses.into();
        let undecided = self.candidates.len() >= MAX_UNDECIDED;
        if undecided && (!excuses.is_empty() || word.is_some()) {
            let harmless = excuses.iter().any(|&e| holds(e, context.locks));
            if harmless || word.is_some_and(|w| context.locks.verdict(w).0) {
                return;
            }
        }
        // Without the overlap, this pair would have been left out above or counted as initialisation.
        let lock_free = matches!(store.how, StoreMeans::Atomic(_)) && !context.predict_lock_free;
        let line = PmWord { file: context.file, offset: context.offset };
        let key = (self.path_pair(store.at, read.at), excuses, word, bytes & read.text == 0);
        if let Some(known) = self.candidates.get_mut(&key) {
            known.race.count += 1;
            known.race.sightings.note(line, store.overlapped || lock_free);
            // An observed pair is the most informative sample.
            if observed && !known.race.observed {
                let (count, sightings) = (known.race.count, std::mem::take(&mut known.race.sightings));
                known.race = PredictedRace { count, sightings, ..describe(store, read, bytes, observed, context) };
            }
            return;
        }
        let mut race = describe(store, read, bytes, observed, context);
        race.sightings.note(line, store.overlapped || lock_free);
        let excuses = key.1.clone();
        self.candidates.insert(key, Candidate { race, excuses, word });
    }

    fn path_pair(&mut self, store: EventOrigin, load: EventOrigin) -> PathPair {
        let pair = [(store.site, store.context), (load.site, load.context)];
        let known = self.paths.entry((store.site, load.site)).or_default();
        if known.contains(&pair) {
            return pair;
        }
        if known.len() >= MAX_PATHS {
            return known[0];
        }
        known.push(pair);
        pair
    }

    /// Takes the instructions whose stores are lock-free and not predicted to race, now that it is known which words are locks.
    pub(crate) fn take_lock_free(&mut self, locks: &KnownLocks) -> Vec<SiteId> {
        let stores = std::mem::take(&mut self.lock_free).into_iter();
        stores.filter(|&(_, word)| !locks.verdict(word).0).map(|(site, _)| site).collect()
    }

    /// The remaining races, now that all evidence is in: one per pair of call paths, in the order in which they came. Also the
    /// stores and loads that would race if readers did not compare versions unseen. `reads_string` tells whether an instruction belongs
    /// to a function that reads strings.
    pub(crate) fn finish(
        self,
        locks: &KnownLocks,
        reads_string: &mut dyn FnMut(SiteId) -> bool,
    ) -> (Vec<PredictedRace>, BTreeSet<(SiteId, SiteId)>) {
        let mut unseen = BTreeSet::new();
        let mut found: FastMap<PathPair, PredictedRace> = FastMap::default();
        let mut left: Vec<(PathPair, Candidate)> = Vec::new();
        for ((pair, .., is_behind), candidate) in self.candidates {
            if !is_behind || !reads_string(candidate.race.load.site) {
                left.push((pair, candidate));
            }
        }
        left.sort_by_key(|(_, c)| (!c.race.observed, c.race.store.seq, c.race.load.seq));
        for (pair, candidate) in left {
            let mut excuses = candidate.excuses.iter().filter(|&&e| holds(e, locks)).peekable();
            if excuses.peek().is_some() {
                if excuses.all(|(_, provided)| *provided == Provided::CheckedUnseen) {
                    unseen.insert((candidate.race.store.site, candidate.race.load.site));
                }
                continue;
            }
            if candidate.word.is_some_and(|word| locks.verdict(word).0) {
                continue;
            }
            match found.get_mut(&pair) {
                Some(known) => {
                    known.count += candidate.race.count;
                    known.sightings.join(&candidate.race.sightings);
                }
                None => {
                    found.insert(pair, candidate.race);
                }
            }
        }
        let mut races: Vec<PredictedRace> = found.into_values().collect();
        let no_locks = locks.names_of_no_locks();
        for race in &mut races {
            if let Some(lines) = self.stored.get(&(race.store.site, race.store.context)) {
                race.sightings.stores_to(lines);
            }
            let lists = [&mut race.store.locks, &mut race.load.locks, &mut race.kept];
            lists.into_iter().for_each(|names| names.retain(|name| !no_locks.contains(name)));
            let spans = [&mut race.store.spans, &mut race.load.spans];
            spans.into_iter().for_each(|spans| spans.retain(|span| !no_locks.contains(&span.lock)));
        }
        races.sort_by_key(|r| (r.store.seq, r.load.seq));
        (races, unseen)
    }
}

fn holds((lock, provided): Excuse, locks: &KnownLocks) -> bool {
    let (is_lock, excludes) = locks.verdict(lock);
    is_lock
        && match provided {
            Provided::Lock => true,
            Provided::Exclusive => excludes,
            Provided::CheckedUnseen => locks.is_checked_unseen(lock),
        }
}

fn names(set: SetId, context: &PairContext<'_>) -> Vec<LockName> {
    let mut names: Vec<_> = context.sets.get(set).iter().filter_map(|h| context.locks.name(h.lock)).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn spans(set: SetId, at: EventOrigin, context: &PairContext<'_>) -> Vec<LockTime> {
    let Some(thread) = context.threads.known(at.thread) else { return Vec::new() };
    let span = |hold: &Hold| {
        let HeldSpan { from, to } = thread.held.span(hold.lock, at.seq)?;
        Some(LockTime { lock: context.locks.name(hold.lock)?, from, to })
    };
    let mut spans: Vec<_> = context.sets.get(set).iter().filter_map(span).collect();
    spans.sort_unstable();
    spans.dedup();
    spans
}

fn moment(at: EventOrigin) -> WindowEnd {
    WindowEnd { thread: at.thread, site: at.site, context: at.context, seq: at.seq }
}

fn describe(store: &Written, read: &LineRead, bytes: u64, observed: bool, context: &PairContext<'_>) -> PredictedRace {
    let end = |at: EventOrigin, bytes: u64, locks: SetId| {
        let first = u64::from(bytes.trailing_zeros());
        RaceAccess {
            thread: at.thread,
            site: at.site,
            context: at.context,
            seq: at.seq,
            file: context.file,
            offset: context.offset + first,
            len: 64 - u64::from(bytes.leading_zeros()) - first,
            locks: names(locks, context),
            spans: spans(locks, at, context),
        }
    };
    PredictedRace {
        store: end(store.at, bytes, store.held),
        load: end(read.at, bytes, read.locks),
        fate: store.fate,
        ended_by: store.ended_by.map(moment),
        kept: names(store.locks, context),
        observed,
        count: 1,
        sightings: Sightings::default(),
    }
}
