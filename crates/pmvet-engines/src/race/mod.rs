//! The pass of `pmvet race` over the events of a run, for the prediction ([`lockset`](crate::lockset)) and for the proofs
//! ([`confirm`](crate::confirm)), which need different things from the same events.

use std::time::SystemTime;

use pmvet_events::file::Definitions;
use pmvet_events::{ContextId, What};
use pmvet_target::live_events::LiveEvents;
use pmvet_target::symbols::Symbolizer;

use crate::confirm::shared::{SharedStore, SharedStores};
use crate::confirm::sync_variables::{Update, Updates};
use crate::lockset::{Code, LocksetAnalysis, LocksetEngine, LocksetOptions};
use crate::stacks::{Stacks, Symbols};

/// The results of the pass over the events.
#[derive(Debug)]
pub struct RaceScan {
    /// The races that locksets predict, and the locks that were found.
    pub outcome: LocksetAnalysis,
    /// Names of places, files and types.
    pub symbols: Symbols,
    /// The places that the sites and contexts of the events stand for.
    pub places: Definitions,
    /// Stores that other threads read, for proofs.
    pub shared: Vec<SharedStore>,
    /// Stores to variables that must have their initial value after a restart, for proofs.
    pub updates: Vec<Update>,
    /// How many stores there were in all.
    pub stores: u64,
    /// How many threads have started, the first one of each process included.
    pub threads: u32,
    /// Whether the run mapped PM at all.
    pub saw_pm: bool,
}

impl RaceScan {
    /// Scans a run while it is recorded. `updates`: proofs are wanted, too.
    pub fn watch(live: LiveEvents, options: LocksetOptions, mut updates: Option<Updates>) -> Self {
        let mut symbols = Symbols::new(Symbolizer::of_recording(SystemTime::now()));
        let mut engine = LocksetEngine::new(options);
        let mut saw_pm = false;
        let mut shared = SharedStores::default();
        let mut threads = 0;
        let places = live.for_each(|event| {
            symbols.event(event);
            saw_pm |= matches!(event.what, What::Map { .. });
            engine.event(event);
            if let Some(updates) = &mut updates {
                shared.event(event);
                updates.event(event);
            }
            threads += u32::from(matches!(event.what, What::ThreadStart { .. }));
        });
        // Without places the recording has failed, which ends the command.
        let places = places.unwrap_or_default();
        let mut functions = |site| {
            let stack = symbols.with(&places).stack(site, ContextId::default());
            let module = stack.first().and_then(|frame| frame.module.as_deref()?.file_name());
            let module = module.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            Code { functions: stack.into_iter().filter_map(|frame| frame.function).collect(), module }
        };
        let outcome = engine.finish_with(&mut functions);
        let (shared, stores) = shared.finish();
        Self {
            outcome,
            symbols,
            places,
            shared,
            updates: updates.map(Updates::finish).unwrap_or_default(),
            stores,
            threads,
            saw_pm,
        }
    }
}
