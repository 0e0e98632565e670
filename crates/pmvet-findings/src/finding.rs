//! The finding: what every engine reports and every report shows.
//!
//! Obligations of whoever makes one:
//!
//! 1. [`Severity::Error`] only with a witness: [`Evidence`] that holds a crash image, or a schedule, and what came of it.
//! 2. The first place is the one to change or, if nobody can know that, the one where the trouble starts.
//! 3. `title`, `expected`, `happened` and `fix` are for a reader who has never seen pmvet: whole sentences in the
//!    words of the program (functions, lines, fields), without numbers that change from run to run.
//! 4. Two findings with the same root cause are one finding; `count` says how often it was seen.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::rules::RuleId;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    pub rule: RuleId,
    pub severity: Severity,
    /// One line, without a full stop.
    pub title: String,
    /// Where it is, most important first; never empty.
    pub places: Vec<Place>,
    /// What should have been the case.
    pub expected: String,
    /// What was the case instead.
    pub happened: String,
    /// What to change, in terms of the code.
    pub fix: String,
    /// What a reader has to know in order not to trust it too much, if anything: why this is a warning only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caveat: Option<String>,
    pub evidence: Evidence,
    /// How often it was seen.
    pub count: u64,
    /// Stable over builds whose lines have moved; set when the run ends.
    #[serde(default)]
    pub fingerprint: String,
    /// What `pmvet replay` takes, for findings with a witness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<String>,
}

impl Finding {
    /// In a fix: what the first store stores to. When the run ends, it becomes what the source calls it.
    pub const DATA: &str = "{data}";
    /// In a fix: the call of libpmemobj that adds what the first store stores to. When the run ends, it becomes what the source would call it.
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
    pub fn name(self) -> &'static str {
        match self {
            Severity::Performance => "performance",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// A place in the target that has to do with the finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Place {
    pub role: Role,
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
    Store,
    Load,
    Flush,
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    #[serde(default)]
    pub inlined: bool,
    /// The executable or library; nothing for generated code.
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "crate::lossy::optional_path")]
    pub module: Option<PathBuf>,
    /// Distance from the start of the module.
    pub offset: u64,
}

/// Bytes of a PM file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PmRange {
    #[serde(serialize_with = "crate::lossy::path")]
    pub file: PathBuf,
    pub offset: u64,
    pub len: u64,
    /// What is there, where known: a variable, a field, an object type.
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
    Crash { image: CrashImage, recovery: Recovery, timeline: Vec<TimelineStep> },
    /// Two threads.
    Race {
        /// The racy load was seen between the store and its persist in this very run.
        observed: bool,
        /// Locks held at the store, at the load, in the words of the program; never as addresses.
        store_locks: Vec<String>,
        load_locks: Vec<String>,
        timeline: Vec<TimelineStep>,
    },
}

/// A step in the life of a cache line, for timelines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineStep {
    pub seq: u64,
    pub thread: u32,
    /// `stored`, `flushed`, `fenced`, `persisted`, `overwritten`, `loaded`, `locked`, `crash`.
    pub what: String,
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
    /// Stores that had been made but that nothing had forced into PM yet; the image may have them or not.
    pub unpersisted: Vec<Place>,
    /// How many there were in all.
    pub unpersisted_total: u64,
    /// Stores that the image leaves out, if it is not simply the newest value of everything.
    pub lost: Vec<Place>,
    /// In words: which state was chosen.
    pub choice: String,
    /// Of the content, so that equal images are recognised.
    pub hash: String,
    /// Where the image differs from the one that was expected, or that recovery works on; the first few places.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub diff: Vec<ByteDiff>,
}

/// Bytes of a PM file that are different in two images.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteDiff {
    #[serde(serialize_with = "crate::lossy::path")]
    pub file: PathBuf,
    pub offset: u64,
    /// As expected, or in the image that recovery works on; a short prefix of a long run of bytes.
    #[serde(with = "crate::hex")]
    pub before: Vec<u8>,
    /// As in the crash image.
    #[serde(with = "crate::hex")]
    pub after: Vec<u8>,
    /// What is there, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recovery {
    pub command: Vec<String>,
    pub outcome: Outcome,
    /// What it does when nothing was injected.
    pub expected: Outcome,
    /// Where it was when it failed.
    pub stack: Stack,
    /// The end of its output, both streams together.
    pub output: String,
    #[serde(serialize_with = "crate::lossy::finite")]
    pub seconds: f64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Outcome {
    Exit {
        status: i32,
    },
    Signal {
        signal: i32,
        name: String,
    },
    /// Still running after this many seconds.
    Hang {
        seconds: u64,
    },
    /// The recovery was content, the oracle was not.
    Oracle {
        status: i32,
        output: String,
    },
    /// The recovery was content, but what it has recovered is not what was promised.
    Content {
        violation: Violation,
        /// The operation that it is about, as in the input.
        operation: String,
        /// The program had answered it.
        acknowledged: bool,
        /// Lines that are missing, with `-`, and such as should not be there, with `+`.
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
