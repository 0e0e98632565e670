//! Findings to bytes, one file per format.
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

#![forbid(unsafe_code)]

use std::io::{self, Write};

use pmvet_findings::{Run, Sources};

pub mod html;
pub mod json;
pub mod junit;
pub mod sarif;
pub mod terminal;
mod text;

/// A format.
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
