//! From the ids of events to stacks that a reader understands, and which frame of a stack is the reader's own.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use pmvet_events::event::{Event, What};
use pmvet_events::{ContextId, FileId, ModuleId, Places, Site, SiteId};
pub use pmvet_findings::stack::user_frame;
use pmvet_findings::stack::{is_pm_library, naming_frame};
use pmvet_findings::{Frame, Outcome, Place, Role, Stack};
use pmvet_target::sandbox::RawFrame;
use pmvet_target::symbols::types::Types;
use pmvet_target::symbols::{self, Symbolizer};

/// The frame that a sentence is about.
pub(crate) fn subject(stack: &Stack) -> &Frame {
    &stack[user_frame(stack).unwrap_or(0)]
}

/// The frame whose function a sentence names.
pub(crate) fn named(stack: &Stack) -> &Frame {
    &stack[naming_frame(stack, user_frame(stack).unwrap_or(0))]
}

/// Resolves what events carry. Engines are tested with one that makes up its answers.
pub trait Stacks {
    /// The instruction and its callers, innermost first. Never empty.
    fn stack(&mut self, site: SiteId, context: ContextId) -> Stack;
    fn file(&self, file: FileId) -> PathBuf;

    /// The variable of the program at an address, and how far into it that is. None for other memory.
    fn variable(&mut self, _address: u64) -> Option<(String, u64)> {
        None
    }

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

/// Where a recovery was when it failed. Nothing if the program's own code is not on the stack: `main` may have returned.
pub(crate) fn recovery_place(stack: &Stack, outcome: &Outcome) -> Option<Place> {
    let label = format!("recovery {outcome}");
    let place = Place { role: Role::Recovery, stack: stack.clone(), thread: None, pm: None, seq: None, label };
    stack.iter().any(Frame::is_user).then_some(place)
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
            What::Module { module, base, path, .. } => self.symbolizer.add_module(module, base, path),
            What::File { file, path, .. } | What::FileRename { file, to: path } => {
                self.files.insert(file, path.into());
            }
            _ => {}
        }
    }

    /// Goes on with another run of the same program. What is known of its files on disk stays known.
    pub fn go_on_with(&mut self, other: Self) {
        self.symbolizer.go_on_with(other.symbolizer);
        self.files = other.files;
    }

    fn foreign(&mut self, path: &Path, base: u64) -> ModuleId {
        let next = ModuleId(u32::MAX - self.foreign.len() as u32);
        *self.foreign.entry((path.into(), base)).or_insert_with(|| {
            self.symbolizer.add_module(next, base, path);
            next
        })
    }

    /// What the modules say about their types and variables.
    pub fn types(&mut self) -> Types {
        self.symbolizer.types()
    }

    /// The same of one module.
    pub fn types_in(&mut self, module: &Path) -> Types {
        self.symbolizer.types_in(module)
    }

    /// What a PM file is called.
    pub fn path(&self, file: FileId) -> PathBuf {
        self.files.get(&file).cloned().unwrap_or_default()
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
        self.symbols.path(file)
    }

    fn variable(&mut self, address: u64) -> Option<(String, u64)> {
        self.symbols.symbolizer.variable(address)
    }

    fn raw_frames(&mut self, raw: &RawFrame) -> Stack {
        let module = raw.module.as_ref().map_or(ModuleId(0), |(path, base)| self.symbols.foreign(path, *base));
        self.symbols.symbolizer.frames(Site { pc: raw.pc, module }).iter().map(frame).collect()
    }
}

pub(crate) fn frame(frame: &symbols::SymbolizedFrame) -> Frame {
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
    if frame.module.as_deref().is_some_and(is_pm_library) {
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
