//! One line of a stack, as reports print it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A function on the stack of a site: the one the instruction belongs to, or one it was inlined into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SymbolizedFrame {
    /// Demangled.
    pub function: Option<String>,
    /// Distance of the instruction from the start of the function, where the symbol table tells. Unknown for an
    /// inlined function, which has no start of its own.
    pub function_offset: Option<u64>,
    /// As the compiler recorded it, which need not exist here.
    pub file: Option<PathBuf>,
    /// In the file, from 1; unknown without debug information.
    pub line: Option<u32>,
    /// In the line, from 1; unknown if the compiler did not record it.
    pub column: Option<u32>,
    /// The function has no stack frame of its own: it was inlined into the next frame's function.
    pub inlined: bool,
    /// Unknown for generated code.
    pub module: Option<Arc<Path>>,
    /// Distance from the start of the module as loaded; for generated code the address itself.
    pub offset: u64,
}

impl SymbolizedFrame {
    /// A frame with nothing but its place.
    pub(super) fn bare(module: Option<Arc<Path>>, offset: u64) -> Self {
        SymbolizedFrame {
            function: None,
            function_offset: None,
            file: None,
            line: None,
            column: None,
            inlined: false,
            module,
            offset,
        }
    }

    fn fmt_offset(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.module {
            Some(module) => write!(f, "{}+{:#x}", shown(module, f.alternate()).display(), self.offset),
            None => write!(f, "{:#x}", self.offset),
        }
    }
}

/// Shows the most that is known: `insert (btree.c:120)`, `insert+0x1c (libfoo.so)`, `libfoo.so+0x1234` or
/// `0x7f3200001000`. The alternate form (`{:#}`) gives paths in full.
impl fmt::Display for SymbolizedFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let full = f.alternate();
        match (&self.function, self.function_offset) {
            (Some(function), _) if self.file.is_some() => f.write_str(function)?,
            (Some(function), Some(offset)) => write!(f, "{function}+{offset:#x}")?,
            (Some(function), None) => f.write_str(function)?,
            (None, _) => self.fmt_offset(f)?,
        }
        match (&self.file, self.line, &self.module) {
            (Some(file), Some(line), _) => write!(f, " ({}:{line})", shown(file, full).display()),
            (Some(file), None, _) => write!(f, " ({})", shown(file, full).display()),
            (None, _, Some(module)) if self.function.is_some() => write!(f, " ({})", shown(module, full).display()),
            _ => Ok(()),
        }
    }
}

fn shown(path: &Path, full: bool) -> &Path {
    match path.file_name() {
        Some(name) if !full => Path::new(name),
        _ => path,
    }
}
