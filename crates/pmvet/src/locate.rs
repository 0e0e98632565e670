//! Finds the PM file of an address, fast enough to ask for every load.

use pmvet_events::spaces::AddressSpaces;
use pmvet_events::{Event, FileId, ThreadId, What};

/// Follows the mappings of a run and finds the file behind an address, even in a damaged trace.
#[derive(Debug, Default)]
pub(crate) struct Locator {
    spaces: AddressSpaces,
}

/// No run has this many threads; a greater number would make tables by thread huge.
const IMPOSSIBLE_THREAD: u32 = 1 << 24;

impl Locator {
    /// Follows an event that changes processes, threads or mappings.
    pub(crate) fn update(&mut self, event: &Event<'_>) {
        let possible = match event.what {
            What::Map { addr, len, offset, .. } => addr.checked_add(len).is_some() && offset.checked_add(len).is_some(),
            _ => true,
        };
        if possible && event.thread.0 < IMPOSSIBLE_THREAD {
            self.spaces.update(event);
        }
    }

    /// The file and the offset in it of the first byte of a range that is in a file, in the thread's process.
    #[inline]
    pub(crate) fn find(&self, thread: ThreadId, addr: u64, len: u64) -> Option<(FileId, u64)> {
        let mut first = None;
        self.spaces.locate(thread, addr, len, |part| {
            first.get_or_insert((part.file, part.offset));
        });
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmvet_events::{ContextId, SiteId};

    fn event(thread: u32, what: What<'_>) -> Event<'_> {
        Event { seq: 1, thread: ThreadId(thread), site: SiteId(0), context: ContextId(0), what }
    }

    fn map(file: u32, addr: u64, len: u64, offset: u64) -> What<'static> {
        What::Map { file: FileId(file), addr, len, offset, writable: true }
    }

    #[test]
    fn follows_mappings_of_threads_and_processes() {
        let mut l = Locator::default();
        l.update(&event(1, What::ProcessStart { process: 10, parent: 0, path: "".as_ref() }));
        assert_eq!(l.find(ThreadId(1), 0x1000, 1), None);
        l.update(&event(1, map(1, 0x1000, 0x2000, 0x100)));
        l.update(&event(1, map(2, 0x8000, 0x1000, 0)));
        l.update(&event(2, What::ThreadStart { process: 10, os_thread: 11 }));
        for thread in [ThreadId(1), ThreadId(2)] {
            assert_eq!(l.find(thread, 0x1010, 1), Some((FileId(1), 0x110)));
            assert_eq!(l.find(thread, 0x1020, 1), Some((FileId(1), 0x120)));
            assert_eq!(l.find(thread, 0x8001, 1), Some((FileId(2), 1)));
            assert_eq!(l.find(thread, 0x3000, 1), None);
        }
        // A child inherits; what the parent does later is its own.
        l.update(&event(3, What::ProcessStart { process: 20, parent: 10, path: "".as_ref() }));
        l.update(&event(1, What::Unmap { addr: 0x1000, len: 0x1000 }));
        assert_eq!(l.find(ThreadId(2), 0x1010, 1), None);
        assert_eq!(l.find(ThreadId(2), 0x2010, 1), Some((FileId(1), 0x1110)));
        assert_eq!(l.find(ThreadId(3), 0x1010, 1), Some((FileId(1), 0x110)));
        // A range that begins before the mapping.
        assert_eq!(l.find(ThreadId(1), 0x7ff8, 16), Some((FileId(2), 0)));
    }

    #[test]
    fn impossible_mappings_are_left_out() {
        let mut l = Locator::default();
        l.update(&event(1, What::ProcessStart { process: 10, parent: 0, path: "".as_ref() }));
        l.update(&event(1, map(1, u64::MAX - 10, 100, 0)));
        l.update(&event(1, map(1, 0x1000, 0x1000, u64::MAX)));
        l.update(&event(u32::MAX, What::ThreadStart { process: 10, os_thread: 1 }));
        assert_eq!(l.find(ThreadId(u32::MAX), 0x1000, 1), None);
        assert_eq!(l.find(ThreadId(1), u64::MAX - 5, 1), None);
        assert_eq!(l.find(ThreadId(1), 0x1000, 1), None);
    }
}
