//! Source lines and inlined calls, from DWARF: in one file, split into `.dwo` files or a `.dwp` package, or with its
//! common parts moved out by `dwz`.

use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addr2line::{Context, Location, LookupContinuation, LookupResult, SplitDwarfLoad};
use gimli::{Dwarf, DwarfPackage, Reader as _};

use super::frame::SymbolizedFrame;
use super::image::{Flavour, Image, Reader};
use super::types::Types;

pub(super) struct SourceLines {
    context: Context<Reader>,
    dwarf: Arc<Dwarf<Reader>>,
    /// The module, and its separate debug file: packages and split files are found beside either.
    paths: Vec<PathBuf>,
    /// Opened when first needed.
    packages: OnceCell<Vec<DwarfPackage<Reader>>>,
}

impl SourceLines {
    /// `paths` are the files that the module consists of; `alternate` is what `dwz` moved out of `image`.
    pub(super) fn new(image: &Image, alternate: Option<&Image>, paths: Vec<PathBuf>) -> Option<Self> {
        if !image.has_dwarf() {
            return None;
        }
        let mut dwarf = load(image)?;
        if let Some(alternate) = alternate {
            dwarf.set_sup(load(alternate)?);
        }
        dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
        let dwarf = Arc::new(dwarf);
        let context = Context::from_arc_dwarf(Arc::clone(&dwarf)).ok()?;
        Some(SourceLines { context, dwarf, paths, packages: OnceCell::new() })
    }

    /// The functions around `address`, innermost first, each with the line it is at. Empty if unknown.
    pub(super) fn frames(&self, address: u64, bare: &SymbolizedFrame) -> Vec<SymbolizedFrame> {
        let mut frames = self.try_frames(address, bare).unwrap_or_default();
        // Damage in the description of a function, or a split file that is gone, leaves the line table intact.
        if frames.iter().all(|frame| frame.line.is_none())
            && let Ok(Some(location)) = self.context.find_location(address)
        {
            frames = vec![at(bare, Some(location))];
        }
        if let Some((_, inlined)) = frames.split_last_mut() {
            inlined.iter_mut().for_each(|frame| frame.inlined = true);
        }
        frames
    }

    fn try_frames(&self, address: u64, bare: &SymbolizedFrame) -> Result<Vec<SymbolizedFrame>, gimli::Error> {
        let mut lookup = self.context.find_frames(address);
        let mut found = loop {
            match lookup {
                LookupResult::Output(found) => break found?,
                LookupResult::Load { load, continuation } => lookup = continuation.resume(self.split(&load)),
            }
        };
        let mut frames = Vec::new();
        while let Some(found) = found.next()? {
            let mut frame = at(bare, found.location);
            frame.function = found.function.and_then(|name| name.raw_name().ok().map(|name| demangle(&name)));
            frames.push(frame);
        }
        Ok(frames)
    }

    pub(super) fn add_types(&self, types: &mut Types) {
        types.add(&self.dwarf, &|unit| {
            let path = unit.dwo_name().ok()?.and_then(|name| self.dwarf.attr_string(unit, name).ok());
            let (comp_dir, parent) = (unit.comp_dir.clone(), Arc::clone(&self.dwarf));
            self.split(&SplitDwarfLoad { dwo_id: unit.dwo_id?, comp_dir, path, parent })
        });
    }

    /// The part of the debug information that the compiler put in a separate file.
    fn split(&self, load: &SplitDwarfLoad<Reader>) -> Option<Arc<Dwarf<Reader>>> {
        let packages = self.packages.get_or_init(|| self.paths.iter().filter_map(|path| package(path)).collect());
        let packed = packages.iter().find_map(|package| package.find_cu(load.dwo_id, &load.parent).ok().flatten());
        if let Some(dwarf) = packed {
            return Some(Arc::new(dwarf));
        }
        let recorded = path_of(load.path.as_ref()?)?;
        let directory = load.comp_dir.as_ref().and_then(path_of).unwrap_or_default();
        let mut places = vec![directory.join(&recorded)];
        // A build tree that moved, or was built in a container, often has them beside the module.
        for module in &self.paths {
            let directory = module.parent().unwrap_or(Path::new(""));
            places.push(directory.join(&recorded));
            places.extend(recorded.file_name().map(|name| directory.join(name)));
        }
        places.iter().find_map(|place| {
            let mut dwarf = self::load(&Image::open(place, Flavour::Split).ok()?)?;
            dwarf.file_type = gimli::DwarfFileType::Dwo;
            let header = dwarf.units().next().ok()??;
            // A rebuild may have replaced it.
            if dwarf.unit(header).ok()?.dwo_id != Some(load.dwo_id) {
                return None;
            }
            dwarf.make_dwo(&load.parent);
            Some(Arc::new(dwarf))
        })
    }
}

fn load(image: &Image) -> Option<Dwarf<Reader>> {
    Dwarf::load(|id| Ok::<_, gimli::Error>(image.section(id))).ok()
}

fn package(path: &Path) -> Option<DwarfPackage<Reader>> {
    let mut name = OsString::from(path);
    name.push(".dwp");
    let image = Image::open(Path::new(&name), Flavour::Split).ok()?;
    // A section that packages do not have, so it is empty.
    let empty = image.section(gimli::SectionId::DebugFrame);
    DwarfPackage::load(|id| Ok::<_, gimli::Error>(image.section(id)), empty).ok()
}

fn path_of(bytes: &Reader) -> Option<PathBuf> {
    Some(PathBuf::from(OsStr::from_bytes(&bytes.to_slice().ok()?)))
}

fn at(bare: &SymbolizedFrame, location: Option<Location<'_>>) -> SymbolizedFrame {
    let mut frame = bare.clone();
    if let Some(location) = location {
        // Removes what compilers leave in paths, as in `/src/./btree.c`.
        frame.file = location.file.filter(|file| !file.is_empty()).map(|file| Path::new(file).components().collect());
        frame.line = location.line.filter(|&line| line != 0);
        frame.column = location.column.filter(|&column| column != 0);
    }
    frame
}

/// The name as written in the source. The name alone shows the scheme: symbol tables do not say which language a
/// function was written in, and debug information can name a language that is younger than the demangler.
pub fn demangle(name: &str) -> String {
    if name.starts_with("_Z") || name.starts_with("_R") {
        addr2line::demangle_auto(name.into(), None).into_owned()
    } else {
        name.to_owned()
    }
}
