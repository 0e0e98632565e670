//! pmvet ends when it is told to, and when its budget is used up, whatever its targets do, and leaves nothing behind.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pmvet_fixtures::stops::{Load, StoppedRun, UnrulyPlace};

/// How long pmvet may take to end after the first signal, and after a second one; and after the end of its budget.
const TOLD: Duration = Duration::from_secs(2);
const TOLD_TWICE: Duration = Duration::from_millis(500);
const LATE: Duration = Duration::from_secs(5);
/// A command that would have ended by itself by then.
const ABOUT_TO_END: Duration = Duration::from_millis(50);

/// What a target or a recovery does instead of ending.
const MODES: [&str; 4] = ["hang", "spin", "fork", "ignore"];
/// Every command, with a target that is good for it. `MODE` is what its recovery does after a crash.
const COMMANDS: [(&str, &str); 5] = [
    ("check --reorder --visits 2000 --recover RECOVER+MODE+POOL", "work POOL 400"),
    ("verify --recover RECOVER+MODE+POOL", "work POOL 400"),
    ("race --confirm --recover RECOVER+MODE+POOL", "work POOL 400"),
    ("fuzz --corpus corpus", "work POOL 40"),
    ("fuzz --interleave --corpus corpus --recover RECOVER+MODE+POOL", "work POOL 100"),
];
/// When pmvet is told to end, at the latest.
const MOMENTS: u64 = 2500;

/// How many commands run at a time, each a load for the others. Those whose targets fork for ever run alone: they are a load
/// without bounds.
const AT_ONCE: usize = 3;

/// A part of the machine, for as long as the value lives.
struct Room(usize);

/// How many more commands may start.
static FREE: (Mutex<usize>, Condvar) = (Mutex::new(AT_ONCE), Condvar::new());

impl Room {
    /// Waits until so many commands may start.
    fn new(commands: usize) -> Self {
        let free = FREE.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = FREE.1.wait_while(free, |free| *free < commands).unwrap_or_else(PoisonError::into_inner);
        *free -= commands;
        Self(commands)
    }

    /// For a command whose target, or recovery, misbehaves in this way.
    fn beside_others(mode: &str) -> Self {
        Self::new(if mode.contains("fork") { AT_ONCE } else { 1 })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        *FREE.0.lock().unwrap_or_else(PoisonError::into_inner) += self.0;
        FREE.1.notify_all();
    }
}

/// The whole machine: whatever runs beside would change the times that are taken.
fn alone() -> Room {
    Room::new(AT_ONCE)
}

/// Tests that make a load of their own come one after the other.
fn with_load() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does something in all modes, as many at a time as there is room for.
fn each_mode(work: impl Fn(&str) + Sync) {
    let work = &work;
    std::thread::scope(|scope| {
        for mode in MODES {
            scope.spawn(move || {
                let _room = Room::beside_others(mode);
                work(mode);
            });
        }
    });
}

/// Numbers that are the same in every run of the tests.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Tells pmvet to end at many moments of all commands. Prints the longest time that it took.
fn at_moments(
    count: usize,
    seed: u64,
    end: impl Fn(&UnrulyPlace, std::process::Command, Duration) -> Option<StoppedRun>,
) {
    let mut numbers = Numbers(seed);
    let (mut longest, mut told) = ((Duration::ZERO, String::new()), 0);
    let mut failed = Vec::new();
    for round in 0..count {
        let (words, target) = COMMANDS[round % COMMANDS.len()];
        let mode = ["calm", "hang", "spin", "fork", "ignore"][numbers.next() as usize % 5];
        let after = Duration::from_millis(numbers.next() % MOMENTS);
        let what = format!("{words} with {mode}, after {after:?}");
        let place = UnrulyPlace::new();
        let Some(ended) = end(&place, place.pmvet(&words.replace("MODE", mode), target), after) else { continue };
        told += 1;
        place.assert_clean(&what);
        // Before it has seen to its signals it dies of them, as any program does.
        let early = !place.has_begun() && ended.status.code().is_none();
        // What had just said all that it found ends as if nobody had told it to.
        let late = ended.time < ABOUT_TO_END && ended.output.contains("covered: ") && ended.status.code().is_some();
        if ended.time > TOLD || !(early || late || ended.status.code() == Some(130)) {
            failed.push(format!("{what}: {} after {:?}\n{}", ended.status, ended.time, ended.output));
        }
        longest = longest.max((ended.time, what));
    }
    println!("{told} of {count} were told to end; the slowest took {:?}: {}", longest.0, longest.1);
    assert!(failed.is_empty(), "{} of {count} did not end in time:\n{}", failed.len(), failed.join("\n"));
    assert!(told * 2 >= count, "only {told} of {count} ran long enough");
}

fn ctrl_c(place: &UnrulyPlace, command: std::process::Command, after: Duration) -> Option<StoppedRun> {
    place.press_ctrl_c(command, after, 1)
}

fn terminate(place: &UnrulyPlace, command: std::process::Command, after: Duration) -> Option<StoppedRun> {
    place.terminate(command, after)
}

#[test]
fn ctrl_c_on_a_terminal() {
    let _alone = alone();
    at_moments(5, 0x9e37_79b9_7f4a_7c15, ctrl_c);
}

#[test]
fn sigterm() {
    let _alone = alone();
    at_moments(5, 0xd1b5_4a32_d192_ed03, terminate);
}

/// A second signal is not waited for.
#[test]
fn ctrl_c_twice() {
    let _alone = alone();
    for (words, target) in COMMANDS {
        let place = UnrulyPlace::new();
        let words = words.replace("MODE", "ignore");
        let after = Duration::from_millis(1500);
        let Some(ended) = place.press_ctrl_c(place.pmvet(&words, target), after, 2) else { continue };
        assert!(ended.time < TOLD_TWICE, "{words}: {:?}", ended.time);
    }
}

/// Runs a command with a budget, which it keeps, and which leaves nothing behind.
fn within(place: &UnrulyPlace, words: &str, target: &str, budget: Duration) -> StoppedRun {
    let words = format!("{words} --budget {}ms", budget.as_millis());
    let ended = place.run(place.pmvet(&words, target));
    let what = format!("{words} -- {target}: {} after {:?}\n{}", ended.status, ended.time, ended.output);
    println!("{:>7.2} s: {words} -- {target}: {}", ended.time.as_secs_f64(), ended.status);
    place.assert_clean(&what);
    assert!(ended.time < budget + LATE, "{what}");
    ended
}

/// Longer ones are for `budgets_on_a_busy_machine`.
const BUDGET: Duration = Duration::from_secs(2);

fn targets_that_do_not_end(words: &str) {
    each_mode(|mode| {
        let ended = within(&UnrulyPlace::new(), words, &format!("now-{mode} POOL"), BUDGET);
        assert_eq!(ended.status.code(), Some(3), "{mode}: {}", ended.output);
        assert!(ended.output.contains("did not end within the budget of 2s"), "{mode}: {}", ended.output);
    });
}

#[test]
fn a_target_that_does_not_end_check() {
    targets_that_do_not_end("check");
}

#[test]
fn a_target_that_does_not_end_verify() {
    targets_that_do_not_end("verify");
}

#[test]
fn a_target_that_does_not_end_race() {
    targets_that_do_not_end("race --confirm");
}

#[test]
fn a_target_that_does_not_end_fuzz() {
    targets_that_do_not_end("fuzz --corpus corpus");
}

#[test]
fn a_target_that_does_not_end_interleave() {
    each_mode(|mode| {
        let ended =
            within(&UnrulyPlace::new(), "fuzz --interleave --corpus corpus", &format!("now-{mode} POOL"), BUDGET);
        assert_eq!(ended.status.code(), Some(3), "{mode}: {}", ended.output);
    });
}

/// A set-up command, or input, that does not end.
#[test]
fn what_comes_before_counts() {
    each_mode(|mode| {
        let words = format!("check --setup RECOVER+now-{mode}+POOL");
        let ended = within(&UnrulyPlace::new(), &words, "work POOL 10", Duration::from_secs(1));
        assert_eq!(ended.status.code(), Some(3), "{mode}: {}", ended.output);
        assert!(ended.output.contains("the set-up command did not end"), "{mode}: {}", ended.output);
    });
}

/// Recoveries that do not end after a crash: the budget ends before pmvet can know that they hang, which is no finding.
fn recoveries_that_do_not_end(words: &str, code: i32) {
    each_mode(|mode| {
        let words = format!("{words} --recover-timeout 10m --recover RECOVER+{mode}+POOL");
        let ended = within(&UnrulyPlace::new(), &words, "work POOL 20", 2 * BUDGET);
        assert_eq!(ended.status.code(), Some(code), "{mode}: {}", ended.output);
        assert!(ended.output.contains("budget"), "{mode}: {}", ended.output);
        assert!(!ended.output.contains("still runs"), "{mode}: {}", ended.output);
    });
}

#[test]
fn a_recovery_that_does_not_end_check() {
    recoveries_that_do_not_end("check --reorder --fail-on error", 0);
}

#[test]
fn a_recovery_that_does_not_end_verify() {
    recoveries_that_do_not_end("verify", 5);
}

#[test]
fn a_recovery_that_does_not_end_race() {
    recoveries_that_do_not_end("race --confirm --fail-on error", 0);
}

/// What was found before the budget ended is reported.
#[test]
fn findings_survive_the_end_of_the_budget() {
    let _room = Room::beside_others("hang");
    let words = "check --recover-timeout 1s --recover RECOVER+hang+POOL --visits 2000";
    let ended = within(&UnrulyPlace::new(), words, "work POOL 300", 3 * BUDGET);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.output);
    assert!(ended.output.contains("the budget left no time for"), "{}", ended.output);
}

#[test]
#[ignore = "half an hour: 200 moments each, alone and on a busy machine"]
fn many_moments() {
    let _turn = with_load();
    let _alone = alone();
    for busy in [0, 8] {
        let _load = Load::new(busy);
        println!("beside {busy} busy threads: Ctrl-C");
        at_moments(200, 0x2545_f491_4f6c_dd1d, ctrl_c);
        println!("beside {busy} busy threads: SIGTERM");
        at_moments(200, 0x6c62_272e_07bb_0142, terminate);
    }
}

/// Targets and recoveries that do not end, with budgets of 5, 20 and 60 seconds, or those that `PMVET_TEST_BUDGETS` names.
#[test]
#[ignore = "half an hour: budgets on a busy machine"]
fn budgets_on_a_busy_machine() {
    let _turn = with_load();
    let _load = Load::new(8);
    let budgets = std::env::var("PMVET_TEST_BUDGETS").unwrap_or("5,20,60".into());
    let mut cases = Vec::new();
    for budget in budgets.split(',').map(|text| Duration::from_secs(text.parse().unwrap())) {
        for (words, target) in COMMANDS {
            let without_recovery = words.split(" --recover").next().unwrap();
            for mode in MODES {
                cases.push((without_recovery.to_owned(), format!("now-{mode} POOL"), budget));
                cases.push((words.replace("MODE", mode), target.to_owned(), budget));
            }
        }
    }
    // Those that run beside others first, so that few wait for the machine to be theirs.
    let forks = |(words, target, _): &(String, String, Duration)| words.contains("fork") || target.contains("fork");
    cases.sort_by_key(forks);
    let cases = Mutex::new(cases.into_iter());
    let next = || cases.lock().unwrap().next();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((words, target, budget)) = next() {
                    let _room = Room::beside_others(&format!("{words} {target}"));
                    within(&UnrulyPlace::new(), &words, &target, budget);
                }
            });
        }
    });
}
