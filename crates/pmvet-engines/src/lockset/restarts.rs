//! Locks that live in PM: whether a restart frees one that a crash left held.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pmvet_events::{Event, FileId};
use pmvet_target::crash::{VersionId, Versions};
use pmvet_target::shutdown;

use super::pm_locks::{Aftermath, Afterwards, LockLeftHeld};
use crate::lab::restart::{Restart, RestartWatch};
use crate::lab::{self, Lab, LabError};

/// A restart hangs if it takes `SLOWDOWN` times as long as the recorded run plus `SLACK`, but at most `LONGEST`.
const SLOWDOWN: u32 = 4;
const SLACK: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(10);

/// Time limit of the native run that shows whether a restart dies at once, and its limit as a part of the recorded run. Threads that wait
/// for the lock use up all of it.
const NATIVE_LIMIT: Duration = Duration::from_millis(200);
const NATIVE_PART: u32 = 8;

/// Locks to try per line that takes them: a restart mostly treats them all alike.
const MOST_PER_LINE: usize = 4;
/// Without a time budget, restarts end after this many in which no lock stays held, or one for each line if that is
/// more: they must not take longer than the analysis before them.
const MOST_FRUITLESS: usize = 4;
/// Size of the first round: what it shows of one lock of a line may spare its others.
const FIRST: usize = 2;
/// If all restarts fail before a thread asks for the lock, and they are this many, the others would fail, too. A crash in the middle of an
/// operation may well leave a state that one or two do not survive.
const MOST_FAILED: usize = 4;

/// Restarts the program from crashes that leave a lock held.
#[derive(Debug)]
pub struct Restarts<'a> {
    /// The workload, and the folder with its recorded run.
    pub lab: Lab<'a>,
    /// What runs after a crash, before the program. Nothing: only the program.
    pub recover: Option<Vec<OsString>>,
    /// How long the recorded run took.
    pub traced: Duration,
    /// How long they may take together.
    pub most_time: Option<Duration>,
}

impl Restarts<'_> {
    /// The locks that stay held, and how many remain undecided. `paths`: the paths of their files. A group is done as soon as one of
    /// its locks stays held.
    pub fn left_held(
        &self,
        groups: &[Vec<LockLeftHeld>],
        paths: &HashMap<FileId, PathBuf>,
    ) -> Result<(Vec<LockLeftHeld>, usize), LabError> {
        let most_fruitless = if self.most_time.is_some() { usize::MAX } else { MOST_FRUITLESS.max(groups.len()) };
        let mut turns = Turns::new(groups, most_fruitless);
        if groups.is_empty() {
            return Ok(turns.finish());
        }
        let store = self.lab.temporary()?;
        let moments = [turns.waiting.iter().map(|turn| turn.lock.crash_at).collect()];
        let (versions, moments) = lab::versions_at(&self.lab.recording(), &moments, store)?;
        let at = |lock: &LockLeftHeld| moments.iter().find(|(moment, _)| *moment == lock.crash_at).map(|found| found.1);
        let deadline = self.most_time.and_then(|time| Instant::now().checked_add(time));
        let timeout = (self.traced * SLOWDOWN + SLACK).min(LONGEST);
        let restart = Restart { lab: self.lab, timeout, deadline };
        let survives = AtomicBool::new(false);
        let try_one = |lock: &LockLeftHeld| {
            let in_time = !shutdown::is_over() && !restart.is_late();
            let known = paths.get(&lock.word.file).zip(at(lock)).filter(|_| in_time);
            let tried = known.map(|(path, version)| self.restart(restart, lock, path, (&versions, version), &survives));
            tried.transpose().map(Option::flatten)
        };
        loop {
            let turn = turns.next();
            if turn.is_empty() {
                return Ok(turns.finish());
            }
            let outcomes = self.side_by_side(&turn, &try_one)?;
            turn.into_iter().zip(outcomes).for_each(|(turn, outcome)| turns.note(turn, outcome));
        }
    }

    /// Tries locks, as many at a time as there are cores.
    fn side_by_side(
        &self,
        turn: &[Turn<'_>],
        try_one: &(impl Fn(&LockLeftHeld) -> Result<Option<Afterwards>, LabError> + Sync),
    ) -> Result<Vec<Option<Afterwards>>, LabError> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(turn) = turn.get(index) else { return Ok::<_, LabError>(done) };
                done.push((index, try_one(turn.lock)?));
            }
        };
        // Two servers would want the same port.
        let alone = self.lab.workload.driver.is_some();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = if alone { 1 } else { cores.min(turn.len()) };
        let done: Vec<Result<Vec<_>, LabError>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            workers.into_iter().map(|w| w.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        let mut outcomes = vec![None; turn.len()];
        for done in done {
            done?.into_iter().for_each(|(index, outcome)| outcomes[index] = outcome);
        }
        Ok(outcomes)
    }

    fn restart(
        &self,
        restart: Restart<'_>,
        lock: &LockLeftHeld,
        path: &Path,
        (versions, version): (&Versions, VersionId),
        survives: &AtomicBool,
    ) -> Result<Option<Afterwards>, LabError> {
        let run = |command: Option<&[OsString]>| {
            let mut aftermath = Aftermath::new(lock, path);
            let ended_well = restart.run(command, (versions, version, &[]), &mut aftermath)?;
            // A restart that pmvet cut short proves no hang.
            Ok::<_, LabError>(ended_well.filter(|_| !shutdown::is_over()).map(|well| aftermath.verdict(!well)))
        };
        if let Some(command) = &self.recover {
            let judged = run(Some(command))?;
            // If the recovery does not touch the lock, the program decides.
            if !matches!(judged, Some(Afterwards::Unused | Afterwards::Failed)) {
                return Ok(judged);
            }
        }
        // Once one restart has survived, others may, too.
        if !survives.load(Ordering::Relaxed) {
            if restart.dies_natively(versions, version, NATIVE_LIMIT.min(self.traced / NATIVE_PART))? {
                return Ok((!shutdown::is_over()).then_some(Afterwards::Failed));
            }
            survives.store(true, Ordering::Relaxed);
        }
        run(None)
    }
}

/// A lock to be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Turn<'l> {
    /// The line that takes it, and how many locks of this line come before it.
    line: usize,
    round: usize,
    lock: &'l LockLeftHeld,
}

/// Which locks come next: first one of each line, then the second ones, and so on; of these, first those that a flush saves while they are
/// held. The order depends on outcomes, not on how long restarts take, so two runs try the same locks.
#[derive(Debug)]
struct Turns<'l> {
    waiting: VecDeque<Turn<'l>>,
    most_fruitless: usize,
    tried: usize,
    fruitless: usize,
    failed: usize,
    /// Lines with a lock that stays held.
    decided: BTreeSet<usize>,
    held: Vec<LockLeftHeld>,
    /// Locks whose restart was cut short, and those beyond `MOST_PER_LINE`. Restarts that failed decide nothing either.
    unknown: usize,
}

impl<'l> Turns<'l> {
    fn new(groups: &'l [Vec<LockLeftHeld>], most_fruitless: usize) -> Self {
        let turns = |(line, group): (usize, &'l Vec<LockLeftHeld>)| {
            group.iter().enumerate().map(move |(round, lock)| Turn { line, round, lock })
        };
        let mut waiting: Vec<_> = groups.iter().enumerate().flat_map(turns).collect();
        waiting.sort_by_key(|turn| (turn.round, !turn.lock.flushed, turn.line));
        let kept = waiting.iter().take_while(|turn| turn.round < MOST_PER_LINE).count();
        let unknown = waiting.len() - kept;
        waiting.truncate(kept);
        let waiting = waiting.into();
        let (decided, held) = (BTreeSet::new(), Vec::new());
        Turns { waiting, most_fruitless, tried: 0, fruitless: 0, failed: 0, decided, held, unknown }
    }

    /// The locks to try side by side. Empty: no more are tried.
    fn next(&mut self) -> Vec<Turn<'l>> {
        let mut turns = Vec::new();
        if self.failed >= MOST_FAILED && self.failed == self.tried {
            return turns;
        }
        self.waiting.retain(|turn| !self.decided.contains(&turn.line));
        let round = self.waiting.front().map_or(0, |turn| turn.round);
        while let Some(turn) = self.waiting.front() {
            let belongs = if self.tried == 0 { turns.len() < FIRST } else { turn.round == round };
            if !belongs || self.fruitless + turns.len() >= self.most_fruitless {
                break;
            }
            turns.extend(self.waiting.pop_front());
        }
        turns
    }

    fn note(&mut self, turn: Turn<'l>, outcome: Option<Afterwards>) {
        self.tried += 1;
        match outcome {
            Some(Afterwards::LeftHeld) => {
                if self.decided.insert(turn.line) {
                    self.held.push(turn.lock.clone());
                }
                return;
            }
            Some(Afterwards::Freed | Afterwards::Unused) => {}
            Some(Afterwards::Failed) => self.failed += 1,
            None => self.unknown += 1,
        }
        self.fruitless += 1;
    }

    fn finish(mut self) -> (Vec<LockLeftHeld>, usize) {
        self.held.sort_by_key(|lock| lock.crash_at);
        (self.held, self.unknown + self.failed + self.waiting.len())
    }
}

impl RestartWatch for Aftermath {
    fn event(&mut self, event: &Event<'_>) {
        Aftermath::event(self, event);
    }

    fn is_decided(&self) -> bool {
        Aftermath::is_decided(self)
    }

    fn is_spinning(&self) -> bool {
        Aftermath::is_spinning(self)
    }
}

#[cfg(test)]
mod tests {
    use pmvet_events::{ContextId, SiteId, ThreadId};

    use super::*;
    use crate::lockset::PmWord;

    fn locks(groups: &[usize]) -> Vec<Vec<LockLeftHeld>> {
        let lock = |seq| LockLeftHeld {
            word: PmWord { file: FileId(0), offset: 8 * seq },
            thread: ThreadId(1),
            site: SiteId(0),
            context: ContextId::default(),
            seq,
            crash_at: seq + 1,
            flushed: false,
            values: None,
            is_spare: false,
        };
        let mut next = 0..;
        groups.iter().map(|&len| next.by_ref().take(len).map(lock).collect()).collect()
    }

    /// Which locks are tried, if each gives what `outcome` says.
    fn tried(
        groups: &[Vec<LockLeftHeld>],
        outcome: impl Fn(u64) -> Option<Afterwards>,
    ) -> (Vec<Vec<u64>>, usize, usize) {
        tried_of(groups, usize::MAX, outcome)
    }

    fn tried_of(
        groups: &[Vec<LockLeftHeld>],
        most_fruitless: usize,
        outcome: impl Fn(u64) -> Option<Afterwards>,
    ) -> (Vec<Vec<u64>>, usize, usize) {
        let mut turns = Turns::new(groups, most_fruitless);
        let mut all = Vec::new();
        loop {
            let turn = turns.next();
            if turn.is_empty() {
                let (held, unknown) = turns.finish();
                return (all, held.len(), unknown);
            }
            all.push(turn.iter().map(|turn| turn.lock.seq).collect());
            turn.into_iter().for_each(|turn| turns.note(turn, outcome(turn.lock.seq)));
        }
    }

    #[test]
    fn one_lock_of_each_line_comes_first() {
        let (turns, held, unknown) = tried(&locks(&[2, 1, 3]), |_| Some(Afterwards::Unused));
        assert_eq!(turns, [vec![0, 2], vec![3], vec![1, 4], vec![5]]);
        assert_eq!((held, unknown), (0, 0));
    }

    #[test]
    fn what_is_saved_while_it_is_held_comes_first() {
        let mut locks = locks(&[2, 2, 1]);
        locks[1][1].flushed = true;
        let (turns, _, unknown) = tried_of(&locks, 4, |_| Some(Afterwards::Freed));
        assert_eq!((turns, unknown), (vec![vec![0, 2], vec![4], vec![3]], 1));
    }

    #[test]
    fn a_line_is_done_with_when_one_lock_stays_held() {
        let (turns, held, unknown) =
            tried(&locks(&[3, 3]), |seq| Some(if seq < 3 { Afterwards::LeftHeld } else { Afterwards::Freed }));
        assert_eq!(turns, [vec![0, 3], vec![4], vec![5]]);
        assert_eq!((held, unknown), (1, 0));
        let (_, held, _) = tried(&locks(&[2]), |_| Some(Afterwards::LeftHeld));
        assert_eq!(held, 1, "two were tried side by side");
    }

    #[test]
    fn a_program_that_cannot_be_restarted_is_left_alone() {
        let (turns, _, unknown) = tried(&locks(&[5, 1]), |_| Some(Afterwards::Failed));
        assert_eq!((turns, unknown), (vec![vec![0, 5], vec![1], vec![2]], 6));
        let (turns, _, unknown) =
            tried(&locks(&[2, 2]), |seq| Some(if seq == 2 { Afterwards::Freed } else { Afterwards::Failed }));
        assert_eq!((turns, unknown), (vec![vec![0, 2], vec![1, 3]], 3), "one that got on is enough");
    }

    #[test]
    fn restarts_end_if_no_lock_stays_held() {
        let (turns, held, unknown) = tried_of(&locks(&[3, 3]), 4, |_| Some(Afterwards::Freed));
        assert_eq!((turns, held, unknown), (vec![vec![0, 3], vec![1, 4]], 0, 2));
        let of = |seq| Some(if seq == 0 { Afterwards::LeftHeld } else { Afterwards::Unused });
        let (turns, held, unknown) = tried_of(&locks(&[3, 3]), 3, of);
        assert_eq!(
            (turns, held, unknown),
            (vec![vec![0, 3], vec![4], vec![5]], 1, 0),
            "what stays held does not count"
        );
    }

    #[test]
    fn a_line_has_only_so_many_tries() {
        let (turns, _, unknown) = tried(&locks(&[MOST_PER_LINE + 2]), |_| Some(Afterwards::Unused));
        assert_eq!(turns.concat().len(), MOST_PER_LINE);
        assert_eq!(unknown, 2);
        let (_, _, unknown) = tried(&locks(&[1, 1]), |_| None);
        assert_eq!(unknown, 2, "restarts that did not end");
    }
}
