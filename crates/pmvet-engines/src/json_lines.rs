//! Journals: what an engine has done, kept on disk line by line, so that an interrupted run can go on.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// What a file of JSON lines holds.
#[derive(Debug)]
pub(crate) struct HeldBack<T> {
    pub(crate) entries: Vec<T>,
    /// Where the last whole line ends.
    pub(crate) end: u64,
    /// An incomplete line follows, as `kill -9` leaves it.
    pub(crate) torn: bool,
}

/// Reads a file of JSON lines. Only its last line may be damaged, and only by being incomplete: any other unreadable line is an
/// error, since what follows it would be lost.
pub(crate) fn read<T: DeserializeOwned>(file: &File, path: &Path) -> io::Result<HeldBack<T>> {
    let mut held = HeldBack { entries: Vec::new(), end: 0, torn: false };
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        let Some(text) = line.strip_suffix(b"\n") else {
            held.torn = true;
            break;
        };
        held.entries.push(serde_json::from_slice(text).map_err(|e| damaged(path, held.entries.len() + 1, &e))?);
        held.end += line.len() as u64;
        line.clear();
    }
    Ok(held)
}

/// The error for an unreadable line. Lines count from 1.
pub(crate) fn damaged(path: &Path, line: usize, why: &dyn std::fmt::Display) -> io::Error {
    let text = format!("line {line} of {} is damaged: {why}; nothing was changed", path.display());
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// A file of JSON lines that only grows.
#[derive(Debug)]
pub(crate) struct JournalLines {
    file: Option<File>,
    end: u64,
    failure: Option<io::Error>,
    torn: bool,
}

impl JournalLines {
    /// Opens or creates it, and returns its entries. Cuts off a torn last line.
    pub(crate) fn open<T: DeserializeOwned>(path: &Path) -> io::Result<(Self, Vec<T>)> {
        let held = match File::open(path) {
            Ok(file) => read(&file, path)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => HeldBack { entries: Vec::new(), end: 0, torn: false },
            Err(e) => return Err(e),
        };
        let opened = OpenOptions::new().create(true).append(true).open(path);
        let opened = opened.and_then(|file| if held.torn { file.set_len(held.end).map(|()| file) } else { Ok(file) });
        let (file, failure) = match opened {
            Ok(file) => (Some(file), None),
            Err(e) => (None, Some(e)),
        };
        Ok((Self { file, end: held.end, failure, torn: held.torn }, held.entries))
    }

    /// Adds a line. If there is no room for it, the engine goes on without this and all later lines, and
    /// [`Self::take_failure`] tells why.
    pub(crate) fn add(&mut self, entry: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry).map_err(io::Error::other)?;
        line.push(b'\n');
        let Some(file) = &mut self.file else { return Ok(()) };
        match file.write_all(&line) {
            Ok(()) => self.end += line.len() as u64,
            Err(e) => {
                // Half a line at the end would look like what a kill left.
                let _ = file.set_len(self.end);
                self.failure = Some(e);
                self.file = None;
            }
        }
        Ok(())
    }

    /// Why lines are missing, if any are.
    pub(crate) fn take_failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }

    /// Whether a torn line was found and cut off.
    pub(crate) fn was_torn(&self) -> bool {
        self.torn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_last_line_is_cut_off_and_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let (mut lines, none) = JournalLines::open::<u32>(&path).expect("a file");
        assert!(none.is_empty() && !lines.was_torn());
        lines.add(&1).and_then(|()| lines.add(&2)).expect("room");
        std::fs::write(&path, "1\n2\n3").expect("room");
        let (mut lines, known) = JournalLines::open::<u32>(&path).expect("a file");
        assert_eq!((known, lines.was_torn()), (vec![1, 2], true));
        lines.add(&4).expect("room");
        assert_eq!(JournalLines::open::<u32>(&path).expect("a file").1, [1, 2, 4]);
    }

    #[test]
    fn a_damaged_line_is_named_and_nothing_after_it_is_lost() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        for text in ["1\nx2\n3\n", "1\n\n3\n", "1\nx2\n"] {
            std::fs::write(&path, text).expect("room");
            let error = JournalLines::open::<u32>(&path).expect_err("a damaged line").to_string();
            assert!(error.contains("line 2 of") && error.contains("journal"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).expect("a file"), text);
        }
    }

    #[test]
    fn without_room_the_engine_goes_on() {
        let full = OpenOptions::new().append(true).open("/dev/full").expect("a device");
        let mut lines = JournalLines { file: Some(full), end: 0, failure: None, torn: false };
        lines.add(&1).expect("no room is no error");
        lines.add(&2).expect("no room is no error");
        assert_eq!(lines.take_failure().map(|e| e.kind()), Some(io::ErrorKind::StorageFull));
    }
}
