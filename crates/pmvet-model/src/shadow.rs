//! The newest content of PM, as far as events show it.
//!
//! It lacks the initial image: bytes without a store are known only past the end that the file had when the target first touched it, where
//! they are zeros. It serves engines that ask *whether* a store changed anything; those that need every byte use an image.

use pmvet_events::FileId;
use pmvet_events::event::{Event, LINE, What};
use pmvet_events::spaces::AddressSpaces;
use rustc_hash::FxHashMap;

use crate::{LINE_BYTES, LineContent, LineId, LineSource};

const PAGE: u64 = 4096;
const LINES: usize = (PAGE / LINE) as usize;

/// The newest content of PM, as far as events show it.
#[derive(Debug, Default)]
pub struct Shadow {
    spaces: AddressSpaces,
    pages: FxHashMap<(FileId, u64), Box<[LineContent; LINES]>>,
    /// By file: from this offset on, bytes without a store are zero.
    zero_from: FxHashMap<FileId, u64>,
}

impl Shadow {
    /// Notes an event. Call it after [`Model::event`](crate::Model::event), which needs the content before it.
    pub fn event(&mut self, event: &Event<'_>) {
        match event.what {
            What::Store { addr, value, .. } => self.store(event, addr, value),
            What::Rmw { addr, new, stored, .. } if stored => self.store(event, addr, new),
            What::File { file, size, .. } => {
                self.zero_from.insert(file, size);
            }
            What::FileWrite { file, offset, data } => {
                write(&mut self.pages, &self.zero_from, file, offset, data);
            }
            What::FileZero { file, offset, len } => self.zero(file, offset, len),
            What::FileResize { file, size } => {
                self.pages.retain(|&(f, page), _| f != file || page * PAGE < size);
                let zero_from = self.zero_from.entry(file).or_insert(u64::MAX);
                *zero_from = size.min(*zero_from);
                self.zero(file, size, PAGE - size % PAGE);
            }
            // The content is unknown now.
            What::Unsupported { addr, size, .. } | What::Interrupted { addr, size } => {
                let Self { spaces, pages, zero_from } = self;
                spaces.locate(event.thread, addr, size.into(), |part| {
                    for offset in part.offset..part.offset + part.len as u64 {
                        let content = content(pages, zero_from, LineId::containing(part.file, offset));
                        content.known &= !(1 << (offset % LINE));
                    }
                });
            }
            _ => self.spaces.update(event),
        }
    }

    fn store(&mut self, event: &Event<'_>, addr: u64, value: &[u8]) {
        let Self { spaces, pages, zero_from } = self;
        spaces.locate(event.thread, addr, value.len() as u64, |part| {
            write(pages, zero_from, part.file, part.offset, &value[part.first..part.first + part.len]);
        });
    }

    fn zero(&mut self, file: FileId, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        let zero_from = self.zero_from.get(&file).copied().unwrap_or(u64::MAX);
        // Beyond `zero_from` only pages that exist matter, and there may be few of them in a large range.
        self.clear_pages(file, offset.max(zero_from), end);
        let (mut at, end) = (offset, end.min(zero_from));
        while at < end {
            let next = end.min((at / PAGE + 1) * PAGE);
            write(&mut self.pages, &self.zero_from, file, at, &[0; PAGE as usize][..(next - at) as usize]);
            at = next;
        }
    }

    fn clear_pages(&mut self, file: FileId, from: u64, to: u64) {
        let touched = |&&(f, page): &&(FileId, u64)| f == file && page * PAGE < to && from < (page + 1) * PAGE;
        let pages: Vec<u64> = self.pages.keys().filter(touched).map(|&(_, page)| page).collect();
        for page in pages {
            let (first, end) = (from.max(page * PAGE), to.min((page + 1) * PAGE));
            write(&mut self.pages, &self.zero_from, file, first, &[0; PAGE as usize][..(end - first) as usize]);
        }
    }
}

impl LineSource for Shadow {
    fn line(&self, line: LineId) -> LineContent {
        match self.pages.get(&(line.file, line.offset() / PAGE)) {
            Some(page) => page[(line.index % LINES as u64) as usize],
            None => untouched(&self.zero_from, line),
        }
    }
}

type Pages = FxHashMap<(FileId, u64), Box<[LineContent; LINES]>>;

fn untouched(zero_from: &FxHashMap<FileId, u64>, line: LineId) -> LineContent {
    let zero_from = zero_from.get(&line.file).copied().unwrap_or(u64::MAX);
    let unknown = zero_from.saturating_sub(line.offset()).min(LINE);
    LineContent { bytes: [0; LINE_BYTES], known: u64::MAX.checked_shl(unknown as u32).unwrap_or(0) }
}

fn content<'a>(pages: &'a mut Pages, zero_from: &FxHashMap<FileId, u64>, line: LineId) -> &'a mut LineContent {
    let page = pages.entry((line.file, line.offset() / PAGE)).or_insert_with(|| {
        let first = line.index - line.index % LINES as u64;
        Box::new(std::array::from_fn(|i| untouched(zero_from, LineId { index: first + i as u64, ..line })))
    });
    &mut page[(line.index % LINES as u64) as usize]
}

fn write(pages: &mut Pages, zero_from: &FxHashMap<FileId, u64>, file: FileId, offset: u64, data: &[u8]) {
    let (mut offset, mut data) = (offset, data);
    while !data.is_empty() {
        let first = (offset % LINE) as usize;
        let (mine, rest) = data.split_at(data.len().min(LINE_BYTES - first));
        let content = content(pages, zero_from, LineId::containing(file, offset));
        content.bytes[first..first + mine.len()].copy_from_slice(mine);
        content.known |= crate::mask(first, mine.len());
        offset += mine.len() as u64;
        data = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmvet_events::event::StoreKind;
    use pmvet_events::{ContextId, SiteId, ThreadId};

    const FILE: FileId = FileId(1);

    fn shadow(size: u64) -> Shadow {
        let mut shadow = Shadow::default();
        send(&mut shadow, What::ProcessStart { process: 1, parent: 0, path: "".as_ref() });
        send(&mut shadow, What::File { file: FILE, size, device: 0, inode: 0, path: "".as_ref() });
        send(&mut shadow, What::Map { file: FILE, addr: 0x10000, len: 0x3000, offset: 0, writable: true });
        shadow
    }

    fn send(shadow: &mut Shadow, what: What<'_>) {
        shadow.event(&Event { seq: 1, thread: ThreadId(1), site: SiteId(0), context: ContextId(0), what });
    }

    fn line(shadow: &Shadow, offset: u64) -> LineContent {
        shadow.line(LineId::containing(FILE, offset))
    }

    #[test]
    fn a_new_file_holds_zeros_and_an_old_one_nobody_knows_what() {
        assert_eq!(line(&shadow(0), 0), LineContent::new([0; 64]));
        let old = shadow(4096 + 8);
        assert_eq!(line(&old, 0).known, 0);
        assert_eq!(line(&old, 4096).known, !0xff);
        assert_eq!(line(&old, 8192).known, u64::MAX);
    }

    #[test]
    fn stores_and_system_calls_are_seen() {
        let mut shadow = shadow(1 << 20);
        send(&mut shadow, What::Store { addr: 0x1003c, value: &[7; 8], how: StoreKind::Regular });
        assert_eq!(line(&shadow, 0).known, 0xf << 60);
        assert_eq!(line(&shadow, 64).bytes[..5], [7, 7, 7, 7, 0]);
        send(&mut shadow, What::Rmw { addr: 0x10000, old: &[0], new: &[1], stored: false, discards: false });
        assert_eq!(line(&shadow, 0).known & 1, 0);
        send(&mut shadow, What::FileWrite { file: FILE, offset: 0, data: &[9] });
        assert_eq!(line(&shadow, 0).bytes[0], 9);
        send(&mut shadow, What::FileZero { file: FILE, offset: 0, len: 62 });
        assert_eq!(line(&shadow, 0).bytes[60..], [0, 0, 7, 7]);
        send(&mut shadow, What::FileResize { file: FILE, size: 63 });
        assert_eq!(line(&shadow, 0).bytes[60..], [0, 0, 7, 0]);
        assert_eq!(line(&shadow, 64), LineContent::new([0; 64]));
    }
}
