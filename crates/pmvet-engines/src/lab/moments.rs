//! The content of PM at moments of a recorded run.

use std::io;

use pmvet_model::{LINE_BYTES, LineContent, LineId, LineSource};
use pmvet_target::crash::{PmReplay, VersionId, Versions};
use pmvet_target::mapped::MappedFile;
use pmvet_target::recording::Recording;
use pmvet_target::shutdown;

/// Why PM cannot be rebuilt from a recorded run.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// A content could not be read or kept; or, as `Interrupted`, pmvet was asked to stop.
    #[error("cannot rebuild the content of PM: {0}")]
    Image(#[from] io::Error),
    /// Its trace ends too early, is damaged, or is of another version.
    #[error("the recorded run cannot be read: {0}")]
    Trace(#[from] pmvet_events::file::TraceError),
}

/// The newest content of PM, for the model.
#[derive(Debug)]
pub struct Newest<'a>(pub(crate) &'a PmReplay);

impl LineSource for Newest<'_> {
    fn line(&self, line: LineId) -> LineContent {
        line_in(self.0.bytes(line.file), line)
    }
}

/// A line of a file with these bytes. There are zeros past its end.
pub(crate) fn line_in(bytes: &[u8], line: LineId) -> LineContent {
    let start = (line.offset() as usize).min(bytes.len());
    let found = &bytes[start..bytes.len().min(start + LINE_BYTES)];
    let mut content = [0; LINE_BYTES];
    content[..found.len()].copy_from_slice(found);
    LineContent::new(content)
}

/// The content of PM at some moments, sorted by moment. Later ones are missing if pmvet shuts down before.
pub fn versions_at(
    recording: &Recording,
    moments: &[Vec<u64>],
    store: MappedFile,
) -> Result<(Versions, Vec<(u64, VersionId)>), ScanError> {
    let mut wanted: Vec<u64> = moments.iter().flatten().copied().collect();
    wanted.sort_unstable();
    wanted.dedup();
    let (mut versions, mut found) = (Versions::new(store), Vec::with_capacity(wanted.len()));
    let mut replay = PmReplay::new(recording);
    let mut next = wanted.iter().copied().peekable();
    let mut reader = recording.read()?;
    let mut clock = shutdown::ClockCheck::default();
    while next.peek().is_some()
        && let Some(event) = reader.next()?
    {
        if clock.is_due() && shutdown::is_over() {
            return Ok((versions, found));
        }
        if !event.what.is_numbered() {
            continue;
        }
        while let Some(moment) = next.next_if(|moment| *moment <= event.seq) {
            found.push((moment, versions.snapshot(&mut replay)?.0));
        }
        replay.apply(&event)?;
    }
    // What is left comes after the last event.
    for moment in next {
        found.push((moment, versions.snapshot(&mut replay)?.0));
    }
    Ok((versions, found))
}

/// The content of PM before the event with this number, or at the end.
pub fn version_at(
    recording: &Recording,
    moment: Option<u64>,
    store: MappedFile,
) -> Result<(Versions, VersionId), ScanError> {
    let moment = moment.unwrap_or(u64::MAX);
    let (versions, found) = versions_at(recording, &[vec![moment]], store)?;
    match found.first() {
        Some(&(_, version)) => Ok((versions, version)),
        None => Err(io::Error::from(io::ErrorKind::Interrupted).into()),
    }
}
