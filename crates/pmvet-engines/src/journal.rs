//! What an engine has done, kept on disk line by line, so that an interrupted run can go on.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A file of JSON lines that only grows.
#[derive(Debug)]
pub(crate) struct Lines(File);

impl Lines {
    /// Opens or makes it, and returns what is in it. A last line that was not written to its end, as `kill -9` leaves it, does not
    /// count.
    pub(crate) fn open<T: DeserializeOwned>(path: &Path) -> io::Result<(Self, Vec<T>)> {
        let (mut entries, mut whole) = (Vec::new(), 0);
        if let Ok(file) = File::open(path) {
            let mut reader = BufReader::new(file);
            let mut line = Vec::new();
            while let Ok(1..) = reader.read_until(b'\n', &mut line)
                && let Some(text) = line.strip_suffix(b"\n")
                && let Ok(entry) = serde_json::from_slice(text)
            {
                whole += line.len() as u64;
                entries.push(entry);
                line.clear();
            }
        }
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        file.set_len(whole)?;
        Ok((Self(file), entries))
    }

    pub(crate) fn add(&mut self, entry: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry).map_err(io::Error::other)?;
        line.push(b'\n');
        self.0.write_all(&line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_last_line_is_forgotten() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let (mut lines, none) = Lines::open::<u32>(&path).expect("a file");
        assert!(none.is_empty());
        lines.add(&1).and_then(|()| lines.add(&2)).expect("room");
        std::fs::write(&path, "1\n2\n3").expect("room");
        let (mut lines, known) = Lines::open::<u32>(&path).expect("a file");
        assert_eq!(known, [1, 2]);
        lines.add(&4).expect("room");
        assert_eq!(Lines::open::<u32>(&path).expect("a file").1, [1, 2, 4]);
    }
}
