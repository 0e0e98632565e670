//! What `race --confirm` may spend, and on what, in one place. `docs/tuning.md` has the same table.

use std::time::Duration;

/// How much is tried, and for how long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConfirmPolicy {
    /// A forced run may take this many times as long as the recorded one, and `run_slack` on top: stopped threads may deadlock
    /// it.
    pub run_slowdown: u32,
    /// Added to what a forced run may take.
    pub run_slack: Duration,
    /// The last run gets at least this long.
    pub shortest_run: Duration,

    /// Without `--budget`: this many times the recorded run, or `budget_times_before` times all earlier phases (which show how slow the
    /// machine is), whichever is more, within the bounds below.
    pub budget_runs: u32,
    /// How many times the earlier phases count.
    pub budget_times_before: u32,
    /// Lower bound of the usual budget.
    pub shortest_budget: Duration,
    /// Upper bound of the usual budget, but for `fewest_runs`.
    pub longest_budget: Duration,
    /// ... and enough for this many runs as long as the recorded one.
    pub fewest_runs: u32,
    /// Together with the earlier phases, it may always take this long.
    pub shortest_whole: Duration,
    /// If no race is predicted: this long including the earlier phases, but at least `shortest_unpredicted`, and enough
    /// for `fewest_unpredicted_runs`.
    pub unpredicted_whole: Duration,
    /// Lower bound of the budget if no race is predicted.
    pub shortest_unpredicted: Duration,
    /// That budget is enough for this many runs as long as the recorded one.
    pub fewest_unpredicted_runs: u32,

    /// If there is anything to force, recoveries from the recorded run get this fraction (1/n) of the time.
    pub recorded_run_divisor: u32,
    /// Restarts that show whether locks in PM stay held get this fraction (1/n) of the budget.
    pub restarts_divisor: u32,
    /// If there is anything to force, recoveries that show the same get this fraction (1/n) of the time.
    pub locks_divisor: u32,

    /// The search gives up after this many rounds in a row without anything new.
    pub fruitless_rounds: u32,
    /// ... if other inputs are waiting for their turn.
    pub fruitless_rounds_of_a_turn: u32,
    /// ... if no thread reads what another has stored.
    pub fruitless_rounds_if_unread: u32,
    /// ... if something was proven that was not predicted.
    pub fruitless_rounds_after_proof: u32,

    /// A stopped thread waits for at least this many stores of others, and at most for one in `patience_divisor` of those
    /// of the whole run.
    pub shortest_patience_stores: u32,
    /// Divides the stores of the recorded run.
    pub patience_divisor: u64,
    /// One in this many threads may be stopped at a time.
    pub threads_per_stop: u32,
    /// A run makes this many attempts: each may cost some milliseconds for nothing.
    pub attempts_per_run: usize,
    /// ... or this many, if threads wait for each other: each may hold a lock that others need.
    pub chains_per_run: usize,
    /// An attempt is made this often in each way: the reader may come too late the first time.
    pub tries_per_way: u8,
    /// Any thread that comes to a store is stopped if the store had no more visits than this in the recorded run.
    pub few_visits: usize,
    /// At how many of its visits each thread is stopped then.
    pub visits_of_anyone: u32,
    /// A long stop lasts for one in this many events of the run.
    pub long_stop_divisor: u64,
    /// A reader may come this many events later than expected.
    pub reader_slack_events: u64,
    /// This many reads of one store are worth an attempt.
    pub reads_per_store: usize,

    /// This many runs are under way at a time beside the one being judged, unless they have more threads than `threads_at_once`.
    pub runs_at_once: usize,
    /// Upper bound of the threads in all runs together, but two runs may always be under way; servers run one at a time.
    pub threads_at_once: usize,

    /// A recovery counts as hanging if it takes this many times as long as without a crash, or `shortest_screening`,
    /// whichever is longer. Before a race is blamed for that, it gets the full timeout.
    pub screening_slowdown: u32,
    /// No recovery counts as hanging before this.
    pub shortest_screening: Duration,
    /// How long a recovery takes without a crash is the best of this many tries, if it is short.
    pub undisturbed_tries: u32,
    /// The full timeout: this many times as long as without a crash, or one in `hang_divisor` of the budget, whichever
    /// is more, but no longer than everywhere else.
    pub hang_slowdown: u32,
    /// Divides the budget.
    pub hang_divisor: u32,
    /// This many images are tried before their outcomes are read.
    pub images_per_batch: usize,
    /// If recovery has failed this often for a pair even with nothing lost, the image with nothing lost is tried first; for
    /// unpredicted pairs, once all pairs together reach `failures_of_all`.
    pub failures_of_pair: usize,
    /// How many such failures all pairs together may have before that.
    pub failures_of_all: usize,
    /// Recoveries on images of one run get this fraction (1/n) of the remaining time, or `shortest_judged_run`, whichever is more: other
    /// runs are to come.
    pub judged_run_divisor: u32,
    /// Recoveries on images of one run always have this long.
    pub shortest_judged_run: Duration,
    /// This many images of one run are tried,
    pub images_per_run: usize,
    /// ... and this many of meetings that were not predicted, if others were.
    pub unpredicted_images_per_run: usize,
    /// After this many images of a pair, whatever they showed,
    pub images_of_pair: usize,
    /// ... each further run adds only this many, unless it was made for the pair's store.
    pub images_of_tried_pair: usize,
    /// This many failing images of a batch are compared with others.
    pub failures_per_batch: usize,
    /// The first crash of this many meetings of a pair is tried before the second crash of the first one.
    pub meetings_before_second_crash: usize,
    /// Work that has begun may take this much longer, or one in `grace_divisor` of the user's budget, if that is less.
    pub grace: Duration,
    /// Divides the user's budget; an upper bound of `grace`.
    pub grace_divisor: u32,

    /// Data flow is followed for this many instructions after a load of a value that may be lost.
    pub followed_instructions: u32,
    /// One in this many runs has its data flow followed, which takes time.
    pub runs_per_followed: u32,
    /// This many proven races are made to happen once more to follow their data flow, in this many runs each.
    pub followed_again: usize,
    /// `replay` forces a schedule this often before it gives up; after `replays_by_reader`, another reader of the store counts, too.
    pub replays: usize,
    /// How many replays insist on the reader of the schedule.
    pub replays_by_reader: usize,
}

/// The values in use. Where one was measured, the comment says on what; the others keep a search within its budget and still need a
/// measurement.
pub const POLICY: ConfirmPolicy = ConfirmPolicy {
    run_slowdown: 8,
    run_slack: Duration::from_secs(2),
    shortest_run: Duration::from_millis(500),
    // The 41 concurrency bugs of the zoo are proven within this, on two cores (docs/race.md).
    budget_runs: 30,
    budget_times_before: 3,
    shortest_budget: Duration::from_secs(7),
    longest_budget: Duration::from_secs(30),
    fewest_runs: 10,
    shortest_whole: Duration::from_secs(9),
    unpredicted_whole: Duration::from_secs(8),
    shortest_unpredicted: Duration::from_secs(4),
    fewest_unpredicted_runs: 3,
    // What is predicted is proven by forced runs, and p-clht's ten locks took all of 60 s (two cores, busy).
    recorded_run_divisor: 6,
    restarts_divisor: 6,
    locks_divisor: 4,
    fruitless_rounds: 40,
    fruitless_rounds_of_a_turn: 3,
    fruitless_rounds_if_unread: 8,
    fruitless_rounds_after_proof: 4,
    shortest_patience_stores: 200,
    patience_divisor: 2,
    threads_per_stop: 2,
    attempts_per_run: 48,
    chains_per_run: 16,
    tries_per_way: 6,
    // p-clht resizes its table twice in a run, and which thread does so is chance: in 22 runs no thread was stopped there while
    // another read.
    few_visits: 8,
    visits_of_anyone: 4,
    long_stop_divisor: 2,
    reader_slack_events: 8,
    reads_per_store: 8,
    runs_at_once: 3,
    threads_at_once: 24,
    // Recoveries of p-clht hang on many images, and each of them took at least 5 s.
    screening_slowdown: 6,
    shortest_screening: Duration::from_millis(200),
    // One try on a busy machine took 200 ms instead of 20, and each hanging recovery 2 s.
    undisturbed_tries: 3,
    hang_slowdown: 50,
    hang_divisor: 12,
    images_per_batch: 12,
    // A crash in a resize of p-clht makes recovery hang whatever is lost, and one forced run took the rest of 60 s.
    failures_of_pair: 2,
    failures_of_all: 12,
    judged_run_divisor: 10,
    shortest_judged_run: Duration::from_millis(1500),
    images_per_run: 160,
    unpredicted_images_per_run: 16,
    // In 60 s, p-clht's benign pairs took nearly all images, and there were 7 forced runs.
    images_of_pair: 16,
    images_of_tried_pair: 3,
    failures_per_batch: 6,
    meetings_before_second_crash: 4,
    grace: Duration::from_secs(3),
    grace_divisor: 10,
    followed_instructions: 2000,
    runs_per_followed: 4,
    followed_again: 3,
    replays: 40,
    // Two replays of p-clht's table swap failed in 40 runs: which thread resizes the table, and which reads it then, is
    // chance.
    replays_by_reader: 6,
};
