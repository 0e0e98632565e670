//! Declared synchronisation variables: whether a restart resets them.

use pmvet_events::Event;
use pmvet_findings::{Finding, Sources};
use pmvet_target::crash::Patch;

use super::judge::Judge;
use super::judged_run::JudgedRun;
use super::search::Confirmed;
use super::sync_names::has_source;
use super::sync_variables::{Left, Restarted, SyncVariable, Update, VariablePlace, Variables, finding};
use super::verdict::RecoveryOutcome;
use crate::lab::restart::RestartWatch;
use crate::lab::{self, LabError, StackLookup, TrialImage, Witness};
use crate::stacks::Stacks;

impl RestartWatch for Restarted {
    fn event(&mut self, event: &Event<'_>) {
        Restarted::event(self, event);
    }

    fn is_decided(&self) -> bool {
        Restarted::is_decided(self)
    }
}

impl Judge<'_> {
    /// Tries a crash after each kind of update of each variable.
    pub(super) fn sync_variables(
        &mut self,
        variables: &Variables,
        run: &mut JudgedRun,
        confirmed: &mut Confirmed,
    ) -> Result<Vec<Finding>, LabError> {
        let sources = Sources::new(std::env::current_dir());
        let mut chosen: Vec<(&SyncVariable, &Update)> = Vec::new();
        let mut stacks = run.symbols.with(&run.places);
        for variable in &variables.all {
            let is = |update: &&Update| {
                let set = update.value != variable.init;
                let stack = stacks.stack(update.end.site, update.end.context);
                set && variable.is(update, &stack, &sources, &variables.types)
            };
            let known: Vec<&Update> = variables.updates.iter().filter(is).collect();
            if known.is_empty() {
                let mut stack = |update: &Update| stacks.stack(update.end.site, update.end.context);
                let by_place = matches!(variable.at, VariablePlace::Offset { .. });
                let can_tell = by_place || variables.updates.iter().any(|update| has_source(&stack(update), &sources));
                let why = if can_tell {
                    "no store of this run sets it"
                } else {
                    "its stores are not known without the source"
                };
                confirmed.notes.push(format!("{}: {why}", variable.at));
            }
            chosen.extend(known.into_iter().map(|update| (variable, update)));
        }
        let store = self.lab.temporary()?;
        let moments = [chosen.iter().map(|(_, update)| update.end.seq + 1).collect()];
        let (versions, found) = lab::versions_at(&self.lab.recording(), &moments, store)?;
        let mut findings = Vec::new();
        for (variable, update) in chosen {
            let at = found.iter().find(|(moment, _)| *moment == update.end.seq + 1);
            let Some(&(_, version)) = at else { continue };
            if self.is_over() {
                confirmed.notes.push(format!("{}: not all crashes were tried in time", variable.at));
                break;
            }
            let bytes = variable.init.to_le_bytes()[..(variable.size as usize).min(8)].to_vec();
            let free = [Patch { file: update.end.line.file, offset: update.end.offset, bytes }];
            let (held, control) = (TrialImage::new(version, &[]), TrialImage::new(version, &free));
            confirmed.images += self.recover(&versions, &[held, control], self.grace())?;
            let left = match (self.went(&versions, &held), self.went(&versions, &control)) {
                (RecoveryOutcome::Badly, RecoveryOutcome::Well) if self.still_fails(&versions, &held)? => Left::Fails,
                (RecoveryOutcome::Well, _) => match self.left_in(variable, update, run, (&versions, version, &[]))? {
                    Some(value) => Left::Holds(value),
                    None => continue,
                },
                _ => continue,
            };
            let Some(tried) = self.journal.get(&held.name(&versions)) else { continue };
            let setting = self.setting();
            let mut stacks = run.symbols.with(&run.places);
            let mut names = StackLookup { stacks: &mut stacks, natives: &mut self.natives };
            findings.push(finding(variable, update, left, tried, &setting, &mut names));
            let witness =
                Witness { recording: None, seq: Some(update.end.seq + 1), patches: Vec::new(), promise: None };
            confirmed.witnesses.insert(tried.image.clone(), witness);
        }
        Ok(findings)
    }
}
