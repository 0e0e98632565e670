//! Which stores of a thread a crash may lose, and which other stores might be to blame for the failure.

use std::collections::{HashMap, HashSet};

use pmvet_model::{Line, Model};
use pmvet_target::crash::{Patch, VersionId};

use super::meeting::{MeetingCrash, PmAccess, SuspectLoss};
use crate::lab::lost_stores;

/// How many other stores that a crash loses are tried as culprits, of those that come later to the line and of those that came before the
/// store: copying one line alone takes four.
const MOST_SUSPECTS: usize = 8;

/// What is known of stores that were read too early.
#[derive(Debug, Default)]
pub(super) struct MetStores {
    /// Their numbers.
    all: HashSet<u64>,
    /// When a thread that had read them first acted.
    acted_on: HashMap<u64, u64>,
}

impl MetStores {
    pub(super) fn met(&mut self, store: u64) {
        self.all.insert(store);
    }

    pub(super) fn contains(&self, store: u64) -> bool {
        self.all.contains(&store)
    }

    pub(super) fn acted_on(&mut self, store: u64, at: u64) {
        self.acted_on.entry(store).or_insert(at);
    }

    /// When a thread first acted on one of the pending stores that are lost with this one.
    pub(super) fn first_act(&self, line: &Line, index: usize) -> Option<u64> {
        line.stores().iter().skip(index).filter_map(|store| self.acted_on.get(&store.seq)).min().copied()
    }
}

/// What to write over an image to lose stores.
#[derive(Debug, Default)]
pub(super) struct LossPatches {
    pub(super) patches: Vec<Patch>,
    /// ... to lose only later stores of other threads to the same lines.
    pub(super) others: Vec<Patch>,
    /// ... to lose only later stores of the same thread there, from each of those stores on.
    pub(super) suspects: Vec<SuspectLoss>,
    /// When a thread first acted on what is lost, if any has.
    pub(super) acted_on: Option<u64>,
}

impl LossPatches {
    /// Loses one of the stores of a line, and what came there later.
    pub(super) fn without(model: &Model, line: &Line, index: usize, met: &MetStores) -> Self {
        let store = line.stores()[index];
        let after = || line.stores().iter().enumerate().skip(index + 1);
        let other = after().find(|(_, later)| later.thread != store.thread);
        let mut suspects: Vec<SuspectLoss> = Vec::new();
        for (i, found) in after().filter(|(_, later)| later.thread == store.thread && later.site != store.site) {
            let new = suspects.iter().all(|known| known.site != found.site);
            if new && suspects.len() < MOST_SUSPECTS {
                suspects.push(SuspectLoss { site: found.site, patches: lost_stores::of_store(model, line, i) });
            }
        }
        Self {
            patches: lost_stores::of_store(model, line, index),
            others: other.map_or_else(Vec::new, |(other, _)| lost_stores::of_store(model, line, other)),
            suspects,
            acted_on: met.first_act(line, index),
        }
    }
}

impl FromIterator<Self> for LossPatches {
    fn from_iter<T: IntoIterator<Item = Self>>(losses: T) -> Self {
        let mut all = Self::default();
        for loss in losses {
            all.patches.extend(loss.patches);
            all.others.extend(loss.others);
            all.suspects.extend(loss.suspects);
            all.acted_on = all.acted_on.into_iter().chain(loss.acted_on).min();
        }
        all.suspects.truncate(MOST_SUSPECTS);
        all
    }
}

/// A store of the writer that was pending at the load.
#[derive(Debug)]
pub(super) struct AtRisk {
    pub(super) end: PmAccess,
    /// What to write over the content at the load to lose it.
    pub(super) control: Vec<Patch>,
}

/// A loss at one moment.
pub(super) struct Loss {
    patches: Vec<Patch>,
    others: Vec<Patch>,
    suspects: Vec<SuspectLoss>,
    /// Without the store that was read.
    beside: Vec<Patch>,
    control: Vec<Patch>,
    lost: Vec<PmAccess>,
}

impl Loss {
    /// The crash that loses it just after an act of the reader.
    pub(super) fn after(self, act: PmAccess, load: &PmAccess, version: VersionId) -> MeetingCrash {
        let Self { patches, others, suspects, beside, control, lost } = self;
        let (seq, control_at) = (act.seq + 1, load.seq + 1);
        let (fenced, answered, writer_idle, unacted) = (false, false, false, None);
        MeetingCrash {
            seq,
            version,
            patches,
            others,
            suspects,
            beside,
            control,
            control_at,
            lost,
            act,
            fenced,
            answered,
            writer_idle,
            unacted,
        }
    }
}

/// The losses to try of stores that are still pending: first the one that was read, then everything.
pub(super) fn losses(model: &Model, store: &PmAccess, left: &[&AtRisk], met: &MetStores) -> Vec<Loss> {
    let read = left.iter().take_while(|at| at.end.seq == store.seq).count();
    let loss = |lost: &[&AtRisk]| {
        let at = |at: &&AtRisk| pending(model, &at.end).map(|(line, i)| LossPatches::without(model, line, i, met));
        let LossPatches { patches, others, mut suspects, .. } = lost.iter().filter_map(at).collect();
        let earlier: Vec<&&AtRisk> = lost.iter().skip_while(|at| at.end.seq == store.seq).collect();
        suspects.extend(alone(&earlier, store, at));
        let LossPatches { patches: beside, .. } = earlier.into_iter().filter_map(at).collect();
        let control = lost.iter().flat_map(|at| at.control.iter().cloned()).collect();
        let lost = lost.iter().map(|at| at.end).collect();
        Loss { patches, others, suspects, beside, control, lost }
    };
    let all = [&left[..read], &left[if read == left.len() { read } else { 0 }..]];
    all.into_iter().map(loss).filter(|loss| !loss.patches.is_empty()).collect()
}

/// The losses of earlier stores, one at a time, the last ones first, if they are by other instructions than this store.
fn alone(earlier: &[&&AtRisk], store: &PmAccess, loss: impl Fn(&&AtRisk) -> Option<LossPatches>) -> Vec<SuspectLoss> {
    let mut suspects: Vec<SuspectLoss> = Vec::new();
    for at in earlier {
        let site = at.end.site;
        let new = site != store.site && suspects.iter().all(|known| known.site != site);
        if let Some(loss) = Some(at).filter(|_| new && suspects.len() < MOST_SUSPECTS).and_then(|at| loss(at)) {
            suspects.push(SuspectLoss { site, patches: loss.patches });
        }
    }
    suspects
}

/// The line of a store and its place among the pending stores there, if it is still pending.
pub(super) fn pending<'a>(model: &'a Model, store: &PmAccess) -> Option<(&'a Line, usize)> {
    let line = model.line(store.line)?;
    let index = line.stores().iter().position(|pending| pending.seq == store.seq)?;
    Some((line, index))
}
