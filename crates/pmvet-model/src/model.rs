//! From events to pending lines.

use pmvet_events::event::{Event, FlushKind, LINE, What};
use pmvet_events::spaces::AddressSpaces;
use pmvet_events::{FileId, ThreadId};

use crate::buffer::Buffers;
use crate::line::Line;
use crate::lines::{PendingLineTable, SlotRef};
use crate::store::{Store, WriteKind};
use crate::watch::{LineWatch, Persisted};
use crate::{LineId, LineSource, Mode};

/// Follows a run and knows which stores may be lost if the power fails now.
///
/// Feed it every event, in order. Its memory grows with the number of lines that are pending at the same time, not with
/// the length of the run.
#[derive(Debug, Default)]
pub struct Model {
    mode: Mode,
    spaces: AddressSpaces,
    pub(crate) lines: PendingLineTable,
    buffers: Buffers,
    /// Scratch space for the flush buffer that a fence empties.
    fencing: Vec<SlotRef>,
    merged: u64,
    file_writes: u64,
}

impl Model {
    /// A model of a machine on which nothing has happened yet.
    pub fn new(mode: Mode) -> Self {
        Self { mode, ..Self::default() }
    }

    /// What a power failure loses.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// How many stores were merged because their line had too many.
    pub fn merged(&self) -> u64 {
        self.merged
    }

    /// How many system calls have changed bytes of PM files. They count as durable at once, whether the program syncs the file or not.
    pub fn file_writes(&self) -> u64 {
        self.file_writes
    }

    /// The line, if it has pending stores.
    pub fn line(&self, id: LineId) -> Option<&Line> {
        self.lines.find(id).map(|slot| self.lines.get(slot))
    }

    /// Which files are mapped where in the target's memory.
    pub fn spaces(&self) -> &AddressSpaces {
        &self.spaces
    }

    /// Whether this event, if it came next, would leave a crash fewer choices: it makes some pending store persistent.
    pub fn would_persist(&self, event: &Event<'_>) -> bool {
        let has_pending = |file, offset: u64, len: u64| {
            let last = LineId::containing(file, offset.saturating_add(len.saturating_sub(1)));
            len > 0 && !self.lines.in_range(LineId::containing(file, offset), last).is_empty()
        };
        match event.what {
            // With a persistent cache, a store leaves no choice about itself, nor about what its line held before.
            What::Store { how, .. } => self.mode == Mode::Eadr && WriteKind::from(how) != WriteKind::NonTemporal,
            What::Rmw { stored, .. } => self.would_fence(event.thread) || stored && self.mode == Mode::Eadr,
            What::Fence { .. } => self.would_fence(event.thread),
            What::Flush { addr, how: FlushKind::Clflush, pm: true } => {
                let mut pending = false;
                self.spaces.locate(event.thread, addr & !(LINE - 1), LINE, |part| {
                    pending |= self.line(LineId::containing(part.file, part.offset)).is_some();
                });
                pending
            }
            What::FileSync { file, offset, len, .. } | What::FileZero { file, offset, len } => {
                has_pending(file, offset, len)
            }
            What::FileWrite { file, offset, data } => has_pending(file, offset, data.len() as u64),
            What::FileResize { file, size } => has_pending(file, size, u64::MAX),
            _ => false,
        }
    }

    fn would_fence(&self, thread: ThreadId) -> bool {
        self.buffers.get(thread).iter().any(|at| {
            let line = self.lines.get(at.slot);
            let covers = |&(by, upto): &(ThreadId, u64)| by == thread && line.covered(upto) > 0;
            line.life == at.life && line.flushes.iter().any(covers)
        })
    }

    /// Takes the next event. `before` is the newest content of PM, without this event.
    #[inline]
    pub fn event(&mut self, event: &Event<'_>, before: &(impl LineSource + ?Sized)) {
        self.watched(event, before, &mut ());
    }

    /// As [`event`](Model::event), with a watch that sees each step.
    pub fn watched(&mut self, event: &Event<'_>, before: &(impl LineSource + ?Sized), watch: &mut impl LineWatch) {
        match event.what {
            What::Store { addr, value, how } => self.store(event, addr, value, how.into(), before, watch),
            What::Rmw { addr, new, stored, .. } => {
                self.fence(event, watch);
                if stored {
                    self.store(event, addr, new, WriteKind::Rmw, before, watch);
                }
            }
            What::Flush { addr, how, pm } if pm => self.flush(event, addr, how, watch),
            What::Fence { .. } => self.fence(event, watch),
            What::FileSync { file, offset, len, .. } => self.settle(file, offset, len, watch),
            What::FileWrite { file, offset, data } => {
                self.file_writes += 1;
                self.settle(file, offset, data.len() as u64, watch);
            }
            What::FileZero { file, offset, len } => self.settle(file, offset, len, watch),
            What::FileResize { file, size } => self.settle(file, size, u64::MAX, watch),
            What::ThreadExit => self.buffers.forget(event.thread),
            What::Map { .. } | What::Unmap { .. } | What::ProcessStart { .. } | What::ThreadStart { .. } => {
                self.spaces.update(event);
            }
            _ => {}
        }
    }

    #[inline]
    fn store(
        &mut self,
        event: &Event<'_>,
        addr: u64,
        value: &[u8],
        kind: WriteKind,
        before: &(impl LineSource + ?Sized),
        watch: &mut impl LineWatch,
    ) {
        let Self { mode, spaces, lines, buffers, merged, .. } = self;
        spaces.locate(event.thread, addr, value.len() as u64, |part| {
            let (mut offset, mut value) = (part.offset, &value[part.first..part.first + part.len]);
            while !value.is_empty() {
                let in_line = offset % LINE;
                let (mine, rest) = value.split_at(value.len().min((LINE - in_line) as usize));
                let id = LineId::containing(part.file, offset);
                let store = Store {
                    seq: event.seq,
                    thread: event.thread,
                    site: event.site,
                    context: event.context,
                    kind,
                    merged: false,
                    offset: in_line as u8,
                    len: mine.len() as u8,
                    data: 0,
                };
                if *mode == Mode::Eadr && kind != WriteKind::NonTemporal {
                    watch.stored(id, &store, mine, None);
                    // A line keeps the order of its stores, so earlier pending ones are persistent, too.
                    if let Some(slot) = lines.find(id) {
                        persist(lines, slot, u64::MAX, Persisted::Cache, watch);
                    }
                    watch.persisted(id, &[store], Persisted::Cache);
                } else {
                    let slot = lines.find_or_insert(id, || before.line(id));
                    let line = lines.get_mut(slot);
                    watch.stored(id, &store, mine, Some(line));
                    *merged += line.push(store, mine);
                    if kind == WriteKind::NonTemporal {
                        start_flush(lines, buffers, slot, event.thread, event.seq);
                    }
                }
                offset += mine.len() as u64;
                value = rest;
            }
        });
    }

    fn flush(&mut self, event: &Event<'_>, addr: u64, how: FlushKind, watch: &mut impl LineWatch) {
        let Self { spaces, lines, buffers, .. } = self;
        spaces.locate(event.thread, addr & !(LINE - 1), LINE, |part| {
            let id = LineId::containing(part.file, part.offset);
            let slot = lines.find(id);
            watch.flushed(event, id, slot.map(|slot| lines.get(slot)));
            let Some(slot) = slot else { return };
            lines.get_mut(slot).last_flush = Some((event.thread, event.seq));
            if how == FlushKind::Clflush {
                persist(lines, slot, event.seq, Persisted::Flush, watch);
            } else {
                start_flush(lines, buffers, slot, event.thread, event.seq);
            }
        });
    }

    fn fence(&mut self, event: &Event<'_>, watch: &mut impl LineWatch) {
        let mut raised = 0;
        self.buffers.drain_into(event.thread, &mut self.fencing);
        for at in self.fencing.drain(..) {
            let Some(upto) = self.lines.resolve(at).and_then(|line| line.take_flush(event.thread)) else { continue };
            raised += usize::from(persist(&mut self.lines, at.slot, upto, Persisted::Flush, watch));
        }
        watch.fenced(event, raised);
    }

    /// A system call makes the current content of the lines in a range persistent.
    fn settle(&mut self, file: FileId, offset: u64, len: u64, watch: &mut impl LineWatch) {
        if len == 0 {
            return;
        }
        let last = LineId::containing(file, offset.saturating_add(len - 1));
        for slot in self.lines.in_range(LineId::containing(file, offset), last) {
            persist(&mut self.lines, slot, u64::MAX, Persisted::File, watch);
        }
    }
}

fn start_flush(lines: &mut PendingLineTable, buffers: &mut Buffers, slot: u32, thread: ThreadId, seq: u64) {
    let line = lines.get_mut(slot);
    let life = line.life;
    if line.flush(thread, seq) {
        buffers.push(thread, SlotRef { slot, life }, lines);
    }
}

/// Raises the bound of a line to the stores up to a number. False if that changes nothing.
#[inline]
fn persist(lines: &mut PendingLineTable, slot: u32, upto: u64, by: Persisted, watch: &mut impl LineWatch) -> bool {
    let line = lines.get_mut(slot);
    let count = line.covered(upto);
    if count == 0 {
        return false;
    }
    watch.persisted(line.id, &line.stores()[..count], by);
    line.persist(count);
    if line.stores().is_empty() {
        lines.remove(slot);
    }
    true
}
