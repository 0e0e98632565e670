//! The pass over the recorded events: rules, failure points, and the content of PM at each.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;

use pmvet_events::What;
use pmvet_events::file::Definitions;
use pmvet_findings::{Finding, Sources, Tally, tree};
use pmvet_target::shutdown;
use pmvet_target::symbols::Symbolizer;

use super::CheckPlan;
use crate::causes::windows::PointVerdict;
use crate::inject::{FailurePointScan, FailurePointScanner};
use crate::lab::{Lab, LabError, NativeStacks, StackLookup};
use crate::promises::OperationSigns;
use crate::rules::{self, RawFinding, RawFindings, Rules};
use crate::stacks::Symbols;
use crate::transactions;

/// The results of one pass over the events of a recording.
#[derive(Debug)]
pub(super) struct RecordedRun {
    pub(super) scan: FailurePointScan,
    /// It has seen all events: pmvet did not shut down before.
    pub(super) is_whole: bool,
    pub(super) saw_pm: bool,
    pub(super) events: u64,
    /// How many threads stored to PM.
    pub(super) writers: usize,
    /// Writes by system calls, which count as durable at once.
    pub(super) file_writes: u64,
    /// The signs of which operations had begun, and which were done.
    pub(super) signs: OperationSigns,
    /// The findings of the rules, with ids instead of names.
    pub(super) raw: RawFindings,
    names: RefCell<(Symbols, Definitions, NativeStacks)>,
}

impl RecordedRun {
    /// Reads the recording in the folder of `lab`. `known` are call paths that need no more crashes.
    pub(super) fn read(lab: &Lab<'_>, plan: &CheckPlan, known: Arc<HashSet<u64>>) -> Result<Self, LabError> {
        let recording = &lab.recording();
        let failed = |source| LabError::Trace { path: recording.trace(), source };
        let store = lab.temporary()?;
        let mut reader = recording.read().map_err(failed)?;
        let bytes = recording.trace().metadata().map_or(u64::MAX, |m| m.len());
        let recorded = recording.trace().metadata().and_then(|m| m.modified()).unwrap_or_else(|_| SystemTime::now());
        let mut symbols = Symbols::new(Symbolizer::of_recording(recorded));
        let mut scanner = FailurePointScanner::new(recording, plan.injection.for_recording(bytes), store, known);
        let mut rules = Rules::new(rules::RuleOptions { mode: plan.mode, pedantic: plan.pedantic });
        let (mut saw_pm, mut events) = (false, 0);
        let mut signs = OperationSigns::default();
        let (mut writers, mut writer) = (HashSet::new(), None);
        let (mut clock, mut is_whole) = (shutdown::ClockCheck::default(), true);
        while let Some((event, places)) = reader.next_in_place().map_err(failed)? {
            if clock.is_due() && shutdown::is_over() {
                is_whole = false;
                break;
            }
            events += 1;
            symbols.event(&event);
            signs.event(&event);
            saw_pm |= matches!(event.what, What::Map { .. });
            if writer != Some(event.thread) && matches!(event.what, What::Store { .. } | What::Rmw { stored: true, .. })
            {
                writer = Some(event.thread);
                writers.insert(event.thread);
            }
            scanner.before(&event, rules.model(), places)?;
            rules.event(&event, &scanner.newest());
            scanner.apply(&event)?;
        }
        let places = reader.into_places();
        Ok(Self {
            scan: scanner.finish()?,
            is_whole,
            saw_pm,
            events,
            writers: writers.len(),
            file_writes: rules.model().file_writes(),
            signs,
            raw: rules.finish(),
            names: (symbols, places, NativeStacks::default()).into(),
        })
    }

    /// Lets `use_names` look up names.
    pub(super) fn with_names<R>(&self, use_names: impl FnOnce(&mut StackLookup<'_>) -> R) -> R {
        let (symbols, places, natives) = &mut *self.names.borrow_mut();
        use_names(&mut StackLookup { stacks: &mut symbols.with(places), natives })
    }

    /// Adds to findings which fields the stores that escape their transactions change.
    pub(super) fn name_fields(&self, findings: &mut [Finding], sources: &Sources) {
        let (symbols, ..) = &mut *self.names.borrow_mut();
        transactions::name_fields(findings, sources, |module| symbols.types_in(module));
    }

    /// The findings of the rules, in words.
    pub(super) fn worded(&self, raw: Vec<RawFinding>) -> Vec<Finding> {
        self.with_names(|names| rules::report(RawFindings { findings: raw, ..self.raw.clone() }, names.stacks))
    }

    /// Adds the failure points by their call paths, each with its verdict.
    pub(super) fn add_points(&self, verdicts: &[PointVerdict], tree: &mut tree::Builder) {
        self.with_names(|names| {
            for (point, verdict) in self.scan.points.iter().zip(verdicts) {
                let stack = names.stacks.stack(point.site, point.context);
                let tally = match verdict {
                    PointVerdict::Good => Tally::OK,
                    PointVerdict::Bad => Tally::FAILED,
                    PointVerdict::NotTried => Tally::NOT_TRIED,
                };
                tree.add_stack(&stack, tally);
            }
        });
    }
}
