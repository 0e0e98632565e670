//! What a run has found is told, whatever becomes of the files that it is kept in, and shards together find what one run does.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use pmvet_fixtures::{CLEAN, CheckedRun, FOUND, TestPlace, USAGE, both_cores, finish, make, one_of_each, turn};
use serde_json::Value;

const PMVET: &str = env!("CARGO_BIN_EXE_pmvet");

const INTERNAL: i32 = 70;

// ---- A full disk

/// Records a run on a disk of its own, fills the disk, and lets the run go on. Returns nothing where a disk cannot be mounted.
fn on_a_full_disk(place: &TestPlace, program: &str, export: &str) -> Option<CheckedRun> {
    let disk = place.work().join("disk");
    fs::create_dir(&disk).unwrap();
    let program = make("zoo", "zoo").join(program);
    let pm: Vec<String> = place.pm().into_iter().map(|word| word.into_string().unwrap()).collect();
    let script = format!(
        "mount -t tmpfs -o size=64m none {disk} || exit 99
         check() {{ {PMVET} check --quiet -j2 {pm} --runs {disk}/runs --export-json {disk}/{export} \"$@\" -- {program} {pool} -n 40; }}
         check --sample 1 > {disk}/first 2>&1
         [ $? -le 1 ] || {{ cat {disk}/first >&2; exit 98; }}
         cat /dev/zero > {disk}/rest 2> /dev/null
         check --resume",
        disk = disk.display(),
        pm = pm.join(" "),
        program = program.display(),
        pool = place.pool().display(),
    );
    let mut command = Command::new("unshare");
    // Without rights of its own a user may have them in a namespace.
    let rights: &[&str] = if fs::metadata("/proc/self").is_ok_and(is_root) { &["-m"] } else { &["-r", "-m"] };
    command.args(rights).args(["sh", "-c", &script]).current_dir(place.work()).stdin(std::process::Stdio::null());
    let output = finish(command, None).expect("pmvet hangs");
    assert_ne!(output.status.code(), Some(98), "{}", String::from_utf8_lossy(&output.stderr));
    let is_mounted = !matches!(output.status.code(), None | Some(99)) && !output.stderr.starts_with(b"unshare:");
    if !is_mounted {
        eprintln!("not tested: {}", String::from_utf8_lossy(&output.stderr));
    }
    is_mounted.then(|| CheckedRun::new(place, &output))
}

fn is_root(process: fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    process.uid() == 0
}

#[test]
fn findings_are_shown_on_a_full_disk() {
    let place = TestPlace::new();
    let Some(found) = on_a_full_disk(&place, "plist/bug-3", "out.json") else { return };
    let said = format!("{}{}", found.stdout, found.stderr);
    found.expect(
        FOUND,
        &["No space left on device", "tried.jsonl", "findings.jsonl", "out.json", "not kept as a whole"],
    );
    assert!(found.stdout.contains("error[recovery-failure]"), "{said}");
    assert!(found.stdout.contains("pmvet: 1 error in"), "{said}");
    for promise in ["= replay:", "= more:"] {
        assert!(!found.stdout.contains(promise), "nothing is promised that is not kept: {said}");
    }
    assert!(found.stdout.contains("= expected:"), "what cannot be shown later is shown now: {said}");
}

#[test]
fn a_clean_run_that_cannot_be_kept_is_no_success() {
    let place = TestPlace::new();
    let Some(clean) = on_a_full_disk(&place, "plist/clean", "out.json") else { return };
    clean.expect(INTERNAL, &["No space left on device", "not kept as a whole"]);
    assert!(clean.stdout.contains("pmvet: no findings in"), "{}{}", clean.stdout, clean.stderr);
}

#[test]
fn an_export_that_fails_hides_no_finding() {
    let place = TestPlace::new();
    let (program, pool) = (make("zoo", "zoo").join("plist/bug-3"), place.pool());
    let command = [program.to_str().unwrap(), pool.to_str().unwrap(), "-n", "40"];
    fs::write(place.work().join("old.html"), "old").unwrap();
    let exports = ["--export-sarif", "no/such/folder/out.sarif", "--export-html", "old.html"];
    let found = place.check(&["-j2"], &command).option(&exports).run();
    found.expect(FOUND, &["no/such/folder/out.sarif"]);
    assert!(found.stdout.contains("error[recovery-failure]"), "{}", found.stdout);
    assert!(fs::read_to_string(place.work().join("old.html")).unwrap().contains("recovery-failure"));
    assert_eq!(found.errors().count(), 1, "the run itself is kept");
    let clean = make("zoo", "zoo").join("plist/clean");
    let command = [clean.to_str().unwrap(), pool.to_str().unwrap(), "-n", "40"];
    place.check(&["-j2"], &command).option(&exports).run().expect(INTERNAL, &["no/such/folder/out.sarif"]);
}

// ---- Shards

/// What a run has counted, by name.
fn counters(run: &Path) -> BTreeMap<String, u64> {
    let report: Value = serde_json::from_slice(&fs::read(run.join("report.json")).unwrap()).unwrap();
    let counters = report["coverage"]["counters"].as_array().unwrap();
    counters.iter().map(|c| (c["name"].as_str().unwrap().into(), c["done"].as_u64().unwrap())).collect()
}

/// Fingerprints, with how often each was seen.
fn counts(checked: &CheckedRun) -> BTreeMap<String, (String, u64)> {
    let all = checked.findings.iter();
    all.map(|f| (format!("{} {}", f.rule, f.fingerprint), (f.title.clone(), f.count))).collect()
}

/// Makes a run, then its shards, and joins them. Says what differs.
fn joined_equals_whole((bug, options, shards): &(&str, &[&str], u32)) -> Result<(), String> {
    let place = TestPlace::new();
    let (program, pool) = (make("zoo", "zoo").join(bug), place.pool());
    let command = [program.to_str().unwrap(), pool.to_str().unwrap(), "-n", "40"];
    let whole = place.check(options, &command).run();
    whole.expect(FOUND, &[]);
    let expected = counters(&place.run());
    let mut names = Vec::new();
    for shard in 1..=*shards {
        let (part, runs) = (format!("{shard}/{shards}"), format!("shard-{shard}"));
        let code = place.check(options, &command).option(&["--shard", &part, "--runs", &runs]).run().code;
        assert!(matches!(code, Some(CLEAN | FOUND)), "{bug} {part}: {code:?}");
        names.push(runs);
    }
    let mut words = vec!["merge".to_owned()];
    words.extend(names);
    let output = finish(place.pmvet(&words), None).unwrap();
    let joined = CheckedRun::new(&place, &output);
    let text = format!("{bug} {options:?} in {shards}: {}{}", joined.text(), joined.stdout);
    if joined.code != Some(FOUND) || counts(&joined) != counts(&whole) {
        return Err(format!("{text}\nbut the whole:\n{:#?}\nand joined\n{:#?}", counts(&whole), counts(&joined)));
    }
    if counters(&place.run()) != expected {
        return Err(format!("{text}\n{:?}, but the whole {expected:?}", counters(&place.run())));
    }
    let replay = place.replay("1");
    if replay.status.code() != Some(FOUND) {
        return Err(format!("{text}\nreplay 1: {}", String::from_utf8_lossy(&replay.stderr)));
    }
    joined.errors().try_for_each(|finding| place.replays(finding))
}

#[test]
fn shards_together_find_what_one_run_finds() {
    let _turn = turn();
    let bugs: [(&str, &[&str]); 3] =
        [("undo_btree/bug-3", &["-j1"]), ("plist/bug-3", &["-j1", "--reorder"]), ("redo_array/bug-10", &["-j1"])];
    // Each bug in another number of shards first.
    let cases = (0..3).flat_map(|turn| (0..3).map(move |nth| (bugs[nth].0, bugs[nth].1, 2 + (nth as u32 + turn) % 3)));
    both_cores(&one_of_each(cases, |&(bug, ..)| bug), joined_equals_whole);
}

#[test]
fn what_cannot_be_joined() {
    let place = TestPlace::new();
    let (program, pool) = (make("zoo", "zoo").join("plist/bug-3"), place.pool());
    let command = [program.to_str().unwrap(), pool.to_str().unwrap(), "-n", "40"];
    let shard = |part: &str, runs: &str| {
        place.check(&["-j2", "--shard", part, "--runs", runs], &command).run();
    };
    shard("1/2", "one");
    shard("1/2", "two");
    let merge =
        |words: &[&str]| CheckedRun::new(&place, &finish(place.pmvet(&[&["merge"], words].concat()), None).unwrap());
    merge(&["one", "nowhere"]).expect(USAGE, &["`nowhere` is neither a run"]);
    merge(&["one", "./one"]).expect(USAGE, &["named twice"]);
    merge(&["one", "two"]).expect(USAGE, &["shard 1/2 is named twice"]);
    // One that is missing is told, and the run is not whole.
    let part = merge(&["one"]);
    assert!(part.stdout.contains("shards that were not given: 2/2"), "{}", part.stdout);
    let info: Value = serde_json::from_slice(&fs::read(place.run().join("run.json")).unwrap()).unwrap();
    assert_eq!(info["complete"], Value::Bool(false));
    // It cannot be gone on with, as it has no recording of its own.
    place.check(&["-j2"], &command).resume().expect(USAGE, &["joined shards"]);
}
