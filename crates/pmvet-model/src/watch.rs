//! A hook into each step of the model.

use pmvet_events::Event;

use crate::LineId;
use crate::line::Line;
use crate::store::Store;

/// Sees every step in the life of a line, with the line as it was just before. The default methods do nothing, so that a
/// plain model costs nothing.
pub trait LineWatch {
    /// A line takes a store. `line` is the line without it; nothing if the store is persistent at once.
    #[inline]
    fn stored(&mut self, at: LineId, store: &Store, value: &[u8], line: Option<&Line>) {
        let _ = (at, store, value, line);
    }

    /// A flush instruction on a line of PM. `line` is nothing if the line was fully persistent.
    #[inline]
    fn flushed(&mut self, event: &Event<'_>, at: LineId, line: Option<&Line>) {
        let _ = (event, at, line);
    }

    /// A fence of any kind, after its effect: how many lines it made more persistent.
    #[inline]
    fn fenced(&mut self, event: &Event<'_>, lines: usize) {
        let _ = (event, lines);
    }

    /// The oldest pending stores of a line have become persistent.
    #[inline]
    fn persisted(&mut self, at: LineId, stores: &[Store], by: Persisted) {
        let _ = (at, stores, by);
    }
}

/// What made stores persistent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persisted {
    /// A flush or non-temporal store and, where it takes one, a fence.
    Flush,
    /// A system call on the file.
    File,
    /// The cache itself is persistent.
    Cache,
}

impl LineWatch for () {}
