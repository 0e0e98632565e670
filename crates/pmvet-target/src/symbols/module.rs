//! One loaded file, with all that it and its debug files tell.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::debugfile;
use super::frame::SymbolizedFrame;
use super::image::{Flavour, Image, Stamp};
use super::info::{DebugInfo, Missing};
use super::lines::{SourceLines, demangle};
use super::table::Table;
use super::types::Types;

/// Whether a file is part of the C or C++ run time, as far as its name tells. Nobody looks for a bug at its lines, and reading its debug
/// information takes a fifth of the time of a short run.
pub fn is_runtime(module: &Path) -> bool {
    const RUNTIMES: [&str; 9] =
        ["libc", "libpthread", "libm", "librt", "libdl", "libstdc++", "libgcc_s", "ld", "ld-linux-x86-64"];
    let name = module.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let stem = name.split(".so").next().unwrap_or_default();
    // Before glibc 2.34: `libc-2.31.so`.
    let versioned = stem.split_once('-').filter(|(_, version)| version.starts_with(|c: char| c.is_ascii_digit()));
    RUNTIMES.contains(&versioned.map_or(stem, |(stem, _)| stem)) || name.contains("vdso")
}

pub(super) struct Module {
    path: Arc<Path>,
    first_page: u64,
    build_id: Option<Vec<u8>>,
    table: Table,
    variables: Table,
    lines: Option<SourceLines>,
    info: DebugInfo,
}

impl Module {
    /// `stamp` is the file as it was when the module was announced; content newer than `recorded` is not trusted.
    pub(super) fn open(path: Arc<Path>, stamp: Option<Stamp>, recorded: Option<SystemTime>, roots: &[PathBuf]) -> Self {
        let flavour = if is_runtime(&path) { Flavour::NamesOnly } else { Flavour::Main };
        let image = match Image::open(&path, flavour) {
            // A file that came to this path later is not what the target loaded.
            Ok(_) if stamp.is_none() => Err(Missing::Gone),
            Ok(image) if stamp != Some(image.stamp) => Err(Missing::Replaced),
            Ok(image) if recorded.is_some() && image.modified > recorded => Err(Missing::Replaced),
            image => image,
        };
        match image {
            Ok(image) => Self::with_image(path, image, flavour, roots),
            Err(why) => Module {
                path,
                first_page: 0,
                build_id: None,
                table: Table::default(),
                variables: Table::default(),
                lines: None,
                info: DebugInfo::Missing(why),
            },
        }
    }

    fn with_image(path: Arc<Path>, mut image: Image, flavour: Flavour, roots: &[PathBuf]) -> Self {
        let debug = if image.has_dwarf() { None } else { debugfile::find(&path, &image, flavour, roots) };
        let mut symbols = std::mem::take(&mut image.symbols);
        let mut variables = std::mem::take(&mut image.variables);
        let mut paths = vec![path.to_path_buf()];
        let lines = match debug {
            Some((place, mut debug)) => {
                symbols.append(&mut debug.symbols);
                variables.append(&mut debug.variables);
                let alternate = debugfile::find_alternate(&place, &debug, roots);
                paths.push(place);
                SourceLines::new(&debug, alternate.as_ref(), paths)
            }
            None => {
                let alternate = debugfile::find_alternate(&path, &image, roots);
                SourceLines::new(&image, alternate.as_ref(), paths)
            }
        };
        let (table, variables) = (Table::new(symbols), Table::new(variables));
        let info = match &lines {
            Some(_) => DebugInfo::Lines,
            None if table.is_empty() => DebugInfo::None,
            None => DebugInfo::SymbolsOnly,
        };
        Module { path, first_page: image.first_page, build_id: image.build_id, table, variables, lines, info }
    }

    pub(super) fn info(&self) -> &DebugInfo {
        &self.info
    }

    pub(super) fn add_types(&self, types: &mut Types) {
        self.lines.iter().for_each(|lines| lines.add_types(types));
    }

    pub(super) fn advice(&self) -> Option<String> {
        self.info.advice(&self.path, self.build_id.as_deref())
    }

    /// The variable at `offset` from the module's start.
    pub(super) fn variable(&self, offset: u64) -> Option<(String, u64)> {
        let (name, distance) = self.variables.find(self.first_page.checked_add(offset)?)?;
        // Static variables of functions: compilers number those with the same name.
        let plain = name.rsplit_once('.').filter(|(_, number)| number.bytes().all(|b| b.is_ascii_digit()));
        Some((demangle(plain.map_or(name, |(plain, _)| plain)), distance))
    }

    /// The frames at `offset` from the module's start, innermost first; at least one.
    pub(super) fn frames(&self, offset: u64) -> Vec<SymbolizedFrame> {
        let bare = SymbolizedFrame::bare(Some(Arc::clone(&self.path)), offset);
        let Some(address) = self.first_page.checked_add(offset) else { return vec![bare] };
        let mut frames = self.lines.as_ref().map(|lines| lines.frames(address, &bare)).unwrap_or_default();
        if frames.is_empty() {
            frames.push(bare);
        }
        // Only the outermost function has a symbol.
        if let (Some(outermost), Some((name, distance))) = (frames.last_mut(), self.table.find(address)) {
            outermost.function.get_or_insert_with(|| demangle(name));
            outermost.function_offset = Some(distance);
        }
        frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_time_is_known_by_its_names() {
        let is = |name: &str| is_runtime(&Path::new("/usr/lib/x86_64-linux-gnu").join(name));
        let runtimes = [
            "libc.so.6",
            "libc-2.31.so",
            "ld-linux-x86-64.so.2",
            "ld-2.31.so",
            "libstdc++.so.6.0.30",
            "linux-vdso.so.1",
        ];
        assert!(runtimes.into_iter().all(is));
        let others = ["librtree.so", "libdlog.so.1", "libcache.so", "libm-tree.so", "libpmemobj.so.1", "ledger"];
        assert!(!others.into_iter().any(is));
    }
}
