//! The fuzzing campaign: LibAFL's corpus, scheduler, mutators and loop around test cases with images.

use std::cell::RefCell;
use std::io;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Once;

use libafl::corpus::{Corpus, InMemoryCorpus};
use libafl::events::SimpleEventManager;
use libafl::feedbacks::CrashFeedback;
use libafl::monitors::NopMonitor;
use libafl::mutators::{HavocScheduledMutator, Tokens, havoc_mutations, tokens_mutations};
use libafl::schedulers::ProbabilitySamplingScheduler;
use libafl::schedulers::probabilistic_sampling::ProbabilityMetadata;
use libafl::stages::{RetryCountRestartHelper, StdMutationalStage};
use libafl::state::{HasCorpus, HasMaxSize, StdState};
use libafl::{Error as AflError, Evaluator, Fuzzer, HasMetadata, StdFuzzer};
use libafl_bolts::rands::StdRand;
use libafl_bolts::serdeany::RegistryBuilder;
use libafl_bolts::tuples::{Merge, tuple_list};
use pmvet_target::forkserver::ForkedEnd;

use super::campaign_state::CampaignState;
use super::case::Case;
use super::mutators::{CaseMutator, Records};
use super::paths::Favour;
use super::runner::{RunError, Runner};
use super::stages::{CaseExecutor, Elsewhere, Growth, PathFeedback, Weight, Worth};
use super::store::ImageStore;
use crate::operations::Operations;

/// How test cases are made.
#[derive(Debug, Clone)]
pub struct FuzzSettings {
    /// Seeds the random choices.
    pub seed: u64,
    /// Inputs to start from.
    pub seeds: Vec<Vec<u8>>,
    /// Cases of an earlier campaign.
    pub known: Vec<Case>,
    /// Operations that inputs are made of. Nothing: inputs are mutated as bytes.
    pub operations: Option<Operations>,
    /// Words to put into inputs, from the binary or a dictionary.
    pub tokens: Vec<Vec<u8>>,
    /// Crash images made from a case that takes a new PM path.
    pub crashes: u64,
    /// Percentage of crash images that crash anywhere rather than before a fence.
    pub anywhere: usize,
    /// No input gets longer than this.
    pub longest: usize,
}

/// A case that failed.
#[derive(Debug, Clone)]
pub struct FailedCase {
    /// The input, and the image that it failed on.
    pub case: Case,
    /// How the run ended in the fork server; elsewhere the case may end differently.
    pub end: ForkedEnd,
}

/// What a campaign has done so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct CampaignStats {
    /// Test cases that were run, repetitions included.
    pub runs: u64,
    /// Test cases that were kept.
    pub cases: usize,
    /// Images in the store, those of earlier campaigns included.
    pub images: usize,
    /// New images of this campaign that a crash left.
    pub crash_images: usize,
    /// Different PM paths of the cases that were kept.
    pub paths: usize,
    /// Transitions between operations on PM, in all runs.
    pub transitions: usize,
    /// Branches that were taken, in all runs.
    pub branches: usize,
    /// Failures that differ in how they end or in their PM path.
    pub failures: usize,
    /// Cases that were run again.
    pub repeated: u64,
    /// Repeated cases that did the same again.
    pub stable: u64,
    /// Runs that were cut short where their input ended.
    pub cut: u64,
    /// Processes that runs left behind.
    pub strays: u64,
    /// Size of the image store on disk.
    pub bytes: u64,
    /// Whether runs start from an open pool.
    pub short: bool,
}

/// Observer of a campaign.
pub trait CampaignWatcher {
    /// A case is kept: it adds as much as `favour` says.
    fn kept(&mut self, case: &Case, favour: Favour) -> io::Result<()>;
    /// A case on a new crash image is about to run; it is kept only if it does anything new.
    fn crashed(&mut self, case: &Case);
    /// A case failed in a way that is new. Its image is in the store.
    fn failed(&mut self, failure: &FailedCase, store: &mut ImageStore) -> io::Result<()>;
    /// Cases that other campaigns have found since, with their images in the store.
    fn arrived(&mut self, store: &mut ImageStore) -> io::Result<Vec<Case>>;
    /// Called often. False ends the campaign.
    fn goes_on(&mut self, stats: &CampaignStats, store: &mut ImageStore) -> bool;
}

/// Why a campaign cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum FuzzError {
    /// A test case could not be run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The image store, or the watcher's files, could not be read or written.
    #[error("cannot keep the corpus: {0}")]
    Corpus(#[source] io::Error),
    /// LibAFL gave up, as when no seed runs to its end.
    #[error("LibAFL: {0}")]
    Afl(String),
}

pub(super) type SharedState<'a> = Rc<RefCell<CampaignState<'a>>>;
/// Upper bound of mutants per turn of a case. Not much smaller, since the case's image has to be opened for them.
const MUTANTS: usize = 192;

type FuzzerState = StdState<InMemoryCorpus<Case>, Case, StdRand, InMemoryCorpus<Case>>;

/// Runs until the watcher ends it. The store must have its root.
pub fn run(
    runner: Runner,
    store: &mut ImageStore,
    watcher: &mut dyn CampaignWatcher,
    settings: FuzzSettings,
) -> Result<CampaignStats, FuzzError> {
    let root = store.root().ok_or(FuzzError::Corpus(io::ErrorKind::NotFound.into()))?;
    let mut first: Vec<Case> = settings.known.clone();
    first.extend(settings.seeds.iter().map(|input| Case { image: root, input: input.clone() }));
    let (seed, longest) = (settings.seed, settings.longest);
    let operations = settings.operations.clone();
    let tokens = settings.tokens.clone();
    let world = Rc::new(RefCell::new(CampaignState::new(runner, store, watcher, settings)));
    let result = fuzz(&world, first, seed, longest, operations, tokens);
    let mut world = world.borrow_mut();
    if let Some(error) = world.error() {
        return Err(error);
    }
    if !world.is_over() && !pmvet_target::shutdown::is_over() {
        result.map_err(|e| FuzzError::Afl(e.to_string()))?;
    }
    Ok(world.stats())
}

fn fuzz(
    world: &SharedState<'_>,
    first: Vec<Case>,
    seed: u64,
    longest: usize,
    operations: Option<Operations>,
    tokens: Vec<Vec<u8>>,
) -> Result<(), AflError> {
    register();
    let mut feedback = PathFeedback::new(world);
    let mut objective = CrashFeedback::new();
    let corpora = (InMemoryCorpus::new(), InMemoryCorpus::new());
    let mut state: FuzzerState =
        StdState::new(StdRand::with_seed(seed), corpora.0, corpora.1, &mut feedback, &mut objective)?;
    state.set_max_size(longest);
    if !tokens.is_empty() {
        state.add_metadata(Tokens::from(tokens));
    }
    let scheduler = ProbabilitySamplingScheduler::<Worth>::new();
    let mut fuzzer = StdFuzzer::new(scheduler, feedback, objective);
    let mut manager = SimpleEventManager::new(NopMonitor::new());
    let mut executor = CaseExecutor::new(world);
    let mutations = havoc_mutations().merge(tokens_mutations()).merge(tuple_list!(Records));
    let bytes = HavocScheduledMutator::with_max_stack_pow(mutations, 5);
    let mutator = CaseMutator::new(world, operations, bytes, longest);
    let iterations = NonZeroUsize::new(MUTANTS).unwrap_or(NonZeroUsize::MIN);
    let mut stages = tuple_list!(
        Growth::of_others(world),
        Growth::of_own(world),
        Elsewhere::new(world),
        StdMutationalStage::with_max_iterations(mutator, iterations),
    );
    for case in first {
        // Seeds are kept even if they add nothing, so that there is something to start with.
        if fuzzer.evaluate_input(&mut state, &mut executor, &mut manager, &case)?.1.is_none()
            && state.corpus().count() == 0
        {
            let _ = fuzzer.add_input(&mut state, &mut executor, &mut manager, case);
        }
    }
    if state.corpus().count() == 0 {
        // Seeds on which the target fails are findings, but cannot be mutated further.
        let failed = world.borrow().has_failed();
        return if failed { Ok(()) } else { Err(AflError::empty("no seed runs to its end")) };
    }
    loop {
        fuzzer.fuzz_one(&mut stages, &mut executor, &mut state, &mut manager)?;
    }
}

/// LibAFL must know the types that it keeps with cases and state, even if they are never written to a file.
fn register() {
    static ONCE: Once = Once::new();
    // SAFETY: runs once, and before anything reads the registry.
    ONCE.call_once(|| unsafe {
        RegistryBuilder::register::<Tokens>();
        RegistryBuilder::register::<Weight>();
        RegistryBuilder::register::<ProbabilityMetadata>();
        RegistryBuilder::register::<RetryCountRestartHelper>();
    });
}
