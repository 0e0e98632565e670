//! All crashes of a run, several executions at a time.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

use pmvet_findings::Outcome;
use pmvet_target::crash::Patch;
use pmvet_target::sandbox::RawFrame;
use pmvet_target::shutdown::is_over;
use rustc_hash::FxHashSet;
use xxhash_rust::xxh3::Xxh3;

use super::crash;
use super::explore::{Execution, Explorer, ImageChoice, PlannedExecution};
use super::journal::{ExecutionEntry, SearchJournal};
use super::nested;
use super::reads::UncertainRead;
use super::scan::{self, Crash, ExecutionStacks};
use super::traced::{Ended, Observed, TraceFailure};
use crate::lab::ShownContent;

/// What a native run of the recovery says about an image: without instrumentation, as users would run it.
#[derive(Debug, Clone)]
pub struct NativeOutcome {
    /// How it ended, or what the oracle said.
    pub outcome: Outcome,
    /// The end of what it printed.
    pub output: String,
    /// Its stack when it failed.
    pub stack: Vec<RawFrame>,
    /// How long it took, with the oracle.
    pub seconds: f64,
    /// What the image shows, where contents are compared.
    pub shown: ShownContent,
}

/// How long an execution may take before it counts as a hang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeLimit {
    /// As long as a native run may take.
    Native,
    /// Longer, since watching a run slows it down.
    Traced,
}

/// Runs the recovery and sees what it reads.
pub trait Observe: Sync {
    /// What a worker keeps from one execution to the next.
    type Worker: Default;

    /// Nothing if pmvet was asked to stop.
    fn observe(
        &self,
        worker: &mut Self::Worker,
        crash: &Crash,
        choice: &ImageChoice,
        limit: TimeLimit,
    ) -> Result<Option<Observed>, TraceFailure>;
}

/// Runs the recovery natively. A failure counts only if it is seen there too.
pub trait ConfirmNatively: Sync {
    /// What a worker keeps from one run to the next.
    type Bench: Default;

    /// Runs it on what this crash leaves; `patches` change the crash's version. Nothing if pmvet was asked to stop.
    fn confirm(&self, bench: &mut Self::Bench, crash: &Crash, patches: &[Patch]) -> io::Result<Option<NativeOutcome>>;
}

/// Progress observer.
pub trait SearchProgress: Sync {
    /// Crashes that are done, and known so far (`of`); executions; failures among them.
    fn done(&self, crashes: usize, of: usize, executions: u64, failures: usize);
}

impl SearchProgress for () {
    fn done(&self, _crashes: usize, _of: usize, _executions: u64, _failures: usize) {}
}

/// An execution that went wrong.
#[derive(Debug, Clone)]
pub struct FailedExecution {
    /// The crash that it recovered from.
    pub crash: Arc<Crash>,
    /// The image, among those that the crash may leave.
    pub choice: ImageChoice,
    /// Loads of bytes that the crash leaves uncertain, in the order of the execution.
    pub reads: Vec<UncertainRead>,
    /// The stack of each read.
    pub stacks: Vec<Vec<RawFrame>>,
    /// What a native run on the same image did.
    pub verdict: NativeOutcome,
}

/// Explores the crashes of a run.
#[derive(Debug)]
pub struct CrashSearch<'a, O, C> {
    /// Runs the recovery and sees what it reads.
    pub observe: &'a O,
    /// Runs it natively, where it fails under observation.
    pub confirm: &'a C,
    /// How the recovery ends when nothing was injected.
    pub usual: Ended,
    /// The same, of a native run.
    pub usual_outcome: &'a Outcome,
    /// How many executions are under way at a time; at least one.
    pub workers: usize,
    /// No execution starts after this.
    pub deadline: Option<Instant>,
    /// Upper bound of executions.
    pub most: u64,
    /// Executions after one crash before doubtful choices are skipped.
    pub patience: u64,
    /// Crashes in a row: that of the workload, then those of recoveries.
    pub failures: u8,
    /// A crash is explored to its end although an execution after it has failed.
    pub keep_going: bool,
    /// Contents are compared: each execution also runs natively, which shows what the image holds.
    pub compares_contents: bool,
    /// Executions that are not in the journal are skipped: other machines have made all there are.
    pub known_only: bool,
}

/// What was done, and what was not.
#[derive(Debug, Default)]
pub struct SearchResult {
    /// Executions that were made here.
    pub executions: u64,
    /// Executions that an earlier run has made.
    pub known: u64,
    /// Executions that were watched.
    pub watched: u64,
    /// Watched executions in which the recovery, or the oracle, mapped or read PM.
    pub looked: u64,
    /// Crashes explored to their end.
    pub crashes: usize,
    /// Crashes in the recovery among them.
    pub inner_crashes: usize,
    /// Choices that were not made; each stands for at least one execution.
    pub left: usize,
    /// Crashes that were not begun.
    pub crashes_left: usize,
    /// Choices that were skipped because they are likely to show nothing new.
    pub doubtful: usize,
    /// Choices after crashes that fail anyway.
    pub abandoned: usize,
    /// Executions that depended on more than the image.
    pub diverged: u64,
    /// Failures that a native run did not show.
    pub unconfirmed: u64,
    /// Executions whose content could not be judged.
    pub not_judged: u64,
    /// Recoveries in which not all crashes could be modelled.
    pub inner_cut: u64,
    /// The most executions that one crash took.
    pub most_after_one: u64,
    /// Failures that native runs confirm, by level, moment and choice.
    pub failures: Vec<FailedExecution>,
    /// Why executions are missing in the journal, if any are.
    pub unsaved: Option<io::Error>,
}

impl SearchResult {
    /// Nothing was left out, and nothing was assumed.
    pub fn is_complete(&self) -> bool {
        self.left == 0
            && self.crashes_left == 0
            && self.doubtful == 0
            && self.abandoned == 0
            && self.diverged == 0
            && self.unconfirmed == 0
            && self.not_judged == 0
            && self.inner_cut == 0
    }
}

/// A crash under way.
struct OpenCrash {
    number: u64,
    crash: Arc<Crash>,
    explorer: Explorer,
    running: usize,
    /// Executions missing in the journal, if nothing may be executed here.
    missing: usize,
}

struct SearchState {
    waiting: VecDeque<Arc<Crash>>,
    open: Vec<OpenCrash>,
    /// Crashes with only doubtful choices left. They wait until everything else is done.
    parked: VecDeque<OpenCrash>,
    opened: u64,
    known: FxHashSet<u128>,
    running: usize,
    handed_out: u64,
    over: bool,
    journal: SearchJournal,
    done: SearchResult,
}

impl<O: Observe, C: ConfirmNatively> CrashSearch<'_, O, C> {
    /// Explores these crashes, and those of their recoveries if wanted. Executions in the journal are not repeated.
    pub fn run(
        &self,
        crashes: &[Crash],
        journal: SearchJournal,
        progress: &dyn SearchProgress,
    ) -> Result<SearchResult, TraceFailure> {
        let state = Mutex::new(SearchState {
            waiting: crashes.iter().cloned().map(Arc::new).collect(),
            open: Vec::new(),
            parked: VecDeque::new(),
            opened: 0,
            known: crashes.iter().map(|crash| crash.identity).collect(),
            running: 0,
            handed_out: 0,
            over: false,
            journal,
            done: SearchResult::default(),
        });
        let news = Condvar::new();
        let work = || {
            let result = self.work(&state, &news, progress);
            if result.is_err() {
                lock(&state).over = true;
            }
            news.notify_all();
            result
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.workers.max(1)).map(|_| scope.spawn(work)).collect();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or_else(|_| Err(io::Error::other("a worker died").into())))
                .collect::<Result<Vec<()>, TraceFailure>>()
        })?;
        let mut state = state.into_inner().unwrap_or_else(|e| e.into_inner());
        state.done.crashes_left += state.waiting.len();
        state.done.unsaved = state.journal.take_failure();
        while let Some(open) = state.open.pop() {
            state.done.left += open.explorer.left() + open.running;
            state.retire(&open);
        }
        while let Some(open) = state.parked.pop_front() {
            state.finished(&open);
        }
        // Workers finish in any order; the report must not depend on it.
        state.done.failures.sort_by_key(|failure| {
            (failure.crash.level, failure.crash.moment.before.unwrap_or(u64::MAX), failure.choice.clone())
        });
        Ok(state.done)
    }

    fn work(
        &self,
        state: &Mutex<SearchState>,
        news: &Condvar,
        progress: &dyn SearchProgress,
    ) -> Result<(), TraceFailure> {
        let (mut worker, mut bench) = (O::Worker::default(), C::Bench::default());
        let mut guard = lock(state);
        loop {
            let late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if guard.over || late || guard.handed_out >= self.most || is_over() {
                guard.over = true;
                return Ok(());
            }
            let Some((number, crash, job)) = guard.next_execution(self.patience) else {
                if guard.running == 0 {
                    return Ok(());
                }
                guard = news.wait(guard).unwrap_or_else(|e| e.into_inner());
                continue;
            };
            let known = guard.journal.get(crash.identity, &job.choice).cloned();
            if known.is_none() && self.known_only {
                guard.leave(number);
                continue;
            }
            drop(guard);
            let result = self.execute(&mut worker, &mut bench, &crash, &job, known);
            guard = lock(state);
            guard.running -= 1;
            match result {
                Ok(Some(executed)) => self.take_in(&mut guard, number, &crash, job, executed)?,
                stopped => {
                    guard.put_back(number, job);
                    guard.over = true;
                    // On shutdown, an execution fails because it was cut short.
                    return if is_over() { Ok(()) } else { stopped.map(|_| ()) };
                }
            }
            let done = &guard.done;
            let of = done.crashes + guard.open.len() + guard.parked.len() + guard.waiting.len();
            progress.done(done.crashes, of, done.executions + done.known, done.failures.len());
            news.notify_all();
        }
    }

    fn execute(
        &self,
        worker: &mut O::Worker,
        bench: &mut C::Bench,
        crash: &Arc<Crash>,
        job: &PlannedExecution,
        known: Option<ExecutionEntry>,
    ) -> Result<Option<Executed>, TraceFailure> {
        if let Some(entry) = known {
            let (observed, verdict, shown) = entry.into_parts();
            return Ok(Some(Executed { observed, verdict, shown, new: false }));
        }
        if crash.lines.is_empty() && self.failures <= 1 {
            // Nothing is uncertain, so there is no need to watch what it reads.
            let verdict = self.confirm.confirm(bench, crash, &crash.patches)?;
            let Some(verdict) = verdict else { return Ok(None) };
            let (good, shown) = (verdict.outcome == *self.usual_outcome, verdict.shown);
            let observed = Observed::unseen(if good { self.usual } else { Ended::Unseen });
            return Ok(Some(Executed { observed, verdict: (!good).then_some(verdict), shown, new: true }));
        }
        // A hang uses up its whole time limit, so a native run decides early whether it is one. It is watched for longer only if the
        // search goes on from what a hanging recovery has read.
        let limit = if self.keep_going { TimeLimit::Traced } else { TimeLimit::Native };
        let Some(mut observed) = self.observe.observe(worker, crash, &job.choice, limit)? else { return Ok(None) };
        if observed.ended == self.usual && !self.compares_contents {
            return Ok(Some(Executed { observed, verdict: None, shown: ShownContent::default(), new: true }));
        }
        let Some(verdict) = self.confirm.confirm(bench, crash, &crash.image(&job.choice))? else {
            return Ok(None);
        };
        let shown = verdict.shown;
        if observed.ended == self.usual {
            let verdict = Some(verdict).filter(|verdict| verdict.outcome != *self.usual_outcome);
            return Ok(Some(Executed { observed, verdict, shown, new: true }));
        }
        let hangs = matches!(verdict.outcome, Outcome::Hang { .. }) && job.is_reached_by(&observed.reads);
        if limit == TimeLimit::Native && observed.ended == Ended::Hang && !hangs {
            match self.observe.observe(worker, crash, &job.choice, TimeLimit::Traced)? {
                Some(longer) => observed = longer,
                None => return Ok(None),
            }
        }
        let failed = verdict.outcome != *self.usual_outcome && self.compares_contents;
        let verdict = (observed.ended != self.usual || failed).then_some(verdict);
        Ok(Some(Executed { observed, verdict, shown, new: true }))
    }

    /// Records what an execution showed.
    fn take_in(
        &self,
        state: &mut SearchState,
        number: u64,
        crash: &Arc<Crash>,
        job: PlannedExecution,
        executed: Executed,
    ) -> Result<(), TraceFailure> {
        let Executed { observed, verdict, shown, new } = executed;
        state.done.not_judged += u64::from(shown.not_judged);
        state.done.watched += u64::from(observed.looked.is_some());
        state.done.looked += u64::from(observed.looked == Some(true));
        if new {
            state.done.executions += 1;
            // The journal does not keep crashes in the recovery, so executions with them have to be repeated.
            if self.failures <= 1 {
                state.journal.add(crash.identity, &job.choice, &observed, verdict.as_ref(), shown)?;
            }
        } else {
            state.done.known += 1;
        }
        if verdict.is_none() && crash.level + 1 < self.failures {
            state.done.inner_cut += u64::from(observed.inner_cut);
            let mut names = HashMap::clone(&crash.names);
            let level = crash.level + 1;
            names.extend(observed.places.into_iter().map(|((site, context), stack)| ((level, site, context), stack)));
            let names = ExecutionStacks::new(names);
            for inner in &observed.inner {
                let next = crash_inside(crash, &job.choice, &observed.reads, inner, Arc::clone(&names));
                if state.known.insert(next.identity) {
                    state.waiting.push_back(Arc::new(next));
                }
            }
        }
        let Observed { reads, stacks, ended, effects, .. } = observed;
        let mut failed = false;
        match verdict {
            Some(verdict) if verdict.outcome != *self.usual_outcome => {
                let (crash, choice, reads) = (Arc::clone(crash), job.choice.clone(), reads.clone());
                failed = true;
                state.done.failures.push(FailedExecution { crash, choice, reads, stacks, verdict });
            }
            Some(_) => state.done.unconfirmed += 1,
            None => {}
        }
        // The shown content is part of the outcome, so a choice that shows something else counts as new.
        let execution = Execution { reads, outcome: (ended, shown.hash), effects };
        if let Some(open) = state.open.iter_mut().find(|open| open.number == number) {
            open.running -= 1;
            open.explorer.done(job, &execution);
            if failed && !self.keep_going {
                open.explorer.abandon();
            }
        }
        Ok(())
    }
}

/// A crash inside a recovery, as a crash to explore.
fn crash_inside(
    before: &Crash,
    choice: &ImageChoice,
    reads: &[UncertainRead],
    inner: &nested::Inner,
    names: ExecutionStacks,
) -> Crash {
    let level = before.level + 1;
    let nested::Second { lines, patches: new } = nested::crash(&before.lines, choice, reads, inner, level);
    let mut patches = before.patches.clone();
    patches.extend(new.into_iter().map(scan::patch));
    let uncertain: FxHashSet<_> = lines.iter().map(|line| line.id()).collect();
    let mut bytes: BTreeMap<(u32, u64), u8> = BTreeMap::new();
    for patch in &patches {
        for (at, byte) in (patch.offset..).zip(&patch.bytes) {
            if !uncertain.contains(&pmvet_model::LineId::containing(patch.file, at)) {
                bytes.insert((patch.file.0, at), *byte);
            }
        }
    }
    let mut certain = Xxh3::new();
    certain.update(&before.version.0.to_le_bytes());
    for ((file, at), byte) in bytes {
        certain.update(&file.to_le_bytes());
        certain.update(&at.to_le_bytes());
        certain.update(&[byte]);
    }
    let identity = crash::with_promise(crash::identity(certain.digest128(), &lines), before.promise);
    Crash {
        moment: inner.moment,
        level,
        origin: before.origin,
        version: before.version,
        patches,
        lines,
        identity,
        // During the recovery nothing is promised or kept.
        promise: before.promise,
        names,
    }
}

struct Executed {
    observed: Observed,
    verdict: Option<NativeOutcome>,
    shown: ShownContent,
    new: bool,
}

impl SearchState {
    /// The next execution, and which crash it is for.
    fn next_execution(&mut self, patience: u64) -> Option<(u64, Arc<Crash>, PlannedExecution)> {
        let mut i = 0;
        loop {
            let Some(open) = self.open.get_mut(i) else {
                let Some(crash) = self.waiting.pop_front() else { return self.take_doubtful() };
                let explorer = Explorer::new(crash.lines.clone(), patience);
                self.opened += 1;
                self.open.push(OpenCrash { number: self.opened, crash, explorer, running: 0, missing: 0 });
                continue;
            };
            if let Some(job) = open.explorer.next() {
                return Some(self.hand_out(i, job));
            }
            if open.running == 0 {
                let open = self.open.remove(i);
                match open.explorer.doubtful() {
                    0 => self.finished(&open),
                    _ => self.parked.push_back(open),
                }
            } else {
                i += 1;
            }
        }
    }

    fn take_doubtful(&mut self) -> Option<(u64, Arc<Crash>, PlannedExecution)> {
        // Crashes under way come first: one may have several executions at a time.
        for i in 0..self.open.len() {
            if let Some(job) = self.open[i].explorer.next_doubtful() {
                return Some(self.hand_out(i, job));
            }
        }
        while let Some(mut open) = self.parked.pop_front() {
            match open.explorer.next_doubtful() {
                Some(job) => {
                    self.open.push(open);
                    return Some(self.hand_out(self.open.len() - 1, job));
                }
                None => self.finished(&open),
            }
        }
        None
    }

    fn hand_out(&mut self, i: usize, job: PlannedExecution) -> (u64, Arc<Crash>, PlannedExecution) {
        let open = &mut self.open[i];
        open.running += 1;
        self.running += 1;
        self.handed_out += 1;
        (open.number, Arc::clone(&open.crash), job)
    }

    fn finished(&mut self, open: &OpenCrash) {
        match open.missing {
            0 => {
                self.done.crashes += 1;
                self.done.inner_crashes += usize::from(open.crash.level > 0);
            }
            _ if open.explorer.executions() == 0 => self.done.crashes_left += 1,
            missing => {
                self.done.left += missing;
                self.done.crashes_left += 1;
            }
        }
        self.retire(open);
    }

    fn retire(&mut self, open: &OpenCrash) {
        self.done.doubtful += open.explorer.doubtful();
        self.done.abandoned += open.explorer.abandoned();
        self.done.diverged += open.explorer.diverged();
        self.done.most_after_one = self.done.most_after_one.max(open.explorer.executions());
    }

    /// Gives up an execution that may not be made.
    fn leave(&mut self, number: u64) {
        self.running -= 1;
        if let Some(open) = self.open.iter_mut().find(|open| open.number == number) {
            open.running -= 1;
            open.missing += 1;
        }
    }

    fn put_back(&mut self, number: u64, job: PlannedExecution) {
        if let Some(open) = self.open.iter_mut().find(|open| open.number == number) {
            open.running -= 1;
            open.explorer.put_back(job);
        }
    }
}

fn lock(state: &Mutex<SearchState>) -> MutexGuard<'_, SearchState> {
    state.lock().unwrap_or_else(|e| e.into_inner())
}
