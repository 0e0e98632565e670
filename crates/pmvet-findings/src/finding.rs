//! The finding: what every engine reports and every report shows.
//!
//! Obligations of the code that makes one:
//!
//! 1. [`Severity::Error`] only with a witness: [`Evidence`] that holds a crash image, or a schedule, and its outcome.
//! 2. The first place is the one to change or, if that cannot be known, the one where the problem starts.
//! 3. `title`, `expected`, `happened` and `fix` are for a reader who has never seen pmvet: whole sentences in the
//!    words of the program (functions, lines, fields), without numbers that change from run to run.
//! 4. Two findings with the same root cause are one finding; `count` says how often it was seen.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::rules::RuleId;

/// One bug, or what looks like one: what is wrong, where, the evidence, and what to do.
///
/// ```
/// use pmvet_findings::{Evidence, Finding, Frame, Place, Role, jsonl, rules};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Frame { function: Some("insert".into()), offset: 0x1139, ..Frame::default() };
/// let label = "this store is never flushed".into();
/// let finding = Finding {
///     rule: rules::UNPERSISTED_STORE.id(),
///     severity: rules::UNPERSISTED_STORE.severity,
///     title: "a store in `insert` is never made persistent".into(),
///     places: vec![Place { role: Role::Store, stack: vec![store], thread: Some(1), pm: None, seq: Some(7), label }],
///     expected: "The new node is flushed before it is linked.".into(),
///     happened: "The program ended without a flush of it.".into(),
///     fix: "Flush the node, then fence.".into(),
///     caveat: None,
///     evidence: Evidence::Trace { timeline: Vec::new() },
///     count: 1,
///     fingerprint: String::new(),
///     replay: None,
/// };
///
/// let mut file = Vec::new();
/// jsonl::write([&finding], &mut file)?;
/// let read = jsonl::read(&file[..]).collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(read, [finding]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The rule of the catalogue that the program breaks.
    pub rule: RuleId,
    /// How grave it is. A witness may make it graver than its rule says.
    pub severity: Severity,
    /// One line, without a full stop.
    pub title: String,
    /// The places involved, most important first; never empty.
    pub places: Vec<Place>,
    /// What should have been the case.
    pub expected: String,
    /// What was the case instead.
    pub happened: String,
    /// What to change, in terms of the code.
    pub fix: String,
    /// A caveat for the reader, if any: why this may be wrong or is only a warning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caveat: Option<String>,
    /// How one knows.
    pub evidence: Evidence,
    /// How often it was seen.
    pub count: u64,
    /// Stable over builds whose lines have moved; set when the run ends.
    #[serde(default)]
    pub fingerprint: String,
    /// The token for `pmvet replay`, for findings with a witness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<String>,
}

impl Finding {
    /// Placeholder in a fix for the data of the first store. At the end of the run the name from the source replaces it.
    pub const DATA: &str = "{data}";
    /// Placeholder in a fix for the libpmemobj call that adds the data of the first store. At the end of the run the call as the source
    /// would write it replaces it.
    pub const TX_ADD: &str = "{tx-add}";
}

/// Ordered: the gravest last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Costs time, not data.
    Performance,
    /// A possible bug, for which there is no witness.
    Warning,
    /// A bug, with a witness.
    Error,
}

impl Severity {
    /// The word that reports show, and that JSON has.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Performance => "performance",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// A place in the target that is part of the finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// Why the place is shown.
    pub role: Role,
    /// The call stack, innermost frame first.
    pub stack: Stack,
    /// pmvet's number of the thread, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<u32>,
    /// The bytes of PM it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pm: Option<PmRange>,
    /// Position in the order of the run's events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// What happens here, as a short label for a source line, such as `this store is never flushed`.
    pub label: String,
}

/// What a place has to do with a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Bytes of PM are written.
    Store,
    /// Bytes of PM are read.
    Load,
    /// A cache line is flushed.
    Flush,
    /// A fence is made.
    Fence,
    /// A lock is taken or should have been.
    Lock,
    /// A range is added to a transaction, or allocated in it.
    Log,
    /// Where the simulated crash happens.
    FailurePoint,
    /// The last failure point before it from which recovery still works.
    LastGood,
    /// The next failure point after it from which recovery works again.
    NextGood,
    /// A store, or output, that depends on a value that was read too early.
    SideEffect,
    /// Where the recovery failed.
    Recovery,
}

/// Innermost frame first.
pub type Stack = Vec<Frame>;

/// A function on a stack. One machine instruction may have several, if functions were inlined.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame {
    /// Demangled; nothing if there is no symbol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Distance of the instruction from the start of the function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function_offset: Option<u64>,
    /// Source file as the compiler recorded it.
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "crate::lossy::optional_path")]
    pub file: Option<PathBuf>,
    /// In the file, from 1; nothing without debug information.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// In the line, from 1; nothing if the compiler did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// The function was inlined into that of the next frame.
    #[serde(default)]
    pub inlined: bool,
    /// The executable or library; nothing for generated code.
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "crate::lossy::optional_path")]
    pub module: Option<PathBuf>,
    /// Distance from the start of the module.
    pub offset: u64,
    /// The function only stores what its caller gives it: the caller's line says what is done.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wrapper: bool,
}

/// Bytes of a PM file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PmRange {
    /// Its path as the program knows it.
    #[serde(serialize_with = "crate::lossy::path")]
    pub file: PathBuf,
    /// The first byte, from the start of the file.
    pub offset: u64,
    /// In bytes.
    pub len: u64,
    /// The data at that place, if known: a variable, a field, an object type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
}

/// How one knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[allow(clippy::large_enum_variant, reason = "a finding is large whatever its evidence, and there are few")]
pub enum Evidence {
    /// The order of events alone.
    Trace {
        /// What happened to the cache line involved, in order.
        timeline: Vec<TimelineStep>,
    },
    /// A crash image, and what recovery made of it.
    Crash {
        /// What PM held after the crash.
        image: CrashImage,
        /// What ran on it, and how that ended.
        recovery: Recovery,
        /// What led to the crash, in order.
        timeline: Vec<TimelineStep>,
    },
    /// Two threads.
    Race {
        /// The racy load was seen between the store and its persist in this run.
        observed: bool,
        /// The race showed only because of how the threads of this run met: another run may not show it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_chance: bool,
        /// Locks held at the store, named as in the program; never as addresses.
        store_locks: Vec<String>,
        /// Locks held at the load, likewise.
        load_locks: Vec<String>,
        /// When these locks were held, as far as known.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        lock_spans: Vec<LockSpan>,
        /// The store, the load and what made the value persistent, if anything did, in the order of the run.
        timeline: Vec<TimelineStep>,
    },
}

/// From when to when a thread held a lock, by positions in the order of the run's events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockSpan {
    /// pmvet's number of the thread, from 1.
    pub thread: u32,
    /// One of the locks of the race.
    pub lock: String,
    /// The event that took it.
    pub from: u64,
    /// The event that released it. Nothing if it was still held when the race was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
}

/// A step in the life of a cache line, for timelines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineStep {
    /// Position in the order of the run's events.
    pub seq: u64,
    /// pmvet's number of the thread, from 1.
    pub thread: u32,
    /// `stored`, `flushed`, `fenced`, `persisted`, `overwritten`, `loaded`, `locked`, `crash`.
    pub what: String,
    /// The bytes of PM that it concerns; nothing if none in particular.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pm: Option<PmRange>,
    /// The innermost frame of the user's code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Frame>,
}

/// Which state of PM the crash left.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CrashImage {
    /// The crash is before the event with this number.
    pub seq: u64,
    /// Stores made but not yet persistent; the image may have them or not.
    pub unpersisted: Vec<Place>,
    /// How many there were in all.
    pub unpersisted_total: u64,
    /// Stores that the image leaves out, if it is not simply the newest value of everything.
    pub lost: Vec<Place>,
    /// In words: which state was chosen.
    pub choice: String,
    /// Hash of the content, to recognise equal images.
    pub hash: String,
    /// Where the image differs from the one that was expected, or that recovery works on; the first few places.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub diff: Vec<ByteDiff>,
}

/// Bytes of a PM file that are different in two images.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteDiff {
    /// Its path as the program knows it.
    #[serde(serialize_with = "crate::lossy::path")]
    pub file: PathBuf,
    /// The first byte that differs, from the start of the file.
    pub offset: u64,
    /// The bytes as expected, or as in the image that recovery works on; only a short prefix of a long range.
    #[serde(with = "crate::hex")]
    pub before: Vec<u8>,
    /// The bytes in the crash image.
    #[serde(with = "crate::hex")]
    pub after: Vec<u8>,
    /// The data at that place, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
}

/// A recovery that ran on a crash image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recovery {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// What it did on the crash image.
    pub outcome: Outcome,
    /// What it does without a crash.
    pub expected: Outcome,
    /// Where it was when it failed.
    pub stack: Stack,
    /// The end of its output, both streams together.
    pub output: String,
    /// How long it ran, in seconds; with the oracle, if there is one.
    #[serde(serialize_with = "crate::lossy::finite")]
    pub seconds: f64,
}

/// How a recovery ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Outcome {
    /// By itself.
    Exit {
        /// Its exit status. Which one is good depends on what it does without a crash.
        status: i32,
    },
    /// The kernel killed it.
    Signal {
        /// The signal's number.
        signal: i32,
        /// The signal's name, such as `SIGSEGV`.
        name: String,
    },
    /// Still running after this many seconds.
    Hang {
        /// How long pmvet waited.
        seconds: u64,
    },
    /// The recovery succeeded, the oracle failed.
    Oracle {
        /// The oracle's exit status; 128 and the signal if it was killed, -1 if it did not end.
        status: i32,
        /// What the oracle printed, both streams together.
        output: String,
    },
    /// The recovery succeeded, but the recovered content is not what was promised.
    Content {
        /// In which way.
        violation: Violation,
        /// The operation concerned, as in the input.
        operation: String,
        /// The program had answered it.
        acknowledged: bool,
        /// Missing lines, with `-`, and lines that should not be there, with `+`.
        difference: Vec<String>,
    },
}

/// How a content breaks what was promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Violation {
    /// What an operation added is gone.
    Lost,
    /// An operation is there in part.
    Torn,
    /// What an operation removed is back.
    Resurrected,
    /// Something is there more often than it should.
    Duplicated,
    /// Something has a value that it should not have.
    WrongValue,
}

impl Violation {
    /// The rule that it breaks.
    pub fn rule(self) -> &'static crate::rules::Rule {
        match self {
            Violation::Lost => crate::rules::DURABLE_LOST,
            Violation::Torn => crate::rules::DURABLE_TORN,
            Violation::Resurrected => crate::rules::DURABLE_RESURRECTED,
            Violation::Duplicated => crate::rules::DURABLE_DUPLICATED,
            Violation::WrongValue => crate::rules::DURABLE_WRONG_VALUE,
        }
    }

    /// What happens to an operation, as the beginning of a title.
    pub fn title(self) -> &'static str {
        match self {
            Violation::Lost => "an operation is lost",
            Violation::Torn => "an operation is half done",
            Violation::Resurrected => "what was removed is back",
            Violation::Duplicated => "something is there twice",
            Violation::WrongValue => "a value is wrong",
        }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Exit { status } => write!(f, "exits with status {status}"),
            Outcome::Signal { signal, name } => write!(f, "dies of signal {signal} ({name})"),
            Outcome::Hang { seconds } => write!(f, "still runs after {seconds} s"),
            Outcome::Oracle { status, .. } => write!(f, "is contradicted by the oracle (status {status})"),
            Outcome::Content { violation, operation, acknowledged, .. } => {
                let what = if *acknowledged { "the acknowledged operation" } else { "the operation" };
                match violation {
                    Violation::Lost => write!(f, "loses {what} `{operation}`"),
                    Violation::Torn => write!(f, "leaves {what} `{operation}` half done"),
                    Violation::Resurrected => write!(f, "brings back what {what} `{operation}` removed"),
                    Violation::Duplicated => write!(f, "shows something twice after {what} `{operation}`"),
                    Violation::WrongValue => write!(f, "shows a wrong value after {what} `{operation}`"),
                }
            }
        }
    }
}
