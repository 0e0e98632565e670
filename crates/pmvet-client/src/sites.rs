//! Instructions and the modules they are in.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, RwLock};

use dynamorio_sys::*;
use pmvet_events::event::What;
use pmvet_events::ids::ModuleId;
use pmvet_events::places::Site;

use crate::client;
use crate::thread::Thread;

#[derive(Default)]
pub(crate) struct Sites {
    numbers: Mutex<HashMap<u64, u32>>,
    modules: RwLock<BTreeMap<u64, Module>>,
}

#[derive(Debug, Clone, Copy)]
struct Module {
    id: ModuleId,
    end: u64,
}

impl Sites {
    /// The number of the instruction at `pc`.
    pub(crate) fn of(&self, pc: u64) -> u32 {
        let mut numbers = self.numbers.lock().unwrap_or_else(|e| e.into_inner());
        *numbers.entry(pc).or_insert_with(|| client().shared.add_site(Site { pc, module: self.module_of(pc) }).0)
    }

    fn module_of(&self, pc: u64) -> ModuleId {
        let modules = self.modules.read().unwrap_or_else(|e| e.into_inner());
        let found = modules.range(..=pc).next_back();
        found.filter(|(_, m)| pc < m.end).map_or(ModuleId(0), |(_, m)| m.id)
    }

    /// Whether code of a module can name an address in the range as a constant.
    pub(crate) fn near(&self, start: u64, end: u64) -> bool {
        const REACH: u64 = 1 << 31;
        let modules = self.modules.read().unwrap_or_else(|e| e.into_inner());
        let near = |(&from, module): (&u64, &Module)| start < module.end + REACH && end + REACH > from;
        start < REACH || modules.iter().any(near)
    }

    pub(crate) fn loaded(&self, start: u64, end: u64, path: &str) {
        let id = ModuleId(client().shared.header().next_module.fetch_add(1, Ordering::AcqRel));
        self.modules.write().unwrap_or_else(|e| e.into_inner()).insert(start, Module { id, end });
        if let Some(thread) = Thread::try_current() {
            thread.emit(What::Module { module: id, base: start, size: end - start, path });
        } else {
            client().modules_before_start(id, start, end, path);
        }
    }

    pub(crate) fn unloaded(&self, start: u64, end: u64) {
        self.modules.write().unwrap_or_else(|e| e.into_inner()).remove(&start);
        // Another module may come to the same place: its instructions are not these.
        let mut numbers = self.numbers.lock().unwrap_or_else(|e| e.into_inner());
        numbers.retain(|&pc, _| pc < start || pc >= end);
    }
}

/// Start, end, path of a module.
pub(crate) fn describe(module: &module_data_t) -> (u64, u64, String) {
    // SAFETY: the union's fields are both the start address; the path is a C string or null.
    unsafe {
        let start = module.__bindgen_anon_1.start as u64;
        let path = if module.full_path.is_null() {
            String::new()
        } else {
            std::ffi::CStr::from_ptr(module.full_path).to_string_lossy().into_owned()
        };
        (start, module.end as u64, path)
    }
}
