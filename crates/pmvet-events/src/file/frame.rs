//! Preamble, blocks and frames: the container of the events.

use std::io::{self, Read, Write};

use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};

use super::codec::{Input, put_bytes};
use super::{TraceError, VERSION};

/// The first byte occurs in no text, and the line end does not survive a transfer as text.
pub(super) const MAGIC: [u8; 8] = *b"\x89PMVET\r\n";

/// Most bytes a frame may hold. A frame that claims more is damaged.
pub(super) const MAX_RAW: usize = 128 << 10;

const FRAME_HEAD: usize = 14;
const COMPRESSED: u8 = 1;
const CONTINUED: u8 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Header = b'H',
    Events = b'E',
    End = b'Z',
}

/// Writes preamble and blocks, and carries the checksum from one to the next.
#[derive(Debug)]
pub(super) struct FrameWriter<W> {
    to: W,
    crc: u32,
    packed: Vec<u8>,
    pub(super) written: u64,
}

impl<W: Write> FrameWriter<W> {
    pub(super) fn new(to: W, pmvet_version: &str) -> io::Result<Self> {
        let version = &pmvet_version.as_bytes()[..pmvet_version.floor_char_boundary(255)];
        let mut preamble = MAGIC.to_vec();
        preamble.extend_from_slice(&VERSION.to_le_bytes());
        preamble.push(version.len() as u8);
        preamble.extend_from_slice(version);
        let crc = crc32fast::hash(&preamble);
        preamble.extend_from_slice(&crc.to_le_bytes());
        let packed = vec![0; get_maximum_output_size(MAX_RAW)];
        let mut writer = FrameWriter { to, crc, packed, written: preamble.len() as u64 };
        writer.to.write_all(&preamble)?;
        Ok(writer)
    }

    pub(super) fn block(&mut self, kind: Kind, raw: &[u8]) -> io::Result<()> {
        let mut chunks = raw.chunks(MAX_RAW).peekable();
        while let Some(chunk) = chunks.next() {
            let more = if chunks.peek().is_some() { CONTINUED } else { 0 };
            // Data that does not shrink is stored uncompressed.
            let (flags, stored) = match compress_into(chunk, &mut self.packed) {
                Ok(len) if len < chunk.len() => (more | COMPRESSED, &self.packed[..len]),
                _ => (more, chunk),
            };
            let mut head = [0; FRAME_HEAD];
            head[0] = kind as u8;
            head[1] = flags;
            head[2..6].copy_from_slice(&(chunk.len() as u32).to_le_bytes());
            head[6..10].copy_from_slice(&(stored.len() as u32).to_le_bytes());
            self.crc = checksum(self.crc, &head, stored);
            head[10..].copy_from_slice(&self.crc.to_le_bytes());
            self.to.write_all(&head)?;
            self.to.write_all(stored)?;
            self.written += (head.len() + stored.len()) as u64;
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    pub(super) fn into_inner(self) -> W {
        self.to
    }
}

fn checksum(before: u32, head: &[u8; FRAME_HEAD], stored: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new_with_initial(before);
    crc.update(&head[..10]);
    crc.update(stored);
    crc.finalize()
}

/// Reads what [`FrameWriter`] writes, and nothing else.
#[derive(Debug)]
pub(super) struct FrameReader<R> {
    from: R,
    /// The name of the file in errors.
    name: String,
    crc: u32,
    stored: Vec<u8>,
    /// How many bytes have been read; at the end, the size of the file.
    offset: u64,
    /// Where the block read last starts.
    pub(super) block: u64,
    /// For the error that says how much of a trace there was.
    pub(super) events: u64,
}

impl<R: Read> FrameReader<R> {
    /// Reads the preamble, too, and returns the version of the pmvet that wrote it.
    pub(super) fn new(from: R, name: String) -> Result<(Self, String), TraceError> {
        let mut reader = FrameReader { from, name, crc: 0, stored: Vec::new(), offset: 0, block: 0, events: 0 };
        let mut magic = [0; MAGIC.len()];
        let len = reader.read(&mut magic)?;
        if len == 0 || !MAGIC.starts_with(&magic[..len]) {
            return Err(TraceError::NotATrace { found: describe(&magic[..len]) });
        }
        if len < magic.len() {
            return Err(reader.truncated());
        }
        let version: [u8; 4] = reader.array()?;
        let [len] = reader.array()?;
        let mut written_by = vec![0; usize::from(len)];
        reader.fill(&mut written_by)?;
        let mut crc = crc32fast::Hasher::new();
        [&magic[..], &version, &[len], &written_by].iter().for_each(|part| crc.update(part));
        reader.crc = crc.finalize();
        if reader.array()? != reader.crc.to_le_bytes() {
            return Err(reader.corrupt("the checksum of the first bytes is wrong"));
        }
        let found = u32::from_le_bytes(version);
        let written_by = String::from_utf8_lossy(&written_by).into_owned();
        if found != VERSION {
            return Err(TraceError::Version { found, supported: VERSION, written_by });
        }
        Ok((reader, written_by))
    }

    /// Reads one block into `raw`, in place of what is there.
    pub(super) fn block(&mut self, raw: &mut Vec<u8>) -> Result<Kind, TraceError> {
        raw.clear();
        self.block = self.offset;
        let mut block_kind = None;
        loop {
            let head: [u8; FRAME_HEAD] = self.array()?;
            let [kind, flags, r0, r1, r2, r3, s0, s1, s2, s3, crc @ ..] = head;
            let kind = match kind {
                b'H' => Kind::Header,
                b'E' => Kind::Events,
                b'Z' => Kind::End,
                _ => return Err(self.corrupt("no block starts here")),
            };
            if *block_kind.get_or_insert(kind) != kind || flags & !(COMPRESSED | CONTINUED) != 0 {
                return Err(self.corrupt("a block has an impossible form"));
            }
            let raw_len = u32::from_le_bytes([r0, r1, r2, r3]) as usize;
            let stored_len = u32::from_le_bytes([s0, s1, s2, s3]) as usize;
            let compressed = flags & COMPRESSED != 0;
            let shrunk = if compressed { stored_len < raw_len } else { stored_len == raw_len };
            if raw_len == 0 || raw_len > MAX_RAW || !shrunk {
                return Err(self.corrupt("a block has an impossible length"));
            }

            let mut stored = std::mem::take(&mut self.stored);
            stored.resize(stored_len, 0);
            self.fill(&mut stored)?;
            self.crc = checksum(self.crc, &head, &stored);
            if crc != self.crc.to_le_bytes() {
                return Err(self.corrupt("the checksum of a block is wrong"));
            }
            if compressed {
                let start = raw.len();
                raw.resize(start + raw_len, 0);
                if !decompress_into(&stored, &mut raw[start..]).is_ok_and(|len| len == raw_len) {
                    return Err(self.corrupt("a block cannot be decompressed"));
                }
            } else {
                raw.extend_from_slice(&stored);
            }
            self.stored = stored;
            if flags & CONTINUED == 0 {
                return Ok(kind);
            }
        }
    }

    /// Checks that nothing follows the end record.
    pub(super) fn expect_end(&mut self) -> Result<(), TraceError> {
        self.block = self.offset;
        match self.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(self.corrupt("the file goes on after the end of the trace")),
        }
    }

    pub(super) fn corrupt(&self, what: impl Into<String>) -> TraceError {
        TraceError::Corrupt { offset: self.block, what: what.into() }
    }

    fn truncated(&self) -> TraceError {
        TraceError::Truncated { events_read: self.events, offset: self.offset }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], TraceError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), TraceError> {
        if self.read(bytes)? == bytes.len() { Ok(()) } else { Err(self.truncated()) }
    }

    /// Reads as much as there is, up to the length of `bytes`.
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize, TraceError> {
        let mut len = 0;
        while len < bytes.len() {
            match self.from.read(&mut bytes[len..]) {
                Ok(0) => break,
                Ok(more) => len += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(TraceError::Io { action: "read", file: self.name.clone(), source }),
            }
        }
        self.offset += len as u64;
        Ok(len)
    }
}

/// Describes a file that is no trace, for users who named the wrong one.
fn describe(start: &[u8]) -> String {
    let is_text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    match start {
        [] => "the file is empty".into(),
        [0x7f, b'E', b'L', b'F', ..] => "it is an ELF program or library; name the trace recorded from it".into(),
        [0x1f, 0x8b, ..] => "it is compressed by gzip; if there is a trace inside, decompress it first".into(),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            "it is compressed by zstd; if there is a trace inside, decompress it first".into()
        }
        _ if start.iter().all(is_text) => "it is a text file; name a file that pmvet recorded".into(),
        _ => format!("it starts with the bytes {start:02x?}; name a file that pmvet recorded"),
    }
}

/// A list of tagged fields, as in header and end record.
#[derive(Debug, Default)]
pub(super) struct Fields(pub(super) Vec<u8>);

impl Fields {
    pub(super) fn put(&mut self, tag: u8, value: &[u8]) {
        self.0.push(tag);
        put_bytes(&mut self.0, value);
    }

    pub(super) fn read<'a>(
        bytes: &'a [u8],
        mut field: impl FnMut(u8, &'a [u8]) -> Result<(), &'static str>,
    ) -> Result<(), &'static str> {
        let mut input = Input { bytes, at: 0 };
        while !input.is_empty() {
            let tag = input.byte()?;
            field(tag, input.counted()?)?;
        }
        Ok(())
    }
}
