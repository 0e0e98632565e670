//! What engines emit and reports read.
//!
//! * [`finding`] — one type for every engine: what is wrong, where, the evidence, and how to replay it.
//! * [`rules`] — the catalogue: every rule by its id, with its severity; [`explain`] has a page for each.
//! * [`run`] — the data of all reports: a run, what it covered, its findings, its failure points ([`tree`]).
//! * [`stack`] — which frames are the user's, and how a frame is written.
//! * [`source`] — the lines of source that frames name.
//! * [`fingerprint`] — decides whether findings of two builds are the same; [`dedup`] and [`baseline`] rely on it.
//! * [`suppress`] — findings that the user does not want to see, and why.
//! * [`token`] — replay tokens, the argument of `pmvet replay`.
//! * [`jsonl`] — `findings.jsonl`, one finding per line.
//!
//! Everything here is plain data that can be written as JSON and read back; this crate knows neither events nor processes.
//!
//! # A token names one finding of a run
//!
//! ```
//! use pmvet_findings::token::{Token, TokenError};
//!
//! # fn main() -> Result<(), TokenError> {
//! let fingerprint = "00112233445566778899aabbccddeeff";
//! let token = Token::new("20260131-120000", fingerprint).expect("a whole fingerprint");
//! let text = token.to_string();
//! assert!(text.starts_with("pmv"));
//! assert_eq!(text.to_uppercase().parse::<Token>()?, token);
//! assert_eq!(token.fingerprint().as_deref(), Some(fingerprint));
//! assert_eq!(text[..text.len() - 1].parse::<Token>(), Err(TokenError::Damaged));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod baseline;
pub mod dedup;
pub mod explain;
mod expression;
pub mod finding;
pub mod fingerprint;
mod hex;
pub mod jsonl;
mod lossy;
mod pattern;
pub mod rules;
pub mod run;
pub mod source;
pub mod stack;
pub mod suppress;
pub mod token;
pub mod tree;

pub use finding::{
    ByteDiff, CrashImage, Evidence, Finding, Frame, LockSpan, Outcome, Place, PmRange, Recovery, Role, Severity, Stack,
    TimelineStep, Violation,
};
pub use rules::{Rule, RuleId};
pub use run::{Counter, Coverage, EngineCoverage, Phase, Run};
pub use source::Sources;
pub use tree::{FailurePointTree, Tally};
