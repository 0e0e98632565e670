//! What people see at a terminal.

mod common;

use pmvet_findings::{Evidence, Finding, Run, Sources, rules};
use pmvet_report::{Exporter, terminal::Terminal};

fn render(finding: &Finding, terminal: Terminal) -> String {
    let run = common::run(vec![finding.clone()]);
    terminal.finding(&run.findings[0], &common::sources())
}

fn export(run: &Run, terminal: Terminal) -> String {
    let bytes = terminal.to_bytes(run, &common::sources()).expect("writing to memory");
    String::from_utf8(bytes).expect("text")
}

#[test]
fn one_finding_of_every_rule() {
    for rule in rules::ALL {
        insta::assert_snapshot!(rule.id, render(&common::sample(rule), Terminal::default()));
    }
}

#[test]
fn narrow_terminals() {
    let terminal = Terminal { width: 60, ..Terminal::default() };
    for rule in [rules::RECOVERY_FAILURE, rules::PERSISTENCY_RACE, rules::FLUSH_NONTEMPORAL] {
        insta::assert_snapshot!(format!("narrow-{}", rule.id), render(&common::sample(rule), terminal.clone()));
    }
    for rule in rules::ALL {
        let text = render(&common::sample(rule), terminal.clone());
        // What is to be copied stays whole.
        for line in text.lines().filter(|line| !line.contains("pmvet replay")) {
            assert!(line.chars().count() <= 60, "{}: {line}", rule.id);
        }
    }
}

#[test]
fn no_width_makes_it_panic() {
    for width in [0, 1, 10, 39, 61, 1000, usize::MAX] {
        for color in [false, true] {
            let terminal = Terminal { width, color, full_stacks: true, ..Terminal::default() };
            common::samples().iter().for_each(|finding| drop(render(finding, terminal.clone())));
            export(&common::hostile_run(), terminal);
        }
    }
}

#[test]
fn without_debug_information() {
    let mut finding = common::sample(rules::REORDERED_CRASH);
    let strip = |frames: &mut Vec<pmvet_findings::Frame>| {
        frames.iter_mut().for_each(|frame| {
            frame.file = None;
            frame.line = None;
        });
    };
    finding.places.iter_mut().for_each(|place| strip(&mut place.stack));
    if let Evidence::Crash { image, recovery, .. } = &mut finding.evidence {
        image.lost.iter_mut().chain(&mut image.unpersisted).for_each(|place| strip(&mut place.stack));
        strip(&mut recovery.stack);
    }
    insta::assert_snapshot!("no-debug-information", render(&finding, Terminal::default()));
}

#[test]
fn without_the_source_files() {
    let run = common::run(vec![common::sample(rules::DIRTY_OVERWRITE)]);
    insta::assert_snapshot!("no-source", Terminal::default().finding(&run.findings[0], &Sources::default()));
}

#[test]
fn full_stacks() {
    let terminal = Terminal { full_stacks: true, ..Terminal::default() };
    insta::assert_snapshot!("full-stacks", render(&common::sample(rules::FLUSH_CLEAN), terminal));
}

#[test]
fn brief_findings_leave_the_rest_to_show() {
    let run = common::run(common::samples());
    let brief = Terminal { brief: true, ..Terminal::default() };
    let text = export(&run, brief.clone());
    for (finding, number) in run.findings.iter().zip(1..) {
        let says_more = text.contains(&format!("= more: pmvet show {number}\n"));
        assert_eq!(says_more, brief.shows(&run, finding), "{}", finding.rule);
    }
    for part in ["expected", "data", "crash", "not persistent", "recovery", "failed in", "order", "seen", "pairs"] {
        assert!(!text.contains(&format!("= {part}: ")), "{part}");
    }
    for part in ["happened", "stack", "locks", "its output", "caveat", "fix", "replay"] {
        assert!(text.contains(&format!("= {part}: ")), "{part}");
    }
    let lost = "= lost: `node->value`";
    assert!(
        !text.contains(lost) && export(&run, Terminal::default()).contains(lost),
        "the headline names a single store"
    );
}

/// Where runs are kept elsewhere, the commands that a finding shows can be pasted all the same.
#[test]
fn commands_name_the_folder_of_runs() {
    let run = common::run(common::samples());
    let text = export(&run, Terminal { brief: true, runs: Some("../my runs".into()), ..Terminal::default() });
    assert!(text.contains("= more: pmvet show 1 --runs '../my runs'\n"), "{text}");
    let replays: Vec<_> = text.lines().filter(|line| line.contains("= replay: ")).collect();
    assert!(!replays.is_empty() && replays.iter().all(|line| line.ends_with(" --runs '../my runs'")), "{replays:?}");
}

#[test]
fn the_end_says_what_was_found_and_covered() {
    let mut run = common::run(common::samples());
    run.known = [run.findings[2].fingerprint.clone()].into();
    insta::assert_snapshot!("summary", Terminal::default().summary(&run));
    insta::assert_snapshot!("summary-narrow", Terminal { width: 60, ..Terminal::default() }.summary(&run));
    insta::assert_snapshot!("summary-nothing", Terminal::default().summary(&Run::default()));
    let text = export(&run, Terminal::default());
    assert!(text.ends_with(&Terminal::default().summary(&run)));
    assert!(!text.contains("flush-covers-stores"), "pedantic rules are hidden");
    assert!(export(&run, Terminal { pedantic: true, ..Terminal::default() }).contains("flush-covers-stores"));
    let known = format!("[{}]", run.findings[2].rule);
    assert!(!text.contains(&known), "what the baseline knows is hidden");
}

#[test]
fn colour_is_escapes_and_nothing_else() {
    let finding = common::sample(rules::RECOVERY_FAILURE);
    let plain = render(&finding, Terminal::default());
    let colored = render(&finding, Terminal { color: true, ..Terminal::default() });
    assert!(!plain.contains('\u{1b}'));
    assert!(colored.contains("\u{1b}["));
    let mut stripped = String::new();
    for (index, part) in colored.split("\u{1b}[").enumerate() {
        stripped.push_str(if index == 0 { part } else { part.split_once('m').unwrap().1 });
    }
    assert_eq!(stripped, plain);
}

#[test]
fn hostile_strings_do_not_reach_the_terminal() {
    let text = export(&common::hostile_run(), Terminal { full_stacks: true, known: true, ..Terminal::default() });
    let bad = text.chars().find(|c| c.is_control() && *c != '\n' || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2028}'));
    assert_eq!(bad, None);
}

#[test]
fn source_with_tabs_control_characters_and_odd_lengths_is_shown() {
    let sources = Sources::in_memory([(common::LIST_PATH, "\t\u{1b}[2J\tä\u{202e}\n\n\t// only a comment\n")]);
    let mut finding = common::sample(rules::UNPERSISTED_STORE);
    for line in [0, 1, 2, 3, 4, 5, u32::MAX] {
        finding.places[0].stack[0].line = Some(line);
        let text = Terminal::default().finding(&finding, &sources);
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
    }
}
