//! Rules on the order of events: the trace analysis of Mumak (Gonçalves, Matos and Rodrigues, EuroSys 2023, section 4.2).
//!
//! One streaming pass over the events of a run, on top of [`pmvet_model`]. It runs nothing again and knows nothing of the
//! program, so its findings are only warnings: they say that something is unusual, not that it is wrong.
//!
//! * [`Rules`] takes events and returns [`RawFinding`]s: plain data, places by their ids.
//! * [`report`] turns them into findings: resolves places, drops what libraries are known to do on purpose, joins those
//!   with one cause, and adds the words.
//!
//! Deviations from the paper, all of them to raise fewer false alarms:
//!
//! * A store that is not persistent at the end counts as a durability bug if its *line* was ever flushed, and also if the same
//!   instruction, called the same way, stored data that was flushed: a program that usually flushes something meant to
//!   flush it here, too. So does a store next to a flushed line by a function that has other data of its own flushed:
//!   it forgot a part.
//! * An overwrite of a store that is not persistent yet is reported only if both change the bytes, no flush is under way
//!   and neither is a locked operation. Rewriting a value, overlapping moves of `memcpy` and locks in PM are no bugs, nor
//!   are protocols that rely on the order of stores within one line.
//! * Words that are used as locks (see `locks`) may stay unpersisted.
//! * A flush of a clean line is reported only if the same thread flushed the line last: a thread that helps another cannot know
//!   how far that thread got. The first flush of a line that the run has not written is reported only if the file is new: after a
//!   restart a program may have to flush what it only read.
//! * Stores in a transaction of libpmemobj that it does not cover have a rule of their own (see `transactions`): a flush is not what
//!   they lack.
//! * Fences are compared with the last *explicit* fence: a locked instruction in between, which the author may not know of, makes
//!   no fence superfluous. `mfence` is never reported, since it also orders loads, which need no flush.
//!
//! What it misses: a missing flush that another flush of the same line makes up for later, unless the run ends before;
//! bugs on paths that the run did not take; a missing flush of a word that looks like a lock.

mod clean;
mod group;
mod history;
mod known;
mod locks;
mod raw;
mod report;
#[cfg(test)]
mod tests;
mod texts;
mod transactions;
mod watch;

use pmvet_events::event::{Event, FenceKind, MarkerKind, StoreKind, What};
use pmvet_events::{ContextId, SiteId};
use pmvet_findings::rules;
use pmvet_model::{Line, LineSource, Mode, Model, Store};

pub use raw::{Lost, RawFinding, RawFindings, RawPlace};
pub use report::report;

use raw::{Key, bytes_of, place_of};
use watch::RuleWatcher;

use crate::lab::lost_stores;

/// Which machine the program is for, and how strict the rules are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RuleOptions {
    /// What a power failure loses. With persistent caches, most flushes are needless.
    pub mode: Mode,
    /// Also apply rules that correct programs break all the time.
    pub pedantic: bool,
}

/// Applies all rules to a run.
///
/// Its memory grows with the lines that are pending at the same time, with the PM that is flushed at all (two bytes per line), and with the
/// number of different places in the program; not with the length of the run.
///
/// # A flush without a fence
///
/// ```
/// use pmvet_engines::rules::{RuleOptions, Rules};
/// use pmvet_events::event::{FlushKind, StoreKind};
/// use pmvet_events::{ContextId, Event, FileId, SiteId, ThreadId, What};
/// use pmvet_findings::rules::UNPERSISTED_STORE;
/// use pmvet_model::Shadow;
///
/// let (mut rules, mut pm) = (Rules::new(RuleOptions::default()), Shadow::default());
/// let run = [
///     What::ProcessStart { process: 1, parent: 0, path: "list".as_ref() },
///     What::Map { file: FileId(1), addr: 0x1000, len: 4096, offset: 0, writable: true },
///     What::Store { addr: 0x1000, value: &[1], how: StoreKind::Regular },
///     What::Flush { addr: 0x1000, how: FlushKind::Clwb, pm: true },
/// ];
/// for (seq, what) in (1..).zip(run) {
///     let event = Event { seq, thread: ThreadId(1), site: SiteId(7), context: ContextId(0), what };
///     rules.event(&event, &pm);
///     pm.event(&event);
/// }
/// let found = &rules.finish().findings[0];
/// assert_eq!((found.rule, found.place.seq), (UNPERSISTED_STORE, 3));
/// assert!(found.flushing, "only the fence is missing");
/// ```
#[derive(Debug)]
pub struct Rules {
    model: Model,
    watcher: RuleWatcher,
}

impl Rules {
    /// Rules that have seen no event yet.
    pub fn new(options: RuleOptions) -> Self {
        Self { model: Model::new(options.mode), watcher: RuleWatcher::new(options) }
    }

    /// The state of PM, for others that need it.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Takes the next event. `before` is the newest content of PM without this event; it decides whether a store changed anything.
    pub fn event(&mut self, event: &Event<'_>, before: &(impl LineSource + ?Sized)) {
        let Self { model, watcher } = self;
        watcher.transactions.event(event, model.spaces(), before);
        match event.what {
            What::Store { addr, value, how } => {
                if how == StoreKind::NonTemporal {
                    watcher.fences.waits(event.thread);
                } else {
                    watcher.fences.stores(event.thread);
                }
                if watcher.locks.any() {
                    let located = |part| watcher.locks.stored(event, part, value);
                    model.spaces().locate(event.thread, addr, value.len() as u64, located);
                }
            }
            What::Rmw { addr, old, new, stored: true, .. } => {
                let located = |part| watcher.locks.exchanged(event, part, old, new);
                model.spaces().locate(event.thread, addr, new.len() as u64, located);
            }
            What::Flush { pm, .. } => {
                watcher.fences.waits(event.thread);
                if !pm {
                    watcher.event_found(rules::FLUSH_VOLATILE, event, None, None);
                }
            }
            What::Fence { how: FenceKind::Sfence } => watcher.fence(event),
            What::Fence { how: FenceKind::Mfence } => watcher.fences.reset(event.thread),
            What::File { file, size, .. } => watcher.clean.file(file, size),
            What::FileUnlink { file } => watcher.unlinked(file),
            What::Marker { how: MarkerKind::Ignore, addr, len, .. } => {
                model.spaces().locate(event.thread, addr, len, |part| watcher.ignore(part));
            }
            _ => {}
        }
        model.watched(event, before, watcher);
    }

    /// The run has ended.
    pub fn finish(mut self) -> RawFindings {
        for line in self.model.pending() {
            for (index, store) in line.stores().iter().enumerate() {
                self.watcher.left_over(&self.model, line, index, store);
            }
        }
        self.watcher.finish()
    }
}

impl RuleWatcher {
    /// A store that is still pending when the run ends.
    fn left_over(&mut self, model: &Model, line: &Line, index: usize, store: &Store) {
        // A store that later stores cover is not lost by itself. Locks are not meant to survive.
        let visible = line.visible(index);
        if visible == 0 || self.is_ignored(line.id(), visible) || self.locks.is_lock(line.id(), store) {
            return;
        }
        let flusher = self.flushers.get(&(store.site, store.context)).copied();
        let flushing = line.is_flushing(store);
        let line_flushed = self.clean.was_flushed(line.id());
        let meant = flushing || flusher.is_some() || line_flushed;
        let rule = if meant { rules::UNPERSISTED_STORE } else { rules::TRANSIENT_DATA };
        let before = line.content(index);
        let bytes = bytes_of(store);
        let known = line.covers(store) & !before.known == 0;
        // A store that changed nothing is not missed.
        if known && before.bytes[bytes] == *line.value(store) {
            return;
        }
        let beside = self.clean.is_beside_flushed(line.id());
        let key = Key { rule: rule.id, site: store.site, context: store.context, other: (SiteId(0), ContextId(0)) };
        let place = place_of(line.id(), store);
        let found = self.found(key, rule, place, None);
        found.flushing |= flushing;
        found.beside_flushed |= beside;
        found.line_flushed |= line_flushed;
        found.flusher = flusher;
        // Recovery may cope with the loss of the newest value, and not with that of all that the place has stored there.
        let is_same = |other: &Store| (other.site, other.context) == (store.site, store.context);
        let oldest = line.stores()[..index].iter().position(is_same);
        for index in std::iter::once(index).chain(oldest) {
            if found.lost.len() < raw::MAX_LOST {
                let without = (line.uncertain() == 0).then(|| lost_stores::of_store(model, line, index));
                found.lost.push(Lost { seq: line.stores()[index].seq, line: line.id(), without });
            }
        }
        if found.count == 1 {
            let seen = self.history.steps_of(line.id());
            let finding = self.finding_mut(&key);
            finding.timeline = raw::join(seen, line.stores().iter().map(|s| raw::stored(line.id(), s)));
        }
    }

    fn fence(&mut self, event: &Event<'_>) {
        let waited = self.fences.fence(event.thread);
        if !waited.flushed {
            let found = self.event_found(rules::REDUNDANT_FENCE, event, None, None);
            found.stores_before |= waited.stored;
        }
    }
}
