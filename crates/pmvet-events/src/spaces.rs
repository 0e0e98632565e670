//! From addresses of the target to bytes of PM files.

use std::cell::Cell;

use crate::event::{Event, What};
use crate::ids::{FileId, ThreadId};

/// Which file is mapped where, in each process of the target.
///
/// Looked up for every event, so threads are found by index and the mapping that was hit last is tried first.
///
/// ```
/// use pmvet_events::spaces::{AddressSpaces, Located};
/// use pmvet_events::{ContextId, Event, FileId, SiteId, ThreadId, What};
///
/// let thread = ThreadId(1);
/// let event = |seq, what| Event { seq, thread, site: SiteId(0), context: ContextId(0), what };
/// let mut spaces = AddressSpaces::default();
/// spaces.update(&event(1, What::ThreadStart { process: 100, os_thread: 100 }));
/// spaces.update(&event(2, What::Map { file: FileId(7), addr: 0x1000, len: 0x1000, offset: 0x3000, writable: true }));
///
/// // Of 16 bytes that begin 8 bytes before the mapping, the last 8 are in the file.
/// let mut parts = Vec::new();
/// spaces.locate(thread, 0xff8, 16, |part| parts.push(part));
/// assert_eq!(parts, [Located { file: FileId(7), offset: 0x3000, first: 8, len: 8 }]);
/// ```
#[derive(Debug, Default)]
pub struct AddressSpaces {
    /// By thread: the index of its process's space.
    space_of: Vec<usize>,
    spaces: Vec<Space>,
}

#[derive(Debug, Default)]
struct Space {
    process: u32,
    /// Sorted by start, disjoint.
    mappings: Vec<Mapped>,
    last: Cell<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mapped {
    start: u64,
    end: u64,
    file: FileId,
    offset: u64,
}

/// A part of a range that is in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    /// The file.
    pub file: FileId,
    /// Where in the file the part starts.
    pub offset: u64,
    /// Which byte of the range this part starts with.
    pub first: usize,
    /// In bytes.
    pub len: usize,
}

impl AddressSpaces {
    /// Notes an event that changes threads, processes or mappings.
    pub fn update(&mut self, event: &Event<'_>) {
        match event.what {
            What::ProcessStart { process, parent, .. } => {
                let inherited = self.spaces.iter().rfind(|s| parent != 0 && s.process == parent);
                let mappings = inherited.map(|s| s.mappings.clone()).unwrap_or_default();
                self.spaces.push(Space { process, mappings, last: Cell::new(0) });
                self.enter(event.thread, process);
            }
            What::ThreadStart { process, .. } => self.enter(event.thread, process),
            What::Map { file, addr, len, offset, .. } => {
                if let Some(space) = self.space(event.thread) {
                    space.remove(addr, addr.saturating_add(len));
                    let at = space.mappings.partition_point(|m| m.start < addr);
                    space.mappings.insert(at, Mapped { start: addr, end: addr.saturating_add(len), file, offset });
                }
            }
            What::Unmap { addr, len } => {
                if let Some(space) = self.space(event.thread) {
                    space.remove(addr, addr.saturating_add(len));
                }
            }
            _ => {}
        }
    }

    /// Process numbers may be reused: the newest process counts.
    fn enter(&mut self, thread: ThreadId, process: u32) {
        let index = self.spaces.iter().rposition(|s| s.process == process).unwrap_or_else(|| {
            self.spaces.push(Space { process, ..Space::default() });
            self.spaces.len() - 1
        });
        let thread = thread.0 as usize;
        if self.space_of.len() <= thread {
            self.space_of.resize(thread + 1, usize::MAX);
        }
        self.space_of[thread] = index;
    }

    fn space(&mut self, thread: ThreadId) -> Option<&mut Space> {
        let index = *self.space_of.get(thread.0 as usize)?;
        self.spaces.get_mut(index)
    }

    /// Calls `found` for each part of an address range that is in a file.
    #[inline]
    pub fn locate(&self, thread: ThreadId, addr: u64, len: u64, mut found: impl FnMut(Located)) {
        let Some(space) = self.space_of.get(thread.0 as usize).and_then(|&i| self.spaces.get(i)) else { return };
        let end = addr.saturating_add(len);
        if let Some(m) = space.mappings.get(space.last.get())
            && m.start <= addr
            && addr < end
            && end <= m.end
        {
            return found(Located { file: m.file, offset: m.offset + (addr - m.start), first: 0, len: len as usize });
        }
        space.locate(addr, end, &mut found);
    }
}

impl Space {
    /// As [`AddressSpaces::locate`], for a range that is not all in the mapping that was hit last.
    #[cold]
    fn locate(&self, addr: u64, end: u64, found: &mut dyn FnMut(Located)) {
        let first = self.mappings.partition_point(|m| m.end <= addr);
        self.last.set(first);
        for m in self.mappings[first..].iter().take_while(|m| m.start < end) {
            let (from, to) = (m.start.max(addr), m.end.min(end));
            if from == to {
                continue;
            }
            found(Located {
                file: m.file,
                offset: m.offset + (from - m.start),
                first: (from - addr) as usize,
                len: (to - from) as usize,
            });
        }
    }

    fn remove(&mut self, from: u64, to: u64) {
        let mut left = Vec::with_capacity(self.mappings.len() + 1);
        for m in self.mappings.drain(..) {
            if m.start < from {
                left.push(Mapped { end: m.end.min(from), ..m });
            }
            if m.end > to {
                let start = m.start.max(to);
                left.push(Mapped { start, offset: m.offset + (start - m.start), ..m });
            }
        }
        self.mappings = left;
    }
}
