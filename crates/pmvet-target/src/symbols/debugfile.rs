//! Finds debug information outside of the module, where distributions and build systems put it.
//!
//! The search is that of gdb: by build id below each debug root, then by the name in `.gnu_debuglink` beside the
//! module, in `.debug` beside it, and at the module's own path below each root.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;

use super::image::{Flavour, Image};

/// The separate debug file of the module at `path`, if there is one that matches.
pub(super) fn find(path: &Path, image: &Image, flavour: Flavour, roots: &[PathBuf]) -> Option<(PathBuf, Image)> {
    if let Some(found) = image.build_id.as_deref().and_then(|id| by_build_id(id, flavour, roots)) {
        return Some(found);
    }
    let (name, crc) = image.debuglink.as_ref()?;
    debuglink_places(path, name, roots).into_iter().find_map(|place| {
        let debug = Image::open(&place, flavour).ok()?;
        // A link may bear the name of the module itself.
        if debug.stamp.same_file(&image.stamp) {
            return None;
        }
        // The checksum needs the whole file, which can be gigabytes; build ids serve as well.
        let matches = match (&image.build_id, &debug.build_id) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => checksum(&place) == Some(*crc),
        };
        matches.then_some((place, debug))
    })
}

/// The file that `dwz` moved the common parts of the debug information of `image`, found at `path`, to.
pub(super) fn find_alternate(path: &Path, image: &Image, roots: &[PathBuf]) -> Option<Image> {
    let (name, id) = image.altlink.as_ref()?;
    let matching = |place: PathBuf| {
        let alternate = Image::open(&place, Flavour::Main).ok()?;
        alternate.build_id.as_ref().is_none_or(|theirs| theirs == id).then_some(alternate)
    };
    // Relative to where the debug file really is: `.build-id/xx/yyyy.debug` is often a symbolic link.
    let mut places: Vec<PathBuf> = directories(path).iter().map(|directory| directory.join(name)).collect();
    if let Some(file) = name.file_name() {
        places.extend(roots.iter().map(|root| root.join(".dwz").join(file)));
    }
    places.into_iter().find_map(matching).or_else(|| by_build_id(id, Flavour::Main, roots).map(|(_, image)| image))
}

fn by_build_id(id: &[u8], flavour: Flavour, roots: &[PathBuf]) -> Option<(PathBuf, Image)> {
    let (first, rest) = id.split_first().filter(|(_, rest)| !rest.is_empty())?;
    let below = format!(".build-id/{first:02x}/{}.debug", HEXLOWER.encode(rest));
    roots.iter().find_map(|root| {
        let place = root.join(&below);
        let debug = Image::open(&place, flavour).ok()?;
        (debug.build_id.as_deref() == Some(id)).then_some((place, debug))
    })
}

fn debuglink_places(path: &Path, name: &Path, roots: &[PathBuf]) -> Vec<PathBuf> {
    let mut places = Vec::new();
    // The link must be a plain name: anything else would lead out of the module's directories.
    let Some(name) = name.file_name() else { return places };
    for directory in directories(path) {
        places.push(directory.join(name));
        places.push(directory.join(".debug").join(name));
        let below = directory.strip_prefix("/").unwrap_or(&directory);
        places.extend(roots.iter().map(|root| root.join(below).join(name)));
    }
    places
}

/// The directory of a file: as given, and with symbolic links resolved if that is another one.
fn directories(path: &Path) -> Vec<PathBuf> {
    let given = path.parent().map(Path::to_path_buf);
    let real = fs::canonicalize(path).ok().and_then(|path| path.parent().map(Path::to_path_buf));
    let mut directories: Vec<PathBuf> = given.into_iter().chain(real).collect();
    directories.dedup();
    directories
}

fn checksum(path: &Path) -> Option<u32> {
    let mut file = fs::File::open(path).ok()?;
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer).ok()? {
            0 => return Some(hasher.finalize()),
            read => hasher.update(&buffer[..read]),
        }
    }
}
