//! `pmvet race`: races in which a thread acts on data that a crash may still take back, predicted from one recorded run.

mod locks;
mod replay;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use pmvet_engines::alias_coverage::Covered;
use pmvet_engines::confirm::attempts::attempts;
use pmvet_engines::confirm::contents::{ComparedContents, NotCompared};
use pmvet_engines::confirm::merge;
use pmvet_engines::confirm::replay::Schedules;
use pmvet_engines::confirm::search::{Confirmation, Wanted};
use pmvet_engines::confirm::sync_names::Declared;
use pmvet_engines::confirm::sync_variables::{Updates, Variables};
use pmvet_engines::lab::{Lab, LabError};
use pmvet_engines::lockset::listed_locks::ListedLock;
use pmvet_engines::lockset::restarts::Restarts;
use pmvet_engines::lockset::{self, Edges, LocksetOptions, Unmatched};
use pmvet_engines::race::RaceScan;
use pmvet_findings::{Coverage, Phase};
use pmvet_target::live_events::LiveEvents;
use pmvet_target::sandbox::shell;
use pmvet_target::shutdown;
use serde::{Deserialize, Serialize};

use self::locks::LockFindings;
pub(super) use self::replay::again;
use crate::budget;
use crate::cli::{self, RaceSwitch};
use crate::config::{self, Config};
use crate::driver::{self, Engine, EngineReport, Job, Needs, NoReport, Session};
use crate::durable::{self, DurableSettings};
use crate::exit::{Error, Exit};
use crate::recovery::one_at_a_time;
use crate::reporting;
use crate::run_folder::texts;
use crate::workload;

/// What the runs for one input have covered, for `pmvet fuzz --interleave`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Explored {
    pub(crate) runs: u32,
    pub(crate) covered: Covered,
}

/// A run is recorded at most this often until its threads share data, if it takes less than `SHORT` seconds. In a longer run they had time
/// to meet.
const MOST_RECORDINGS: u32 = 4;
const SHORT: f64 = 2.0;
/// How many recordings decide which predictions are chance, as long as they have fewer than `ENOUGH_EVENTS` together: about a second of
/// work.
const MOST_PREDICTIONS: u32 = 3;
const ENOUGH_EVENTS: u64 = 400_000;

pub(crate) fn run(arguments: &cli::Race) -> Result<Exit, Error> {
    if arguments.confirm.confirm && arguments.workload.in_place {
        return Err(Error::Usage("--confirm runs the target many times, which --in-place does not allow".into()));
    }
    if arguments.durable.durable && !arguments.confirm.confirm {
        return Err(Error::Usage(
            "--durable looks at what is left after a crash, which `race` makes with --confirm only".into(),
        ));
    }
    if arguments.durable.durable && arguments.workload.client.is_some() {
        return Err(Error::Usage(
            "--durable: `race --confirm` does not compare the contents of servers; `check --durable` does".into(),
        ));
    }
    one_at_a_time(arguments.workload.client.as_deref(), arguments.confirm.jobs)?;
    let config = Config::load(arguments.workload.config.as_deref())?;
    let options = options(arguments, &config.race);
    let races = RaceEngine::new(arguments.confirm.clone(), options, &arguments.workload, &config);
    let mut races = races.with_contents(&arguments.durable);
    races.repeats = !arguments.confirm.confirm && !arguments.workload.in_place;
    let job = Job {
        workload: &arguments.workload,
        reporting: &arguments.reporting,
        config,
        budget: arguments.confirm.budget,
        require_complete: false,
        resumable: None,
        left_out: Vec::new(),
        given: None,
    };
    driver::run(job, &mut [&mut races])
}

/// Races, predicted by locksets, and proven if that is wanted.
pub(super) struct RaceEngine {
    confirm: cli::Confirm,
    options: LocksetOptions,
    /// Whether crashes must leave what was promised.
    durable: Option<DurableSettings>,
    setup: Option<String>,
    /// Places of synchronisation variables that the configuration declares.
    watched: Vec<u64>,
    /// Programs with a single thread are skipped.
    threads_only: bool,
    /// In a turn of `fuzz --interleave`, the engine continues only while runs cover something beyond this, and reports what: other inputs
    /// are waiting.
    known: Option<Covered>,
    explored: Option<Explored>,
    /// Several recordings tell which races are chance.
    repeats: bool,
    /// The result of the pass over the events, made while they were recorded.
    analysed: Option<RaceScan>,
    /// The same for earlier recordings.
    earlier: Vec<RaceScan>,
}

impl RaceEngine {
    fn new(confirm: cli::Confirm, options: LocksetOptions, workload: &cli::Workload, config: &Config) -> Self {
        let options =
            LocksetOptions { sync: config.sync.iter().map(|sync| sync.function.clone()).collect(), ..options };
        let watched = config.sync_variables.iter().filter_map(|declared| declared.offset).collect();
        Self {
            confirm,
            options,
            durable: None,
            setup: workload.setup.clone(),
            watched,
            threads_only: false,
            known: None,
            explored: None,
            repeats: false,
            analysed: None,
            earlier: Vec::new(),
        }
    }

    /// The same engine, comparing contents if these arguments ask for it.
    pub(super) fn with_contents(self, arguments: &cli::Durable) -> Self {
        let durable = DurableSettings::new(arguments, self.confirm.recover.is_some(), false);
        Self { durable, ..self }
    }

    /// For one turn of an input among many: forces runs as long as they cover anything new.
    pub(super) fn exploring(confirm: cli::Confirm, known: Covered, workload: &cli::Workload, config: &Config) -> Self {
        let options = configured(&config.race);
        Self { known: Some(known), ..Self::new(confirm, options, workload, config) }
    }

    /// Only predicts races.
    pub(super) fn predicting(workload: &cli::Workload, config: &Config) -> Self {
        Self::new(cli::Confirm::default(), configured(&config.race), workload, config)
    }

    /// What the runs of [`RaceEngine::exploring`] have covered, if it came to that.
    pub(super) fn take_explored(&mut self) -> Option<Explored> {
        self.explored.take()
    }

    /// The defaults of `vet`: proves races, if there can be any.
    pub(super) fn proven(arguments: &cli::Vet, config: &Config) -> Self {
        let cli::Recovering { recover, oracle, recover_timeout, jobs, .. } = &arguments.recovering;
        let confirm = cli::Confirm {
            confirm: !arguments.workload.in_place,
            recover: recover.clone(),
            oracle: oracle.clone(),
            recover_timeout: *recover_timeout,
            jobs: *jobs,
            ..cli::Confirm::default()
        };
        Self { threads_only: true, ..Self::new(confirm, configured(&config.race), &arguments.workload, config) }
    }
}

impl Engine for RaceEngine {
    fn names(&self) -> Vec<String> {
        vec!["race".into()]
    }

    fn needs(&self) -> Needs {
        Needs {
            operations: self.durable.is_some(),
            loads: true,
            races: true,
            // The schedules to force depend on what overlaps here.
            in_step: self.confirm.confirm && !self.confirm.delay_injection,
            branches: self.known.is_some(),
            live: true,
            native_time: false,
        }
    }

    fn weight(&self) -> u32 {
        match &self.analysed {
            Some(analysed) if analysed.threads < 2 => 0,
            _ => 2,
        }
    }

    fn watch(&mut self, live: LiveEvents) {
        self.earlier.extend(self.analysed.take().filter(|_| self.repeats));
        let updates = self.confirm.confirm.then(|| Updates::new(self.watched.clone()));
        self.analysed = Some(RaceScan::watch(live, self.options.clone(), updates));
    }

    fn wants_another_recording(&self, session: &Session) -> bool {
        let Some(analysed) = self.analysed.as_ref().filter(|scan| scan.saw_pm && scan.threads > 1) else {
            return false;
        };
        if session.info.traced_seconds.is_none_or(|seconds| seconds >= SHORT) {
            return false;
        }
        if self.repeats {
            let recorded = self.earlier.iter().chain([analysed]);
            let events: u64 = recorded.map(|scan| scan.outcome.stats.events).sum();
            return session.recordings < MOST_PREDICTIONS && events < ENOUGH_EVENTS;
        }
        // If threads ran one after the other, as they may in a short run, there is nothing to force.
        session.workload.in_step && session.recordings < MOST_RECORDINGS && analysed.shared.is_empty()
    }

    fn run(&mut self, session: &mut Session) -> Result<EngineReport, NoReport> {
        let Some(mut analysed) = self.analysed.take() else {
            return Err(NoReport::Exit(budget::exit_before_analysis().unwrap_or(Exit::Interrupted)));
        };
        let Session { workload, folder, info, install, config, started, recordings, quiet, .. } = session;
        if !analysed.saw_pm {
            return Err(NoReport::Exit(workload::no_pm(workload)));
        }
        let alone = self.threads_only && analysed.threads < 2;
        let confirms = self.confirm.confirm && !alone;
        let variables = match confirms {
            true => variables(&config.sync_variables, &mut analysed)?,
            false => Variables::default(),
        };
        let lab = Lab { workload, install, folder: &folder.path };
        let outcome = &analysed.outcome;
        let listed = ListedLock::list(&outcome.inferred, &mut analysed.symbols.with(&analysed.places));
        folder.keep_json("locks.json", &listed);
        if !*quiet {
            lines(&listed).iter().for_each(|line| eprintln!("pmvet: {line}"));
            without_effect(&outcome.unmatched).iter().for_each(|line| eprintln!("pmvet: {line}"));
        }
        let sources = reporting::sources();
        let predicted = |scan: &mut RaceScan| {
            lockset::findings::findings(&scan.outcome, &mut scan.symbols.with(&scan.places), &sources)
        };
        let scans = self.earlier.iter_mut().chain([&mut analysed]);
        let mut findings = lockset::recordings::join(scans.map(predicted).collect());
        let outcome = &analysed.outcome;
        let mut stacks = analysed.symbols.with(&analysed.places);
        let groups = lockset::findings::held_locks(&outcome.held, &mut stacks, &sources);
        let files = outcome.held.iter().map(|lock| lock.word.file);
        let paths: HashMap<_, _> = files.map(|file| (file, analysed.symbols.path(file))).collect();
        let traced = Duration::from_secs_f64(info.traced_seconds.unwrap_or_default());
        let mut restarts =
            Restarts { lab, recover: self.confirm.recover.as_deref().map(shell), traced, most_time: None };
        let mut confirmed = None;
        let mut locks = LockFindings::default();
        let since = Instant::now();
        let mut lock_time = Duration::ZERO;
        if confirms && !shutdown::is_over() {
            if let Some(durable) = &mut self.durable
                && let Err(exit) = durable.find_questions(lab, folder)?
            {
                return Err(NoReport::Exit(exit));
            }
            let plan = self.durable.as_ref().map(DurableSettings::plan);
            let contents_file = folder.file(durable::CONTENTS);
            let compared = |plan| -> Result<_, Error> {
                let operations = durable::kept_lines(folder)?;
                Ok(ComparedContents { plan, operations, journal: &contents_file })
            };
            let races = analysed.outcome.races.iter();
            let predicted: Vec<_> = races.map(|race| (race.store.site, race.load.site)).collect();
            let attempts = attempts(&predicted, &analysed.shared, &mut analysed.symbols.with(&analysed.places));
            let confirm = Confirmation {
                lab,
                wanted: &wanted(&self.confirm, self.known.clone()),
                traced,
                before: started.elapsed(),
                predicted: !analysed.outcome.races.is_empty(),
                forces: !attempts.is_empty(),
                threads: analysed.threads,
                stores: analysed.stores,
                recordings: *recordings,
                variables: &variables,
                contents: plan.as_ref().map(compared).transpose()?,
            };
            let symbols = std::mem::take(&mut analysed.symbols);
            restarts.most_time = Some(confirm.restarts_time());
            let crashes = groups.iter().flatten().map(|(lock, _)| lock.crash_at).collect();
            let prove = || {
                let mut confirming = match confirm.begin(symbols, crashes)? {
                    Ok(confirming) => confirming,
                    Err(why) => return Ok(Err(why)),
                };
                locks = locks::find(groups, &restarts, &paths, &mut |lock| confirming.held_lock(lock))?;
                lock_time = since.elapsed();
                confirming.finish(attempts).map(Ok)
            };
            // Predictions are reported even if confirming fails, for example because the disk is full.
            match prove().map_err(|error: LabError| Error::from(error)) {
                Ok(Ok(found)) => confirmed = Some(found),
                Ok(Err(NotCompared::Indistinct(why))) => return Err(NoReport::Exit(durable::indistinct(why))),
                Ok(Err(NotCompared::Incomparable(why))) => return Err(NoReport::Exit(durable::incomparable(why))),
                Err(error) if error.exit() == Exit::Internal => drop(folder.kept(Err(error))),
                Err(error) => return Err(error.into()),
            }
        } else {
            locks = locks::find(groups, &restarts, &paths, &mut |_| Ok(false))?;
            lock_time = since.elapsed();
        }
        let mut phases = vec![Phase { name: "locks in PM".into(), seconds: lock_time.as_secs_f64() }];
        if let Some(found) = &mut confirmed {
            if let Some((recovery, usual)) = found.judged_by.take() {
                (info.recover, info.oracle) = (texts(&recovery.command), recovery.oracle.as_deref().map(texts));
                (info.usual, info.timeout) = (Some(usual), Some(recovery.timeout));
                info.durable = recovery.promised.as_ref().map(|promised| durable::describe(&promised.judge));
            }
            findings = merge::merge(findings, found);
            let covered = std::mem::take(&mut found.covered);
            self.explored = self.known.as_ref().map(|_| Explored { runs: found.runs, covered });
            findings.append(&mut found.sync);
            phases.append(&mut found.phases);
            let schedules = std::mem::take(&mut found.schedules);
            folder.keep_json(Schedules::FILE, &Schedules { setup: self.setup.clone(), schedules });
        }
        findings.append(&mut locks.findings);
        let outcome = &analysed.outcome;
        let mut coverage = Coverage::default();
        if *recordings > 1 && !confirms {
            coverage.count("recordings", u64::from(*recordings), None);
        }
        coverage.count("events", outcome.stats.events, None);
        coverage.count("loads of PM", outcome.stats.loads, None);
        coverage.count("inferred locks", listed.len() as u64, None);
        let held = outcome.held.iter().filter(|lock| !lock.is_spare).count();
        coverage.count("locks in PM", (held - locks.unknown) as u64, Some(held as u64));
        if outcome.stats.refused > 0 {
            coverage.not_covered.push(format!("{} accesses beyond the memory limit", outcome.stats.refused));
        }
        if outcome.stats.checked_unseen > 0 {
            coverage.not_covered.push(format!(
                "whether readers compare versions in volatile memory, which protect what {} instructions store",
                outcome.stats.checked_unseen
            ));
        }
        if outcome.stats.lock_free > 0 && confirmed.is_none() {
            coverage.not_covered.push(format!(
                "races of what {} lock-free instructions store, unless the run showed them (--confirm, --lock-free)",
                outcome.stats.lock_free
            ));
        }
        match &confirmed {
            Some(confirmed) => {
                merge::cover(confirmed, &mut coverage);
                if let Some(seen) = &confirmed.operations {
                    durable::count(seen, &mut coverage);
                    durable::note(seen, &mut coverage);
                }
            }
            None if analysed.threads < 2 => coverage.not_covered.push("races between threads: only one ran".into()),
            None => {
                if !config.sync_variables.is_empty() {
                    coverage.not_covered.push("declared synchronisation variables, which --confirm tries".into());
                }
                let missing = "whether recovery copes with a race: predicted races are not confirmed (--confirm)";
                coverage.not_covered.push(missing.into());
            }
        }
        budget::note(&mut coverage);
        let confirmed_all = confirmed.is_some() == confirms;
        Ok(EngineReport {
            findings,
            witnesses: confirmed.map(|c| c.witnesses).unwrap_or_default(),
            coverage,
            tree: None,
            recovery_tree: None,
            phases,
            complete: outcome.stats.refused == 0 && confirmed_all && !shutdown::is_over(),
            least: Exit::Ok,
        })
    }
}

/// What the command line wants of `--confirm`.
fn wanted(arguments: &cli::Confirm, known: Option<Covered>) -> Wanted {
    Wanted {
        budget: arguments.budget,
        rounds: arguments.rounds,
        until_finding: arguments.until_finding,
        news_beyond: known,
        delay_injection: arguments.delay_injection,
        recover: arguments.recover.clone(),
        oracle: arguments.oracle.clone(),
        recover_timeout: arguments.recover_timeout,
        jobs: arguments.jobs.map(usize::from),
    }
}

/// Resolves declared variables. An unknown name is an error, since no run could change that.
fn variables(declared: &[Declared], analysed: &mut RaceScan) -> Result<Variables, Error> {
    let named = declared.iter().any(|declared| declared.variable.is_some());
    let types = if named { analysed.symbols.types() } else { Default::default() };
    let all =
        declared.iter().map(|declared| declared.resolve(&types)).collect::<Result<_, _>>().map_err(Error::Usage)?;
    Ok(Variables { all, types, updates: std::mem::take(&mut analysed.updates) })
}

/// What the configuration says about locks, and the defaults.
fn configured(config: &config::RaceConfig) -> LocksetOptions {
    LocksetOptions { deny: config.deny_lock.clone(), declare: config.declare_lock.clone(), ..LocksetOptions::default() }
}

fn options(arguments: &cli::Race, config: &config::RaceConfig) -> LocksetOptions {
    let mut options = LocksetOptions::default();
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

/// The lines to print about inferred locks. `locks.json` lists them all.
fn lines(locks: &[ListedLock]) -> Vec<String> {
    const SHOWN: usize = 8;
    let mut lines: Vec<String> = locks.iter().take(SHOWN).map(ListedLock::to_string).collect();
    if locks.len() > SHOWN {
        lines.push(format!("and {} more inferred locks, listed in locks.json", locks.len() - SHOWN));
    }
    lines
}

/// Warnings about `deny-lock` and `declare-lock` entries that changed nothing.
fn without_effect(unmatched: &Unmatched) -> Vec<String> {
    let told = |what: &str, functions: &[String]| -> Vec<String> {
        let line = |function: &String| {
            format!(
                "{what} `{function}` changed nothing: no atomic operation that may take a lock was seen in a function of this name. \
                 It is compared with whole names of functions as reports show them; check the spelling, or leave it out"
            )
        };
        functions.iter().map(line).collect()
    };
    let sync = unmatched.sync.iter().map(|function| {
        format!(
            "the function `{function}` of a [[sync]] entry changed nothing: it took no lock in this run and gave none back. Its name has \
             to be the one that the linker knows (see nm), and it must not be inlined; or the run did not come to it"
        )
    });
    [told("deny-lock", &unmatched.deny), told("declare-lock", &unmatched.declare), sync.collect()].concat()
}
