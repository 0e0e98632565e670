//! Findings to bytes, one file or folder per format.
//!
//! | format | for |
//! |---|---|
//! | [`terminal`] | people, in the manner of rustc |
//! | [`html`] | people: one page that holds everything |
//! | [`json`] | programs; the schema is `docs/schema/findings.schema.json` |
//! | [`sarif`] | code scanning, such as GitHub's |
//! | [`junit`] | whatever shows test results |
//!
//! All take a [`Run`] and write it out. Text that comes from the target — paths, names, output — is hostile: every
//! format escapes it.
//!
//! # One finding, as a test result
//!
//! ```
//! use pmvet_findings::{Evidence, Finding, Place, Role, RuleId, Run, Severity, Sources};
//! use pmvet_report::{Exporter, junit::Junit};
//!
//! # fn main() -> std::io::Result<()> {
//! let store =
//!     Place { role: Role::Store, stack: Vec::new(), thread: Some(1), pm: None, seq: None, label: "never flushed".into() };
//! let finding = Finding {
//!     rule: RuleId("unpersisted-store".into()),
//!     severity: Severity::Warning,
//!     title: "a store of <list> is never flushed".into(),
//!     places: vec![store],
//!     expected: "the store is flushed before the program ends".into(),
//!     happened: "it is not".into(),
//!     fix: "flush it".into(),
//!     caveat: None,
//!     evidence: Evidence::Trace { timeline: Vec::new() },
//!     count: 1,
//!     fingerprint: String::new(),
//!     replay: None,
//! };
//! let run = Run { engines: vec!["rules".into()], findings: vec![finding], ..Run::default() };
//! let junit = Junit { fail_on: Severity::Warning, pedantic: false };
//! let xml = String::from_utf8(junit.to_bytes(&run, &Sources::default())?).expect("XML is text");
//! assert!(xml.contains(r#"<failure type="warning" message="a store of &lt;list&gt; is never flushed">"#));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![deny(missing_docs)]

use std::io::{self, Write};

use pmvet_findings::{Run, Sources};

pub mod html;
pub mod json;
pub mod junit;
pub mod sarif;
pub mod terminal;
mod text;

pub use text::command_line;

/// Writes runs in one format.
pub trait Exporter {
    /// Writes the whole run. Fails only if writing does.
    fn export(&self, run: &Run, sources: &Sources, out: &mut dyn Write) -> io::Result<()>;

    /// The same, in memory.
    fn to_bytes(&self, run: &Run, sources: &Sources) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.export(run, sources, &mut bytes)?;
        Ok(bytes)
    }
}
