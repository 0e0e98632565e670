//! `pmvet check --durable` of servers: operations are what clients ask, and the content is what the recovered server answers.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use pmvet_fixtures::zoo::{blamed, marked_in};
use pmvet_fixtures::{
    CLEAN, CheckedRun, FAILS_BY_ITSELF, FOUND, NOTHING, TestPlace, USAGE, both_cores, compile, is_soak, make,
    repository, turn,
};
use serde::Deserialize;

/// Threads of the clean server are interleaved in their own way in each run.
const CLEAN_RUNS: [usize; 2] = [2, 6];

#[derive(Debug, Deserialize)]
struct Manifest {
    program: Program,
    bug: Vec<Bug>,
}

#[derive(Debug, Deserialize)]
struct Program {
    /// Requests, each after the number of its connection.
    ops: String,
}

#[derive(Debug, Deserialize)]
struct Bug {
    id: u32,
    class: String,
}

fn source() -> PathBuf {
    repository().join("zoo/durable/pantry/pantry.c")
}

fn manifest() -> Manifest {
    toml::from_str(&fs::read_to_string(source().with_file_name("manifest.toml")).unwrap()).unwrap()
}

/// A name for a socket that nobody else has.
fn name() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("@pmvet-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Checks a variant of the server. `more` are further options; they have `PROGRAM` and `ADDRESS` for what these are.
fn check(place: &TestPlace, variant: &str, requests: &str, more: &[&str]) -> CheckedRun {
    let program = make("zoo", "zoo").join("durable/pantry").join(variant);
    let (program, address) = (program.to_str().unwrap(), name());
    fs::write(place.pools().join("requests"), requests).unwrap();
    let client = format!("{program} ask {address} < {}", place.pools().join("requests").display());
    let mut options: Vec<String> =
        ["--durable", "--ready-when", "line:ready", "--client", &client].map(Into::into).into();
    options.extend(more.iter().map(|text| text.replace("PROGRAM", program).replace("ADDRESS", &address)));
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    place.check(&options, &[program, "serve", place.pool().to_str().unwrap(), &address]).input(b"").run()
}

const DUMP: &[&str] = &["--dump-client", "PROGRAM list ADDRESS"];

/// The words of all output, however the lines are broken.
fn words(checked: &CheckedRun) -> String {
    format!("{} {}", checked.stdout, checked.stderr).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn every_bug_is_found_as_what_it_is() {
    let _turn = turn();
    let manifest = manifest();
    assert!(manifest.bug.len() >= 3);
    // What is under way on another connection may make it look like something else.
    let one_connection: String = manifest.program.ops.lines().map(|line| format!("0{}\n", &line[1..])).collect();
    both_cores(&manifest.bug, |bug| {
        let place = TestPlace::new();
        let variant = format!("bug-{}", bug.id);
        if bug.id == manifest.bug[0].id || is_soak() {
            let several = check(&place, &variant, &manifest.program.ops, DUMP);
            if several.code != Some(FOUND) || !several.errors().all(|error| error.rule.0.starts_with("durable-")) {
                return Err(format!("--- bug {} on two connections:\n{}", bug.id, several.text()));
            }
        }
        let checked = check(&place, &variant, &one_connection, DUMP);
        let failed = |what: &str| Err(format!("--- bug {} ({}): {what}\n{}", bug.id, bug.class, checked.text()));
        if checked.code != Some(FOUND) {
            return failed("not found");
        }
        let marked = marked_in(&source(), bug.id);
        for error in checked.errors() {
            if error.rule.0 != format!("durable-{}", bug.class) {
                return failed(&format!("of {}", error.rule.0));
            }
            let at = |frame: &pmvet_findings::Frame| {
                Some(format!("{}:{}", frame.file.as_ref()?.file_name()?.to_str()?, frame.line?))
            };
            if !error.places[0].stack.iter().filter_map(at).any(|line| marked.contains(&line)) {
                return failed(&format!("named at {}, not at {marked:?}", blamed(error)));
            }
        }
        let Some(error) = checked.errors().next() else { return failed("no error") };
        place.replays(error)
    });
}

#[test]
fn a_server_that_keeps_its_word_has_no_finding() {
    let _turn = turn();
    let manifest = manifest();
    both_cores(&vec![(); CLEAN_RUNS[usize::from(is_soak())]], |()| {
        let place = TestPlace::new();
        let checked = check(&place, "clean", &manifest.program.ops, DUMP);
        let text = words(&checked);
        let is_clean = checked.code == Some(CLEAN) && checked.findings.is_empty();
        match is_clean && text.contains("14 requests (acknowledged by a reply each)") {
            true => Ok(()),
            false => Err(checked.text()),
        }
    });
}

// ---- Ways to ask and to reply

/// Checks the server of `talk.c` in some of its modes, whose client does this. `more` are further options.
fn talk(place: &TestPlace, modes: &[&str], client: &str, more: &[&str]) -> CheckedRun {
    let program = compile("tests/programs/talk.c", "check-talk", &["-mclwb"]);
    let (program, name, pool) = (program.to_str().unwrap(), name(), place.pool());
    let fill = |text: &str| {
        let text = text.replace("TALK", program).replace("NAME", &name);
        text.replace("POOL", pool.to_str().unwrap())
    };
    let mut options: Vec<String> = ["--durable", "--ready-when", "line:ready", "--client"].map(Into::into).into();
    options.push(fill(&format!("TALK {client}")));
    options.extend(more.iter().map(|text| fill(text)));
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let mut command = vec![program, "serve"];
    command.extend(modes);
    command.extend([pool.to_str().unwrap(), &name]);
    place.check(&options, &command).input(b"").run()
}

const ASK: &str = "ask NAME 'put 1 10' 'put 2 20' 'put 1 11'";
const LIST: &[&str] = &["--dump-client", "TALK ask NAME list"];

#[test]
fn requests_and_replies_may_have_several_lines() {
    let _turn = turn();
    let whole = "3 requests (acknowledged when all of a reply is written)";
    let cases = [
        (&["wordy"][..], ASK, whole),
        (&["wordy", "greets"], ASK, whole),
        (&["long"], "ask NAME 'put 1_10' 'put 2_20' 'put 1_11'", whole),
        (&[], "ask NAME 'put 1 10_put 2 20_put 1 11'", "3 requests (acknowledged by a reply each)"),
        (&["marked"], ASK, "3 operations (acknowledged by PMVET_OP_END)"),
        (&["marked", "mute"], "tell NAME 'put 1 10' 'put 2 20' 'put 1 11'", "acknowledged by PMVET_OP_END"),
    ];
    for (modes, client, how) in cases {
        let place = TestPlace::new();
        let checked = talk(&place, modes, client, LIST);
        assert_eq!(checked.code, Some(CLEAN), "{modes:?}: {}", checked.text());
        assert!(words(&checked).contains(how), "{modes:?}: {}", checked.text());
        if modes.contains(&"marked") {
            continue;
        }
        let late = talk(&place, &[modes, &["late"]].concat(), client, LIST);
        assert_eq!(late.code, Some(FOUND), "{modes:?}: {}", late.text());
        assert!(late.errors().all(|error| error.rule.0.starts_with("durable-")), "{modes:?}: {}", late.text());
    }
}

#[test]
fn a_server_that_has_ended_may_be_looked_at_by_its_files() {
    let _turn = turn();
    let dump = ["--dump", "TALK dump POOL"];
    talk(&TestPlace::new(), &[], ASK, &dump).expect(CLEAN, &[]);
    let place = TestPlace::new();
    let late = talk(&place, &["late"], ASK, &dump);
    late.expect(FOUND, &[]);
    place.replays(late.errors().next().unwrap()).unwrap();
}

#[test]
fn what_stops_the_server_is_no_operation() {
    let _turn = turn();
    let stop = [LIST, &["--stop", "TALK ask NAME shutdown"]].concat();
    let checked = talk(&TestPlace::new(), &[], ASK, &stop);
    checked.expect(CLEAN, &[]);
    assert!(words(&checked).contains("3 requests ("), "{}", checked.text());
}

#[test]
fn what_cannot_be_told_apart_is_not_analysed() {
    let _turn = turn();
    for (modes, client, why) in [
        (&["raw"][..], "ask NAME 'put 1 10.' 'put 2 20.'", "no lines of text"),
        (&["mute"], "tell NAME 'put 1 10' 'put 2 20'", "replies to nothing"),
    ] {
        let checked = talk(&TestPlace::new(), modes, client, LIST);
        checked.expect(NOTHING, &[]);
        assert!(words(&checked).contains(why) && words(&checked).contains("PMVET_OP_BEGIN"), "{}", checked.text());
    }
}

#[test]
fn the_command_line_says_how_the_content_is_seen() {
    let _turn = turn();
    talk(&TestPlace::new(), &[], ASK, &[]).expect(USAGE, &[]);
    talk(&TestPlace::new(), &[], ASK, &["--dump", "true", "--dump-client", "true"]).expect(USAGE, &[]);
    talk(&TestPlace::new(), &[], ASK, &["--dump-client", "false"]).expect(FAILS_BY_ITSELF, &[]);
}
