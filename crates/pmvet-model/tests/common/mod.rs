//! Scripted events: a run without a process.

#![allow(dead_code, reason = "each test binary uses its part")]

use pmvet_events::event::{Event, FenceKind, FlushKind, StoreKind, SyncKind, What};
use pmvet_events::{ContextId, FileId, SiteId, ThreadId};
use pmvet_model::{LineContent, LineId, LineSource, Mode, Model};

pub(crate) const FILE: FileId = FileId(1);
/// Where thread 1's process has the file; see [`Run::new`].
pub(crate) const BASE: u64 = 0x10_0000;
/// A second mapping of its first page.
pub(crate) const ALIAS: u64 = 0x20_0000;
pub(crate) const SIZE: usize = 4096;

/// A model that follows a script, with the image it would have.
pub(crate) struct Run {
    pub(crate) model: Model,
    pub(crate) image: Image,
    seq: u64,
}

pub(crate) struct Image(pub(crate) Vec<u8>);

impl LineSource for Image {
    fn line(&self, line: LineId) -> LineContent {
        let first = line.offset() as usize;
        LineContent::new(self.0[first..first + 64].try_into().expect("a line"))
    }
}

impl Run {
    /// One process with threads 1 to 3 and the file mapped twice; process 2 with thread 4 has it elsewhere.
    pub(crate) fn new(mode: Mode) -> Self {
        let mut run = Self { model: Model::new(mode), image: Image(vec![0xee; SIZE]), seq: 0 };
        run.what(1, What::ProcessStart { process: 1, parent: 0, path: "".as_ref() });
        for thread in 1..=3 {
            run.what(thread, What::ThreadStart { process: 1, os_thread: thread });
        }
        run.what(1, What::File { file: FILE, size: SIZE as u64, device: 0, inode: 1, path: "f".as_ref() });
        for addr in [BASE, ALIAS] {
            run.what(1, What::Map { file: FILE, addr, len: SIZE as u64, offset: 0, writable: true });
        }
        run.what(4, What::ProcessStart { process: 2, parent: 0, path: "".as_ref() });
        run.what(4, What::Map { file: FILE, addr: 0x30_0000, len: SIZE as u64, offset: 0, writable: true });
        run
    }

    /// Returns the number of the event.
    pub(crate) fn what(&mut self, thread: u32, what: What<'_>) -> u64 {
        self.seq += 1;
        let (seq, thread) = (self.seq, ThreadId(thread));
        let event = Event { seq, thread, site: SiteId(seq as u32), context: ContextId(1), what };
        self.model.event(&event, &self.image);
        match what {
            What::Store { addr, value, .. } | What::Rmw { addr, new: value, stored: true, .. } => {
                let Self { model, image, .. } = self;
                model.spaces().locate(thread, addr, value.len() as u64, |part| {
                    let at = part.offset as usize;
                    image.0[at..at + part.len].copy_from_slice(&value[part.first..part.first + part.len]);
                });
            }
            What::FileWrite { offset, data, .. } => {
                self.image.0[offset as usize..][..data.len()].copy_from_slice(data);
            }
            _ => {}
        }
        seq
    }

    pub(crate) fn store(&mut self, thread: u32, offset: u64, value: &[u8]) -> u64 {
        self.what(thread, What::Store { addr: BASE + offset, value, how: StoreKind::Regular })
    }

    pub(crate) fn nt(&mut self, thread: u32, offset: u64, value: &[u8]) -> u64 {
        self.what(thread, What::Store { addr: BASE + offset, value, how: StoreKind::NonTemporal })
    }

    pub(crate) fn rmw(&mut self, thread: u32, offset: u64, new: &[u8], stored: bool) -> u64 {
        let old = vec![0; new.len()];
        self.what(thread, What::Rmw { addr: BASE + offset, old: &old, new, stored, discards: false })
    }

    pub(crate) fn clwb(&mut self, thread: u32, offset: u64) -> u64 {
        self.what(thread, What::Flush { addr: BASE + offset, how: FlushKind::Clwb, pm: true })
    }

    pub(crate) fn clflush(&mut self, thread: u32, offset: u64) -> u64 {
        self.what(thread, What::Flush { addr: BASE + offset, how: FlushKind::Clflush, pm: true })
    }

    pub(crate) fn sfence(&mut self, thread: u32) -> u64 {
        self.what(thread, What::Fence { how: FenceKind::Sfence })
    }

    pub(crate) fn msync(&mut self, offset: u64, len: u64) -> u64 {
        self.what(1, What::FileSync { file: FILE, offset, len, how: SyncKind::Msync })
    }

    /// What one byte may be after a crash now, oldest first.
    pub(crate) fn may_be(&self, offset: u64) -> Vec<u8> {
        let at = (offset % 64) as usize;
        match self.model.line(LineId::containing(FILE, offset)) {
            None => vec![self.image.0[offset as usize]],
            Some(line) => {
                let mut all: Vec<u8> = line.states().iter().map(|(_, c)| c.bytes[at]).collect();
                all.dedup();
                all
            }
        }
    }

    pub(crate) fn pending(&self) -> usize {
        self.model.pending_lines()
    }
}
