//! The call stack of a stopped thread that runs natively, by the unwind tables of the files it was loaded from.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder as _};
use object::{Object, ObjectSection, ObjectSegment, ReadCache};

use super::tracee::Tracee;

/// Deeper stacks are cut: they come from endless recursion.
const MOST_FRAMES: usize = 256;

/// A place on a stack, not yet resolved.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RawFrame {
    /// An address within the instruction: for callers, within the call, not after it.
    pub pc: u64,
    /// The file it was loaded from and the address of its first segment; nothing for generated code.
    pub module: Option<(PathBuf, u64)>,
}

/// Unwind tables of a file, shared by all stacks.
type Sections = ExplicitModuleSectionInfo<Arc<[u8]>>;

/// Unwinds stacks. Caches the tables of the files it has seen.
#[derive(Default)]
pub struct Unwinder {
    tables: HashMap<PathBuf, Option<Tables>>,
}

#[derive(Clone)]
struct Tables {
    sections: Sections,
    /// The address that the first segment asks for.
    first: u64,
}

impl std::fmt::Debug for Unwinder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unwinder").field("files", &self.tables.len()).finish()
    }
}

impl Unwinder {
    /// Innermost frame first. A stack that cannot be followed to its end is cut short.
    pub(super) fn stack(&mut self, thread: Tracee) -> Vec<RawFrame> {
        let Ok(registers) = thread.registers() else { return Vec::new() };
        let modules = loaded(thread);
        let mut unwinder: UnwinderX86_64<Arc<[u8]>> = UnwinderX86_64::new();
        for (path, range) in &modules {
            if let Some(tables) = self.tables(path) {
                let bias = range.start.wrapping_sub(tables.first);
                let name = path.display().to_string();
                unwinder.add_module(Module::new(name, range.clone(), bias, tables.sections.clone()));
            }
        }
        let mut read = |addr: u64| {
            let mut word = [0; 8];
            match thread.read(addr, &mut word) {
                Ok(8) => Ok(u64::from_le_bytes(word)),
                _ => Err(()),
            }
        };
        let mut cache = CacheX86_64::<_>::new();
        let start = UnwindRegsX86_64::new(registers.rip, registers.rsp, registers.rbp);
        let mut frames = unwinder.iter_frames(registers.rip, start, &mut cache, &mut read);
        let mut stack = Vec::new();
        while stack.len() < MOST_FRAMES
            && let Ok(Some(frame)) = frames.next()
        {
            let pc = match frame {
                FrameAddress::InstructionPointer(pc) => pc,
                FrameAddress::ReturnAddress(pc) => pc.get() - 1,
            };
            let module = modules.iter().find(|(_, range)| range.contains(&pc));
            stack.push(RawFrame { pc, module: module.map(|(path, range)| (path.clone(), range.start)) });
        }
        stack
    }

    fn tables(&mut self, path: &Path) -> Option<&Tables> {
        if !self.tables.contains_key(path) {
            self.tables.insert(path.into(), Tables::read(path));
        }
        self.tables.get(path)?.as_ref()
    }
}

impl Tables {
    fn read(path: &Path) -> Option<Self> {
        // Reads only the needed parts: a file is mostly debug information.
        let parts = ReadCache::new(File::open(path).ok()?);
        let file = object::File::parse(&parts).ok()?;
        let section = |name: &str| -> (Option<Range<u64>>, Option<Arc<[u8]>>) {
            let Some(found) = file.section_by_name(name) else { return (None, None) };
            let range = found.address()..found.address().saturating_add(found.size());
            (Some(range), found.uncompressed_data().ok().map(Arc::from))
        };
        let (text_svma, text) = section(".text");
        let (eh_frame_svma, eh_frame) = section(".eh_frame");
        let (eh_frame_hdr_svma, eh_frame_hdr) = section(".eh_frame_hdr");
        let sections = Sections {
            base_svma: 0,
            text_svma,
            text,
            got_svma: section(".got").0,
            eh_frame_svma,
            eh_frame,
            eh_frame_hdr_svma,
            eh_frame_hdr,
            ..Sections::default()
        };
        let first = file.segments().map(|s| s.address()).min()? & !4095;
        Some(Self { sections, first })
    }
}

/// The files that a process has loaded, with the addresses from the first to the last part of each.
fn loaded(thread: Tracee) -> Vec<(PathBuf, Range<u64>)> {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", thread.tid)).unwrap_or_default();
    let mut modules: Vec<(PathBuf, Range<u64>)> = Vec::new();
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(_), Some(offset), Some(path)) =
            (words.next(), words.next(), words.next(), line.find('/').map(|at| &line[at..]))
        else {
            continue;
        };
        let bounds = range
            .split_once('-')
            .and_then(|(from, to)| Some(u64::from_str_radix(from, 16).ok()?..u64::from_str_radix(to, 16).ok()?));
        let Some(bounds) = bounds else { continue };
        match modules.last_mut() {
            Some((last, range)) if last.as_os_str() == path => range.end = bounds.end,
            _ if offset == "00000000" => modules.push((path.into(), bounds)),
            _ => {}
        }
    }
    modules
}
