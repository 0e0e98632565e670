//! The fuzzing campaign: LibAFL's corpus, scheduler, mutators and loop around test cases with images.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Once;

use libafl::corpus::{Corpus, CorpusId, InMemoryCorpus, Testcase};
use libafl::events::SimpleEventManager;
use libafl::executors::{Executor, ExitKind, HasObservers};
use libafl::feedbacks::{CrashFeedback, Feedback, StateInitializer};
use libafl::monitors::NopMonitor;
use libafl::mutators::{HavocScheduledMutator, MutationResult, Mutator, Tokens, havoc_mutations, tokens_mutations};
use libafl::schedulers::probabilistic_sampling::ProbabilityMetadata;
use libafl::schedulers::{ProbabilitySamplingScheduler, TestcaseScore};
use libafl::stages::{Restartable, RetryCountRestartHelper, Stage, StdMutationalStage};
use libafl::state::{HasCorpus, HasExecutions, HasMaxSize, HasRand, StdState};
use libafl::{Error as AflError, Evaluator, Fuzzer, HasMetadata, StdFuzzer};
use libafl_bolts::rands::{Rand, StdRand};
use libafl_bolts::serdeany::RegistryBuilder;
use libafl_bolts::tuples::{Merge, RefIndexable, tuple_list};
use libafl_bolts::{Named, impl_serdeany};
use pmvet_target::forkserver::{End, ForkError, Judge};
use pmvet_target::launch::Exit;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::case::Case;
use super::content::{Content, ImageId};
use super::cuts::{Cuts, Rest};
use super::operations::Operations;
use super::paths::{Favour, Seen};
use super::runner::{Order, Outcome, RunError, Runner};
use super::store::{Origin, Store};

/// How test cases are made.
#[derive(Debug, Clone)]
pub struct Settings {
    pub seed: u64,
    /// Inputs to start from.
    pub seeds: Vec<Vec<u8>>,
    /// Cases of an earlier campaign.
    pub known: Vec<Case>,
    pub operations: Option<Operations>,
    pub tokens: Vec<Vec<u8>>,
    /// Crash images made from a case that takes a new PM path.
    pub crashes: u64,
    /// Of a hundred crash images, how many crash anywhere rather than before a fence.
    pub anywhere: usize,
    /// No input gets longer than this.
    pub longest: usize,
}

/// A case that failed.
#[derive(Debug, Clone)]
pub struct Failure {
    pub case: Case,
    pub end: End,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Stats {
    pub runs: u64,
    pub cases: usize,
    pub images: usize,
    pub crash_images: usize,
    pub paths: usize,
    pub path_counts: usize,
    pub branches: usize,
    pub failures: usize,
    /// Cases that were run again, and those that did the same again.
    pub repeated: u64,
    pub stable: u64,
    /// Runs that were cut short where their input ended.
    pub cut: u64,
    /// Processes that runs left behind.
    pub strays: u64,
    pub bytes: u64,
    /// Whether runs start from an open pool.
    pub short: bool,
}

/// Who is told what a campaign finds.
pub trait Watcher {
    /// A case is kept, with the content of its image.
    fn kept(&mut self, case: &Case, favour: Favour, store: &mut Store) -> io::Result<()>;
    fn failed(&mut self, failure: &Failure, store: &mut Store) -> io::Result<()>;
    /// Cases that others have found in the meantime, with their images in the store.
    fn arrived(&mut self, store: &mut Store) -> io::Result<Vec<Case>>;
    /// Called often. False ends the campaign.
    fn goes_on(&mut self, stats: &Stats) -> bool;
}

#[derive(Debug, thiserror::Error)]
pub enum FuzzError {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("cannot keep the corpus: {0}")]
    Corpus(#[source] io::Error),
    #[error("LibAFL: {0}")]
    Afl(String),
}

/// A case that has just been kept.
#[derive(Debug, Clone)]
struct Fresh {
    case: Case,
    favour: Favour,
    /// A hash of what it counted, if it ran to its end.
    counts: Option<u64>,
}

/// What executor, feedback and stages share.
struct World<'a> {
    runner: Runner,
    store: &'a mut Store,
    watcher: &'a mut dyn Watcher,
    settings: Settings,
    seen: Seen,
    cuts: Cuts,
    /// What the last run counted, if it ran to its end, and what that is worth; nothing if it failed.
    last: Option<(Option<u64>, Favour)>,
    fresh: Vec<Fresh>,
    /// By what they did, and whether they hung.
    failures: HashMap<u64, bool>,
    stats: Stats,
    /// The next run is on an image that may not be of further use.
    once: bool,
    /// The watcher has had enough.
    over: bool,
    /// What ended the campaign.
    error: Option<FuzzError>,
}

/// No more mutants than this are made of a case before the next has its turn: its image has to be opened for them.
const MUTANTS: usize = 384;

type Shared<'a> = Rc<RefCell<World<'a>>>;
type State = StdState<InMemoryCorpus<Case>, Case, StdRand, InMemoryCorpus<Case>>;

/// Runs until the watcher has had enough. The store has its root.
pub fn run(
    runner: Runner,
    store: &mut Store,
    watcher: &mut dyn Watcher,
    settings: Settings,
) -> Result<Stats, FuzzError> {
    let root = store.root().ok_or(FuzzError::Corpus(io::ErrorKind::NotFound.into()))?;
    let mut first: Vec<Case> = settings.known.clone();
    first.extend(settings.seeds.iter().map(|input| Case { image: root, input: input.clone() }));
    let (seed, longest) = (settings.seed, settings.longest);
    let operations = settings.operations.clone();
    let tokens = settings.tokens.clone();
    let world = Rc::new(RefCell::new(World {
        runner,
        store,
        watcher,
        settings,
        seen: Seen::default(),
        cuts: Cuts::default(),
        last: None,
        fresh: Vec::new(),
        failures: HashMap::new(),
        stats: Stats::default(),
        once: false,
        over: false,
        error: None,
    }));
    let result = fuzz(&world, first, seed, longest, operations, tokens);
    let mut world = world.borrow_mut();
    if let Some(error) = world.error.take() {
        return Err(error);
    }
    if !world.over && pmvet_target::launch::stopped_by().is_none() {
        result.map_err(|e| FuzzError::Afl(e.to_string()))?;
    }
    Ok(world.stats())
}

fn fuzz(
    world: &Shared<'_>,
    first: Vec<Case>,
    seed: u64,
    longest: usize,
    operations: Option<Operations>,
    tokens: Vec<Vec<u8>>,
) -> Result<(), AflError> {
    register();
    let mut feedback = PathFeedback { world: Rc::clone(world) };
    let mut objective = CrashFeedback::new();
    let corpora = (InMemoryCorpus::new(), InMemoryCorpus::new());
    let mut state: State =
        StdState::new(StdRand::with_seed(seed), corpora.0, corpora.1, &mut feedback, &mut objective)?;
    state.set_max_size(longest);
    if !tokens.is_empty() {
        state.add_metadata(Tokens::from(tokens));
    }
    let scheduler = ProbabilitySamplingScheduler::<Worth>::new();
    let mut fuzzer = StdFuzzer::new(scheduler, feedback, objective);
    let mut manager = SimpleEventManager::new(NopMonitor::new());
    let mut executor = CaseExecutor { world: Rc::clone(world), observers: () };
    let bytes = HavocScheduledMutator::with_max_stack_pow(havoc_mutations().merge(tokens_mutations()), 5);
    let mutator = CaseMutator { operations, bytes, longest };
    let iterations = NonZeroUsize::new(MUTANTS).unwrap_or(NonZeroUsize::MIN);
    let mut stages = tuple_list!(
        Growth { world: Rc::clone(world), arrivals: true, phantom: PhantomData },
        Growth { world: Rc::clone(world), arrivals: false, phantom: PhantomData },
        StdMutationalStage::with_max_iterations(mutator, iterations),
    );
    for case in first {
        // Seeds are kept whatever they add, so that there is something to start with.
        if fuzzer.evaluate_input(&mut state, &mut executor, &mut manager, &case)?.1.is_none()
            && state.corpus().count() == 0
        {
            let _ = fuzzer.add_input(&mut state, &mut executor, &mut manager, case);
        }
    }
    if state.corpus().count() == 0 {
        // Seeds on which the target fails are findings, but nothing to go on with.
        let failed = !world.borrow().failures.is_empty();
        return if failed { Ok(()) } else { Err(AflError::empty("no seed runs to its end")) };
    }
    loop {
        fuzzer.fuzz_one(&mut stages, &mut executor, &mut state, &mut manager)?;
    }
}

/// LibAFL wants to know the types that it keeps with cases and state, even if nobody ever writes them to a file.
fn register() {
    static ONCE: Once = Once::new();
    // SAFETY: once, and before anybody looks at the registry.
    ONCE.call_once(|| unsafe {
        RegistryBuilder::register::<Tokens>();
        RegistryBuilder::register::<Weight>();
        RegistryBuilder::register::<ProbabilityMetadata>();
        RegistryBuilder::register::<RetryCountRestartHelper>();
    });
}

impl World<'_> {
    fn stats(&self) -> Stats {
        Stats {
            images: self.store.len(),
            paths: self.seen.paths(),
            path_counts: self.seen.path_counts(),
            branches: self.seen.branches(),
            failures: self.failures.len(),
            bytes: self.store.bytes(),
            short: self.runner.is_short(),
            ..self.stats
        }
    }

    fn content(&mut self, image: ImageId) -> Result<std::sync::Arc<Content>, FuzzError> {
        self.store.get(image).map_err(FuzzError::Corpus)
    }

    fn run_case(
        &mut self,
        case: &Case,
        stop: (u64, u64),
        keep: bool,
        judge: Option<Judge<'_>>,
    ) -> Result<Outcome, FuzzError> {
        let content = self.content(case.image)?;
        let order = Order {
            image: case.image,
            content: &content,
            input: &case.input,
            stop,
            keep,
            once: std::mem::take(&mut self.once),
        };
        let outcome = self.runner.run(&order, judge)?;
        self.stats.runs += 1;
        self.stats.cut += u64::from(outcome.cut);
        self.stats.strays += outcome.strays as u64;
        Ok(outcome)
    }

    /// Runs a case and takes notice of what it did.
    fn evaluate(&mut self, case: &Case) -> Result<ExitKind, FuzzError> {
        let mut cuts = std::mem::take(&mut self.cuts);
        let mut rest = Rest::Wanted;
        let outcome = self.run_case(
            case,
            (0, 0),
            false,
            Some(&mut |maps| {
                rest = cuts.at_end(&maps.copy());
                !matches!(rest, Rest::Cut(_))
            }),
        );
        self.cuts = cuts;
        let outcome = outcome?;
        if matches!(outcome.end, End::Exit(Exit::Status(_))) {
            self.last = Some(match rest {
                Rest::Cut(favour) => (None, favour),
                _ => (Some(xxh3_64(&outcome.counts)), self.seen.add(&outcome.counts)),
            });
            if let (Rest::Sampled, Some((_, favour))) = (rest, self.last) {
                self.cuts.learn(favour);
            }
            return Ok(ExitKind::Ok);
        }
        self.last = None;
        // The same death on the same PM path is the same failure, as far as can be told here.
        // Most that take too long only do more than others.
        let (hang, most) = match outcome.end {
            End::Exit(_) => (false, 256),
            End::Timeout | End::Runaway => (true, 16),
        };
        let paths: Vec<u8> = outcome.counts[..pmvet_events::stage::MAP].iter().map(|&c| u8::from(c != 0)).collect();
        let key = xxh3_64(&paths) ^ xxh3_64(format!("{:?}", outcome.end).as_bytes());
        if self.failures.values().filter(|&&h| h == hang).count() < most && self.failures.insert(key, hang).is_none() {
            let failure = Failure { case: case.clone(), end: outcome.end };
            self.watcher.failed(&failure, self.store).map_err(FuzzError::Corpus)?;
        }
        Ok(ExitKind::Crash)
    }

    /// Keeps the case that ran last.
    fn keep(&mut self, case: &Case) -> Result<Favour, FuzzError> {
        let (counts, favour) = self.last.unwrap_or_default();
        self.stats.cases += 1;
        self.watcher.kept(case, favour, self.store).map_err(FuzzError::Corpus)?;
        self.fresh.push(Fresh { case: case.clone(), favour, counts });
        Ok(favour)
    }

    /// The case that is given images next: the oldest of those that add most.
    fn next_fresh(&mut self) -> Option<Fresh> {
        let best = self.fresh.iter().map(|fresh| fresh.favour).max()?;
        let at = self.fresh.iter().position(|fresh| fresh.favour == best)?;
        Some(self.fresh.remove(at))
    }

    /// Makes images from a case that has just been kept: the one it leaves, and those of crashes on the way. Returns cases to
    /// try on them.
    fn grow(&mut self, fresh: &Fresh, below: &mut dyn FnMut(usize) -> usize) -> Result<Vec<Case>, FuzzError> {
        let case = &fresh.case;
        let outcome = self.run_case(case, (0, 0), true, None)?;
        if let Some(counts) = fresh.counts {
            self.stats.repeated += 1;
            self.stats.stable += u64::from(xxh3_64(&outcome.counts) == counts);
        }
        self.seen.add(&outcome.counts);
        let mut cases = Vec::new();
        let (operations, fences) = outcome.operations;
        self.add_image(outcome, case, (0, 0), &mut cases, below)?;
        let many = match fresh.favour {
            Favour::Path => self.settings.crashes,
            Favour::Count => self.settings.crashes.div_ceil(4),
            Favour::Branch | Favour::None => 1,
        };
        for _ in 0..many.min(operations) {
            let stop = if below(100) < self.settings.anywhere || fences == 0 {
                (1 + below(operations as usize) as u64, 0)
            } else {
                (0, 1 + below(fences as usize) as u64)
            };
            let outcome = self.run_case(case, stop, true, None)?;
            if outcome.stopped {
                self.add_image(outcome, case, stop, &mut cases, below)?;
            }
        }
        Ok(cases)
    }

    fn add_image(
        &mut self,
        outcome: Outcome,
        case: &Case,
        stop: (u64, u64),
        cases: &mut Vec<Case>,
        below: &mut dyn FnMut(usize) -> usize,
    ) -> Result<(), FuzzError> {
        let Some(content) = outcome.content else { return Ok(()) };
        let origin = Origin { parent: Some(case.image), input: case.input.clone(), stop };
        let crash = origin.is_crash();
        let (image, new) = self.store.add(content, origin).map_err(FuzzError::Corpus)?;
        if new {
            self.stats.crash_images += usize::from(crash);
            // On what a crash left, what the crash interrupted is tried again, or something plain.
            let seeds = &self.settings.seeds;
            let seed = seeds.get(below(seeds.len().max(1))).filter(|_| below(2) == 0);
            cases.push(Case { image, input: seed.unwrap_or(&case.input).clone() });
        }
        Ok(())
    }

    /// Between runs: whether there is to be another.
    fn look(&mut self) -> Result<(), AflError> {
        let stats = self.stats();
        self.over = self.over || !self.watcher.goes_on(&stats);
        if self.over { Err(AflError::shutting_down()) } else { Ok(()) }
    }

    /// Remembers what went wrong. LibAFL only has to stop.
    fn give_up(&mut self, error: FuzzError) -> AflError {
        let interrupted = matches!(error, FuzzError::Run(RunError::Fork(ForkError::Interrupted)));
        if !interrupted && self.error.is_none() {
            self.error = Some(error);
        }
        AflError::shutting_down()
    }
}

struct CaseExecutor<'a> {
    world: Shared<'a>,
    observers: (),
}

impl<EM, S: HasExecutions, Z> Executor<EM, Case, S, Z> for CaseExecutor<'_> {
    fn run_target(&mut self, _: &mut Z, state: &mut S, _: &mut EM, case: &Case) -> Result<ExitKind, AflError> {
        *state.executions_mut() += 1;
        let mut world = self.world.borrow_mut();
        // Looking takes longer than the shortest runs.
        if world.stats.runs.is_multiple_of(8) {
            world.look()?;
        }
        world.evaluate(case).map_err(|e| world.give_up(e))
    }
}

impl HasObservers for CaseExecutor<'_> {
    type Observers = ();

    fn observers(&self) -> RefIndexable<&(), ()> {
        RefIndexable::from(&self.observers)
    }

    fn observers_mut(&mut self) -> RefIndexable<&mut (), ()> {
        RefIndexable::from(&mut self.observers)
    }
}

/// How much a kept case is worth, as the scheduler sees it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Weight(f64);
impl_serdeany!(Weight);

/// A case is chosen in proportion to its weight.
#[derive(Debug)]
struct Worth;

impl<S> TestcaseScore<Case, S> for Worth {
    fn compute(_: &S, entry: &mut Testcase<Case>) -> Result<f64, AflError> {
        Ok(entry.metadata_map().get::<Weight>().map_or(1.0, |weight| weight.0))
    }
}

/// Keeps what takes a new PM path, or a new branch.
struct PathFeedback<'a> {
    world: Shared<'a>,
}

impl Named for PathFeedback<'_> {
    fn name(&self) -> &Cow<'static, str> {
        static NAME: Cow<'static, str> = Cow::Borrowed("pm-paths");
        &NAME
    }
}

impl<S> StateInitializer<S> for PathFeedback<'_> {}

impl<EM, OT, S> Feedback<EM, Case, OT, S> for PathFeedback<'_> {
    fn is_interesting(&mut self, _: &mut S, _: &mut EM, _: &Case, _: &OT, _: &ExitKind) -> Result<bool, AflError> {
        Ok(self.world.borrow().last.is_some_and(|(_, favour)| favour > Favour::None))
    }

    fn append_metadata(
        &mut self,
        _: &mut S,
        _: &mut EM,
        _: &OT,
        testcase: &mut Testcase<Case>,
    ) -> Result<(), AflError> {
        let Some(case) = testcase.input().clone() else { return Ok(()) };
        let mut world = self.world.borrow_mut();
        let favour = world.keep(&case).map_err(|e| world.give_up(e))?;
        let weight = match favour {
            Favour::Path => 16.0,
            Favour::Count => 4.0,
            Favour::Branch | Favour::None => 1.0,
        };
        testcase.add_metadata(Weight(weight));
        Ok(())
    }
}

/// Gives images to a case that was kept, and tries inputs on them; or tries what others have found.
struct Growth<'a, E, EM, S, Z> {
    world: Shared<'a>,
    arrivals: bool,
    phantom: PhantomData<(E, EM, S, Z)>,
}

impl<E, EM, S, Z> Stage<E, EM, S, Z> for Growth<'_, E, EM, S, Z>
where
    S: HasRand,
    Z: Evaluator<E, EM, Case, S>,
{
    fn perform(&mut self, fuzzer: &mut Z, executor: &mut E, state: &mut S, manager: &mut EM) -> Result<(), AflError> {
        // One case at a time, so that mutation gets its share.
        let fresh = if self.arrivals { None } else { self.world.borrow_mut().next_fresh() };
        let cases = if self.arrivals {
            let mut world = self.world.borrow_mut();
            let World { watcher, store, .. } = &mut *world;
            let arrived = watcher.arrived(store).map_err(FuzzError::Corpus);
            arrived.map_err(|e| world.give_up(e))?
        } else {
            let Some(fresh) = fresh else { return Ok(()) };
            let mut below = |n: usize| state.rand_mut().below(NonZeroUsize::new(n).unwrap_or(NonZeroUsize::MIN));
            let mut world = self.world.borrow_mut();
            world.look()?;
            world.grow(&fresh, &mut below).map_err(|e| world.give_up(e))?
        };
        for case in cases {
            self.world.borrow_mut().once = true;
            fuzzer.evaluate_input(state, executor, manager, &case)?;
        }
        Ok(())
    }
}

impl<E, EM, S, Z> Restartable<S> for Growth<'_, E, EM, S, Z> {
    fn should_restart(&mut self, _: &mut S) -> Result<bool, AflError> {
        Ok(true)
    }

    fn clear_progress(&mut self, _: &mut S) -> Result<(), AflError> {
        Ok(())
    }
}

/// Operations if there are any, bytes now and then or else.
struct CaseMutator<M> {
    operations: Option<Operations>,
    bytes: M,
    longest: usize,
}

impl<M> Named for CaseMutator<M> {
    fn name(&self) -> &Cow<'static, str> {
        static NAME: Cow<'static, str> = Cow::Borrowed("operations-or-bytes");
        &NAME
    }
}

impl<M, S> Mutator<Case, S> for CaseMutator<M>
where
    M: Mutator<Case, S>,
    S: HasRand + HasCorpus<Case>,
{
    fn mutate(&mut self, state: &mut S, case: &mut Case) -> Result<MutationResult, AflError> {
        let mut below = |n: usize| state.rand_mut().below(NonZeroUsize::new(n).unwrap_or(NonZeroUsize::MIN));
        let Some(operations) = self.operations.as_ref().filter(|_| below(8) != 0) else {
            return self.bytes.mutate(state, case);
        };
        let other = below(usize::MAX);
        let count = state.corpus().count().max(1);
        let other = match state.corpus().get(state.corpus().nth(other % count)) {
            Ok(testcase) => testcase.borrow().input().as_ref().map(|case| case.input.clone()).unwrap_or_default(),
            Err(_) => Vec::new(),
        };
        let mut below = |n: usize| state.rand_mut().below(NonZeroUsize::new(n).unwrap_or(NonZeroUsize::MIN));
        let changed = operations.mutate(&mut case.input, &other, &mut below);
        case.input.truncate(self.longest);
        Ok(if changed { MutationResult::Mutated } else { MutationResult::Skipped })
    }

    fn post_exec(&mut self, state: &mut S, id: Option<CorpusId>) -> Result<(), AflError> {
        self.bytes.post_exec(state, id)
    }
}
