//! Which races are worth an attempt.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use pmvet_events::{ContextId, SiteId};

use super::chains::Chain;
use super::instruction::Instruction;
use super::policy::POLICY;
use super::schedule_picker::{Arrival, Attempt, Prospect};
use super::shared::{Nth, SharedStore};
use crate::stacks::Stacks;

/// Where races may be: the predicted pairs of a store and a load, and every store that other threads read; without any, some stores for
/// which all other threads are waited for. Only proven races of these are reported, so there may be many attempts.
pub fn attempts(predicted: &[(SiteId, SiteId)], shared: &[SharedStore], stacks: &mut dyn Stacks) -> Vec<Attempt> {
    let mut spots: HashMap<SiteId, Option<Instruction>> = HashMap::new();
    let mut spot = |site| spots.entry(site).or_insert_with(|| Instruction::at(site, stacks)).clone();
    let pairs: BTreeSet<(Instruction, Instruction)> =
        predicted.iter().filter_map(|&(store, load)| Some((spot(store)?, spot(load)?))).collect();
    let mut loads: HashMap<&Instruction, Vec<Instruction>> = HashMap::new();
    pairs.iter().for_each(|(store, load)| loads.entry(store).or_default().push(load.clone()));
    let loads: HashMap<&Instruction, Arc<[Instruction]>> =
        loads.into_iter().map(|(store, loads)| (store, loads.into())).collect();
    let mut attempts = Vec::new();
    let last = shared.iter().map(|shared| shared.seq).max().unwrap_or(0);
    for shared in shared {
        let stop = |nth: Nth, at: Instruction| Arrival { at, nth: nth.nth };
        let Some(at) = spot(shared.store.site) else { continue };
        let (store, end) =
            (stop(shared.store, at), shared.fence.and_then(|fence| Some(stop(fence, spot(fence.site)?))));
        let attempt = |reader, load: Instruction, path, reads, (sees_change, similarity)| {
            let pair = (store.at.clone(), load);
            let predicted_loads = loads.get(&store.at).cloned().unwrap_or_default();
            let (store_is, pair_is) = (!predicted_loads.is_empty(), pairs.contains(&pair));
            let promise = Prospect { store: store_is, pair: pair_is, sees_change, similarity };
            Attempt {
                thread: shared.thread,
                store: store.clone(),
                end: end.clone(),
                reader,
                load: pair.1,
                predicted_loads,
                path,
                reads,
                seq: shared.seq,
                until: shared.seq,
                promise,
                change: None,
            }
        };
        if !shared.is_read() {
            let alone = attempt(None, store.at.clone(), ContextId(0), u32::MAX, (false, 0));
            attempts.push(Attempt { until: last, ..alone });
        }
        let mut reads: Vec<Attempt> = Vec::new();
        for read in &shared.reads {
            let Some(load) = spot(read.site) else { continue };
            let promise = (read.sees_change, read.similarity);
            let attempt = attempt(Some(read.thread), load, read.context, read.operations, promise);
            reads.push(Attempt { until: read.seq, ..attempt });
        }
        for change in &shared.changes {
            let Some(load) = spot(change.site) else { continue };
            let chain = Chain::new(change, |fence| Some(stop(fence, spot(fence.site)?)));
            let promise = (true, change.similarity);
            let attempt = attempt(Some(change.reader), load, change.context, change.reads, promise);
            attempts.extend(chain.map(|chain| Attempt { change: Some(chain), ..attempt }));
        }
        // Keeps the first of equally promising attempts, per thread and call path.
        reads.sort_by_key(|attempt| (Reverse(attempt.promise), attempt.until));
        let mut known = HashSet::new();
        reads.retain(|attempt| known.insert((attempt.promise, attempt.reader, attempt.path)));
        reads.truncate(POLICY.reads_per_store);
        attempts.extend(reads);
    }
    attempts
}
