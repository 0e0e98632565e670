//! `findings.jsonl`: one finding per line, appended during the run.

use std::io::{self, BufRead, Write};

use crate::finding::Finding;

/// Why a file of findings cannot be read any further.
#[derive(Debug, thiserror::Error)]
pub enum JsonlError {
    /// The system cannot read it.
    #[error("line {line} cannot be read: {source}")]
    Io {
        /// The line, from 1, empty ones counted.
        line: usize,
        /// What the system says.
        source: io::Error,
    },
    /// It is not JSON, or not a finding.
    #[error("line {line} is not a finding: {source}")]
    Json {
        /// The line, from 1, empty ones counted.
        line: usize,
        /// What is wrong with it; positions count from the start of the line.
        source: serde_json::Error,
    },
}

/// Writes a line for each finding.
pub fn write<'a>(findings: impl IntoIterator<Item = &'a Finding>, out: &mut impl Write) -> io::Result<()> {
    for finding in findings {
        serde_json::to_writer(&mut *out, finding)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Reads findings. Skips empty lines, and ends at the first bad line.
pub fn read(input: impl BufRead) -> impl Iterator<Item = Result<Finding, JsonlError>> {
    let mut input = input;
    let mut line = 0;
    let mut bytes = Vec::new();
    let mut ended = false;
    std::iter::from_fn(move || {
        while !ended {
            line += 1;
            bytes.clear();
            match input.read_until(b'\n', &mut bytes) {
                Ok(0) => ended = true,
                Ok(_) if bytes.trim_ascii().is_empty() => {}
                Ok(_) => {
                    let finding = serde_json::from_slice(&bytes).map_err(|source| JsonlError::Json { line, source });
                    ended = finding.is_err();
                    return Some(finding);
                }
                Err(source) => {
                    ended = true;
                    return Some(Err(JsonlError::Io { line, source }));
                }
            }
        }
        None
    })
}
