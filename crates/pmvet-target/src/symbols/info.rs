//! How much is known about a module, and what the user can do to know more.

use std::path::Path;

use data_encoding::HEXLOWER;

/// What a module's file, and the debug files that belong to it, can tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DebugInfo {
    /// Functions, source lines and inlined calls.
    Lines,
    /// Functions, and offsets in them.
    SymbolsOnly,
    /// Neither: only offsets in the module.
    None,
    /// The file that was loaded cannot be read any more.
    Missing(Missing),
}

/// Why the file of a module is useless.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// Generated code, or a module that was never announced.
    #[error("it belongs to no known module")]
    NoModule,
    /// There is no file at its path any more.
    #[error("the file is gone")]
    Gone,
    /// The lines of another build would mislead more than none.
    #[error("the file was replaced since it was loaded")]
    Replaced,
    /// It has another format, or is no regular file.
    #[error("it is not an ELF file")]
    NotElf,
    /// The kernel does not let it be read, for this reason.
    #[error("{0}")]
    Unreadable(String),
}

impl DebugInfo {
    /// What to do in order to see source lines in `module`; nothing if they are there.
    pub(super) fn advice(&self, module: &Path, build_id: Option<&[u8]>) -> Option<String> {
        let name = module.file_name().map_or(module, Path::new).display();
        let lacks = match self {
            DebugInfo::Lines => return None,
            DebugInfo::SymbolsOnly => "no debug information",
            DebugInfo::None => "neither debug information nor symbols",
            DebugInfo::Missing(Missing::NoModule) => return None,
            DebugInfo::Missing(why @ (Missing::Gone | Missing::Replaced)) => {
                return Some(format!("no source lines for {name}: {why}; run the target again to record it anew"));
            }
            DebugInfo::Missing(why) => return Some(format!("no source lines for {name}: {why}")),
        };
        let mut advice = format!("{name} has {lacks}: compile it with -g, or install its debug package");
        if let Some(id) = build_id {
            advice.push_str(" (build id ");
            advice.push_str(&HEXLOWER.encode(id));
            advice.push(')');
        }
        Some(advice)
    }
}
