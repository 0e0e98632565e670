//! A recorded run as recoveries judge it: its meetings, and what surrounds them.

use std::collections::HashMap;
use std::time::SystemTime;

use pmvet_events::SiteId;
use pmvet_events::file::Definitions;
use pmvet_model::Mode;
use pmvet_target::recording::Recording;
use pmvet_target::shutdown;
use pmvet_target::symbols::Symbolizer;

use super::held_locks::TakenWords;
use super::instruction::Instruction;
use super::meetings::MeetingScanner;
use super::{Flows, Meeting, Meetings};
use crate::alias_coverage::{Aliases, Covered};
use crate::lab::{Lab, LabError};
use crate::promises::OperationSigns;
use crate::stacks::Symbols;

/// A recorded run, read.
pub(super) struct JudgedRun {
    pub(super) meetings: Meetings,
    pub(super) taken: TakenWords,
    /// The signs of which operations had begun, and which were done.
    pub(super) signs: OperationSigns,
    pub(super) covered: Covered,
    pub(super) recording: Recording,
    pub(super) symbols: Symbols,
    pub(super) places: Definitions,
}

impl JudgedRun {
    /// Reads a whole recording, unless pmvet shuts down before.
    pub(super) fn read(recording: &Recording, lab: Lab<'_>) -> Result<Self, LabError> {
        let failed = |source| LabError::Trace { path: recording.trace(), source };
        let store = lab.temporary()?;
        let mut reader = recording.read().map_err(failed)?;
        let recorded = recording.trace().metadata().and_then(|m| m.modified()).unwrap_or_else(|_| SystemTime::now());
        let mut symbols = Symbols::new(Symbolizer::of_recording(recorded));
        let mut scanner = MeetingScanner::new(recording, Mode::Adr, store);
        if lab.workload.operations.is_some() {
            scanner = scanner.with_answers();
        }
        let mut signs = OperationSigns::default();
        let (mut flows, mut aliases, mut taken) = (Flows::default(), Aliases::default(), TakenWords::default());
        let mut clock = shutdown::ClockCheck::default();
        while let Some(event) = reader.next().map_err(failed)? {
            if clock.is_due() && shutdown::is_over() {
                break;
            }
            symbols.event(&event);
            flows.event(&event);
            aliases.event(&event);
            taken.event(&event);
            signs.event(&event);
            scanner.event(&event)?;
        }
        let mut meetings = scanner.finish()?;
        flows.attach(&mut meetings.meetings);
        let places = reader.into_places();
        let branches = recording.branches().into_iter().collect();
        let covered = Covered { branches, ..aliases.finish(&places) };
        Ok(Self { meetings, taken, signs, covered, recording: recording.clone(), symbols, places })
    }
}

/// The instructions of all meetings.
pub(super) fn spots(meetings: &[Meeting], run: &mut JudgedRun) -> HashMap<SiteId, Option<Instruction>> {
    let mut spots: HashMap<SiteId, Option<Instruction>> = HashMap::new();
    let mut stacks = run.symbols.with(&run.places);
    for site in meetings.iter().flat_map(|meeting| [meeting.store.site, meeting.load.site]) {
        spots.entry(site).or_insert_with(|| Instruction::at(site, &mut stacks));
    }
    spots
}
