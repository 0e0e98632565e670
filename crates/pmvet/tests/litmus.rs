//! Litmus programs: tiny, and every event of theirs counted by hand. What a line must give stands behind it, in the
//! program's own text; this file adds what no single line shows: orders between threads, stacks, determinism.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use pmvet_fixtures::litmus::{Litmus, check, check_with, render_all};
use pmvet_fixtures::tracing::{self, JsonEvent, TracedRun, Tracing};

/// One test per program whose comments say it all.
macro_rules! programs {
    ($($test:ident $file:literal)*) => {$(
        #[test]
        fn $test() {
            check($file);
        }
    )*};
}

programs! {
    stores "stores.c"
    stores_to_constant_addresses "absolute.c"
    string_instructions "strings.c"
    masked_stores "masked.c"
    avx512 "avx512.c"
    non_temporal_stores "nontemporal.c"
    direct_stores "direct.c"
    read_modify_writes "rmw.c"
    flushes_and_fences "fences.c"
    loads "loads.c"
    markers "markers.c"
    system_calls_that_write_memory "sysread.c"
    system_calls_that_write_files "syswrite.c"
    system_calls_that_change_files "sysfile.c"
    mappings "mappings.c"
    moved_mappings "mremap.c"
    faults "faults.c"
    mutexes "mutex.c"
    other_locks "locks.c"
    calls "calls.c"
    tail_calls "tailcall.c"
    inlined_functions "inlined.c"
    exceptions "exceptions.cc"
    signal_handlers "signals.c"
}

/// Compiles and runs a program once, without loads, and checks its comments.
fn checked(name: &str) -> TracedRun {
    let litmus = Litmus::compile(name).unwrap();
    let traced = litmus.run(&Tracing::default(), &[]);
    litmus.check(&traced, false);
    traced
}

/// The numbers of all events of a kind, by one thread.
fn numbers(traced: &TracedRun, thread: u32, kind: &str) -> Vec<u64> {
    traced.events.iter().filter(|e| e.thread == thread && e.kind == kind).map(|e| e.seq).collect()
}

/// The first and last number of a thread, its start and end included.
fn life(traced: &TracedRun, thread: u32) -> (u64, u64) {
    let of: Vec<u64> = traced.events.iter().filter(|e| e.thread == thread).map(|e| e.seq).collect();
    (*of.first().unwrap(), *of.last().unwrap())
}

fn assert_rising(numbers: &[u64], what: &str) {
    assert!(numbers.is_sorted_by(|a, b| a < b), "{what}: {numbers:?}");
}

#[test]
fn saved_processor_state_is_not_supported_and_pmvet_says_so() {
    let litmus = Litmus::compile("xsave.c").unwrap();
    let traced = litmus.run_any(&Tracing::default(), &[]);
    litmus.check(&traced, false);
    assert!(traced.stderr.contains("saved processor state"), "{}", traced.stderr);
    // The state is not all zeros, so the image cannot hold; that must not go unnoticed.
    assert_eq!(traced.code, Some(1), "{}", traced.stderr);
}

#[test]
fn deleted_file() {
    let litmus = Litmus::compile("unlink.c").unwrap();
    let traced = litmus.run(&Tracing::default(), &[]);
    litmus.check(&traced, false);
}

#[test]
fn threads() {
    let traced = checked("threads.c");
    for child in [2, 3] {
        let (first, last) = life(&traced, child);
        let create = numbers(&traced, 1, "thread-create")[child as usize - 2];
        let join = numbers(&traced, 1, "thread-join")[child as usize - 2];
        assert_rising(&[create, first, last, join], "create, first and last event of the child, join");
        let kinds = traced.events.iter().filter(|e| e.thread == child).map(|e| e.kind.as_str());
        let kinds: Vec<&str> = kinds.collect();
        assert_eq!((kinds.first(), kinds.last()), (Some(&"thread-start"), Some(&"thread-exit")));
    }
    let (first, _) = life(&traced, 4);
    let posted = numbers(&traced, 4, "sem-post")[0];
    assert_rising(
        &[numbers(&traced, 1, "thread-create")[2], first, posted, numbers(&traced, 1, "sem-acquire")[0]],
        "create, first event of the detached thread, its post, the main thread's acquisition",
    );
}

#[test]
fn thread_by_clone() {
    let traced = checked("clone.c");
    let (first, _) = life(&traced, 2);
    let stores = numbers(&traced, 1, "store");
    let create = numbers(&traced, 1, "thread-create")[0];
    assert_rising(&[stores[0], create, first, numbers(&traced, 2, "store")[0], stores[1]], "order around the child");
}

/// Thread 1 waits, thread 2 takes the mutex meanwhile.
fn check_wait(traced: &TracedRun, wait: usize) {
    let waits = numbers(traced, 1, "cond-wait")[wait];
    let woken = numbers(traced, 1, "cond-woken")[wait];
    let between = |kind: &str| {
        let found: Vec<u64> = numbers(traced, 1, kind).into_iter().filter(|n| (waits..woken).contains(n)).collect();
        assert_eq!(found.len(), 1, "{kind} while waiting: {found:?}");
        found[0]
    };
    let (released, acquired) = (between("release"), between("acquire"));
    let [theirs] = numbers(traced, 2, "acquire")[..] else { panic!("one acquisition by the child") };
    let [gave_back] = numbers(traced, 2, "release")[..] else { panic!("one release by the child") };
    let signal = numbers(traced, 2, "cond-signal")[0];
    assert_rising(&[waits, released, theirs, signal, gave_back, acquired, woken], "wait");
}

#[test]
fn condition_variables() {
    check_wait(&checked("cond.c"), 1);
}

#[test]
fn c11_threads() {
    let traced = checked("c11.c");
    check_wait(&traced, 0);
    let (first, last) = life(&traced, 2);
    let create = numbers(&traced, 1, "thread-create")[0];
    assert_rising(&[create, first, last, numbers(&traced, 1, "thread-join")[0]], "create and join");
}

#[test]
fn barriers_and_semaphores() {
    let traced = checked("barrier.c");
    for (thread, other) in [(1, 2), (2, 1)] {
        let enter = numbers(&traced, thread, "barrier-enter")[0];
        assert_rising(&[enter, numbers(&traced, other, "barrier-leave")[0]], "nobody leaves before all have come");
    }
    let (mine, theirs) = (numbers(&traced, 1, "store"), numbers(&traced, 2, "store"));
    let (posts, takes) = (numbers(&traced, 1, "sem-post"), numbers(&traced, 1, "sem-acquire"));
    let posted = numbers(&traced, 2, "sem-post")[0];
    let taken = numbers(&traced, 2, "sem-acquire")[0];
    assert_rising(&[theirs[1], posted, takes[0], mine[1], posts[0], taken, theirs[2]], "two semaphores");
    // Three objects: the barrier and both semaphores.
    let objects: std::collections::BTreeSet<_> = traced.events.iter().filter_map(|e| e.object.as_deref()).collect();
    assert_eq!(objects.len(), 3, "{objects:?}");
}

#[test]
fn locks_of_the_configuration() {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/litmus/userlock.toml");
    check_with("userlock.c", &Tracing { config: Some(config), ..Tracing::default() });
    // Without it they are ordinary functions.
    let traced = Litmus::compile("userlock.c").unwrap().run(&Tracing::default(), &[]);
    let called = |e: &&JsonEvent| e.stack.iter().any(|f| f.function.as_deref().is_some_and(|f| f.starts_with("my_")));
    let locks = traced.events.iter().filter(|e| e.lock.is_some()).find(called);
    assert!(locks.is_none(), "{locks:?}");
}

#[test]
fn recursion() {
    let traced = Litmus::compile("recursion.c").unwrap().run(&Tracing::default(), &[]);
    let stores: Vec<&JsonEvent> = traced.events.iter().filter(|e| e.kind == "store").collect();
    // The innermost call, six others on their way back, main.
    assert_eq!(stores.len(), 8);
    let frames = |e: &JsonEvent, name: &str| e.stack.iter().filter(|f| f.function.as_deref() == Some(name)).count();
    assert_eq!((frames(stores[0], "deeper"), frames(stores[0], "main")), (3000, 1));
    for (store, left) in stores[1..7].iter().zip((500..=3000).step_by(500)) {
        assert_eq!((store.offset, number(&store.value)), (Some(8), left as u64));
        // The call that was made with `left` has the ones with more above it, and itself.
        assert_eq!((frames(store, "deeper"), frames(store, "main")), (3001 - left, 1));
    }
    assert_eq!((frames(stores[7], "deeper"), frames(stores[7], "main")), (0, 1));
}

#[test]
fn fork() {
    let traced = checked("fork.c");
    let (mine, theirs) = (numbers(&traced, 1, "store"), numbers(&traced, 2, "store"));
    assert_rising(&[mine[0], theirs[0], theirs[1], mine[1], mine[2]], "the child between the parent's stores");
    let start = traced.events.iter().find(|e| e.kind == "process-start" && e.thread == 2).unwrap();
    let parent = traced.events.iter().find(|e| e.kind == "process-start" && e.thread == 1).unwrap();
    assert_eq!((start.parent, parent.parent), (parent.process, Some(0)));
    assert_ne!(start.process, parent.process);
}

#[test]
fn exec() {
    let traced = Litmus::compile("exec.c").unwrap().run(&Tracing::default(), &[]);
    let stores = render_all(&traced.events, &["store", "exec"]);
    let word = |n: u8| format!("{n:02x}00000000000000");
    let expected = [
        format!("store 0x0 8 {}", word(1)),
        "exec program".to_owned(),
        format!("store 0x40 8 {}", word(1)),
        "exec program".to_owned(),
        format!("store 0x80 8 {}", word(2)),
        "exec program".to_owned(),
        format!("store 0xc0 8 {}", word(3)),
        "exec no such program".to_owned(),
        format!("store 0x0 8 {}", word(2)),
        "exec program".to_owned(),
        format!("store 0x100 8 {}", word(4)),
    ];
    assert_eq!(stores, expected);
}

/// Each read-modify-write starts from what the one before left, and stores replay to what is there at the end.
fn check_race(arguments: &[&str]) {
    let how = Tracing { no_stacks: true, ..Tracing::default() };
    let litmus = Litmus::compile("race.c").unwrap();
    let traced = litmus.run(&how, arguments);
    let mut word = 0u64;
    let mut by_thread: BTreeMap<u32, u64> = BTreeMap::new();
    let mut next: BTreeMap<u32, u64> = BTreeMap::new();
    for event in traced.events.iter().filter(|e| e.kind == "rmw" || e.kind == "store") {
        if event.kind == "rmw" {
            assert_eq!(event.offset, Some(0x40));
            assert_eq!((number(&event.old), number(&event.new)), (word, word + 1), "event {}", event.seq);
            word += 1;
            *by_thread.entry(event.thread).or_default() += 1;
        } else {
            assert_eq!(event.offset, Some(0x48));
            let expected = next.entry(event.thread).or_default();
            assert_eq!(number(&event.value) & 0xffff_ffff, *expected, "store of thread {}", event.thread);
            *expected += 1;
        }
    }
    assert_eq!(by_thread.values().collect::<Vec<_>>(), [&20_000; 4]);
    assert_eq!(next.values().collect::<Vec<_>>(), [&20_000; 4]);
    // Whoever only counts does not wait for one thread to look at the other's events, and misses none.
    let counted = litmus.count(arguments);
    let file = &counted["files"][0];
    let numbers = [&counted["kinds"]["rmw"], &counted["kinds"]["store"], &file["rmw"], &file["stores"]];
    assert_eq!(numbers, [80_000; 4], "{counted}");
    assert_eq!((&counted["lost_events"], &file["stored_bytes"]), (&0.into(), &640_000.into()));
}

/// A little-endian number in hexadecimal.
fn number(bytes: &Option<String>) -> u64 {
    u64::from_str_radix(bytes.as_deref().unwrap(), 16).unwrap().swap_bytes()
}

#[test]
fn racing_threads() {
    check_race(&[]);
}

#[test]
fn racing_processes() {
    check_race(&["fork"]);
}

#[test]
fn deterministic_runs_are_alike() {
    let litmus = Litmus::compile("varying.c").unwrap();
    let pools = tracing::pm_dir();
    let how = Tracing { deterministic: true, ..Tracing::default() };
    let runs = [litmus.run_in(pools.path(), &how, &[]), litmus.run_in(pools.path(), &how, &[])];
    for run in &runs {
        assert_eq!(run.code, Some(0), "{}", run.stderr);
    }
    assert_same(&runs);
    // Not because nothing varies: without the option the stored bytes differ.
    let free = litmus.run_in(pools.path(), &Tracing::default(), &[]);
    let stores = |run: &TracedRun| render_all(&run.events, &["store"]);
    assert_ne!(stores(&runs[0]), stores(&free));
    assert_eq!(runs[0].events.iter().filter(|e| e.kind == "sfence").count(), 15);
}

/// Process and thread numbers of the kernel, and inodes, are the host's; all else must be equal.
fn assert_same(runs: &[TracedRun; 2]) {
    let lines = |run: &TracedRun| -> Vec<String> {
        let mut threads = Vec::new();
        let mut without_host = |line: &str| {
            let mut event: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).unwrap();
            if let Some(thread) = event.get("os_thread").and_then(|t| t.as_u64()) {
                threads.push((thread as u32).to_le_bytes().map(|b| format!("{b:02x}")).concat());
            }
            for key in ["process", "parent", "os_thread", "inode"] {
                event.remove(key);
            }
            // A mutex in PM holds the number that the kernel gave to its owner.
            if event.get("value").and_then(|v| v.as_str()).is_some_and(|v| threads.iter().any(|t| t == v)) {
                event.insert("value".to_owned(), "owner".into());
            }
            serde_json::to_string(&event).unwrap()
        };
        run.json.lines().map(&mut without_host).collect()
    };
    let (first, second) = (lines(&runs[0]), lines(&runs[1]));
    for (a, b) in first.iter().zip(&second) {
        assert_eq!(a, b);
    }
    assert_eq!(first.len(), second.len());
}

#[test]
fn deterministic_runs_of_a_pmdk_program_are_alike() {
    let scratch = tracing::plain_dir();
    let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../targets/pmdk");
    let program = scratch.path().join("mapcli");
    let mut make = Command::new("make");
    make.arg("-s").arg("-C").arg(targets).arg(format!("OUT={}", scratch.path().display())).arg(&program);
    let made = make.output().unwrap();
    if !made.status.success() {
        eprintln!("skipped: PMDK's examples cannot be built here: {}", String::from_utf8_lossy(&made.stderr));
        return;
    }
    let input = scratch.path().join("input");
    std::fs::write(&input, (0..50).map(|i| format!("i {}\n", i * 7919 % 1000)).collect::<String>() + "p\nq\n").unwrap();
    let pools = tracing::pm_dir();
    let how = Tracing { deterministic: true, no_stacks: true, ..Tracing::default() };
    let pool = pools.path().join("pool");
    // A shell, for the input: the command line is a plain list of words.
    let script = format!("exec {} btree {} < {}", program.display(), pool.display(), input.display());
    let run = || {
        let _ = std::fs::remove_file(&pool);
        let command = ["/bin/sh", "-c", script.as_str()].map(OsStr::new);
        let traced = tracing::trace(&how, &command, scratch.path());
        assert_eq!(traced.code, Some(0), "{}", traced.stderr);
        traced
    };
    let runs = [run(), run()];
    assert_same(&runs);
    let count = |kind: &str| runs[0].events.iter().filter(|e| e.kind == kind).count();
    assert!(count("store") > 1000 && count("sfence") > 50, "{} stores, {} fences", count("store"), count("sfence"));
}

#[test]
fn of_a_row_of_failed_attempts_only_the_first_are_reported() {
    const REPORTED: usize = 256;
    let litmus = Litmus::compile("spinning.c").unwrap();
    let traced = litmus.run(&Tracing { loads: true, ..Tracing::default() }, &[]);
    let of =
        |kind: &str, offset: u64| traced.events.iter().filter(|e| e.kind == kind && e.offset == Some(offset)).count();
    // Two rows of each. The first of a row may count for itself, where its call path was not known.
    let few = |rows: usize| rows * REPORTED..=rows * (REPORTED + 2);
    assert!(few(4).contains(&of("rmw", 0)), "{} attempts", of("rmw", 0));
    assert!(few(2).contains(&of("load", 0)), "{} loads", of("load", 0));
    assert_eq!(of("rmw", 0x40), 1000);
}

#[test]
fn header_in_every_dialect() {
    const PROGRAM: &str = r#"
        #include "pmvet.h"
        int main(void) {
            int number = 5;
            PMVET_BEGIN("a");
            PMVET_NAME(&number, sizeof number, "number");
            PMVET_IGNORE(&number, sizeof number);
            if (number == 5)
                PMVET_CONSISTENT();
            else
                PMVET_LOG("b.BEGIN");
            VALGRIND_EMIT_LOG("b.END");
            VALGRIND_PMC_EMIT_LOG("c");
            PMVET_END("a");
            return number - 5;
        }
    "#;
    let scratch = tracing::plain_dir();
    let program = scratch.path().join("program");
    for (name, dialects) in [("a.c", &["-std=c89", "-std=gnu17"][..]), ("a.cc", &["-std=c++98", "-std=c++20"])] {
        let source = scratch.path().join(name);
        std::fs::write(&source, PROGRAM).unwrap();
        for dialect in dialects {
            for more in ["-O0", "-O2", "-DPMVET_DISABLE"] {
                tracing::compile(&source, &[dialect, more, "-pedantic", "-Wextra", "-Werror"], &program);
                // Outside pmvet the markers do nothing.
                assert!(Command::new(&program).status().unwrap().success(), "{name} {dialect} {more}");
            }
        }
    }
}
