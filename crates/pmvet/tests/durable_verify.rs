//! `pmvet verify --durable`: every state that a crash can leave shows what was acknowledged. And `--durable` in campaigns of `fuzz`.

#![allow(clippy::unwrap_used, reason = "a test")]

use pmvet_findings::{Evidence, Outcome};
use pmvet_fixtures::{CLEAN, CheckedRun, FOUND, INCOMPLETE, NOTHING, TestPlace, USAGE, compile, make, turn};

const OPERATIONS: &[u8] = b"put 1 10\nput 2 20\ndel 1\nput 3 30\n";

/// Verifies the program in some of its modes. `more` are further options.
fn verify(place: &TestPlace, modes: &[&str], more: &[&str], file: &[&str]) -> CheckedRun {
    let command = command(place, modes);
    let dump = format!("{} dump", command.join(" "));
    let options: Vec<&str> = ["--durable", "--dump", &dump].into_iter().chain(more.iter().copied()).collect();
    let command: Vec<&str> = command.iter().map(String::as_str).chain(file.iter().copied()).collect();
    place.verify(&options, &command).input(OPERATIONS).run()
}

fn command(place: &TestPlace, modes: &[&str]) -> Vec<String> {
    let program = compile("tests/programs/promises.c", "check-promises", &["-mclwb"]);
    let pool = place.pool();
    let words = [program.to_str().unwrap()].into_iter().chain(modes.iter().copied()).chain([pool.to_str().unwrap()]);
    words.map(str::to_owned).collect()
}

/// The words of all output, however the lines are broken.
fn words(checked: &CheckedRun) -> String {
    format!("{} {}", checked.stdout, checked.stderr).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A program of the zoo's folder `durable`.
fn verify_zoo(place: &TestPlace, variant: &str, more: &[&str], operations: &str) -> CheckedRun {
    let program = make("zoo", "zoo").join("durable").join(variant);
    let command = [program.to_str().unwrap(), place.pool().to_str().unwrap()].map(str::to_owned);
    let dump = format!("{} dump", command.join(" "));
    let setup = format!("{} </dev/null", command.join(" "));
    let options = ["--durable", "--dump", &dump, "--setup", &setup];
    let options: Vec<&str> = options.into_iter().chain(more.iter().copied()).collect();
    place.verify(&options, &command).input(operations.as_bytes()).run()
}

#[test]
fn every_class_of_wrong_contents_is_found_and_replays() {
    let _turn = turn();
    // They show all bugs of `slots`.
    let operations = "put a 1 2\nput b 3 4\nput a 5 6\ndel b\nput c 7 8\nput c 9 10\ndel a\n";
    verify_zoo(&TestPlace::new(), "slots/clean", &[], operations).expect(CLEAN, &[]);
    for (bug, class) in [(1, "lost"), (3, "torn"), (4, "resurrected"), (6, "wrong-value"), (7, "duplicated")] {
        let place = TestPlace::new();
        let checked = verify_zoo(&place, &format!("slots/bug-{bug}"), &[], operations);
        assert_eq!(checked.code, Some(FOUND), "bug {bug}: {}", checked.text());
        let errors: Vec<_> = checked.errors().collect();
        let rule = format!("durable-{class}");
        assert!(errors.iter().all(|error| error.rule.to_string() == rule), "bug {bug}: {}", checked.text());
        let Evidence::Crash { recovery, .. } = &errors[0].evidence else { panic!("{errors:?}") };
        let Outcome::Content { difference, .. } = &recovery.outcome else { panic!("{recovery:?}") };
        assert!(!difference.is_empty());
        place.replays(errors[0]).unwrap();
    }
}

#[test]
fn without_contents_to_compare_nothing_is_found() {
    let _turn = turn();
    let place = TestPlace::new();
    let program = make("zoo", "zoo").join("durable/slots/bug-1");
    let command = [program.to_str().unwrap(), place.pool().to_str().unwrap()].map(str::to_owned);
    place.verify(&[], &command).input(b"put a 1 2\nput b 3 4\n").run().expect(CLEAN, &[]);
}

#[test]
fn operations_are_followed_however_they_are_acknowledged() {
    let _turn = turn();
    for (modes, how) in [
        (&[][..], "an answer each"),
        (&["silent"], "the next read"),
        (&["marked"], "PMVET_OP_END"),
        (&["uptime"], "an answer each"),
    ] {
        let checked = verify(&TestPlace::new(), modes, &[], &[]);
        assert_eq!(checked.code, Some(CLEAN), "{modes:?}: {}", checked.text());
        let text = words(&checked);
        assert!(text.contains("4 operations (") && text.contains(&format!("acknowledged by {how})")), "{text}");
    }
    verify(&TestPlace::new(), &[], &[], &["@@"]).expect(CLEAN, &[]);
    verify(&TestPlace::new(), &["late"], &[], &["@@"]).expect(FOUND, &[]);
    verify(&TestPlace::new(), &["late"], &["--durability", "buffered"], &[]).expect(CLEAN, &[]);
    assert_eq!(verify(&TestPlace::new(), &["whole"], &[], &[]).code, Some(NOTHING));
}

#[test]
fn what_a_recovery_leaves_to_the_dump_is_read_by_the_dump() {
    let _turn = turn();
    // The recovery does not look at PM: only what the dump reads leads to other executions.
    let recover = ["--recover", "true"];
    verify(&TestPlace::new(), &[], &recover, &[]).expect(CLEAN, &[]);
    let place = TestPlace::new();
    let checked = verify(&place, &["late"], &recover, &[]);
    assert_eq!(checked.code, Some(FOUND), "{}", checked.text());
    place.replays(checked.errors().next().unwrap()).unwrap();
}

#[test]
fn recoveries_that_crash_keep_what_was_promised() {
    let _turn = turn();
    let operations = "open ann 100\nopen bob 50\nmove ann bob 30\nopen cid 7\nclose bob\nmove ann cid 20\n";
    let checked = verify_zoo(&TestPlace::new(), "ledger/clean", &["--failures", "2"], operations);
    assert_eq!(checked.code, Some(CLEAN), "{}", checked.text());
    assert!(!words(&checked).contains(" 0 crashes in recoveries"), "{}", checked.text());
}

#[test]
fn a_program_without_a_dump_is_asked() {
    let _turn = turn();
    for (modes, code) in [(&[][..], CLEAN), (&["late"], FOUND)] {
        let place = TestPlace::new();
        let checked = place
            .verify(&["--durable"], &command(&place, modes))
            .input(b"put 1 10\nget 1\nput 2 20\ndel 1\nget 5\nput 3 30\n")
            .run();
        assert_eq!(checked.code, Some(code), "{modes:?}: {}", checked.text());
        assert!(words(&checked).contains("questions of the input were asked again"), "{}", checked.text());
    }
}

#[test]
fn a_search_that_is_cut_short_is_no_clean_one() {
    let _turn = turn();
    let checked = verify(&TestPlace::new(), &[], &["--max-executions", "3"], &[]);
    assert_eq!(checked.code, Some(INCOMPLETE), "{}", checked.text());
}

#[test]
fn a_campaign_checks_the_contents_of_its_test_cases() {
    let _turn = turn();
    for engine in ["check", "verify"] {
        let place = TestPlace::new();
        let command = command(&place, &["late"]);
        let dump = format!("{} dump", command.join(" "));
        std::fs::write(place.work().join("seed"), OPERATIONS).unwrap();
        let options = ["fuzz", "--quiet", "--seeds", "seed", "--budget", "60s", "--until-finding", "--then", engine];
        let mut words: Vec<String> = options.map(str::to_owned).to_vec();
        words.extend(["--durable".into(), "--dump".into(), dump, "--".into()]);
        words.extend(command);
        let output = place.pmvet(&words).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(FOUND), "{engine}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("error[durable-"), "{engine}: {text}");
    }
}

#[test]
fn a_campaign_without_crashes_has_no_contents_to_compare() {
    let _turn = turn();
    let place = TestPlace::new();
    for more in [&[][..], &["--then", "race"]] {
        let words = [&["fuzz", "--durable", "--dump", "true"][..], more, &["--", "true"]].concat();
        let output = place.pmvet(&words).output().unwrap();
        assert_eq!(output.status.code(), Some(USAGE));
        assert!(String::from_utf8_lossy(&output.stderr).contains("--then check"), "{output:?}");
    }
}
