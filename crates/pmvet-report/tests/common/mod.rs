//! Made-up but realistic findings about `fixtures/list.c`, one for every rule.

#![allow(dead_code, reason = "each test uses a part")]

use std::path::PathBuf;

use pmvet_findings::{
    ByteDiff, CrashImage, Evidence, Finding, Frame, LockSpan, Outcome, Phase, Place, PmRange, Recovery, Role, Rule,
    Run, Severity, Sources, TimelineStep, Violation, dedup::Dedup, rules, suppress, tree,
};

pub(crate) const LIST_C: &str = include_str!("../fixtures/list.c");
/// As the compiler recorded it.
pub(crate) const LIST_PATH: &str = "/home/dev/list/list.c";

pub(crate) fn sources() -> Sources {
    Sources::in_memory([(LIST_PATH, LIST_C)]).with_root("/home/dev/list")
}

/// The number of the n-th line that has this text, from 1.
pub(crate) fn line_of(text: &str, nth: usize) -> u32 {
    let lines = LIST_C.lines().enumerate().filter(|(_, line)| line.contains(text));
    lines.map(|(index, _)| index as u32 + 1).nth(nth).unwrap_or_else(|| panic!("no {text} in list.c"))
}

pub(crate) fn frame(function: &str, line: u32) -> Frame {
    Frame {
        function: Some(function.into()),
        function_offset: Some(u64::from(line) * 7),
        file: Some(LIST_PATH.into()),
        line: Some(line),
        column: Some(2),
        inlined: false,
        module: Some("/home/dev/list/list".into()),
        offset: 0x1000 + u64::from(line) * 11,
        wrapper: false,
    }
}

pub(crate) fn library(function: &str, module: &str) -> Frame {
    Frame {
        function: Some(function.into()),
        function_offset: Some(0x1f),
        module: Some(format!("/usr/lib/x86_64-linux-gnu/{module}").into()),
        offset: 0x5123,
        ..Frame::default()
    }
}

/// A stack with its innermost line at this text.
pub(crate) fn stack(function: &str, text: &str, nth: usize) -> Vec<Frame> {
    let mut stack = vec![frame(function, line_of(text, nth))];
    match function {
        "push" => stack.push(frame("worker", line_of("push(list, new_node", 0))),
        "first" => stack.push(frame("worker", line_of("push(list, new_node", 0))),
        "rename_node" => stack.push(frame("main", line_of("rename_node(node_at", 0))),
        _ => {}
    }
    if stack.iter().any(|f| f.function.as_deref() == Some("worker")) {
        stack.push(frame("main", line_of("worker(list);", 0)));
    }
    stack.push(library("__libc_start_main", "libc.so.6"));
    stack
}

pub(crate) fn pm(offset: u64, len: u64, object: &str) -> Option<PmRange> {
    Some(PmRange { file: "/mnt/pmem/list.pool".into(), offset, len, object: Some(object.into()) })
}

pub(crate) fn place(role: Role, stack: Vec<Frame>, label: &str) -> Place {
    Place { role, stack, thread: Some(1), pm: None, seq: Some(100), label: label.into() }
}

fn access(seq: u64, thread: u32, what: &str, pm: Option<PmRange>, at: Frame) -> TimelineStep {
    TimelineStep { seq, thread, what: what.into(), pm, at: Some(at) }
}

pub(crate) fn timeline() -> Vec<TimelineStep> {
    let push = |text: &str| frame("push", line_of(text, 0));
    vec![
        access(90, 1, "stored", pm(0x1048, 8, "node->value"), push("node->value = value")),
        access(91, 1, "stored", pm(0x1040, 8, "node->next"), push("node->next =")),
        access(92, 1, "stored", pm(0x8, 8, "list->count"), push("list->count++")),
        access(93, 1, "flushed", pm(0x0, 64, "list"), push("pmem_persist(&list->count")),
        access(94, 1, "fenced", None, push("pmem_persist(&list->count")),
        access(94, 1, "persisted", pm(0x0, 64, "list"), push("pmem_persist(&list->count")),
        access(95, 1, "stored", pm(0x0, 8, "list->head"), push("list->head =")),
        access(96, 1, "crash", None, push("pmem_persist(&list->head")),
    ]
}

/// The load comes too late in this run.
fn race_timeline() -> Vec<TimelineStep> {
    let at = |function: &str, text: &str| frame(function, line_of(text, 0));
    vec![
        access(100, 1, "stored", None, at("push", "list->head =")),
        access(110, 1, "persisted", None, at("push", "pmem_persist(&list->head")),
        access(130, 2, "loaded", None, at("first", "uint64_t head = list->head")),
    ]
}

fn finding(rule: &Rule, title: &str, places: Vec<Place>) -> Finding {
    Finding {
        rule: rule.id(),
        severity: rule.severity,
        title: title.into(),
        places,
        expected: String::new(),
        happened: String::new(),
        fix: String::new(),
        caveat: None,
        evidence: Evidence::Trace { timeline: timeline() },
        count: 1,
        fingerprint: String::new(),
        replay: None,
    }
}

fn crash(choice: &str, lost: Vec<Place>, outcome: Outcome, output: &str) -> Evidence {
    let mut unpersisted = place(Role::Store, stack("push", "node->value = value", 0), "not flushed");
    unpersisted.pm = pm(0x1048, 8, "node->value");
    Evidence::Crash {
        image: CrashImage {
            seq: 96,
            unpersisted: vec![unpersisted],
            unpersisted_total: 3,
            lost,
            choice: choice.into(),
            hash: "5f1d".into(),
            diff: vec![
                ByteDiff {
                    file: "/mnt/pmem/list.pool".into(),
                    offset: 0x1048,
                    before: vec![42, 0, 0, 0, 0, 0, 0, 0],
                    after: vec![0; 8],
                    object: Some("node->value".into()),
                },
                ByteDiff {
                    file: "/mnt/pmem/list.pool".into(),
                    offset: 0,
                    before: (0..40).collect(),
                    after: (0..40).map(|b| if b % 7 == 0 { 0xff } else { b }).collect(),
                    object: None,
                },
            ],
        },
        recovery: Recovery {
            command: ["./list", "/mnt/pmem/list.pool"].map(String::from).to_vec(),
            outcome,
            expected: Outcome::Exit { status: 0 },
            stack: vec![library("raise", "libc.so.6"), frame("main", line_of("return check", 0))],
            output: output.into(),
            seconds: 0.012,
        },
        timeline: timeline(),
    }
}

/// One finding of every rule, in the order of the catalogue.
pub(crate) fn samples() -> Vec<Finding> {
    rules::ALL.iter().map(|rule| sample(rule)).collect()
}

pub(crate) fn sample(rule: &Rule) -> Finding {
    match rule.id {
        "recovery-failure" => Finding {
            expected: "After a crash at any point `./list` accepts the list and goes on.".into(),
            happened:
                "A crash after `list->count++` was persisted, and before the node was linked, leaves a count of 5 \
                       and 4 nodes; `./list` refuses it."
                    .into(),
            fix: "Link the node first and let recovery count the nodes, or make both changes in one transaction."
                .into(),
            evidence: crash(
                "every store before the crash is in PM, none after it",
                vec![],
                Outcome::Exit { status: 1 },
                "opening pool\nlist: count is 5, but there are 4 nodes\n",
            ),
            count: 12,
            ..finding(
                rule,
                "recovery fails after a crash between two halves of `push`",
                vec![
                    place(
                        Role::FailurePoint,
                        stack("push", "list->head = offset_of", 0),
                        "a crash before this line is not survived",
                    ),
                    place(Role::LastGood, stack("push", "list->count++", 0), "a crash before this line is survived"),
                ],
            )
        },
        "failing-case" => Finding {
            expected: "`./list` ends by itself on every input.".into(),
            happened: "On a list that it made itself `./list` dies of signal 11 (SIGSEGV).".into(),
            fix: "Run the test case again: its input is in crashes/.".into(),
            evidence: crash(
                "no crash: what the program left when it ended",
                vec![],
                Outcome::Signal { signal: 11, name: "SIGSEGV".into() },
                "opening pool\n",
            ),
            ..finding(
                rule,
                "`push` dies of signal 11 (SIGSEGV) on a test case",
                vec![place(Role::Recovery, stack("push", "list->head = offset_of", 0), "it was here")],
            )
        },
        "reordered-crash" => {
            let mut lost = place(Role::Store, stack("push", "node->value = value", 0), "this store is lost");
            lost.pm = pm(0x1048, 8, "node->value");
            Finding {
                expected: "The node is in PM before `list->head` points at it.".into(),
                happened: "The line of `list->head` was written back, that of the node was not; the list has a node \
                           with an old value."
                    .into(),
                fix: "Flush `node` after `node->next = list->head;`, before `list->head` is stored: \
                      pmem_persist(node, sizeof *node)."
                    .into(),
                evidence: crash(
                    "the line of `node->value` kept back, all others as in the program",
                    vec![lost.clone()],
                    Outcome::Signal { signal: 11, name: "SIGSEGV".into() },
                    "opening pool\n",
                ),
                count: 3,
                ..finding(
                    rule,
                    "recovery fails if `node->value` reaches PM later than `list->head`",
                    vec![
                        lost,
                        place(
                            Role::Store,
                            stack("push", "list->head = offset_of", 0),
                            "this one, made later, is in PM",
                        ),
                        place(
                            Role::FailurePoint,
                            stack("push", "pmem_persist(&list->head", 0),
                            "the crash is before this line",
                        ),
                    ],
                )
            }
        }
        "unpersisted-store" => {
            let mut store = place(Role::Store, stack("push", "node->value = value", 0), "this store is never flushed");
            store.pm = pm(0x1048, 8, "node->value");
            Finding {
                expected: "A store to data that is persisted elsewhere is flushed and fenced.".into(),
                happened: "No flush of its cache line follows up to the end of the run.".into(),
                fix: "Flush `node->value` after this line: pmem_persist(node, sizeof *node).".into(),
                caveat: Some("pmvet cannot know whether the value is needed after a crash.".into()),
                count: 100,
                ..finding(rule, "`node->value` is never made persistent", vec![store])
            }
        }
        "dirty-overwrite" => Finding {
            expected: "A value in PM is persistent before another takes its place.".into(),
            happened: "`node->name[0]` is stored twice with no flush and fence in between.".into(),
            fix: "Drop the first store, or persist it before the second.".into(),
            caveat: Some("If nobody relies on the first value, the program is right.".into()),
            ..finding(
                rule,
                "`node->name[0]` is overwritten before it is persistent",
                vec![
                    place(Role::Store, stack("rename_node", "node->name[0] = *name", 0), "overwrites it"),
                    place(
                        Role::Store,
                        stack("rename_node", "node->name[0] = '\\0'", 0),
                        "this value is not persistent yet",
                    ),
                ],
            )
        },
        "transient-data" => Finding {
            expected: "Data in PM is made persistent at some time.".into(),
            happened: "`list->lookups` is stored 100 times, and never flushed.".into(),
            fix: "Move `lookups` out of `struct list` into ordinary memory, or persist it.".into(),
            count: 100,
            ..finding(
                rule,
                "`list->lookups` is in PM but never flushed",
                vec![place(Role::Store, stack("first", "list->lookups++", 0), "stored here")],
            )
        },
        "flush-clean" => Finding {
            expected: "A flush has something to write back.".into(),
            happened: "The line was flushed just before and not written since.".into(),
            fix: "Drop the flush of `node->name`: the one of `*node` covers it.".into(),
            count: 1,
            ..finding(
                rule,
                "this flush has nothing to do",
                vec![
                    place(
                        Role::Flush,
                        [vec![library("pmem_flush", "libpmem.so.1")], stack("rename_node", "pmem_flush(node, ", 0)]
                            .concat(),
                        "flushes a clean line",
                    ),
                    place(Role::Flush, stack("rename_node", "pmem_flush(node->name", 0), "flushed here already"),
                ],
            )
        },
        "flush-volatile" => Finding {
            expected: "Flushes are for PM.".into(),
            happened: "`copy` is on the stack.".into(),
            fix: "Flush the node in PM, or drop the flush.".into(),
            ..finding(
                rule,
                "a flush of memory that is not PM",
                vec![place(Role::Flush, stack("rename_node", "pmem_flush(&copy", 0), "this address is in no PM file")],
            )
        },
        "flush-nontemporal" => Finding {
            expected: "Non-temporal stores need a fence only.".into(),
            happened: "The data was stored past the cache and is flushed nevertheless.".into(),
            fix: "Keep pmem_drain(), drop this flush.".into(),
            count: 64,
            ..finding(
                rule,
                "a flush of data that is not in the cache",
                vec![
                    place(Role::Flush, stack("load_all", "pmem_flush(nodes", 0), "nothing to flush"),
                    place(Role::Store, stack("load_all", "pmem_memcpy(nodes", 0), "stored past the cache here"),
                ],
            )
        },
        "flush-covers-stores" => Finding {
            expected: "Each store has a flush of its own, or its structure has one.".into(),
            happened: "The flush of `list->count` takes `list->head` along, because they share a line.".into(),
            fix: "Flush the whole structure, or assert that both are in one line.".into(),
            caveat: Some("Correct as long as the layout stays.".into()),
            ..finding(
                rule,
                "this flush persists other data too",
                vec![place(
                    Role::Flush,
                    stack("push", "pmem_persist(&list->count", 0),
                    "persists `list->head` as well",
                )],
            )
        },
        "redundant-fence" => Finding {
            expected: "A fence waits for flushes.".into(),
            happened: "There was none since the last fence.".into(),
            fix: "Drop the second pmem_drain().".into(),
            ..finding(
                rule,
                "this fence has nothing to wait for",
                vec![
                    place(Role::Fence, stack("rename_node", "pmem_drain();", 1), "nothing to wait for"),
                    place(Role::Fence, stack("rename_node", "pmem_drain();", 0), "the fence before it"),
                ],
            )
        },
        "fence-orders-lines" => Finding {
            expected: "What must be persistent first has a fence of its own.".into(),
            happened: "One fence waits for two lines, which may reach PM in any order.".into(),
            fix: "If their order matters, put a fence between the two flushes.".into(),
            caveat: Some("That is what fences are for; only you know whether the order matters.".into()),
            ..finding(
                rule,
                "one fence for two lines",
                vec![place(Role::Fence, stack("rename_node", "pmem_drain();", 0), "waits for both")],
            )
        },
        "persistency-race" => {
            let mut store = place(
                Role::Store,
                stack("push", "list->head = offset_of", 0),
                "stores `list->head`, not persistent yet",
            );
            store.pm = pm(0, 8, "list->head");
            let mut load =
                place(Role::Load, stack("first", "uint64_t head = list->head", 0), "may read it before it is");
            (load.thread, load.seq) = (Some(2), Some(130));
            Finding {
                expected: "A lock is held from the store to its fence, and also at the load.".into(),
                happened:
                    "`push` takes no lock; `first` may read the new head, and build on it, before it is persistent."
                        .into(),
                fix: "Take `list->lock` in `push` before the store, and release it after \
                      pmem_persist(&list->head, …)."
                    .into(),
                caveat: Some("Predicted from the locks held; pmvet race --confirm forces it.".into()),
                evidence: Evidence::Race {
                    observed: false,
                    by_chance: false,
                    store_locks: vec![],
                    load_locks: vec!["list->lock".into()],
                    lock_spans: vec![LockSpan { thread: 2, lock: "list->lock".into(), from: 120, to: Some(140) }],
                    timeline: race_timeline(),
                },
                count: 7,
                ..finding(rule, "`list->head` may be read before it is persistent", vec![store, load])
            }
        }
        "lock-in-pm" => {
            let mut lock = place(Role::Lock, stack("first", "pthread_mutex_lock", 0), "this lock is in PM");
            lock.pm = pm(0x10, 40, "list->lock");
            Finding {
                expected: "No lock is held after a crash.".into(),
                happened: "The line of `list->lock` is flushed while the lock is held, and no start initialises it."
                    .into(),
                fix: "Call pthread_mutex_init(&list->lock, NULL) when the list is opened.".into(),
                caveat: Some("pmvet saw no initialisation in this run; another path may have one.".into()),
                ..finding(
                    rule,
                    "`list->lock` may be held after a crash",
                    vec![
                        lock,
                        place(Role::Flush, stack("push", "pmem_persist(&list->head", 0), "its line is flushed here"),
                    ],
                )
            }
        }
        "reachable-failure" => Finding {
            rule: rule.id(),
            title: "recovery fails if it reads `node->value` as it was before `push`".into(),
            expected: "Whatever a crash leaves, `./list` accepts the list and goes on.".into(),
            happened: "Recovery reads `node->value`, which may still be what it was before `push` stored it, and dies."
                .into(),
            ..sample(rules::REORDERED_CRASH)
        },
        "durable-lost" | "durable-torn" | "durable-resurrected" | "durable-duplicated" | "durable-wrong-value" => {
            let violation = VIOLATIONS.into_iter().find(|violation| violation.rule() == rule).expect("a violation");
            let mut finding = Finding {
                rule: rule.id(),
                title: format!("{} after a crash in `push`", violation.title()),
                ..sample(rules::RECOVERY_FAILURE)
            };
            if let Evidence::Crash { recovery, .. } = &mut finding.evidence {
                recovery.outcome = Outcome::Content {
                    violation,
                    operation: "push 5".into(),
                    acknowledged: true,
                    difference: vec!["- 5".into(), "+ 4".into()],
                };
            }
            finding
        }
        "tx-store-not-added" => Finding {
            rule: rule.id(),
            title: "`push` stores in a transaction to what it has not added".into(),
            fix: "Call TX_ADD_FIELD(list, head) before the store.".into(),
            ..sample(rules::UNPERSISTED_STORE)
        },
        "tx-add-twice" | "tx-persist" => Finding {
            rule: rule.id(),
            title: "`push` does in a transaction what the commit does anyway".into(),
            ..sample(rules::FLUSH_CLEAN)
        },
        other => panic!("no sample for {other}"),
    }
}

const VIOLATIONS: [Violation; 5] =
    [Violation::Lost, Violation::Torn, Violation::Resurrected, Violation::Duplicated, Violation::WrongValue];

/// A run with these findings, deduplicated.
pub(crate) fn run(findings: Vec<Finding>) -> Run {
    let sources = sources();
    run_with(findings, &sources)
}

pub(crate) fn run_with(findings: Vec<Finding>, sources: &Sources) -> Run {
    let mut dedup = Dedup::new(sources);
    findings.into_iter().for_each(|finding| dedup.add(finding));
    let mut run = Run {
        id: "2026-01-31-0001".into(),
        command: ["./list", "/mnt/pmem/list.pool"].map(String::from).to_vec(),
        version: "0.1.0".into(),
        versions: [("kernel".into(), "6.1.0".into())].into(),
        setup: Some("truncate -s 1M /mnt/pmem/list.pool".into()),
        recover: ["./list", "/mnt/pmem/list.pool", "--check"].map(String::from).to_vec(),
        seed: Some(42),
        engines: ["inject", "reorder", "rules", "race"].map(String::from).to_vec(),
        started: Some("2026-01-31T12:00:00Z".into()),
        seconds: 3.21,
        phases: vec![phase("trace", 0.41), phase("recoveries", 2.5), phase("rules", 0.3)],
        findings: dedup.finish("2026-01-31-0001"),
        tree: Some(tree()),
        recovery_tree: Some(recovery_tree()),
        ..Run::default()
    };
    run.coverage.count("failure points", 180, Some(214));
    run.coverage.count("images", 96, None);
    run.coverage.count("recoveries", 96, None);
    run.coverage.not_covered =
        vec!["34 failure points (budget)".into(), "what the kernel writes through io_uring".into()];
    run.suppressed = vec![suppress::Suppressed { reason: "the log is rebuilt".into(), findings: 3 }];
    run.unused_suppressions = vec![suppress::Unused { number: 2, reason: "fixed in 1.4".into() }];
    run
}

fn phase(name: &str, seconds: f64) -> Phase {
    Phase { name: name.into(), seconds }
}

pub(crate) fn tree() -> tree::FailurePointTree {
    let mut builder = tree::Builder::default();
    let mut add =
        |stack: Vec<Frame>, ok, failed, not_tried| builder.add_stack(&stack, tree::Tally { ok, failed, not_tried });
    add(stack("push", "pmem_persist(&list->count", 0), 90, 0, 5);
    add(stack("push", "list->head = offset_of", 0), 0, 12, 0);
    add(stack("push", "pmem_persist(&list->head", 0), 60, 3, 10);
    add(stack("rename_node", "pmem_drain();", 0), 10, 0, 0);
    add(stack("rename_node", "pmem_drain();", 1), 5, 0, 19);
    builder.finish()
}

fn recovery_tree() -> tree::FailurePointTree {
    let mut builder = tree::Builder::default();
    builder.add_stack(&stack("rename_node", "pmem_drain();", 0), tree::Tally { ok: 7, failed: 0, not_tried: 2 });
    builder.finish()
}

/// Many distinct findings: variants of the samples in many made-up files.
pub(crate) fn many(count: usize) -> Vec<Finding> {
    let samples = samples();
    (0..count).map(|n| variant(&samples[n % samples.len()], n)).collect()
}

pub(crate) fn variant(sample: &Finding, n: usize) -> Finding {
    let mut finding = sample.clone();
    for place in &mut finding.places {
        for frame in place.stack.iter_mut().filter(|f| f.file.is_some()) {
            frame.file = Some(PathBuf::from(format!("/home/dev/list/src/part{}.c", n % 97)));
            frame.function = frame.function.as_ref().map(|name| format!("{name}_{n}"));
        }
    }
    finding.severity = match (n % 5, &finding.evidence) {
        (0, Evidence::Crash { .. }) => Severity::Error,
        (_, _) => finding.severity,
    };
    finding.title = format!("{} in part {}", finding.title, n % 97);
    finding
}

/// Everything that could break out of a format.
pub(crate) const HOSTILE: &[&str] = &[
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "'\"><svg onload=document.title='owned'>",
    "]]><!--<script>",
    "\u{1b}[31mred\u{1b}]0;title\u{7}",
    "nul\0 bell\u{7} del\u{7f} csi\u{9b}31m",
    "\u{202e}gnp.exe\u{2028}line\u{2029}para\u{fffe}\u{feff}",
    "${alert(1)} {{7*7}} javascript:document.title='owned'",
    "&lt;&amp;&#x0;",
    "\\\"\\u003c",
];

/// A finding whose every string is hostile.
pub(crate) fn hostile(text: &str) -> Finding {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = b"/tmp/\xff\xfe\x80".to_vec();
    bytes.extend(text.bytes());
    let path = PathBuf::from(std::ffi::OsString::from_vec(bytes));
    let frame = Frame {
        function: Some(text.into()),
        file: Some(path.clone()),
        line: Some(3),
        module: Some(path.clone()),
        ..Frame::default()
    };
    let pm = Some(PmRange { file: path.clone(), offset: u64::MAX, len: u64::MAX, object: Some(text.into()) });
    let place = Place { pm: pm.clone(), label: text.into(), ..place(Role::Store, vec![frame.clone()], text) };
    let mut finding = sample(rules::RECOVERY_FAILURE);
    finding.title = text.into();
    finding.expected = text.into();
    finding.happened = text.into();
    finding.fix = text.into();
    finding.caveat = Some(text.into());
    finding.places = vec![place.clone(), place.clone()];
    finding.count = u64::MAX;
    if let Evidence::Crash { image, recovery, timeline } = &mut finding.evidence {
        image.choice = text.into();
        image.hash = text.into();
        image.unpersisted = vec![place.clone()];
        image.lost = vec![place];
        image.diff[0].file = path;
        image.diff[0].object = Some(text.into());
        recovery.command = vec![text.into()];
        recovery.output = format!("{text}\n{text}");
        recovery.outcome = Outcome::Oracle { status: -1, output: text.into() };
        recovery.expected = Outcome::Signal { signal: 1, name: text.into() };
        recovery.stack = vec![frame.clone()];
        timeline[0] = TimelineStep { seq: u64::MAX, thread: u32::MAX, what: text.into(), pm, at: Some(frame) };
    }
    finding
}

pub(crate) fn hostile_run() -> Run {
    let mut run = run(HOSTILE.iter().map(|text| hostile(text)).collect());
    let all = HOSTILE.join(" ");
    run.id = all.clone();
    run.command = vec![all.clone()];
    run.version = all.clone();
    run.versions = [(all.clone(), all.clone())].into();
    run.started = Some(all.clone());
    run.phases[0].name = all.clone();
    run.coverage.count(all.clone(), 1, None);
    run.coverage.not_covered.push(all.clone());
    run.unused_suppressions[0].reason = all.clone();
    if let Some(tree) = &mut run.tree {
        tree.nodes[0].label = all;
    }
    run
}
