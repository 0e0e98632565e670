//! Instructions and the modules they are in.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, RwLock};

use pmvet_events::ids::ModuleId;
use pmvet_events::places::Site;

use super::stable_ids;
use crate::dynamorio::{self, Global};
use crate::run::run;

/// The instructions and modules of this process.
pub(crate) static SITES: Global<Sites> = Global::new();

/// What a module is to the user of pmvet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModuleKind {
    Executable,
    Library,
    /// The C library and its like, whose branches say nothing about the program.
    System,
}

#[derive(Default)]
pub(crate) struct Sites {
    numbers: Mutex<HashMap<u64, u32>>,
    modules: RwLock<BTreeMap<u64, LoadedModule>>,
}

#[derive(Debug, Clone, Copy)]
struct LoadedModule {
    id: ModuleId,
    end: u64,
    /// Hash of its file's name.
    hash: u32,
    kind: ModuleKind,
}

impl LoadedModule {
    fn new(id: ModuleId, start: u64, end: u64, path: &Path) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        const SYSTEM: [&str; 8] =
            ["ld-linux", "libc.", "libc-", "libm.", "libpthread", "libstdc++", "libgcc_s", "linux-vdso"];
        let kind = match dynamorio::is_executable_at(start) {
            true => ModuleKind::Executable,
            false if SYSTEM.iter().any(|system| name.starts_with(system)) => ModuleKind::System,
            false => ModuleKind::Library,
        };
        Self { id, end, hash: stable_ids::hash_text(&name), kind }
    }
}

impl Sites {
    /// The number of the instruction at `pc`.
    pub(crate) fn id_at(&self, pc: u64) -> u32 {
        if run().is_coverage_run() {
            return self.stable_id(pc).0;
        }
        let mut numbers = self.numbers.lock().unwrap_or_else(|e| e.into_inner());
        *numbers.entry(pc).or_insert_with(|| run().shared.add_site(Site { pc, module: self.module_of(pc) }).0)
    }

    /// A number for the instruction at `pc` that is the same in every run, and what it belongs to.
    pub(crate) fn stable_id(&self, pc: u64) -> (u32, ModuleKind) {
        let modules = self.modules.read().unwrap_or_else(|e| e.into_inner());
        let found = modules.range(..=pc).next_back().filter(|(_, m)| pc < m.end);
        let (hash, start, kind) = found.map_or((0, 0, ModuleKind::Library), |(&start, m)| (m.hash, start, m.kind));
        (stable_ids::site_id(hash, pc - start, kind == ModuleKind::Executable), kind)
    }

    fn module_of(&self, pc: u64) -> ModuleId {
        let modules = self.modules.read().unwrap_or_else(|e| e.into_inner());
        let found = modules.range(..=pc).next_back();
        found.filter(|(_, m)| pc < m.end).map_or(ModuleId(0), |(_, m)| m.id)
    }

    /// Whether code of a module can name an address in the range as a constant.
    pub(crate) fn is_near_code(&self, start: u64, end: u64) -> bool {
        /// How far a displacement in an instruction reaches.
        const REACH_BYTES: u64 = 1 << 31;
        let modules = self.modules.read().unwrap_or_else(|e| e.into_inner());
        let near =
            |(&from, module): (&u64, &LoadedModule)| start < module.end + REACH_BYTES && end + REACH_BYTES > from;
        start < REACH_BYTES || modules.iter().any(near)
    }

    /// Adds a module. Returns its id.
    pub(super) fn add_module(&self, start: u64, end: u64, path: &Path) -> ModuleId {
        let id = ModuleId(run().shared.header().next_module.fetch_add(1, Ordering::AcqRel));
        self.modules.write().unwrap_or_else(|e| e.into_inner()).insert(start, LoadedModule::new(id, start, end, path));
        id
    }

    pub(crate) fn module_unloaded(&self, start: u64, end: u64) {
        self.modules.write().unwrap_or_else(|e| e.into_inner()).remove(&start);
        // Another module may be loaded at the same address.
        let mut numbers = self.numbers.lock().unwrap_or_else(|e| e.into_inner());
        numbers.retain(|&pc, _| pc < start || pc >= end);
    }
}
