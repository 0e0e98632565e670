//! Which uncertain bytes a recovery has read.

use pmvet_events::FileId;
use pmvet_events::event::LINE;
use pmvet_model::LineId;
use rustc_hash::FxHashMap;

use super::line::Uncertain;

/// A load of uncertain bytes: those that the execution had not read or overwritten before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UncertainRead {
    /// Position among the uncertain lines of the crash.
    pub line: u32,
    /// One bit for each byte.
    pub bytes: u64,
}

/// Turns the loads and stores of a recovery into [`UncertainRead`]s.
///
/// A byte counts once: its first load makes its value known, and a store of the recovery replaces what the crash left there.
#[derive(Debug, Default)]
pub struct Observer {
    lines: FxHashMap<LineId, Watched>,
    reads: Vec<UncertainRead>,
}

#[derive(Debug)]
struct Watched {
    index: u32,
    /// Bytes that the crash leaves uncertain.
    uncertain: u64,
    /// Bytes that were read or overwritten since.
    known: u64,
}

impl Observer {
    /// An observer for the uncertain lines of a crash; reads refer to them by position.
    pub fn new<'a>(lines: impl IntoIterator<Item = &'a Uncertain>) -> Self {
        let watched = |(index, line): (usize, &Uncertain)| {
            let uncertain = line.stores().iter().fold(0, |bytes, store| bytes | store.covers);
            (line.id(), Watched { index: index as u32, uncertain, known: 0 })
        };
        Self { lines: lines.into_iter().enumerate().map(watched).collect(), reads: Vec::new() }
    }

    /// Returns the number of reads so far if this load was a new one.
    pub fn load(&mut self, file: FileId, offset: u64, len: u64) -> Option<usize> {
        let before = self.reads.len();
        parts(file, offset, len, |id, bytes| {
            if let Some(line) = self.lines.get_mut(&id) {
                let new = bytes & !line.known;
                line.known |= bytes;
                if new != 0 {
                    self.reads.push(UncertainRead { line: line.index, bytes: new });
                }
            }
        });
        (self.reads.len() > before).then_some(self.reads.len())
    }

    /// The recovery has stored to these bytes itself.
    pub fn store(&mut self, file: FileId, offset: u64, len: u64) {
        parts(file, offset, len, |id, bytes| {
            if let Some(line) = self.lines.get_mut(&id) {
                line.known |= bytes;
            }
        });
    }

    /// Whether every uncertain byte has been read or replaced.
    pub fn has_seen_all(&self) -> bool {
        self.lines.values().all(|line| line.uncertain & !line.known == 0)
    }

    /// How many there are so far.
    pub fn count(&self) -> usize {
        self.reads.len()
    }

    /// All reads, in the order of the execution.
    pub fn finish(self) -> Vec<UncertainRead> {
        self.reads
    }
}

/// Calls `part` for each line of a range, with the bytes of the line that are in it.
fn parts(file: FileId, offset: u64, len: u64, mut part: impl FnMut(LineId, u64)) {
    let (mut at, end) = (offset, offset.saturating_add(len));
    while at < end {
        let first = at % LINE;
        let count = (LINE - first).min(end - at);
        let bits = if count >= 64 { u64::MAX } else { (1 << count) - 1 };
        part(LineId::containing(file, at), bits << first);
        at += count;
    }
}
