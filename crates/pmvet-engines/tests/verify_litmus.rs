//! Litmus tests of the search: programs whose reachable post-failure reads are known by hand, checked against the eager search too.
//!
//! The language: `x`, `y`, `z`, `w`, `v` are lines, `x1` is another word of line `x`; `x=1` stores one byte, `x=1*16` sixteen; `2:` in front
//! means thread 2. A recovery is a list of loads; `x?y` loads `y` only if `x` is not zero, `x=1` stores, `!x` fails unless it is 0.

mod verify_world;

use std::collections::BTreeSet;

use pmvet_events::event::{FenceKind, FlushKind};
use verify_world::{Crash, Op, Pm, Reference, SIZE, Seen, crashes, eager, lazy};

fn place(name: &str) -> usize {
    let line = "xyzwv".find(&name[..1]).expect("a line");
    let word: usize = if name.len() > 1 { name[1..].parse().expect("a word") } else { 0 };
    line * 64 + word * 8
}

/// `x=1` or `x=1*16`.
fn store(text: &str) -> (usize, Vec<u8>) {
    let (name, value) = text.split_once('=').expect("a store");
    let (value, count) = value.split_once('*').unwrap_or((value, "1"));
    (place(name), vec![value.parse().expect("a value"); count.parse().expect("a count")])
}

fn program(text: &str) -> Vec<Op> {
    text.split(';').map(str::trim).filter(|op| !op.is_empty()).map(op).collect()
}

fn op(text: &str) -> Op {
    let (thread, text) = match text.split_once(':') {
        Some((thread, rest)) => (thread.parse().expect("a thread"), rest.trim()),
        None => (1, text),
    };
    let line = |name: &str| place(name) / 64;
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    match word {
        "clflush" => Op::Flush { thread, line: line(rest), how: FlushKind::Clflush },
        "clwb" => Op::Flush { thread, line: line(rest), how: FlushKind::Clwb },
        "clflushopt" => Op::Flush { thread, line: line(rest), how: FlushKind::Clflushopt },
        "sfence" => Op::Fence { thread, how: FenceKind::Sfence },
        "mfence" => Op::Fence { thread, how: FenceKind::Mfence },
        "locked" => Op::Fence { thread, how: FenceKind::Locked },
        "msync" => Op::Sync { line: line(rest) },
        "nt" => {
            let (at, value) = store(rest);
            Op::Store { thread, at, value, nontemporal: true }
        }
        "rmw" | "cas" => {
            let (at, value) = store(rest);
            Op::Rmw { thread, at, value, stored: word == "rmw" }
        }
        _ => {
            let (at, value) = store(text);
            Op::Store { thread, at, value, nontemporal: false }
        }
    }
}

/// Runs a recovery; the text says what it reads.
fn recover(text: &str, pm: &mut Pm<'_>) -> u64 {
    for step in text.split_whitespace() {
        if let Some((name, then)) = step.split_once('?') {
            if pm.load(place(name), 1) != [0] && recover(&then.replace(',', " "), pm) != 0 {
                return 1;
            }
        } else if let Some(name) = step.strip_prefix('!') {
            if pm.load(place(name), 1) != [0] {
                return 1;
            }
        } else if step.contains('=') {
            let (at, value) = store(step);
            pm.store(at, &value);
        } else {
            let (name, count) = step.split_once('*').unwrap_or((step, "1"));
            pm.load(place(name), count.parse().expect("a count"));
        }
    }
    0
}

/// What was seen, in the language of the tests: `x=1 y=0`.
fn text((loads, outcome): &Seen) -> String {
    let name = |at: usize| {
        let line = &"xyzwv"[at / 64..at / 64 + 1];
        if at.is_multiple_of(64) { line.to_owned() } else { format!("{line}{}", at % 64 / 8) }
    };
    let value = |value: &[u8]| {
        let runs = value.chunk_by(|a, b| a == b).map(|run| match run.len() {
            1 => run[0].to_string(),
            n => format!("{}*{n}", run[0]),
        });
        runs.collect::<Vec<_>>().join("+")
    };
    let mut words: Vec<String> = loads.iter().map(|(at, v)| format!("{}={}", name(*at), value(v))).collect();
    if *outcome != 0 {
        words.push("FAIL".into());
    }
    words.join(" ")
}

/// Crash at the end: exactly these executions, each once.
fn check(before: &str, after: &str, expected: &[&str]) {
    let ops = program(before);
    let recovery = |pm: &mut Pm<'_>| recover(after, pm);
    let crash: Crash = crashes(&ops).pop().expect("the end");
    let found = lazy(&crash, &recovery, u64::MAX);
    let mut texts: Vec<String> = found.seen.iter().map(text).collect();
    texts.sort();
    let mut expected: Vec<String> = expected.iter().map(|&t| t.to_owned()).collect();
    expected.sort();
    assert_eq!(texts, expected, "{before} / {after}");
    let mut reference = Reference::default();
    ops.iter().for_each(|op| reference.apply(op));
    assert_eq!(found.set(), eager(&reference.images(&[0; SIZE]), &recovery), "{before} / {after}");
}

macro_rules! litmus {
    ($($name:ident: $before:literal / $after:literal => [$($expected:literal),* $(,)?];)*) => {
        $(#[test] fn $name() { check($before, $after, &[$($expected),*]); })*
    };
}

litmus! {
    nothing_stored: "" / "x" => ["x=0"];
    one_store: "x=1" / "x" => ["x=0", "x=1"];
    nobody_looks: "x=1; y=1; z=1" / "w" => ["w=0"];
    clflush_is_enough: "x=1; clflush x" / "x" => ["x=1"];
    clwb_alone: "x=1; clwb x" / "x" => ["x=0", "x=1"];
    clwb_and_sfence: "x=1; clwb x; sfence" / "x" => ["x=1"];
    clflushopt_and_mfence: "x=1; clflushopt x; mfence" / "x" => ["x=1"];
    a_locked_instruction_fences: "x=1; clwb x; locked" / "x" => ["x=1"];
    a_failed_cas_fences: "x=1; clwb x; cas y=1" / "x y" => ["x=1 y=0"];
    eight_bytes_are_atomic: "x=1*8" / "x*8" => ["x=0*8", "x=1*8"];
    a_wider_store_is_torn: "x=1*24" / "x x1 x2" => ["x=0 x1=0 x2=0", "x=1 x1=0 x2=0", "x=1 x1=1 x2=0", "x=1 x1=1 x2=1"];
    a_torn_store_keeps_the_order: "x=1*16; x=2*16" / "x x1" => ["x=0 x1=0", "x=1 x1=0", "x=1 x1=1", "x=2 x1=1", "x=2 x1=2"];
    a_fence_makes_a_wide_store_whole: "x=1*16; clwb x; sfence" / "x x1" => ["x=1 x1=1"];
    a_locked_wide_store_is_atomic: "rmw x=1*16" / "x x1" => ["x=0 x1=0", "x=1 x1=1"];
    rmw_stores: "x=1; clwb x; rmw y=1" / "x y" => ["x=1 y=0", "x=1 y=1"];
    sfence_alone: "x=1; sfence" / "x" => ["x=0", "x=1"];
    flush_before_store: "clwb x; x=1; sfence" / "x" => ["x=0", "x=1"];
    store_between_flush_and_fence: "x=1; clwb x; x=2; sfence" / "x" => ["x=1", "x=2"];
    two_lines: "x=1; y=1" / "x y" => ["x=0 y=0", "x=0 y=1", "x=1 y=0", "x=1 y=1"];
    one_line_keeps_order: "x=1; x1=1" / "x x1" => ["x=0 x1=0", "x=1 x1=0", "x=1 x1=1"];
    one_line_read_backwards: "x=1; x1=1" / "x1 x" => ["x1=0 x=0", "x1=0 x=1", "x1=1 x=1"];
    order_of_reads_does_not_matter: "x=1; x1=2; x2=3" / "x2 x" => ["x2=0 x=0", "x2=0 x=1", "x2=3 x=1"];
    flushed_then_stored: "x=1; clflush x; y=1" / "x y" => ["x=1 y=0", "x=1 y=1"];
    stored_then_other_flushed: "x=1; y=1; clflush y" / "x y" => ["x=0 y=1", "x=1 y=1"];
    overwritten: "x=1; x=2; x=3" / "x" => ["x=0", "x=1", "x=2", "x=3"];
    overwritten_after_flush: "x=1; clflush x; x=2; x=3" / "x" => ["x=1", "x=2", "x=3"];
    read_twice_is_one_choice: "x=1" / "x x" => ["x=0 x=0", "x=1 x=1"];
    read_once_decides_the_line: "x=1; x1=1; x2=1" / "x2 x1 x" => [
        "x2=0 x1=0 x=0", "x2=0 x1=0 x=1", "x2=0 x1=1 x=1", "x2=1 x1=1 x=1",
    ];
    commit_store_hides: "x=1; y=1" / "y?x" => ["y=0", "y=1 x=0", "y=1 x=1"];
    commit_store_after_flush: "x=1; clflush x; y=1" / "y?x" => ["y=0", "y=1 x=1"];
    commit_store_durable: "x=1; clflush x; y=1; clflush y" / "y?x" => ["y=1 x=1"];
    commit_store_of_many: "x=1; x1=1; z=1; w=1; clflush x; clflush z; clflush w; y=1" / "y?x,x1,z,w" => [
        "y=0", "y=1 x=1 x1=1 z=1 w=1",
    ];
    own_store_hides_the_crash: "x=1" / "x=5 x" => ["x=5"];
    own_store_beside: "x=1; x1=1" / "x=5 x x1" => ["x=5 x1=0", "x=5 x1=1"];
    own_store_after_the_load: "x=1" / "x x=5 x" => ["x=0 x=5", "x=1 x=5"];
    own_store_hides_part: "x=1*16" / "x=5*8 x*16" => ["x=5*8+0*8", "x=5*8+1*8"];
    a_wide_load_of_small_stores: "x=1*4; x=2*2" / "x*4" => ["x=0*4", "x=1*4", "x=2*2+1*2"];
    small_loads_of_a_wide_store: "x=1*16" / "x x1" => ["x=0 x1=0", "x=1 x1=0", "x=1 x1=1"];
    a_store_across_lines_tears: "x7=1*16" / "x7 y" => ["x7=0 y=0", "x7=0 y=1", "x7=1 y=0", "x7=1 y=1"];
    a_load_across_lines: "x7=1*16" / "x7*16" => ["x7=0*16", "x7=0*8+1*8", "x7=1*8+0*8", "x7=1*16"];
    the_same_value_again_is_no_choice: "x=0; y=0" / "x y" => ["x=0 y=0"];
    there_and_back: "x=1; x=0" / "x" => ["x=0", "x=1"];
    there_and_back_with_a_neighbour: "x=1; x1=1; x=0" / "x x1" => ["x=0 x1=0", "x=0 x1=1", "x=1 x1=0", "x=1 x1=1"];
    nontemporal_is_pending: "nt x=1" / "x" => ["x=0", "x=1"];
    nontemporal_and_fence: "nt x=1; sfence" / "x" => ["x=1"];
    nontemporal_carries_its_line: "x=1; nt x1=1; sfence" / "x x1" => ["x=1 x1=1"];
    another_threads_fence: "x=1; clwb x; 2: sfence" / "x" => ["x=0", "x=1"];
    another_threads_flush: "x=1; 2: clwb x; 2: sfence" / "x" => ["x=1"];
    another_threads_clflush: "x=1; 2: clflush x" / "x" => ["x=1"];
    threads_share_a_line: "x=1; 2: x1=1; 3: x2=1" / "x2 x1 x" => [
        "x2=0 x1=0 x=0", "x2=0 x1=0 x=1", "x2=0 x1=1 x=1", "x2=1 x1=1 x=1",
    ];
    a_thread_flushes_anothers_store: "x=1; 2: x1=1; clwb x; sfence; 2: x=2" / "x x1" => ["x=1 x1=1", "x=2 x1=1"];
    msync_persists: "x=1; y=1; msync x" / "x y" => ["x=1 y=0", "x=1 y=1"];
    a_fence_covers_both_flushes: "x=1; y=1; clwb x; clwb y; sfence" / "x y" => ["x=1 y=1"];
    a_fence_covers_one_flush: "x=1; y=1; clwb x; sfence" / "x y" => ["x=1 y=0", "x=1 y=1"];
    failing_ends_the_execution: "x=1; y=1" / "!x y" => ["x=0 y=0", "x=0 y=1", "x=1 FAIL"];
    a_torn_store_beside_another_line: "x=1*16; clwb x; y=1" / "x x1 y" => [
        "x=0 x1=0 y=0", "x=0 x1=0 y=1", "x=1 x1=0 y=0", "x=1 x1=0 y=1", "x=1 x1=1 y=0", "x=1 x1=1 y=1",
    ];
    half_of_a_store_across_lines_is_flushed: "x7=1*16; clwb x; sfence" / "x7 y" => ["x7=1 y=0", "x7=1 y=1"];
    a_vector_store_may_have_begun: "x=1*32" / "x x3" => ["x=0 x3=0", "x=1 x3=0", "x=1 x3=1"];
    a_torn_overwrite: "x=1*16; clwb x; sfence; x=2*16" / "x x1" => ["x=1 x1=1", "x=2 x1=1", "x=2 x1=2"];
    recovery_fails_on_the_whole_store_only: "x=1*16" / "x?!x1" => ["x=0", "x=1 x1=0", "x=1 x1=1 FAIL"];
    a_nontemporal_vector_store_is_torn: "nt x=1*16" / "x x1" => ["x=0 x1=0", "x=1 x1=0", "x=1 x1=1"];
    a_nontemporal_store_waits_for_its_own_fence: "nt x=1; 2: sfence" / "x" => ["x=0", "x=1"];
    nontemporal_stores_of_one_line_keep_their_order: "nt x=1; nt x1=1" / "x1 x" => ["x1=0 x=0", "x1=0 x=1", "x1=1 x=1"];
    clflush_does_not_wait_for_clwb: "x=1; clwb x; y=1; clflush y" / "x y" => ["x=0 y=1", "x=1 y=1"];
    a_locked_store_is_not_yet_persistent: "rmw x=1" / "x" => ["x=0", "x=1"];
    a_locked_store_keeps_the_order_of_its_line: "x=1; rmw x1=1" / "x1 x" => ["x1=0 x=0", "x1=0 x=1", "x1=1 x=1"];
    a_flush_of_the_wrong_line: "x=1; clwb y; sfence" / "x" => ["x=0", "x=1"];
    flushed_twice: "x=1; clwb x; clwb x; sfence; x=2" / "x" => ["x=1", "x=2"];
    the_last_flush_counts: "x=1; clwb x; x=2; clwb x; sfence; x=3" / "x" => ["x=2", "x=3"];
    msync_does_not_cover_what_comes_after_it: "x=1; msync x; x=2" / "x" => ["x=1", "x=2"];
    msync_covers_all_threads: "x=1; 2: x1=1; msync x" / "x x1" => ["x=1 x1=1"];
    a_flush_covers_what_other_threads_stored: "x=1; 2: x1=1; 2: clwb x; 2: sfence" / "x x1" => ["x=1 x1=1"];
    another_threads_flush_came_too_early: "2: clwb x; x=1; 2: sfence" / "x" => ["x=0", "x=1"];
    one_of_two_threads_fences: "x=1; clwb x; 2: clwb x; 2: sfence" / "x" => ["x=1"];
    a_chain_of_commits: "x=1; clwb x; sfence; y=1; clwb y; sfence; z=1" / "z?y,x" => ["z=0", "z=1 y=1 x=1"];
    one_fence_for_two_links: "x=1; clwb x; y=1; clwb y; sfence; z=1" / "z?y,x" => ["z=0", "z=1 y=1 x=1"];
    a_chain_with_a_missing_flush: "x=1; y=1; clwb y; sfence; z=1" / "z?y,x" => ["z=0", "z=1 y=1 x=0", "z=1 y=1 x=1"];
    a_chain_with_a_missing_fence: "x=1; clwb x; z=1" / "z?x" => ["z=0", "z=1 x=0", "z=1 x=1"];
    figure_2: "y=1; x=2; clflush x; y1=3; x=4" / "x" => ["x=2", "x=4"];
}

/// The paper's figure 2 has `x` and `y` in one line.
const FIGURE_2: &str = "x1=1; x=2; clflush x; x1=3; x=4; x1=5; x=6";

#[test]
fn figure_2_x_may_be_2_4_or_6() {
    check(FIGURE_2, "x", &["x=2", "x=4", "x=6"]);
}

#[test]
fn figure_3_after_x_is_4_y_is_3_or_5() {
    // x1 is the figure's y.
    let expected = ["x=2 x1=1", "x=2 x1=3", "x=4 x1=3", "x=4 x1=5", "x=6 x1=5"];
    check(FIGURE_2, "x x1", &expected);
}

/// `addChild`: the node's data is `x`, the pointer to it is `y`.
const FIGURE_4: &str = "x=7; clflush x; y=1; clflush y";

#[test]
fn figure_4_has_three_failure_points_with_one_two_and_one_executions() {
    let recovery = |pm: &mut Pm<'_>| recover("y?x", pm);
    let crashes = crashes(&program(FIGURE_4));
    let found: Vec<Vec<String>> =
        crashes.iter().map(|crash| lazy(crash, &recovery, u64::MAX).seen.iter().map(text).collect()).collect();
    assert_eq!(found, [vec!["y=0"], vec!["y=1 x=7", "y=0"], vec!["y=1 x=7"]]);
}

#[test]
fn without_the_commit_store_every_combination_is_an_execution() {
    // What the paper says of a readChild that does not look at the commit store: 2^n for n lines.
    let crash = crashes(&program("x=1; y=1; z=1; w=1")).pop().unwrap();
    let found = lazy(&crash, &|pm: &mut Pm<'_>| recover("x y z w", pm), u64::MAX);
    assert_eq!(found.seen.len(), 16);
}

/// Executions at all failure points, and what an eager search would need.
fn cost(before: &str, recovery: &dyn Fn(&mut Pm<'_>) -> u64) -> (usize, u128) {
    crashes(&program(before)).iter().fold((0, 0), |(lazily, eagerly), crash| {
        let all = pmvet_engines::verify::crash::combinations(&crash.lines);
        (lazily + lazy(crash, recovery, u64::MAX).seen.len(), eagerly + all)
    })
}

#[test]
fn commit_stores_cost_a_number_of_executions_linear_in_the_operations() {
    // Each operation fills a node (three lines that share nothing) and commits it with one durable store to x.
    let operation = |i: usize| {
        let mut text = String::new();
        for line in ["y", "z", "w"] {
            text.push_str(&(0..8).map(|word| format!("{line}{word}={};", i + 1)).collect::<String>());
        }
        text.push_str(&format!("clwb y; clwb z; clwb w; sfence; x={}; clwb x; sfence;", i + 1));
        text
    };
    let recovery = |pm: &mut Pm<'_>| {
        let committed = pm.load(0, 1)[0];
        // Nodes are written anew only after a commit, so what is committed is read from elsewhere.
        u64::from(committed)
    };
    let mut counts = Vec::new();
    for operations in [2, 4, 8, 16] {
        let text: String = (0..operations).map(operation).collect();
        let (lazily, eagerly) = cost(&text, &recovery);
        println!("{operations} operations: {lazily} executions, eager {eagerly}");
        assert!(eagerly > 700 * operations as u128);
        counts.push(lazily);
    }
    assert_eq!(counts[1] - counts[0], 2 * 3);
    assert_eq!(counts[2] - counts[1], 4 * 3);
    assert_eq!(counts[3] - counts[2], 8 * 3);
}

#[test]
fn a_checksum_does_not_explode() {
    // 4 lines of 8 words each are only summed; x0 holds the sum.
    let mut text = String::new();
    for line in ["y", "z", "w", "v"] {
        text.push_str(&(0..8).map(|word| format!("{line}{word}={};", word + 1)).collect::<String>());
    }
    text.push_str("x=144");
    let sum = |pm: &mut Pm<'_>| {
        let wanted = pm.load(0, 1)[0];
        let mut sum = 0u8;
        for at in (64..64 + 4 * 64).step_by(8) {
            sum = sum.wrapping_add(pm.load(at, 1)[0]);
        }
        if wanted != 0 && sum == wanted { 1 } else { 0 }
    };
    let crash = crashes(&program(&text)).pop().unwrap();
    let all = pmvet_engines::verify::crash::combinations(&crash.lines);
    let found = lazy(&crash, &sum, 0);
    println!("checksum: {} executions, {} choices left, eager {all}", found.seen.len(), found.doubtful);
    assert_eq!(all, 9 * 9 * 9 * 9 * 2);
    assert!(found.seen.len() < 200, "{}", found.seen.len());
    assert!(found.doubtful > 0);
    let outcomes: BTreeSet<u64> = found.seen.iter().map(|(_, outcome)| *outcome).collect();
    assert_eq!(outcomes, BTreeSet::from([0, 1]));
}

#[test]
fn locks_that_recovery_frees_do_not_explode() {
    let places: Vec<usize> = (0..5).flat_map(|line| [line * 64]).collect();
    let free = |pm: &mut Pm<'_>| {
        for &at in &places {
            if pm.load(at, 1) != [0] {
                pm.store(at, &[0]);
            }
        }
        0
    };
    let crash = crashes(&program("x=1; y=1; z=1; w=1; v=1")).pop().unwrap();
    let hasty = lazy(&crash, &free, 0);
    // All held, and each of them free.
    assert_eq!((hasty.seen.len(), hasty.doubtful), (6, 4 + 3 + 2 + 1));
    assert_eq!(lazy(&crash, &free, u64::MAX).seen.len(), 32);
}

#[test]
fn patience_makes_up_for_the_assumption() {
    // Fails only if both are lost: each alone shows nothing.
    let both = |pm: &mut Pm<'_>| u64::from(pm.load(0, 1) == [0] && pm.load(64, 1) == [0]);
    let both_read = |pm: &mut Pm<'_>| {
        let (x, y) = (pm.load(0, 1), pm.load(64, 1));
        u64::from(x == [0] && y == [0])
    };
    let crash = crashes(&program("x=1; y=1")).pop().unwrap();
    for recovery in [&both as &dyn Fn(&mut Pm<'_>) -> u64, &both_read] {
        let found = lazy(&crash, recovery, u64::MAX);
        assert!(found.seen.iter().any(|(_, outcome)| *outcome == 1));
        assert_eq!(found.doubtful, 0);
    }
}
