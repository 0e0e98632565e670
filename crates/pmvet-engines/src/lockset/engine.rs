//! The engine as a sink of events: what each kind of event means. The memory side is in `loads`,
//! `stores` and `persist`.

use pmvet_events::event::{Event, LockKind, SyncOp, What};
use pmvet_events::spaces::{AddressSpaces, Located};
use pmvet_events::{SiteId, ThreadId};

use pmvet_target::symbols::demangle;

use super::clocks::Clocks;
use super::inferred::InferredLock;
use super::lines::{EventOrigin, LineIndex, TrackedLines};
use super::lock_objects::LockObjects;
use super::locksets::{Hold, HoldMode, LockId, Locksets};
use super::options::LocksetOptions;
use super::pm_locks::{HeldLocks, LockLeftHeld};
use super::publication::Objects;
use super::races::{PredictedRace, Races};
use super::reader::Threads;
use super::spin::{KnownLocks, Lock, LockStep, PmWord, Takers, WordChange};
use super::strings::reads_strings;
use rustc_hash::{FxHashMap as FastMap, FxHashSet as FastSet};

/// The names of the place where an instruction is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Code {
    /// The functions around it: the inlined ones first, the one they are inlined into last.
    pub functions: Vec<String>,
    /// The file name of its module.
    pub module: String,
}

/// Looks up the names for an instruction.
pub type CodeNames<'a> = &'a mut dyn FnMut(SiteId) -> Code;

/// Libraries whose races with themselves are not reported, such as those on parts of a pool that they rebuild whenever
/// it is opened. A race is kept if the program itself stores or loads.
const LIBRARIES: [&str; 3] = ["libpmem.so", "libpmem2.so", "libpmemobj.so"];

fn is_library(module: &str) -> bool {
    LIBRARIES.iter().any(|library| module.starts_with(library))
}

/// HawkSet's analysis, fed with one event after the other.
///
/// # A value that is read before it is persistent
///
/// ```
/// use pmvet_engines::lockset::{LocksetEngine, LocksetOptions};
/// use pmvet_events::event::{FenceKind, FlushKind, LockKind::Exclusive, StoreKind::Regular};
/// use pmvet_events::{ContextId, Event, FileId, SiteId, ThreadId, What};
///
/// let (pool, lock) = (0x1000, 0x7000);
/// let run = [
/// #     (1, What::ProcessStart { process: 1, parent: 0, path: "map".as_ref() }),
/// #     (1, What::Map { file: FileId(1), addr: pool, len: 4096, offset: 0, writable: true }),
/// #     (2, What::ThreadStart { process: 1, os_thread: 2 }),
/// #     (3, What::ThreadStart { process: 1, os_thread: 3 }),
///     (2, What::Acquire { lock, how: Exclusive }),
///     (2, What::Store { addr: pool, value: &[1; 8], how: Regular }),
///     (2, What::Release { lock, how: Exclusive }),
///     (3, What::Acquire { lock, how: Exclusive }),
///     (3, What::Load { addr: pool, size: 8 }),
///     (3, What::Store { addr: pool + 64, value: &[1; 8], how: Regular }),
///     (3, What::Release { lock, how: Exclusive }),
///     // Too late: the lock is free, and thread 3 has acted on the value.
///     (2, What::Flush { addr: pool, how: FlushKind::Clwb, pm: true }),
///     (2, What::Fence { how: FenceKind::Sfence }),
/// ];
/// let mut engine = LocksetEngine::new(LocksetOptions::default());
/// let mut seq = 0;
/// for (thread, what) in run {
///     seq += u64::from(what.is_numbered());
///     engine.event(&Event { seq, thread: ThreadId(thread), site: SiteId(7), context: ContextId(0), what });
/// }
/// let races = engine.finish().races;
/// assert_eq!((races.len(), races[0].store.thread, races[0].load.thread), (1, ThreadId(2), ThreadId(3)));
/// assert!(races[0].observed && races[0].kept.is_empty(), "no lock was held until the fence");
/// ```
pub struct LocksetEngine {
    pub(super) options: LocksetOptions,
    pub(super) spaces: AddressSpaces,
    pub(super) lines: TrackedLines,
    pub(super) objects: Objects,
    pub(super) sets: Locksets,
    pub(super) locks: KnownLocks,
    pub(super) clocks: Clocks,
    pub(super) races: Races,
    pub(super) threads: Threads,
    processes: FastMap<u32, u32>,
    detached: Detached,
    /// Words that threads spin on, with the clock of the last thread that stored to each.
    pub(super) spins: FastMap<PmWord, Option<Vec<u32>>>,
    held_locks: HeldLocks,
    /// Entries of functions that have acquired or released locks.
    called: FastSet<SiteId>,
    pub(super) stats: LocksetStats,
}

impl std::fmt::Debug for LocksetEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocksetEngine")
            .field("options", &self.options)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

/// Threads that are detached, and threads that have ended.
#[derive(Debug, Default)]
struct Detached {
    parents: FastMap<ThreadId, ThreadId>,
    threads: FastMap<ThreadId, (bool, bool)>,
}

/// How much work the analysis did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LocksetStats {
    /// All events, whether they matter to locksets or not.
    pub events: u64,
    /// Loads from PM.
    pub loads: u64,
    /// Loads that repeated an earlier one and needed no work.
    pub repeated: u64,
    /// Cache lines of PM that were tracked.
    pub lines: u64,
    /// Different sets of locks that threads held.
    pub locksets: u64,
    /// Accesses to lines beyond `LocksetOptions::max_lines`; anything but 0 means that races may be missing.
    pub refused: u64,
    /// Instructions that store under version locks in volatile memory. pmvet does not see whether their readers compare the versions.
    pub checked_unseen: u64,
    /// Instructions whose lock-free stores other threads read, and that are not predicted to race; see `LocksetOptions::lock_free`.
    pub lock_free: u64,
}

/// What a run has shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocksetAnalysis {
    /// Unique by the call paths of the store and of the load.
    pub races: Vec<PredictedRace>,
    /// Where the locks that were held in races are acquired.
    pub takers: Takers,
    /// Locks that no function call shows, and the evidence for them.
    pub inferred: Vec<InferredLock>,
    /// Locks in PM, each with a crash that leaves it held; see [`super::pm_locks`].
    pub held: Vec<LockLeftHeld>,
    /// Options that name functions in which nothing seemed to take a lock.
    pub unmatched: Unmatched,
    /// How much there was to do, and whether anything was left out.
    pub stats: LocksetStats,
}

/// Names in [`LocksetOptions`] that match nothing in the run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unmatched {
    /// Names in `deny` that match no function in which an instruction seemed to take a lock.
    pub deny: Vec<String>,
    /// Names in `declare` that match no function in which an instruction seemed to take a lock.
    pub declare: Vec<String>,
    /// Names in `sync` of functions that have neither acquired nor released a lock.
    pub sync: Vec<String>,
}

impl LocksetEngine {
    /// An engine that has seen no event yet.
    pub fn new(options: LocksetOptions) -> Self {
        LocksetEngine {
            lines: TrackedLines::with_limit(options.max_lines),
            objects: Objects::default(),
            locks: KnownLocks::new(!options.deny.is_empty(), !options.declare.is_empty()),
            options,
            spaces: AddressSpaces::default(),
            sets: Locksets::default(),
            clocks: Clocks::default(),
            races: Races::default(),
            threads: Threads::default(),
            processes: FastMap::default(),
            detached: Detached::default(),
            spins: FastMap::default(),
            held_locks: HeldLocks::default(),
            called: FastSet::default(),
            stats: LocksetStats::default(),
        }
    }

    /// Processes the next event. A recording without loads gives no races.
    pub fn event(&mut self, event: &Event<'_>) {
        self.stats.events += 1;
        if let What::Load { addr, size } = event.what {
            return self.load(event, addr, size);
        }
        let at = EventOrigin { thread: event.thread, site: event.site, context: event.context, seq: event.seq };
        self.threads.get(at.thread).spinning = Default::default();
        match event.what {
            What::Store { addr, value, how } => self.store(at, addr, value, how),
            What::Rmw { addr, old, new, stored: true, discards: true } => self.exchange(at, addr, old, new),
            What::Rmw { addr, old, new, stored, .. } => self.rmw(at, addr, old, new, stored),
            What::Atomic { addr, old, new, how } => self.atomic(at, addr, old, new, how),
            What::Allocate { addr, len } => self.allocated(at, addr, len),
            What::Flush { addr, how, pm: true } => self.flush(at, addr, how),
            What::Fence { .. } => self.fence(at),
            What::FileSync { file, offset, len, .. } => self.file_sync(at, file, offset, len),
            What::FileWrite { file, offset, data } => {
                self.act(at.thread, None);
                self.file_write(file, offset, data);
            }
            What::FileZero { .. } | What::FileResize { .. } => self.act(at.thread, None),
            What::Acquire { lock, how } => {
                self.called.insert(at.site);
                self.acquire(at, lock, how);
            }
            What::Release { lock, .. } => {
                self.called.insert(at.site);
                self.release(at, lock);
            }
            What::ThreadCreate { child } => {
                self.act(at.thread, None);
                self.clocks.create(at.thread, child);
                self.detached.parents.insert(child, at.thread);
            }
            What::ThreadDetach { child } => self.detach(child, true, false),
            What::ThreadJoin { child } => self.clocks.join_thread(at.thread, child),
            What::ThreadExit => {
                self.act(at.thread, None);
                self.fence(at);
                self.detach(at.thread, false, true);
            }
            What::Sync { object, op } => self.sync(at.thread, object, op),
            What::ThreadStart { process, .. } | What::ProcessStart { process, .. } => {
                self.spaces.update(event);
                let next = self.processes.len() as u32;
                let number = *self.processes.entry(process).or_insert(next);
                self.threads.get(at.thread).process = number;
            }
            What::Map { .. } | What::Unmap { .. } => {
                self.spaces.update(event);
                self.threads.clear_caches();
            }
            _ => {}
        }
        self.threads.get(at.thread).last_seq = at.seq;
    }

    /// Ends the analysis.
    pub fn finish(self) -> LocksetAnalysis {
        self.finish_with(&mut |_| Code::default())
    }

    /// Ends the analysis, with the names that `LocksetOptions::deny` and `LocksetOptions::declare` need.
    pub fn finish_with(mut self, names: CodeNames<'_>) -> LocksetAnalysis {
        for thread in self.threads.ids() {
            self.act(thread, None);
        }
        self.close_all();
        let unmatched = self.consult(&mut *names);
        let objects = LockObjects::new(&self.locks, &mut *names);
        let is_inside = |lock: &Lock| !lock.named && lock.place.is_some_and(|word| objects.contain(word));
        self.locks.insides = self.locks.all().filter(|(_, lock)| is_inside(lock)).map(|(id, _)| id).collect();
        let mut libraries: FastMap<SiteId, bool> = FastMap::default();
        let mut in_library = |site| *libraries.entry(site).or_insert_with(|| is_library(&names(site).module));
        let versions = self.locks.all().filter(|(_, lock)| lock.is_volatile_version());
        let of_libraries = versions.filter(|(_, lock)| lock.word.sites.iter().all(|&site| in_library(site)));
        self.locks.of_libraries = of_libraries.map(|(id, _)| id).collect();
        self.locks.conclude();
        let (locks, stats) = (&self.locks, &mut self.stats);
        stats.lines = self.lines.len() as u64;
        stats.locksets = self.sets.len() as u64;
        stats.refused = self.lines.refused;
        let is_lock = |word: PmWord| locks.find(pm_key(word)).is_some_and(|lock| locks.verdict(lock).0);
        let mut string_sites: FastMap<SiteId, bool> = FastMap::default();
        let mut strings = |site| *string_sites.entry(site).or_insert_with(|| reads_strings(&names(site)));
        let lock_free = self.races.take_lock_free(locks);
        let (mut races, unseen) = self.races.finish(locks, &mut strings);
        let objects = objects.with_words(locks);
        races.retain(|race| !objects.contain_all_of(&race.store, &mut *names));
        let mut own = |site| !*libraries.entry(site).or_insert_with(|| is_library(&names(site).module));
        races.retain(|race| own(race.store.site) || own(race.load.site));
        let unseen: FastSet<SiteId> =
            unseen.into_iter().filter(|&(store, load)| own(store) || own(load)).map(|(store, _)| store).collect();
        stats.checked_unseen = unseen.len() as u64;
        let is_reported = |site: SiteId| races.iter().any(|race| race.store.site == site);
        stats.lock_free = lock_free.into_iter().filter(|&site| own(site) && !is_reported(site)).count() as u64;
        let held = races.iter().flat_map(|race| race.store.locks.iter().chain(&race.load.locks)).copied().collect();
        let (takers, inferred) = (locks.takers(&held), locks.inferred());
        LocksetAnalysis { races, takers, inferred, held: self.held_locks.finish(is_lock), unmatched, stats: *stats }
    }

    /// The place of an address in PM, or nothing if it is not in PM.
    pub(super) fn place(&self, thread: ThreadId, addr: u64) -> Option<PmWord> {
        let mut found = None;
        self.spaces.locate(thread, addr, 1, |part: Located| {
            found = Some(PmWord { file: part.file, offset: part.offset });
        });
        found
    }

    /// Identifies a lock, wherever it is mapped. Two processes do not share private memory, so its key includes the
    /// process.
    pub(super) fn key(&mut self, thread: ThreadId, addr: u64, place: Option<PmWord>) -> u64 {
        match place {
            Some(word) => pm_key(word),
            None => u64::from(self.threads.get(thread).process & 0x7fff) << 48 | addr & ((1 << 48) - 1),
        }
    }

    fn acquire(&mut self, at: EventOrigin, addr: u64, how: LockKind) {
        let place = self.place(at.thread, addr);
        let key = self.key(at.thread, addr, place);
        // The code inside the lock function looked like a spin lock before its first call was reported.
        if let Some(lock) = self.locks.find(key)
            && let Some(guessed) = self.locks.get(lock).filter(|l| !l.named)
        {
            let holders: Vec<ThreadId> = guessed.word.holders.iter().map(|h| h.thread).collect();
            for thread in holders {
                self.threads.get(thread).held.release(lock, at.seq, &mut self.sets);
                self.locks.named_released(lock, thread);
            }
        }
        let EventOrigin { thread, site, context, seq } = at;
        let mode = match how {
            LockKind::Exclusive => HoldMode::Exclusive,
            LockKind::Shared => HoldMode::Shared,
        };
        let change = WordChange { thread, site, context, seq, old: 0, new: 1, bytes: 0, discards: false };
        let lock = self.locks.named(key, place, change);
        if let Some(word) = place {
            self.mark_word(word);
            self.note_held(lock, at.seq, false);
        }
        let hold = Hold { lock, mode };
        self.threads.get(at.thread).held.acquire(hold, false, at.seq, &mut self.sets);
        self.later(at.thread, hold);
    }

    fn release(&mut self, at: EventOrigin, addr: u64) {
        let place = self.place(at.thread, addr);
        let key = self.key(at.thread, addr, place);
        let Some(lock) = self.locks.find(key) else { return };
        if self.threads.get(at.thread).held.release(lock, at.seq, &mut self.sets) {
            if !self.threads.get(at.thread).held.holds(lock) {
                self.locks.named_released(lock, at.thread);
            }
            return;
        }
        // A handover: another thread had taken the lock.
        let holders: Vec<_> =
            self.locks.get(lock).into_iter().flat_map(|l| &l.word.holders).map(|h| h.thread).collect();
        for holder in holders {
            self.threads.get(holder).held.release(lock, at.seq, &mut self.sets);
            self.locks.named_released(lock, holder);
        }
    }

    /// Applies what an access to a lock word means for locks. False if it means nothing.
    pub(super) fn step(&mut self, at: EventOrigin, step: LockStep) -> bool {
        while let Some((lock, thread)) = self.locks.dropped.pop() {
            self.threads.get(thread).held.release(lock, at.seq, &mut self.sets);
        }
        match step {
            LockStep::Nothing => return false,
            LockStep::Acquire { lock, mode, instead_of } => {
                if let Some(thread) = instead_of {
                    self.threads.get(thread).held.release(lock, at.seq, &mut self.sets);
                }
                let hold = Hold { lock, mode };
                if let Some(lost) = self.threads.get(at.thread).held.acquire(hold, true, at.seq, &mut self.sets) {
                    self.locks.forgotten(lost, at.thread);
                }
                self.note_held(lock, at.seq, false);
                self.later(at.thread, hold);
            }
            LockStep::Release { lock, holder } => {
                self.threads.get(holder).held.release(lock, at.seq, &mut self.sets);
            }
        }
        true
    }

    /// Notes that a lock in PM is held. `flushed`: its line is persistent.
    pub(super) fn note_held(&mut self, lock: LockId, seq: u64, flushed: bool) {
        let Some(lock) = self.locks.get(lock) else { return };
        let Some(word) = lock.place else { return };
        for holder in lock.word.holders.iter().filter(|h| h.mode != HoldMode::Shared) {
            self.held_locks.note(word, holder, lock.named, seq, flushed);
        }
    }

    /// Orders the creator of a detached thread after its end, of which the program must learn without a join.
    fn detach(&mut self, child: ThreadId, detached: bool, ended: bool) {
        let state = self.detached.threads.entry(child).or_default();
        (state.0, state.1) = (state.0 | detached, state.1 | ended);
        if *state == (true, true)
            && self.options.edges.detached
            && let Some(&parent) = self.detached.parents.get(&child)
        {
            self.clocks.join_thread(parent, child);
        }
    }

    fn sync(&mut self, thread: ThreadId, object: u64, op: SyncOp) {
        let edges = self.options.edges;
        let wanted = match op {
            SyncOp::CondWait | SyncOp::CondWoken | SyncOp::CondSignal | SyncOp::CondBroadcast => edges.conditions,
            SyncOp::BarrierEnter | SyncOp::BarrierLeave => edges.barriers,
            SyncOp::SemPost | SyncOp::SemAcquire => edges.semaphores,
        };
        if matches!(op, SyncOp::CondSignal | SyncOp::CondBroadcast | SyncOp::SemPost | SyncOp::BarrierEnter) {
            self.act(thread, None);
        }
        if wanted {
            let place = self.place(thread, object);
            let key = self.key(thread, object, place);
            self.clocks.sync(thread, key, op);
        }
    }

    /// Applies what the user has said about each instruction that seemed to take locks.
    fn consult(&mut self, names: CodeNames<'_>) -> Unmatched {
        let LocksetOptions { deny, declare, sync, .. } = &self.options;
        let mut unmatched = Unmatched { deny: deny.clone(), declare: declare.clone(), sync: sync.clone() };
        for &site in self.called.iter().filter(|_| !sync.is_empty()) {
            let functions = names(site).functions;
            unmatched.sync.retain(|name| !functions.iter().any(|function| is_named(function, name)));
        }
        if self.options.deny.is_empty() && self.options.declare.is_empty() {
            return unmatched;
        }
        let sites: FastSet<SiteId> = self.locks.all().flat_map(|(_, lock)| lock.word.sites.iter().copied()).collect();
        for site in sites {
            let functions = names(site).functions;
            unmatched.deny.retain(|f| !functions.contains(f));
            unmatched.declare.retain(|f| !functions.contains(f));
            if self.options.deny.iter().any(|f| functions.contains(f)) {
                self.locks.denied.insert(site);
            } else if self.options.declare.iter().any(|f| functions.contains(f)) {
                self.locks.declared.insert(site);
            }
        }
        unmatched
    }

    pub(super) fn line_of(&mut self, word: PmWord) -> Option<LineIndex> {
        self.lines.enter(word.file, word.offset)
    }
}

/// Whether a function has this name, as the linker knows it. If need be, the arguments are ignored: not all sources of names agree on
/// them.
fn is_named(function: &str, name: &str) -> bool {
    let plain = demangle(name);
    let base = |name: &'_ str| name.split('(').next().map(str::to_owned);
    function == name || base(function) == base(&plain)
}

pub(super) fn pm_key(word: PmWord) -> u64 {
    1 << 63 | u64::from(word.file.0 & 0x7fff) << 48 | word.offset & ((1 << 48) - 1)
}
