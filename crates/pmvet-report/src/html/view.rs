//! The data of the page, written piece by piece. Findings share frames and source lines, so these come last.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Write},
    path::Path,
};

use pmvet_findings::{
    Evidence, FailurePointTree, Finding, Frame, LockSpan, Outcome, Place, PmRange, Recovery, Run, Sources,
    TimelineStep, fingerprint::is_decisive, rules, run::is_pedantic,
};
use serde_json::{Map, Value, json};

use super::{Html, script_safe, trend};
use crate::text::{clean, command_line, shorten};

/// How many lines to show before and after a marked one.
const CONTEXT: u32 = 3;
const MAX_LINE: usize = 300;
const MAX_STEPS: usize = 200;
const MAX_LANES: usize = 16;
const MAX_PLACES: usize = 12;
const MAX_FRAMES: usize = 100;
const MAX_OUTPUT: usize = 20_000;
const LINE_BYTES: u64 = 64;
/// How many source lines with failure points to show. Nobody reads more, and their text makes the page large.
const MAX_COVERED_LINES: usize = 2_000;

pub(super) fn write(page: &Html, run: &Run, sources: &Sources, out: &mut impl Write) -> io::Result<()> {
    let mut tables = Tables { sources, frames: Vec::new(), index: HashMap::new(), lines: BTreeMap::new() };
    out.write_all(b"{\"run\":")?;
    script_safe::write(&head(run, run.findings.len().saturating_sub(page.max_findings)), out)?;
    out.write_all(b",\"trend\":")?;
    script_safe::write(&trend::rows(&page.earlier, run), out)?;
    out.write_all(b",\"rules\":")?;
    let rule =
        |rule: &&rules::Rule| (rule.id.to_owned(), json!({ "summary": rule.summary, "page": rule.explanation() }));
    script_safe::write(&rules::ALL.iter().map(rule).collect::<Map<_, _>>(), out)?;
    out.write_all(b",\"findings\":[")?;
    for (index, finding) in run.findings.iter().take(page.max_findings).enumerate() {
        if index > 0 {
            out.write_all(b",")?;
        }
        script_safe::write(&tables.finding(finding, run), out)?;
    }
    out.write_all(b"],\"tree\":")?;
    script_safe::write(&tree(run), out)?;
    out.write_all(b",\"covered\":")?;
    script_safe::write(&tables.covered(run.tree.as_ref()), out)?;
    out.write_all(b",\"coveredRecovery\":")?;
    script_safe::write(&tables.covered(run.recovery_tree.as_ref()), out)?;
    out.write_all(b",\"frames\":")?;
    script_safe::write(&tables.frames, out)?;
    out.write_all(b",\"lines\":")?;
    script_safe::write(&tables.lines, out)?;
    out.write_all(b"}")
}

fn head(run: &Run, left_out: usize) -> Value {
    let counter = |c: &pmvet_findings::Counter| json!({ "name": clean(&c.name), "done": c.done, "of": c.of });
    let engine = |e: &pmvet_findings::EngineCoverage| json!({ "name": clean(&e.engine), "counters": e.counters.iter().map(counter).collect::<Vec<_>>() });
    let versions: BTreeMap<String, String> = run.versions.iter().map(|(k, v)| (clean(k), clean(v))).collect();
    json!({
        "id": clean(&run.id),
        "command": command_line(&run.command),
        "setup": run.setup.as_deref().map(clean),
        "recover": command_line(&run.recover),
        "oracle": command_line(&run.oracle),
        "version": clean(&run.version),
        "versions": versions,
        "seed": run.seed.map(|seed| seed.to_string()),
        "started": run.started.as_deref().map(clean),
        "seconds": run.seconds,
        "phases": run.phases.iter().map(|p| json!({ "name": clean(&p.name), "seconds": p.seconds })).collect::<Vec<_>>(),
        "counters": run.coverage.counters.iter().map(counter).collect::<Vec<_>>(),
        "engines": run.coverage.engines.iter().map(engine).collect::<Vec<_>>(),
        "notCovered": run.coverage.not_covered.iter().map(|remark| clean(remark)).collect::<Vec<_>>(),
        "suppressed": run.suppressed.iter()
            .map(|s| json!({ "reason": clean(&s.reason), "findings": s.findings })).collect::<Vec<_>>(),
        "unused": run.unused_suppressions.iter()
            .map(|s| json!({ "number": s.number, "reason": clean(&s.reason) })).collect::<Vec<_>>(),
        "leftOut": left_out,
    })
}

fn tree(run: &Run) -> Value {
    let Some(tree) = run.tree.as_ref().filter(|tree| !tree.nodes.is_empty()) else { return Value::Null };
    let nodes = tree.nodes.iter().zip(tree.totals()).enumerate();
    let row = |(index, (node, total)): (usize, (&pmvet_findings::tree::Node, pmvet_findings::Tally))| {
        json!([tree.parent(index), clean(&node.label), total.ok, total.failed, total.not_tried])
    };
    json!(nodes.map(row).collect::<Vec<_>>())
}

/// Data that findings share.
struct Tables<'a> {
    sources: &'a Sources,
    frames: Vec<Value>,
    index: HashMap<Frame, usize>,
    /// By file and number.
    lines: BTreeMap<String, BTreeMap<u32, String>>,
}

impl Tables<'_> {
    fn finding(&mut self, finding: &Finding, run: &Run) -> Value {
        let frame = finding.places.first().and_then(Place::frame);
        let file = frame.and_then(|frame| frame.file.as_deref()).map(|path| self.path(path));
        let mut view = json!({
            "rule": clean(&finding.rule.0),
            "severity": finding.severity.name(),
            "title": clean(&finding.title),
            "file": file,
            "line": frame.and_then(|frame| frame.line),
            "at": frame.map(|frame| clean(&frame.to_string())),
            "count": finding.count,
            "fingerprint": clean(&finding.fingerprint),
            "expected": clean(&finding.expected),
            "happened": clean(&finding.happened),
            "fix": clean(&finding.fix),
            "places": finding.places.iter().take(MAX_PLACES).map(|place| self.place(place)).collect::<Vec<_>>(),
        });
        let mut set = |key: &str, value: Value| view[key] = value;
        if let Some(caveat) = &finding.caveat {
            set("caveat", json!(clean(caveat)));
        }
        if let Some(token) = &finding.replay {
            set("replay", json!(clean(token)));
        }
        if is_pedantic(finding) {
            set("pedantic", json!(true));
        }
        if run.is_known(finding) {
            set("known", json!(true));
        }
        self.evidence(&finding.evidence, &mut set);
        view
    }

    fn evidence(&mut self, evidence: &Evidence, set: &mut impl FnMut(&str, Value)) {
        match evidence {
            Evidence::Trace { timeline } => set("timeline", self.timeline(timeline)),
            Evidence::Crash { image, recovery, timeline } => {
                set("timeline", self.timeline(timeline));
                let mut stores = |places: &[Place]| {
                    places.iter().take(MAX_PLACES).map(|place| self.place(place)).collect::<Vec<_>>()
                };
                let view = json!({
                    "choice": clean(&image.choice),
                    "unpersisted": stores(&image.unpersisted),
                    "unpersistedTotal": image.unpersisted_total,
                    "lost": stores(&image.lost),
                });
                set("image", view);
                let diff = |d: &pmvet_findings::ByteDiff| {
                    json!({
                        "file": clean(&d.file.to_string_lossy()),
                        "offset": format!("{:x}", d.offset),
                        "before": d.before,
                        "after": d.after,
                        "object": d.object.as_deref().map(clean),
                    })
                };
                set("diff", json!(image.diff.iter().map(diff).collect::<Vec<_>>()));
                set("recovery", self.recovery(recovery));
            }
            Evidence::Race { observed, store_locks, load_locks, lock_spans, timeline, .. } => {
                set("timeline", self.timeline(timeline));
                let clean_all = |locks: &[String]| locks.iter().map(|lock| clean(lock)).collect::<Vec<_>>();
                let span = |span: &LockSpan| {
                    json!({
                        "thread": span.thread,
                        "lock": clean(&span.lock),
                        "from": span.from.to_string(),
                        "to": span.to.map(|to| to.to_string()),
                    })
                };
                let race = json!({
                    "observed": observed,
                    "storeLocks": clean_all(store_locks),
                    "loadLocks": clean_all(load_locks),
                    "spans": lock_spans.iter().map(span).collect::<Vec<_>>(),
                });
                set("race", race);
            }
        }
    }

    fn recovery(&mut self, recovery: &Recovery) -> Value {
        let oracle = match &recovery.outcome {
            Outcome::Oracle { output, .. } => Some(clean_output(output)),
            Outcome::Content { difference, .. } => Some(clean_output(&difference.join("\n"))),
            _ => None,
        };
        json!({
            "command": command_line(&recovery.command),
            "outcome": clean(&recovery.outcome.to_string()),
            "expected": clean(&recovery.expected.to_string()),
            "stack": self.stack(&recovery.stack),
            "output": clean_output(&recovery.output),
            "oracle": oracle,
            "seconds": recovery.seconds,
        })
    }

    fn place(&mut self, place: &Place) -> Value {
        json!({
            "role": place.role,
            "decisive": is_decisive(place.role),
            "label": clean(&place.label),
            "thread": place.thread,
            "seq": place.seq.map(|seq| seq.to_string()),
            "pm": place.pm.as_ref().map(pm),
            "frame": place.frame().map(|frame| self.frame(frame)),
            "stack": self.stack(&place.stack),
        })
    }

    fn stack(&mut self, stack: &[Frame]) -> Vec<usize> {
        stack.iter().take(MAX_FRAMES).map(|frame| self.frame(frame)).collect()
    }

    fn frame(&mut self, frame: &Frame) -> usize {
        if let Some(&index) = self.index.get(frame) {
            return index;
        }
        let mut view = json!({ "label": clean(&frame.to_string()), "user": frame.is_user() });
        if let (Some(path), Some(line)) = (frame.file.as_deref(), frame.line) {
            view["file"] = json!(self.source_line(path, line));
            view["line"] = json!(line);
        }
        self.frames.push(view);
        self.index.insert(frame.clone(), self.frames.len() - 1);
        self.frames.len() - 1
    }

    /// Adds the line and those around it to the page. Returns the name of the file.
    fn source_line(&mut self, path: &Path, line: u32) -> String {
        let name = self.path(path);
        if let Some(file) = self.sources.file(path) {
            let lines = self.lines.entry(name.clone()).or_default();
            for (number, text) in file.lines(line.saturating_sub(CONTEXT), line.saturating_add(CONTEXT)) {
                lines.entry(number).or_insert_with(|| shorten(&clean(text), MAX_LINE));
            }
        }
        name
    }

    /// What became of the failure points, by files and lines.
    fn covered(&mut self, tree: Option<&FailurePointTree>) -> Value {
        let lines = tree.map(FailurePointTree::by_source_line).unwrap_or_default();
        let mut files: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for (&(path, line), tally) in lines.iter().take(MAX_COVERED_LINES) {
            let row = json!([line, tally.ok, tally.failed, tally.not_tried]);
            files.entry(self.source_line(path, line)).or_default().push(row);
        }
        let file = |(name, lines)| json!({ "file": name, "lines": lines });
        json!({
            "files": files.into_iter().map(file).collect::<Vec<_>>(),
            "leftOut": lines.len().saturating_sub(MAX_COVERED_LINES),
        })
    }

    /// The last steps, since the crash is the very last one, and the cache lines that they concern.
    fn timeline(&mut self, timeline: &[TimelineStep]) -> Value {
        let mut lanes: Vec<(&Path, u64)> = Vec::new();
        let mut names: Vec<Vec<String>> = Vec::new();
        let mut steps = Vec::new();
        let left_out = timeline.len().saturating_sub(MAX_STEPS);
        for access in &timeline[left_out..] {
            let mut touched = Vec::new();
            for (line, pm) in access.pm.iter().flat_map(|pm| cache_lines(pm).map(move |line| (line, pm))) {
                let lane = lanes.iter().position(|lane| *lane == (pm.file.as_path(), line)).or_else(|| {
                    (lanes.len() < MAX_LANES).then(|| {
                        lanes.push((&pm.file, line));
                        names.push(Vec::new());
                        lanes.len() - 1
                    })
                });
                let Some(lane) = lane else { continue };
                touched.push(lane);
                if let Some(object) = pm.object.as_deref().map(clean).filter(|object| !names[lane].contains(object)) {
                    names[lane].push(object);
                }
            }
            steps.push(json!({
                "seq": access.seq.to_string(),
                "thread": access.thread,
                "what": clean(&access.what),
                "lanes": touched,
                "everywhere": access.pm.is_none(),
                "object": access.pm.as_ref().and_then(|pm| pm.object.as_deref()).map(clean),
                "frame": access.at.as_ref().map(|frame| self.frame(frame)),
            }));
        }
        let lane = |((file, line), objects): (&(&Path, u64), &Vec<String>)| {
            json!({
                "file": clean(&file.file_name().unwrap_or_default().to_string_lossy()),
                "offset": format!("{:#x}", line.saturating_mul(LINE_BYTES)),
                "objects": objects,
            })
        };
        json!({ "lanes": lanes.iter().zip(&names).map(lane).collect::<Vec<_>>(), "steps": steps, "leftOut": left_out })
    }

    fn path(&self, path: &Path) -> String {
        clean(&self.sources.relative(path).as_deref().unwrap_or(path).to_string_lossy())
    }
}

fn pm(pm: &PmRange) -> Value {
    json!({
        "file": clean(&pm.file.to_string_lossy()),
        "offset": format!("{:#x}", pm.offset),
        "len": pm.len.to_string(),
        "object": pm.object.as_deref().map(clean),
    })
}

/// The numbers of the first few cache lines of a range.
fn cache_lines(pm: &PmRange) -> impl Iterator<Item = u64> {
    let last = pm.offset.saturating_add(pm.len.saturating_sub(1)) / LINE_BYTES;
    (pm.offset / LINE_BYTES..=last).take(MAX_LANES)
}

fn clean_output(output: &str) -> String {
    let start = output.char_indices().rev().nth(MAX_OUTPUT).map_or(0, |(at, _)| at);
    output[start..].lines().map(clean).collect::<Vec<_>>().join("\n")
}
