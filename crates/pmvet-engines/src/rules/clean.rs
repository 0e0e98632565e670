//! Which lines were flushed, and by which thread; and which threads have something to wait for.

use pmvet_events::{FileId, ThreadId};
use pmvet_model::LineId;
use rustc_hash::FxHashMap;

/// Lines in a page.
const LINES: u64 = 64;

/// The thread that flushed each line last. Two bytes per line of the pages that were flushed at all.
#[derive(Debug, Default)]
pub(super) struct Flushed {
    pages: FxHashMap<(FileId, u64), Box<FlushedPage>>,
    /// The size of each file when the target first touched it.
    initial_size: FxHashMap<FileId, u64>,
}

#[derive(Debug)]
struct FlushedPage {
    /// 0: none.
    last: [u16; LINES as usize],
    /// Lines that were made persistent in other ways, one bit each: by stores past the cache or by system calls.
    otherwise: u64,
}

/// Which thread flushed a line last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LastFlush {
    /// None, and the line was new when the run began.
    NobodyNew,
    /// None in this run. An earlier run may have left the line dirty.
    NobodyOld,
    Same,
    Other,
}

impl Flushed {
    pub(super) fn file(&mut self, file: FileId, size: u64) {
        self.initial_size.insert(file, size);
    }

    /// Notes a flush and returns which thread came before.
    pub(super) fn flush(&mut self, line: LineId, thread: ThreadId) -> LastFlush {
        let last = &mut self.page(line).last[(line.index % LINES) as usize];
        // Beyond this many threads, some share a number, which is harmless.
        let me = (thread.0 % u32::from(u16::MAX)) as u16 + 1;
        let before = std::mem::replace(last, me);
        match before {
            0 if self.initial_size.get(&line.file).is_some_and(|size| line.offset() >= *size) => LastFlush::NobodyNew,
            0 => LastFlush::NobodyOld,
            _ if before == me => LastFlush::Same,
            _ => LastFlush::Other,
        }
    }

    fn page(&mut self, line: LineId) -> &mut FlushedPage {
        let new = || Box::new(FlushedPage { last: [0; LINES as usize], otherwise: 0 });
        self.pages.entry((line.file, line.index / LINES)).or_insert_with(new)
    }

    /// Notes a store past the cache, or a system call that makes a line persistent.
    pub(super) fn otherwise(&mut self, line: LineId) {
        self.page(line).otherwise |= 1 << (line.index % LINES);
    }

    /// Whether anything ever made the line persistent on purpose.
    pub(super) fn was_flushed(&self, line: LineId) -> bool {
        let at = line.index % LINES;
        let page = self.pages.get(&(line.file, line.index / LINES));
        page.is_some_and(|page| page.last[at as usize] != 0 || page.otherwise >> at & 1 == 1)
    }

    /// Whether that holds for a line next to this one.
    pub(super) fn is_beside_flushed(&self, line: LineId) -> bool {
        let beside = [line.index.checked_sub(1), Some(line.index + 1)];
        beside.into_iter().flatten().any(|index| self.was_flushed(LineId { index, ..line }))
    }
}

/// What each thread has done since its last explicit fence.
#[derive(Debug, Default)]
pub(super) struct Fences {
    threads: Vec<Since>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Since {
    /// Something that a fence waits for.
    pub(super) flushed: bool,
    /// A regular store to PM, which no fence waits for.
    pub(super) stored: bool,
}

impl Fences {
    #[inline]
    fn since(&mut self, thread: ThreadId) -> &mut Since {
        let index = thread.0 as usize;
        if self.threads.len() <= index {
            self.threads.resize(index + 1, Since::default());
        }
        &mut self.threads[index]
    }

    #[inline]
    pub(super) fn waits(&mut self, thread: ThreadId) {
        self.since(thread).flushed = true;
    }

    #[inline]
    pub(super) fn stores(&mut self, thread: ThreadId) {
        self.since(thread).stored = true;
    }

    pub(super) fn reset(&mut self, thread: ThreadId) {
        self.fence(thread);
    }

    pub(super) fn fence(&mut self, thread: ThreadId) -> Since {
        std::mem::take(self.since(thread))
    }
}
