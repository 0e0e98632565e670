//! The parts for LibAFL: an executor, a feedback, stages and a mutator for test cases with images.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::time::Instant;

use libafl::corpus::{Corpus, Testcase};
use libafl::executors::{Executor, ExitKind, HasObservers};
use libafl::feedbacks::{Feedback, StateInitializer};
use libafl::schedulers::TestcaseScore;
use libafl::stages::{Restartable, Stage};
use libafl::state::{HasCorpus, HasExecutions, HasMaxSize, HasRand};
use libafl::{Error as AflError, Evaluator, HasMetadata};
use libafl_bolts::rands::Rand;
use libafl_bolts::tuples::RefIndexable;
use libafl_bolts::{Named, impl_serdeany};
use serde::{Deserialize, Serialize};

use super::campaign::SharedState;
use super::case::Case;

pub(super) struct CaseExecutor<'a> {
    world: SharedState<'a>,
    observers: (),
    /// Runs so far.
    runs: u64,
}

impl<'a> CaseExecutor<'a> {
    pub(super) fn new(world: &SharedState<'a>) -> Self {
        Self { world: Rc::clone(world), observers: (), runs: 0 }
    }
}

impl<EM, S: HasExecutions, Z> Executor<EM, Case, S, Z> for CaseExecutor<'_> {
    fn run_target(&mut self, _: &mut Z, state: &mut S, _: &mut EM, case: &Case) -> Result<ExitKind, AflError> {
        *state.executions_mut() += 1;
        let mut world = self.world.borrow_mut();
        // Asking the watcher takes longer than the shortest runs.
        if self.runs.is_multiple_of(8) {
            world.look()?;
        }
        self.runs += 1;
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
pub(super) struct Weight(f64);
impl_serdeany!(Weight);

/// Chooses cases in proportion to their weight.
#[derive(Debug)]
pub(super) struct Worth;

impl<S> TestcaseScore<Case, S> for Worth {
    fn compute(_: &S, entry: &mut Testcase<Case>) -> Result<f64, AflError> {
        Ok(entry.metadata_map().get::<Weight>().map_or(1.0, |weight| weight.0))
    }
}

/// Keeps what takes a new PM path, or a new branch.
pub(super) struct PathFeedback<'a> {
    world: SharedState<'a>,
}

impl<'a> PathFeedback<'a> {
    pub(super) fn new(world: &SharedState<'a>) -> Self {
        Self { world: Rc::clone(world) }
    }
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
        Ok(self.world.borrow().is_new())
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
        let weight = world.keep(&case).map_err(|e| world.give_up(e))?;
        testcase.add_metadata(Weight(weight));
        Ok(())
    }
}

pub(super) fn below(state: &mut impl HasRand, n: usize) -> usize {
    state.rand_mut().below(NonZeroUsize::new(n).unwrap_or(NonZeroUsize::MIN))
}

/// The input of any case that was kept.
pub(super) fn any_input(state: &mut (impl HasRand + HasCorpus<Case>)) -> Vec<u8> {
    let count = state.corpus().count().max(1);
    let at = below(state, count);
    match state.corpus().get(state.corpus().nth(at)) {
        Ok(testcase) => testcase.borrow().input().as_ref().map(|case| case.input.clone()).unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

/// Makes images from kept cases, and tries inputs on them; or tries what others have found.
pub(super) struct Growth<'a, E, EM, S, Z> {
    world: SharedState<'a>,
    arrivals: bool,
    phantom: PhantomData<(E, EM, S, Z)>,
}

impl<'a, E, EM, S, Z> Growth<'a, E, EM, S, Z>
where
    S: HasRand,
    Z: Evaluator<E, EM, Case, S>,
{
    pub(super) fn of_own(world: &SharedState<'a>) -> Self {
        Self { world: Rc::clone(world), arrivals: false, phantom: PhantomData }
    }

    pub(super) fn of_others(world: &SharedState<'a>) -> Self {
        Self { world: Rc::clone(world), arrivals: true, phantom: PhantomData }
    }

    fn try_all(
        &self,
        cases: &[Case],
        fuzzer: &mut Z,
        executor: &mut E,
        state: &mut S,
        manager: &mut EM,
    ) -> Result<(), AflError> {
        for case in cases {
            self.world.borrow_mut().once = true;
            fuzzer.evaluate_input(state, executor, manager, case)?;
        }
        Ok(())
    }
}

impl<E, EM, S, Z> Stage<E, EM, S, Z> for Growth<'_, E, EM, S, Z>
where
    S: HasRand + HasCorpus<Case> + HasMaxSize,
    Z: Evaluator<E, EM, Case, S>,
{
    fn perform(&mut self, fuzzer: &mut Z, executor: &mut E, state: &mut S, manager: &mut EM) -> Result<(), AflError> {
        if self.arrivals {
            let mut world = self.world.borrow_mut();
            let cases = world.arrived().map_err(|e| world.give_up(e))?;
            drop(world);
            return self.try_all(&cases, fuzzer, executor, state, manager);
        }
        loop {
            let mut world = self.world.borrow_mut();
            world.look()?;
            let (before, since) = (world.runs(), Instant::now());
            let fresh = if world.may_grow() { world.next_fresh() } else { None };
            let wandering = fresh.is_none();
            let grown = match fresh {
                Some(fresh) => world.grow(&fresh, &mut |n| below(state, n)),
                None if world.may_wander() => {
                    // A step leaves its image for good, so it is usually long.
                    let mut input = any_input(state);
                    for _ in 1..1usize << below(state, 4) {
                        input.extend(any_input(state));
                    }
                    input.truncate(state.max_size());
                    world.wander(input, &mut |n| below(state, n))
                }
                None => return Ok(()),
            };
            let cases = grown.map_err(|e| world.give_up(e))?;
            drop(world);
            self.try_all(&cases, fuzzer, executor, state, manager)?;
            self.world.borrow_mut().has_grown(before, since, wandering);
        }
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

/// Chooses the image for the mutants of the next stage.
pub(super) struct Elsewhere<'a, E, EM, S, Z> {
    world: SharedState<'a>,
    phantom: PhantomData<(E, EM, S, Z)>,
}

impl<'a, E, EM, S, Z> Elsewhere<'a, E, EM, S, Z> {
    pub(super) fn new(world: &SharedState<'a>) -> Self {
        Self { world: Rc::clone(world), phantom: PhantomData }
    }
}

impl<E, EM, S: HasRand, Z> Stage<E, EM, S, Z> for Elsewhere<'_, E, EM, S, Z> {
    fn perform(&mut self, _: &mut Z, _: &mut E, state: &mut S, _: &mut EM) -> Result<(), AflError> {
        self.world.borrow_mut().choose_image(&mut |n| below(state, n));
        Ok(())
    }
}

impl<E, EM, S, Z> Restartable<S> for Elsewhere<'_, E, EM, S, Z> {
    fn should_restart(&mut self, _: &mut S) -> Result<bool, AflError> {
        Ok(true)
    }

    fn clear_progress(&mut self, _: &mut S) -> Result<(), AflError> {
        Ok(())
    }
}
