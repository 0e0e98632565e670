//! `pmvet verify` end to end, on programs whose executions can be counted by hand, and on recoveries that misbehave.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};

use pmvet_fixtures::{
    CLEAN, Check, CheckedRun, FOUND, INCOMPLETE, NOTHING, TestPlace, USAGE, compile, turn, wait_until,
};
use serde::Deserialize;

/// What a run says about itself.
#[derive(Debug, Deserialize)]
struct Stats {
    failure_points: u64,
    executions: u64,
    executions_known: u64,
    /// May be any number.
    eager_executions: String,
    crashes_in_recovery: u64,
}

fn stats(place: &TestPlace) -> Stats {
    serde_json::from_slice(&fs::read(place.run().join("stats.json")).unwrap()).unwrap()
}

fn program() -> PathBuf {
    compile("tests/programs/verify_program.c", "verify-program", &[])
}

/// A verification of `program.c`, on a pool of zeroes.
fn verify<'a>(place: &'a TestPlace, workload: &[&str], recovery: &str) -> Check<'a> {
    verify_by(place, workload, &program(), recovery)
}

/// The same, with the recovery of another program.
fn verify_by<'a>(place: &'a TestPlace, workload: &[&str], recovering: &Path, recovery: &str) -> Check<'a> {
    let (program, pool) = (program(), place.pool());
    fs::write(&pool, vec![0; 64 << 10]).unwrap();
    let (program, pool) = (program.to_str().unwrap(), pool.to_str().unwrap());
    let recover = format!("{} {pool} {recovery}", recovering.display());
    let command: Vec<&str> = [program, pool].into_iter().chain(workload.iter().copied()).collect();
    place.verify(&["-j1", "--recover", &recover], &command)
}

/// Asserts that it printed a text, however its lines are broken.
#[track_caller]
fn says(found: &CheckedRun, text: &str) {
    let words: Vec<&str> = found.stdout.split_whitespace().collect();
    assert!(words.join(" ").contains(text), "{text:?} is not in: {}", found.stdout);
}

#[test]
fn the_papers_figures_have_the_executions_that_the_text_names() {
    let _turn = turn();
    // Figure 2: before the flush x is 0 or 2, at the end 2, 4 or 6. Figure 3: then y, which x narrows down to 1 or 3, 3 or 5, and 5;
    // before the flush (0, 0), (0, 1) and (2, 1). Figure 4: one execution, two, and one.
    for (workload, recovery, points, executions) in
        [("figure2", "read-x", 2, 2 + 3), ("figure2", "read-x-y", 2, 3 + 5), ("figure4", "read-child", 3, 1 + 2 + 1)]
    {
        let place = TestPlace::new();
        verify(&place, &[workload], recovery).run().expect(CLEAN, &[]);
        let stats = stats(&place);
        assert_eq!((stats.failure_points, stats.executions), (points, executions), "{workload}, {recovery}");
    }
}

#[test]
fn commit_stores_take_executions_linear_in_the_operations() {
    let _turn = turn();
    let mut counts = Vec::new();
    for operations in [4, 8, 16, 32] {
        let place = TestPlace::new();
        verify(&place, &["commit", &operations.to_string()], "committed").run().expect(CLEAN, &[]);
        let stats = stats(&place);
        println!("{operations} operations: {} executions, eager {}", stats.executions, stats.eager_executions);
        counts.push(stats.executions);
        // Each leaves a line behind that is never made persistent: twice as many images.
        assert!(stats.eager_executions.parse::<u128>().unwrap() > 1 << operations);
    }
    let per_operation = (counts[1] - counts[0]) / 4;
    assert_eq!(
        [counts[1] - counts[0], counts[2] - counts[1], counts[3] - counts[2]].map(|n| n / per_operation),
        [4, 8, 16]
    );
    assert_eq!(per_operation, 3, "one for each failure point, and one more where the commit is in doubt");
}

#[test]
fn a_checksum_does_not_explode() {
    let _turn = turn();
    let place = TestPlace::new();
    verify(&place, &["summed"], "sum-up").option(&["--checksums"]).run().expect(CLEAN, &[]);
    let found = stats(&place);
    println!("checksum: {} executions, eager {}", found.executions, found.eager_executions);
    assert!(found.executions < 200 && found.eager_executions.parse::<u128>().unwrap() > 100_000_000_000);
    // Without the flag nothing is assumed, and what is left is said.
    let place = TestPlace::new();
    let cautious = verify(&place, &["summed"], "sum-up").option(&["--patience", "150"]).run();
    says(cautious.expect(INCOMPLETE, &[]), "choices that seemed to make no difference");
}

#[test]
fn what_is_read_without_loads_counts() {
    let _turn = turn();
    let unmapped = compile("tests/programs/unmapped.c", "verify-unmapped", &[]);
    for how in ["read", "pread", "preadv", "private", "sendfile", "write"] {
        let place = TestPlace::new();
        let found = verify_by(&place, &["unordered"], &unmapped, how).run();
        assert_eq!(found.code, Some(FOUND), "{how}: {}", found.text());
        assert_eq!(found.errors().count(), 1, "{how}: {}", found.text());
        says(&found, "recovery fails if a store in `unordered` is lost");
    }
}

#[test]
fn what_only_the_oracle_reads_counts() {
    let _turn = turn();
    let place = TestPlace::new();
    let oracle = format!("{} {} check", program().display(), place.pool().display());
    let found = verify(&place, &["unordered"], "nothing").option(&["--oracle", &oracle]).run();
    assert_eq!(found.code, Some(FOUND), "{}", found.text());
    says(&found, "the oracle");
    // The one that is satisfied with everything: nothing is left out.
    let place = TestPlace::new();
    let oracle = format!("{} {} read-x", program().display(), place.pool().display());
    verify(&place, &["unordered"], "nothing").option(&["--oracle", &oracle]).run().expect(CLEAN, &[]);
}

#[test]
fn a_recovery_that_looks_at_nothing_says_nothing() {
    let _turn = turn();
    let place = TestPlace::new();
    // A slip of the pen: it finds no file, and is content.
    let recover = format!("test ! -e {}x", place.pool().display());
    fs::write(place.pool(), vec![0; 64 << 10]).unwrap();
    let command =
        [program().to_str().unwrap().to_owned(), place.pool().to_str().unwrap().to_owned(), "unordered".into()];
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    let found = place.verify(&["-j1", "--recover", &recover], &command).run();
    found.expect(NOTHING, &["is --recover right?"]);
}

#[test]
fn a_recovery_with_persistent_caches_keeps_the_order_of_its_stores() {
    let _turn = turn();
    for (persistency, code) in [("adr", FOUND), ("eadr", CLEAN)] {
        let place = TestPlace::new();
        let options = ["--failures", "2", "--persistency", persistency];
        let found = verify(&place, &["elsewhere"], "repair").option(&options).run();
        assert_eq!(found.code, Some(code), "{persistency}: {}", found.text());
    }
}

#[test]
fn recoveries_may_fail_in_any_way() {
    let _turn = turn();
    // A recovery with threads is started anew for each execution; one that leaves a process behind gets a new server.
    for (recovery, outcome) in [
        ("check", "exits with status 1"),
        ("with-threads", "exits with status 1"),
        ("abort", "SIGABRT"),
        ("fault", "SIGSEGV"),
        ("handled", "exits with status 11"),
        ("in-a-thread", "exits with status 1"),
        ("leaves-a-thread", "exits with status 1"),
        ("in-a-child", "exits with status 1"),
        ("leaves-a-child", "exits with status 1"),
    ] {
        let place = TestPlace::new();
        let found = verify(&place, &["unordered"], recovery).run();
        assert_eq!(found.code, Some(FOUND), "{recovery}: {}", found.text());
        says(&found, outcome);
        assert_eq!(stats(&place).executions, 4, "{recovery}");
        let errors: Vec<_> = found.errors().collect();
        assert_eq!(errors.len(), 1, "{recovery}: {}", found.text());
        place.replays(errors[0]).unwrap();
        place.assert_clean(&["pool"]);
    }
}

#[test]
fn a_recovery_that_hangs_is_found() {
    let _turn = turn();
    let place = TestPlace::new();
    let found = verify(&place, &["unordered"], "hang").option(&["--recover-timeout", "1s"]).run();
    says(found.expect(FOUND, &[]), "still runs after 1 s");
    place.assert_clean(&["pool"]);
}

#[test]
fn a_finding_names_the_load_the_store_and_the_fix() {
    let _turn = turn();
    let place = TestPlace::new();
    let found = verify(&place, &["unordered"], "check").run();
    for text in ["this store may still be in the cache", "may see it or not", "fix: Flush"] {
        says(&found, text);
    }
}

#[test]
fn a_search_that_was_cut_short_goes_on() {
    let _turn = turn();
    let place = TestPlace::new();
    let whole = verify(&place, &["commit", "12"], "committed");
    whole.run().expect(CLEAN, &[]);
    let all = stats(&place).executions;
    says(whole.clone().option(&["--max-executions", "9"]).run().expect(INCOMPLETE, &[]), "no time for");
    assert_eq!(stats(&place).executions, 9);
    whole.resume().expect(CLEAN, &[]);
    let rest = stats(&place);
    assert_eq!((rest.executions_known, rest.executions), (9, all - 9));
    verify(&place, &["commit", "13"], "committed").resume().expect(USAGE, &["another command line"]);
}

#[test]
fn a_killed_search_leaves_nothing_and_goes_on() {
    let _turn = turn();
    let place = TestPlace::new();
    let search = verify(&place, &["commit", "60"], "committed");
    let mut running = search.start();
    let journal = place.run().join("executions.jsonl");
    wait_until("some executions are made", || {
        fs::read(&journal).is_ok_and(|text| text.iter().filter(|&&b| b == b'\n').count() >= 5)
    });
    running.signal(libc::SIGKILL);
    running.end();
    place.assert_clean(&["pool"]);
    search.resume().expect(CLEAN, &[]);
    let stats = stats(&place);
    assert!(stats.executions_known >= 5);
    assert_eq!(stats.executions_known + stats.executions, 3 * 60 + 1);
}

#[test]
fn what_verify_cannot_do_is_said_before_anything_runs() {
    let _turn = turn();
    let place = TestPlace::new();
    let server = ["--client", "true", "--ready-when", "line:x"];
    verify(&place, &["unordered"], "check").option(&server).run().expect(USAGE, &["for servers use check"]);
    verify(&place, &["unordered"], "check").option(&["--failures", "0"]).run().expect(USAGE, &["--failures"]);
    verify(&place, &["figure2"], "nothing").option(&["--failures", "2"]).run().expect(CLEAN, &[]);
    assert_eq!(stats(&place).crashes_in_recovery, 0);
}
