//! Ordinary programs run natively and traced: the same output, the same errors, the same exit status.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "clippy does not see comments in included files")]

#[path = "programs/cases.rs"]
mod cases;

use std::ffi::OsString;
use std::path::Path;
use std::process::Output;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use cases::Case;
use pmvet_fixtures::finish;
use pmvet_fixtures::native::{command, ended, summary, traced};

/// Both runs see the same path, and a folder that only they use.
fn prepare(folder: &Path) {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder.join("tree/deep/deeper")).unwrap();
    let mut lines = String::new();
    let mut state = 12345u64;
    for i in 0..20_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        lines.push_str(&format!("{:08x} line {i} of some text\n", state >> 32));
    }
    std::fs::write(folder.join("data"), &lines).unwrap();
    for (name, size) in [("tree/a", 100), ("tree/deep/b", 5000), ("tree/deep/deeper/c", 200_000)] {
        std::fs::write(folder.join(name), &lines[..size]).unwrap();
    }
}

/// What differs between the two runs, or nothing.
fn compare(case: &Case, folder: &Path) -> Option<String> {
    prepare(folder);
    // A command may start pmvet later than with its first word.
    let (before, words) = match case.words.iter().position(|w| w == cases::HERE) {
        Some(at) => (&case.words[..at], &case.words[at + 1..]),
        None => (&case.words[..0], &case.words[..]),
    };
    let Some(native) = finish(command(folder, &[before, words].concat()), None) else {
        return Some("hangs natively".into());
    };
    prepare(folder);
    let report = folder.with_extension("json");
    let _ = std::fs::remove_file(&report);
    let options = ["--quiet", "--format", "json", "--summary"].map(OsString::from);
    let mut options: Vec<_> = options.iter().map(OsString::as_os_str).collect();
    options.push(report.as_os_str());
    let Some(traced) = finish(command(folder, &[before, &traced(&options, words)].concat()), None) else {
        return Some("hangs when traced".into());
    };
    let (end, lost) = match summary(&report) {
        Ok(end) => end,
        Err(e) => return Some(format!("{e}\n{}", String::from_utf8_lossy(&traced.stderr))),
    };
    // A program may use /dev/shm, which counts as PM: then something was analysed.
    let pmvet: &[i32] = if end == "status 0" { &[0, 4] } else { &[3] };
    let mut differences = Vec::new();
    if end != ended(&native) {
        differences.push(format!("natively {}, traced {end}", ended(&native)));
    }
    if lost != 0 {
        differences.push(format!("{lost} events lost"));
    } else if !traced.status.code().is_some_and(|code| pmvet.contains(&code)) {
        differences.push(format!("pmvet ended with {}, not with {pmvet:?}", ended(&traced)));
    }
    differences.extend(texts("stdout", &native, &traced, |o| &o.stdout));
    differences.extend(texts("stderr", &native, &traced, |o| &o.stderr));
    (!differences.is_empty()).then(|| differences.join("\n"))
}

fn texts(name: &str, native: &Output, traced: &Output, part: fn(&Output) -> &Vec<u8>) -> Option<String> {
    if part(native) == part(traced) {
        return None;
    }
    let (native, traced) = (String::from_utf8_lossy(part(native)), String::from_utf8_lossy(part(traced)));
    let (native, traced): (Vec<_>, Vec<_>) = (native.lines().collect(), traced.lines().collect());
    let first = native.iter().zip(&traced).take_while(|(n, t)| n == t).count();
    let line = |lines: &[&str]| lines.get(first).map_or("(nothing)".to_owned(), |l| format!("{l:?}"));
    Some(format!("{name}, line {}: natively {}, traced {}", first + 1, line(&native), line(&traced)))
}

/// Two at a time, since most programs wait for something.
fn compare_all(cases: &[Case], folder: &Path) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let (next, failures) = (&next, &failures);
            scope.spawn(move || {
                let folder = folder.join(format!("worker{worker}"));
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let start = Instant::now();
                    let difference = compare(case, &folder);
                    println!("{:6.2} s  {}", start.elapsed().as_secs_f64(), case.name);
                    if let Some(difference) = difference {
                        failures.lock().unwrap().push(format!("{}: {difference}", case.name));
                    }
                }
            });
        }
    });
    failures.into_inner().unwrap()
}

#[test]
fn programs_do_not_notice() {
    let folder = tempfile::tempdir().unwrap();
    let (cases, skipped) = cases::all(folder.path());
    for name in &skipped {
        println!("skipped: {name}");
    }
    assert!(skipped.len() <= 5, "too many programs are missing here: {skipped:?}");
    assert!(cases.len() >= 40, "only {} programs", cases.len());
    let failures = compare_all(&cases, folder.path());
    println!("{} programs compared, {} differ", cases.len(), failures.len());
    assert!(failures.is_empty(), "\n{}", failures.join("\n\n"));
}

/// DynamoRIO keeps blocked signals in a queue of its own, so the kernel cannot give them to a thread that waits for them. What
/// works is in the program `signals`.
#[test]
#[ignore = "DynamoRIO: a blocked signal is not seen by sigwait and sigpending, and queued ones come in reverse order"]
fn signals_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let failures = compare_all(&cases::sigwait(folder.path()), folder.path());
    assert!(failures.is_empty(), "\n{}", failures.join("\n\n"));
}
