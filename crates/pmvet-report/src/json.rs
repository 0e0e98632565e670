//! The whole run as JSON, for programs. The schema is `docs/schema/findings.schema.json`. [`Json`] output can be read back.

use std::io::{self, Write};

use pmvet_findings::{Run, Sources};
use serde::{Deserialize, Serialize};

use crate::Exporter;

/// Increased when a field changes its meaning or is removed, not for new fields.
pub const FORMAT: u32 = 1;

/// The whole run, for programs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Json;

/// Why an export cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// It is not JSON, or not a run.
    #[error("not a run that pmvet exported: {0}")]
    Json(#[from] serde_json::Error),
    /// Another pmvet wrote it.
    #[error("the export is of format {0}, this pmvet reads format {FORMAT}")]
    Format(u32),
}

#[derive(Serialize)]
struct Document<'a> {
    format: u32,
    #[serde(flatten)]
    run: &'a Run,
}

impl Exporter for Json {
    fn export(&self, run: &Run, _: &Sources, out: &mut dyn Write) -> io::Result<()> {
        let mut out = io::BufWriter::new(out);
        serde_json::to_writer(&mut out, &Document { format: FORMAT, run })?;
        out.write_all(b"\n")?;
        out.flush()
    }
}

/// Reads what [`Json`] wrote.
pub fn parse(bytes: &[u8]) -> Result<Run, ParseError> {
    #[derive(Deserialize)]
    struct Head {
        format: u32,
    }
    let Head { format } = serde_json::from_slice(bytes)?;
    if format != FORMAT {
        return Err(ParseError::Format(format));
    }
    Ok(serde_json::from_slice(bytes)?)
}
