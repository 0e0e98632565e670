//! Whether recovery overwrites what depends on a value that was lost: PMRace's post-failure validation (section 4.4).

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use pmvet_events::event::{Event, What};
use pmvet_events::spaces::AddressSpaces;
use pmvet_events::{FileId, ThreadId};

/// Watches a recovery that starts from an image with inconsistent bytes.
#[derive(Debug, Default)]
pub struct Overwritten {
    spaces: AddressSpaces,
    /// Those that are not overwritten yet, as offsets in files.
    left: Vec<(PathBuf, u64)>,
    files: HashMap<FileId, PathBuf>,
    all: usize,
}

impl Overwritten {
    /// `ranges` are files, as the target names them, offsets and lengths.
    pub fn new(ranges: impl IntoIterator<Item = (PathBuf, u64, u64)>) -> Self {
        let mut left: Vec<(PathBuf, u64)> = Vec::new();
        for (path, offset, len) in ranges {
            left.extend((offset..offset.saturating_add(len)).map(|byte| (path.clone(), byte)));
        }
        left.sort_unstable();
        left.dedup();
        Self { all: left.len(), left, ..Self::default() }
    }

    /// How many bytes there were, and how many are not overwritten.
    pub fn result(&self) -> (usize, usize) {
        (self.all, self.left.len())
    }

    /// Nothing is left: all bytes were overwritten.
    pub fn is_decided(&self) -> bool {
        self.left.is_empty()
    }

    /// Takes the next event of the recovery.
    pub fn event(&mut self, event: &Event<'_>) {
        self.spaces.update(event);
        match event.what {
            What::File { file, path, .. } => {
                self.files.insert(file, path.into());
            }
            What::Store { addr, value, .. } => self.stored(event.thread, addr, value.len() as u64),
            What::Rmw { addr, new, stored: true, .. } => self.stored(event.thread, addr, new.len() as u64),
            What::FileWrite { file, offset, data } => self.written(file, offset, data.len() as u64),
            What::FileZero { file, offset, len } => self.written(file, offset, len),
            _ => {}
        }
    }

    fn stored(&mut self, thread: ThreadId, addr: u64, len: u64) {
        let mut parts = Vec::new();
        self.spaces.locate(thread, addr, len, |part| parts.push(part));
        parts.into_iter().for_each(|part| self.written(part.file, part.offset, part.len as u64));
    }

    fn written(&mut self, file: FileId, offset: u64, len: u64) {
        let Some(path) = self.files.get(&file) else { return };
        let range = offset..offset.saturating_add(len);
        self.left.retain(|(known, byte)| Path::new(known) != path || !range.contains(byte));
    }
}

#[cfg(test)]
mod tests {
    use pmvet_events::event::StoreKind;
    use pmvet_events::{ContextId, SiteId};

    use super::*;

    #[test]
    fn what_is_stored_over_is_gone_and_the_rest_stays() {
        let mut recovery =
            Overwritten::new([("/pool".into(), 64, 8), ("/pool".into(), 68, 8), ("/other".into(), 64, 4)]);
        assert_eq!(recovery.result(), (16, 16));
        let mut event = |what| {
            recovery.event(&Event { seq: 1, thread: ThreadId(1), site: SiteId(1), context: ContextId(1), what });
            recovery.result().1
        };
        event(What::ThreadStart { process: 1, os_thread: 1 });
        event(What::File { file: FileId(5), size: 4096, device: 0, inode: 0, path: "/pool".as_ref() });
        event(What::Map { file: FileId(5), addr: 0x1000, len: 4096, offset: 0, writable: true });
        let store = |addr, value| What::Store { addr, value, how: StoreKind::Regular };
        assert_eq!(event(store(0x1000, &[0; 64])), 16);
        assert_eq!(event(store(0x1040, &[0; 8])), 8);
        assert_eq!(event(What::FileZero { file: FileId(5), offset: 0, len: 4096 }), 4);
        assert!(!recovery.is_decided());
    }
}
