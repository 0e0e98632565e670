//! Reading a trace.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::codec::{Damage, Input};
use super::decode::{Decoder, Definitions, Numbers};
use super::frame::{Fields, FrameReader, Kind};
use super::writer::field;
use super::{TraceEnd, TraceError, TraceHeader};
use crate::event::Event;
use crate::ids::{ContextId, SiteId};
use crate::places::{Context, Places, Site};

/// Reads a trace, whatever its bytes: damage is an error, never a panic and never a clean end.
///
/// An event borrows from the reader until the next one is read. To resolve its places at the same time, use
/// [`next_in_place`](TraceReader::next_in_place) or [`for_each`](TraceReader::for_each).
#[derive(Debug)]
pub struct TraceReader<R: Read> {
    frames: FrameReader<R>,
    header: TraceHeader,
    decoder: Decoder,
    block: Vec<u8>,
    at: usize,
    numbers: Numbers,
    end: Option<TraceEnd>,
    failed: bool,
}

impl TraceReader<BufReader<File>> {
    /// Opens a trace file and reads its header.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        let name = path.as_ref().display().to_string();
        match File::open(path) {
            Ok(file) => Self::named(BufReader::with_capacity(256 << 10, file), name),
            Err(source) => Err(TraceError::Io { action: "open", file: name, source }),
        }
    }
}

impl<R: Read> TraceReader<R> {
    /// Reads the header from `from`, and events later. It is best buffered.
    pub fn new(from: R) -> Result<Self, TraceError> {
        Self::named(from, "the trace".into())
    }

    fn named(from: R, name: String) -> Result<Self, TraceError> {
        let (mut frames, pmvet_version) = FrameReader::new(from, name)?;
        let mut block = Vec::new();
        if frames.block(&mut block)? != Kind::Header {
            return Err(frames.corrupt("the header is missing"));
        }
        let header = read_header(&block, pmvet_version).map_err(|what| frames.corrupt(what))?;
        block.clear();
        let (decoder, numbers) = (Decoder::new(), Numbers::default());
        Ok(TraceReader { frames, header, decoder, block, at: 0, numbers, end: None, failed: false })
    }

    /// What was known before the first event.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// The places that the events read so far refer to.
    pub fn into_places(self) -> Definitions {
        self.decoder.definitions
    }

    /// The end record, once all events have been read.
    pub fn end(&self) -> Option<&TraceEnd> {
        self.end.as_ref()
    }

    /// The next event, or `None` after the last event of a complete trace.
    // Not an `Iterator`: what it returns is only valid until the next call.
    #[allow(clippy::should_implement_trait)]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Event<'_>>, TraceError> {
        Ok(self.next_in_place()?.map(|(event, _)| event))
    }

    /// As [`next`](TraceReader::next), with the places that the event refers to.
    #[inline(always)]
    pub fn next_in_place(&mut self) -> Result<Option<(Event<'_>, &Definitions)>, TraceError> {
        if !self.find_event()? {
            return Ok(None);
        }
        let mut input = Input { bytes: &self.block, at: self.at };
        // The two branches stay separate, so that a frequent event is built in place; see `Decoder::frequent`.
        let damage = match self.decoder.head(&mut input) {
            Ok(head) if head.is_frequent() => match self.decoder.frequent(&mut input, &mut self.numbers, head) {
                Ok(event) => {
                    self.at = input.at;
                    self.frames.events += 1;
                    return Ok(Some((event, &self.decoder.definitions)));
                }
                Err(what) => what,
            },
            Ok(head) => match self.decoder.infrequent(&mut input, &mut self.numbers, head) {
                Ok(event) => {
                    self.at = input.at;
                    self.frames.events += 1;
                    return Ok(Some((event, &self.decoder.definitions)));
                }
                Err(what) => what,
            },
            Err(what) => what,
        };
        self.failed = true;
        Err(self.frames.corrupt(damage))
    }

    /// Calls `each` with each remaining event and the places that it refers to, until a call or a read fails.
    pub fn for_each<E: From<TraceError>>(
        &mut self,
        mut each: impl FnMut(&Event<'_>, &dyn Places) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some((event, places)) = self.next_in_place()? {
            each(&event, places)?;
        }
        Ok(())
    }

    /// Moves to the next event, through definitions and into the next block if need be. False: there is none.
    fn find_event(&mut self) -> Result<bool, TraceError> {
        if self.failed {
            return Err(self.frames.corrupt("reading has already failed here"));
        }
        // Reset below on success.
        self.failed = true;
        while self.end.is_none() {
            let mut input = Input { bytes: &self.block, at: self.at };
            self.decoder.definitions(&mut input).map_err(|what| self.frames.corrupt(what))?;
            self.at = input.at;
            if !input.is_empty() {
                break;
            }
            self.next_block()?;
        }
        self.failed = false;
        Ok(self.end.is_none())
    }

    fn next_block(&mut self) -> Result<(), TraceError> {
        self.at = 0;
        match self.frames.block(&mut self.block)? {
            Kind::Events => Ok(()),
            Kind::Header => Err(self.frames.corrupt("there is a second header")),
            Kind::End => {
                let end = read_end(&self.block).map_err(|what| self.frames.corrupt(what))?;
                let read = self.frames.events;
                if end.events != read {
                    let what = format!("the end record counts {} events, but there are {read}", end.events);
                    return Err(self.frames.corrupt(what));
                }
                self.frames.expect_end()?;
                self.end = Some(end);
                Ok(())
            }
        }
    }
}

impl<R: Read> Places for TraceReader<R> {
    fn site(&self, id: SiteId) -> Option<Site> {
        self.decoder.definitions.site(id)
    }

    fn context(&self, id: ContextId) -> Option<Context> {
        self.decoder.definitions.context(id)
    }
}

fn read_header(bytes: &[u8], pmvet_version: String) -> Result<TraceHeader, Damage> {
    let mut header = TraceHeader { pmvet_version, ..TraceHeader::default() };
    Fields::read(bytes, |tag, value| {
        match tag {
            field::ARGUMENT => header.command.push(OsStr::from_bytes(value).into()),
            field::LOADS => header.loads = flag(value)?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(header)
}

fn read_end(bytes: &[u8]) -> Result<TraceEnd, Damage> {
    let mut end = TraceEnd::default();
    let mut events = None;
    Fields::read(bytes, |tag, value| {
        match tag {
            field::EVENTS => events = Some(u64::from_le_bytes(value.try_into().map_err(|_| FIELD)?)),
            field::COMPLETE => end.complete = flag(value)?,
            field::EXIT => end.exit = text(value)?,
            _ => {}
        }
        Ok(())
    })?;
    end.events = events.ok_or("the end record does not count the events")?;
    Ok(end)
}

const FIELD: Damage = "a field has an impossible value";

fn text(value: &[u8]) -> Result<String, Damage> {
    String::from_utf8(value.to_vec()).map_err(|_| FIELD)
}

fn flag(value: &[u8]) -> Result<bool, Damage> {
    match value {
        [0] => Ok(false),
        [1] => Ok(true),
        _ => Err(FIELD),
    }
}
