//! From instructions to functions and source lines.
//!
//! * [`Symbolizer`] — resolves a [`Site`] to its [`SymbolizedFrame`]s, reading each module's file when it is first needed. Of the
//!   [run time](is_runtime) it knows only the names of functions.
//! * `image` — what is read from an ELF file; `debugfile` — where the separate debug file of a module is.
//! * [`types`] — names of the program's variables, and of the members of its structs.
//! * `lines` — source lines and inlined calls; `table` — functions of modules that were built without `-g`.
//!
//! No file makes this panic, however damaged: what cannot be read is missing from the frames, and
//! [`Symbolizer::debug_info`] says why.
//!
//! What it misses: `.gnu_debugdata` (the compressed symbol table of some distributions' stripped programs), type
//! units, and servers of debug files (debuginfod).

mod debugfile;
mod frame;
mod image;
mod info;
mod lines;
mod module;
mod table;
pub mod types;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use pmvet_events::{ModuleId, Site};

pub use self::frame::SymbolizedFrame;
pub use self::info::{DebugInfo, Missing};
pub use self::lines::demangle;
pub use self::module::is_runtime;

use self::image::Stamp;
use self::module::Module;
use self::types::Types;

/// Where distributions install separate debug files.
const DEBUG_ROOT: &str = "/usr/lib/debug";

/// Resolves sites to functions and source lines, and caches the answers.
pub struct Symbolizer {
    modules: Modules,
    /// By module and address.
    frames: HashMap<(ModuleId, u64), Box<[SymbolizedFrame]>>,
}

impl Symbolizer {
    /// Resolves sites of a target that is running or has just run.
    pub fn new() -> Self {
        Symbolizer {
            modules: Modules {
                roots: vec![PathBuf::from(DEBUG_ROOT)],
                recorded: None,
                announced: HashMap::new(),
                open: HashMap::new(),
            },
            frames: HashMap::new(),
        }
    }

    /// Resolves sites of a run recorded at `time`. A file that changed later is not what the target loaded.
    pub fn of_recording(time: SystemTime) -> Self {
        let mut symbolizer = Self::new();
        symbolizer.modules.recorded = Some(time);
        symbolizer
    }

    /// Looks for separate debug files below `root` too, before the places already known.
    pub fn add_debug_root(&mut self, root: impl Into<PathBuf>) {
        self.modules.roots.insert(0, root.into());
    }

    /// Announces that the first segment of the file at `path` was loaded at `base`.
    ///
    /// The file is read later, and only if it is still the same by then.
    pub fn add_module(&mut self, id: ModuleId, base: u64, path: &Path) {
        self.announce(id, Announced { base, path: Arc::from(path), stamp: Stamp::read(path) });
    }

    fn announce(&mut self, id: ModuleId, announced: Announced) {
        if self.modules.announced.get(&id) == Some(&announced) {
            return;
        }
        if self.modules.announced.insert(id, announced).is_some() {
            self.frames.retain(|&(module, _), _| module != id);
        }
    }

    /// Goes on with the sites of another run, most of which are known already if it loaded the same files.
    pub fn go_on_with(&mut self, other: Self) {
        self.modules.recorded = other.modules.recorded;
        other.modules.announced.into_iter().for_each(|(id, announced)| self.announce(id, announced));
    }

    /// The functions around an instruction: innermost inlined one first, the one with the stack frame last. There is
    /// always at least one frame, if only with the address.
    pub fn frames(&mut self, site: Site) -> &[SymbolizedFrame] {
        match self.frames.entry((site.module, site.pc)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(self.modules.frames(site).into_boxed_slice()),
        }
    }

    /// The file of a module, if it was announced.
    pub fn path(&self, id: ModuleId) -> Option<&Path> {
        self.modules.announced.get(&id).map(|announced| &*announced.path)
    }

    /// The variable of static storage at an address of the target, and how far into it that is. Nothing if several programs of the run
    /// have a module there and do not agree.
    pub fn variable(&mut self, address: u64) -> Option<(String, u64)> {
        let below = self.modules.announced.iter().filter(|(_, module)| module.base <= address);
        let base = below.clone().map(|(_, module)| module.base).max()?;
        let ids: Vec<ModuleId> = below.filter(|(_, module)| module.base == base).map(|(id, _)| *id).collect();
        let mut found = ids.into_iter().map(|id| {
            let (base, module) = self.modules.get(id)?;
            module.variable(address - base)
        });
        let first = found.next()??;
        found.all(|other| other.as_ref() == Some(&first)).then_some(first)
    }

    /// What all modules say about their types. Reads all of their debug information.
    pub fn types(&mut self) -> Types {
        let mut ids: Vec<ModuleId> = self.modules.announced.keys().copied().collect();
        ids.sort_unstable();
        let (mut types, mut known) = (Types::default(), HashSet::new());
        for id in ids {
            let path = self.modules.announced.get(&id).map(|announced| Arc::clone(&announced.path));
            if let Some((_, module)) = self.modules.get(id).filter(|_| known.insert(path)) {
                module.add_types(&mut types);
            }
        }
        types
    }

    /// What the module at this path says about its types.
    pub fn types_in(&mut self, path: &Path) -> Types {
        let mut types = Types::default();
        let id = self.modules.announced.iter().find(|(_, announced)| *announced.path == *path).map(|(id, _)| *id);
        if let Some((_, module)) = id.and_then(|id| self.modules.get(id)) {
            module.add_types(&mut types);
        }
        types
    }

    /// How much can be known about sites in this module.
    pub fn debug_info(&mut self, id: ModuleId) -> DebugInfo {
        match self.modules.get(id) {
            Some((_, module)) => module.info().clone(),
            None => DebugInfo::Missing(Missing::NoModule),
        }
    }

    /// What the user can do to see source lines in this module; nothing if they are there.
    pub fn advice(&mut self, id: ModuleId) -> Option<String> {
        self.modules.get(id).and_then(|(_, module)| module.advice())
    }
}

impl Default for Symbolizer {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Symbolizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Symbolizer")
            .field("modules", &self.modules.announced)
            .field("frames", &self.frames.len())
            .finish_non_exhaustive()
    }
}

struct Modules {
    roots: Vec<PathBuf>,
    recorded: Option<SystemTime>,
    announced: HashMap<ModuleId, Announced>,
    /// Every process of a run announces libc, but it is read only once.
    open: HashMap<(Arc<Path>, Option<Stamp>), Module>,
}

#[derive(Debug, PartialEq, Eq)]
struct Announced {
    base: u64,
    path: Arc<Path>,
    stamp: Option<Stamp>,
}

impl Modules {
    fn get(&mut self, id: ModuleId) -> Option<(u64, &Module)> {
        let Announced { base, path, stamp } = self.announced.get(&id)?;
        let module = self
            .open
            .entry((Arc::clone(path), *stamp))
            .or_insert_with(|| Module::open(Arc::clone(path), *stamp, self.recorded, &self.roots));
        Some((*base, module))
    }

    fn frames(&mut self, site: Site) -> Vec<SymbolizedFrame> {
        self.get(site.module)
            .and_then(|(base, module)| Some(module.frames(site.pc.checked_sub(base)?)))
            .unwrap_or_else(|| vec![SymbolizedFrame::bare(None, site.pc)])
    }
}
