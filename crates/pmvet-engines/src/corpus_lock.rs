//! The format of a corpus, and the lock that lets only one process add to it.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

const LOCK: &str = "lock";
const FORMAT: &str = "format";

/// As long as this lives, the corpus is ours. The kernel releases it with the process, however that ends.
#[derive(Debug)]
pub(crate) struct Claim {
    _lock: File,
}

impl Claim {
    /// Claims a corpus, or a folder for a new one. `content` is a file that every corpus has.
    pub(crate) fn new(folder: &Path, format: u32, content: &str) -> io::Result<Self> {
        let mut lock = File::options().read(true).write(true).create(true).truncate(false).open(folder.join(LOCK))?;
        if let Err(refused) = lock.try_lock() {
            let fs::TryLockError::WouldBlock = refused else { return Err(refused.into()) };
            let mut owner = String::new();
            let _ = lock.read_to_string(&mut owner);
            let owner = owner.trim().parse().map_or(String::new(), |id: u32| format!(" (process {id})"));
            let text = format!("another campaign{owner} is using it");
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        }
        // The number is only for the message above.
        let _ = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        if check_format(folder, format, content)? == Format::None {
            let fresh = folder.join(format!(".{FORMAT}"));
            fs::write(&fresh, format!("{format}\n"))?;
            fs::rename(fresh, folder.join(FORMAT))?;
        }
        Ok(Self { _lock: lock })
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// There is no corpus yet.
    None,
    Ours,
}

/// Fails if there is a corpus of another format.
pub(crate) fn check_format(folder: &Path, ours: u32, content: &str) -> io::Result<Format> {
    let other = |what: String| {
        Err(io::Error::new(io::ErrorKind::Unsupported, format!("{what}, and this pmvet only reads format {ours}")))
    };
    match fs::read_to_string(folder.join(FORMAT)) {
        Ok(text) if text.trim().parse() == Ok(ours) => Ok(Format::Ours),
        Ok(text) => other(format!("it has the format `{}`", text.trim().escape_debug())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => match folder.join(content).exists() {
            true => other("it does not say its format, as those of older versions do not".into()),
            false => Ok(Format::None),
        },
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let first = Claim::new(folder.path(), 1, "content").unwrap();
        let refused = Claim::new(folder.path(), 1, "content").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
        assert!(refused.to_string().contains(&format!("process {}", std::process::id())), "{refused}");
        drop(first);
        Claim::new(folder.path(), 1, "content").unwrap();
    }

    #[test]
    fn another_format_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        drop(Claim::new(folder.path(), 1, "content").unwrap());
        let refused = Claim::new(folder.path(), 2, "content").unwrap_err();
        assert!(refused.to_string().contains("format `1`"), "{refused}");
        Claim::new(folder.path(), 1, "content").unwrap();
        // One of before there were formats.
        fs::remove_file(folder.path().join(FORMAT)).unwrap();
        fs::write(folder.path().join("content"), "").unwrap();
        let refused = Claim::new(folder.path(), 1, "content").unwrap_err();
        assert!(refused.to_string().contains("does not say its format"), "{refused}");
    }
}
