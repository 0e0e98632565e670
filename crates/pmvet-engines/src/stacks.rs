//! Resolves the ids of events to readable stacks, and finds the user's own frame in a stack.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use pmvet_events::event::{Event, What};
use pmvet_events::{ContextId, FileId, Places, Site, SiteId};
pub use pmvet_findings::stack::user_frame;
use pmvet_findings::stack::{is_library, is_pm_library, naming_frame};
use pmvet_findings::{Frame, Outcome, Place, Role, Sources, Stack};
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

/// Resolves the ids that events carry. Tests of engines use an implementation with made-up answers.
pub trait Stacks {
    /// The instruction and its callers, innermost first. Never empty.
    fn stack(&mut self, site: SiteId, context: ContextId) -> Stack;
    /// The path of a PM file; empty if nothing named it.
    fn file(&self, file: FileId) -> PathBuf;

    /// The variable of the program at an address, and how far into it that is. None for other memory.
    fn variable(&mut self, _address: u64) -> Option<(String, u64)> {
        None
    }
}

/// The place where a recovery failed. Nothing if the program's own code is not on the stack: `main` may have returned.
pub(crate) fn recovery_place(stack: &Stack, outcome: &Outcome) -> Option<Place> {
    let label = format!("recovery {outcome}");
    let place = Place { role: Role::Recovery, stack: stack.clone(), thread: None, pm: None, seq: None, label };
    stack.iter().any(Frame::is_user).then_some(place)
}

/// The modules and files of a run.
#[derive(Debug, Default)]
pub struct Symbols {
    symbolizer: Symbolizer,
    files: HashMap<FileId, PathBuf>,
    sources: Sources,
}

impl Symbols {
    /// Knows nothing of the run yet; its events will tell.
    pub fn new(symbolizer: Symbolizer) -> Self {
        Self { symbolizer, ..Self::default() }
    }

    /// Notes an event that defines something.
    pub fn event(&mut self, event: &Event<'_>) {
        match event.what {
            What::Module { module, base, path, .. } => self.symbolizer.add_module(module, base, path),
            What::File { file, path, .. } | What::FileRename { file, to: path } => {
                self.files.insert(file, path.into());
            }
            _ => {}
        }
    }

    /// Goes on with another run of the same program, and keeps what is known of its files on disk.
    pub fn go_on_with(&mut self, other: Self) {
        self.symbolizer.go_on_with(other.symbolizer);
        self.files = other.files;
    }

    /// What the modules say about their types and variables.
    pub fn types(&mut self) -> Types {
        self.symbolizer.types()
    }

    /// The types and variables of one module.
    pub fn types_in(&mut self, module: &Path) -> Types {
        self.symbolizer.types_in(module)
    }

    /// The path of a PM file; empty if unknown.
    pub fn path(&self, file: FileId) -> PathBuf {
        self.files.get(&file).cloned().unwrap_or_default()
    }

    /// Adds the places of the run, which lookups need.
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
        // A context names call instructions, not return addresses, so all sites are looked up alike.
        let ids = std::iter::once(site).chain(self.places.calls(context));
        let sites: Vec<Site> = ids.filter_map(|id| self.places.site(id)).collect();
        let mut stack = program_frames(&mut self.symbols.symbolizer, &sites);
        if stack.is_empty() {
            stack.push(Frame::default());
        }
        // Compilers give the store of a result to the inlined function that has computed it.
        for at in 0..stack.len() - 1 {
            if !stack[at].inlined || !stack[at + 1].is_user() || !self.symbols.sources.only_computes_at(&stack[at]) {
                break;
            }
            stack[at].wrapper = true;
        }
        stack
    }

    fn file(&self, file: FileId) -> PathBuf {
        self.symbols.path(file)
    }

    fn variable(&mut self, address: u64) -> Option<(String, u64)> {
        self.symbols.symbolizer.variable(address)
    }
}

/// The frames of all sites, innermost first, without those of the C library that start programs and threads: no report shows them, and
/// naming them would mean reading its debug information, a third of what symbols cost in a short run.
pub(crate) fn program_frames(symbolizer: &mut Symbolizer, sites: &[Site]) -> Stack {
    let starts_others = |symbolizer: &Symbolizer, site: &Site| {
        symbolizer.path(site.module).is_some_and(|path| module_owner(path) == Owner::Runtime)
    };
    let mut end = sites.len();
    // `_start` is in the program, and has no caller.
    if end > 1
        && starts_others(symbolizer, &sites[end - 2])
        && symbolizer.frames(sites[end - 1]).iter().any(|frame| frame.function.as_deref() == Some("_start"))
    {
        end -= 1;
    }
    while end > 0 && starts_others(symbolizer, &sites[end - 1]) {
        end -= 1;
    }
    // If none of the program's own code is left, the callers show when it ran: `main` may have returned.
    let is_own =
        |site: &Site| symbolizer.path(site.module).is_some_and(|path| !is_library(path) && !is_pm_library(path));
    let shown = if sites[..end].iter().any(is_own) { &sites[..end] } else { sites };
    let mut stack = Stack::new();
    for site in shown {
        stack.extend(symbolizer.frames(*site).iter().map(frame));
    }
    stack
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
        wrapper: false,
    }
}

/// Whose code a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    User,
    /// PMDK's libraries.
    PmLibrary,
    /// The C and C++ run time, the loader, Rust's standard library.
    Runtime,
}

pub(crate) fn owner(frame: &Frame) -> Owner {
    match frame.module.as_deref().map_or(Owner::User, module_owner) {
        Owner::User => {}
        other => return other,
    }
    let source = frame.file.as_deref().map(Path::to_string_lossy).unwrap_or_default();
    // Rust compiles the parts of its library that are generic or inlined into the program itself.
    if source.starts_with("/rustc/") || source.contains("/rustlib/src/") || source.contains("/stdarch/") {
        return Owner::Runtime;
    }
    Owner::User
}

/// Whose code a file contains, as far as its name tells.
fn module_owner(module: &Path) -> Owner {
    if is_pm_library(module) {
        Owner::PmLibrary
    } else if symbols::is_runtime(module) {
        Owner::Runtime
    } else {
        Owner::User
    }
}
