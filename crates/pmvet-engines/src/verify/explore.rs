//! The search: which executions of the recovery exist, and which of them are still to be made.
//!
//! The state of the search is a queue of partial decisions. A decision says for some lines which contents are still possible. The
//! recovery runs on one concrete image that agrees with it, and what it reads splits the lines further. Each other choice becomes another
//! decision. Since a recovery that reads the same bytes does the same, the decisions form a tree whose leaves are the executions: each
//! is made once.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash, Hasher};

use rustc_hash::FxHashSet;
use xxhash_rust::xxh3::Xxh3;

use super::line::{Uncertain, UncertainLines};
use super::reads::UncertainRead;

/// What one execution of the recovery showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execution<O> {
    /// Uncertain reads, in the order of the execution.
    pub reads: Vec<UncertainRead>,
    /// How it ended.
    pub outcome: O,
    /// Hashes of what it stored: before its first read, between one read and the next, and after the last one.
    pub effects: Vec<u64>,
}

/// Runs a recovery.
pub trait Executor {
    /// How an execution ends, as far as the search distinguishes ends.
    type Outcome: Hash;
    /// Why it could not be run; this ends the search.
    type Error;

    /// Runs it on the image in which every line is newest but those in `choice`.
    fn run(&mut self, lines: &UncertainLines, choice: &ImageChoice) -> Result<Execution<Self::Outcome>, Self::Error>;
}

/// An image: for each line that is not newest, by position, the number of its content.
pub type ImageChoice = BTreeMap<u32, u16>;

/// The contents that are still possible, for the lines that are already restricted.
pub type Feasible = BTreeMap<u32, Vec<u16>>;

/// An execution that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedExecution {
    /// The image that it runs on.
    pub choice: ImageChoice,
    feasible: Feasible,
    /// How many reads are decided; `expected` is a hash of them.
    decided: usize,
    expected: u64,
}

impl PlannedExecution {
    /// Whether an execution with these reads has reached the last decided one.
    pub fn is_reached_by(&self, reads: &[UncertainRead]) -> bool {
        reads.len() >= self.decided
    }
}

/// A load that could have seen something else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// Position among the reads.
    pub read: usize,
    /// Position among the uncertain lines of the crash.
    pub line: u32,
    /// The bytes of the line that the load sees for the first time, one bit each.
    pub bytes: u64,
    /// The states of the line, grouped by what the load sees; the chosen state's group comes first.
    pub classes: Vec<Vec<u16>>,
}

/// The executions of a recovery after one crash.
///
/// # Two lines, of which the recovery reads one
///
/// ```
/// use pmvet_engines::verify::{Execution, Explorer, Observer, PendingLines};
/// use pmvet_events::event::StoreKind;
/// use pmvet_events::{ContextId, Event, FileId, SiteId, ThreadId, What};
/// use pmvet_model::{Mode, Model, Unknown};
///
/// let (pool, mut model) = (FileId(1), Model::new(Mode::Adr));
/// let run = [
///     What::ProcessStart { process: 1, parent: 0, path: "list".as_ref() },
///     What::Map { file: pool, addr: 0x1000, len: 4096, offset: 0, writable: true },
///     What::Store { addr: 0x1000, value: &[1], how: StoreKind::Regular },
///     What::Store { addr: 0x1040, value: &[2], how: StoreKind::Regular },
/// ];
/// for (seq, what) in (1..).zip(run) {
///     model.event(&Event { seq, thread: ThreadId(1), site: SiteId(0), context: ContextId(0), what }, &Unknown);
/// }
/// let mut explorer = Explorer::new(PendingLines::default().lines(&model), u64::MAX);
/// while let Some(job) = explorer.next() {
///     // A recovery would run on `job.choice`. This one loads the first byte of the pool.
///     let mut observer = Observer::new(explorer.lines().iter().map(|line| &**line));
///     observer.load(pool, 0, 1);
///     explorer.done(job, &Execution { reads: observer.finish(), outcome: 0, effects: Vec::new() });
/// }
/// assert_eq!(explorer.executions(), 2, "an eager search would try four images");
/// ```
#[derive(Debug)]
pub struct Explorer {
    lines: UncertainLines,
    queue: VecDeque<PlannedExecution>,
    /// Decisions that are likely to show nothing new, see [`Explorer::done`].
    doubtful: VecDeque<PlannedExecution>,
    /// Hashes of what executions did from some point on.
    futures: FxHashSet<u64>,
    /// After this many executions, doubtful decisions are skipped.
    patience: u64,
    executions: u64,
    diverged: u64,
    /// The number of skipped choices, if the search was abandoned.
    abandoned: Option<usize>,
}

impl Explorer {
    /// `patience`: after this many executions, decisions that are likely to show nothing new are skipped.
    pub fn new(lines: UncertainLines, patience: u64) -> Self {
        let first =
            PlannedExecution { choice: ImageChoice::new(), feasible: Feasible::new(), decided: 0, expected: start() };
        Self {
            lines,
            queue: VecDeque::from([first]),
            doubtful: VecDeque::new(),
            futures: FxHashSet::default(),
            patience,
            executions: 0,
            diverged: 0,
            abandoned: None,
        }
    }

    /// The lines that the crash has left uncertain, which choices refer to by position.
    pub fn lines(&self) -> &UncertainLines {
        &self.lines
    }

    /// The next execution to make, doubtful ones aside. Several may be under way at the same time.
    #[allow(clippy::should_implement_trait, reason = "what comes next depends on what is done")]
    pub fn next(&mut self) -> Option<PlannedExecution> {
        let job = self.queue.pop_front()?;
        self.executions += 1;
        Some(job)
    }

    /// The next doubtful one, as long as patience lasts.
    pub fn next_doubtful(&mut self) -> Option<PlannedExecution> {
        if self.executions >= self.patience {
            return None;
        }
        let job = self.doubtful.pop_front()?;
        self.executions += 1;
        Some(job)
    }

    /// Takes the result of an execution, and queues the choices it did not take.
    ///
    /// A choice is *doubtful* if what the execution did from there on, with every later choice left as it is, has been seen before from
    /// the same point: the recovery seems to have forgotten the difference, as one that only compares a checksum, or that frees a lock
    /// whether it is held or not. If it really has, other later choices lead to what they led to before. That is an assumption, so
    /// doubtful choices wait until there is nothing else to do, and are still tried as long as patience lasts.
    pub fn done<O: Hash>(&mut self, job: PlannedExecution, execution: &Execution<O>) {
        let PlannedExecution { choice, mut feasible, decided, expected } = job;
        let reads = &execution.reads;
        // The reads that led to this decision must come again, or the recovery depends on more than the image.
        let hashes = prefix_hashes(reads);
        if hashes.get(decided) != Some(&expected) {
            self.diverged += 1;
        }
        let splits = walk(&self.lines, &mut feasible.clone(), &choice, reads);
        let futures = futures(&self.lines, &choice, &splits, execution);
        let mut new = true;
        let mut splits = splits.into_iter().peekable();
        for (i, read) in reads.iter().enumerate() {
            if i >= decided {
                new = new && self.futures.insert(mix(i as u64, futures[i]));
            }
            let Some(split) = splits.next_if(|split| split.read == i) else { continue };
            let mut classes = split.classes.into_iter();
            let mine = classes.next().unwrap_or_default();
            for class in classes {
                let mut other = feasible.clone();
                other.insert(read.line, class);
                let job = PlannedExecution {
                    choice: choose(&self.lines, &other),
                    feasible: other,
                    decided: i + 1,
                    expected: hashes[i + 1],
                };
                match &mut self.abandoned {
                    Some(count) => *count += 1,
                    None if new => self.queue.push_back(job),
                    None => self.doubtful.push_back(job),
                }
            }
            feasible.insert(read.line, mine);
        }
    }

    /// Gives up all executions that are not made yet.
    pub fn abandon(&mut self) {
        let left = self.queue.len() + self.doubtful.len();
        *self.abandoned.get_or_insert(0) += left;
        self.queue.clear();
        self.doubtful.clear();
    }

    /// Choices that were not made because the search was abandoned.
    pub fn abandoned(&self) -> usize {
        self.abandoned.unwrap_or(0)
    }

    /// The job could not be run, and comes back.
    pub fn put_back(&mut self, job: PlannedExecution) {
        self.executions -= 1;
        self.queue.push_front(job);
    }

    /// How many executions were handed out.
    pub fn executions(&self) -> u64 {
        self.executions
    }

    /// Choices that are still to be made; each stands for at least one execution.
    pub fn left(&self) -> usize {
        self.queue.len()
    }

    /// Choices that were not made because they are likely to show nothing new.
    pub fn doubtful(&self) -> usize {
        self.doubtful.len()
    }

    /// Executions whose reads differ from an earlier execution with the same choices: the recovery depends on more than
    /// the image.
    pub fn diverged(&self) -> u64 {
        self.diverged
    }
}

/// The loads of an execution that could have seen something else, given what was possible before it. Narrows `feasible` to what
/// is possible after it.
pub fn walk(
    lines: &UncertainLines,
    feasible: &mut Feasible,
    choice: &ImageChoice,
    reads: &[UncertainRead],
) -> Vec<Split> {
    let mut splits = Vec::new();
    for (i, read) in reads.iter().enumerate() {
        let Some(line) = lines.get(read.line as usize) else { continue };
        let states = feasible.entry(read.line).or_insert_with(|| (0..line.states()).collect());
        if states.len() < 2 {
            continue;
        }
        let classes = line.split(states, read.bytes, state_of(line, choice, read.line));
        if classes.len() > 1 {
            *states = classes[0].clone();
            splits.push(Split { read: i, line: read.line, bytes: read.bytes, classes });
        }
    }
    splits
}

/// Runs a whole search, one execution after another, with an upper bound.
pub fn explore<E: Executor>(
    explorer: &mut Explorer,
    executor: &mut E,
    most: u64,
    mut seen: impl FnMut(&ImageChoice, &Execution<E::Outcome>),
) -> Result<(), E::Error> {
    while explorer.executions() < most
        && let Some(job) = explorer.next().or_else(|| explorer.next_doubtful())
    {
        let execution = executor.run(&explorer.lines, &job.choice)?;
        seen(&job.choice, &execution);
        explorer.done(job, &execution);
    }
    Ok(())
}

/// The state of a line in an image.
pub fn state_of(line: &Uncertain, choice: &ImageChoice, index: u32) -> u16 {
    choice.get(&index).copied().unwrap_or(line.newest())
}

/// An image that agrees with a decision: every line as new as it can be.
fn choose(lines: &UncertainLines, feasible: &Feasible) -> ImageChoice {
    let mut choice = ImageChoice::new();
    for (&index, states) in feasible {
        let Some(line) = lines.get(index as usize) else { continue };
        if !states.contains(&line.newest())
            && let Some(&last) = states.last()
        {
            choice.insert(index, last);
        }
    }
    choice
}

/// For each read a hash of what follows: what is read, what else could have been, what is stored, and the end.
fn futures<O: Hash>(
    lines: &UncertainLines,
    choice: &ImageChoice,
    splits: &[Split],
    execution: &Execution<O>,
) -> Vec<u64> {
    let mut hash = hash_of(&execution.outcome);
    let mut splits = splits.iter().rev().peekable();
    let mut futures = vec![0; execution.reads.len()];
    for (i, read) in execution.reads.iter().enumerate().rev() {
        hash = mix(hash, execution.effects.get(i + 1).copied().unwrap_or(0));
        let line = lines.get(read.line as usize);
        let value = line.and_then(|line| line.seen(state_of(line, choice, read.line), read.bytes));
        let others: Vec<_> = splits
            .next_if(|split| split.read == i)
            .map(|split| split.classes[1..].iter().filter_map(|c| line?.seen(*c.first()?, read.bytes)).collect())
            .unwrap_or_default();
        hash = mix(hash_of(&(read, value, others)), hash);
        futures[i] = hash;
    }
    futures
}

fn prefix_hashes(reads: &[UncertainRead]) -> Vec<u64> {
    let mut hashes = vec![start()];
    for read in reads {
        let last = hashes.last().copied().unwrap_or_else(start);
        hashes.push(mix(last, hash_of(read)));
    }
    hashes
}

fn start() -> u64 {
    0x9e37_79b9_7f4a_7c15
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = Xxh3::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn mix(a: u64, b: u64) -> u64 {
    (a.rotate_left(23) ^ b).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(31).wrapping_mul(0xc4ce_b9fe_1a85_ec53)
}
