//! From the ids of events to stacks that a reader understands, and which frame of a stack is the reader's own.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use pmvet_events::event::{Event, What};
use pmvet_events::{ContextId, FileId, ModuleId, Places, Site, SiteId};
use pmvet_findings::{Frame, Stack};
use pmvet_target::sandbox::RawFrame;
use pmvet_target::symbols::{self, Symbolizer};

/// Resolves what events carry. Engines are tested with one that makes up its answers.
pub trait Stacks {
    /// The instruction and its callers, innermost first. Never empty.
    fn stack(&mut self, site: SiteId, context: ContextId) -> Stack;
    fn file(&self, file: FileId) -> PathBuf;

    /// The functions around an address of a process that ran natively: inlined ones first.
    fn raw_frames(&mut self, frame: &RawFrame) -> Stack {
        let (module, base) = frame.module.clone().unzip();
        vec![Frame { module, offset: frame.pc.saturating_sub(base.unwrap_or(0)), ..Frame::default() }]
    }
}

/// The stack of a process that ran natively.
pub fn raw_stack(frames: &[RawFrame], stacks: &mut dyn Stacks) -> Stack {
    frames.iter().flat_map(|frame| stacks.raw_frames(frame)).collect()
}

/// What a run tells about its modules and files.
#[derive(Debug, Default)]
pub struct Symbols {
    symbolizer: Symbolizer,
    files: HashMap<FileId, PathBuf>,
    /// Modules of processes that were not traced, which have no ids of their own.
    foreign: HashMap<(PathBuf, u64), ModuleId>,
}

impl Symbols {
    pub fn new(symbolizer: Symbolizer) -> Self {
        Self { symbolizer, ..Self::default() }
    }

    /// Takes notice of an event that defines something.
    pub fn event(&mut self, event: &Event<'_>) {
        match event.what {
            What::Module { module, base, path, .. } => self.symbolizer.add_module(module, base, Path::new(path)),
            What::File { file, path, .. } | What::FileRename { file, to: path } => {
                self.files.insert(file, path.into());
            }
            _ => {}
        }
    }

    fn foreign(&mut self, path: &Path, base: u64) -> ModuleId {
        let next = ModuleId(u32::MAX - self.foreign.len() as u32);
        *self.foreign.entry((path.into(), base)).or_insert_with(|| {
            self.symbolizer.add_module(next, base, path);
            next
        })
    }

    /// With the places of the run it can answer.
    pub fn with<'a>(&'a mut self, places: &'a dyn Places) -> Resolver<'a> {
        Resolver { symbols: self, places }
    }
}

/// [`Stacks`] of a real run.
pub struct Resolver<'a> {
    symbols: &'a mut Symbols,
    places: &'a dyn Places,
}

impl std::fmt::Debug for Resolver<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver").field("symbols", &self.symbols).finish_non_exhaustive()
    }
}

impl Stacks for Resolver<'_> {
    fn stack(&mut self, site: SiteId, context: ContextId) -> Stack {
        let mut stack = Stack::new();
        // A context names call instructions, not return addresses, so that all sites are looked up alike.
        for id in std::iter::once(site).chain(self.places.calls(context)) {
            if let Some(site) = self.places.site(id) {
                stack.extend(self.symbols.symbolizer.frames(site).iter().map(frame));
            }
        }
        if stack.is_empty() {
            stack.push(Frame::default());
        }
        stack
    }

    fn file(&self, file: FileId) -> PathBuf {
        self.symbols.files.get(&file).cloned().unwrap_or_default()
    }

    fn raw_frames(&mut self, raw: &RawFrame) -> Stack {
        let module = raw.module.as_ref().map_or(ModuleId(0), |(path, base)| self.symbols.foreign(path, *base));
        self.symbols.symbolizer.frames(Site { pc: raw.pc, module }).iter().map(frame).collect()
    }
}

pub(crate) fn frame(frame: &symbols::Frame) -> Frame {
    Frame {
        function: frame.function.clone(),
        function_offset: frame.function_offset,
        file: frame.file.clone(),
        line: frame.line,
        column: frame.column,
        inlined: frame.inlined,
        module: frame.module.as_deref().map(Path::to_path_buf),
        offset: frame.offset,
    }
}

/// Whose code a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    User,
    /// PMDK's libraries.
    PmLibrary,
    /// The C and C++ run time, the loader, Rust's standard library.
    Runtime,
}

pub fn owner(frame: &Frame) -> Owner {
    let name = frame.module.as_deref().and_then(Path::file_name).map(|n| n.to_string_lossy()).unwrap_or_default();
    let is = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    if is(&["libpmem", "librpmem", "libvmem", "libmemkind"]) {
        return Owner::PmLibrary;
    }
    if is(&["libc.so", "libc-", "libpthread", "ld-linux", "ld-2", "libstdc++", "libgcc_s", "libm.so", "librt", "libdl"])
        || name.contains("vdso")
    {
        return Owner::Runtime;
    }
    let source = frame.file.as_deref().map(Path::to_string_lossy).unwrap_or_default();
    // Rust compiles the parts of its library that are generic or inlined into the program itself.
    if source.starts_with("/rustc/") || source.contains("/rustlib/src/") || source.contains("/stdarch/") {
        return Owner::Runtime;
    }
    Owner::User
}

/// The innermost frame of the user's own code that decides something: not a library's, nor a helper that only wraps
/// an instruction. If there are only helpers, the outermost of them.
pub fn user_frame(stack: &Stack) -> Option<usize> {
    let own = |i: &usize| owner(&stack[*i]) == Owner::User && !is_intrinsic(&stack[*i]);
    let decides =
        |i: &usize| !is_helper(&stack[*i]) && !stack.get(i + 1).is_some_and(|caller| is_setter(&stack[*i], caller));
    let mut frames = 0..stack.len();
    let first = frames.clone().filter(own).find(decides);
    first.or_else(|| frames.clone().rfind(own)).or_else(|| frames.rfind(|&i| owner(&stack[i]) == Owner::User))
}

/// A compiler's name for a single instruction.
fn is_intrinsic(frame: &Frame) -> bool {
    let function = frame.function.as_deref().unwrap_or_default();
    let in_header =
        frame.file.as_deref().and_then(Path::file_name).is_some_and(|n| n.to_string_lossy().ends_with("intrin.h"));
    in_header || function.starts_with("_mm") || function.contains("core_arch::")
}

/// A function that by its name only makes data persistent, or copies it, on behalf of its caller.
fn is_helper(frame: &Frame) -> bool {
    const WORDS: &[&str] = &[
        "persist",
        "flush",
        "fence",
        "drain",
        "clwb",
        "clflush",
        "clflushopt",
        "sfence",
        "mfence",
        "pcommit",
        "memcpy",
        "memmove",
        "memset",
        "memzero",
    ];
    // A closure is named after nothing; the function around it is.
    if frame.inlined && frame.function.as_deref().is_some_and(|f| f.ends_with('}') && f.contains("{closure")) {
        return true;
    }
    // `zoo_persist`, `pm::Pool::flush_range`, `cacheLineFlush`; not `flusher`.
    words(last_name(frame)).iter().any(|word| WORDS.contains(&word.as_str()))
}

/// A function of another file that by its name only stores what its caller gives it: `store`, `pm_write`.
fn is_setter(frame: &Frame, caller: &Frame) -> bool {
    const WORDS: &[&str] = &["store", "write", "copy", "set", "assign", "exchange", "cas"];
    let mut name = words(last_name(frame));
    name.retain(|word| !["nt", "nontemporal", "volatile", "unaligned"].contains(&word.as_str()));
    let only = name.len() <= 2 && name.last().is_some_and(|word| WORDS.contains(&word.as_str()));
    only && owner(caller) == Owner::User && caller.file.is_some() && caller.file != frame.file
}

/// Without the path to it and its parameters.
fn last_name(frame: &Frame) -> &str {
    let function = frame.function.as_deref().unwrap_or_default();
    let path = function.trim_start_matches('<').split(['<', '(', '>']).next().unwrap_or_default();
    let path = path.trim_end_matches(':');
    path.rsplit("::").next().unwrap_or(path)
}

/// The parts of an identifier, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut lower = false;
    for c in name.chars() {
        if !c.is_alphanumeric() || c.is_uppercase() && lower {
            words.push(String::new());
        }
        lower = c.is_lowercase();
        if c.is_alphanumeric() {
            words.last_mut().expect("never empty").extend(c.to_lowercase());
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: &str, file: &str, module: &str) -> Frame {
        Frame {
            function: Some(function.into()),
            file: Some(file.into()),
            module: Some(module.into()),
            ..Frame::default()
        }
    }

    #[test]
    fn libraries_intrinsics_and_helpers_are_skipped() {
        let stack = vec![
            frame("_mm_clwb", "/usr/lib/gcc/clwbintrin.h", "/bin/prog"),
            frame("zoo_flush", "zoo.h", "/bin/prog"),
            frame("zoo_persist", "zoo.h", "/bin/prog"),
            frame("put", "plist.c", "/bin/prog"),
            frame("main", "plist.c", "/bin/prog"),
        ];
        assert_eq!(user_frame(&stack), Some(3));
        let stack = vec![
            frame("memmove_nodrain_avx512f", "", "/usr/lib/libpmem.so.1"),
            frame("pmemobj_memcpy_persist", "", "/usr/lib/libpmemobj.so.1"),
            frame("append", "log.c", "/bin/prog"),
        ];
        assert_eq!(user_frame(&stack), Some(2));
        let rust = vec![
            frame("core::ptr::write_volatile::<u64>", "/rustc/abc/library/core/src/ptr/mod.rs", "/bin/prog"),
            frame("pm::Pool::flush_range", "pool.rs", "/bin/prog"),
            frame("pm::insert", "map.rs", "/bin/prog"),
        ];
        assert_eq!(user_frame(&rust), Some(2));
    }

    #[test]
    fn a_stack_of_helpers_alone_gives_the_outermost() {
        let stack = vec![frame("_mm_clwb", "clwbintrin.h", "/bin/prog"), frame("flush_all", "a.c", "/bin/prog")];
        assert_eq!(user_frame(&stack), Some(1));
        assert_eq!(user_frame(&vec![frame("memcpy", "", "/lib/libc.so.6")]), None);
        assert_eq!(user_frame(&vec![frame("flusher_main", "a.c", "p"), frame("main", "a.c", "p")]), Some(0));
    }

    #[test]
    fn identifiers_are_split_into_words() {
        assert_eq!(words("zoo_persist"), ["zoo", "persist"]);
        assert_eq!(words("cacheLineFlush"), ["cache", "line", "flush"]);
        assert_eq!(words("flusher"), ["flusher"]);
    }
}
