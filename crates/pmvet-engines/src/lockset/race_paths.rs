//! Which races form one finding: those of one store, whichever thread reads it. The fix belongs at the store, and which
//! of its readers a run shows is chance.
//!
//! A place is the line that stores or loads, not counting libraries and helpers. A function that stores and leaves it to its
//! caller to make the value persistent is a helper, too, whatever its name: the race is the caller's, and each call counts
//! as a separate place. One finding lists all places that read the value, and all call paths.

use std::collections::BTreeSet;
use std::path::PathBuf;

use pmvet_events::{ContextId, SiteId};
use pmvet_findings::stack::shared_frames;
use pmvet_findings::{Frame, Stack};
use rustc_hash::FxHashSet as FastSet;

use super::races::PredictedRace;
use super::sightings::Sightings;
use crate::stacks::{Stacks, user_frame};

/// The call paths of a race.
pub(super) struct Ends {
    pub(super) store: Stack,
    pub(super) load: Stack,
    pub(super) end: Option<Stack>,
}

/// Races that form one finding: a place that stores, and the places that read it.
pub(super) struct RaceGroup<'a> {
    pub(super) place: CodePlace,
    /// Never empty; the most informative comes first.
    pub(super) readers: Vec<RaceReader<'a>>,
    /// All paths to the store.
    paths: BTreeSet<String>,
    /// Of all its races.
    sightings: Sightings,
}

/// The races of a store with one place that reads.
pub(super) struct RaceReader<'a> {
    place: CodePlace,
    /// The most informative race, and its paths.
    pub(super) race: &'a PredictedRace,
    pub(super) ends: Ends,
    pub(super) count: u64,
    /// All paths to the load.
    paths: BTreeSet<String>,
}

/// Function, file, line, and the offset of the instruction.
type CodeLine = (Option<String>, Option<PathBuf>, Option<u32>, u64);

/// Where the user would look. Only instructions without a source line are told apart by their offsets.
#[derive(Debug, PartialEq)]
pub(super) struct CodePlace(Vec<CodeLine>);

impl CodePlace {
    /// `callers`: how many of the callers belong to the place.
    fn in_stack(stack: &Stack, callers: usize) -> Self {
        let own = user_frame(stack).unwrap_or(0);
        let outer = stack.iter().skip(own + 1).filter(|frame| frame.is_user()).take(callers);
        let place = |frame: &Frame| {
            let offset = if frame.line.is_some() { 0 } else { frame.offset };
            (frame.function.clone(), frame.file.clone(), frame.line, offset)
        };
        CodePlace(stack.iter().skip(own).take(1).chain(outer).map(place).collect())
    }

    #[cfg(test)]
    pub(super) fn at_line(line: u32) -> Self {
        CodePlace(vec![(None, None, Some(line), 0)])
    }
}

/// Groups races, in the order in which the first of each group was found.
pub(super) fn group<'a>(races: &'a [PredictedRace], stacks: &mut dyn Stacks) -> Vec<RaceGroup<'a>> {
    let resolved: Vec<(&PredictedRace, Ends)> = races
        .iter()
        .map(|race| {
            let ends = Ends {
                store: stacks.stack(race.store.site, race.store.context),
                load: stacks.stack(race.load.site, race.load.context),
                end: race.ended_by.map(|m| stacks.stack(m.site, m.context)),
            };
            (race, ends)
        })
        .collect();
    // One such race decides for all races of a path: whether another thread ended the window first is chance.
    let path = |race: &PredictedRace| (race.store.site, race.store.context);
    let left_to_caller: FastSet<(SiteId, ContextId)> =
        resolved.iter().filter(|(race, ends)| leaves_to_caller(race, ends)).map(|(race, _)| path(race)).collect();
    let mut groups: Vec<RaceGroup<'a>> = Vec::new();
    for (race, ends) in resolved {
        let callers = usize::from(left_to_caller.contains(&path(race)));
        let place = CodePlace::in_stack(&ends.store, callers);
        let paths = BTreeSet::from([words(&ends.store)]);
        let load = (CodePlace::in_stack(&ends.load, 0), BTreeSet::from([words(&ends.load)]));
        let reader = RaceReader { place: load.0, race, ends, count: race.count, paths: load.1 };
        match groups.iter_mut().find(|known| known.place == place) {
            Some(known) => known.join(paths, reader),
            None => {
                let sightings = race.sightings.clone();
                groups.push(RaceGroup { place, readers: vec![reader], paths, sightings });
            }
        }
    }
    for group in &mut groups {
        group.readers.sort_by_cached_key(RaceReader::rank);
    }
    groups
}

/// Whether the function that stores is not the one in which the window ends.
fn leaves_to_caller(race: &PredictedRace, ends: &Ends) -> bool {
    let Some(end) = ends.end.as_ref().filter(|_| race.ended_by.is_some_and(|end| end.thread == race.store.thread))
    else {
        return false;
    };
    let store = &ends.store;
    let shared = shared_frames(store, end);
    shared > 0 && user_frame(store).is_some_and(|own| own < store.len() - shared)
}

/// Calls of a path to show: enough to tell paths apart.
const CALLS: usize = 4;

/// A call path in words, innermost first.
fn words(stack: &Stack) -> String {
    let own = user_frame(stack).unwrap_or(0);
    let frames = stack.iter().skip(own).filter(|frame| frame.is_user()).take(CALLS);
    frames.map(ToString::to_string).collect::<Vec<_>>().join(" from ")
}

/// Paths to show beside the one that is shown in full.
const PATHS: usize = 8;

impl<'a> RaceGroup<'a> {
    fn join(&mut self, paths: BTreeSet<String>, reader: RaceReader<'a>) {
        self.paths.extend(paths);
        self.sightings.join(&reader.race.sightings);
        match self.readers.iter_mut().find(|known| known.place == reader.place) {
            Some(known) => known.join(reader),
            None => self.readers.push(reader),
        }
    }

    /// Another run may not show any of them.
    pub(super) fn is_chance(&self) -> bool {
        self.sightings.is_chance()
    }

    pub(super) fn count(&self) -> u64 {
        self.readers.iter().map(|reader| reader.count).sum()
    }

    /// The paths that are not shown in full, and the readers beyond those `shown`, as sentences.
    pub(super) fn others(&self, shown: usize) -> String {
        let mut text = String::new();
        if let Some(first) = self.readers.first() {
            text += &others("The store is also reached", &self.paths, &words(&first.ends.store));
            text += &others("The load is also reached", &first.paths, &words(&first.ends.load));
        }
        let beyond: BTreeSet<String> =
            self.readers.iter().skip(shown).filter_map(|reader| reader.paths.first().cloned()).collect();
        text + &others("It is also read", &beyond, "")
    }
}

impl<'a> RaceReader<'a> {
    /// Sorts observed races first; among equals the choice must not depend on the schedule.
    fn rank(&self) -> (bool, String, String) {
        (!self.race.observed, words(&self.ends.store), words(&self.ends.load))
    }

    fn join(&mut self, other: RaceReader<'a>) {
        self.count += other.count;
        if other.rank() < self.rank() {
            (self.race, self.ends) = (other.race, other.ends);
        }
        self.paths.extend(other.paths);
    }
}

/// All paths but the one that is shown, as a sentence that begins with `what`.
fn others(what: &str, paths: &BTreeSet<String>, shown: &str) -> String {
    let others: Vec<&str> = paths.iter().map(String::as_str).filter(|path| *path != shown).collect();
    if others.is_empty() {
        return String::new();
    }
    let more = others.len().saturating_sub(PATHS);
    let more = if more > 0 { format!("; and on {more} more paths") } else { String::new() };
    format!(" {what} in {}{more}.", others[..others.len().min(PATHS)].join("; in "))
}
