//! Files that are written completely or not at all.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::exit::Error;

/// Writes a file under a temporary name beside it and renames it: a reader sees the old content or the new one, never a part. Anything but
/// a plain file, such as a pipe, is written to directly.
pub(crate) fn replace(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let fill_file = |file: File| {
        let mut out = BufWriter::new(file);
        fill(&mut out)?;
        out.flush()
    };
    // Follow a link instead of replacing it.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let known = path.metadata().ok();
    if known.as_ref().is_some_and(|known| !known.is_file()) {
        return fill_file(File::options().write(true).open(&path)?);
    }
    let fresh = beside(&path)?;
    let done = File::create(&fresh).and_then(|file| {
        if let Some(known) = &known {
            file.set_permissions(known.permissions())?;
        }
        fill_file(file)?;
        std::fs::rename(&fresh, &path)
    });
    if done.is_err() {
        // Half a file is of no use, and the disk may be full.
        let _ = std::fs::remove_file(&fresh);
    }
    done
}

/// The same, with `value` as JSON.
pub(crate) fn replace_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let bytes = serde_json::to_vec_pretty(value).map_err(io::Error::other)?;
    replace(path, |out| out.write_all(&bytes))
}

/// A name in the same folder. It is always the same, so that the next write replaces what a killed pmvet left.
fn beside(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    let mut fresh = OsString::from(".");
    fresh.push(name);
    fresh.push(".new");
    Ok(path.with_file_name(fresh))
}

/// Copies a recording: its trace, and the first images of its PM files.
pub(crate) fn bring_recording(from: &Path, to: &Path) -> Result<(), Error> {
    let failed = |source| Error::Output { action: "bring", what: from.display().to_string(), source };
    std::fs::create_dir_all(to).map_err(failed)?;
    for entry in std::fs::read_dir(from).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if name == "trace" || name.to_string_lossy().starts_with("base-") {
            link(&from.join(&name), &to.join(&name), false)?;
        }
    }
    Ok(())
}

/// Hard-links a file, or copies it if it is on another disk. Recordings never change, so sharing is safe.
pub(crate) fn link(from: &Path, to: &Path, may_be_missing: bool) -> Result<(), Error> {
    if to.exists() || may_be_missing && !from.exists() {
        return Ok(());
    }
    let linked = std::fs::hard_link(from, to).or_else(|_| std::fs::copy(from, to).map(drop));
    linked.map_err(|source| Error::Output { action: "copy", what: from.display().to_string(), source })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    fn names(folder: &Path) -> Vec<OsString> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn a_file_that_cannot_be_filled_stays_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report");
        replace(&path, |out| out.write_all(b"old")).unwrap();
        let failed = replace(&path, |out| out.write_all(b"half").and(Err(io::ErrorKind::StorageFull.into())));
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(names(folder.path()), ["report"]);
    }

    #[test]
    fn what_has_no_json_is_an_error_and_not_an_empty_file() {
        use std::os::unix::ffi::OsStringExt;
        let folder = tempfile::tempdir().unwrap();
        let not_text = PathBuf::from(OsString::from_vec(vec![b'/', 0xff]));
        assert!(replace_json(&folder.path().join("cases"), &not_text).is_err());
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn links_are_followed_and_devices_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        replace(&link, |out| out.write_all(b"new")).unwrap();
        assert!(link.is_symlink() && std::fs::read(&file).unwrap() == b"new");
        replace(Path::new("/dev/null"), |out| out.write_all(b"gone")).unwrap();
        assert!(!Path::new("/dev/null").is_file());
    }
}
