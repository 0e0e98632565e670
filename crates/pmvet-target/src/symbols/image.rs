//! An ELF file on disk, read once: the facts and sections that symbolisation needs, and nothing that refers back to
//! the file. It is read rather than mapped, since a build that truncates a mapped file would kill us with SIGBUS.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use gimli::{RunTimeEndian, SectionId};
use object::elf::SHF_EXECINSTR;
use object::{
    BinaryFormat, CompressionFormat, Object, ObjectSection, ObjectSegment, ObjectSymbol, SectionFlags, SymbolKind,
};

use super::info::Missing;
use super::table::{Binding, Symbol};

/// Owns what it reads, so that a module's tables need no lifetime.
pub(super) type Reader = gimli::EndianArcSlice<RunTimeEndian>;

/// Segments are mapped by whole pages.
const PAGE: u64 = 4096;

/// The sections needed to find addresses, functions and inlined calls. The other sections, which describe variables and
/// macros, are often larger than all of these and stay on disk.
const SECTIONS: &[SectionId] = &[
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugAranges,
    SectionId::DebugCuIndex,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugTuIndex,
];

/// Further sections that the index of a package refers to: a unit is found only if all its sections are there.
const PACKAGED_SECTIONS: &[SectionId] = &[
    SectionId::DebugLoc,
    SectionId::DebugLocLists,
    SectionId::DebugMacinfo,
    SectionId::DebugMacro,
    SectionId::DebugTypes,
];

/// Tells whether a path still names the same file with the same content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Stamp {
    pub(super) fn read(path: &Path) -> Option<Self> {
        std::fs::metadata(path).ok().map(|data| Stamp::from(&data))
    }

    pub(super) fn same_file(&self, other: &Stamp) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

impl From<&Metadata> for Stamp {
    fn from(data: &Metadata) -> Self {
        Stamp { device: data.dev(), inode: data.ino(), size: data.size(), modified: (data.mtime(), data.mtime_nsec()) }
    }
}

/// Which sections of a file are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flavour {
    Main,
    /// A split-DWARF file, whose sections have different names.
    Split,
    /// Only the symbol tables matter.
    NamesOnly,
}

pub(super) struct Image {
    pub(super) stamp: Stamp,
    pub(super) modified: Option<SystemTime>,
    /// The address, in the file's own terms, that is loaded at the module's base.
    pub(super) first_page: u64,
    pub(super) build_id: Option<Vec<u8>>,
    /// Name and checksum of the file that holds the debug information of this one.
    pub(super) debuglink: Option<(PathBuf, u32)>,
    /// Path and build id of the file with the parts that `dwz` found in several debug files.
    pub(super) altlink: Option<(PathBuf, Vec<u8>)>,
    /// Symbols that name code; `variables`: that name data.
    pub(super) symbols: Vec<Symbol>,
    pub(super) variables: Vec<Symbol>,
    sections: HashMap<SectionId, Reader>,
    endian: RunTimeEndian,
}

impl Image {
    pub(super) fn open(path: &Path, flavour: Flavour) -> Result<Self, Missing> {
        let unreadable = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Missing::Gone,
            _ => Missing::Unreadable(error.to_string()),
        };
        // Opening a FIFO would wait for a writer forever.
        if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
            return Err(Missing::NotElf);
        }
        let mut file = File::open(path).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        let content = read(&mut file, metadata.len()).map_err(unreadable)?;
        let elf = object::File::parse(content.as_slice()).map_err(|_| Missing::NotElf)?;
        if elf.format() != BinaryFormat::Elf {
            return Err(Missing::NotElf);
        }

        let endian = if elf.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
        let mut sections = HashMap::new();
        let more = if flavour == Flavour::Split { PACKAGED_SECTIONS } else { &[] };
        for &id in SECTIONS.iter().chain(more) {
            let name = match flavour {
                Flavour::Main => Some(id.name()),
                Flavour::Split => id.dwo_name(),
                Flavour::NamesOnly => None,
            };
            if let Some(bytes) = name.and_then(|name| elf.section_by_name(name)).and_then(|s| bytes(&s)) {
                sections.insert(id, Reader::new(bytes, endian));
            }
        }
        let named = |code| if flavour == Flavour::Split { Vec::new() } else { symbols(&elf, code) };
        let path_of = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        Ok(Image {
            stamp: Stamp::from(&metadata),
            modified: metadata.modified().ok(),
            first_page: elf.segments().map(|s| s.address()).min().unwrap_or(0) & !(PAGE - 1),
            build_id: elf.build_id().ok().flatten().filter(|id| !id.is_empty()).map(<[u8]>::to_vec),
            debuglink: elf.gnu_debuglink().ok().flatten().map(|(name, crc)| (path_of(name), crc)),
            altlink: elf.gnu_debugaltlink().ok().flatten().map(|(name, id)| (path_of(name), id.to_vec())),
            symbols: named(true),
            variables: named(false),
            sections,
            endian,
        })
    }

    /// The content of a section, empty if there is none.
    pub(super) fn section(&self, id: SectionId) -> Reader {
        self.sections.get(&id).cloned().unwrap_or_else(|| Reader::new(Arc::from([]), self.endian))
    }

    pub(super) fn has_dwarf(&self) -> bool {
        self.sections.contains_key(&SectionId::DebugInfo)
    }
}

/// Fails, instead of aborting the program, if the file does not fit into memory.
fn read(file: &mut File, len: u64) -> io::Result<Vec<u8>> {
    // All ELF files begin like this; anything else can be large, and is not worth reading.
    let mut content = Vec::new();
    file.take(4).read_to_end(&mut content)?;
    if content == object::elf::ELFMAG {
        content.try_reserve_exact(usize::try_from(len).unwrap_or(usize::MAX))?;
        file.take(len.saturating_sub(4)).read_to_end(&mut content)?;
    }
    Ok(content)
}

/// The content of a section. A damaged one counts as missing.
fn bytes(section: &object::Section<'_, '_>) -> Option<Arc<[u8]>> {
    let range = section.compressed_file_range().ok()?;
    // The size is what the file claims: reserve no more memory than the format's best ratio allows for.
    let ratio = match range.format {
        CompressionFormat::None => 1,
        CompressionFormat::Zlib => 1 << 11,
        CompressionFormat::Zstandard => 1 << 15,
        _ => return None,
    };
    if range.uncompressed_size > range.compressed_size.saturating_mul(ratio) {
        return None;
    }
    let data = section.uncompressed_data().ok()?;
    (!data.is_empty()).then(|| Arc::from(&*data))
}

/// All symbols that name code, or all that name data, from both symbol tables: a stripped library still has the dynamic one.
fn symbols(elf: &object::File<'_>, code: bool) -> Vec<Symbol> {
    let wanted =
        |flags| matches!(flags, SectionFlags::Elf { sh_flags, .. } if (sh_flags.0 & SHF_EXECINSTR.0 != 0) == code);
    let limits: HashMap<_, _> = elf
        .sections()
        .filter(|section| wanted(section.flags()))
        .map(|section| (section.index(), section.address().saturating_add(section.size())))
        .collect();
    elf.symbols()
        .chain(elf.dynamic_symbols())
        .filter_map(|symbol| {
            let limit = *limits.get(&symbol.section_index()?)?;
            let function = match symbol.kind() {
                SymbolKind::Text => code,
                SymbolKind::Data if !code => true,
                // Hand-written assembly often leaves its labels without a type.
                SymbolKind::Unknown | SymbolKind::Label if code => false,
                _ => return None,
            };
            let name = symbol.name().ok()?;
            // The linker appends the version of a versioned symbol.
            let name = name.split('@').next().filter(|name| !name.is_empty() && !name.starts_with(".L"))?;
            let binding = match (symbol.is_weak(), symbol.is_local()) {
                (true, _) => Binding::Weak,
                (_, true) => Binding::Local,
                _ => Binding::Global,
            };
            Some(Symbol { start: symbol.address(), size: symbol.size(), limit, function, binding, name: name.into() })
        })
        .collect()
}
