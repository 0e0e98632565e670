//! What sharing work among machines costs: the model in the book's chapter on many machines, compared with a simulation of up to 1,000
//! tasks that are balanced as `pmvet scatter` does it.
#![allow(clippy::unwrap_used, reason = "a test")]

use pmvet_engines::shards::balance;

/// A program whose check takes one machine about two hours.
const CRASHES: usize = 20_000;
const SECONDS_PER_EXECUTION: f64 = 0.1;
/// What each task does itself: it reads the recording, and follows its events.
const RECORDING_BYTES: f64 = 200e6;
const ANALYSIS_SECONDS: f64 = 20.0;
/// The shared folder, and the one link that a machine has to it.
const FOLDER_BYTES_PER_SECOND: f64 = 1e9;
const LINK_BYTES_PER_SECOND: f64 = 250e6;
/// How many tasks the scheduler starts per second.
const STARTS_PER_SECOND: f64 = 50.0;
/// What joining costs for each execution, whichever task made it.
const JOIN_SECONDS_PER_EXECUTION: f64 = 20e-6;

/// Random numbers above 0 and up to 1, always the same.
fn random() -> impl FnMut() -> f64 {
    let mut state = 1_u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 11) as f64 + 1.0) / (1_u64 << 53) as f64
    }
}

/// How many executions each crash takes: most few, some many (a Pareto distribution).
fn executions() -> Vec<u64> {
    let mut random = random();
    (0..CRASHES).map(|_| (2.0 * random().powf(-0.5)).min(400.0) as u64).collect()
}

/// What is expected of each crash before anything runs: half as much, twice as much, or something between.
fn expected(executions: &[u64]) -> Vec<u64> {
    let mut random = random();
    executions.iter().map(|&count| (count as f64 * 4_f64.powf(random() - 0.5)).round() as u64).collect()
}

/// When each reader that starts at these times has read the recording. All of them share the folder, none is faster than its link.
fn read_together(starts: &[f64]) -> Vec<f64> {
    let (mut left, mut ends) = (vec![RECORDING_BYTES; starts.len()], vec![0.0; starts.len()]);
    let mut now = 0.0;
    loop {
        let active: Vec<usize> = (0..starts.len()).filter(|&i| starts[i] <= now && left[i] > 0.0).collect();
        let next_start = starts.iter().copied().filter(|&start| start > now).fold(f64::INFINITY, f64::min);
        if active.is_empty() {
            if next_start.is_infinite() {
                return ends;
            }
            now = next_start;
            continue;
        }
        let rate = (FOLDER_BYTES_PER_SECOND / active.len() as f64).min(LINK_BYTES_PER_SECOND);
        let first = active.iter().map(|&i| left[i] / rate).fold(f64::INFINITY, f64::min);
        let step = first.min(next_start - now);
        now += step;
        for i in active {
            left[i] -= rate * step;
            if left[i] <= 1.0 {
                (left[i], ends[i]) = (0.0, now);
            }
        }
    }
}

/// The time until all is joined.
fn simulated(executions: &[u64], tasks: usize) -> f64 {
    let mut work = vec![0.0; tasks];
    for (owner, &count) in balance(&expected(executions), tasks).into_iter().zip(executions) {
        work[owner] += count as f64 * SECONDS_PER_EXECUTION;
    }
    let starts: Vec<f64> = (0..tasks).map(|task| task as f64 / STARTS_PER_SECOND).collect();
    let last = read_together(&starts).into_iter().zip(&work).map(|(read, work)| read + ANALYSIS_SECONDS + work);
    last.fold(0.0, f64::max) + executions.iter().sum::<u64>() as f64 * JOIN_SECONDS_PER_EXECUTION
}

/// What the book says it is.
fn modelled(executions: &[u64], tasks: usize) -> f64 {
    let sum = executions.iter().sum::<u64>() as f64;
    let longest = *executions.iter().max().unwrap() as f64;
    let n = tasks as f64;
    let reading = (n * RECORDING_BYTES / FOLDER_BYTES_PER_SECOND).max(RECORDING_BYTES / LINK_BYTES_PER_SECOND);
    let working = (sum / n).max(longest) * SECONDS_PER_EXECUTION;
    reading.max(n / STARTS_PER_SECOND) + ANALYSIS_SECONDS + working + sum * JOIN_SECONDS_PER_EXECUTION
}

/// Tasks, seconds as modelled, as simulated.
fn table() -> Vec<(usize, f64, f64)> {
    let executions = executions();
    let tasks = [1, 2, 4, 10, 50, 100, 200, 500, 1000];
    tasks.into_iter().map(|n| (n, modelled(&executions, n), simulated(&executions, n))).collect()
}

#[test]
fn the_model_is_within_a_tenth_of_the_simulation() {
    for (tasks, model, simulation) in table() {
        assert!((model - simulation).abs() <= simulation / 10.0, "{tasks} tasks: {model:.0} s, {simulation:.0} s");
    }
}

#[test]
fn the_book_has_these_numbers() {
    let book = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/src/questions/machines.md");
    let book = std::fs::read_to_string(book).unwrap();
    for (tasks, model, simulation) in table() {
        let row = format!("| {tasks} | {model:.0} s | {simulation:.0} s |");
        assert!(book.contains(&row), "the book lacks {row}");
    }
}
