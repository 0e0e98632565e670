//! Failure points: where a crash is worth trying.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use pmvet_events::event::{Event, What};
use pmvet_events::{ContextId, Places, SiteId, ThreadId};
use pmvet_target::crash::{Patch, VersionId};

use crate::lab::TrialImage;
use crate::promises::PromiseId;

/// Where crashes are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Granularity {
    /// Before a flush or fence, if PM was stored to since the last failure point.
    #[default]
    Persist,
    /// Before every store, and as above.
    Store,
}

/// A moment of the run, before the event with this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FailurePoint {
    pub(crate) seq: u64,
    pub(crate) thread: ThreadId,
    pub(crate) site: SiteId,
    pub(crate) context: ContextId,
    /// The content of PM at this moment.
    pub(crate) version: VersionId,
    /// What the program had promised by then.
    pub(crate) promise: PromiseId,
}

impl FailurePoint {
    /// A crash here, in program order.
    pub(crate) fn image(&self) -> TrialImage<'static> {
        self.image_with(&[])
    }

    /// A crash here, with some bytes changed.
    pub(crate) fn image_with<'a>(&self, patches: &'a [Patch]) -> TrialImage<'a> {
        TrialImage { version: self.version, patches, promise: self.promise }
    }
}

/// Finds them in the stream of events.
#[derive(Debug)]
pub(super) struct FailurePoints {
    at: Granularity,
    visits: u32,
    /// Something changed since the last failure point.
    changed: bool,
    /// An operation was acknowledged since then.
    acknowledged: bool,
    /// How many were acknowledged so far.
    pub(super) answers: u64,
    /// How the program came here: a hash of the previous failure point and the stores since.
    way: u64,
    visited: HashMap<(SiteId, ContextId, u64), u32>,
    /// Whether each place is worth a crash.
    places: HashMap<(SiteId, ContextId), bool>,
    /// Call paths, by their addresses.
    pub(super) paths: HashSet<u64>,
    /// Call paths to skip, since other runs have been through them.
    known: Arc<HashSet<u64>>,
    /// All failure points passed, including those not tried.
    pub(super) passed: u64,
}

impl FailurePoints {
    pub(super) fn new(at: Granularity, visits: u32, known: Arc<HashSet<u64>>) -> Self {
        Self {
            at,
            visits,
            changed: false,
            acknowledged: false,
            answers: 0,
            way: 0,
            visited: HashMap::new(),
            places: HashMap::new(),
            paths: HashSet::new(),
            known,
            passed: 0,
        }
    }

    /// Whether the event before was an answer.
    pub(super) fn follows_answer(&self) -> bool {
        self.acknowledged
    }

    /// Whether a crash is to be tried before this event.
    pub(super) fn is_point(&mut self, event: &Event<'_>, places: &dyn Places) -> bool {
        let stores = matches!(event.what, What::Store { .. } | What::Rmw { stored: true, .. });
        let persists = matches!(event.what, What::Flush { pm: true, .. } | What::Fence { .. } | What::Rmw { .. });
        // System calls change PM files, too: a crash is worth trying before and after them.
        let by_call = matches!(
            event.what,
            What::FileWrite { .. }
                | What::FileZero { .. }
                | What::FileResize { .. }
                | What::FileSync { .. }
                | What::FileRename { .. }
                | What::FileUnlink { .. }
        );
        let candidate = persists || by_call || self.at == Granularity::Store && stores;
        let mut is_point = false;
        let is_numbered = event.what.is_numbered();
        if candidate && self.changed || self.acknowledged && is_numbered {
            self.changed = false;
            self.passed += 1;
            let Self { paths, known, .. } = self;
            let interesting = *self.places.entry((event.site, event.context)).or_insert_with(|| {
                let path = path(places, event.site, event.context);
                paths.insert(path);
                !known.contains(&path)
            });
            let visits = self.visited.entry((event.site, event.context, self.way)).or_default();
            *visits += 1;
            is_point = interesting && *visits <= self.visits;
            self.way = place(event);
        }
        if stores || by_call {
            // A sum, since the order of the stores in a loop does not matter.
            self.way = self.way.wrapping_add(place(event).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        }
        if is_numbered {
            // A crash right after it must lose nothing.
            self.acknowledged = event.what.is_answer();
            self.answers += u64::from(self.acknowledged);
        }
        self.changed |= stores || by_call && !matches!(event.what, What::FileSync { .. });
        is_point
    }

    /// Different call paths so far.
    pub(super) fn unique(&self) -> usize {
        self.places.values().filter(|interesting| **interesting).count()
    }
}

/// A call path by its addresses, which are the same in every run.
fn path(places: &dyn Places, site: SiteId, context: ContextId) -> u64 {
    let pc = |site| places.site(site).map_or(0, |site| site.pc);
    let calls = places.calls(context);
    std::iter::once(site)
        .chain(calls)
        .fold(0, |hash: u64, site| (hash.rotate_left(5) ^ pc(site)).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn place(event: &Event<'_>) -> u64 {
    let word = u64::from(event.site.0) << 32 | u64::from(event.context.0);
    word.wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(31)
}
