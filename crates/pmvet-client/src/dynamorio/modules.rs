//! The target's executable and libraries, as DynamoRIO describes them.

use std::ffi::{CStr, CString};
use std::path::PathBuf;

use super::bindings::*;

use pmvet_events::paths;

/// Where a module is mapped, and its file.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) path: PathBuf,
}

impl Module {
    pub(crate) fn new(module: &module_data_t) -> Self {
        // SAFETY: the union's fields are both the start address; the path is a C string or null.
        unsafe {
            let start = module.__bindgen_anon_1.start as u64;
            let path = if module.full_path.is_null() {
                PathBuf::new()
            } else {
                paths::of_bytes(CStr::from_ptr(module.full_path).to_bytes()).into()
            };
            Self { start, end: module.end as u64, path }
        }
    }

    /// The target's own executable, if DynamoRIO knows it.
    fn main() -> Option<Self> {
        // SAFETY: module data is valid until it is freed.
        unsafe {
            let module = dr_get_main_module();
            let found = module.as_ref().map(Self::new);
            if found.is_some() {
                dr_free_module_data(module);
            }
            found
        }
    }
}

/// Whether the module that starts here is the target's executable.
pub(crate) fn is_executable_at(start: u64) -> bool {
    Module::main().is_some_and(|main| main.start == start)
}

/// The path of the target's executable.
pub(crate) fn executable() -> CString {
    let path = Module::main().map(|main| main.path).unwrap_or_default();
    CString::new(path.into_os_string().into_encoded_bytes()).unwrap_or_default()
}
