//! What is said below the source: what was expected, what happened, stacks, the recovery, what to change.

use annotate_snippets::{Level, Message};
use pmvet_findings::{
    CrashImage, Evidence, Finding, Frame, Outcome, Place, Recovery,
    fingerprint::is_decisive,
    rules,
    stack::{main_has_returned, user_frames},
};

use super::Terminal;
use crate::text::{clean, command_line, plural, seconds, tail, wrap};

const MAX_FRAMES: usize = 12;
const MAX_STORES: usize = 4;
const OUTPUT_LINES: usize = 8;
/// Stacks of the first so many places.
const MAX_STACKS: usize = 2;

/// `labels` are those that have no room beside their lines.
pub(super) fn messages(
    finding: &Finding,
    number: Option<usize>,
    labels: &[(u32, String)],
    terminal: &Terminal,
    width: usize,
) -> Vec<Message<'static>> {
    let full = terminal.full_stacks;
    let mut notes = Notes { width, brief: terminal.brief, messages: Vec::new() };
    labels.iter().for_each(|(line, label)| notes.clean_text(Level::NOTE, &format!("line {line}"), label));
    notes.detail("expected", &finding.expected);
    notes.text(Level::NOTE, "happened", &finding.happened);
    if let Some(pm) = finding.places.iter().find_map(|place| place.pm.as_ref()) {
        let object = pm.object.as_ref().map(|object| format!("`{object}`, ")).unwrap_or_default();
        let bytes = plural(pm.len, "byte", "bytes");
        notes.detail("data", &format!("{object}{bytes} at offset {:#x} of {}", pm.offset, pm.file.display()));
    }
    stacks(finding, full, &mut notes);
    match &finding.evidence {
        Evidence::Trace { .. } => {}
        Evidence::Crash { image, recovery, .. } => {
            crash_image(image, &mut notes);
            outcome(recovery, full, &mut notes);
        }
        Evidence::Race { observed, store_locks, load_locks, .. } => {
            let held = |locks: &[String]| if locks.is_empty() { "none".into() } else { locks.join(", ") };
            let text = format!("held at the store: {}; held at the load: {}", held(store_locks), held(load_locks));
            notes.text(Level::NOTE, "locks", &text);
            let seen = if *observed {
                "in this run the load came between the store and its persist"
            } else {
                "not seen in this run; another schedule may show it"
            };
            notes.detail("order", seen);
        }
    }
    if finding.count > 1 {
        // A race is counted by accesses that differ in thread, locks or time, whether they met or not.
        match finding.rule == rules::PERSISTENCY_RACE.id() {
            true => notes.detail("pairs", &format!("{} of a store and a load", finding.count)),
            false => notes.detail("seen", &format!("{} times", finding.count)),
        }
    }
    if let Some(caveat) = &finding.caveat {
        notes.text(Level::NOTE, "caveat", caveat);
    }
    if !finding.places.iter().filter_map(Place::frame).any(Frame::has_line) {
        let how = "compile with -g (Rust: debug = \"line-tables-only\"), do not strip, and run pmvet again";
        notes.text(Level::NOTE, "no lines", how);
    }
    notes.text(Level::HELP, "fix", &finding.fix);
    let command = |name: &str, id: String| {
        let runs = terminal.runs.iter().flat_map(|runs| ["--runs".into(), runs.clone()]);
        let words: Vec<String> = ["pmvet".into(), name.into(), id].into_iter().chain(runs).collect();
        vec![command_line(&words)]
    };
    if let Some(token) = &finding.replay {
        notes.lines(Level::HELP, "replay", command("replay", clean(token)));
    }
    if let Some(number) = number {
        notes.lines(Level::HELP, "more", command("show", number.to_string()));
    }
    notes.messages
}

struct Notes {
    width: usize,
    brief: bool,
    messages: Vec<Message<'static>>,
}

impl Notes {
    fn text(&mut self, level: Level<'static>, name: &str, text: &str) {
        self.clean_text(level, name, &clean(text));
    }

    /// What a brief finding leaves to `pmvet show`.
    fn detail(&mut self, name: &str, text: &str) {
        if !self.brief {
            self.text(Level::NOTE, name, text);
        }
    }

    fn clean_text(&mut self, level: Level<'static>, name: &str, text: &str) {
        if !text.trim().is_empty() {
            // Continuation lines stand below the beginning of the text.
            let lines = wrap(text, self.width.saturating_sub(name.len() + 2));
            self.lines(level, name, lines);
        }
    }

    fn lines(&mut self, level: Level<'static>, name: &str, lines: Vec<String>) {
        self.messages.push(level.with_name(name.to_owned()).message(lines.join("\n")));
    }
}

/// Stacks that say more than the snippet does: of the first places, without what they have in common with the one before.
fn stacks(finding: &Finding, full: bool, notes: &mut Notes) {
    let mut shown: Vec<Vec<&Frame>> = Vec::new();
    let places = finding.places.iter().enumerate().filter(|(index, place)| *index == 0 || is_decisive(place.role));
    for (index, place) in places {
        let frames: Vec<&Frame> = if full { place.stack.iter().collect() } else { user_frames(&place.stack) };
        let callers = frames.get(1..).unwrap_or_default();
        let said = shown.iter().any(|earlier| !full && same_callers(earlier.get(1..).unwrap_or_default(), callers));
        let most = if notes.brief { 1 } else { MAX_STACKS };
        if shown.len() >= most || said || (callers.is_empty() && !full) {
            continue;
        }
        let mut lines = frame_lines(&frames, full);
        if index > 0 {
            lines.insert(0, format!("of \"{}\":", clean(&place.label)));
        }
        notes.lines(Level::NOTE, "stack", lines);
        shown.push(frames);
    }
}

fn same_callers(a: &[&Frame], b: &[&Frame]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.function == b.function && a.file == b.file)
}

fn frame_lines(frames: &[&Frame], full: bool) -> Vec<String> {
    let limit = if full { usize::MAX } else { MAX_FRAMES };
    let text = |frame: &&Frame| if full { format!("{frame:#}") } else { frame.to_string() };
    let mut lines: Vec<String> = frames.iter().take(limit).map(|frame| clean(&text(frame))).collect();
    if frames.len() > limit {
        lines.push(format!("and {} (--full-stacks)", plural((frames.len() - limit) as u64, "caller", "callers")));
    }
    lines
}

fn crash_image(image: &CrashImage, notes: &mut Notes) {
    notes.detail("crash", &image.choice);
    let brief = notes.brief;
    let mut list = |name, places: &[Place], total: u64| {
        if places.is_empty() {
            return;
        }
        let describe = |place: &Place| {
            let frame = place.frame().map(|frame| clean(&frame.to_string())).unwrap_or_default();
            match place.pm.as_ref().and_then(|pm| pm.object.as_ref()) {
                Some(object) => format!("`{}` by {frame}", clean(object)),
                None => frame,
            }
        };
        let mut lines: Vec<String> = places.iter().take(MAX_STORES).map(describe).collect();
        let more = total.max(places.len() as u64) - lines.len() as u64;
        if more > 0 {
            lines.push(format!("and {more} more"));
        }
        notes.lines(Level::NOTE, name, lines);
    };
    // The headline has a single one.
    if !brief || image.lost.len() > 1 {
        list("lost", &image.lost, image.lost.len() as u64);
    }
    if !brief {
        list("not persistent", &image.unpersisted, image.unpersisted_total);
    }
}

/// The recovery's command line, how it ended and where.
fn command(recovery: &Recovery, full: bool, notes: &mut Notes) {
    let expected = if recovery.expected == recovery.outcome {
        String::new()
    } else {
        format!("; without a crash it {}", recovery.expected)
    };
    let command = command_line(&recovery.command);
    let text = clean(&format!("`{command}` {}{expected}", recovery.outcome));
    notes.clean_text(Level::NOTE, "recovery", &format!("{text} ({})", seconds(recovery.seconds)));
    if !full && main_has_returned(&recovery.stack) {
        notes.text(Level::NOTE, "failed in", "`main`, which has returned");
    } else if !recovery.stack.is_empty() {
        let frames = if full { recovery.stack.iter().collect() } else { user_frames(&recovery.stack) };
        notes.lines(Level::NOTE, "failed in", frame_lines(&frames, full));
    }
}

fn outcome(recovery: &Recovery, full: bool, notes: &mut Notes) {
    if !notes.brief {
        command(recovery, full, notes);
    }
    let mut output = |name, text: &str| {
        let (mut lines, left_out) = tail(text, OUTPUT_LINES);
        if lines.is_empty() {
            return;
        }
        if left_out > 0 {
            lines.insert(0, format!("({} before this)", plural(left_out as u64, "line", "lines")));
        }
        notes.lines(Level::NOTE, name, lines);
    };
    output("its output", &recovery.output);
    match &recovery.outcome {
        Outcome::Oracle { output: text, .. } => output("the oracle's", text),
        Outcome::Content { difference, .. } => output("what differs", &difference.join("\n")),
        _ => {}
    }
}
