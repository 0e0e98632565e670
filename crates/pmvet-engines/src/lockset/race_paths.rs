//! Which races are one finding: those between the same two places of the program's own code.
//!
//! A place is the line that stores or loads, not counting libraries and helpers. A function that stores and leaves it to its
//! caller to make the value persistent is a helper, too, whatever it is called: the race is the caller's, and each call of
//! it is a place of its own. All call paths that lead to the same places are told in one finding.

use std::collections::BTreeSet;
use std::path::PathBuf;

use pmvet_events::{ContextId, SiteId};
use pmvet_findings::{Frame, Stack};
use rustc_hash::FxHashSet as FastSet;

use super::races::PredictedRace;
use crate::stacks::{Stacks, user_frame};

/// The call paths of a race.
pub(super) struct Ends {
    pub(super) store: Stack,
    pub(super) load: Stack,
    pub(super) end: Option<Stack>,
}

/// Races that are one finding.
pub(super) struct RaceGroup<'a> {
    places: [CodePlace; 2],
    /// The one that says most, and its paths.
    pub(super) race: &'a PredictedRace,
    pub(super) ends: Ends,
    pub(super) count: u64,
    /// All paths to the store, and to the load.
    paths: [BTreeSet<String>; 2],
}

/// Function, file, line, and the offset of the instruction.
type CodeLine = (Option<String>, Option<PathBuf>, Option<u32>, u64);

/// Where the user would look. Only an instruction without a line is told apart from others by its own place.
#[derive(PartialEq)]
struct CodePlace(Vec<CodeLine>);

impl CodePlace {
    /// `callers`: how many of the calls around the line belong to it.
    fn of(stack: &Stack, callers: usize) -> Self {
        let own = user_frame(stack).unwrap_or(0);
        let outer = stack.iter().skip(own + 1).filter(|frame| frame.is_user()).take(callers);
        let place = |frame: &Frame| {
            let offset = if frame.line.is_some() { 0 } else { frame.offset };
            (frame.function.clone(), frame.file.clone(), frame.line, offset)
        };
        CodePlace(stack.iter().skip(own).take(1).chain(outer).map(place).collect())
    }
}

/// In the order in which the first of each was found.
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
    // Asked of all races of a path: whether another thread was faster to end a window is chance.
    let path = |race: &PredictedRace| (race.store.site, race.store.context);
    let left_to_caller: FastSet<(SiteId, ContextId)> =
        resolved.iter().filter(|(race, ends)| leaves_to_caller(race, ends)).map(|(race, _)| path(race)).collect();
    let mut groups: Vec<RaceGroup<'a>> = Vec::new();
    for (race, ends) in resolved {
        let callers = usize::from(left_to_caller.contains(&path(race)));
        let places = [CodePlace::of(&ends.store, callers), CodePlace::of(&ends.load, 0)];
        let paths = [&ends.store, &ends.load].map(|stack| BTreeSet::from([words(stack)]));
        let new = RaceGroup { places, race, ends, count: race.count, paths };
        match groups.iter_mut().find(|known| known.places == new.places) {
            Some(known) => known.join(new),
            None => groups.push(new),
        }
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
    let of = |frame: &Frame| (frame.module.clone(), frame.function.clone(), frame.offset);
    let common = store.iter().rev().zip(end.iter().rev()).take_while(|(a, b)| of(a) == of(b)).count();
    // The innermost frame that both have: the last equal one, or the next if it is the same function at another place.
    let next = |stack: &Stack| stack.len().checked_sub(common + 1).and_then(|at| stack[at].function.clone());
    let shared = common + usize::from(next(store).is_some() && next(store) == next(end));
    shared > 0 && user_frame(store).is_some_and(|own| own < store.len() - shared)
}

/// Calls to show of a path: enough to tell paths apart.
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
    fn join(&mut self, other: RaceGroup<'a>) {
        self.count += other.count;
        // What was observed says most; among equals the choice must not depend on the schedule.
        let rank = |group: &RaceGroup<'_>| (!group.race.observed, words(&group.ends.store), words(&group.ends.load));
        if rank(&other) < rank(self) {
            (self.race, self.ends) = (other.race, other.ends);
        }
        for (paths, more) in self.paths.iter_mut().zip(other.paths) {
            paths.extend(more);
        }
    }

    /// The paths that are not shown in full, as sentences.
    pub(super) fn other_paths(&self) -> String {
        let shown = [words(&self.ends.store), words(&self.ends.load)];
        let others = |paths: &BTreeSet<String>, shown: &String, what: &str| {
            let others: Vec<&str> = paths.iter().filter(|path| *path != shown).map(String::as_str).collect();
            let more = others.len().saturating_sub(PATHS);
            let more = if more > 0 { format!("; and on {more} more paths") } else { String::new() };
            match others.is_empty() {
                true => String::new(),
                false => {
                    format!(" The {what} is also reached in {}{more}.", others[..others.len().min(PATHS)].join("; in "))
                }
            }
        };
        others(&self.paths[0], &shown[0], "store") + &others(&self.paths[1], &shown[1], "load")
    }
}
