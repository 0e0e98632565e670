//! Work that machines share: `pmvet scatter` and `pmvet gather`, with a shell that runs the tasks of the job. `slurm.rs` does the same
//! with Slurm.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use pmvet_fixtures::scatter::{SharedWork, cases_of, counters, counts, gather, lost_cases, run_task, scatter};
use pmvet_fixtures::{
    CLEAN, CheckedRun, FOUND, INCOMPLETE, INTERRUPTED, NOTHING, TestPlace, USAGE, both_cores, compile, finish, make,
    turn, wait_until,
};

const PMVET: &str = env!("CARGO_BIN_EXE_pmvet");

const INTERNAL: i32 = 70;

// ---- The same as on one machine

/// Starts a task and kills it when it has noted something it did. Says whether that was before its end.
fn kill_under_way(place: &TestPlace, shared: &str, task: u32, journal: &str) -> bool {
    let mut child = place.pmvet(&["scatter", "--shared", shared, "--task", &task.to_string()]);
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let folder = place.work().join(shared).join(format!("tasks/{task}"));
    let noted = || fs::read(folder.join("latest").join(journal)).is_ok_and(|lines| lines.contains(&b'\n'));
    wait_until("it has done something", || noted() || child.try_wait().unwrap().is_some());
    child.kill().unwrap();
    child.wait().unwrap();
    !folder.join("task.json").exists()
}

fn same_as_one_machine(share: &SharedWork) -> Result<(), String> {
    let place = TestPlace::new();
    let whole = share.on_one_machine(&place);
    let expected = counters(&place.run());
    share.scatter(&place, &["--dry-run"]).expect(CLEAN, &[]);
    let was_killed = kill_under_way(&place, "shared", 2, share.journal());
    for task in 1..=share.tasks {
        let ended = run_task(&place, "shared", task);
        assert!(ended.success(), "{share:?} task {task}: {ended}");
    }
    let log = fs::read_to_string(place.work().join("shared/tasks/2/log")).unwrap();
    assert_eq!(log.contains("was done before"), !was_killed, "{log}");
    let joined = gather(&place, &["shared"]);
    let text = format!("{share:?}: {}{}", joined.text(), joined.stdout);
    if joined.code != whole.code || counts(&joined) != counts(&whole) {
        return Err(format!("{text}\none machine:\n{:#?}\nmany:\n{:#?}", counts(&whole), counts(&joined)));
    }
    if counters(&place.run()) != expected {
        return Err(format!("{text}\n{:?}, but one machine {expected:?}", counters(&place.run())));
    }
    joined.errors().try_for_each(|finding| place.replays(finding))
}

#[test]
fn many_machines_find_what_one_finds() {
    let _turn = turn();
    let shares = [
        SharedWork::new("check", "undo_btree/bug-3", 4),
        SharedWork::new("check", "plist/bug-3", 3),
        SharedWork::new("verify", "undo_btree/bug-3", 4),
        SharedWork::new("verify", "plist/bug-3", 3),
        // More tasks than there is work for some of them.
        SharedWork::new("verify", "plist/clean", 28),
    ];
    both_cores(&shares, same_as_one_machine);
}

#[test]
fn test_cases_of_all_campaigns_are_joined_and_none_is_lost() {
    let _turn = turn();
    let place = TestPlace::new();
    let shelf = compile("tests/fuzz/shelf.c", "shelf", &[]);
    let mut command = place.pmvet(&["scatter", "--engine", "fuzz", "-n", "4", "--shared", "shared", "--dry-run", "--"]);
    command.args(["--executions", "300", "--timeout", "30s"]).args(place.pm());
    command.arg("--").arg(shelf).arg(place.pool()).arg("@@");
    CheckedRun::new(&place, &finish(command, Some(b"add 1\ndel 1\n")).unwrap()).expect(CLEAN, &[]);
    for task in 1..=4 {
        assert!(run_task(&place, "shared", task).success());
    }
    let joined = gather(&place, &["shared"]);
    joined.expect(FOUND, &[]);
    assert_eq!(lost_cases(&place.work().join("shared")), Vec::<String>::new());
    let queue = cases_of(&place.work().join("shared/corpus/queue"));
    assert_eq!(counters(&place.run())["test cases"], queue.len() as u64);
    // Once more: nothing is there twice.
    gather(&place, &["shared"]).expect(FOUND, &[]);
    assert_eq!(cases_of(&place.work().join("shared/corpus/queue")), queue);
    assert_eq!(place.replay("1").status.code(), Some(FOUND));
}

// ---- Kubernetes

#[test]
fn the_manifest_is_an_indexed_job() {
    let place = TestPlace::new();
    let share = SharedWork::new("check", "plist/bug-3", 200);
    let printed = share.scatter(&place, &["--kubernetes", "--image", "registry/pmvet: \"x\"", "--claim", "pm"]);
    printed.expect(CLEAN, &[]);
    let manifest: serde_yaml_ng::Value = serde_yaml_ng::from_str(&printed.stdout).unwrap();
    let spec = &manifest["spec"];
    let text = |value: &serde_yaml_ng::Value| value.as_str().unwrap().to_owned();
    assert_eq!((text(&manifest["apiVersion"]), text(&manifest["kind"])), ("batch/v1".into(), "Job".into()));
    assert_eq!(text(&spec["completionMode"]), "Indexed");
    assert_eq!((spec["completions"].as_u64(), spec["parallelism"].as_u64()), (Some(200), Some(200)));
    let pod = &spec["template"]["spec"];
    assert_eq!(text(&pod["restartPolicy"]), "Never");
    let container = &pod["containers"][0];
    assert_eq!(text(&container["image"]), "registry/pmvet: \"x\"");
    assert_eq!(text(&pod["volumes"][0]["persistentVolumeClaim"]["claimName"]), "pm");
    assert_eq!(container["volumeMounts"][0]["name"], pod["volumes"][0]["name"]);
    // The container's command, as a shell runs it with an index that Kubernetes would give it.
    let words: Vec<String> = container["command"].as_sequence().unwrap().iter().map(text).collect();
    let mut command = Command::new(&words[0]);
    let folder = std::path::Path::new(PMVET).parent().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    command.args(&words[1..]).env("JOB_COMPLETION_INDEX", "199").env("PATH", path).current_dir("/");
    let task = finish(command, None).unwrap();
    assert!(task.status.success(), "{}", String::from_utf8_lossy(&task.stderr));
    assert!(place.work().join("shared/tasks/200/task.json").is_file());
}

// ---- What goes wrong

#[test]
fn wrong_usage_is_said_and_leaves_nothing() {
    let place = TestPlace::new();
    let program = make("zoo", "zoo").join("plist/bug-3");
    let program = program.to_str().unwrap();
    fs::create_dir(place.work().join("full")).unwrap();
    fs::write(place.work().join("full/mine"), "").unwrap();
    let cases: [(&[&str], &str); 9] = [
        (&["--engine", "check", "-n", "0", "--", program], "0 is not in 1..=100000"),
        (&["--engine", "check", "-n", "many", "--", program], "invalid value 'many'"),
        (&["--engine", "race", "-n", "2", "--", program], "invalid value 'race'"),
        (&["--engine", "check", "--", program], "--tasks <N>"),
        (&["--engine", "check", "-n", "2", "--shared", "no/such", "--", program], "is the share mounted here?"),
        (&["--engine", "check", "-n", "2", "--shared", "full", "--", program], "is not empty"),
        (&["--engine", "verify", "-n", "2", "--", "--failures", "2", "--", program], "--failures cannot be used"),
        (&["--engine", "check", "-n", "2", "--", "/no/such/program"], "/no/such/program"),
        (&["--task", "1"], "no scattered work"),
    ];
    for (words, said) in cases {
        scatter(&place, words).expect(USAGE, &[said]);
    }
    gather(&place, &["nowhere"]).expect(USAGE, &["there is no scattered work in nowhere"]);
    assert_eq!(fs::read_dir(place.work().join("full")).unwrap().count(), 1);
    assert!(!place.work().join(".pmvet/scatter").exists());
    // A program that fails by itself is not shared.
    let fails = ["--engine", "check", "-n", "2", "--shared", "shared", "--", "/bin/sh", "-c", "exit 7"];
    let code = scatter(&place, &fails).code;
    assert!(matches!(code, Some(3 | 4)), "{code:?}");
    assert!(!place.work().join("shared").exists());
}

#[test]
fn a_job_that_cannot_be_submitted_is_kept() {
    let place = TestPlace::new();
    let mut command = place.pmvet(&["scatter", "--engine", "check", "-n", "2", "--shared", "shared", "--"]);
    command.args(place.pm()).arg("--").arg(make("zoo", "zoo").join("plist/bug-3")).arg(place.pool());
    command.args(["-n", "8"]).env("PATH", "/nowhere");
    let refused = CheckedRun::new(&place, &finish(command, None).unwrap());
    refused.expect(USAGE, &["sbatch cannot be run", "the recording is kept; submit it with `sbatch "]);
    assert!(run_task(&place, "shared", 1).success());
}

#[test]
fn tasks_that_are_missing_or_damaged_are_said() {
    let place = TestPlace::new();
    let share = SharedWork::new("check", "plist/bug-3", 3);
    share.scatter(&place, &["--dry-run"]).expect(CLEAN, &[]);
    gather(&place, &["shared", "--no-wait"]).expect(NOTHING, &["0 of 3 tasks done", "task 1 of 3 has not begun"]);
    scatter(&place, &["--shared", "shared", "--task", "4"]).expect(USAGE, &["4 of 3 tasks; write 1 to 3"]);
    for task in 1..=3 {
        assert!(run_task(&place, "shared", task).success());
    }
    let whole = gather(&place, &["shared"]);
    whole.expect(FOUND, &["3 of 3 tasks done"]);
    // The report of a task is damaged, and nobody has done another one.
    let tasks = place.work().join("shared/tasks");
    fs::write(tasks.join("1/latest/report.json"), "{").unwrap();
    fs::remove_dir_all(tasks.join("2")).unwrap();
    let part = gather(&place, &["shared", "--no-wait", "--fail-on", "error"]);
    part.expect(part.code.unwrap(), &["task 1 of 3 cannot be used", "task 2 of 3 has not begun", "2 of 3 tasks done"]);
    assert!(matches!(part.code, Some(FOUND | INCOMPLETE)), "{}", part.text());
    assert!(part.stdout.contains("shards that were not given: 1/3, 2/3"), "{}", part.stdout);
    // As the message says: they are done again.
    fs::remove_dir_all(tasks.join("1")).unwrap();
    for task in 1..=2 {
        assert!(run_task(&place, "shared", task).success());
    }
    let again = gather(&place, &["shared"]);
    assert_eq!((again.code, counts(&again)), (whole.code, counts(&whole)));
}

#[test]
fn a_clean_result_that_lacks_a_task_is_incomplete() {
    let place = TestPlace::new();
    for (engine, shared) in [("check", "one"), ("verify", "two")] {
        let share = SharedWork { shared, ..SharedWork::new(engine, "plist/clean", 2) };
        share.scatter(&place, &["--dry-run"]).expect(CLEAN, &[]);
        assert!(run_task(&place, shared, 1).success());
        let part = gather(&place, &[shared, "--no-wait"]);
        part.expect(INCOMPLETE, &["task 2 of 2 has not begun"]);
        assert!(part.stdout.contains("not covered:"), "{}", part.stdout);
    }
    // One whose executions cannot be read counts as missing.
    assert!(run_task(&place, "two", 2).success());
    fs::write(place.work().join("two/tasks/2/latest/executions.jsonl"), "x\ny\n").unwrap();
    gather(&place, &["two"]).expect(INCOMPLETE, &["task 2 of 2 cannot be used", "executions.jsonl"]);
}

#[test]
fn a_task_that_fails_does_not_keep_gather_waiting() {
    let place = TestPlace::new();
    let share = SharedWork::new("check", "plist/bug-3", 2);
    share.scatter(&place, &["--dry-run"]).expect(CLEAN, &[]);
    fs::write(place.work().join("shared/recording/latest/trace"), "no trace").unwrap();
    for task in 1..=2 {
        assert_eq!(run_task(&place, "shared", task).code(), Some(USAGE));
    }
    gather(&place, &["shared"])
        .expect(NOTHING, &["0 of 2 tasks done, findings so far: 0, 2 failed", "task 2 of 2 failed"]);
}

#[test]
fn waiting_ends_with_an_interrupt() {
    let place = TestPlace::new();
    SharedWork::new("check", "plist/bug-3", 2).scatter(&place, &["--dry-run"]).expect(CLEAN, &[]);
    let mut command = place.pmvet(&["gather", "shared"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It has its handler when the signal is caught.
    let status = format!("/proc/{}/status", child.id());
    let catches = || {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0").trim().to_owned();
        u64::from_str_radix(&mask, 16).unwrap_or(0) & (1 << (libc::SIGINT - 1)) != 0
    };
    wait_until("it handles SIGINT", catches);
    // SAFETY: a child of ours that has not been waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    let ended = CheckedRun::new(&place, &child.wait_with_output().unwrap());
    ended.expect(INTERRUPTED, &["0 of 2 tasks done", "interrupted by SIGINT; the tasks go on"]);
}

#[test]
fn a_recording_that_is_interrupted_leaves_nothing() {
    let place = TestPlace::new();
    // A time that no other test sleeps for, to know the process by.
    let time = format!("1000.{}", std::process::id());
    for engine in ["check", "verify"] {
        let words = ["scatter", "--engine", engine, "-n", "2", "--shared", "shared", "--dry-run", "--", "sleep", &time];
        let mut child = place.pmvet(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let wanted = format!("sleep\0{time}\0").into_bytes();
        let is_recorded = || {
            let processes = fs::read_dir("/proc").unwrap().flatten();
            processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok()).any(|line| line == wanted)
        };
        wait_until("the program runs", || is_recorded() || child.try_wait().unwrap().is_some());
        // SAFETY: a child of ours that has not been waited for.
        assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
        let ended = CheckedRun::new(&place, &child.wait_with_output().unwrap());
        ended.expect(INTERRUPTED, &["interrupted by SIGINT"]);
        assert!(!place.work().join("shared").exists(), "{}", ended.text());
    }
}

/// Runs a script where a disk may be mounted. Returns nothing if it may not.
fn with_mounts(place: &TestPlace, script: &str) -> Option<CheckedRun> {
    let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    let mut command = Command::new("unshare");
    let script = format!("mount -t tmpfs -o size=8m none disk || exit 99\n{script}");
    command.args(if is_root { &["-m"][..] } else { &["-r", "-m"] }).args(["sh", "-c", &script]);
    command.current_dir(place.work()).stdin(Stdio::null()).env("TMPDIR", place.work());
    let output = finish(command, None).expect("pmvet hangs");
    let is_mounted = !matches!(output.status.code(), None | Some(99)) && !output.stderr.starts_with(b"unshare:");
    if !is_mounted {
        eprintln!("not tested: {}", String::from_utf8_lossy(&output.stderr));
    }
    is_mounted.then(|| CheckedRun::new(place, &output))
}

#[test]
fn a_shared_folder_that_is_full_or_read_only_is_said() {
    let place = TestPlace::new();
    fs::create_dir(place.work().join("disk")).unwrap();
    let program = make("zoo", "zoo").join("plist/bug-3");
    let pm: Vec<String> = place.pm().into_iter().map(|word| word.into_string().unwrap()).collect();
    let target = format!("-- -j1 {} -- {} {} -n 8", pm.join(" "), program.display(), place.pool().display());
    let scatter = format!("{PMVET} scatter --engine check -n 2 --shared disk/shared --dry-run {target}");
    let fill = "cat /dev/zero > disk/rest 2> /dev/null";
    let Some(full) = with_mounts(&place, &format!("{fill}; {scatter}")) else { return };
    full.expect(INTERNAL, &["No space left on device"]);
    let gone = with_mounts(&place, &format!("{fill}; {scatter}; rm disk/rest; ls disk/shared"));
    assert_ne!(gone.unwrap().code, Some(0), "half of it is left");
    let read_only = with_mounts(&place, &format!("mount -o remount,ro disk; {scatter}"));
    read_only.unwrap().expect(INTERNAL, &["cannot make disk/shared: Read-only file system"]);
    let task = format!("{PMVET} scatter --shared disk/shared --task");
    let full_task = with_mounts(&place, &format!("{scatter} && {task} 1 && {fill}; {task} 2"));
    full_task.unwrap().expect(INTERNAL, &["No space left on device"]);
    let read_only_task = with_mounts(&place, &format!("{scatter} && mount -o remount,ro disk; {task} 1"));
    read_only_task.unwrap().expect(INTERNAL, &["Read-only file system"]);
    // Findings are shown although they cannot be kept.
    let gather = format!("{scatter} && {task} 1 && {task} 2 && {fill}; {PMVET} gather disk/shared --runs disk/runs");
    let shown = with_mounts(&place, &gather).unwrap();
    assert!(matches!(shown.code, Some(FOUND | INTERNAL)), "{}", shown.text());
    shown.expect(shown.code.unwrap(), &["No space left on device"]);
    // What the tasks have left is only read; where the result goes is said.
    let done = format!("{scatter} && {task} 1 && {task} 2 && mount -o remount,ro disk");
    let elsewhere = with_mounts(&place, &format!("{done}; {PMVET} gather disk/shared --runs runs"));
    elsewhere.unwrap().expect(FOUND, &["findings so far: 1"]);
    let read_only = with_mounts(&place, &format!("{done}; {PMVET} gather disk/shared --runs disk/runs"));
    read_only.unwrap().expect(INTERNAL, &["cannot make", "disk/runs: Read-only file system"]);
}
