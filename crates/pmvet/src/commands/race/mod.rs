//! `pmvet race`: races in which a thread acts on data that a crash may still take back, predicted from one recorded run.

mod inferred;
mod locks;

use std::time::{Instant, SystemTime};

use pmvet_engines::lockset::{self, Code, Edges, Engine, Options};
use pmvet_engines::stacks::{Stacks, Symbols};
use pmvet_events::file::Definitions;
use pmvet_events::{ContextId, What};
use pmvet_findings::Coverage;
use pmvet_target::install::Install;
use pmvet_target::launch;
use pmvet_target::recording::Recording;
use pmvet_target::symbols::Symbolizer;

use self::locks::Restarts;
use crate::cli::{self, RaceSwitch};
use crate::config::{self, Config};
use crate::exit::{Error, Exit};
use crate::reporting::{self, Results};
use crate::run_folder::{RunFolder, RunInfo};
use crate::system;
use crate::workload::Workload;

pub(crate) fn run(arguments: &cli::Race) -> Result<Exit, Error> {
    let folder = std::env::current_dir().map_err(|source| Error::Output {
        action: "find",
        what: "the current folder".into(),
        source,
    })?;
    let config = Config::load(arguments.workload.config.as_deref())?;
    let mut workload = Workload::new(&arguments.workload, &config, &folder)?;
    workload.races = true;
    let install = Install::find()?;
    system::handle_signals();
    let started = Instant::now();
    let folder = RunFolder::create(&arguments.workload.runs)?;
    let mut info = RunInfo::new(&workload.command, &workload.program.arguments);
    if let Some(line) = &arguments.workload.setup {
        workload.set_up(line)?;
    }
    workload.keep_input(&folder.file("input"))?;
    if let Some(end) = workload.record(&folder, &mut info, true, &install)? {
        if let Some(signal) = launch::stopped_by() {
            eprintln!("pmvet: interrupted by {}", launch::signal_name(signal));
        }
        return Ok(end);
    }
    let recording = folder.recording();
    let mut analysed = Analysed::new(&recording, options(arguments, &config.race))?;
    if !analysed.saw_pm {
        return Ok(workload.no_pm());
    }
    let restarts = Restarts { workload: &workload, folder: &folder, recording: &recording, install: &install };
    let (held, unknown) = restarts.left_held(&analysed.outcome.held, &mut analysed.symbols)?;
    let outcome = &analysed.outcome;
    let listed = inferred::list(&outcome.inferred, &mut analysed.symbols.with(&analysed.places));
    folder.write_json("locks.json", &listed)?;
    if !arguments.reporting.quiet {
        inferred::lines(&listed).iter().for_each(|line| eprintln!("pmvet: {line}"));
    }
    let mut stacks = analysed.symbols.with(&analysed.places);
    let mut findings = lockset::findings::findings(outcome, &mut stacks);
    findings.extend(held.iter().filter_map(|lock| lockset::findings::held_lock(lock, &mut stacks)));
    let mut coverage = Coverage::default();
    coverage.count("events", outcome.stats.events, None);
    coverage.count("loads of PM", outcome.stats.loads, None);
    coverage.count("inferred locks", outcome.inferred.len() as u64, None);
    coverage.count("locks in PM", (outcome.held.len() - unknown) as u64, Some(outcome.held.len() as u64));
    if outcome.stats.refused > 0 {
        coverage.not_covered.push(format!("{} accesses beyond the memory limit", outcome.stats.refused));
    }
    coverage.not_covered.push("whether recovery copes with a race: predicted races are not confirmed".into());
    info.complete = outcome.stats.refused == 0;
    folder.write_info(&info)?;
    let results = Results {
        folder: &folder,
        info: &info,
        findings,
        suppress: config.suppress,
        witnesses: Default::default(),
        coverage,
        tree: None,
        engines: vec!["race".into()],
        seconds: started.elapsed().as_secs_f64(),
        phases: Vec::new(),
    };
    reporting::report(results, &arguments.reporting)
}

fn options(arguments: &cli::Race, config: &config::Race) -> Options {
    let mut options = Options::default();
    for switch in &arguments.without {
        match switch {
            RaceSwitch::InitRemoval => options.init_removal = false,
            RaceSwitch::InferLocks => options.infer_locks = false,
            RaceSwitch::Allocators => options.allocators = false,
            RaceSwitch::ReaderWindow => options.reader_window = false,
            RaceSwitch::Edges => options.edges = Edges::NONE,
        }
    }
    options.lock_free = arguments.lock_free;
    options.deny = arguments.deny_lock.iter().chain(&config.deny_lock).cloned().collect();
    options.declare = arguments.declare_lock.iter().chain(&config.declare_lock).cloned().collect();
    options
}

/// What the pass over the events gave.
struct Analysed {
    outcome: lockset::Outcome,
    symbols: Symbols,
    places: Definitions,
    saw_pm: bool,
}

impl Analysed {
    fn new(recording: &Recording, options: Options) -> Result<Self, Error> {
        let failed = |source| Error::Trace { path: recording.trace(), source };
        let mut reader = recording.read().map_err(failed)?;
        let recorded = recording.trace().metadata().and_then(|m| m.modified()).unwrap_or_else(|_| SystemTime::now());
        let mut symbols = Symbols::new(Symbolizer::of_recording(recorded));
        let mut engine = Engine::new(options);
        let mut saw_pm = false;
        while let Some(event) = reader.next().map_err(failed)? {
            symbols.event(&event);
            saw_pm |= matches!(event.what, What::Map { .. });
            engine.event(&event);
        }
        let places = reader.into_places();
        let mut functions = |site| {
            let stack = symbols.with(&places).stack(site, ContextId::default());
            let module = stack.first().and_then(|frame| frame.module.as_deref()?.file_name());
            let module = module.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            Code { functions: stack.into_iter().filter_map(|frame| frame.function).collect(), module }
        };
        let outcome = engine.finish_with(&mut functions);
        Ok(Self { outcome, symbols, places, saw_pm })
    }
}
