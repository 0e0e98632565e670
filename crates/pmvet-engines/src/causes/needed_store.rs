//! Which of the stores that a crash loses recovery needs.
//!
//! A line that is written back late loses all of its pending stores, and the last of them need not be the fatal one: a counter may share its
//! line with a header that was never flushed. A line keeps the order of its stores, so crashes that lose only its last stores show which one
//! is needed: the last one from which on the loss is fatal.

use std::collections::{BTreeSet, HashMap};

use pmvet_events::SiteId;
use pmvet_events::event::LINE;
use pmvet_model::LineId;
use pmvet_target::crash::{Patch, PmReplay, VersionId};
use pmvet_target::recording::Recording;
use pmvet_target::shutdown;

use crate::lab::{ScanError, TrialImage, TrialJournal, TrialPool};
use crate::promises::PromiseId;

/// Bound on the stores from which on a loss is tried; the last ones count.
const MOST_CUTS: usize = 32;

/// A crash that recovery does not survive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LostLines {
    /// The content of PM at the crash, all stores included.
    pub(crate) version: VersionId,
    /// What the program had promised by then.
    pub(crate) promise: PromiseId,
    /// Where the crash comes.
    pub(crate) crash: SiteId,
    /// The lost stores. They are lost as a whole, and are the last ones of their lines.
    pub(crate) stores: Vec<LostStore>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LostStore {
    pub(crate) seq: u64,
    pub(crate) site: SiteId,
    pub(crate) line: LineId,
}

impl LostLines {
    /// Where the loss may begin, apart from its first store: at the first store of each row by the same instruction.
    fn cuts(&self) -> Vec<u64> {
        let mut stores = self.stores.clone();
        stores.sort_unstable_by_key(|store| store.seq);
        let begins = stores.windows(2).filter(|two| two[0].site != two[1].site).map(|two| two[1].seq);
        let mut cuts: Vec<u64> = begins.collect();
        cuts.dedup();
        cuts.split_off(cuts.len().saturating_sub(MOST_CUTS))
    }

    /// The lines that lose stores if the loss begins with this one.
    fn lines_from(&self, cut: u64) -> BTreeSet<LineId> {
        self.stores.iter().filter(|store| store.seq >= cut).map(|store| store.line).collect()
    }

    /// Crashes with the same key lose the same stores at the same place of the program.
    fn kind(&self) -> (SiteId, BTreeSet<SiteId>) {
        (self.crash, self.stores.iter().map(|store| store.site).collect())
    }
}

/// For each crash, the number of the store that recovery needs, as far as time allows. Of the crashes that lose the same stores at the same
/// place, one is searched.
pub(crate) fn find(
    recording: &Recording,
    losses: &[LostLines],
    pool: &TrialPool<'_>,
    journal: &mut TrialJournal,
) -> Result<Vec<Option<u64>>, ScanError> {
    let mut kinds = HashMap::new();
    let mut like = Vec::new();
    for (i, loss) in losses.iter().enumerate() {
        like.push(*kinds.entry(loss.kind()).or_insert(i));
    }
    let mut searches: Vec<Search<'_>> = losses
        .iter()
        .enumerate()
        .filter(|(i, _)| like[*i] == *i)
        .map(|(i, loss)| Search::new(i, loss))
        .filter(|search| !search.cuts.is_empty())
        .collect();
    take_contents(recording, &mut searches)?;
    searches.retain(|search| !search.images.is_empty());
    while searches.iter().any(|search| search.next().is_some()) && !shutdown::is_over() {
        let asked: Vec<usize> = (0..searches.len()).filter(|&i| searches[i].next().is_some()).collect();
        let jobs: Vec<TrialImage<'_>> = asked.iter().filter_map(|&i| searches[i].image()).collect();
        pool.run(&jobs, journal, &())?;
        let fails =
            |job: &TrialImage<'_>| journal.get(&job.name(pool.versions)).map(|tried| tried.outcome != *pool.usual);
        let answers: Vec<Option<bool>> = jobs.iter().map(fails).collect();
        for (i, fails) in asked.into_iter().zip(answers) {
            searches[i].answer(fails);
        }
    }
    let found: HashMap<usize, u64> = searches.iter().filter_map(|search| Some((search.at, search.needed()?))).collect();
    let of_loss = |(loss, like): (&LostLines, usize)| {
        let site = loss_site(&losses[like], *found.get(&like)?)?;
        // The last one by the same instruction.
        loss.stores.iter().filter(|store| store.site == site).map(|store| store.seq).max()
    };
    Ok(losses.iter().zip(like).map(of_loss).collect())
}

fn loss_site(loss: &LostLines, seq: u64) -> Option<SiteId> {
    loss.stores.iter().find(|store| store.seq == seq).map(|store| store.site)
}

/// A binary search for the last cut from which on the loss is fatal.
struct Search<'a> {
    /// Position of the loss.
    at: usize,
    loss: &'a LostLines,
    cuts: Vec<u64>,
    /// The patches of the loss that begins at each cut.
    images: Vec<Vec<Patch>>,
    /// Losses that begin at the first `fatal` cuts are fatal, or assumed to be.
    fatal: usize,
    /// Losses that begin at this cut or later are not.
    harmless: usize,
    gave_up: bool,
}

impl<'a> Search<'a> {
    fn new(at: usize, loss: &'a LostLines) -> Self {
        let cuts = loss.cuts();
        let harmless = cuts.len();
        Self { at, loss, cuts, images: Vec::new(), fatal: 0, harmless, gave_up: false }
    }

    /// The cut to try next: first the last one, which is mostly the store to blame.
    fn next(&self) -> Option<usize> {
        if self.gave_up || self.fatal == self.harmless {
            return None;
        }
        let untouched = self.fatal == 0 && self.harmless == self.cuts.len();
        Some(if untouched { self.harmless - 1 } else { (self.fatal + self.harmless) / 2 })
    }

    fn image(&self) -> Option<TrialImage<'_>> {
        let patches = self.images.get(self.next()?)?;
        Some(TrialImage { version: self.loss.version, patches, promise: self.loss.promise })
    }

    fn answer(&mut self, fails: Option<bool>) {
        match (self.next(), fails) {
            (Some(cut), Some(true)) => self.fatal = cut + 1,
            (Some(cut), Some(false)) => self.harmless = cut,
            _ => self.gave_up = true,
        }
    }

    /// The store whose loss is fatal. Nothing if the search gave up.
    fn needed(&self) -> Option<u64> {
        if self.gave_up {
            return None;
        }
        match self.fatal.checked_sub(1) {
            Some(cut) => self.cuts.get(cut).copied(),
            None => self.loss.stores.iter().map(|store| store.seq).min(),
        }
    }
}

/// Looks up, in one pass over the run, what the lost lines held just before each cut.
fn take_contents(recording: &Recording, searches: &mut [Search<'_>]) -> Result<(), ScanError> {
    let mut stops: Vec<(u64, usize)> = Vec::new();
    for (i, search) in searches.iter().enumerate() {
        stops.extend(search.cuts.iter().map(|&cut| (cut, i)));
    }
    stops.sort_unstable();
    let mut stops = stops.into_iter().peekable();
    let mut replay = PmReplay::new(recording);
    let mut reader = recording.read()?;
    let mut now = shutdown::ClockCheck::default();
    while stops.peek().is_some()
        && let Some(event) = reader.next()?
    {
        if now.is_due() && shutdown::is_over() {
            searches.iter_mut().for_each(|search| search.images.clear());
            return Ok(());
        }
        if !event.what.is_numbered() {
            continue;
        }
        while let Some((cut, i)) = stops.next_if(|(cut, _)| *cut <= event.seq) {
            let lines = searches[i].loss.lines_from(cut);
            let patches = lines.into_iter().filter_map(|line| {
                let bytes = replay.bytes(line.file);
                let start = (line.offset() as usize).min(bytes.len());
                let bytes = bytes[start..bytes.len().min(start + LINE as usize)].to_vec();
                (!bytes.is_empty()).then_some(Patch { file: line.file, offset: line.offset(), bytes })
            });
            searches[i].images.push(patches.collect());
        }
        replay.apply(&event)?;
    }
    searches.iter_mut().filter(|search| search.images.len() < search.cuts.len()).for_each(|s| s.images.clear());
    Ok(())
}

#[cfg(test)]
mod tests {
    use pmvet_events::FileId;

    use super::*;

    /// A crash that loses stores of these numbers, each by the instruction beside it.
    fn loss(stores: &[(u64, u32)]) -> LostLines {
        let line = LineId { file: FileId(1), index: 0 };
        let stores = stores.iter().map(|&(seq, site)| LostStore { seq, site: SiteId(site), line }).collect();
        LostLines { version: VersionId(0), promise: PromiseId::NONE, crash: SiteId(9), stores }
    }

    /// The store that is found if those up to this number are needed, and how many crashes that took.
    fn search(loss: &LostLines, needed: u64) -> (Option<u64>, usize) {
        let mut search = Search::new(0, loss);
        let mut tried = 0;
        while let Some(cut) = search.next() {
            search.answer(Some(search.cuts[cut] <= needed));
            tried += 1;
        }
        (search.needed(), tried)
    }

    #[test]
    fn the_last_store_whose_loss_is_fatal_is_needed() {
        let stores = [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6), (7, 7), (8, 8)];
        let loss = loss(&stores);
        assert_eq!(search(&loss, 8), (Some(8), 1), "mostly it is the last one");
        for needed in 1..8 {
            let (found, tried) = search(&loss, needed);
            assert_eq!(found, Some(needed));
            assert!(tried <= 4, "{tried} crashes for {needed}");
        }
    }

    #[test]
    fn a_copy_is_lost_as_a_whole() {
        assert_eq!(loss(&[(1, 1), (2, 7), (3, 7), (4, 7), (9, 2)]).cuts(), [2, 9]);
        assert_eq!(loss(&[(1, 7), (2, 7)]).cuts(), [0; 0], "nothing to choose from");
    }

    #[test]
    fn without_an_answer_nothing_is_said() {
        let loss = loss(&[(1, 1), (2, 2)]);
        let mut search = Search::new(0, &loss);
        search.answer(None);
        assert_eq!((search.next(), search.needed()), (None, None));
    }
}
