//! `pmvet check --durable`: acknowledged operations are still there after a crash.

#![allow(clippy::unwrap_used, reason = "a test")]

use pmvet_findings::{Evidence, Outcome, Violation};
use pmvet_fixtures::{CLEAN, CheckedRun, FAILS_BY_ITSELF, FOUND, NOTHING, TestPlace, USAGE, compile, turn};

const OPERATIONS: &[u8] = b"put 1 10\nput 2 20\ndel 1\nput 3 30\nput 2 21\nput 4 40\n";

/// Checks the program in some of its modes. `more` are further options.
fn check(place: &TestPlace, modes: &[&str], more: &[&str], arguments: &[&str]) -> CheckedRun {
    let program = compile("tests/programs/promises.c", "check-promises", &["-mclwb"]);
    let pool = place.pool();
    let mut command = vec![program.to_str().unwrap()];
    command.extend(modes);
    command.push(pool.to_str().unwrap());
    let dump = format!("{} dump", command.join(" "));
    command.extend(arguments);
    let options: Vec<&str> = ["--durable", "--dump", &dump].into_iter().chain(more.iter().copied()).collect();
    place.check(&options, &command).input(OPERATIONS).run()
}

/// The same without a dump: the program has to be asked.
fn check_by_questions(place: &TestPlace, modes: &[&str], more: &[&str], input: &[u8], file: &[&str]) -> CheckedRun {
    let program = compile("tests/programs/promises.c", "check-promises", &["-mclwb"]);
    let pool = place.pool();
    let mut command = vec![program.to_str().unwrap()];
    command.extend(modes);
    command.push(pool.to_str().unwrap());
    command.extend(file);
    let options: Vec<&str> = ["--durable"].into_iter().chain(more.iter().copied()).collect();
    place.check(&options, &command).input(input).run()
}

/// The words of all output, however the lines are broken.
fn words(checked: &CheckedRun) -> String {
    format!("{} {}", checked.stdout, checked.stderr).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn what_is_acknowledged_is_there() {
    let _turn = turn();
    for (modes, how) in [
        (&[][..], "an answer each"),
        (&["silent"], "the next read"),
        (&["marked"], "PMVET_OP_END"),
        (&["batch"], "the next output"),
        (&["uptime"], "an answer each"),
    ] {
        let place = TestPlace::new();
        let checked = check(&place, modes, &[], &[]);
        assert_eq!(checked.code, Some(CLEAN), "{modes:?}: {}", checked.text());
        let text = words(&checked);
        assert!(
            text.contains("6 operations (") && text.contains(&format!("acknowledged by {how})")),
            "{modes:?}: {text}"
        );
    }
}

#[test]
fn an_answer_before_the_flush_loses_data() {
    let _turn = turn();
    for modes in [&["late"][..], &["late", "marked"]] {
        let place = TestPlace::new();
        let checked = check(&place, modes, &[], &[]);
        // Marked operations end after the flush, whatever was printed before.
        if modes.contains(&"marked") {
            checked.expect(CLEAN, &[]);
            continue;
        }
        let [error] = checked.errors().collect::<Vec<_>>()[..] else { panic!("{}", checked.text()) };
        let Evidence::Crash { recovery, .. } = &error.evidence else { panic!("{error:?}") };
        let Outcome::Content { violation, acknowledged, .. } = &recovery.outcome else { panic!("{recovery:?}") };
        assert!(acknowledged);
        assert_eq!(error.rule, violation.rule().id());
        assert!(matches!(violation, Violation::Lost | Violation::Resurrected | Violation::WrongValue), "{violation:?}");
        assert_eq!(error.places[0].frame().unwrap().function.as_deref(), Some("operation"), "{}", checked.text());
        place.replays(error).unwrap();
    }
}

#[test]
fn operations_may_come_from_a_file() {
    let _turn = turn();
    let place = TestPlace::new();
    check(&place, &[], &[], &["@@"]).expect(CLEAN, &[]);
    let place = TestPlace::new();
    check(&place, &["late"], &[], &["@@"]).expect(FOUND, &[]);
}

const WITH_QUESTIONS: &[u8] = b"put 1 10\nget 1\nput 2 20\ndel 1\nput 3 30\nget 5\nput 2 21\nput 4 40\n";

#[test]
fn a_program_without_a_dump_is_asked_what_its_input_asks() {
    let _turn = turn();
    for file in [&[][..], &["@@"]] {
        let checked = check_by_questions(&TestPlace::new(), &[], &[], WITH_QUESTIONS, file);
        assert_eq!(checked.code, Some(CLEAN), "{}", checked.text());
        assert!(words(&checked).contains("5 questions of the input were asked again"), "{}", checked.text());
        let place = TestPlace::new();
        let checked = check_by_questions(&place, &["late"], &[], WITH_QUESTIONS, file);
        let [error] = checked.errors().collect::<Vec<_>>()[..] else { panic!("{}", checked.text()) };
        let Evidence::Crash { recovery, .. } = &error.evidence else { panic!("{error:?}") };
        let Outcome::Content { violation, difference, .. } = &recovery.outcome else { panic!("{recovery:?}") };
        assert_eq!(*violation, Violation::Lost, "{}", checked.text());
        assert!(difference[0].starts_with("- get("), "{difference:?}");
        place.replays(error).unwrap();
    }
}

#[test]
fn a_recovery_may_come_before_the_questions() {
    let _turn = turn();
    let recover = ["--recover", "true"];
    check_by_questions(&TestPlace::new(), &[], &recover, WITH_QUESTIONS, &[]).expect(CLEAN, &[]);
    check_by_questions(&TestPlace::new(), &["late"], &recover, WITH_QUESTIONS, &[]).expect(FOUND, &[]);
    check_by_questions(&TestPlace::new(), &["marked"], &[], WITH_QUESTIONS, &[]).expect(CLEAN, &[]);
}

#[test]
fn without_a_dump_and_without_questions_nothing_is_analysed() {
    let _turn = turn();
    let checked = check_by_questions(&TestPlace::new(), &[], &[], OPERATIONS, &[]);
    assert_eq!(checked.code, Some(NOTHING), "{}", checked.text());
    let text = words(&checked);
    assert!(text.contains("no operation of the input only looks") && text.contains("--dump"), "{text}");
}

#[test]
fn operations_that_cannot_be_told_apart_are_said_to_be_so() {
    let _turn = turn();
    let place = TestPlace::new();
    let checked = check(&place, &["whole"], &[], &[]);
    assert_eq!(checked.code, Some(NOTHING), "{}", checked.text());
    let text = words(&checked);
    assert!(text.contains("operations cannot be told apart") && text.contains("PMVET_OP_BEGIN"), "{text}");
}

#[test]
fn buffered_programs_may_lose_what_came_last() {
    let _turn = turn();
    let place = TestPlace::new();
    check(&place, &["late"], &["--durability", "buffered"], &[]).expect(CLEAN, &[]);
}

#[test]
fn what_differs_without_a_crash_is_masked_and_said() {
    let _turn = turn();
    let place = TestPlace::new();
    let checked = check(&place, &["uptime", "late"], &[], &[]);
    assert_eq!(checked.errors().count(), 1, "{}", checked.text());
    assert!(words(&checked).contains("what the dump shows as `now: *`"), "{}", checked.text());
}

#[test]
fn what_a_recovery_says_once_is_no_content() {
    let _turn = turn();
    let place = TestPlace::new();
    check(&place, &["repairs"], &[], &[]).expect(CLEAN, &[]);
    let place = TestPlace::new();
    check(&place, &["repairs", "late"], &[], &[]).expect(FOUND, &[]);
}

#[test]
fn a_dump_that_changes_the_content_is_no_oracle() {
    let _turn = turn();
    let place = TestPlace::new();
    let checked = check(&place, &["restarts"], &[], &[]);
    assert_eq!(checked.code, Some(FAILS_BY_ITSELF), "{}", checked.text());
    assert!(words(&checked).contains("shows another content when it is run again"), "{}", checked.text());
}

#[test]
fn a_dump_needs_operations() {
    let _turn = turn();
    let place = TestPlace::new();
    let program = compile("tests/programs/promises.c", "check-promises", &["-mclwb"]);
    let pool = place.pool();
    let command = [program.to_str().unwrap(), pool.to_str().unwrap()];
    let dump = format!("{} dump", command.join(" "));
    let checked = place.check(&["--durable", "--dump", &dump], &command).run();
    assert_eq!(checked.code, Some(USAGE), "{}", checked.text());
    assert!(words(&checked).contains("there are no operations"), "{}", checked.text());
}
