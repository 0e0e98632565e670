//! `pmvet race`: races in which a thread acts on data that a crash may still take back, predicted from one recorded run.

mod confirm;
mod inferred;
mod locks;
mod verdicts;

use std::time::{Duration, Instant, SystemTime};

use pmvet_engines::confirm::shared::{SharedStore, SharedStores};
use pmvet_engines::lockset::{self, Code, Edges, Engine, Options};
use pmvet_engines::stacks::{Stacks, Symbols};
use pmvet_events::file::Definitions;
use pmvet_events::{ContextId, What};
use pmvet_findings::Coverage;
use pmvet_target::install::Install;
use pmvet_target::launch;
use pmvet_target::recording::{Follower, Recording};
use pmvet_target::symbols::Symbolizer;

use self::confirm::{Candidate, Confirm, Spot};
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
    if arguments.confirm.confirm && arguments.workload.in_place {
        return Err(Error::Usage("--confirm runs the target many times, which --in-place does not allow".into()));
    }
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
    let recording = folder.recording();
    let options = options(arguments, &config.race);
    let follower = Follower::default();
    let (recorded, analysed) = std::thread::scope(|scope| {
        let analysis = scope.spawn(|| Analysed::new(&recording, &follower, options, arguments.confirm.confirm));
        let recorded = workload.record(&folder, &mut info, true, &install, Some(&follower));
        follower.end();
        (recorded, analysis.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    if let Some(end) = recorded? {
        if let Some(signal) = launch::stopped_by() {
            eprintln!("pmvet: interrupted by {}", launch::signal_name(signal));
        }
        return Ok(end);
    }
    let mut analysed = analysed?;
    if !analysed.saw_pm {
        return Ok(workload.no_pm());
    }
    let restarts = Restarts { workload: &workload, folder: &folder, recording: &recording, install: &install };
    let (held, unknown) = restarts.left_held(&analysed.outcome.held, &analysed.symbols)?;
    let outcome = &analysed.outcome;
    let listed = inferred::list(&outcome.inferred, &mut analysed.symbols.with(&analysed.places));
    folder.write_json("locks.json", &listed)?;
    if !arguments.reporting.quiet {
        inferred::lines(&listed).iter().for_each(|line| eprintln!("pmvet: {line}"));
    }
    let mut stacks = analysed.symbols.with(&analysed.places);
    let mut findings = lockset::findings::findings(outcome, &mut stacks);
    let mut held: Vec<_> = held
        .into_iter()
        .filter_map(|lock| lockset::findings::held_lock(&lock, &mut stacks).map(|finding| (lock, finding)))
        .collect();
    let mut confirmed = None;
    if arguments.confirm.confirm {
        let traced = Duration::from_secs_f64(info.traced_seconds.unwrap_or_default());
        let confirm = Confirm {
            workload: &workload,
            folder: &folder,
            install: &install,
            arguments: &arguments.confirm,
            traced,
            threads: analysed.threads,
        };
        let found = confirm.run(&candidates(&mut analysed), &mut held, &mut info)?;
        findings = verdicts::merge(findings, &found);
        confirmed = Some(found);
    }
    let outcome = &analysed.outcome;
    findings.extend(held.into_iter().map(|(_, finding)| finding));
    let mut coverage = Coverage::default();
    coverage.count("events", outcome.stats.events, None);
    coverage.count("loads of PM", outcome.stats.loads, None);
    coverage.count("inferred locks", outcome.inferred.len() as u64, None);
    coverage.count("locks in PM", (outcome.held.len() - unknown) as u64, Some(outcome.held.len() as u64));
    if outcome.stats.refused > 0 {
        coverage.not_covered.push(format!("{} accesses beyond the memory limit", outcome.stats.refused));
    }
    match &confirmed {
        Some(confirmed) => verdicts::cover(confirmed, &mut coverage),
        None => {
            let missing = "whether recovery copes with a race: predicted races are not confirmed (--confirm)";
            coverage.not_covered.push(missing.into());
        }
    }
    info.complete = outcome.stats.refused == 0;
    folder.write_info(&info)?;
    let results = Results {
        folder: &folder,
        info: &info,
        findings,
        suppress: config.suppress,
        witnesses: confirmed.map(|c| c.witnesses).unwrap_or_default(),
        coverage,
        tree: None,
        engines: vec!["race".into()],
        seconds: started.elapsed().as_secs_f64(),
        phases: Vec::new(),
    };
    reporting::report(results, &arguments.reporting)
}

/// Where races may be: first what the locksets say, then every store that other threads read. What is not proven of
/// the latter is not reported, so there may be many.
fn candidates(analysed: &mut Analysed) -> Vec<Candidate> {
    let mut stacks = analysed.symbols.with(&analysed.places);
    let mut candidates: Vec<Candidate> = Vec::new();
    let races = analysed.outcome.races.iter().map(|race| (race.store.site, race.ended_by.map(|end| end.site), true));
    let shared = analysed.shared.iter().map(|store| (store.site, store.fence, false));
    for (store, end, predicted) in races.chain(shared) {
        let end = end.and_then(|end| Spot::of(end, &mut stacks));
        let Some(store) = Spot::of(store, &mut stacks) else { continue };
        if !candidates.iter().any(|known| known.store == store && known.end == end) {
            candidates.push(Candidate { store, end, predicted });
        }
    }
    candidates
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
    shared: Vec<SharedStore>,
    threads: u32,
    saw_pm: bool,
}

impl Analysed {
    /// Analyses a run while it is recorded. `confirm`: stores that other threads read are wanted, too.
    fn new(recording: &Recording, follower: &Follower, options: Options, confirm: bool) -> Result<Self, Error> {
        let failed = |source| Error::Trace { path: recording.trace(), source };
        let mut reader = recording.follow(follower).map_err(failed)?;
        let mut symbols = Symbols::new(Symbolizer::of_recording(SystemTime::now()));
        let mut engine = Engine::new(options);
        let mut saw_pm = false;
        let mut shared = SharedStores::default();
        let mut threads = 0;
        while let Some(event) = reader.next().map_err(failed)? {
            symbols.event(&event);
            saw_pm |= matches!(event.what, What::Map { .. });
            engine.event(&event);
            if confirm {
                shared.event(&event);
            }
            threads += u32::from(matches!(event.what, What::ThreadStart { .. }));
        }
        let places = reader.into_places();
        let mut functions = |site| {
            let stack = symbols.with(&places).stack(site, ContextId::default());
            let module = stack.first().and_then(|frame| frame.module.as_deref()?.file_name());
            let module = module.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            Code { functions: stack.into_iter().filter_map(|frame| frame.function).collect(), module }
        };
        let outcome = engine.finish_with(&mut functions);
        Ok(Self { outcome, symbols, places, shared: shared.finish(), threads, saw_pm })
    }
}
