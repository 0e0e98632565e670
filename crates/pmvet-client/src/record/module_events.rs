//! Reports the modules that are loaded.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use pmvet_events::event::What;
use pmvet_events::ids::ModuleId;

use super::sites::SITES;
use super::thread::Thread;

/// Modules that were loaded before the first thread started, which reports them.
static EARLY_MODULES: Mutex<Vec<(ModuleId, u64, u64, PathBuf)>> = Mutex::new(Vec::new());

pub(crate) fn module_loaded(start: u64, end: u64, path: &Path) {
    let module = SITES.add_module(start, end, path);
    if let Some(thread) = Thread::try_current() {
        thread.emit(What::Module { module, base: start, size: end - start, path });
    } else {
        let mut early = EARLY_MODULES.lock().unwrap_or_else(|e| e.into_inner());
        early.push((module, start, end, path.to_owned()));
    }
}

/// Reports the modules that were loaded before any thread could.
pub(crate) fn report_early_modules(thread: &mut Thread) {
    let modules = std::mem::take(&mut *EARLY_MODULES.lock().unwrap_or_else(|e| e.into_inner()));
    for (module, start, end, path) in modules {
        thread.emit(What::Module { module, base: start, size: end - start, path: &path });
    }
}
