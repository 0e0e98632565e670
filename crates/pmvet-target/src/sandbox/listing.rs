//! Listings of folders in which files have stand-ins, where there is no [view](super::view): the real entries except hidden ones,
//! then the new ones.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;

use super::tracee::{Tracee, TraceeRegisters};

/// How a folder differs from the real one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Differences {
    pub(super) hidden: Vec<OsString>,
    pub(super) added: Vec<OsString>,
}

impl Differences {
    pub(super) fn is_empty(&self) -> bool {
        self.hidden.is_empty() && self.added.is_empty()
    }
}

/// A call that lists a folder, under way.
#[derive(Debug)]
pub(super) struct Listing {
    form: Form,
    differences: Differences,
    process: libc::pid_t,
    fd: i32,
    buffer: u64,
    room: usize,
}

/// How many of the new entries were listed, by process and descriptor.
#[derive(Debug, Default)]
pub(super) struct Told(HashMap<(libc::pid_t, i32), usize>);

/// What a program sees of a listing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ListedAs {
    /// What is in its buffer.
    AsItIs,
    /// This many bytes.
    Bytes(usize),
    /// All entries were hidden: the call has to be repeated.
    Again,
}

impl Listing {
    pub(super) fn new(tracee: Tracee, registers: &TraceeRegisters, differences: Differences, told: &mut Told) -> Self {
        let form = if registers.orig_rax as i64 == libc::SYS_getdents { Form::Old } else { Form::New };
        let (process, fd) = (tracee.process(), registers.rdi as i32);
        let about = std::fs::read_to_string(format!("/proc/{}/fdinfo/{fd}", tracee.tid)).unwrap_or_default();
        if about.lines().any(|line| line.strip_prefix("pos:").is_some_and(|at| at.trim() == "0")) {
            told.0.remove(&(process, fd));
        }
        Self { form, differences, process, fd, buffer: registers.rsi, room: registers.rdx as usize }
    }

    /// Corrects the buffer, after the kernel has put this many bytes there.
    pub(super) fn finish(self, tracee: Tracee, bytes: usize, told: &mut Told) -> io::Result<ListedAs> {
        let told = told.0.entry((self.process, self.fd)).or_default();
        let seen = if bytes == 0 {
            let (entries, count) = self.form.entries(&self.differences.added[*told..], self.room);
            *told += count;
            entries
        } else {
            let mut found = vec![0; bytes];
            let read = tracee.read(self.buffer, &mut found)?;
            self.form.without(&found[..read], &self.differences.hidden)
        };
        if bytes > 0 && seen.is_empty() {
            return Ok(ListedAs::Again);
        }
        if seen.len() == bytes {
            return Ok(ListedAs::AsItIs);
        }
        tracee.write(self.buffer, &seen)?;
        Ok(ListedAs::Bytes(seen.len()))
    }
}

/// How the kernel writes entries: inode, position, length and, before or after the name, the kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `getdents`
    Old,
    /// `getdents64`
    New,
}

impl Form {
    /// Where the name begins.
    fn name(self) -> usize {
        match self {
            Form::Old => 18,
            Form::New => 19,
        }
    }

    /// The entries whose names are not among these.
    fn without(self, mut entries: &[u8], hidden: &[OsString]) -> Vec<u8> {
        let mut left = Vec::with_capacity(entries.len());
        while let Some(&[low, high]) = entries.get(16..18) {
            let length = usize::from(u16::from_le_bytes([low, high]));
            let Some(entry) = entries.get(..length).filter(|entry| entry.len() > self.name()) else { break };
            let name = entry[self.name()..].split(|&b| b == 0).next().unwrap_or_default();
            if !hidden.iter().any(|known| known == OsStr::from_bytes(name)) {
                left.extend_from_slice(entry);
            }
            entries = &entries[length..];
        }
        left
    }

    /// Entries of regular files with these names, as many as there is room for, and how many those are.
    fn entries(self, names: &[OsString], room: usize) -> (Vec<u8>, usize) {
        let mut written = Vec::new();
        for (count, name) in names.iter().enumerate() {
            // The name's end, and in the old form the kind of file after it.
            let length = (self.name() + name.len() + 2).next_multiple_of(8);
            if written.len() + length > room {
                return (written, count);
            }
            let start = written.len();
            written.extend_from_slice(&(start as u64 + 1).to_le_bytes());
            written.extend_from_slice(&i64::MAX.to_le_bytes());
            written.extend_from_slice(&(length as u16).to_le_bytes());
            if self == Form::New {
                written.push(libc::DT_REG);
            }
            written.extend_from_slice(name.as_bytes());
            written.resize(start + length, 0);
            if self == Form::Old {
                written[start + length - 1] = libc::DT_REG;
            }
        }
        (written, names.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(form: Form, mut entries: &[u8]) -> Vec<String> {
        let mut names = Vec::new();
        while !entries.is_empty() {
            let length = usize::from(u16::from_le_bytes([entries[16], entries[17]]));
            let name = entries[form.name()..length].split(|&b| b == 0).next().unwrap_or_default();
            names.push(String::from_utf8_lossy(name).into_owned());
            entries = &entries[length..];
        }
        names
    }

    #[test]
    fn new_entries_are_told_as_far_as_there_is_room_and_hidden_ones_are_not() {
        let all = ["a", "sixteen-letters-", "b.pool"].map(OsString::from);
        for form in [Form::Old, Form::New] {
            let (entries, count) = form.entries(&all, 4096);
            assert_eq!(
                (names(form, &entries), count),
                (vec!["a".into(), "sixteen-letters-".into(), "b.pool".into()], 3)
            );
            let (some, count) = form.entries(&all, entries.len() - 1);
            assert_eq!((names(form, &some), count), (vec!["a".into(), "sixteen-letters-".into()], 2));
            assert_eq!(form.entries(&all, 7), (Vec::new(), 0));
            let left = form.without(&entries, &["sixteen-letters-".into(), "none".into()]);
            assert_eq!(names(form, &left), ["a", "b.pool"]);
            assert!(form.without(&entries, &all).is_empty());
            // Half an entry is none.
            assert_eq!(names(form, &form.without(&entries[..entries.len() - 1], &[])), ["a", "sixteen-letters-"]);
        }
    }
}
