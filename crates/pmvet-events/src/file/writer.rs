//! Writing a trace.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::decode::Definitions;
use super::encode::Encoder;
use super::frame::{Fields, FrameWriter, Kind};
use super::{TraceEnd, TraceError, TraceHeader};
use crate::event::Event;
use crate::places::Places;

/// A block is written once it has this many bytes: LZ4's window size, and little to lose.
const BLOCK: usize = 64 << 10;

/// Writes a trace. Dropped without [`finish`](TraceWriter::finish), it leaves a truncated trace, as it should.
#[derive(Debug)]
pub struct TraceWriter<W: Write> {
    frames: FrameWriter<W>,
    /// The name of the file in errors.
    name: String,
    encoder: Encoder,
    block: Vec<u8>,
    events: u64,
    raw: u64,
    /// After an error the file may end anywhere, so nothing more may be written.
    failed: bool,
}

impl TraceWriter<BufWriter<File>> {
    /// Creates a trace file, replacing an old one, and writes the header.
    pub fn create(path: impl AsRef<Path>, header: &TraceHeader) -> Result<Self, TraceError> {
        let name = path.as_ref().display().to_string();
        match File::create(path) {
            Ok(file) => Self::named(BufWriter::new(file), header, name),
            Err(source) => Err(TraceError::Io { action: "create", file: name, source }),
        }
    }
}

impl<W: Write> TraceWriter<W> {
    /// Writes the header to `to`, and events later.
    pub fn new(to: W, header: &TraceHeader) -> Result<Self, TraceError> {
        Self::named(to, header, "the trace".into())
    }

    fn named(to: W, header: &TraceHeader, name: String) -> Result<Self, TraceError> {
        let mut fields = Fields::default();
        header.command.iter().for_each(|argument| fields.put(field::ARGUMENT, argument.as_bytes()));
        fields.put(field::LOADS, &[u8::from(header.loads)]);

        let start = |to| {
            let mut frames = FrameWriter::new(to, &header.pmvet_version)?;
            frames.block(Kind::Header, &fields.0)?;
            Ok(frames)
        };
        match start(to) {
            Ok(frames) => {
                let block = Vec::with_capacity(2 * BLOCK);
                Ok(TraceWriter { frames, name, encoder: Encoder::new(), block, events: 0, raw: 0, failed: false })
            }
            Err(source) => Err(TraceError::Io { action: "write", file: name, source }),
        }
    }

    /// Writes one event, after the definitions of the places that it is the first to refer to.
    pub fn write(&mut self, event: &Event<'_>, places: &dyn Places) -> Result<(), TraceError> {
        self.encoder.event(&mut self.block, event, places);
        self.events += 1;
        if self.block.len() >= BLOCK { self.write_block() } else { Ok(()) }
    }

    /// Writes everything so far to the file, so that it survives if pmvet is killed. Costs some compression.
    pub fn flush(&mut self) -> Result<(), TraceError> {
        self.write_block()?;
        let done = self.frames.flush();
        self.check(done)
    }

    /// Writes the end record, without which the trace counts as cut short, and returns what was written to.
    pub fn finish(mut self, end: &TraceEnd) -> Result<W, TraceError> {
        self.write_block()?;
        let mut fields = Fields::default();
        fields.put(field::EVENTS, &self.events.to_le_bytes());
        fields.put(field::COMPLETE, &[u8::from(end.complete)]);
        fields.put(field::EXIT, end.exit.as_bytes());
        let done = self.frames.block(Kind::End, &fields.0).and_then(|()| self.frames.flush());
        self.check(done)?;
        Ok(self.frames.into_inner())
    }

    /// The places that the events so far refer to, as a reader of the trace would know them.
    pub fn places(&self) -> &Definitions {
        &self.encoder.definitions
    }

    /// How many events were written.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// How large the file is, without the block that is not yet full.
    pub fn file_bytes(&self) -> u64 {
        self.frames.written
    }

    /// How many bytes the events and definitions take before compression.
    pub fn raw_bytes(&self) -> u64 {
        self.raw + self.block.len() as u64
    }

    fn write_block(&mut self) -> Result<(), TraceError> {
        let done = if self.failed {
            // After a lost event, neither other events nor an end record may follow.
            Err(io::Error::other("an earlier part of it could not be written"))
        } else {
            self.frames.block(Kind::Events, &self.block)
        };
        self.raw += self.block.len() as u64;
        self.block.clear();
        // One huge event must not hold its memory for the rest of the run.
        self.block.shrink_to(2 * BLOCK);
        self.check(done)
    }

    fn check(&mut self, done: io::Result<()>) -> Result<(), TraceError> {
        self.failed |= done.is_err();
        done.map_err(|source| TraceError::Io { action: "write", file: self.name.clone(), source })
    }
}

/// Tags of the fields of header and end record.
pub(super) mod field {
    pub(in super::super) const ARGUMENT: u8 = 1;
    pub(in super::super) const LOADS: u8 = 2;

    pub(in super::super) const EVENTS: u8 = 1;
    pub(in super::super) const COMPLETE: u8 = 2;
    pub(in super::super) const EXIT: u8 = 3;
}
